package app

import (
	"net"
	"sync"
)

// Files of the process that connections must leave to the store: a quarter of
// those that it may open, but not fewer than spareFiles.
const spareFiles = 128

// maxConnections is how many connections may be open where the process may have
// so many files.
func maxConnections(files uint64) int {
	const least, most = 16, 1 << 20
	spare := max(files/4, spareFiles)
	if files < spare+least {
		return least
	}
	return int(min(files-spare, most))
}

// doorman is a listener that lets only so many connections in at once. Others
// wait outside until one leaves. Without it, whoever opens connections enough
// would have the store fail for want of a file, and then it takes nothing more.
type doorman struct {
	*net.TCPListener
	full  func() // somebody has to wait
	seats chan struct{}
	over  chan struct{} // closed by Close
	once  sync.Once
}

func newDoorman(l *net.TCPListener, most int, full func()) *doorman {
	return &doorman{TCPListener: l, full: full, seats: make(chan struct{}, most), over: make(chan struct{})}
}

// Accept implements [net.Listener].
func (d *doorman) Accept() (net.Conn, error) {
	select {
	case d.seats <- struct{}{}:
	default:
		d.full()
		select {
		case d.seats <- struct{}{}:
		case <-d.over:
			return nil, net.ErrClosed
		}
	}
	c, err := d.AcceptTCP()
	if err != nil {
		<-d.seats
		return nil, err
	}
	return &guest{TCPConn: c, leave: sync.OnceFunc(func() { <-d.seats })}, nil
}

// Close implements [net.Listener].
func (d *doorman) Close() error {
	d.once.Do(func() { close(d.over) })
	return d.TCPListener.Close()
}

// guest is a connection that the doorman has let in.
type guest struct {
	*net.TCPConn
	leave func()
}

// Close implements [net.Conn].
func (g *guest) Close() error {
	defer g.leave()
	return g.TCPConn.Close()
}
