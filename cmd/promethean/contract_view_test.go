package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const viewsConfig = `
topics:
  process.state: {compaction: true, history: 24h, snapshot: {every: 1s}}
  kv.set: {compaction: true, tombstones: 1s}
views:
  processes: {topic: process.state, key: .processId, indexes: [{fields: [host, name]}, status, pid]}
  paths: {topic: kv.set, tombstone: .gone, version: .v, map: "{value, v}"}
  ratios: {topic: ratio.set, map: "{r: (.a / .b)}"}
  carts: {topic: cart.changed, reduce: merge, indexes: [{fields: [number], unique: true}]}
`

// TestContractViews walks the rows of read models, time travel and compaction.
func TestContractViews(t *testing.T) {
	onEach(t, func(t *testing.T, store string) {
		t.Parallel() // it waits for a compaction most of the time
		file := filepath.Join(t.TempDir(), "promethean.yaml")
		if err := os.WriteFile(file, []byte(viewsConfig), 0o600); err != nil {
			t.Fatal(err)
		}
		p := startHub(t, "--store", store, "--config", file)
		for _, row := range []struct {
			name string
			walk func(*hub)
		}{
			{"snapshots", walkSnap},
			{"lists", walkList},
			{"watch", walkWatch},
			{"tombstones and versions", walkVersions},
			{"merge and dead letters", walkMerge},
			{"rebuild", walkRebuild},
			{"time travel", walkAt},
			{"compaction", walkCompaction},
			{"bad settings", walkBadCompaction},
		} {
			t.Run(row.name, func(t *testing.T) {
				q := *p
				q.T = t
				row.walk(&q)
				p.states = q.states
			})
		}
		if store != "memory://" {
			p.crash()
			p.until("the view after a crash", func() bool {
				return strings.Contains(string(p.call("GET", "/views/processes/snap/dev:stt:1", "").body), `"status":"alive"`)
			})
		}
		p.stop()
	})
}

// state publishes a state and waits until the view has it.
func (p *hub) state(host, name string, pid int, status string) {
	p.Helper()
	key := fmt.Sprintf("%s:%s:%d", host, name, pid)
	p.states++ // newest first needs times that differ
	r := p.publish("process.state", fmt.Sprintf("?key=%s&ts=%d", url.QueryEscape(key), 1_765_700_000_000+p.states),
		fmt.Sprintf(`{"processId":%q,"host":%q,"name":%q,"pid":%d,"status":%q}`, key, host, name, pid, status))
	p.caughtUp("processes", r.Seq)
}

// caughtUp waits until a view has an event.
func (p *hub) caughtUp(view string, seq uint64) {
	p.Helper()
	p.until("seq in the view", func() bool {
		var v struct{ Seq uint64 }
		p.get(&v, 200, "GET", "/views/"+view, "")
		return v.Seq >= seq
	})
}

