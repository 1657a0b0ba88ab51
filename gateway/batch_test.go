package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"promethean/gateway"
)

func TestPublishMany(t *testing.T) {
	s := serve(t, gateway.Options{})
	const id = "0192f7c1-0000-7000-8000-000000000001"
	rows := `{"topic":"a.b","payload": {"n":12345678901234567890, "f":1.50e+07,"s":"<\u003c\/ é>"},"key":"k","id":"` + id + `","ts":7,"headers":{"x-a":"1"},"tags":["t"],"caused_by":["c"],"sid":"s"}` +
		"\n" + `{"topic":"c","payload":null}`
	got := s.want(201, "", "POST", "/publish", rows, "Content-Type", "application/x-ndjson")
	list := got["events"].([]any)
	if first := list[0].(map[string]any); got["count"] != 2.0 || len(list) != 2 || first["id"] != id || first["seq"] != 1.0 || first["topic"] != "a.b" || first["duplicate"] != nil || len(first) != 3 {
		t.Errorf("%v", got)
	}
	// The same bytes come back, but for white space.
	_, _, text := s.raw("GET", "/export?topic=a.b", "")
	want := `{"id":"` + id + `","seq":1,"ts":7,"topic":"a.b","key":"k","partition":0,"sid":"s","headers":{"x-a":"1"},"payload":{"n":12345678901234567890,"f":1.50e+07,"s":"<\u003c\/ é>"},"caused_by":["c"],"tags":["t"]}` + "\n"
	if text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	// An array, and an id that is known.
	got = s.want(201, "", "POST", "/publish", " [\n"+strings.Replace(rows, "\n", ",", 1)+"]", "Content-Type", "application/json")
	list = got["events"].([]any)
	if list[0].(map[string]any)["duplicate"] != true || list[1].(map[string]any)["seq"] != 2.0 {
		t.Errorf("%v", got)
	}
	// What was exported can be published.
	s.want(201, "", "POST", "/publish", text)
}

func TestPublishManyRefused(t *testing.T) {
	s := serve(t, gateway.Options{})
	const ok = `{"topic":"a","payload":1}` + "\n"
	for _, c := range []struct {
		status     int
		code, body string
		index      any
	}{
		{400, "bad_json", ok + `{"topic":"a","payload":}`, 1.0},
		{400, "bad_json", ok + `{"topic":"a","payload":{"x":1,"x":2}}`, 1.0},
		{400, "bad_json", ok + `{"topic":"a","payload":"` + "\xff" + `"}`, 1.0},
		{400, "bad_json", `{"topic":"a","payload":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + "}", 0.0},
		{400, "bad_json", "[" + strings.TrimSpace(ok), 1.0},
		{400, "invalid_topic", ok + ok + `{"topic":"../x","payload":1}`, 2.0},
		{400, "invalid_topic", ok + `{"topic":"dlq.a","payload":1}`, 1.0},
		{400, "invalid_topic", ok + `{"topic":"system.a","payload":1}`, 1.0},
		{400, "invalid_topic", ok + `{"payload":1}`, 1.0},
		{400, "invalid_topic", ok + `{"topic":1,"payload":1}`, 1.0},
		{400, "invalid_header", ok + `{"topic":"a","payload":1,"headers":{"cookie":"1"}}`, 1.0},
		{400, "invalid_argument", ok + `{"topic":"a"}`, 1.0},
		{400, "invalid_argument", ok + `{"topic":"a","payload":1,"id":"x"}`, 1.0},
		{400, "invalid_argument", ok + `{"topic":"a","payload":1,"ts":-1}`, 1.0},
		{400, "invalid_argument", ok + `{"topic":"a","payload":1,"partition":1}`, 1.0},
		{400, "invalid_argument", ok + `{"topic":"a","payload":1,"colour":1}`, 1.0},
		{400, "invalid_argument", ok + `7`, 1.0},
		{413, "payload_too_large", ok + `{"topic":"a","payload":"` + strings.Repeat("x", 1<<20) + `"}`, 1.0},
		{413, "batch_too_large", strings.Repeat(ok, 10_001), nil},
		{413, "batch_too_large", strings.Repeat(" ", 8<<20+1), nil},
		{400, "invalid_argument", "", nil},
		{400, "invalid_argument", "[]", nil},
	} {
		if got := s.want(c.status, c.code, "POST", "/publish", c.body); got["index"] != c.index {
			t.Errorf("%.80q: %v, want index %v", c.body, got, c.index)
		}
	}
	if _, got := s.do("GET", "/topics", ""); got["count"] != 0.0 {
		t.Errorf("something was stored: %v", got)
	}
	if got := s.want(201, "", "POST", "/publish", strings.Repeat(ok, 10_000)); got["count"] != 10_000.0 {
		t.Errorf("%v", got["count"])
	}
}

func TestTopicsAreNotMade(t *testing.T) {
	s := serve(t, gateway.Options{NoAutoCreate: true})
	for _, c := range [][3]string{
		{"POST", "/publish/a.b", `1`},
		{"POST", "/publish", `{"topic":"a.b","payload":1}`},
		{"GET", "/subscribe?topic=a.b", ""},
		{"POST", "/pull", `{"topic":"a.b","group":"g"}`},
		{"GET", "/replay?topic=a.b", ""},
	} {
		if got := s.want(404, "not_found", c[0], c[1], c[2]); !strings.Contains(fmt.Sprint(got["detail"]), "PUT /topics/a.b") {
			t.Errorf("%v: no hint in %v", c, got)
		}
	}
	s.want(200, "", "PUT", "/topics/a.b", `{}`)
	if got := s.want(404, "not_found", "POST", "/publish", `[{"topic":"a.b","payload":1},{"topic":"a.c","payload":1}]`); got["index"] != 1.0 {
		t.Errorf("%v, want index 1", got)
	}
	s.want(201, "", "POST", "/publish/a.b", `1`)
	s.want(200, "", "POST", "/pull", `{"topic":"a.b","group":"g"}`)
}
