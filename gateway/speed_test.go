package gateway_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"promethean"
	"promethean/event"
	"promethean/gateway"
)

// discard is an answer that nobody keeps.
type discard struct {
	head http.Header
	n    int64
}

func (d *discard) Header() http.Header         { return d.head }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(b []byte) (int, error) { d.n += int64(len(b)); return len(b), nil }

func benched(b *testing.B) *gateway.Gateway {
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	g := gateway.New(hub, gateway.Options{})
	b.Cleanup(func() {
		_ = g.Close(context.Background())
		_ = hub.Close()
	})
	return g
}

func batch(n int) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, `{"topic":"a.b","key":"k%d","payload":{"order":%d,"note":%q}}`+"\n", i, i, strings.Repeat("x", 200))
	}
	return s.String()
}

// A batch of 1000 by HTTP, without a network and a disk.
func BenchmarkPublishMany(b *testing.B) {
	g := benched(b)
	body := batch(1000)
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/publish", strings.NewReader(body))
		w := httptest.NewRecorder()
		if g.ServeHTTP(w, r); w.Code != http.StatusCreated {
			b.Fatal(w.Body)
		}
	}
	b.ReportMetric(1000*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkExport(b *testing.B) {
	g := benched(b)
	const n = 100_000
	for range n / 10_000 {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/publish", strings.NewReader(batch(10_000)))
		w := httptest.NewRecorder()
		if g.ServeHTTP(w, r); w.Code != http.StatusCreated {
			b.Fatal(w.Body)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodGet, "http://localhost/export?topic=a.b", http.NoBody)
		w := &discard{head: http.Header{}}
		g.ServeHTTP(w, r)
		if w.n < 200*n {
			b.Fatal(io.ErrUnexpectedEOF)
		}
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// 1,000 keys a call, from a topic of two million on the disk: keys that lie
// together, and keys from all over it.
func BenchmarkLatestByKey(b *testing.B) {
	keys := 2_000_000
	if testing.Short() {
		keys = 20_000
	}
	hub, err := promethean.Open(b.TempDir(), promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	g := gateway.New(hub, gateway.Options{})
	b.Cleanup(func() {
		_ = g.Close(context.Background())
		_ = hub.Close()
	})
	payload := fmt.Appendf(nil, "{%q:%q}", "note", strings.Repeat("x", 200))
	const per = 1000
	for i := 0; i < keys; i += per {
		events := make([]event.Event, per)
		for j := range events {
			events[j] = event.New("a.b", payload)
			events[j].Key = fmt.Sprintf("k%d", i+j)
		}
		if _, err := hub.Publish(context.Background(), events...); err != nil {
			b.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, way := range []struct {
		name string
		key  func(first, i int) int
	}{
		{"together", func(first, i int) int { return first + i }},
		{"all over", func(int, int) int { return rng.IntN(keys) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				q := url.Values{"topic": {"a.b"}}
				first := rng.IntN(keys - per)
				for i := range per {
					q.Add("key", fmt.Sprintf("k%d", way.key(first, i)))
				}
				w := &discard{head: http.Header{}}
				if g.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/latest-by-key?"+q.Encode(), http.NoBody)); w.n < 200*per*9/10 {
					b.Fatalf("%d bytes", w.n)
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()*1000/float64(b.N), "ms/call")
		})
	}
}
