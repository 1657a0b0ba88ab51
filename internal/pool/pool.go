// Package pool keeps goroutines for later use. One that is new begins with a
// small stack, and growing it costs more than most of the short work that
// delivery consists of.
package pool

import "sync"

// maxParked is how many goroutines wait for work.
const maxParked = 64

// Pool runs functions, each on a goroutine of its own.
type Pool struct {
	work chan func()
	stop chan struct{}

	mu     sync.Mutex
	idle   sync.Cond // running has become 0
	parked int
	// running counts functions that have not returned.
	running int
	closed  bool
}

// New makes a pool. Close it.
func New() *Pool {
	p := &Pool{work: make(chan func()), stop: make(chan struct{})}
	p.idle.L = &p.mu
	return p
}

// Go runs f, at once and without blocking the caller. It returns false, and
// does not run f, after Close.
func (p *Pool) Go(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running++
	select {
	case p.work <- f:
	default:
		go p.run(f)
	}
	return true
}

func (p *Pool) run(f func()) {
	for {
		p.call(f)
		if !p.park() {
			return
		}
		select {
		case f = <-p.work:
			p.mu.Lock()
			p.parked--
			p.mu.Unlock()
		case <-p.stop:
			return
		}
	}
}

// call runs f and counts it as ended, also if it ends its goroutine.
func (p *Pool) call(f func()) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.running--; p.running == 0 {
			p.idle.Broadcast()
		}
	}()
	f()
}

// park says whether the goroutine is to wait for more.
func (p *Pool) park() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.parked == maxParked {
		return false
	}
	p.parked++
	return true
}

// Wait returns when nothing runs.
func (p *Pool) Wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		p.idle.Wait()
	}
}

// Close lets no more in. What runs goes on; Wait waits for it.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		close(p.stop)
	}
}
