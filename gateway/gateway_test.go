package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"promethean"
	"promethean/compact"
	"promethean/gateway"
	"promethean/partition"
	"promethean/schema"
	"promethean/view"
)

// served is a hub behind a gateway.
type served struct {
	testing.TB
	hub *promethean.Hub
	g   *gateway.Gateway
	url string
}

// serve serves a hub in memory. A set of views that is given gets one of orders.
func serve(t testing.TB, o gateway.Options) *served {
	t.Helper()
	return serveParted(t, o, partition.Options{})
}

// serveParted is serve with options for the coordinator of partitioned groups.
func serveParted(t testing.TB, o gateway.Options, parted partition.Options) *served {
	t.Helper()
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if o.Schemas, err = schema.Open(context.Background(), hub, schema.Options{}); err != nil {
		t.Fatal(err)
	}
	if o.Compactor, err = compact.Start(context.Background(), hub, compact.Options{}); err != nil {
		t.Fatal(err)
	}
	if o.Views != nil {
		orders, err := view.Changelog(context.Background(), hub, view.ChangelogOptions{Topic: "orders.placed", Collection: "orders"})
		if err == nil {
			err = o.Views.Add(orders)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if o.Partitions, err = partition.New(hub, parted); err != nil {
		t.Fatal(err)
	}
	g := gateway.New(hub, o)
	s := httptest.NewServer(g)
	t.Cleanup(func() {
		err := g.Close(context.Background())
		s.Close()
		if err := errors.Join(err, o.Partitions.Close(context.Background()), closeViews(o.Views), o.Compactor.Close(), o.Schemas.Close(), hub.Close()); err != nil {
			t.Error(err)
		}
	})
	return &served{TB: t, hub: hub, g: g, url: s.URL}
}

func closeViews(s *view.Set) error {
	if s == nil {
		return nil
	}
	return s.Close()
}

// do sends a request, with headers as pairs, and reads the answer as an object.
func (s *served) do(method, path, body string, headers ...string) (status int, answer map[string]any) {
	s.Helper()
	status, _, data := s.raw(method, path, body, headers...)
	if err := json.Unmarshal([]byte(data), &answer); err != nil && len(data) > 0 {
		s.Fatalf("%s %s: %d %s: %v", method, path, status, data, err)
	}
	return status, answer
}

// raw sends a request and reads the answer as it comes.
func (s *served) raw(method, path, body string, headers ...string) (status int, head http.Header, answer string) {
	s.Helper()
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	data, err := io.ReadAll(got.Body)
	if err != nil {
		s.Fatal(err)
	}
	return got.StatusCode, got.Header, string(data)
}

// publish stores events of one topic: a key and a payload each.
func (s *served) publish(topic string, pairs ...string) (ids []string) {
	s.Helper()
	for i := 0; i < len(pairs); i += 2 {
		got := s.want(201, "", "POST", "/publish/"+topic+"?key="+pairs[i], pairs[i+1])
		ids = append(ids, got["id"].(string))
	}
	return ids
}

// want sends a request and checks status and code.
func (s *served) want(status int, code, method, path, body string, headers ...string) map[string]any {
	s.Helper()
	got, answer := s.do(method, path, body, headers...)
	if have, _ := answer["code"].(string); got != status || have != code {
		s.Errorf("%s %s: %d %v, want %d %s", method, path, got, answer, status, code)
	}
	return answer
}

func TestPublishOne(t *testing.T) {
	s := serve(t, gateway.Options{})
	got := s.want(201, "", "POST", "/publish/orders.placed?key=a&id=0192f7c1-0000-7000-8000-000000000001&tag=x&tag=y", `{"n": 1}`, "X-Color", "red", "X-Request-Id", "r")
	if got["seq"] != 1.0 || got["topic"] != "orders.placed" || got["partition"] != 0.0 {
		t.Errorf("%v", got)
	}
	if got = s.want(200, "", "POST", "/publish/orders.placed", `2`, "Idempotency-Key", "0192f7c1-0000-7000-8000-000000000001"); got["duplicate"] != true {
		t.Errorf("%v", got)
	}
	if got = s.want(409, "seq_conflict", "POST", "/publish/orders.placed?expect_seq=7", `2`); got["expected"] != 7.0 || got["actual"] != 1.0 {
		t.Errorf("%v", got)
	}
	s.want(400, "bad_json", "POST", "/publish/orders.placed", `{`)
	s.want(400, "invalid_topic", "POST", "/publish/DLQ.a", `1`)
	s.want(400, "invalid_topic", "POST", "/publish/%2e%2e%2fx", `1`)
	s.want(404, "not_found", "POST", "/nothing", `1`)
	s.want(405, "invalid_argument", "PATCH", "/publish/orders.placed", `1`)
	s.want(403, "forbidden", "POST", "/publish/orders.placed", `1`, "Host", "evil.example")
	s.want(403, "forbidden", "POST", "/publish/orders.placed", `1`, "Origin", "https://evil.example")
	s.want(403, "forbidden", "POST", "/publish/orders.placed", `1`, "Sec-Fetch-Site", "cross-site")
}
