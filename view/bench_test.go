package view_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
	"promethean/store/docstore"
	"promethean/view"
)

const benchKeys = 100_000

var benchIndexes = []store.Index{{Fields: []string{"host", "name"}}, {Fields: []string{"status"}}, {Fields: []string{"pid"}}}

func benchPayload(key, i int) json.RawMessage {
	return fmt.Appendf(nil, `{"processId":"p%d","pid":%d,"host":"host-%d","name":"worker-%d","status":%q,"cpu":%d.%d,"mem":%d,"cmd":%q}`,
		key, key, key%1000, key%50, []string{"alive", "stale", "gone"}[i%3], i%100, i%10, i*37%100000, strings.Repeat("x", 150))
}

// benchHub has a topic of n events.
func benchHub(b *testing.B, n int) (*promethean.Hub, store.Docs) {
	b.Helper()
	hub, err := promethean.Open(b.TempDir(), promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = hub.Close() })
	docs, err := docstore.Open(b.TempDir(), docstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = docs.Close() })
	r := rand.New(rand.NewPCG(1, 2))
	for done := 0; done < n; {
		list := make([]event.Event, 0, 5000)
		for len(list) < 5000 && done < n {
			k := r.IntN(benchKeys)
			list = append(list, event.Event{Topic: topic, Key: fmt.Sprintf("p%d", k), TS: 1765700000000 + int64(done), Payload: benchPayload(k, done)})
			done++
		}
		if _, err := hub.Publish(context.Background(), list...); err != nil {
			b.Fatal(err)
		}
	}
	return hub, docs
}

func report(b *testing.B, began time.Time, n int) {
	b.ReportMetric(float64(n)/time.Since(began).Seconds(), "events/s")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapInuse)/(1<<20), "heap-MiB")
}

// BenchmarkChangelog projects a million events over 100,000 keys.
func BenchmarkChangelog(b *testing.B) {
	const n = 1_000_000
	hub, docs := benchHub(b, n)
	for b.Loop() {
		began := time.Now()
		v, err := view.Changelog(context.Background(), hub, view.ChangelogOptions{Options: view.Options{Docs: docs}, Topic: topic, Collection: "processes", Indexes: benchIndexes})
		if err != nil {
			b.Fatal(err)
		}
		if err := v.Wait(context.Background(), n); err != nil {
			b.Fatal(err)
		}
		if err := v.Close(); err != nil {
			b.Fatal(err)
		}
		report(b, began, n)
		if err := docs.Drop(context.Background(), "processes"); err != nil {
			b.Fatal(err)
		}
	}
}

type benchProcess struct {
	ID   string `json:"processId"`
	Host string `json:"host"`
}

type hostStats struct {
	Seen   int64 `json:"seen"`
	LastTS int64 `json:"last_ts"`
}

// countHosts is the example of the notes.
func countHosts(_ context.Context, e event.Event, tx *view.Tx) error {
	var p benchProcess
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return promethean.Dead(err)
	}
	if err := tx.Put("processes", p.ID, e.Payload); err != nil {
		return err
	}
	var s hostStats
	if _, err := tx.Get("host_stats", p.Host, &s); err != nil {
		return err
	}
	s.Seen, s.LastTS = s.Seen+1, e.TS
	return tx.Put("host_stats", p.Host, s)
}

// BenchmarkTransactional is the example of the notes over a million events.
func BenchmarkTransactional(b *testing.B) {
	const n = 1_000_000
	hub, docs := benchHub(b, n)
	for b.Loop() {
		began := time.Now()
		v, err := view.Transactional(context.Background(), hub, view.TransactionalOptions{
			Options: view.Options{Docs: docs}, Topic: topic, Name: "txn", Handler: countHosts,
			Collections: []store.Collection{{Name: "processes", Indexes: benchIndexes}, {Name: "host_stats"}},
		})
		if err != nil {
			b.Fatal(err)
		}
		if err := v.Wait(context.Background(), n); err != nil {
			b.Fatal(err)
		}
		if err := v.Close(); err != nil {
			b.Fatal(err)
		}
		report(b, began, n)
		if err := docs.Drop(context.Background(), "txn"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHandler asks a view of a million documents.
func BenchmarkHandler(b *testing.B) {
	hub, docs := benchHub(b, 0)
	const n = 1_000_000
	for done := 0; done < n; {
		var list []event.Event
		for range 5000 {
			list = append(list, event.Event{Topic: topic, Key: fmt.Sprintf("p%d", done), TS: 1765700000000 + int64(done), Payload: benchPayload(done, done)})
			done++
		}
		if _, err := hub.Publish(context.Background(), list...); err != nil {
			b.Fatal(err)
		}
	}
	v, err := view.Changelog(context.Background(), hub, view.ChangelogOptions{Options: view.Options{Docs: docs}, Topic: topic, Collection: "processes", Indexes: benchIndexes})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = v.Close() }()
	if err := v.Wait(context.Background(), n); err != nil {
		b.Fatal(err)
	}
	h := view.Handler(v)
	d, err := v.Source().Get(context.Background(), "p5")
	if err != nil {
		b.Fatal(err)
	}
	constant := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(d.Body)
	})
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/snap/p5", nil))
	for _, c := range []struct {
		name, path, tag string
		h               http.Handler
	}{
		{"constant", "/snap/p5", "", constant},
		{"snap", "/snap/p5", "", h},
		{"304", "/snap/p5", rec.Header().Get("ETag"), h},
		{"list-100", "/list", "", h},
		{"list-filtered", "/list?status=alive&limit=100", "", h},
		{"list-two-filters", "/list?status=alive&host=host-7", "", h},
		{"list-compound", "/list?name=worker-7&host=host-7", "", h},
	} {
		b.Run(c.name, func(b *testing.B) {
			srv := httptest.NewServer(c.h)
			defer srv.Close()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				client := &http.Client{Transport: &http.Transport{}}
				defer client.CloseIdleConnections()
				for pb.Next() {
					req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, srv.URL+c.path, nil)
					if c.tag != "" {
						req.Header.Set("If-None-Match", c.tag)
					}
					res, err := client.Do(req)
					if err != nil {
						b.Error(err)
						return
					}
					drain(res)
				}
			})
		})
		b.Run(c.name+"-direct", func(b *testing.B) {
			b.ReportAllocs()
			req := httptest.NewRequest(http.MethodGet, c.path, nil)
			if c.tag != "" {
				req.Header.Set("If-None-Match", c.tag)
			}
			for b.Loop() {
				c.h.ServeHTTP(&discard{header: make(http.Header)}, req)
			}
		})
	}
}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}
