package pool

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Everything runs, at the same time, however much there is; a function may
// start others.
func TestAllRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New()
		var n atomic.Int32
		all := make(chan struct{})
		for range 1000 {
			p.Go(func() {
				if n.Add(1) == 1000 {
					p.Go(func() { close(all) })
				}
				<-all
			})
		}
		p.Wait()
		synctest.Wait()
		if p.parked != maxParked {
			t.Errorf("%d goroutines are kept, want %d", p.parked, maxParked)
		}
		p.Close()
	})
}

// Goroutines are used again.
func TestReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New()
		for range 100 {
			p.Go(func() {})
			synctest.Wait()
		}
		if p.parked != 1 {
			t.Errorf("%d goroutines for work that never overlapped", p.parked)
		}
		p.Close()
	})
}

// What runs when the pool is closed ends, and nothing begins after that.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New()
		gate := make(chan struct{})
		ended := false
		p.Go(func() { <-gate; ended = true })
		p.Close()
		p.Close()
		if p.Go(func() { t.Error("began after Close") }) {
			t.Error("Go is true after Close")
		}
		close(gate)
		p.Wait()
		if !ended {
			t.Error("Wait returned before the end")
		}
	})
}

// A function that ends its goroutine counts as ended.
func TestGoexit(t *testing.T) {
	p := New()
	defer p.Close()
	var wg sync.WaitGroup
	wg.Add(1)
	p.Go(func() { defer wg.Done(); runtime.Goexit() })
	wg.Wait()
	p.Wait()
}
