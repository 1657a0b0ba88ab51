package schema_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"promethean"
	"promethean/event"
	"promethean/schema"
)

// tenFields is a payload of about 200 bytes, and the schema that it is valid
// under.
const tenFields = `{"id":"a8098c1a-f86e-11da-bd1a","pid":4711,"name":"transcoder","host":"dev-7.example.org","cpu_pct":12.75,"mem_mb":512,"sid":"s-0193","alive":true,"tags":["gpu","video"],"where":{"rack":7,"row":"b"}}`

var tenFieldsSchema = json.RawMessage(`{"type":"object","additionalProperties":false,"required":["id","pid","name","host","cpu_pct","mem_mb"],"properties":{
	"id":{"type":"string","minLength":1,"maxLength":64},"pid":{"type":"integer","minimum":1},"name":{"type":"string"},"host":{"type":"string"},
	"cpu_pct":{"type":"number","minimum":0},"mem_mb":{"type":"number","minimum":0},"sid":{"type":"string"},"alive":{"type":"boolean"},
	"tags":{"type":"array","items":{"type":"string"}},"where":{"type":"object","required":["rack"],"properties":{"rack":{"type":"integer"},"row":{"enum":["a","b"]}}}}}`)

func benchRegistry(b *testing.B, hub *promethean.Hub) *schema.Registry {
	b.Helper()
	reg, err := schema.Open(b.Context(), hub, schema.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = reg.Close() })
	if _, _, err := reg.Register(b.Context(), schema.Definition{Topic: topic, Schema: tenFieldsSchema}); err != nil {
		b.Fatal(err)
	}
	return reg
}

// sink is a bus that keeps nothing, so that what is before it is measured.
type sink struct {
	promethean.Bus
	got int
}

func (s *sink) Publish(_ context.Context, events ...event.Event) ([]promethean.Receipt, error) {
	s.got += len(events[0].Headers)
	return nil, nil
}

// Validating and stamping shall cost at most twice what decoding does.
func BenchmarkValidate(b *testing.B) {
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	reg := benchRegistry(b, hub)
	s := &sink{}
	bus := schema.Validate(s, reg)
	e := event.New(topic, json.RawMessage(tenFields))
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var v any
			if err := json.Unmarshal(e.Payload, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("validate", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := bus.Publish(b.Context(), e); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("full", func(b *testing.B) {
		p, err := reg.Latest(topic).Parsed()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if p.Check(e.Payload) != nil {
				b.Fatal("not valid")
			}
		}
	})
}

// A jq upcast of the same payload shall take at most 10 µs.
func BenchmarkUpcast(b *testing.B) {
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	for name, program := range map[string]string{"rename": to2, "build": `{pid, name, host, cpu: .cpu_pct, mem_mib: .mem_mb, where: (.where.row + "-" + (.where.rack | tostring))}`} {
		b.Run(name, func(b *testing.B) {
			reg, err := schema.Open(b.Context(), hub, schema.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = reg.Close() }()
			t := "up." + name
			for _, d := range []schema.Definition{{Topic: t, Schema: tenFieldsSchema}, {Topic: t, Schema: json.RawMessage(`{"type":"object","required":["mem_mib"]}`), Upcast: program, Compat: "none", Unproved: true}} {
				if _, _, err := reg.Register(b.Context(), d); err != nil {
					b.Fatal(err)
				}
			}
			e := event.New(t, json.RawMessage(tenFields))
			e.Headers = e.Headers.Set(schema.VersionHeader, "1")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := reg.Normalise(b.Context(), e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// 64 publishers with schemas shall reach at least 0.8 of what they do without.
func BenchmarkPublish64(b *testing.B) {
	hub, err := promethean.Open(b.TempDir(), promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	reg := benchRegistry(b, hub)
	type row struct {
		name string
		bus  promethean.Bus
	}
	rows := []row{{"without", hub}, {"with", schema.Validate(schema.DualWrite(hub, reg), reg)}}
	for round := range 4 {
		// Who comes second meets what the engine still does for the first.
		slices.Reverse(rows)
		for _, row := range rows {
			b.Run(fmt.Sprintf("%s/%d", row.name, round), func(b *testing.B) {
				b.ReportAllocs()
				b.SetParallelism(32) // times two processors
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						e := event.New(topic, json.RawMessage(tenFields))
						if _, err := row.bus.Publish(context.Background(), e); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
