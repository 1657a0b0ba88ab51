package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"promethean/event"
	"promethean/store"
)

// Bench measures an engine: appends of single events by one and by many
// callers, large batches, scans, reads of the newest events, reads by key,
// lookups by id, duplicates and settlements. Events have about 300 bytes.
// Figures are events per second unless they say otherwise, and every append
// waits for durability.
func Bench(b *testing.B, h Harness) {
	h = h.withDefaults()
	b.Run("append/single/c1", func(b *testing.B) { benchSingles(b, h, 1) })
	b.Run("append/single/c64", func(b *testing.B) { benchSingles(b, h, 64) })
	b.Run(fmt.Sprintf("append/batch%d", min(h.MaxBatch, 1000)), func(b *testing.B) { benchBatches(b, h) })
	b.Run("append/duplicate/c64", func(b *testing.B) { benchDuplicates(b, h) })
	b.Run("read/scan", func(b *testing.B) { benchScan(b, h) })
	b.Run("read/tail", func(b *testing.B) { benchTail(b, h) })
	b.Run("read/key", func(b *testing.B) { benchKey(b, h) })
	b.Run("locate/id", func(b *testing.B) { benchLocate(b, h) })
	b.Run("settle/c64", func(b *testing.B) { benchSettle(b, h) })
}

var benchPayload = json.RawMessage(fmt.Sprintf(`{"pid":4711,"status":"up","text":%q}`, slices.Repeat([]byte("abcdefgh"), 25)))

func benchEvent(n int) event.Event {
	e := event.New(topicA, benchPayload)
	e.Key = fmt.Sprintf("key-%d", n%1000)
	return e
}

// benchFill stores Many events and gives them back.
func benchFill(b *testing.B, h Harness, e Engine) (out []event.Event) {
	b.Helper()
	for len(out) < h.Many {
		var batch []event.Event
		for range min(h.MaxBatch, 500) {
			batch = append(batch, benchEvent(len(out)+len(batch)))
		}
		got, err := e.Append(context.Background(), store.Batch{Events: batch})
		if err != nil {
			b.Fatal(err)
		}
		for i := range batch {
			out = append(out, at(batch[i], got[i].Seq))
		}
	}
	return out
}

// benchLoop shares b.N calls among callers.
func benchLoop(b *testing.B, callers int, call func(n int) error) {
	b.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range callers {
		all.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= b.N {
					return
				}
				if err := call(n); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	benchRate(b, 1, "events/s")
}

func benchRate(b *testing.B, each int, unit string) {
	if s := b.Elapsed().Seconds(); s > 0 {
		b.ReportMetric(float64(b.N*each)/s, unit)
	}
}

func benchSingles(b *testing.B, h Harness, callers int) {
	e := h.Open(b)
	benchLoop(b, callers, func(n int) error {
		_, err := e.Append(context.Background(), store.Batch{Events: []event.Event{benchEvent(n)}})
		return err
	})
}

func benchBatches(b *testing.B, h Harness) {
	e := h.Open(b)
	size := min(h.MaxBatch, 1000)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		batch := make([]event.Event, size)
		for i := range batch {
			batch[i] = benchEvent(i)
		}
		if _, err := e.Append(context.Background(), store.Batch{Events: batch}); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	benchRate(b, size, "events/s")
}

func benchDuplicates(b *testing.B, h Harness) {
	e := h.Open(b)
	log := benchFill(b, h, e)
	benchLoop(b, 64, func(n int) error {
		i := n * 7919 % len(log)
		got, err := e.Append(context.Background(), store.Batch{Events: log[i : i+1]})
		if err == nil && !got[0].Duplicate {
			err = fmt.Errorf("seq %d was stored again", log[i].Seq)
		}
		return err
	})
}

func benchScan(b *testing.B, h Harness) {
	e := h.Open(b)
	log := benchFill(b, h, e)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		n := 0
		for _, err := range e.Read(context.Background(), store.Query{Topic: topicA}) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != len(log) {
			b.Fatalf("read %d events of %d", n, len(log))
		}
	}
	b.StopTimer()
	benchRate(b, len(log), "events/s")
}

// benchTail reads the newest 100 events, as a consumer that keeps up does.
func benchTail(b *testing.B, h Harness) {
	e := h.Open(b)
	log := benchFill(b, h, e)
	after := log[len(log)-101].Seq
	benchLoop(b, 1, func(int) error { return wantCount(e, store.Query{Topic: topicA, After: after}, 100) })
	benchRate(b, 100, "events/s")
}

func benchKey(b *testing.B, h Harness) {
	e := h.Open(b)
	log := benchFill(b, h, e)
	benchLoop(b, 1, func(n int) error {
		return wantCount(e, store.Query{Topic: topicA, Key: log[n%1000].Key, Reverse: true, Limit: 4}, 4)
	})
	benchRate(b, 4, "events/s")
}

func wantCount(e Engine, q store.Query, want int) error {
	got := 0
	for _, err := range e.Read(context.Background(), q) {
		if err != nil {
			return err
		}
		got++
	}
	if got != want {
		return fmt.Errorf("read %s: %d events, want %d", describe(q), got, want)
	}
	return nil
}

func benchLocate(b *testing.B, h Harness) {
	e := h.Open(b)
	log := benchFill(b, h, e)
	benchLoop(b, 1, func(n int) error {
		want := &log[n*7919%len(log)]
		seq, err := e.LocateID(context.Background(), topicA, want.ID)
		if err == nil && seq != want.Seq {
			err = fmt.Errorf("seq %d is located at %d", want.Seq, seq)
		}
		return err
	})
}

func benchSettle(b *testing.B, h Harness) {
	e := h.Open(b)
	log := benchFill(b, h, e)
	if _, err := e.PutCursor(context.Background(), store.Cursor{Topic: topicA, Group: "g"}); err != nil {
		b.Fatal(err)
	}
	benchLoop(b, 64, func(n int) error {
		seq := log[n%len(log)].Seq
		_, err := e.Append(context.Background(), store.Batch{Settle: []store.Settlement{{Topic: topicA, Group: "g", Done: []store.Range{{First: seq, Last: seq}}}}})
		return err
	})
}
