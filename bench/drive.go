package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"promethean/event"
)

// limit says when a run ends: after a time, after a number of events, or when
// the context does, whichever is first. Zero fields do not limit.
type limit struct {
	time   time.Duration
	events int64
	// acked, where set, counts acknowledged events while the run goes on.
	acked *atomic.Int64
}

// outcome is what one run gave.
type outcome struct {
	events  int64
	elapsed time.Duration // from the first publish to the last answer
	settled time.Duration // the part of it after the last acknowledgement
	p50     time.Duration
	p99     time.Duration
	// tenths are the moments at which each tenth of the events was
	// acknowledged, where their number was given.
	tenths [10]time.Duration
	cpu    time.Duration // of the process, where that is measured
	peak   int64         // bytes that were live at most, where that is measured
}

func (o outcome) rate() float64 { return float64(o.events) / o.elapsed.Seconds() }

// drive publishes to an open target as l says, until lim is reached.
func drive(ctx context.Context, t target, l load, lim limit) (out outcome, err error) {
	names := topicNames(l)
	workers := make([]*worker, l.Publishers)
	defer func() {
		for _, w := range workers {
			if w != nil {
				err = errors.Join(err, w.pub.Close())
			}
		}
	}()
	for i := range workers {
		pub, err := t.Publisher(ctx, i)
		if err != nil {
			return outcome{}, fmt.Errorf("publisher %d of %s: %w", i, t.Name(), err)
		}
		workers[i] = &worker{pub: pub, gen: newGenerator(l, names, i), batch: make([]event.Event, l.Batch)}
	}
	// One event each ahead of the clock, so that no first use is measured.
	// Runs that must give an exact number of events do without.
	if lim.events == 0 {
		for _, w := range workers {
			w.gen.fill(w.batch[:1])
			if err := w.pub.Publish(ctx, w.batch[:1]); err != nil {
				return outcome{}, fmt.Errorf("publish to %s: %w", t.Name(), err)
			}
		}
	}

	r := &run{limit: lim}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	if r.acked == nil {
		r.acked = new(atomic.Int64)
	}
	before := r.acked.Load()
	if lim.time > 0 {
		timer := time.AfterFunc(lim.time, func() { r.stop.Store(true) })
		defer timer.Stop()
	}
	var wg sync.WaitGroup
	r.start = time.Now()
	for _, w := range workers {
		wg.Go(func() { w.loop(r) })
	}
	wg.Wait()
	published := time.Since(r.start)
	if err := context.Cause(r.ctx); err != nil {
		return outcome{}, fmt.Errorf("publish to %s: %w", t.Name(), err)
	}

	var lats histogram
	var last []event.Event
	for _, w := range workers {
		lats.merge(&w.lats)
		if w.lats.total > 0 {
			last = append(last, w.batch[len(w.batch)-1])
		}
	}
	if s, ok := t.(settler); ok {
		if err := s.Settle(ctx, last); err != nil {
			return outcome{}, fmt.Errorf("look up the last events of %s: %w", t.Name(), err)
		}
	}
	elapsed := time.Since(r.start)
	return outcome{
		events: r.acked.Load() - before, elapsed: elapsed, settled: elapsed - published,
		p50: lats.percentile(0.50), p99: lats.percentile(0.99), tenths: r.tenths,
	}, nil
}

// run is what the workers of one drive share.
type run struct {
	limit
	ctx     context.Context
	cancel  context.CancelCauseFunc
	start   time.Time
	stop    atomic.Bool
	claimed atomic.Int64
	done    atomic.Int64
	tenths  [10]time.Duration // each written by the one worker that reached it
}

type worker struct {
	pub   publisher
	gen   *generator
	batch []event.Event
	lats  histogram
}

func (w *worker) loop(r *run) {
	size := int64(len(w.batch))
	// The end is looked for after a publish: a worker that the machine let
	// start late has one latency to show too.
	for {
		if r.events > 0 && r.claimed.Add(size) > r.events {
			return
		}
		w.gen.fill(w.batch)
		start := time.Now()
		if err := w.pub.Publish(r.ctx, w.batch); err != nil {
			r.cancel(err)
			return
		}
		w.lats.add(time.Since(start))
		r.acked.Add(size)
		if r.events > 0 {
			r.mark(r.done.Add(size), size)
		}
		if r.stop.Load() || r.ctx.Err() != nil {
			return
		}
	}
}

// mark notes the time at which done reached a tenth of all events. Counts are
// given out by one atomic, so exactly one worker passes each tenth.
func (r *run) mark(done, size int64) {
	for i := (done - size) * 10 / r.events; i < done*10/r.events; i++ {
		r.tenths[i] = time.Since(r.start)
	}
}
