package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

const (
	id1 = "0192f7c1-0000-7000-8000-000000000001"
	id2 = "0192f7c1-0000-7000-8000-000000000002"
)

// TestContractHTTP walks the rows of the table of calls.
func TestContractHTTP(t *testing.T) {
	onEach(t, func(t *testing.T, store string) {
		p := startHub(t, "--store", store)
		for _, row := range []struct {
			name string
			walk func(*hub)
		}{
			{"publish", walkPublish},
			{"batches", walkBatch},
			{"replay", walkReplay},
			{"export", walkExport},
			{"subscribe", walkSSE},
			{"pull", walkPull},
			{"topics", walkTopics},
			{"groups", walkGroups},
			{"keys", walkKeys},
			{"dead letters", walkDead},
			{"cloudevents", walkCloudEvents},
			{"operations", walkOps},
		} {
			t.Run(row.name, func(t *testing.T) {
				q := *p
				q.T = t
				row.walk(&q)
			})
		}
		p.stop()
	})
}

func walkPublish(p *hub) {
	r := p.publish("a.publish", "?key=k&id="+id1+"&ts=1765700000000&sid=s&tag=%23x&tag=y&caused_by=c", `{"n" : 12345678901234567890, "html":"<&>"}`)
	if r.ID != id1 || r.Seq != 1 || r.TS != 1765700000000 || r.Topic != "a.publish" || r.Partition == nil || *r.Partition != 0 {
		p.Errorf("receipt %+v", r)
	}
	p.get(nil, 201, "POST", "/publish/a.publish", `null`, "X-Color", "red", "X-Forwarded-For", "1.2.3.4", "X-Request-Id", "r", "X-Api-Key", "k", "X-Auth-Token", "t", "X-Csrf-Token", "t", "X-Requested-With", "w", "X-Real-Ip", "i", "Accept", "*/*")
	a := p.call("POST", "/publish/a.publish", `"other"`, "Idempotency-Key", id1)
	var again record
	if err := json.Unmarshal(a.body, &again); err != nil || a.status != 200 || !again.Duplicate || again.Seq != 1 {
		p.Errorf("duplicate: %d %s", a.status, a.body)
	}
	log := p.replay("a.publish")
	if len(log) != 2 {
		p.Fatalf("%d events", len(log))
	}
	if e := log[0]; e.Key != "k" || e.SID != "s" || len(e.Tags) != 2 || e.Tags[0] != "#x" || e.CausedBy[0] != "c" || string(e.Payload) != `{"n":12345678901234567890,"html":"<&>"}` {
		p.Errorf("stored %+v %s", e, e.Payload)
	}
	if e := log[1]; string(e.Payload) != "null" || len(e.Headers) != 1 || e.Headers["x-color"] != "red" || e.Key != "" {
		p.Errorf("stored %+v", e)
	}
	got := p.refused(409, "seq_conflict", "POST", "/publish/a.publish?expect_seq=1", `1`)
	if got["expected"] != 1.0 || got["actual"] != 2.0 {
		p.Errorf("a conflict names neither seq: %v", got)
	}
	p.get(nil, 201, "POST", "/publish/a.publish?expect_seq=2", `1`)
	p.get(nil, 201, "POST", "/publish/a.publish?ts=2026-01-31T12:00:00Z", `1`)
	for _, bad := range []struct {
		status           int
		code, path, body string
	}{
		{400, "bad_json", "/publish/a.bad", `{"a":1`},
		{400, "bad_json", "/publish/a.bad", ``},
		{400, "bad_json", "/publish/a.bad", "\"\xff\""},
		{400, "bad_json", "/publish/a.bad", strings.Repeat("[", 1001) + strings.Repeat("]", 1001)},
		{400, "bad_json", "/publish/a.bad", `1 2`},
		{400, "invalid_topic", "/publish/DLQ.a", `1`},
		{400, "invalid_topic", "/publish/dlq.a", `1`},
		{400, "invalid_topic", "/publish/system.x", `1`},
		{400, "invalid_topic", "/publish/%2e%2e%2fx", `1`},
		{400, "invalid_topic", "/publish/" + strings.Repeat("a", 201), `1`},
		{400, "invalid_argument", "/publish/a.bad?id=nope", `1`},
		{400, "invalid_argument", "/publish/a.bad?ts=-1", `1`},
		{400, "invalid_argument", "/publish/a.bad?ts=tomorrow", `1`},
		{400, "invalid_argument", "/publish/a.bad?partition=7", `1`},
		{400, "invalid_argument", "/publish/a.bad?partition=-1", `1`},
		{400, "invalid_argument", "/publish/a.bad?expect_seq=x", `1`},
		{400, "invalid_argument", "/publish/a.bad?key=" + strings.Repeat("k", 1025), `1`},
		{413, "payload_too_large", "/publish/a.bad", `"` + strings.Repeat("x", 1<<20) + `"`},
	} {
		p.refused(bad.status, bad.code, "POST", bad.path, bad.body)
	}
	p.refused(400, "invalid_header", "POST", "/publish/a.bad", `1`, "X-Big", strings.Repeat("h", 17<<10))
	if log := p.replay("a.bad"); len(log) != 0 {
		p.Errorf("refused events are stored: %+v", log)
	}
}

