// Package netfault stands between a client and its server in tests: it can be
// down, slow or frozen, and it can lose what passes.
package netfault

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy carries connections to one server. Its methods may be called at any
// time, from any goroutine.
type Proxy struct {
	listener net.Listener
	server   string

	mu    sync.Mutex
	thaw  sync.Cond // no longer frozen, or down
	down  bool
	ice   bool
	delay time.Duration
	conns map[net.Conn]bool
	judge func(chunk []byte) Fate

	all sync.WaitGroup
}

// Fate is what happens to what a client has sent.
type Fate int

// Fates of a chunk.
const (
	Pass         Fate = iota
	LoseRequest       // the connection ends before the server has it
	LoseResponse      // the server gets it, and its answer is lost with the connection
)

// New begins to carry connections to the server at an address, until the test
// ends.
func New(t testing.TB, server string) *Proxy {
	t.Helper()
	p, err := Carry(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Carry begins to carry connections to the server at an address, until the proxy
// is closed.
func Carry(server string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, server: server, conns: make(map[net.Conn]bool)}
	p.thaw.L = &p.mu
	p.all.Go(p.accept)
	return p, nil
}

// Close ends all connections, and returns when nothing is left of the proxy.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.Down(true)
	p.all.Wait()
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Down ends all connections and lets none come, or lets them come again.
func (p *Proxy) Down(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	if down {
		for c := range p.conns {
			_ = c.Close()
		}
		p.thaw.Broadcast()
	}
}

// Freeze keeps connections open and carries nothing, until it is told to go on.
func (p *Proxy) Freeze(ice bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ice = ice
	p.thaw.Broadcast()
}

// Delay holds back each chunk for so long, in both directions.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Judge has the fate of each chunk that a client sends decided by f; nil lets
// all pass. f is called under a lock.
func (p *Proxy) Judge(f func(chunk []byte) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = f
}

func (p *Proxy) accept() {
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

// hold waits for as long as what passes is held back.
func (p *Proxy) hold() {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.ice && !p.down {
		p.thaw.Wait()
	}
}

// forward carries requests to the server.
func (p *Proxy) forward(client, server net.Conn, mute chan struct{}, cut func()) {
	defer cut()
	buf := make([]byte, 64<<10)
	for muted := false; ; {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		fate := Pass
		if p.judge != nil {
			fate = p.judge(buf[:n])
		}
		p.mu.Unlock()
		if fate == LoseRequest {
			return
		}
		if fate == LoseResponse && !muted {
			muted = true
			close(mute)
		}
		p.hold()
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// back carries answers, until one is to be lost.
func (p *Proxy) back(server, client net.Conn, mute chan struct{}, cut func()) {
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
		p.hold()
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}
