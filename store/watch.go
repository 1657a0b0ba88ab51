package store

import (
	"sync"
	"sync/atomic"
)

// Watch is a wake-up for one reader. Receive from C, then read the log; a
// signal that arrives while the reader is busy is kept, further ones merge
// with it. An engine makes it with [NewWatch] and calls Wake.
type Watch struct {
	C    <-chan struct{}
	c    chan struct{}
	call atomic.Pointer[func()]
	once sync.Once
	stop func()
}

// NewWatch makes a watch that calls stop once when it is stopped.
func NewWatch(stop func()) *Watch {
	c := make(chan struct{}, 1)
	return &Watch{C: c, c: c, stop: stop}
}

// Call has f called at every signal, in place of leaving it in C; once at
// least if there was a signal before. The engine calls it where it makes events
// visible: f must be quick, and must neither block nor use the log.
func (w *Watch) Call(f func()) {
	w.call.Store(&f)
	w.pass(f)
}

// pass calls f if a signal was left in C.
func (w *Watch) pass(f func()) {
	select {
	case <-w.c:
		f()
	default:
	}
}

// Wake leaves a signal. It never blocks.
func (w *Watch) Wake() {
	if f := w.call.Load(); f != nil {
		(*f)()
		return
	}
	select {
	case w.c <- struct{}{}:
	default:
	}
	if f := w.call.Load(); f != nil {
		w.pass(*f) // it came meanwhile, and may have looked too early
	}
}

// Stop ends the watch. C gets no further signal and is not closed.
func (w *Watch) Stop() { w.once.Do(w.stop) }