func walkSnap(p *hub) {
	p.state("dev", "stt", 1, "alive")
	const at = "/views/processes/snap/dev:stt:1"
	a := p.call("GET", at, "")
	etag := a.header.Get("ETag")
	if a.status != 200 || !strings.HasPrefix(etag, `"`) || a.header.Get("Cache-Control") != "public, max-age=5" || a.header.Get("Content-Type") != "application/json" {
		p.Fatalf("%d %v %s", a.status, a.header, a.body)
	}
	var doc map[string]any
	if err := json.Unmarshal(a.body, &doc); err != nil || doc["_key"] != "dev:stt:1" || doc["_ts"] == nil || doc["status"] != "alive" || doc["_seq"] != nil || doc["_v"] != nil {
		p.Errorf("%s", a.body)
	}
	if h := p.call("HEAD", at, ""); h.status != 200 || h.header.Get("ETag") != etag || len(h.body) > 0 || h.header.Get("Content-Length") != fmt.Sprint(len(a.body)) {
		p.Errorf("HEAD: %d %v", h.status, h.header)
	}
	for _, match := range []string{etag, `W/` + etag, `"x", ` + etag, `*`, `"a","b" , W/` + etag} {
		for _, method := range []string{"GET", "HEAD"} {
			if got := p.call(method, at, "", "If-None-Match", match); got.status != 304 || len(got.body) > 0 || got.header.Get("ETag") != etag {
				p.Errorf("%s %s: %d %v %s", method, match, got.status, got.header, got.body)
			}
		}
	}
	for _, match := range []string{`"x"`, `W/"x"`, strings.Trim(etag, `"`)} {
		if got := p.call("GET", at, "", "If-None-Match", match); got.status != 200 {
			p.Errorf("%s: %d", match, got.status)
		}
	}
	p.state("dev", "stt", 1, "stale")
	if got := p.call("GET", at, "", "If-None-Match", etag); got.status != 200 || got.header.Get("ETag") == etag {
		p.Errorf("a change: %d %v", got.status, got.header)
	}
	p.state("dev", "stt", 1, "alive")
	if got := p.call("GET", at, ""); got.header.Get("ETag") == etag {
		p.Error("the same state at another time has the same ETag")
	}
	p.refused(404, "not_found", "GET", "/views/processes/snap/nobody", "")
	p.refused(404, "not_found", "GET", "/views/nothing/snap/a", "")
	// A key may be any text.
	for _, key := range []string{"a/b/c", "ü/日本 %2F?#", ".."} {
		r := p.publish("process.state", "?key="+url.QueryEscape(key), fmt.Sprintf(`{"processId":%q,"host":"odd"}`, key))
		p.caughtUp("processes", r.Seq)
		got := p.call("GET", "/views/processes/snap/"+url.PathEscape(key), "")
		var doc struct {
			Key string `json:"_key"`
		}
		if err := json.Unmarshal(got.body, &doc); err != nil || doc.Key != key {
			p.Errorf("%q: %d %s", key, got.status, got.body)
		}
	}
	if got := p.call("GET", "/views/processes/snap/a/b/c", ""); got.status != 200 {
		p.Errorf("slashes as they are: %d", got.status)
	}
	if got := p.call("POST", at, "{}"); got.status != 405 {
		p.Errorf("POST: %d", got.status)
	}
}

type listed struct {
	Offset, Limit, Count int
	Items                []struct {
		Key string `json:"_key"`
		TS  int64  `json:"_ts"`
	}
}

func (l *listed) keys() string {
	var keys []string
	for _, i := range l.Items {
		keys = append(keys, i.Key)
	}
	return strings.Join(keys, " ")
}

func walkList(p *hub) {
	for i := 1; i <= 4; i++ {
		p.state("l", "web", 100+i, map[bool]string{true: "up", false: "down"}[i%2 == 0])
	}
	list := func(query string) listed {
		p.Helper()
		a := p.call("GET", "/views/processes/list"+query, "")
		var l listed
		if err := json.Unmarshal(a.body, &l); err != nil || a.status != 200 || a.header.Get("Cache-Control") != "no-store" {
			p.Fatalf("%s: %d %v %s", query, a.status, a.header, a.body)
		}
		return l
	}
	for query, want := range map[string]string{
		"?host=l":                           "l:web:104 l:web:103 l:web:102 l:web:101",
		"?host=l&status=up":                 "l:web:104 l:web:102",
		"?host=l&name=web&offset=1&limit=2": "l:web:103 l:web:102",
		"?name=web&status=down":             "l:web:103 l:web:101",
		"?pid=103":                          "l:web:103",
		"?pid=103.0":                        "l:web:103",
		"?host=nobody":                      "",
		"?host=l&limit=0":                   "",
		"?status=up&status=":                "",
	} {
		if query == "?status=up&status=" {
			p.refused(400, "invalid_argument", "GET", "/views/processes/list"+query, "")
			continue
		}
		if l := list(query); l.keys() != want || l.Count != len(l.Items) {
			p.Errorf("%s: %q, want %q", query, l.keys(), want)
		}
	}
	if l := list(""); l.Limit != 100 || l.Offset != 0 {
		p.Errorf("%+v", l)
	}
	if l := list("?limit=1000000000"); l.Limit != 1000 {
		p.Errorf("%+v", l)
	}
	for _, bad := range []string{
		"?limit=-1", "?limit=x", "?offset=-1", "?limit=1e9", "?cpu=1", "?status[$ne]=x", "?status%5B%24ne%5D=x", "?$where=1", "?host.name=x", "?_key=a", "?status[]=a",
	} {
		p.refused(400, "invalid_argument", "GET", "/views/processes/list"+bad, "")
	}
}

