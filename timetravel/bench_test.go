package timetravel_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"promethean"
	"promethean/event"
	"promethean/timetravel"
)

var events = flag.Int("events", 200_000, "how many events the topic of the benchmarks has")

// BenchmarkAt asks for the past of a key with 100 events in a topic of many. What
// it costs depends on those alone.
func BenchmarkAt(b *testing.B) {
	hub, err := promethean.Open(b.TempDir(), promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := hub.Close(); err != nil {
			b.Error(err)
		}
	}()
	keys := *events / 100
	batch := make([]event.Event, 0, 5000)
	for i := range *events {
		e := event.New(topic, json.RawMessage(fmt.Sprintf(`{"n":%d,"f%d":%d,"name":"stt","host":"local","status":"alive"}`, i, i%7, i)))
		e.Key, e.TS = fmt.Sprint("k", i%keys), int64(i+1)
		if batch = append(batch, e); len(batch) == cap(batch) || i == *events-1 {
			if _, err := hub.Publish(b.Context(), batch...); err != nil {
				b.Fatal(err)
			}
			batch = batch[:0]
		}
	}
	for _, c := range []struct {
		name string
		o    timetravel.Options
		back int // how many events of the key are later
	}{{"replace", timetravel.Options{}, 1}, {"replace of 100", timetravel.Options{}, 99}, {"merge of 100", merge, 0}} {
		b.Run(c.name, func(b *testing.B) {
			var took []time.Duration
			for i := range b.N {
				key := (i * 7919) % keys
				ts := int64(*events - c.back*keys)
				began := time.Now()
				s, err := timetravel.At(b.Context(), hub, timetravel.Query{Topic: topic, Key: fmt.Sprint("k", key), TS: &ts}, c.o)
				if err != nil || s.Events == 0 {
					b.Fatalf("%+v, %v", s, err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
