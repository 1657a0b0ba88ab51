package group

import (
	"sync"
	"sync/atomic"

	"promethean/store"
)

// watcher wakes the runners of one topic. It has a goroutine only while it
// does.
type watcher struct {
	e     *Engine
	watch *store.Watch
	again atomic.Bool // the topic has grown since the round began
	busy  atomic.Bool // a round is under way
	turn  func()      // w.round, made once
	pages atomic.Pointer[pages]

	mu      sync.Mutex
	runners []*runner
}

// watch has the runner woken when its topic grows.
func (e *Engine) watch(r *runner) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	w := e.topics[r.topic]
	if w == nil {
		w = &watcher{e: e, watch: e.log.Watch(r.topic)}
		w.turn = w.round
		w.pages.Store(e.pages[r.topic])
		w.watch.Call(w.grown)
		e.topics[r.topic] = w
	}
	w.mu.Lock()
	w.runners = append(w.runners, r)
	w.mu.Unlock()
	return nil
}

// grown is called by the log.
func (w *watcher) grown() {
	if p := w.pages.Load(); p != nil {
		p.grown.Add(1)
	}
	w.again.Store(true)
	if w.busy.CompareAndSwap(false, true) {
		w.e.work.Go(w.turn)
	}
}

// round tells the runners that there is more to read. One of them reads in
// this goroutine: most topics have one, and each change of goroutine lies
// between a publisher and the handler.
func (w *watcher) round() {
	for w.again.Swap(false) {
		w.mu.Lock()
		runners := w.runners
		w.mu.Unlock()
		var mine *runner
		for _, r := range runners {
			if !r.wake() {
				continue
			}
			if mine != nil {
				w.e.work.Go(mine.reader)
			}
			mine = r
		}
		if mine != nil {
			mine.runReader(1)
		}
	}
	w.busy.Store(false)
	if w.again.Load() {
		w.grown() // it came between the last look and the line before
	}
}
