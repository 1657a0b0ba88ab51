package gateway_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"promethean/gateway"
)

// seqs gives the seqs of the events in an answer.
func seqs(answer map[string]any) string {
	out := []string{}
	for _, e := range answer["events"].([]any) {
		out = append(out, fmt.Sprint(e.(map[string]any)["seq"]))
	}
	return strings.Join(out, " ")
}

func TestReplay(t *testing.T) {
	s := serve(t, gateway.Options{})
	var ids []string
	for i, ts := range []string{"1000", "3000", "2000", "1970-01-01T00:00:04Z"} {
		got := s.want(201, "", "POST", fmt.Sprintf("/publish/a.b?ts=%s&key=k%d", ts, i%2), fmt.Sprint(i))
		ids = append(ids, got["id"].(string))
	}
	for _, c := range []struct {
		query, want string
		next        float64
	}{
		{"", "1 2 3 4", 4},
		{"&from=earliest", "1 2 3 4", 4},
		{"&from=latest", "", 4},
		{"&from=seq&seq=2", "3 4", 4},
		{"&seq=2", "3 4", 4},
		{"&from=ts&ts=2500", "2 3 4", 4},
		{"&from=ts&ts=1970-01-01T00:00:02.5Z", "2 3 4", 4},
		{"&from=ts&ts=9999", "", 4},
		{"&from=afterId&afterId=" + ids[0], "2 3 4", 4},
		{"&limit=2", "1 2", 2},
		{"&limit=0", "", 0},
		{"&limit=99999999999999999999999", "1 2 3 4", 4},
		{"&unknown=x&normalise=0", "1 2 3 4", 4},
	} {
		got := s.want(200, "", "GET", "/replay?topic=a.b"+c.query, "")
		if seqs(got) != c.want || got["next"] != c.next || got["topic"] != "a.b" || got["count"] != float64(len(strings.Fields(c.want))) {
			t.Errorf("%s: %v, want %s, next %v", c.query, got, c.want, c.next)
		}
	}
	for _, c := range []struct {
		status            int
		code, path, query string
	}{
		{400, "cursor_unknown", "/replay", "&from=seq&seq=5"},
		{400, "cursor_unknown", "/replay", "&from=afterId&afterId=0192f7c1-0000-7000-8000-00000000dead"},
		{400, "invalid_argument", "/replay", "&from=afterId&afterId=x"},
		{400, "invalid_argument", "/replay", "&from=seq"},
		{400, "invalid_argument", "/replay", "&from=ts"},
		{400, "invalid_argument", "/replay", "&from=sometime"},
		{400, "invalid_argument", "/replay", "&limit=-1"},
		{400, "invalid_argument", "/replay", "&limit=many"},
		{400, "invalid_argument", "/replay", "&ts=-1"},
		{400, "invalid_argument", "/replay", "&seq=-1"},
		{400, "invalid_argument", "/export", "&ndjson=maybe"},
		{400, "invalid_argument", "/export", "&fromTs=yesterday"},
		{400, "invalid_argument", "/export", "&toTs=-5"},
		{400, "invalid_argument", "/history", ""},
		{400, "invalid_argument", "/history", "&key=k1&limit=-1"},
		{400, "invalid_argument", "/history", "&key=" + strings.Repeat("x", 1025)},
		{400, "invalid_argument", "/latest-by-key", ""},
		{400, "invalid_argument", "/latest-by-key", "&key="},
		{400, "invalid_argument", "/latest-by-key", strings.Repeat("&key=x", 1001)},
	} {
		s.want(c.status, c.code, "GET", c.path+"?topic=a.b"+c.query, "")
	}
	for _, path := range []string{"/replay", "/export", "/history", "/latest-by-key", "/subscribe", "/cursors", "/lag"} {
		s.want(400, "invalid_topic", "GET", path+"?topic=../x&key=a&group=g", "")
		s.want(400, "invalid_topic", "GET", path+"?key=a&group=g", "")
	}
	// Nothing is in a topic that nobody has written to.
	if got := s.want(200, "", "GET", "/replay?topic=no.where", ""); got["count"] != 0.0 || got["next"] != 0.0 {
		t.Errorf("%v", got)
	}
}

