package logstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore"
)

// BenchmarkCompact compacts a topic of many events to 100,000 keys, alone and
// while events are published to another topic, and says how that changes the
// publishers' speed. PROMETHEAN_COMPACT_EVENTS says how many; default 300,000.
func BenchmarkCompact(b *testing.B) {
	total := 300_000
	if n, err := strconv.Atoi(os.Getenv("PROMETHEAN_COMPACT_EVENTS")); err == nil {
		total = n
	}
	for _, busy := range []bool{false, true} {
		b.Run(map[bool]string{false: "alone", true: "while publishing"}[busy], func(b *testing.B) {
			for range b.N {
				compactOnce(b, total, busy)
			}
		})
	}
}

func compactOnce(b *testing.B, total int, busy bool) {
	b.StopTimer()
	s, err := logstore.Open(b.TempDir(), logstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}()
	publish := func(n, batch int, topic string, async bool) error {
		list := make([]event.Event, batch)
		for i := range list {
			list[i] = event.New(topic, json.RawMessage(`{"pid":12345,"name":"stt","host":"dev","cpu_pct":12.3,"mem_mb":1234.5,"state":"running"}`))
			list[i].Key = fmt.Sprint("host:process:", (n+i)*7919%100_000)
		}
		_, err := s.Append(context.Background(), store.Batch{Events: list, Async: async})
		return err
	}
	for n := 0; n < total; n += 500 {
		if err := publish(n, 500, "compact.me", n+500 < total); err != nil {
			b.Fatal(err)
		}
	}
	s.WaitTidy()
	// load publishes single events from some callers until stop is closed.
	load := func(stop <-chan struct{}) float64 {
		var count atomic.Int64
		var wg sync.WaitGroup
		began := time.Now()
		for range 32 {
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					if err := publish(n, 1, "go.on", false); err != nil {
						b.Error(err)
						return
					}
					count.Add(1)
				}
			})
		}
		wg.Wait()
		return float64(count.Load()) / time.Since(began).Seconds()
	}
	idle := func() float64 {
		stop := make(chan struct{})
		time.AfterFunc(5*time.Second, func() { close(stop) })
		return load(stop)
	}
	before := 0.0
	if busy {
		before = idle()
	}
	stop, during := make(chan struct{}), make(chan float64, 1)
	if busy {
		go func() { during <- load(stop) }()
	}
	runtime.GC()
	b.StartTimer()
	began := time.Now()
	got, err := s.Compact(context.Background(), "compact.me", store.Compaction{Before: uint64(total) + 1})
	if err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	b.StopTimer()
	close(stop)
	if busy {
		rate, after := <-during, idle()
		b.ReportMetric(before, "appends/s_before")
		b.ReportMetric(rate, "appends/s_during")
		b.ReportMetric(after, "appends/s_after")
		b.ReportMetric(2*rate/(before+after), "share")
	}
	b.ReportMetric(float64(total)/took.Seconds(), "events/s")
	b.ReportMetric(float64(got.Removed), "removed")
	b.StartTimer()
}
