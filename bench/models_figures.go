package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"promethean"
	"promethean/event"
)

// publishing publishes single events by 64 publishers to another topic.
type publishing struct {
	stopped chan struct{}
	all     sync.WaitGroup
	n       atomic.Int64
	err     atomic.Pointer[error]
}

func startPublishing(ctx context.Context, h *promethean.Hub) *publishing {
	p := &publishing{stopped: make(chan struct{})}
	for i := range 64 {
		p.all.Go(func() {
			gen := newGenerator(load{Keys: loadKeys}, []string{topicName(1)}, i)
			one := make([]event.Event, 1)
			for {
				select {
				case <-p.stopped:
					return
				default:
				}
				gen.fill(one)
				if _, err := h.Publish(ctx, one...); err != nil {
					p.err.CompareAndSwap(nil, &err)
					return
				}
				p.n.Add(1)
			}
		})
	}
	return p
}

// rate is how many are published a second, for so long.
func (p *publishing) rate(d time.Duration) (float64, error) {
	from, began := p.n.Load(), time.Now()
	time.Sleep(d)
	if err := p.err.Load(); err != nil {
		return 0, *err
	}
	return float64(p.n.Load()-from) / time.Since(began).Seconds(), nil
}

// until is the rate until something is done, and how that ended.
func (p *publishing) until(done <-chan error) (float64, error) {
	from, began := p.n.Load(), time.Now()
	err := <-done
	return float64(p.n.Load()-from) / time.Since(began).Seconds(), err
}

func (p *publishing) stop() error {
	close(p.stopped)
	p.all.Wait()
	if err := p.err.Load(); err != nil {
		return *err
	}
	return nil
}

// milliseconds writes seconds.
func milliseconds(v float64) string { return fmt.Sprintf("%.2f ms", v*1000) }

// modelSection shows the figures about read models.
func modelSection(p modelPlan, r *modelResult) section {
	s := section{title: "Read models, time travel and compaction", columns: []string{"what", "median", "min–max or p99"}}
	rate := func(what string, v []float64) {
		if len(v) > 0 {
			x := spreadOf(v)
			s.rows = append(s.rows, []string{what, count(x.Median) + "/s", count(x.Min) + "–" + count(x.Max)})
		}
	}
	took := func(what string, v []float64) {
		if len(v) > 0 {
			s.rows = append(s.rows, []string{what, milliseconds(medianOf(v)), milliseconds(p99Of(v))})
		}
	}
	rate(fmt.Sprintf("changelog view, %s events over %s keys, three indexes", count(float64(p.events)), count(float64(p.keys))), r.Changelog)
	rate("transactional view, two collections, two indexes", r.Transactional)
	if len(r.Full) > 0 {
		s.rows = append(s.rows, []string{"heap in the middle of a projection, and at its end", mebibytes(medianOf(r.Half)), mebibytes(medianOf(r.Full))})
	}
	rate("a handler with a constant body, over HTTP", r.Constant)
	rate("GET snap", r.Snap)
	rate("GET snap, 304", r.NotModified)
	took(fmt.Sprintf("GET list, one filter, %s documents", count(float64(p.documents))), r.List)
	took("GET list, two filters, offset 100", r.ListTwo)
	took(fmt.Sprintf("time travel, replace, in %s events", count(float64(p.history))), r.Replace)
	took(fmt.Sprintf("time travel, merge of %d events of the key", p.each), r.Merge)
	rate("64 publishers", r.Alone)
	rate("64 publishers beside a compaction", r.Beside)
	if r.Squeezed > 0 {
		s.rows = append(s.rows, []string{
			fmt.Sprintf("compaction of %s events to %s", count(float64(p.squeeze)), count(float64(r.Kept))),
			seconds(r.Squeezed), mebibytes(float64(r.Bytes[0])) + " to " + mebibytes(float64(r.Bytes[1])),
		})
	}
	return s
}

// modelGates judges them.
func modelGates(r results, ratio func(name string, limit float64, atLeast bool, q []float64) gate) []gate {
	m := r.models
	if m == nil {
		m = &modelResult{}
	}
	value := func(name string, limit float64, atLeast bool, v []float64, format func(float64) string) gate {
		return gate{name: name, threshold: limit, atLeast: atLeast, strict: !atLeast, format: format, measured: len(v) > 0, value: medianOf(v)}
	}
	return []gate{
		value("changelog view, events/s", 150_000, true, m.Changelog, count),
		value("transactional view, events/s", 60_000, true, m.Transactional, count),
		ratio("heap at the end ÷ in the middle of a projection", 1.25, false, pairwise(m.Full, m.Half)),
		ratio("GET snap ÷ constant handler", 0.7, true, pairwise(m.Snap, m.Constant)),
		ratio("304 ÷ 200", 1, true, pairwise(m.NotModified, m.Snap)),
		value("list with an indexed filter, p50", 0.005, false, m.List, milliseconds),
		value("time travel over 100 events of a key, p50", 0.002, false, m.Merge, milliseconds),
		ratio("publishing beside a compaction ÷ alone", 0.6, true, pairwise(m.Beside, m.Alone)),
	}
}
