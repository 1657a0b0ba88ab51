package schema_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/compact"
	"promethean/event"
	"promethean/schema"
	"promethean/store"
)

func TestValidate(t *testing.T) {
	w := start(t)
	bus := schema.Validate(w.hub, w.reg)
	w.all()
	for _, row := range []struct{ stamp, payload, want string }{
		{"", `{"pid":1,"mem":{"mib":1}}`, "3"},
		{"3", `{"pid":1,"mem":{"mib":1}}`, "3"},
		{"2", `{"pid":1,"mem_mib":1}`, "2"},
		{"1", `{"pid":12345678901234567890,"mem_mb":1.50}`, "1"},
	} {
		e := stamped(row.stamp, row.payload)
		headers := slices.Clone(e.Headers)
		if _, err := bus.Publish(w.ctx, e); err != nil {
			t.Errorf("%+v: %v", row, err)
		}
		if !slices.Equal(e.Headers, headers) {
			t.Error("the caller's event was changed")
		}
		list := w.events(topic)
		if got := list[len(list)-1]; header(got, schema.VersionHeader) != row.want || string(got.Payload) != row.payload {
			t.Errorf("%+v: stored %s, version %s", row, got.Payload, header(got, schema.VersionHeader))
		}
	}
	var bad *schema.InvalidError
	var row *store.EventError
	for _, e := range []event.Event{
		stamped("", `{"pid":1,"mem_mb":1}`), stamped("1", `{"pid":1,"mem_mib":1}`), stamped("4", `{"pid":1}`), stamped("0", `{}`),
		stamped("01", `{"pid":1,"mem_mb":1}`), stamped("+1", `{"pid":1,"mem_mb":1}`), stamped("latest", `{}`), stamped("", `null`),
	} {
		_, err := bus.Publish(w.ctx, stamped("", `{"pid":1,"mem":{"mib":1}}`), e)
		if !errors.As(err, &bad) || !errors.Is(err, schema.ErrInvalid) || !errors.As(err, &row) || row.Index != 1 {
			t.Errorf("%s %v: %v", e.Payload, e.Headers, err)
		}
	}
	_, err := bus.Publish(w.ctx, stamped("", `{"pid":"x","mem":{"mib":"y"},"more":1}`))
	if !errors.As(err, &bad) {
		t.Fatal(err)
	}
	var paths []string
	for _, f := range bad.Errors {
		paths = append(paths, f.Path)
	}
	if slices.Sort(paths); !slices.Equal(paths, []string{"", "/mem/mib", "/pid"}) {
		t.Errorf("%+v", bad.Errors)
	}
	if _, err := bus.Publish(w.ctx, stamped("", `{"pid":`)); !errors.Is(err, event.ErrBadJSON) {
		t.Errorf("%v", err)
	}
	if got := len(w.events(topic)); got != 4 {
		t.Errorf("%d events", got)
	}
	// Topics without a schema are as they were, unless they are strict.
	free := event.New("free.topic", json.RawMessage(`{"any":"thing"}`))
	if _, err := bus.Publish(w.ctx, free); err != nil {
		t.Error(err)
	}
	w.set("free.topic", schema.Settings{Strict: true})
	if _, err := bus.Publish(w.ctx, free); !errors.As(err, &bad) {
		t.Errorf("%v", err)
	}
	// Conditions go through.
	e := stamped("3", `{"pid":1,"mem":{"mib":1}}`)
	if _, err := promethean.PublishIf(w.ctx, bus, []store.Expect{{Topic: topic, Seq: 1}}, e); !errors.Is(err, store.ErrSeqConflict) {
		t.Errorf("%v", err)
	}
}

func (w *world) set(topic string, set schema.Settings) {
	w.Helper()
	var s store.Settings
	if err := set.Put(&s); err != nil {
		w.Fatal(err)
	}
	if err := w.hub.SetTopic(w.ctx, topic, s); err != nil {
		w.Fatal(err)
	}
}

