package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"promethean/internal/natstest"
)

// The schemas of the notes: a field is renamed.
const (
	heartbeatV1 = `{"type":"object","additionalProperties":false,"required":["pid","name","host","cpu_pct","mem_mb"],"properties":{"pid":{"type":"integer"},"name":{"type":"string"},"host":{"type":"string"},"cpu_pct":{"type":"number"},"mem_mb":{"type":"number"},"sid":{"type":"string"}}}`
	heartbeatV2 = `{"type":"object","additionalProperties":false,"required":["pid","name","host","cpu_pct","mem_mib"],"properties":{"pid":{"type":"integer"},"name":{"type":"string"},"host":{"type":"string"},"cpu_pct":{"type":"number"},"mem_mib":{"type":"number"},"sid":{"type":"string"}}}`
	renameMem   = `.mem_mib = .mem_mb | del(.mem_mb)`
	beatV1      = `{"pid":12345678901234567890,"name":"stt","host":"dev","cpu_pct":1.5,"mem_mb":200}`
	beatV2      = `{"pid":2,"name":"stt","host":"dev","cpu_pct":1.5,"mem_mib":200}`
)

func register(version int, schema, compat, upcast string) string {
	text, err := json.Marshal(map[string]any{"version": version, "schema": json.RawMessage(schema), "compat": compat, "upcast": upcast})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// TestContractSchemas walks the rows of schemas.
func TestContractSchemas(t *testing.T) {
	onEach(t, func(t *testing.T, store string) {
		p := startHub(t, "--store", store)
		for _, row := range []struct {
			name string
			walk func(*hub)
		}{
			{"registry", walkRegistry},
			{"bad schemas", walkBadSchemas},
			{"bad upcasters", walkBadUpcasters},
			{"validation", walkValidation},
			{"normalised", walkNormalised},
			{"dual write", walkDualWrite},
		} {
			t.Run(row.name, func(t *testing.T) {
				q := *p
				q.T = t
				row.walk(&q)
			})
		}
		if store != "memory://" {
			p.crash()
			var got struct{ Versions []struct{ Version int } }
			p.get(&got, 200, "GET", "/schemas/r.beat", "")
			if len(got.Versions) != 2 {
				t.Errorf("after a crash: %+v", got)
			}
		}
		p.stop()
	})
}

// Hubs on one engine know what the others register, and never register the same
// version twice.
func TestContractSchemasAcrossHubs(t *testing.T) {
	url := natstest.Start(t, nil).URL()
	a, b := startHub(t, "--store", url), startHub(t, "--store", url)
	// Three tries: a machine that is busy may be late.
	var took []time.Duration
	for i, topic := range []string{"x.beat", "x.beat2", "x.beat3"} {
		a.get(nil, 201, "POST", "/schemas/"+topic, `{"schema":`+heartbeatV1+`}`)
		began := time.Now()
		b.until("the schema", func() bool { return b.call("GET", "/schemas/"+topic+"/1", "").status == 200 })
		if took = append(took, time.Since(began)); took[i] <= time.Second {
			break
		}
		if i == 2 {
			t.Errorf("another hub knew after %v", took)
		}
	}
	a.get(nil, 201, "POST", "/schemas/x.beat", register(2, heartbeatV2, "backward", renameMem))
	// A stamp that a hub has not heard of yet is looked for.
	b.get(nil, 201, "POST", "/publish/x.beat", beatV2, "x-schema-version", "2")
	b.get(nil, 201, "POST", "/publish/x.beat", beatV1, "x-schema-version", "1")
	a.get(nil, 200, "PUT", "/topics/x.beat", `{"dual_write":true}`)
	b.until("the setting", func() bool {
		return strings.Contains(string(b.call("GET", "/topics/x.beat", "").body), `"dual_write_to":"x.beat.v2"`)
	})
	b.get(nil, 201, "POST", "/publish/x.beat", beatV1, "x-schema-version", "1")
	if log := a.replay("x.beat.v2"); len(log) != 1 || log[0].Headers["x-schema-version"] != "2" {
		t.Errorf("%+v", log)
	}
	// Both at once: each version goes to one of them.
	var wg sync.WaitGroup
	var taken atomic.Int64
	for i := range 20 {
		hub := []*hub{a, b}[i%2]
		wg.Go(func() {
			got := hub.call("POST", "/schemas/x.race", fmt.Sprintf(`{"schema":{"type":"object","title":"%d"}}`, i))
			switch got.status {
			case 201:
				taken.Add(1)
			default:
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	wg.Wait()
	var got struct{ Count, Latest int }
	b.until("all versions", func() bool {
		b.get(&got, 200, "GET", "/schemas/x.race", "")
		return got.Count == int(taken.Load())
	})
	if got.Latest != 20 || got.Count != 20 {
		t.Errorf("%+v", got)
	}
	a.stop()
	b.stop()
}

func walkRegistry(p *hub) {
	p.refused(404, "not_found", "GET", "/schemas/r.beat", "")
	p.refused(404, "not_found", "GET", "/schemas/r.beat/latest", "")
	var v struct {
		Topic   string
		Version int
		Compat  string
		Schema  json.RawMessage
		Upcast  string
	}
	p.get(&v, 201, "POST", "/schemas/r.beat", `{"schema":`+heartbeatV1+`}`)
	if v.Version != 1 || v.Topic != "r.beat" || v.Compat != "backward" {
		p.Errorf("%+v", v)
	}
	p.get(&v, 200, "POST", "/schemas/r.beat", `{"schema":`+heartbeatV1+`}`) // again: nothing happens
	if v.Version != 1 {
		p.Errorf("%+v", v)
	}
	got := p.refused(409, "schema_conflict", "POST", "/schemas/r.beat", register(2, heartbeatV2, "backward", ""))
	problems, _ := got["problems"].([]any)
	if len(problems) == 0 {
		p.Fatalf("no problems: %v", got)
	}
	for _, x := range problems {
		row := x.(map[string]any)
		if row["rule"] == "" || row["detail"] == "" || row["path"] == nil {
			p.Errorf("problem %v", row)
		}
	}
	var check struct {
		Compatible bool
		Problems   []map[string]any
	}
	p.get(&check, 200, "POST", "/schemas/r.beat/check", register(2, heartbeatV2, "backward", ""))
	if check.Compatible || len(check.Problems) != len(problems) {
		p.Errorf("%+v", check)
	}
	p.get(&check, 200, "POST", "/schemas/r.beat/check", register(2, heartbeatV2, "backward", renameMem))
	if !check.Compatible || check.Problems == nil || len(check.Problems) != 0 {
		p.Errorf("with an upcaster: %+v", check)
	}
	p.refused(404, "not_found", "GET", "/schemas/r.beat/2", "")
	p.get(&v, 201, "POST", "/schemas/r.beat", register(2, heartbeatV2, "backward", renameMem))
	for _, path := range []string{"/schemas/r.beat/2", "/schemas/r.beat/latest"} {
		p.get(&v, 200, "GET", path, "")
		if v.Version != 2 || v.Upcast != renameMem || !jsonEqual(p, v.Schema, heartbeatV2) {
			p.Errorf("%s: %+v", path, v)
		}
	}
	p.get(&check, 200, "POST", "/schemas/r.beat/check", register(1, heartbeatV2, "none", ""))
	if check.Compatible {
		p.Error("a version that goes back is compatible")
	}
	p.refused(409, "schema_conflict", "POST", "/schemas/r.beat", register(1, heartbeatV2, "none", ""))
	p.refused(400, "invalid_argument", "GET", "/schemas/r.beat/none", "")
	var list struct {
		Count  int
		Topics []struct {
			Topic    string
			Latest   int
			Versions []int
		}
	}
	p.get(&list, 200, "GET", "/schemas", "")
	if list.Count != 1 || list.Topics[0].Topic != "r.beat" || list.Topics[0].Latest != 2 || !slices.Equal(list.Topics[0].Versions, []int{1, 2}) {
		p.Errorf("%+v", list)
	}
	var valid struct {
		Valid   bool
		Version int
		Errors  []struct{ Path, Message string }
	}
	p.get(&valid, 200, "POST", "/schemas/r.beat/validate", `{"payload":`+beatV1+`,"version":1}`)
	if !valid.Valid || valid.Version != 1 || len(valid.Errors) != 0 {
		p.Errorf("%+v", valid)
	}
	p.get(&valid, 200, "POST", "/schemas/r.beat/validate?version=2", `{"pid":"x","name":5,"mem_mb":1}`)
	if valid.Valid || valid.Version != 2 || len(valid.Errors) < 3 {
		p.Errorf("%+v", valid)
	}
	p.get(&valid, 200, "POST", "/schemas/r.beat/validate", beatV2)
	if !valid.Valid || valid.Version != 2 {
		p.Errorf("%+v", valid)
	}
	p.refused(404, "not_found", "POST", "/schemas/r.beat/validate", `{"payload":1,"version":9}`)
	p.refused(400, "bad_json", "POST", "/schemas/r.beat/validate", `{`)
}

func jsonEqual(p *hub, a json.RawMessage, b string) bool {
	p.Helper()
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	one, _ := json.Marshal(x)
	two, _ := json.Marshal(y)
	return string(one) == string(two)
}

func walkBadSchemas(p *hub) {
	deep := strings.Repeat(`{"properties":{"a":`, 400) + `{}` + strings.Repeat(`}}`, 400)
	for name, schema := range map[string]string{
		"no schema":         `5`,
		"null":              `null`,
		"a text":            `"object"`,
		"wrong type":        `{"type":"objekt"}`,
		"wrong keyword":     `{"minimum":"a"}`,
		"remote":            `{"$ref":"https://example.org/x.json"}`,
		"a file":            `{"$ref":"file:///etc/passwd"}`,
		"nowhere":           `{"$ref":"#/$defs/none"}`,
		"itself":            `{"$ref":"#"}`,
		"in a circle":       `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`,
		"without end":       `{"type":"object","required":["next"],"properties":{"next":{"$ref":"#"}}}`,
		"another dialect":   `{"$schema":"http://json-schema.org/draft-04/schema#"}`,
		"bad pattern":       `{"pattern":"("}`,
		"look ahead":        `{"pattern":"(?=a)b"}`,
		"catastrophic":      `{"type":"string","pattern":"^(a+)+$"}`,
		"catastrophic name": `{"patternProperties":{"^(a|a)*$":{}}}`,
		"huge number":       `{"minimum":1e1000001}`,
		"huge":              `{"description":"` + strings.Repeat("x", 300<<10) + `"}`,
		"deep":              deep + `x`,
	} {
		a := p.call("POST", "/schemas/bad.schema", `{"schema":`+schema+`}`)
		if a.status < 400 || a.status > 499 || !strings.Contains(string(a.body), `"detail"`) {
			p.Errorf("%s: %d %s", name, a.status, clipped(a.body))
		}
	}
	for _, body := range []string{`{}`, `{"schema":{},"compat":"sideways"}`, `{"schema":{},"version":0}`, `{"schema":{},"version":-1}`, `{"schema":{},"colour":1}`, `{"schema":{},"upcast":"."}`, `[]`} {
		p.refused(400, "invalid_argument", "POST", "/schemas/bad.schema", body)
	}
	p.refused(400, "invalid_topic", "POST", "/schemas/Bad", `{"schema":{}}`)
	p.refused(404, "not_found", "GET", "/schemas/bad.schema", "")
}

func clipped(b []byte) string { return string(b[:min(len(b), 300)]) }

func walkBadUpcasters(p *hub) {
	p.get(nil, 201, "POST", "/schemas/bad.upcast", `{"schema":`+heartbeatV1+`}`)
	for name, program := range map[string]string{
		"no program":      `.mem_mb as`,
		"no function":     `nothing_of_that_name`,
		"loops":           `def f: f; f`,
		"loops on":        `[recurse(1)]`,
		"a gigabyte":      `"x" * 1000000000`,
		"a long list":     `[range(1000000000)]`,
		"nothing":         `empty`,
		"twice":           `., .`,
		"wrong shape":     `.`,
		"an error":        `error("no")`,
		"the environment": `.mem_mib = env.HOME`,
		"the time":        `.mem_mib = now | del(.mem_mb)`,
		"input":           `.mem_mib = input | del(.mem_mb)`,
	} {
		began := time.Now()
		a := p.call("POST", "/schemas/bad.upcast", register(2, heartbeatV2, "backward", program))
		if a.status < 400 || a.status > 499 || !strings.Contains(string(a.body), `"detail"`) {
			p.Errorf("%s: %d %s", name, a.status, clipped(a.body))
		}
		if took := time.Since(began); took > 20*time.Second {
			p.Errorf("%s: refused after %v", name, took)
		}
	}
	p.refused(404, "not_found", "GET", "/schemas/bad.upcast/2", "")
}

func walkValidation(p *hub) {
	p.get(nil, 201, "POST", "/publish/v.beat", `"before there was a schema"`)
	p.get(nil, 201, "POST", "/schemas/v.beat", `{"schema":`+heartbeatV1+`}`)
	p.get(nil, 201, "POST", "/publish/v.beat", beatV1)
	got := p.refused(422, "schema_invalid", "POST", "/publish/v.beat", `{"pid":"x","name":5}`)
	if errs, _ := got["errors"].([]any); len(errs) < 3 {
		p.Errorf("not all errors: %v", got)
	}
	p.get(nil, 201, "POST", "/schemas/v.beat", register(0+2, heartbeatV2, "backward", renameMem))
	p.refused(422, "schema_invalid", "POST", "/publish/v.beat", beatV1) // without a stamp it is of the latest
	p.get(nil, 201, "POST", "/publish/v.beat", beatV1, "x-schema-version", "1")
	p.get(nil, 201, "POST", "/publish/v.beat", beatV2)
	p.get(nil, 201, "POST", "/publish/v.beat", beatV2, "x-schema-version", "2")
	p.refused(422, "schema_invalid", "POST", "/publish/v.beat", beatV2, "x-schema-version", "1")
	p.refused(422, "schema_invalid", "POST", "/publish/v.beat", beatV2, "x-schema-version", "7")
	p.refused(422, "schema_invalid", "POST", "/publish/v.beat", beatV2, "x-schema-version", "two")
	p.refused(400, "bad_json", "POST", "/publish/v.beat", `{"pid":1`)
	p.refused(422, "schema_invalid", "POST", "/publish/v.beat", strings.Replace(beatV2, `"host":"dev"`, `"host":1e1000001`, 1))
	got = p.refused(422, "schema_invalid", "POST", "/publish", `{"topic":"v.other","payload":1}`+"\n"+`{"topic":"v.beat","payload":1}`)
	if got["index"] != 1.0 {
		p.Errorf("which row is bad: %v", got)
	}
	if log := p.replay("v.other"); len(log) != 0 {
		p.Error("half of a batch was stored")
	}
	var stamps []string
	for _, e := range p.replay("v.beat") {
		stamps = append(stamps, e.Headers["x-schema-version"])
	}
	if !slices.Equal(stamps, []string{"", "1", "1", "2", "2"}) {
		p.Errorf("stamps %v", stamps)
	}
	p.get(nil, 200, "PUT", "/topics/v.strict", `{"strict_schema":true}`)
	p.refused(422, "schema_invalid", "POST", "/publish/v.strict", `1`)
	p.get(nil, 201, "POST", "/schemas/v.strict", `{"schema":{"type":"integer"}}`)
	p.get(nil, 201, "POST", "/publish/v.strict", `1`)
	if p.call("GET", "/topics/v.strict", "").status != 200 {
		p.Error("the topic is gone")
	}
}

func walkNormalised(p *hub) {
	p.get(nil, 201, "POST", "/schemas/n.beat", `{"schema":`+heartbeatV1+`}`)
	p.get(nil, 201, "POST", "/publish/n.beat", beatV1)
	p.get(nil, 201, "POST", "/schemas/n.beat", register(2, heartbeatV2, "backward", renameMem))
	p.get(nil, 201, "POST", "/publish/n.beat?key=k", beatV1, "x-schema-version", "1")
	p.get(nil, 201, "POST", "/publish/n.beat", beatV2)
	check := func(what string, list []record) {
		p.Helper()
		if len(list) != 3 {
			p.Fatalf("%s: %d events", what, len(list))
		}
		for i, e := range list {
			if !strings.Contains(string(e.Payload), `"mem_mib":200`) || strings.Contains(string(e.Payload), "mem_mb") || e.Headers["x-schema-version"] != "2" {
				p.Errorf("%s: %+v %s", what, e, e.Payload)
			}
			if from := e.Headers["x-upcasted-from"]; (from == "1") != (i < 2) {
				p.Errorf("%s: event %d was upcast from %q", what, i, from)
			}
			if i < 2 && !strings.Contains(string(e.Payload), "12345678901234567890") {
				p.Errorf("%s: a big integer did not survive: %s", what, e.Payload)
			}
		}
	}
	var page struct {
		Count  int
		Events []record
	}
	p.get(&page, 200, "GET", "/replay?topic=n.beat&normalise=1", "")
	check("replay", page.Events)
	if plain := p.replay("n.beat"); !strings.Contains(string(plain[0].Payload), "mem_mb") || plain[0].Headers["x-schema-version"] != "1" {
		p.Errorf("what is stored has changed: %+v", plain[0])
	}
	a := p.call("GET", "/export?topic=n.beat&normalise=1", "")
	check("export", lines(p, a.body))
	var taken []record
	for _, d := range p.pull("n.beat", "g", 10, 5000, `{"from":"earliest","normalise":true}`) {
		taken = append(taken, d.Event)
	}
	check("pull", taken)

	// No way from version 2 to 3: an error that names the event, and with a
	// group a dead letter as it was stored.
	p.get(nil, 201, "POST", "/schemas/n.beat", register(3, `{"type":"object","required":["v3"]}`, "none", ""))
	p.get(nil, 201, "POST", "/publish/n.beat", `{"v3":1}`)
	got := p.refused(422, "schema_invalid", "GET", "/replay?topic=n.beat&normalise=1", "")
	if got["seq"] != 1.0 || !strings.Contains(got["detail"].(string), "seq 1") {
		p.Errorf("%v", got)
	}
	p.refused(422, "schema_invalid", "GET", "/export?topic=n.beat&normalise=1", "")
	p.get(&page, 200, "GET", "/replay?topic=n.beat&normalise=1&from=seq&seq=3", "")
	if page.Count != 1 {
		p.Errorf("%+v", page)
	}
	last := p.pull("n.beat", "dead", 10, 5000, `{"from":"earliest","normalise":true}`)
	if len(last) != 1 || string(last[0].Event.Payload) != `{"v3":1}` {
		p.Errorf("%+v", last)
	}
	var dead struct {
		Records []struct {
			Original record
			Err      string
		}
	}
	p.until("the dead letters", func() bool {
		p.get(&dead, 200, "GET", "/dlq/n.beat", "")
		return len(dead.Records) == 3
	})
	for i, d := range dead.Records {
		want := [3]string{"1", "1", "2"}[i]
		if d.Original.Headers["x-schema-version"] != want || d.Original.Headers["x-upcasted-from"] != "" || !strings.Contains(d.Err, "upcaster") {
			p.Errorf("dead letter %+v", d)
		}
	}
}

// lines reads events of an export.
func lines(p *hub, body []byte) (list []record) {
	p.Helper()
	for _, l := range strings.Split(strings.TrimSpace(string(body)), "\n") {
		var e record
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			p.Fatalf("%s: %v", l, err)
		}
		list = append(list, e)
	}
	return list
}

func walkDualWrite(p *hub) {
	p.refused(400, "invalid_argument", "PUT", "/topics/d.beat", `{"dual_write":true}`)
	p.get(nil, 201, "POST", "/schemas/d.beat", `{"schema":`+heartbeatV1+`}`)
	first := p.publish("d.beat", "?key=k", beatV1)
	p.get(nil, 201, "POST", "/schemas/d.beat", register(2, heartbeatV2, "backward", renameMem))
	var topic struct {
		Settings struct {
			DualWrite   any    `json:"dual_write"`
			DualWriteTo string `json:"dual_write_to"`
		}
	}
	p.get(&topic, 200, "PUT", "/topics/d.beat", `{"dual_write":true}`)
	if topic.Settings.DualWrite != true || topic.Settings.DualWriteTo != "d.beat.v2" {
		p.Errorf("%+v", topic)
	}
	for i := range 2 { // published again, nothing is doubled
		a := p.call("POST", "/publish/d.beat?key=k&id="+id1, beatV1, "x-schema-version", "1")
		if a.status != 201-i {
			p.Errorf("%d %s", a.status, a.body)
		}
	}
	// One that was there before gets its copy when it is published again.
	if a := p.call("POST", "/publish/d.beat?key=k&id="+first.ID, beatV1, "x-schema-version", "1"); a.status != 200 {
		p.Errorf("%d %s", a.status, a.body)
	}
	p.get(nil, 201, "POST", "/publish/d.beat", beatV2)
	p.get(nil, 201, "POST", "/publish", `{"topic":"d.beat","payload":`+beatV2+`}`+"\n"+`{"topic":"d.else","payload":1}`)
	p.refused(422, "schema_invalid", "POST", "/publish/d.beat", `{}`)
	one, two := p.replay("d.beat"), p.replay("d.beat.v2")
	if len(one) != 4 || len(two) != 4 {
		p.Fatalf("%d and %d events", len(one), len(two))
	}
	ids := func(list []record) (out []string) {
		for _, e := range list {
			out = append(out, e.ID)
		}
		slices.Sort(out)
		return out
	}
	if !slices.Equal(ids(one), ids(two)) {
		p.Errorf("%v and %v", ids(one), ids(two))
	}
	for _, e := range two {
		if !strings.Contains(string(e.Payload), "mem_mib") || e.Headers["x-schema-version"] != "2" {
			p.Errorf("%+v %s", e, e.Payload)
		}
	}
	// What is in topic.vN is held to that version.
	p.refused(422, "schema_invalid", "POST", "/publish/d.beat.v2", beatV1)
	p.get(nil, 201, "POST", "/publish/d.beat.v2", beatV2)
	// A window that is over, and one that is not.
	p.get(&topic, 200, "PUT", "/topics/d.beat", `{"dual_write":"2020-01-01T00:00:00Z"}`)
	topic.Settings.DualWriteTo = ""
	p.get(&topic, 200, "GET", "/topics/d.beat", "")
	if topic.Settings.DualWriteTo != "" || topic.Settings.DualWrite != "2020-01-01T00:00:00Z" {
		p.Errorf("%+v", topic)
	}
	p.get(nil, 201, "POST", "/publish/d.beat", beatV2)
	p.get(nil, 200, "PUT", "/topics/d.beat", fmt.Sprintf(`{"dual_write":%q}`, time.Now().Add(time.Hour).Format(time.RFC3339)))
	p.get(nil, 201, "POST", "/publish/d.beat", beatV2)
	p.get(nil, 200, "PUT", "/topics/d.beat", `{"dual_write":false}`)
	p.get(nil, 201, "POST", "/publish/d.beat", beatV2)
	if one, two = p.replay("d.beat"), p.replay("d.beat.v2"); len(one) != 7 || len(two) != 6 {
		p.Errorf("%d and %d events", len(one), len(two))
	}
}

// What was registered, and what dual write was acknowledged, is there after the
// hub was killed, however often.
func TestSchemasSurviveKills(t *testing.T) {
	p := startHub(t, "--store", "file://"+t.TempDir())
	p.get(nil, 201, "POST", "/schemas/k.beat", `{"schema":`+heartbeatV1+`}`)
	p.get(nil, 201, "POST", "/schemas/k.beat", register(2, heartbeatV2, "backward", renameMem))
	p.get(nil, 200, "PUT", "/topics/k.beat", `{"dual_write":true}`)
	client := &http.Client{Timeout: 30 * time.Second}
	titles := make(map[int]string) // that were acknowledged, by version
	var ids []string
	next := 0
	for round := range 5 {
		var wg sync.WaitGroup
		over := make(chan struct{})
		url := p.url
		post := func(path, body string, v any) bool {
			r, err := http.NewRequest(http.MethodPost, url+path, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return false
			}
			r.Header.Set("x-schema-version", "1")
			got, err := client.Do(r)
			if err != nil {
				return false // the hub is dead
			}
			defer func() { _ = got.Body.Close() }()
			if err := json.NewDecoder(got.Body).Decode(v); err != nil {
				return false
			}
			if got.StatusCode != http.StatusCreated {
				t.Errorf("%s: %d %v", path, got.StatusCode, v)
			}
			return true
		}
		wg.Go(func() {
			defer close(over)
			for {
				next++
				title := fmt.Sprint(next)
				var v struct{ Version int }
				if !post("/schemas/k.many", fmt.Sprintf(`{"schema":{"title":%q}}`, title), &v) {
					return
				}
				if old, taken := titles[v.Version]; taken {
					t.Errorf("version %d is %s and %s", v.Version, old, title)
				}
				titles[v.Version] = title
			}
		})
		wg.Go(func() {
			for {
				var r record
				if !post("/publish/k.beat", beatV1, &r) {
					return
				}
				ids = append(ids, r.ID)
			}
		})
		select {
		case <-over:
		case <-time.After(time.Duration(100+50*round) * time.Millisecond):
		}
		p.kill()
		wg.Wait()
		p.start()
		var got struct {
			Versions []struct {
				Version int
				Schema  struct{ Title string }
			}
		}
		p.get(&got, 200, "GET", "/schemas/k.many", "")
		have := make(map[int]string)
		for _, v := range got.Versions {
			have[v.Version] = v.Schema.Title
		}
		for v, title := range titles {
			if have[v] != title {
				t.Errorf("version %d is %q, acknowledged was %q", v, have[v], title)
			}
		}
		for v, title := range have {
			titles[v] = title // stored, and its answer lost
		}
	}
	one, two := p.replay("k.beat"), p.replay("k.beat.v2")
	if len(one) != len(two) {
		t.Fatalf("%d and %d events", len(one), len(two))
	}
	have := make(map[string]bool)
	for i := range one {
		if one[i].ID != two[i].ID {
			t.Fatalf("event %d is %s and %s", i, one[i].ID, two[i].ID)
		}
		have[one[i].ID] = true
	}
	for _, id := range ids {
		if !have[id] {
			t.Errorf("%s was acknowledged and is gone", id)
		}
	}
	t.Logf("%d versions, %d events of %d acknowledged", len(titles), len(one), len(ids))
	p.stop()
}
