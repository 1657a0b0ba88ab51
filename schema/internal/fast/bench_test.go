package fast

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"promethean/internal/jq/value"
)

// A payload of 200 bytes and its schema of ten fields.
const payload = `{"id":"018f3c1e-7b1a-7c3e-9f00-0123456789ab","host":"node-17","pid":48213,"state":"running","cpu":12.75,"mem_mb":512,"up":true,"started":"2026-11-15T18:00:00Z","tags":["#stt","gpu"],"parent":null}`

const payloadSchema = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{
"id":{"type":"string","format":"uuid"},"host":{"type":"string","minLength":1,"maxLength":64},"pid":{"type":"integer","minimum":1},
"state":{"enum":["starting","running","stopped","failed"]},"cpu":{"type":"number","minimum":0,"maximum":100},"mem_mb":{"type":"integer","minimum":0},
"up":{"type":"boolean"},"started":{"type":"string","format":"date-time"},"tags":{"type":"array","items":{"type":"string"},"maxItems":16},
"parent":{"type":["integer","null"]}},"required":["id","host","pid","state"],"additionalProperties":false}`

func BenchmarkPayload(b *testing.B) {
	s := mustTree(b, payloadSchema)
	p := Compile(s)
	doc := []byte(payload)
	if p == nil || !p.Valid(doc) {
		b.Fatal("not valid")
	}
	b.Logf("%d bytes", len(doc))
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var v any
			if err := json.Unmarshal(doc, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("fast", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !p.Valid(doc) {
				b.Fatal("not valid")
			}
		}
	})
	b.Run("full", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
			if err != nil || s.Validate(v) != nil {
				b.Fatal("not valid")
			}
		}
	})
	b.Run("value+full", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v, err := value.Decode(doc)
			if err != nil || s.Validate(v) != nil {
				b.Fatal("not valid")
			}
		}
	})
}

// The plan of an ordinary schema does not allocate.
func TestNoAllocation(t *testing.T) {
	p := Compile(mustTree(t, payloadSchema))
	doc := []byte(payload)
	if n := testing.AllocsPerRun(100, func() {
		if !p.Valid(doc) {
			t.Fatal("not valid")
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
