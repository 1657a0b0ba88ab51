package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"promethean/event"
	"promethean/store"
)

// The roles here open our engine in a process of its own, so that its memory
// is counted alone and so that it can be killed.

// fillOrder makes a history: Events single appends over the load's topics,
// then TailEvents to one topic of their own, which are read again and again.
type fillOrder struct {
	Dir        string
	Load       load
	Events     int64
	TailEvents int64
	TailTime   time.Duration
}

type fillResult struct {
	Elapsed time.Duration
	Tenths  [10]time.Duration
	// Tail has the events a second of each pass over the newest events.
	Tail     []float64
	Closing  time.Duration
	PeakRSS  int64
	Retained uint64 // events of all topics together
}

func fillRole(ctx context.Context, order []byte, say func(any) error) error {
	var o fillOrder
	if err := json.Unmarshal(order, &o); err != nil {
		return err
	}
	t := &engineTarget{}
	if err := t.Open(ctx, o.Dir); err != nil {
		return err
	}
	peak := watchMemory()
	var res fillResult
	err := func() error {
		out, err := drive(ctx, t, o.Load, limit{events: o.Events})
		if err != nil {
			return err
		}
		res.Elapsed, res.Tenths = out.elapsed, out.tenths
		newest := load{Publishers: 4, Batch: 100, Topics: 1, FirstTopic: o.Load.FirstTopic + o.Load.Topics, Keys: o.Load.Keys}
		if _, err := drive(ctx, t, newest, limit{events: o.TailEvents}); err != nil {
			return err
		}
		if res.Tail, err = readTail(ctx, t.log, topicName(newest.FirstTopic), o.TailTime); err != nil {
			return err
		}
		res.Retained, err = retained(ctx, t.log)
		return err
	}()
	var failed error
	res.PeakRSS, failed = peak()
	start := time.Now()
	if err := errors.Join(err, failed, t.Close()); err != nil {
		return err
	}
	res.Closing = time.Since(start)
	return say(res)
}

// readTail reads the whole topic again and again for a time, at least once,
// and gives the events a second of each pass.
func readTail(ctx context.Context, log store.Log, topic string, d time.Duration) ([]float64, error) {
	var rates []float64
	for begin := time.Now(); len(rates) == 0 || time.Since(begin) < d; {
		start := time.Now()
		n, err := readAll(ctx, log, topic)
		if err != nil {
			return nil, err
		}
		rates = append(rates, float64(n)/time.Since(start).Seconds())
	}
	return rates, nil
}

// readAll reads a topic from its first event and checks that none is missing.
func readAll(ctx context.Context, log store.Log, topic string) (n uint64, err error) {
	bounds, err := log.Bounds(ctx, topic)
	if err != nil {
		return 0, err
	}
	var last event.Event
	for e, err := range log.Read(ctx, store.Query{Topic: topic}) {
		if err != nil {
			return n, err
		}
		if n++; e.Seq != n || len(e.Payload) != payloadBytes {
			return n, fmt.Errorf("read topic %s: event %d has seq %d and %d bytes of payload", topic, n, e.Seq, len(e.Payload))
		}
		last = e
	}
	if last.Seq != bounds.Last {
		return n, fmt.Errorf("read topic %s: ended at seq %d of %d", topic, last.Seq, bounds.Last)
	}
	return n, nil
}

func retained(ctx context.Context, log store.Log) (n uint64, err error) {
	for t, err := range log.Topics(ctx) {
		if err != nil {
			return n, err
		}
		n += t.Bounds.Last + 1 - t.Bounds.First
	}
	return n, nil
}

// openOrder opens a history, and reads one topic whole if one is named.
type openOrder struct{ Dir, Scan string }

type openResult struct {
	Opening  time.Duration
	Scanned  uint64
	ScanTime time.Duration
	PeakRSS  int64
	Retained uint64
}

func openRole(ctx context.Context, order []byte, say func(any) error) error {
	var o openOrder
	if err := json.Unmarshal(order, &o); err != nil {
		return err
	}
	peak := watchMemory()
	t := &engineTarget{}
	start := time.Now()
	if err := t.Open(ctx, o.Dir); err != nil {
		return err
	}
	res := openResult{Opening: time.Since(start)}
	err := func() (err error) {
		// The scan comes first: counting would warm what it is to find cold.
		if o.Scan != "" {
			start = time.Now()
			if res.Scanned, err = readAll(ctx, t.log, o.Scan); err != nil {
				return err
			}
			res.ScanTime = time.Since(start)
		}
		res.Retained, err = retained(ctx, t.log)
		return err
	}()
	var failed error
	res.PeakRSS, failed = peak()
	if err := errors.Join(err, failed, t.Close()); err != nil {
		return err
	}
	return say(res)
}

// crashOrder appends without end; the parent kills the process.
type crashOrder struct {
	Dir  string
	Load load
}

// crashReport says how many events were acknowledged up to now.
type crashReport struct{ Acked int64 }

func crashRole(ctx context.Context, order []byte, say func(any) error) error {
	var o crashOrder
	if err := json.Unmarshal(order, &o); err != nil {
		return err
	}
	t := &engineTarget{}
	if err := t.Open(ctx, o.Dir); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var acked atomic.Int64
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if err := say(crashReport{Acked: acked.Load()}); err != nil {
					cancel(err)
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	_, err := drive(ctx, t, o.Load, limit{acked: &acked})
	cancel(nil)
	return errors.Join(err, t.Close())
}
