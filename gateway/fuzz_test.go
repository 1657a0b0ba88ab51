package gateway_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/gateway"
)

// Whatever somebody sends, the answer is no panic, and nothing that is wrong
// inside the hub.
func FuzzRequest(f *testing.F) {
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		f.Fatal(err)
	}
	g := gateway.New(hub, gateway.Options{})
	f.Cleanup(func() {
		_ = g.Close(context.Background())
		_ = hub.Close()
	})
	for _, r := range g.Routes() {
		path, query, _ := strings.Cut(r.Example, "?")
		f.Add(r.Method, path, query, "Content-Type", r.BodyType, []byte(r.Body))
	}
	f.Add("POST", "/publish", "", "Content-Type", "application/json", []byte(`[{"topic":"a","payload":1}]`))
	f.Add("POST", "/cloudevents", "", "Ce-Id", "1", []byte(`1`))
	f.Add("GET", "/subscribe", "topic=a&group=g", "Last-Event-ID", "1", []byte(``))
	f.Add("OPTIONS", "/publish/a", "", "Origin", "http://localhost", []byte(``))
	f.Fuzz(func(t *testing.T, method, path, query, header, value string, body []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		r := (&http.Request{
			Method: method, URL: &url.URL{Path: path, RawQuery: query}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{http.CanonicalHeaderKey(header): {value}}, Host: "localhost",
			Body: io.NopCloser(strings.NewReader(string(body))), ContentLength: int64(len(body)),
		}).WithContext(ctx)
		w := httptest.NewRecorder()
		func() {
			defer func() {
				p := recover()
				if err, _ := p.(error); p != nil && !errors.Is(err, http.ErrAbortHandler) {
					panic(p)
				}
			}()
			g.ServeHTTP(w, r)
		}()
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%s %s?%s: %s", method, path, query, w.Body)
		}
	})
}
