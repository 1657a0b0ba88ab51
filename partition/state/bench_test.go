package state_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"promethean"
	"promethean/event"
	"promethean/partition/state"
)

// total is a value as tables have them.
type total struct {
	Count int64 `json:"count"`
	Sum   int64 `json:"sum"`
}

// BenchmarkUpdate compares updates of 64 keys at a time, each durable before the
// next of its key, with plain publishes of as many publishers.
func BenchmarkUpdate(b *testing.B) {
	hub, err := promethean.Open(b.TempDir(), promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	tab := table[total](b, hub, state.Options{Source: "orders"}, 0)
	var workers, seq atomic.Int64
	parallel := max(64/runtime.GOMAXPROCS(0), 1)
	b.Run("publish", func(b *testing.B) {
		b.SetParallelism(parallel)
		b.RunParallel(func(pb *testing.PB) {
			key := fmt.Sprint("key", workers.Add(1))
			for pb.Next() {
				e := event.New("plain", []byte(`{"count":17,"sum":4711}`))
				e.Key = key
				if _, err := hub.Publish(context.Background(), e); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("update", func(b *testing.B) {
		b.SetParallelism(parallel)
		b.RunParallel(func(pb *testing.PB) {
			key := fmt.Sprint("key", workers.Add(1))
			for pb.Next() {
				e := event.Event{ID: event.NewID(), Seq: uint64(seq.Add(1)), Topic: "orders", Key: key}
				err := tab.Update(context.Background(), e, nil, func(v total, _ bool) (total, error) {
					return total{v.Count + 1, v.Sum + 3}, nil
				})
				if err != nil {
					b.Error(err)
				}
			}
		})
	})
}

// BenchmarkRestore reads a table of a million keys, whole and one of its eight
// partitions.
func BenchmarkRestore(b *testing.B) {
	const keys = 1_000_000
	hub, err := promethean.Open(b.TempDir(), promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	restore := func(n int) {
		tab := table[total](b, hub, state.Options{Partitions: n})
		b.Run(fmt.Sprintf("1 of %d", n), func(b *testing.B) {
			for b.Loop() {
				if err := tab.Assigned(b.Context(), 0); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(tab.Len()), "keys")
		})
	}
	fill(b, hub, table[total](b, hub, state.Options{}, 0).Changelog(), keys)
	restore(1)
	restore(8)
}

// fill writes records as a table does.
func fill(b *testing.B, hub *promethean.Hub, changelog string, keys int) {
	b.Helper()
	batch := make([]event.Event, 0, 1000)
	for i := range keys {
		batch = append(batch, event.Event{
			Topic: changelog, Key: fmt.Sprint("customer-", i), Payload: []byte(`{"count":17,"sum":4711}`),
			Headers: event.Headers{{Name: state.SourceHeader, Value: fmt.Sprint(i + 1)}}, CausedBy: []string{event.NewID().String()},
		})
		if len(batch) == cap(batch) {
			if _, err := hub.Publish(b.Context(), batch...); err != nil {
				b.Fatal(err)
			}
			batch = batch[:0]
		}
	}
}
