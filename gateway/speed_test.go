package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"promethean"
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
