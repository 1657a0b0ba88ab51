package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"promethean/event"
	"promethean/gateway"
)

func TestTopicSettings(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.want(404, "not_found", "GET", "/topics/a.b", "")
	check := func(got map[string]any, want map[string]any) {
		t.Helper()
		if !reflect.DeepEqual(got["settings"], want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	check(s.want(200, "", "PUT", "/topics/a.b", `{"retention":"72h","partitions":4}`), map[string]any{"retention": "72h", "partitions": 4.0, "durability": "sync"})
	check(s.want(200, "", "PUT", "/topics/a.b", `{"durability":"async","max_bytes":"10GiB"}`), map[string]any{"retention": "72h", "partitions": 4.0, "durability": "async", "max_bytes": float64(10 << 30)})
	// Nothing of a change that is refused is stored.
	for _, c := range []struct {
		status     int
		code, body string
	}{
		{400, "invalid_argument", `{"schemas":"there/is/none"}`},
		{400, "invalid_argument", `{"schemas":5}`},
		{400, "invalid_argument", `{"strict_schema":"yes"}`},
		{400, "invalid_argument", `{"legacy_version":0}`},
		{400, "invalid_argument", `{"dual_write":true}`},
		{400, "invalid_argument", `{"dual_write":"tomorrow"}`},
		{400, "invalid_argument", `{"retention":"1h","colour":"red"}`},
		{400, "invalid_argument", `{"durability":"async","partitions":0}`},
		{400, "invalid_argument", `{"partitions":-1}`},
		{400, "invalid_argument", `{"partitions":1e3}`},
		{400, "invalid_argument", fmt.Sprintf(`{"partitions":%d}`, event.MaxPartitions+1)},
		{400, "invalid_argument", `{"retention":72}`},
		{400, "invalid_argument", `{"retention":"-1h"}`},
		{400, "invalid_argument", `{"retention":"soon"}`},
		{400, "invalid_argument", `{"max_bytes":-1}`},
		{400, "invalid_argument", `{"max_bytes":"9999999TiB"}`},
		{400, "invalid_argument", `{"durability":"maybe"}`},
		{400, "invalid_argument", `[]`},
		{400, "invalid_argument", `null`},
		{400, "bad_json", `{`},
		{400, "bad_json", ``},
	} {
		s.want(c.status, c.code, "PUT", "/topics/a.b", c.body)
	}
	s.want(400, "invalid_topic", "PUT", "/topics/A", `{}`)
	s.want(400, "invalid_topic", "GET", "/topics/..%2fx", "")
	check(s.want(200, "", "GET", "/topics/a.b", ""), map[string]any{"retention": "72h", "partitions": 4.0, "durability": "async", "max_bytes": float64(10 << 30)})
	check(s.want(200, "", "PUT", "/topics/a.b", `{"retention":null,"durability":"sync","max_bytes":1000,"partitions":null}`), map[string]any{"partitions": 1.0, "durability": "sync", "max_bytes": 1000.0})
	check(s.want(200, "", "PUT", "/topics/a.b", `{"retention":"30d","max_bytes":null}`), map[string]any{"partitions": 1.0, "durability": "sync", "retention": "720h"})

	s.publish("a.b", "k", "1", "k", "2")
	s.publish("c", "k", "1")
	if got := s.want(200, "", "GET", "/topics/a.b", ""); got["events"] != 2.0 || got["first"] != 1.0 || got["last"] != 2.0 || got["bytes"].(float64) <= 0 {
		t.Errorf("%v", got)
	}
	// The third is system.audit, since settings were changed. It is written
	// behind the answer.
	waitFor(t, "three topics", func() bool { return s.want(200, "", "GET", "/topics", "")["count"] == 3.0 })
	if got := s.want(200, "", "GET", "/topics", ""); got["topics"].([]any)[1].(map[string]any)["topic"] != "c" {
		t.Errorf("%v", got)
	}
}

func TestGroups(t *testing.T) {
	s := serve(t, gateway.Options{})
	ids := s.publish("a.b", "k", "1", "j", "2", "i", "3")
	got := s.want(200, "", "PUT", "/groups/a.b/g", `{"from":"earliest","maxAttempts":7,"ackTimeoutMs":1000,"filter":"key != \"i\"","deadLetter":"key","ordering":"topic"}`)
	want := map[string]any{"ordering": "topic", "deadLetter": "key", "maxAttempts": 7.0, "ackTimeoutMs": 1000.0, "filter": `key != "i"`}
	if !reflect.DeepEqual(got["settings"], want) || got["lag"] != 3.0 || got["cursor"] != 0.0 || got["tail"] != 3.0 {
		t.Errorf("%v", got)
	}
	s.want(200, "", "PUT", "/groups/a.b/g", ``)
	s.want(200, "", "PUT", "/groups/a.b/g", `{"maxAttempts":7}`)
	got = s.want(200, "", "PUT", "/groups/a.b/g", `{"maxAttempts":8,"ackTimeoutMs":2000}`)
	want["maxAttempts"], want["ackTimeoutMs"] = 8.0, 2000.0
	if !reflect.DeepEqual(got["settings"], want) {
		t.Errorf("%v", got)
	}
	s.want(409, "group_conflict", "PUT", "/groups/a.b/g", `{"maxAttempts":9,"ordering":"key"}`)
	s.want(400, "invalid_argument", "PUT", "/groups/a.b/g", `{"maxAttempts":0}`)
	if got = s.want(200, "", "PUT", "/groups/a.b/g", `{"ordering":"topic"}`); !reflect.DeepEqual(got["settings"], want) {
		t.Errorf("%v", got)
	}
	s.want(400, "invalid_argument", "PUT", "/groups/a.b/n", `{"maxAttempts":-8}`)
	s.want(400, "invalid_argument", "PUT", "/groups/a.b/n", `{"attempts":8}`)
	s.want(400, "cursor_unknown", "PUT", "/groups/a.b/n", `{"seq":8}`)
	s.want(409, "group_conflict", "PUT", "/groups/a.b/g", `{"partitioned":true}`)
	s.want(400, "invalid_topic", "PUT", "/groups/A/n", `{}`)
	s.want(200, "", "PUT", "/groups/a.b/other", `{"from":"afterId","afterId":"`+ids[1]+`"}`)
	s.want(200, "", "PUT", "/groups/c.d/far", `{}`)
	if got = s.want(200, "", "GET", "/groups?topic=a.b", ""); got["count"] != 2.0 {
		t.Errorf("%v", got)
	}
	if got = s.want(200, "", "GET", "/groups", ""); got["count"] != 3.0 {
		t.Errorf("%v", got)
	}
	s.want(400, "invalid_topic", "GET", "/groups?topic=A", "")

	if got = s.want(200, "", "GET", "/lag?topic=a.b&group=other", ""); got["lag"] != 1.0 || got["cursor"] != 2.0 || got["tail"] != 3.0 || got["lagMs"].(float64) < 0 {
		t.Errorf("%v", got)
	}
	s.want(404, "not_found", "GET", "/lag?topic=a.b&group=nobody", "")
	s.want(400, "invalid_argument", "GET", "/lag?topic=a.b", "")

	got = s.want(200, "", "PUT", "/cursors", `{"topic":"a.b","group":"other","to":{"from":"seq","seq":1}}`)
	if got["seq"] != 1.0 || got["lastId"] != ids[0] || got["group"] != "other" {
		t.Errorf("%v", got)
	}
	s.want(200, "", "PUT", "/cursors", `{"topic":"a.b","group":"other","to":{"from":"ts","ts":"1999-01-01T00:00:00Z"}}`)
	s.want(200, "", "PUT", "/cursors", `{"topic":"a.b","group":"other","to":{"from":"latest"}}`)
	got = s.want(200, "", "GET", "/cursors?topic=a.b", "")
	list := got["cursors"].([]any)
	if g, o := list[0].(map[string]any), list[1].(map[string]any); got["topic"] != "a.b" || g["group"] != "g" || g["seq"] != 0.0 || o["seq"] != 3.0 || o["lastId"] != ids[2] || o["pending"] != 0.0 {
		t.Errorf("%v", got)
	}
	s.want(400, "cursor_unknown", "PUT", "/cursors", `{"topic":"a.b","group":"other","to":{"from":"seq","seq":9}}`)
	s.want(400, "invalid_argument", "PUT", "/cursors", `{"topic":"a.b","group":"other","to":{"from":"seq","seq":-9}}`)
	s.want(400, "invalid_argument", "PUT", "/cursors", `{"topic":"a.b","group":"other","to":{"ts":"then"}}`)
	s.want(400, "invalid_argument", "PUT", "/cursors", `{"topic":"a.b","group":"other"}`)
	s.want(400, "invalid_argument", "PUT", "/cursors", `{"topic":"a.b","group":"other","to":{}}`)
	s.want(404, "not_found", "PUT", "/cursors", `{"topic":"a.b","group":"nobody","to":{"from":"latest"}}`)
	s.want(400, "invalid_topic", "PUT", "/cursors", `{"topic":"","group":"nobody","to":{"from":"latest"}}`)

	// Somebody who pulled does not keep a group from being removed.
	s.pull(`{"topic":"a.b","group":"other"}`)
	if status, _, _ := s.raw("DELETE", "/groups/a.b/other", ""); status != 204 {
		t.Errorf("%d", status)
	}
	s.want(404, "not_found", "DELETE", "/groups/a.b/other", "")
	src := s.listen("/subscribe?topic=a.b&group=g")
	s.want(400, "invalid_argument", "DELETE", "/groups/a.b/g", "")
	src.close()
}

func TestDeadLetters(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a.b", "k", `{"n":12345678901234567890,"s":"<>"}`, "j", `2`)
	p := s.pull(`{"topic":"a.b","group":"g","opts":{"from":"earliest"},"wait_ms":5000}`)
	for _, e := range p.Events {
		s.want(200, "", "POST", "/nack", `{"topic":"a.b","group":"g","ids":["`+e.Event.ID+`"],"dead":true,"reason":"no \"good\""}`)
	}
	// The dead letters are recorded behind the nack; an ack is answered after.
	s.want(200, "", "POST", "/ack", `{"topic":"a.b","group":"g","ids":["`+p.Events[0].Event.ID+`"]}`)
	_, _, text := s.raw("GET", "/dlq/a.b", "")
	if !strings.Contains(text, `"payload":{"n":12345678901234567890,"s":"<>"}`) || !strings.Contains(text, `"err":"no \"good\""`) {
		t.Errorf("%s", text)
	}
	got := s.want(200, "", "GET", "/dlq/a.b?limit=1", "")
	record := got["records"].([]any)[0].(map[string]any)
	if got["count"] != 1.0 || record["topic"] != "a.b" || record["group"] != "g" || record["attempts"] != 1.0 || record["original"].(map[string]any)["id"] != p.Events[0].Event.ID {
		t.Errorf("%v", got)
	}
	if got = s.want(200, "", "GET", "/dlq", ""); got["count"] != 2.0 || !reflect.DeepEqual(got["topics"], []any{map[string]any{"topic": "a.b", "group": "g", "count": 2.0}}) {
		t.Errorf("%v", got)
	}
	if got = s.want(200, "", "GET", "/dlq/a.b?group=nobody", ""); got["count"] != 0.0 {
		t.Errorf("%v", got)
	}
	for _, c := range []struct {
		status     int
		code, body string
	}{
		{400, "invalid_argument", `{"transform":". |"}`},
		{400, "invalid_argument", `{"transform":"empty"}`},
		{400, "invalid_argument", `{"transform":"now"}`},
		{400, "invalid_argument", `{"limit":-1}`},
		{400, "invalid_argument", `{"limit":0}`},
		{400, "invalid_argument", `{"ids":[]}`},
		{400, "invalid_argument", `{"ids":["x"]}`},
		{400, "invalid_argument", `{"to":"nowhere"}`},
		{400, "invalid_argument", `{"colour":1}`},
		{400, "bad_json", `{`},
	} {
		s.want(c.status, c.code, "POST", "/dlq/a.b/replay", c.body)
	}
	s.want(400, "invalid_topic", "POST", "/dlq/A/replay", `{}`)
	s.want(400, "invalid_argument", "GET", "/dlq/a.b?limit=x", "")
	replay := func(body string, replayed, remaining float64) {
		t.Helper()
		if got := s.want(200, "", "POST", "/dlq/a.b/replay", body); got["replayed"] != replayed || got["remaining"] != remaining {
			t.Errorf("%v", got)
		}
	}
	replay(`{"limit":1}`, 1, 1)
	replay(`{"to":"group","group":"g"}`, 1, 0)
	replay(``, 0, 0)
	if got = s.want(200, "", "GET", "/replay?topic=a.b&seq=2", ""); got["count"] != 1.0 {
		t.Errorf("%v", got)
	}
}

func TestPageAndMetrics(t *testing.T) {
	s := serve(t, gateway.Options{Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "up 1\n") })})
	// No script or style stands in the page itself, and each file it names is there.
	status, head, text := s.raw("GET", "/", "")
	if status != 200 || !strings.HasPrefix(head.Get("Content-Type"), "text/html") || strings.Contains(text, " style=") || strings.Contains(text, "<style") || regexp.MustCompile(`<script[^>]*>[^<]`).MatchString(text) || regexp.MustCompile(` on[a-z]+=`).MatchString(text) {
		t.Errorf("%d %v %s", status, head, text)
	}
	files := regexp.MustCompile(`(?:src|href)="(/console/[^"]+)"`).FindAllStringSubmatch(text, -1)
	if len(files) < 3 {
		t.Errorf("%q", files)
	}
	for _, m := range append(files, []string{"", "/"}) {
		status, head, _ := s.raw("GET", m[1], "")
		policy := head.Get("Content-Security-Policy")
		if status != 200 || head.Get("Content-Type") == "" || !strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: %d %v", m[1], status, head)
		}
		if status, _, _ := s.raw("GET", m[1], "", "If-None-Match", head.Get("ETag")); status != 304 {
			t.Errorf("%s again: %d", m[1], status)
		}
	}
	s.want(404, "not_found", "GET", "/console/nothing.js", "")
	s.want(404, "not_found", "GET", "/console/..%2fweb.go", "")
	if _, _, text := s.raw("GET", "/metrics", ""); text != "up 1\n" {
		t.Errorf("%q", text)
	}
	serve(t, gateway.Options{}).want(404, "not_found", "GET", "/metrics", "")
}