func walkBatch(p *hub) {
	var got struct {
		Count  int      `json:"count"`
		Events []record `json:"events"`
	}
	rows := `{"topic":"b.one","payload":{"n":1},"key":"k","id":"` + id1 + `","ts":5,"headers":{"x-a":"b"},"tags":["t"],"caused_by":["c"],"sid":"s"}` + "\n" +
		`{"topic":"b.two","payload":null}` + "\n\n" + `{"topic":"b.one","payload":"x","id":"` + id1 + `"}`
	p.get(&got, 201, "POST", "/publish", rows, "Content-Type", "application/x-ndjson")
	if got.Count != 3 || len(got.Events) != 3 || got.Events[0].ID != id1 || got.Events[0].Seq != 1 || got.Events[1].Topic != "b.two" || got.Events[1].Seq != 1 || !got.Events[2].Duplicate || got.Events[2].Seq != 1 {
		p.Errorf("%+v", got)
	}
	if log := p.replay("b.one"); len(log) != 1 || log[0].TS != 5 || log[0].Headers["x-a"] != "b" || log[0].Tags[0] != "t" || log[0].SID != "s" {
		p.Errorf("%+v", log)
	}
	p.get(&got, 201, "POST", "/publish", ` [ {"topic":"b.one","payload":1} , {"topic":"b.two","payload":[2]} ] `, "Content-Type", "application/json")
	if got.Count != 2 || got.Events[0].Seq != 2 || got.Events[1].Seq != 2 {
		p.Errorf("%+v", got)
	}
	p.refused(400, "invalid_argument", "POST", "/publish", `[]`, "Content-Type", "application/json")
	good := `{"topic":"b.bad","payload":1}` + "\n"
	for _, bad := range []struct {
		status int
		code   string
		row    string
	}{
		{400, "bad_json", `{"topic":"b.bad","payload":`},
		{400, "invalid_topic", `{"topic":"B","payload":1}`},
		{400, "invalid_header", `{"topic":"b.bad","payload":1,"headers":{"color":"red"}}`},
		{400, "invalid_argument", `{"topic":"b.bad","payload":1,"id":"x"}`},
		{400, "invalid_argument", `{"topic":"b.bad"}`},
		{400, "invalid_argument", `{"topic":"b.bad","payload":1,"ts":"yesterday"}`},
		{413, "payload_too_large", `{"topic":"b.bad","payload":"` + strings.Repeat("x", 1<<20) + `"}`},
	} {
		got := p.refused(bad.status, bad.code, "POST", "/publish", good+good+bad.row+"\n"+good, "Content-Type", "application/x-ndjson")
		if got["index"] != 2.0 {
			p.Errorf("%s: the bad row is %v, want 2", bad.code, got["index"])
		}
	}
	p.refused(413, "batch_too_large", "POST", "/publish", strings.Repeat(good, 10001), "Content-Type", "application/x-ndjson")
	p.refused(413, "batch_too_large", "POST", "/publish", strings.Repeat(`{"topic":"b.bad","payload":"`+strings.Repeat("x", 1000)+`"}`+"\n", 8500), "Content-Type", "application/x-ndjson")
	if log := p.replay("b.bad"); len(log) != 0 {
		p.Errorf("%d events of refused batches are stored", len(log))
	}
	p.get(&got, 201, "POST", "/publish", strings.Repeat(good, 10000), "Content-Type", "application/x-ndjson")
	if log := p.replay("b.bad"); len(log) != 10000 || got.Count != 10000 {
		p.Errorf("%d of 10,000 events are stored, count %d", len(log), got.Count)
	}
}

