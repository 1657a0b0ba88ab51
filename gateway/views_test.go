package gateway_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"promethean/gateway"
	"promethean/view"
)

// silent takes an answer and forgets it.
type silent struct {
	head   http.Header
	status int
}

func (s *silent) Header() http.Header         { return s.head }
func (s *silent) WriteHeader(status int)      { s.status = status }
func (s *silent) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkSnap is what the hub itself costs beside the server around it.
func BenchmarkSnap(b *testing.B) {
	s := serve(b, gateway.Options{Views: view.NewSet()})
	s.publish("orders.placed", "a", `{"processId":"dev:stt:1","name":"stt","host":"dev","pid":1,"cpu_pct":1.5,"mem_mb":2.5,"last_seen_ts":1765700000000,"status":"alive"}`)
	waitFor(b, "the document", func() bool { status, _ := s.do("GET", "/views/orders/snap/a", ""); return status == 200 })
	_, head, _ := s.raw("GET", "/views/orders/snap/a", "")
	for _, row := range []struct {
		name, tag string
		status    int
	}{{"200", "", 200}, {"304", head.Get("ETag"), 304}} {
		b.Run(row.name, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/views/orders/snap/a", nil)
			if row.tag != "" {
				r.Header.Set("If-None-Match", row.tag)
			}
			w := &silent{head: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.head)
				if s.g.ServeHTTP(w, r); w.status != row.status {
					b.Fatal(w.status)
				}
			}
		})
	}
}
