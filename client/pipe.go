package client

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// pipe is the connection below a WebSocket. It can be corked: then what is
// written is kept until there is much of it, so that many small frames cost one
// write. It also knows when the other end was last heard.
type pipe struct {
	io.ReadWriteCloser
	heard atomic.Int64 // when, as nanoseconds since began
	began time.Time

	mu     sync.Mutex
	corked bool
	buf    []byte
}

// maxCorked is how much is kept.
const maxCorked = 64 << 10

// Read implements [io.Reader].
func (p *pipe) Read(b []byte) (int, error) {
	n, err := p.ReadWriteCloser.Read(b)
	if n > 0 {
		p.heard.Store(int64(time.Since(p.began)))
	}
	return n, err
}

// silent is for how long nothing came.
func (p *pipe) silent() time.Duration {
	return time.Since(p.began) - time.Duration(p.heard.Load())
}

// Write implements [io.Writer]. A control frame that is written while the pipe
// is corked goes with the rest, soon.
func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.corked {
		return p.ReadWriteCloser.Write(b)
	}
	if len(p.buf)+len(b) > maxCorked {
		if err := p.flush(); err != nil {
			return 0, err
		}
		if len(b) > maxCorked/2 {
			return p.ReadWriteCloser.Write(b)
		}
	}
	p.buf = append(p.buf, b...)
	return len(b), nil
}

func (p *pipe) cork() {
	p.mu.Lock()
	p.corked = true
	p.mu.Unlock()
}

func (p *pipe) uncork() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.corked = false
	return p.flush()
}

// flush must be called with mu held.
func (p *pipe) flush() error {
	if len(p.buf) == 0 {
		return nil
	}
	_, err := p.ReadWriteCloser.Write(p.buf)
	p.buf = p.buf[:0]
	return err
}

// tap is a transport that puts a pipe below the connection of an upgrade.
type tap struct {
	base http.RoundTripper // nil: the default one
	pipe *pipe
}

// RoundTrip implements [http.RoundTripper].
func (t *tap) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.base
	if base == nil {
		base = http.DefaultTransport
	}
	got, err := base.RoundTrip(r)
	if err != nil || got.StatusCode != http.StatusSwitchingProtocols {
		return got, err
	}
	if conn, ok := got.Body.(io.ReadWriteCloser); ok {
		t.pipe = &pipe{ReadWriteCloser: conn, began: time.Now()}
		got.Body = t.pipe
	}
	return got, nil
}
