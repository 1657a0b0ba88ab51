package prometheantest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// memoryHost is the name of a hub that listens in memory. No resolver knows
// names under .test, so a client that does not dial through the kit finds
// nobody, rather than some hub on the machine.
const memoryHost = "hub.test"

// window is how many bytes of a memory connection may be on their way. It is
// about what a socket takes, so that a client which does not read is noticed
// after as much as it would be there.
const window = 256 << 10

// memoryListener is a listener whose connections are made by its Dial. All
// waits are on condition variables and channels, which is what lets the time of
// a synctest bubble go on while somebody waits for bytes.
type memoryListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex
	made int // connections
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept implements [net.Listener].
func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements [net.Listener].
func (l *memoryListener) Addr() net.Addr { return memoryAddr(memoryHost + ":80") }

func (l *memoryListener) dial(ctx context.Context) (net.Conn, error) {
	l.mu.Lock()
	l.made++
	here := memoryAddr(fmt.Sprintf("client-%d.test:80", l.made))
	l.mu.Unlock()
	client, server := newMemoryPair(here, l.Addr())
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: l.Addr(), Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: l.Addr(), Err: ctx.Err()}
	}
}

// memoryAddr is an address that nobody else has.
type memoryAddr string

// Network implements [net.Addr].
func (memoryAddr) Network() string { return "memory" }

// String implements [net.Addr].
func (a memoryAddr) String() string { return string(a) }

// stream is one direction of a connection: what was written and not read.
type stream struct {
	mu      sync.Mutex
	changed sync.Cond
	data    []byte
	ended   bool  // the writer has said that no more comes
	err     error // the connection is gone: both ends get this, data is lost
	left    bool  // the reader has closed: nobody will read

	read, write deadline
}

// deadline is when a wait ends. The timer only wakes who waits: whether the
// time has come is asked of the clock, so that a timer which fires late, after
// the deadline was moved, does no harm.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) over() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func newStream() *stream {
	s := new(stream)
	s.changed.L = &s.mu
	return s
}

func (s *stream) setDeadline(d *deadline, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = at
	if left := time.Until(at); !at.IsZero() && left > 0 {
		d.timer = time.AfterFunc(left, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed.Broadcast()
		})
	}
	s.changed.Broadcast()
}

func (s *stream) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.err != nil:
			return 0, s.err
		case s.left:
			return 0, net.ErrClosed
		case s.read.over():
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case len(s.data) > 0:
			n := copy(b, s.data)
			if s.data = s.data[n:]; len(s.data) == 0 {
				s.data = nil
			}
			s.changed.Broadcast()
			return n, nil
		case s.ended:
			return 0, io.EOF
		}
		s.changed.Wait()
	}
}

func (s *stream) Write(b []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.err != nil:
			return n, s.err
		case s.ended:
			return n, net.ErrClosed
		case s.left:
			return n, syscall.EPIPE
		case s.write.over():
			return n, os.ErrDeadlineExceeded
		case len(b) == 0:
			return n, nil
		case len(s.data) < window:
			part := min(len(b), window-len(s.data))
			s.data = append(s.data, b[:part]...)
			n, b = n+part, b[part:]
			s.changed.Broadcast()
		default:
			s.changed.Wait()
		}
	}
}

// change does something to a stream and wakes who waits for it.
func (s *stream) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.changed.Broadcast()
}

// memoryConn is one end of a connection.
type memoryConn struct {
	in, out     *stream
	local, peer net.Addr
}

func newMemoryPair(client, server net.Addr) (a, b *memoryConn) {
	up, down := newStream(), newStream()
	return &memoryConn{in: down, out: up, local: client, peer: server}, &memoryConn{in: up, out: down, local: server, peer: client}
}

func (c *memoryConn) wrap(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return &net.OpError{Op: op, Net: "memory", Source: c.local, Addr: c.peer, Err: err}
}

// Read implements [net.Conn].
func (c *memoryConn) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	return n, c.wrap("read", err)
}

// Write implements [net.Conn].
func (c *memoryConn) Write(b []byte) (int, error) {
	n, err := c.out.Write(b)
	return n, c.wrap("write", err)
}

// Close implements [net.Conn]. What was written can still be read.
func (c *memoryConn) Close() error {
	c.stopTimers()
	c.out.change(func() { c.out.ended = true })
	c.in.change(func() { c.in.left, c.in.data = true, nil })
	return nil
}

// stopTimers stops the timers of this end, so that none outlives it.
func (c *memoryConn) stopTimers() {
	c.in.setDeadline(&c.in.read, time.Time{})
	c.out.setDeadline(&c.out.write, time.Time{})
}

// CloseWrite says that no more comes, as a socket can.
func (c *memoryConn) CloseWrite() error {
	c.out.change(func() { c.out.ended = true })
	return nil
}

// reset ends the connection as a network does that fails: what is on its way is
// lost, and both ends get an error.
func (c *memoryConn) reset() {
	for _, s := range []*stream{c.in, c.out} {
		s.change(func() { s.err, s.data = syscall.ECONNRESET, nil })
	}
}

// LocalAddr implements [net.Conn].
func (c *memoryConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements [net.Conn].
func (c *memoryConn) RemoteAddr() net.Addr { return c.peer }

// SetDeadline implements [net.Conn].
func (c *memoryConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (c *memoryConn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.read, t)
	return nil
}

// SetWriteDeadline implements [net.Conn].
func (c *memoryConn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.write, t)
	return nil
}
