package store

import "sync"

// Watch is a wake-up for one reader. Receive from C, then read the log; a
// signal that arrives while the reader is busy is kept, further ones merge
// with it. An engine makes it with [NewWatch] and calls Wake.
type Watch struct {
	C    <-chan struct{}
	c    chan struct{}
	once sync.Once
	stop func()
}

// NewWatch makes a watch that calls stop once when it is stopped.
func NewWatch(stop func()) *Watch {
	c := make(chan struct{}, 1)
	return &Watch{C: c, c: c, stop: stop}
}

// Wake leaves a signal. It never blocks.
func (w *Watch) Wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// Stop ends the watch. C gets no further signal and is not closed.
func (w *Watch) Stop() { w.once.Do(w.stop) }