func TestNormalise(t *testing.T) {
	w := start(t)
	w.all()
	for _, row := range []struct{ stamp, payload, want, from string }{
		{"1", `{"pid":12345678901234567890,"mem_mb":1,"sid":"é"}`, `{"mem":{"mib":1},"pid":12345678901234567890,"sid":"é"}`, "1"},
		{"2", `{"mem_mib":2,"pid":1}`, `{"mem":{"mib":2},"pid":1}`, "2"},
		{"3", `{"pid":1,"mem":{"mib":3}}`, `{"pid":1,"mem":{"mib":3}}`, ""},
		{"", `{"pid":1,"mem":{"mib":3}}`, `{"pid":1,"mem":{"mib":3}}`, ""},
	} {
		got, err := w.reg.Normalise(w.ctx, stamped(row.stamp, row.payload))
		if err != nil || string(got.Payload) != row.want || header(got, schema.UpcastHeader) != row.from || header(got, schema.VersionHeader) != "3" {
			t.Errorf("%+v: %s %v %v", row, got.Payload, got.Headers, err)
		}
	}
	var up *schema.UpcastError
	for _, e := range []event.Event{
		stamped("9", `{}`), stamped("x", `{}`), stamped("1", `{"pid":1}`), stamped("1", `5`), stamped("3", `{"pid":1,"mem_mb":3}`), stamped("", `{"pid":1,"mem_mb":3}`),
	} {
		e.Seq = 77
		got, err := w.reg.Normalise(w.ctx, e)
		if !errors.As(err, &up) || up.Seq != 77 || !strings.Contains(err.Error(), "seq 77") || !errors.Is(err, schema.ErrUpcast) {
			t.Errorf("%s: %v", e.Payload, err)
		}
		if string(got.Payload) != string(e.Payload) {
			t.Errorf("%s became %s", e.Payload, got.Payload)
		}
	}
	// What has no stamp is what the topic says.
	w.set(topic, schema.Settings{LegacyVersion: 1})
	if got, err := w.reg.Normalise(w.ctx, stamped("", `{"pid":1,"mem_mb":3}`)); err != nil || header(got, schema.UpcastHeader) != "1" {
		t.Errorf("%v %v", got, err)
	}
	// A version that takes what was before as it is needs no upcaster; one that
	// was registered without any demand has no way to it.
	wider := json.RawMessage(strings.Replace(string(v3), `"sid"`, `"host":{"type":"string"},"sid"`, 1))
	w.register(schema.Definition{Topic: topic, Schema: wider})
	if got, err := w.reg.Normalise(w.ctx, stamped("1", `{"pid":1,"mem_mb":3}`)); err != nil || header(got, schema.VersionHeader) != "4" {
		t.Errorf("%v %v", got, err)
	}
	w.register(schema.Definition{Topic: topic, Schema: json.RawMessage(`{}`), Compat: "none"})
	if _, err := w.reg.Normalise(w.ctx, stamped("4", `{"pid":1,"mem":{"mib":3}}`)); !errors.Is(err, schema.ErrNoUpcaster) {
		t.Errorf("%v", err)
	}
	free := event.New("free.topic", json.RawMessage(`1`))
	if got, err := w.reg.Normalise(w.ctx, free); err != nil || len(got.Headers) != 0 {
		t.Errorf("%v %v", got, err)
	}
}

