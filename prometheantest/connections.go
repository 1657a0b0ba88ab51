package prometheantest

import (
	"net"
	"sync"
)

// tracked is a listener that knows which of its connections are open.
type tracked struct {
	net.Listener

	mu   sync.Mutex
	open map[*trackedConn]struct{}
}

func track(l net.Listener) *tracked {
	return &tracked{Listener: l, open: make(map[*trackedConn]struct{})}
}

// Accept implements [net.Listener].
func (l *tracked) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	t := &trackedConn{Conn: c, l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[t] = struct{}{}
	return t, nil
}

// drop ends all connections, without a word to those who have them.
func (l *tracked) drop() int {
	l.mu.Lock()
	list := make([]*trackedConn, 0, len(l.open))
	for c := range l.open {
		list = append(list, c)
	}
	clear(l.open)
	l.mu.Unlock()
	for _, c := range list {
		c.reset()
	}
	return len(list)
}

type trackedConn struct {
	net.Conn
	l *tracked
}

func (c *trackedConn) reset() {
	switch x := c.Conn.(type) {
	case *memoryConn:
		x.reset()
	case *net.TCPConn:
		_ = x.SetLinger(0) // if it fails the connection is gone already
		_ = x.Close()      // likewise
	}
}

// CloseWrite ends one direction, as the gateway does with a WebSocket.
func (c *trackedConn) CloseWrite() error {
	if x, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return x.CloseWrite()
	}
	return nil
}

// Close implements [net.Conn].
func (c *trackedConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.open, c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}
