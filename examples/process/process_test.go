package process_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"promethean/examples/process"
)

// payloads of heartbeats, and what their error must name; "" where they are
// right.
var payloads = map[string]string{
	`{"pid":1,"name":"stt","host":"dev","cpu_pct":12.3,"mem_mb":256}`:                "",
	`{"pid":1.0,"name":"stt","host":"dev","cpu_pct":0,"mem_mb":0,"sid":"s"}`:         "",
	`{"pid":1e2,"name":"s","host":"d","cpu_pct":-1,"mem_mb":1e3,"sid":"","more":[]}`: "",
	`{"pid":0,"name":"stt","host":"dev","cpu_pct":1,"mem_mb":2,"PID":"x"}`:           "",

	`{"PID":1,"name":"stt","host":"dev","cpu_pct":1,"mem_mb":2}`:                "pid: want a whole number that is not negative, there is none",
	`{"pid":"1","name":"stt","host":"dev","cpu_pct":1,"mem_mb":2}`:              `pid: want a whole number that is not negative, got "1"`,
	`{"pid":1.5,"name":"stt","host":"dev","cpu_pct":1,"mem_mb":2}`:              "got 1.5",
	`{"pid":-1,"name":"stt","host":"dev","cpu_pct":1,"mem_mb":2}`:               "got -1",
	`{"pid":9007199254740993,"name":"stt","host":"dev","cpu_pct":1,"mem_mb":2}`: "got 9007199254740993",
	`{"pid":null,"name":null,"host":null,"cpu_pct":null,"mem_mb":null}`:         "mem_mb: want a number, got null",
	`{"pid":1,"name":"","host":"dev","cpu_pct":1,"mem_mb":2}`:                   `name: want a text that is not empty, got ""`,
	`{"pid":1,"name":"stt","host":7,"cpu_pct":1,"mem_mb":2}`:                    "host: want a text that is not empty, got 7",
	`{"pid":1,"name":"stt","host":"dev","cpu_pct":"1","mem_mb":2}`:              `cpu_pct: want a number, got "1"`,
	`{"pid":1,"name":"stt","host":"dev","cpu_pct":1}`:                           "mem_mb: want a number, there is none",
	`{"pid":1,"name":"stt","host":"dev","cpu_pct":1,"mem_mb":2,"sid":null}`:     "sid: want a text, got null",
	`{"pid":1,"name":"stt","host":"dev","cpu_pct":1,"mem_mb":2,"sid":4}`:        "sid: want a text, got 4",
	`null`: "want an object, got null",
	`[]`:   "want an object, got []",
	`"poison ` + strings.Repeat("ä", 100) + `"`: "ä…",
	`1`: "want an object, got 1",
}

// schema reads one of the files.
func schema(t *testing.T, topic string) *jsonschema.Schema {
	t.Helper()
	name := "schemas/" + topic + "/v1.json"
	text, err := fs.ReadFile(process.Schemas, name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// judge says what a schema makes of a payload.
func judge(t *testing.T, s *jsonschema.Schema, payload []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// TestParserAgreesWithTheSchema holds both against the same payloads: what the
// schema lets in must not be a dead letter, and the other way round.
func TestParserAgreesWithTheSchema(t *testing.T) {
	s := schema(t, process.HeartbeatTopic)
	for payload, want := range payloads {
		_, err := process.ParseHeartbeat([]byte(payload))
		bad := judge(t, s, []byte(payload))
		if (err == nil) != (bad == nil) {
			t.Errorf("%s\n\tparser: %v\n\tschema: %v", payload, err, bad)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\n\tsaid %v\n\twant %s", payload, err, want)
		}
	}
}

func TestAllFaultsAreNamed(t *testing.T) {
	_, err := process.ParseHeartbeat([]byte(`{"pid":"x","sid":1}`))
	for _, name := range []string{"pid", "name", "host", "cpu_pct", "mem_mb", "sid"} {
		if err == nil || !strings.Contains(err.Error(), name+": want") {
			t.Errorf("%s is not named in %v", name, err)
		}
	}
}

func TestHeartbeatRoundTrip(t *testing.T) {
	s := schema(t, process.HeartbeatTopic)
	for _, h := range []process.Heartbeat{
		{PID: 1, Name: "stt", Host: "dev", CPUPct: 12.3, MemMB: 256},
		{PID: 1<<53 - 1, Name: "a:b", Host: "fe80::1", SID: "s"},
	} {
		text, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		if err := judge(t, s, text); err != nil {
			t.Error(err)
		}
		if got, err := process.ParseHeartbeat(text); err != nil || got != h {
			t.Errorf("%+v, %v; want %+v", got, err, h)
		}
	}
	if id := (process.Heartbeat{PID: 7, Name: "stt", Host: "dev"}).ProcessID(); id != "dev:stt:7" {
		t.Error(id)
	}
}