func walkReplay(p *hub) {
	for i := 1; i <= 5; i++ {
		p.publish("c.replay", fmt.Sprintf("?ts=%d00", []int{0, 1, 3, 2, 4, 5}[i]), fmt.Sprint(i))
	}
	all := p.replay("c.replay")
	for query, want := range map[string][]int{
		"from=earliest":                     {1, 2, 3, 4, 5},
		"":                                  {1, 2, 3, 4, 5},
		"from=latest":                       {},
		"from=seq&seq=3":                    {4, 5},
		"from=seq&seq=0&limit=2":            {1, 2},
		"from=ts&ts=250":                    {2, 3, 4, 5},
		"from=ts&ts=450":                    {5},
		"from=ts&ts=9999":                   {},
		"from=afterId&afterId=" + all[1].ID: {3, 4, 5},
	} {
		var page struct {
			Topic  string   `json:"topic"`
			Count  int      `json:"count"`
			Events []record `json:"events"`
			Next   uint64   `json:"next"`
		}
		p.get(&page, 200, "GET", "/replay?topic=c.replay&"+query, "")
		got := []int{}
		for _, e := range page.Events {
			got = append(got, int(e.Seq))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || page.Topic != "c.replay" {
			p.Errorf("replay %s: %v, want %v", query, got, want)
		}
		if len(want) > 0 && page.Next != uint64(want[len(want)-1]) {
			p.Errorf("replay %s: next %d", query, page.Next)
		}
	}
	p.get(nil, 200, "GET", "/replay?topic=c.none", "")
	p.get(nil, 200, "GET", "/replay?topic=c.replay&limit=99999999999999999999", "")
	p.refused(400, "cursor_unknown", "GET", "/replay?topic=c.replay&from=afterId&afterId="+id2, "")
	p.refused(400, "invalid_argument", "GET", "/replay?topic=c.replay&from=afterId&afterId=x", "")
	p.refused(400, "invalid_argument", "GET", "/replay?topic=c.replay&from=nowhere", "")
	p.refused(400, "invalid_argument", "GET", "/replay?topic=c.replay&limit=-1", "")
	p.refused(400, "invalid_argument", "GET", "/replay?topic=c.replay&limit=x", "")
	p.refused(400, "invalid_topic", "GET", "/replay?topic=..%2Fx", "")
	p.refused(400, "invalid_topic", "GET", "/replay", "")
}

func walkExport(p *hub) {
	for i := 1; i <= 3; i++ {
		p.publish("d.export", fmt.Sprintf("?ts=%d00", i), fmt.Sprintf(`{"n": %d}`, i))
	}
	a := p.call("GET", "/export?topic=d.export&ndjson=1", "")
	lines := strings.Split(strings.TrimSpace(string(a.body)), "\n")
	if len(lines) != 3 || !strings.Contains(lines[2], `"payload":{"n":3}`) || !strings.HasPrefix(a.header.Get("Content-Type"), "application/x-ndjson") {
		p.Errorf("%v %s", a.header, a.body)
	}
	var list []record
	p.get(&list, 200, "GET", "/export?topic=d.export&ndjson=0&fromTs=200&toTs=300", "")
	if len(list) == 0 || list[0].Seq != 2 {
		p.Errorf("%+v", list)
	}
	p.get(&list, 200, "GET", "/export?topic=d.none&ndjson=0", "")
	p.refused(400, "invalid_argument", "GET", "/export?topic=d.export&fromTs=x", "")
}

// sse reads Server-Sent Events until n came.
func (p *hub) sse(path string, n int, headers ...string) (ids []string, events []record) {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		p.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		p.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	if got.StatusCode != http.StatusOK || !strings.HasPrefix(got.Header.Get("Content-Type"), "text/event-stream") {
		b, _ := io.ReadAll(got.Body)
		p.Fatalf("%s: %d %v %s", path, got.StatusCode, got.Header, b)
	}
	s := bufio.NewScanner(got.Body)
	s.Buffer(nil, 2<<20)
	id, kind := "", ""
	for len(events) < n && s.Scan() {
		name, value, _ := strings.Cut(s.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			var e record
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				p.Fatalf("%q: %v", value, err)
			}
			if kind != "event" {
				p.Fatalf("event: %q", kind)
			}
			ids, events = append(ids, id), append(events, e)
		}
	}
	if len(events) < n {
		p.Fatalf("%s: the stream ended after %d of %d events: %v", path, len(events), n, s.Err())
	}
	return ids, events
}

func walkSSE(p *hub) {
	for i := 1; i <= 4; i++ {
		p.publish("e.sse", "", fmt.Sprint(i))
	}
	ids, events := p.sse("/subscribe?topic=e.sse&from=earliest", 4)
	if ids[3] != "4" || string(events[0].Payload) != "1" {
		p.Errorf("%v %+v", ids, events)
	}
	if ids, _ = p.sse("/subscribe?topic=e.sse&from=earliest", 2, "Last-Event-ID", "2"); ids[0] != "3" {
		p.Errorf("resumed at %v", ids)
	}
	// With a group it is leased, and what is not acked comes again.
	_, events = p.sse("/subscribe?topic=e.sse&from=earliest&group=g", 4)
	p.settle("ack", "e.sse", "g", "", events[0].ID, events[1].ID)
	ids, _ = p.sse("/subscribe?topic=e.sse&group=g", 2)
	if strings.Join(ids, " ") != "3 4" && strings.Join(ids, " ") != "4 3" {
		p.Errorf("%v come again", ids)
	}
	p.refused(400, "invalid_topic", "GET", "/subscribe?topic=E", "")
	p.refused(400, "invalid_argument", "GET", "/subscribe?topic=e.sse&from=x", "")
}