// Go functions upcast too, are tried as programs are, and are missed where they
// are not.
func TestFunctions(t *testing.T) {
	w := start(t)
	w.register(schema.Definition{Topic: topic, Schema: v1})
	rename := func(_ context.Context, e event.Event) (json.RawMessage, error) {
		var p struct {
			PID json.Number `json:"pid"`
			MB  json.Number `json:"mem_mb"`
			SID *string     `json:"sid"`
		}
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			return nil, err
		}
		out := map[string]any{"pid": p.PID, "mem_mib": p.MB}
		if p.SID != nil {
			out["sid"] = p.SID
		}
		return json.Marshal(out)
	}
	broken := func(context.Context, event.Event) (json.RawMessage, error) { return nil, errors.New("broken") }
	var conflict *schema.ConflictError
	if err := w.reg.AddUpcaster(w.ctx, topic, 1, broken); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.reg.Register(w.ctx, schema.Definition{Topic: topic, Schema: v2}); !errors.As(err, &conflict) {
		t.Fatalf("%v", err)
	}
	if err := w.reg.AddUpcaster(w.ctx, topic, 1, rename); err != nil {
		t.Fatal(err)
	}
	// A program beside the function is what others run: it is tried as well.
	if _, _, err := w.reg.Register(w.ctx, schema.Definition{Topic: topic, Schema: v2, Upcast: "."}); !errors.As(err, &conflict) {
		t.Errorf("%v", err)
	}
	if v := w.register(schema.Definition{Topic: topic, Schema: v2}); !v.Function {
		t.Errorf("%+v", v)
	}
	if err := w.reg.AddUpcaster(w.ctx, topic, 1, broken); !errors.As(err, &conflict) {
		t.Errorf("%v", err)
	}
	e := stamped("1", `{"pid":12345678901234567890,"mem_mb":1}`)
	if got, err := w.reg.Normalise(w.ctx, e); err != nil || string(got.Payload) != `{"mem_mib":1,"pid":12345678901234567890}` {
		t.Errorf("%s %v", got.Payload, err)
	}
	other, err := schema.Open(w.ctx, w.hub, schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := other.Normalise(w.ctx, e); !errors.Is(err, schema.ErrNoUpcaster) || !strings.Contains(err.Error(), "AddUpcaster") {
		t.Errorf("%v", err)
	}
	if err := w.reg.AddUpcaster(w.ctx, topic, 0, rename); err == nil {
		t.Error("no error")
	}
}

