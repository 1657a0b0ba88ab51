package jqview

import (
	"errors"
	"strings"
	"testing"

	"promethean/event"
	"promethean/store"
)

func eventOf(payload string) *event.Event {
	e := event.New("process.state", []byte(payload))
	return &e
}

func TestKey(t *testing.T) {
	for _, c := range []struct{ program, payload, want, err string }{
		{".processId", `{"processId":"a:1"}`, "a:1", ""},
		{".processId", `{"process":"a"}`, "", ""},
		{".processId", `{"processId":null}`, "", ""},
		{".processId", `null`, "", ""},
		{".processId", `{"processId":"a\u00e9\n"}`, "aé\n", ""},
		{".processId", `{"processId":12345678901234567890}`, "12345678901234567890", ""},
		{".processId", `{"processId":true}`, "true", ""},
		{".processId", `{"processId":"a","processId":"b"}`, "b", ""},
		{".processId", `{"processId":{"a":1}}`, "", "which is no key"},
		{".processId", `[1]`, "", "expected an object"},
		{" .host.name ", `{"host":{"name":"x"},"name":"y"}`, "x", ""},
		{".host.name", `{"host":null}`, "", ""},
		{".host.name", `{"host":3}`, "", "expected an object"},
		{`.host + ":" + (.pid|tostring)`, `{"host":"a","pid":7}`, "a:7", ""},
		{`.a / 0`, `{"a":1}`, "", "key:"},
	} {
		o, err := Definition{Topic: "process.state", Key: c.program}.Options("p")
		if err != nil {
			t.Fatal(err)
		}
		got, err := o.KeyOf(eventOf(c.payload))
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s of %s: %q, %v; want %q, %q", c.program, c.payload, got, err, c.want, c.err)
		}
	}
}

func TestMapTombstoneVersion(t *testing.T) {
	o, err := Definition{
		Topic: "process.state", Map: "{name, n: .n}", Tombstone: `.status == "gone"`, Version: ".v",
	}.Options("p")
	if err != nil {
		t.Fatal(err)
	}
	e := eventOf(`{"name":"a","n":1.50,"status":"gone","v":9007199254740993}`)
	if doc, err := o.Map(e); err != nil || string(doc) != `{"n":1.50,"name":"a"}` {
		t.Errorf("%s, %v", doc, err)
	}
	if dead, err := o.Tombstone(e); err != nil || !dead {
		t.Errorf("%v, %v", dead, err)
	}
	if v, ok, err := o.VersionOf(e); err != nil || !ok || v != 9007199254740993 {
		t.Errorf("%d, %v, %v", v, ok, err)
	}
	if _, ok, err := o.VersionOf(eventOf(`{}`)); err != nil || ok {
		t.Errorf("no version: %v, %v", ok, err)
	}
	if _, _, err := o.VersionOf(eventOf(`{"v":1.5}`)); err == nil {
		t.Error("1.5 is taken for a version")
	}
	if dead, err := o.Tombstone(eventOf(`{"status":"alive"}`)); err != nil || dead {
		t.Errorf("%v, %v", dead, err)
	}
}

func TestFaultsNameTheirPart(t *testing.T) {
	_, err := Definition{
		Topic: "Bad", Key: ".[", Map: "env", Tombstone: "nonsense", Version: "now", Reduce: "sum", From: "here",
		Indexes: []store.Index{{Fields: []string{"a.b"}}, {Fields: []string{"_key"}}, {}, {Fields: []string{"a", "a"}}, {Fields: []string{"limit"}}},
	}.Options("p")
	if err == nil {
		t.Fatal("taken")
	}
	parts := make(map[string]int)
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var f *Fault
		if !errors.As(e, &f) {
			t.Fatalf("%v is no fault", e)
		}
		parts[f.Part]++
	}
	for part, n := range map[string]int{"topic": 1, "key": 1, "map": 1, "tombstone": 1, "version": 1, "reduce": 1, "from": 1, "indexes": 5} {
		if parts[part] != n {
			t.Errorf("%s: %d faults, want %d: %v", part, parts[part], n, err)
		}
	}
}

func TestDefinitionChangesWithItsPrograms(t *testing.T) {
	say := func(d Definition) string {
		o, err := d.Options("p")
		if err != nil {
			t.Fatal(err)
		}
		return o.Definition
	}
	a := Definition{Topic: "a.b", Key: ".x"}
	b, c, d := a, a, a
	b.Key, c.From, d.Indexes = ".y", "latest", []store.Index{{Fields: []string{"s"}}}
	if say(a) == say(b) {
		t.Error("another key is the same view")
	}
	if say(a) != say(c) || say(a) != say(d) {
		t.Error("where it began, or an index, makes another view")
	}
}

func BenchmarkKey(b *testing.B) {
	e := eventOf(`{"processId":"dev:stt:1","name":"stt","host":"dev","pid":1,"cpu_pct":1.5,"mem_mb":2.5,"last_seen_ts":1765700000000,"status":"alive"}`)
	for _, program := range []string{".processId", `.processId + ""`} {
		o, err := Definition{Topic: "process.state", Key: program}.Options("p")
		if err != nil {
			b.Fatal(err)
		}
		b.Run(program, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := o.KeyOf(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