func walkCloudEvents(p *hub) {
	p.get(nil, 201, "POST", "/cloudevents", `{"n":1}`, "Content-Type", "application/json", "ce-specversion", "1.0", "ce-type", "f.ce", "ce-source", "/s", "ce-id", "abc", "ce-subject", "k1", "ce-extra", "e")
	p.get(nil, 201, "POST", "/cloudevents", `{"specversion":"1.0","type":"f.ce","source":"/s","id":"`+id1+`","partitionkey":"k2","data":{"n":2},"time":"2026-01-31T12:00:00Z"}`, "Content-Type", "application/cloudevents+json")
	p.get(nil, 201, "POST", "/cloudevents", `[{"specversion":"1.0","type":"f.ce","source":"/s","id":"3","data":3},{"specversion":"1.0","type":"f.ce","source":"/s","id":"4","data":4}]`, "Content-Type", "application/cloudevents-batch+json")
	// The same source and id again is a duplicate.
	if a := p.call("POST", "/cloudevents", `{"n":1}`, "Content-Type", "application/json", "ce-specversion", "1.0", "ce-type", "f.ce", "ce-source", "/s", "ce-id", "abc"); a.status != 200 {
		p.Errorf("a known event: %d %s", a.status, a.body)
	}
	log := p.replay("f.ce")
	if len(log) != 4 || log[0].Key != "k1" || log[1].Key != "k2" || log[1].ID != id1 || log[1].TS != 1769860800000 || string(log[0].Payload) != `{"n":1}` || log[0].Headers["x-ce-extra"] != "e" || log[0].Headers["x-ce-source"] != "/s" {
		p.Errorf("%+v", log)
	}
	p.refused(400, "invalid_argument", "POST", "/cloudevents", `{}`, "Content-Type", "application/cloudevents+json")
	p.refused(400, "invalid_topic", "POST", "/cloudevents", `{"specversion":"1.0","type":"F.CE","source":"/s","id":"1"}`, "Content-Type", "application/cloudevents+json")
}

func walkOps(p *hub) {
	var hubs struct {
		Count int
		Hubs  []struct {
			ID            string
			Started, Seen int64
			Alive, Self   bool
		}
	}
	p.get(&hubs, 200, "GET", "/ops/cluster", "")
	if hubs.Count != 1 || len(hubs.Hubs) != 1 || hubs.Hubs[0].ID == "" || !hubs.Hubs[0].Alive || !hubs.Hubs[0].Self || hubs.Hubs[0].Started == 0 || hubs.Hubs[0].Seen == 0 {
		p.Errorf("/ops/cluster of one hub: %+v", hubs)
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		p.get(nil, 200, "GET", path, "")
	}
	a := p.call("GET", "/metrics", "")
	for _, name := range []string{`events_published_total{topic="a.publish"}`, "publish_duration_ms_bucket", "ws_connections", "group_lag", "events_inflight"} {
		if !strings.Contains(string(a.body), name) {
			p.Errorf("/metrics lacks %s", name)
		}
	}
	var doc struct {
		OpenAPI string                    `json:"openapi"`
		Paths   map[string]map[string]any `json:"paths"`
	}
	p.get(&doc, 200, "GET", "/openapi.json", "")
	if !strings.HasPrefix(doc.OpenAPI, "3.1") || doc.Paths["/publish/{topic}"]["post"] == nil || doc.Paths["/replay"]["get"] == nil {
		p.Errorf("openapi %q with %d paths", doc.OpenAPI, len(doc.Paths))
	}
	a = p.call("GET", "/", "")
	if csp := a.header.Get("Content-Security-Policy"); a.status != 200 || !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe-inline") {
		p.Errorf("/: %d, policy %q", a.status, csp)
	}
	p.refused(404, "not_found", "GET", "/nowhere", "")
	for _, foreign := range [][2]string{{"Host", "evil.example"}, {"Origin", "https://evil.example"}, {"Origin", "null"}, {"Sec-Fetch-Site", "cross-site"}} {
		for _, path := range []string{"/publish/o.x", "/healthz", "/ws", "/"} {
			method := "GET"
			if path == "/publish/o.x" {
				method = "POST"
			}
			p.refused(403, "forbidden", method, path, "1", foreign[0], foreign[1])
		}
	}
	if log := p.replay("o.x"); len(log) != 0 {
		p.Error("a foreign page has published")
	}
}