// A normalised subscription sees the latest version only; what cannot be made
// into it goes to the dead letters as it was stored.
func TestSubscribeNormalised(t *testing.T) {
	w := start(t)
	w.all()
	for _, e := range []event.Event{
		stamped("1", `{"pid":1,"mem_mb":1}`), stamped("2", `{"pid":2,"mem_mib":2}`), stamped("8", `{"pid":3}`), stamped("3", `{"pid":4,"mem":{"mib":4}}`),
	} {
		if _, err := w.hub.Publish(w.ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	buried := w.hub.Log().Watch("dlq." + topic)
	defer buried.Stop()
	got := make(chan string, 10)
	sub, err := schema.SubscribeNormalised(w.ctx, w.hub, w.reg, topic, "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
		got <- string(e.Payload)
		return nil
	}, promethean.FromEarliest())
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for range 3 {
		select {
		case p := <-got:
			list = append(list, p)
		case <-time.After(10 * time.Second):
			t.Fatalf("only %v", list)
		}
	}
	if slices.Sort(list); !slices.Equal(list, []string{`{"mem":{"mib":1},"pid":1}`, `{"mem":{"mib":2},"pid":2}`, `{"pid":4,"mem":{"mib":4}}`}) {
		t.Errorf("%v", list)
	}
	select {
	case <-buried.C:
	case <-time.After(10 * time.Second):
		t.Error("no dead letter")
	}
	if err := sub.Stop(w.ctx); err != nil {
		t.Error(err)
	}
	dead := w.events("dlq." + topic)
	if len(dead) != 1 || !strings.Contains(string(dead[0].Payload), `"x-schema-version":"8"`) || !strings.Contains(string(dead[0].Payload), `{"pid":3}`) {
		t.Errorf("%+v", dead)
	}
	if _, err := schema.SubscribeNormalised(w.ctx, w.hub, w.reg, topic, "g", nil); err == nil {
		t.Error("no error")
	}
}

// Both topics get an event, or none; in both it stands once.
func TestDualWrite(t *testing.T) {
	w := start(t)
	bus := schema.DualWrite(schema.Validate(w.hub, w.reg), w.reg)
	other := schema.Validate(schema.DualWrite(w.hub, w.reg), w.reg)
	w.all()
	e := stamped("1", `{"pid":1,"mem_mb":1}`)
	e.Key = "k"
	if _, err := bus.Publish(w.ctx, e); err != nil || len(w.events(topic+".v3")) != 0 {
		t.Errorf("written though it is off: %v", err)
	}
	w.set(topic, schema.Settings{DualWrite: schema.Window{On: true}})
	if to := w.reg.DualWriteTo(topic); to != topic+".v3" {
		t.Errorf("%q", to)
	}
	n := 0
	for i, b := range []promethean.Bus{bus, other} {
		e.ID = event.NewID()
		for range 3 {
			got, err := b.Publish(w.ctx, e, event.New("free.topic", json.RawMessage(`1`)), stamped("", fmt.Sprintf(`{"pid":%d,"mem":{"mib":1}}`, i)))
			if err != nil || len(got) != 3 || got[0].Topic != topic || got[1].Topic != "free.topic" {
				t.Fatalf("%+v %v", got, err)
			}
			n++
		}
	}
	one, two := w.events(topic), w.events(topic+".v3")
	if len(one) != 1+2+n || len(two) != 2+n {
		t.Fatalf("%d and %d", len(one), len(two))
	}
	for i := range two {
		if a, b := one[i+1], two[i]; a.ID != b.ID || a.Key != b.Key || a.TS != b.TS || header(b, schema.VersionHeader) != "3" || !strings.Contains(string(b.Payload), `"mib"`) {
			t.Errorf("%+v and %+v", a, b)
		}
	}
	var bad *schema.UpcastError
	if _, err := schema.DualWrite(w.hub, w.reg).Publish(w.ctx, stamped("1", `{"pid":1}`)); !errors.As(err, &bad) {
		t.Errorf("%v", err)
	}
	if got := len(w.events(topic)); got != len(one) {
		t.Error("half of it was stored")
	}
	w.set(topic, schema.Settings{DualWrite: schema.Window{On: true, Until: time.Now().Add(-time.Second)}})
	if _, err := bus.Publish(w.ctx, e); err != nil || w.reg.DualWriteTo(topic) != "" || len(w.events(topic+".v3")) != len(two) {
		t.Errorf("written after its end: %v", err)
	}
}

func TestOf(t *testing.T) {
	type place struct {
		Host string `json:"host"`
	}
	type beat struct {
		PID   uint64            `json:"pid"`
		Name  string            `json:"name,omitempty"`
		At    time.Time         `json:"at"`
		Where []place           `json:"where,omitempty"`
		Tags  map[string]string `json:"tags,omitempty"`
		hide  int
	}
	raw, err := schema.Of[beat]()
	if err != nil {
		t.Fatal(err)
	}
	s, err := schema.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	good, err := json.Marshal(beat{PID: 1 << 63, At: time.Now(), Where: []place{{"a"}}, hide: 1})
	if err != nil {
		t.Fatal(err)
	}
	if bad := s.Check(good); bad != nil {
		t.Errorf("%s: %v", good, bad)
	}
	for _, doc := range []string{`{"name":"a","at":"2026-01-01T00:00:00Z"}`, `{"pid":1,"at":"noon"}`, `{"pid":1,"at":"2026-01-01T00:00:00Z","more":1}`, `{"pid":1,"at":"2026-01-01T00:00:00Z","where":[{}]}`} {
		if s.Check([]byte(doc)) == nil {
			t.Errorf("%s is valid", doc)
		}
	}
}

// A tombstone of a compaction topic is no document: no schema is about it.
func TestTombstonesAreNotValidated(t *testing.T) {
	w := start(t)
	w.all()
	bus := schema.Validate(schema.DualWrite(w.hub, w.reg), w.reg)
	dead := stamped("", `null`)
	dead.Key = "a"
	if _, err := bus.Publish(w.ctx, dead); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("null on a topic that is not compacted: %v", err)
	}
	var s store.Settings
	if err := (compact.Settings{Compaction: true}).Put(&s); err != nil {
		t.Fatal(err)
	}
	if err := (schema.Settings{DualWrite: schema.Window{On: true}}).Put(&s); err != nil {
		t.Fatal(err)
	}
	if err := w.hub.SetTopic(w.ctx, topic, s); err != nil {
		t.Fatal(err)
	}
	for _, e := range []event.Event{dead, stamped("1", `null`)} {
		e.ID, e.Key = event.NewID(), "a"
		if _, err := bus.Publish(w.ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := bus.Publish(w.ctx, stamped("", `{"pid":"x"}`)); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("what is no tombstone: %v", err)
	}
	for _, e := range w.events(topic) {
		n, err := w.reg.Normalise(w.ctx, e)
		if err != nil || string(n.Payload) != "null" || header(n, schema.VersionHeader) != "3" {
			t.Errorf("%+v, %v", n, err)
		}
	}
	if list := w.events(topic + ".v3"); len(list) != 2 || string(list[1].Payload) != "null" {
		t.Errorf("%+v", list)
	}
}
