package mongostore_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy stands between a store and its server. It can be down, and it can lose
// what passes.
type proxy struct {
	listener net.Listener
	server   string

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
	// lose is asked for every chunk that a client sends, and decides its fate.
	lose     func(chunk []byte) fate
	requests int

	all sync.WaitGroup
}

// fate is what happens to a request.
type fate int

const (
	pass         fate = iota
	loseRequest       // the connection ends before the server has it
	loseResponse      // the server gets it, and its answer is lost
)

func newProxy(t testing.TB, uri string) *proxy {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, server: u.Host, conns: make(map[net.Conn]bool)}
	p.all.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.setDown(true)
		p.all.Wait()
	})
	return p
}

func (p *proxy) uri() string {
	return "mongodb://" + p.listener.Addr().String() + "/?directConnection=true"
}

func (p *proxy) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	if down {
		for c := range p.conns {
			_ = c.Close()
		}
	}
}

func (p *proxy) setLose(f func(chunk []byte) fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = f
}

// count gives the number of chunks that clients have sent so far and that are
// no greetings: about the number of requests.
func (p *proxy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		p.mu.Lock()
		if err != nil || p.down {
			p.mu.Unlock()
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		var lost sync.Once
		cut := func() {
			lost.Do(func() {
				p.mu.Lock()
				delete(p.conns, client)
				delete(p.conns, server)
				p.mu.Unlock()
				_ = client.Close()
				_ = server.Close()
			})
		}
		mute := make(chan struct{}) // closed: no answer gets through any more
		p.all.Go(func() { p.forward(client, server, mute, cut) })
		p.all.Go(func() { p.back(server, client, mute, cut) })
	}
}

// forward carries requests to the server.
func (p *proxy) forward(client, server net.Conn, mute chan struct{}, cut func()) {
	defer cut()
	buf := make([]byte, 64<<10)
	for muted := false; ; {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		f := pass
		if p.lose != nil {
			f = p.lose(buf[:n])
		}
		if !bytes.Contains(buf[:n], []byte("hello\x00")) && !bytes.Contains(buf[:n], []byte("isMaster\x00")) {
			p.requests++
		}
		p.mu.Unlock()
		if f == loseRequest {
			return
		}
		if f == loseResponse && !muted {
			muted = true
			close(mute)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// back carries answers, until one is to be lost.
func (p *proxy) back(server, client net.Conn, mute chan struct{}, cut func()) {
	defer cut()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-mute:
			return // the server has done it, and nobody will know
		default:
		}
		if _, err := io.Copy(client, bytes.NewReader(buf[:n])); err != nil {
			return
		}
	}
}
