package schema_test

import (
	"context"
	"encoding/json"
	"testing"

	"promethean"
	"promethean/event"
	"promethean/schema"
	"promethean/store"
)

const topic = "heartbeat.received"

var (
	v1 = json.RawMessage(`{"type":"object","additionalProperties":false,"required":["pid","mem_mb"],"properties":{"pid":{"type":"integer"},"mem_mb":{"type":"number"},"sid":{"type":"string"}}}`)
	v2 = json.RawMessage(`{"type":"object","additionalProperties":false,"required":["pid","mem_mib"],"properties":{"pid":{"type":"integer"},"mem_mib":{"type":"number"},"sid":{"type":"string"}}}`)
	v3 = json.RawMessage(`{"type":"object","additionalProperties":false,"required":["pid","mem"],"properties":{"pid":{"type":"integer"},"mem":{"type":"object","required":["mib"],"properties":{"mib":{"type":"number"}}},"sid":{"type":"string"}}}`)
)

const (
	to2 = `.mem_mib = .mem_mb | del(.mem_mb)`
	to3 = `.mem = {mib: .mem_mib} | del(.mem_mib)`
)

// world is a hub with a registry.
type world struct {
	*testing.T
	ctx context.Context
	hub *promethean.Hub
	reg *schema.Registry
}

func start(t *testing.T) *world {
	t.Helper()
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := schema.Open(t.Context(), hub, schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t, context.Background(), hub, reg}
	t.Cleanup(func() {
		if err := reg.Close(); err != nil {
			t.Error(err)
		}
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) register(d schema.Definition) *schema.Version {
	w.Helper()
	v, fresh, err := w.reg.Register(w.ctx, d)
	if err != nil || !fresh {
		w.Fatalf("%v, fresh %v", err, fresh)
	}
	return v
}

// all registers three versions.
func (w *world) all() {
	w.Helper()
	w.register(schema.Definition{Topic: topic, Schema: v1})
	w.register(schema.Definition{Topic: topic, Schema: v2, Upcast: to2})
	w.register(schema.Definition{Topic: topic, Schema: v3, Upcast: to3})
}

func (w *world) events(topic string) (list []event.Event) {
	w.Helper()
	for e, err := range w.hub.Read(w.ctx, store.Query{Topic: topic}) {
		if err != nil {
			w.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// stamped makes an event of a version; 0: it does not say which.
func stamped(version, payload string) event.Event {
	e := event.New(topic, json.RawMessage(payload))
	if version != "" {
		e.Headers = e.Headers.Set(schema.VersionHeader, version)
	}
	return e
}

func header(e event.Event, name string) string {
	v, _ := e.Headers.Get(name)
	return v
}