func TestExport(t *testing.T) {
	s := serve(t, gateway.Options{})
	const n = 3000
	var rows strings.Builder
	for i := range n {
		fmt.Fprintf(&rows, `{"topic":"a.b","ts":%d,"payload":{"i":%d,"pad":%q}}`+"\n", 1000+i%100, i, strings.Repeat("x", 100))
	}
	s.want(201, "", "POST", "/publish", rows.String())
	status, head, text := s.raw("GET", "/export?topic=a.b", "")
	if lines := strings.Split(strings.TrimSpace(text), "\n"); status != 200 || len(lines) != n || head.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("%d %v, %d lines", status, head, len(lines))
	} else {
		for i, l := range lines {
			var e struct {
				Seq     int
				Payload struct{ I int }
			}
			if err := json.Unmarshal([]byte(l), &e); err != nil || e.Seq != i+1 || e.Payload.I != i {
				t.Fatalf("line %d: %s: %v", i, l, err)
			}
		}
	}
	_, head, text = s.raw("GET", "/export?topic=a.b&ndjson=0&fromTs=1090&toTs=1970-01-01T00:00:01.094Z", "")
	var events []struct{ TS int64 }
	if err := json.Unmarshal([]byte(text), &events); err != nil || len(events) != n/20 || head.Get("Content-Type") != "application/json" {
		t.Fatalf("%d events, %v", len(events), err)
	}
	for _, e := range events {
		if e.TS < 1090 || e.TS > 1094 {
			t.Errorf("ts %d", e.TS)
		}
	}
	if _, _, text := s.raw("GET", "/export?topic=no.where", ""); text != "" {
		t.Errorf("%q", text)
	}
	if _, _, text := s.raw("GET", "/export?topic=no.where&ndjson=0", ""); text != "[]\n" {
		t.Errorf("%q", text)
	}
	for _, path := range []string{"/export?topic=a.b", "/replay?topic=a.b", "/subscribe?topic=a.b", "/subscribe?topic=a.b&group=g", "/topics", "/", "/healthz"} {
		if status, _, text := s.raw("HEAD", path, ""); status != 200 || text != "" {
			t.Errorf("HEAD %s: %d %q", path, status, text)
		}
	}
	// A length that is not known is not told.
	for _, path := range []string{"/replay?topic=a.b", "/history?topic=a.b&key=k", "/latest-by-key?topic=a.b&key=k", "/dlq/a.b"} {
		if status, head, _ := s.raw("HEAD", path, ""); status != 200 || head.Get("Content-Length") != "" {
			t.Errorf("HEAD %s: %d %v", path, status, head)
		}
	}
}

func TestKeys(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a.b", "k", `1`, "k", `{"n":12345678901234567890}`, "j", `3`)
	if got := s.want(200, "", "GET", "/history?topic=a.b&key=k", ""); seqs(got) != "1 2" || got["key"] != "k" || got["next"] != 2.0 {
		t.Errorf("%v", got)
	}
	if got := s.want(200, "", "GET", "/history?topic=a.b&key=k&limit=1", ""); seqs(got) != "1" {
		t.Errorf("%v", got)
	}
	if got := s.want(200, "", "GET", "/history?topic=a.b&key=k&after=1", ""); seqs(got) != "2" {
		t.Errorf("%v", got)
	}
	if got := s.want(200, "", "GET", "/history?topic=a.b&key=nobody", ""); seqs(got) != "" {
		t.Errorf("%v", got)
	}
	_, _, text := s.raw("GET", "/latest-by-key?topic=a.b&key=k&key=%22%0A&key=k&key=j", "")
	var got map[string]*struct {
		Seq     int
		Payload json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || len(got) != 3 || got["k"].Seq != 2 || got["j"].Seq != 3 || got["\"\n"] != nil || string(got["k"].Payload) != `{"n":12345678901234567890}` {
		t.Errorf("%s: %v", text, err)
	}
}