// changes reads n changes of a view.
func (p *hub) changes(path string, n int, opened func(), headers ...string) (kinds, ids, keys []string) {
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
		p.Fatalf("%s: %d %v", path, got.StatusCode, got.Header)
	}
	if opened != nil {
		opened()
	}
	id, kind := "", ""
	for s := bufio.NewScanner(got.Body); len(keys) < n && s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), ":")
		switch value = strings.TrimPrefix(value, " "); name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			var d struct {
				Key string `json:"_key"`
			}
			if err := json.Unmarshal([]byte(value), &d); err != nil {
				p.Fatalf("%q: %v", value, err)
			}
			kinds, ids, keys = append(kinds, kind), append(ids, id), append(keys, d.Key)
		}
	}
	return kinds, ids, keys
}

func walkWatch(p *hub) {
	_, ids, keys := p.changes("/views/processes/watch", 2, func() {
		p.state("w", "a", 1, "up")
		p.state("w", "b", 2, "up")
	})
	if strings.Join(keys, " ") != "w:a:1 w:b:2" {
		p.Fatalf("%v", keys)
	}
	p.state("w", "c", 3, "up")
	r := p.publish("process.state", "?key=w:a:1", "null")
	p.caughtUp("processes", r.Seq)
	kinds, again, keys := p.changes("/views/processes/watch", 2, nil, "Last-Event-ID", ids[1])
	if strings.Join(keys, " ") != "w:c:3 w:a:1" || strings.Join(kinds, " ") != "change delete" {
		p.Errorf("resumed: %v %v", kinds, keys)
	}
	if _, _, keys = p.changes("/views/processes/watch?after="+again[0], 1, nil); keys[0] != "w:a:1" {
		p.Errorf("%v", keys)
	}
	p.refused(400, "invalid_argument", "GET", "/views/processes/watch?after=x", "")
}

func walkVersions(p *hub) {
	put := func(key, payload string) {
		r := p.publish("kv.set", "?key="+key, payload)
		p.caughtUp("paths", r.Seq)
	}
	want := func(key, body string) {
		p.Helper()
		a := p.call("GET", "/views/paths/snap/"+key, "")
		if body == "" {
			if a.status != 404 {
				p.Errorf("%s: %d %s", key, a.status, a.body)
			}
			return
		}
		if _, rest, _ := strings.Cut(string(a.body), `,"value`); a.status != 200 && !strings.HasPrefix(rest, body) || !strings.Contains(string(a.body), body) {
			p.Errorf("%s: %d %s, want %s", key, a.status, a.body, body)
		}
	}
	put("a", `{"value":"five","v":5}`)
	put("a", `{"value":"three","v":3}`) // late
	want("a", `"value":"five"`)
	put("a", `{"value":"six","v":6,"other":1}`)
	want("a", `"v":6,"value":"six"`)
	put("a", `{"gone":true,"v":7}`)
	want("a", "")
	put("a", `{"value":"old","v":6}`) // must not come back
	want("a", "")
	put("a", `{"value":"eight","v":8}`)
	want("a", `"value":"eight"`)
	put("b", `{"value":1,"v":1}`)
	put("b", `{"_deleted":true}`)
	want("b", "")
}

func walkMerge(p *hub) {
	put := func(key, payload string) {
		r := p.publish("cart.changed", "?key="+key, payload)
		p.caughtUp("carts", r.Seq)
	}
	put("c1", `{"number":1,"items":{"a":1,"b":2}}`)
	put("c1", `{"items":{"a":null,"c":12345678901234567890}}`)
	a := p.call("GET", "/views/carts/snap/c1", "")
	if !strings.Contains(string(a.body), `"number":1,"items":{"b":2,"c":12345678901234567890}`) {
		p.Errorf("%s", a.body)
	}
	// What fits no view is a dead letter of the view, which goes on.
	put("c2", `{"number":1}`)
	put("c3", `"no object"`)
	put("c4", `{"number":4}`)
	p.get(nil, 200, "GET", "/views/carts/snap/c4", "")
	p.refused(404, "not_found", "GET", "/views/carts/snap/c2", "")
	var dead struct{ Records []struct{ Group, Err string } }
	p.until("dead letters", func() bool {
		p.get(&dead, 200, "GET", "/dlq/cart.changed", "")
		return len(dead.Records) == 2
	})
	for _, l := range dead.Records {
		if l.Group != "changelog:carts" || l.Err == "" {
			p.Errorf("%+v", l)
		}
	}
	p.refused(400, "invalid_argument", "POST", "/dlq/cart.changed/replay", `{"to":"group","group":"changelog:carts"}`)
	// So is one that the map program fails on.
	for i, payload := range []string{`{"a":1,"b":2}`, `{"a":1,"b":0}`, `{"a":3,"b":2}`} {
		r := p.publish("ratio.set", fmt.Sprintf("?key=r%d", i), payload)
		p.caughtUp("ratios", r.Seq)
	}
	p.get(nil, 200, "GET", "/views/ratios/snap/r2", "")
	p.refused(404, "not_found", "GET", "/views/ratios/snap/r1", "")
	p.get(&dead, 200, "GET", "/dlq/ratio.set", "")
	if len(dead.Records) != 1 || dead.Records[0].Group != "changelog:ratios" || !strings.Contains(dead.Records[0].Err, "map") {
		p.Errorf("%+v", dead)
	}
	// Without any key nothing changes, and that is told.
	r := p.publish("cart.changed", "", `{"number":9}`)
	p.caughtUp("carts", r.Seq)
	var v struct {
		NoKey uint64 `json:"no_key"`
		Dead  uint64
		Lag   uint64
	}
	if p.get(&v, 200, "GET", "/views/carts", ""); v.NoKey != 1 || v.Dead != 2 || v.Lag != 0 {
		p.Errorf("%+v", v)
	}
}

func walkRebuild(p *hub) {
	var before, after listed
	p.get(&before, 200, "GET", "/views/processes/list", "")
	p.get(nil, 202, "POST", "/views/processes/rebuild", "")
	var v struct {
		Rebuild *struct{ State, Err string }
	}
	p.until("the rebuild", func() bool {
		p.get(&v, 200, "GET", "/views/processes", "")
		return v.Rebuild != nil && v.Rebuild.State != "building" && v.Rebuild.State != "swapping"
	})
	if v.Rebuild.State != "done" {
		p.Errorf("%+v", v.Rebuild)
	}
	p.get(&after, 200, "GET", "/views/processes/list", "")
	if before.keys() != after.keys() || before.Count == 0 {
		p.Errorf("%q became %q", before.keys(), after.keys())
	}
	p.refused(404, "not_found", "POST", "/views/nothing/rebuild", "")
	p.refused(400, "invalid_argument", "POST", "/views/processes/rebuild", `{"from":"tomorrow"}`)
	p.refused(400, "bad_json", "POST", "/views/processes/rebuild", `{"form":1}`)
}

func walkAt(p *hub) {
	type state struct {
		Topic, Key string
		State      json.RawMessage
		TS         int64
		Seq        uint64
		Events     int
	}
	at := func(query string) (s state) {
		p.Helper()
		p.get(&s, 200, "GET", "/at?topic=t.travel&key=k"+query, "")
		return s
	}
	if s := at("&ts=5"); string(s.State) != "null" || s.Seq != 0 || s.Events != 0 || s.Topic != "t.travel" || s.Key != "k" {
		p.Errorf("nothing: %+v", s)
	}
	for _, e := range []struct{ ts, payload string }{
		{"1000", `{"n":1}`}, {"2000", `{"n":2}`}, {"4000", `null`}, {"3000", `{"n":3}`}, {"5000", `{"n":12345678901234567890}`},
	} {
		p.publish("t.travel", "?key=k&ts="+e.ts, e.payload)
	}
	for query, want := range map[string]string{
		"&ts=999": "null 0 0", "&ts=1000": `{"n":1} 1 1`, "&ts=2500": `{"n":2} 2 2`,
		"&ts=3500": `{"n":3} 4 3`, "&ts=4500": `{"n":3} 4 4`, "&ts=1970-01-01T00:00:05Z": `{"n":12345678901234567890} 5 5`,
		"&asOf=3": "null 3 3", "&asOf=2": `{"n":2} 2 2`, "&asOf=99": `{"n":12345678901234567890} 5 5`,
		"": `{"n":12345678901234567890} 5 5`, "&asOf=3&ts=2500": `{"n":2} 2 2`,
	} {
		s := at(query)
		if got := fmt.Sprintf("%s %d %d", s.State, s.Seq, s.Events); got != want {
			p.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	for _, bad := range []string{"&ts=x", "&ts=-1", "&asOf=x", "&asOf=-1", "&reduce=sum"} {
		p.refused(400, "invalid_argument", "GET", "/at?topic=t.travel&key=k"+bad, "")
	}
	p.refused(400, "invalid_argument", "GET", "/at?topic=t.travel", "")
	p.refused(400, "invalid_topic", "GET", "/at?topic=T&key=k", "")
}

func walkCompaction(p *hub) {
	for i := 1; i <= 20; i++ {
		p.publish("kv.set", fmt.Sprintf("?key=q%d&ts=%d", i%3, 1000*i), fmt.Sprintf(`{"value":%d,"v":%d}`, i, i))
	}
	p.publish("kv.set", "?key=q0&ts=30000", `null`)
	live := func() map[string]int {
		n := make(map[string]int)
		for _, e := range p.replay("kv.set") {
			n[e.Key]++
		}
		return n
	}
	p.until("compaction", func() bool { n := live(); return n["q1"] == 1 && n["q2"] == 1 && n["q0"] == 0 })
	var latest map[string]*record
	p.get(&latest, 200, "GET", "/latest-by-key?topic=kv.set&key=q0&key=q1&key=q2", "")
	if latest["q0"] != nil || string(latest["q1"].Payload) != `{"value":19,"v":19}` || string(latest["q2"].Payload) != `{"value":20,"v":20}` {
		p.Errorf("%+v", latest)
	}
	// What is gone is said to be gone, with the oldest time that can be asked for.
	got := p.refused(410, "history_gone", "GET", "/at?topic=kv.set&key=q1&ts=5000", "")
	if got["oldest"] != 19000.0 {
		p.Errorf("%v", got)
	}
	var s struct{ State json.RawMessage }
	p.get(&s, 200, "GET", "/at?topic=kv.set&key=q1&ts=19000", "")
	if string(s.State) != `{"value":19,"v":19}` {
		p.Errorf("%s", s.State)
	}
	// Within its history nothing is gone.
	p.publish("process.state", "?key=h&ts=1000", `{"processId":"h","host":"h","n":1}`)
	p.publish("process.state", "?key=h&ts=2000", `{"processId":"h","host":"h","n":2}`)
	p.get(&s, 200, "GET", "/at?topic=process.state&key=h&ts=1500", "")
	if !strings.Contains(string(s.State), `"n":1`) {
		p.Errorf("%s", s.State)
	}
	// Snapshots of changed keys are written by the hub, and by nobody else.
	p.until("a snapshot", func() bool {
		for _, e := range p.replay("process.state.snapshot") {
			var s struct {
				Key     string
				Payload struct{ N int }
				TS      int64
			}
			if err := json.Unmarshal(e.Payload, &s); err != nil {
				p.Fatalf("%s: %v", e.Payload, err)
			}
			if e.Key == "h" && s.Key == "h" && s.Payload.N == 2 && s.TS == 2000 {
				return true
			}
		}
		return false
	})
	p.refused(403, "forbidden", "POST", "/publish/process.state.snapshot?key=h", `{}`)
	p.refused(400, "invalid_argument", "POST", "/publish/kv.set", `{}`)
	p.refused(400, "invalid_argument", "POST", "/publish", `[{"topic":"kv.set","key":"a","payload":1},{"topic":"kv.set","payload":2}]`)
}

func walkBadCompaction(p *hub) {
	for _, bad := range []string{
		`{"compaction":"yes"}`, `{"history":5}`, `{"history":"soon"}`, `{"history":"-1h"}`, `{"snapshot":5}`, `{"snapshot":{"every":"0s"}}`,
		`{"snapshot":{"topic":"X"}}`, `{"snapshot":{"each":"5s"}}`, `{"history":"1h"}`, `{"snapshot":true}`, `{"compaction":true,"snapshot":{"topic":"kv.set"}}`,
	} {
		p.refused(400, "invalid_argument", "PUT", "/topics/bad.set", bad)
	}
	if a := p.call("GET", "/topics/bad.set", ""); a.status != 404 {
		p.Errorf("a refused setting made a topic: %s", a.body)
	}
	var got struct{ Settings map[string]any }
	p.get(&got, 200, "PUT", "/topics/good.set", `{"compaction":true,"history":"1h","tombstones":"2d","snapshot":true}`)
	if s := got.Settings; s["compaction"] != true || s["history"] != "1h" || s["tombstones"] != "48h" || s["snapshot"] == nil {
		p.Errorf("%v", s)
	}
	p.get(&got, 200, "PUT", "/topics/good.set", `{"compaction":null,"history":null,"tombstones":null,"snapshot":null}`)
}
