package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/client"
	"promethean/event"
	"promethean/gateway"
	"promethean/schema"
)

// The schemas of a topic whose field is renamed.
const (
	beatV1   = `{"type":"object","additionalProperties":false,"required":["pid","mem_mb"],"properties":{"pid":{"type":"integer"},"mem_mb":{"type":"number"},"note":{"type":"string","description":"<a & b>"}}}`
	beatV2   = `{"type":"object","additionalProperties":false,"required":["pid","mem_mib"],"properties":{"pid":{"type":"integer"},"mem_mib":{"type":"number"},"note":{"type":"string"}}}`
	beatV3   = `{"type":"object","required":["v3"]}`
	beatJQ   = `.mem_mib = .mem_mb | del(.mem_mb)`
	beatDoc1 = `{"pid":12345678901234567890,"mem_mb":200}`
	beatDoc2 = `{"pid":2,"mem_mib":200}`
)

// newSchemas is newAPI with a registry.
func newSchemas(t *testing.T) *apiHub {
	t.Helper()
	h, _ := schemasOf(t)
	return h
}

// schemasOf is newSchemas with the hub behind it.
func schemasOf(t *testing.T) (*apiHub, *promethean.Hub) {
	t.Helper()
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := schema.Open(t.Context(), hub, schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := gateway.New(hub, gateway.Options{Schemas: reg})
	server := httptest.NewServer(g)
	t.Cleanup(func() {
		if err := errors.Join(g.Close(context.Background()), reg.Close(), hub.Close()); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return &apiHub{T: t, Client: apiClient(t, server.URL), ctx: t.Context(), url: server.URL}, hub
}

// register adds a version and wants it to be taken.
func (h *apiHub) register(topic string, d client.SchemaDefinition) {
	h.Helper()
	if _, fresh, err := h.RegisterSchema(h.ctx, topic, d); err != nil || !fresh {
		h.Fatalf("register: fresh %t, %v", fresh, err)
	}
}

// beats publishes events of the first two versions: 1, then 1 with a stamp, then
// 2.
func (h *apiHub) beats(topic string) {
	h.Helper()
	put := func(payload, stamp string) {
		e := event.New(topic, json.RawMessage(payload))
		if stamp != "" {
			e.Headers = e.Headers.Set("x-schema-version", stamp)
		}
		if _, err := h.PostBatch(h.ctx, []event.Event{e}); err != nil {
			h.Fatal(err)
		}
	}
	h.register(topic, client.SchemaDefinition{Schema: json.RawMessage(beatV1)})
	put(beatDoc1, "")
	h.register(topic, client.SchemaDefinition{Schema: json.RawMessage(beatV2), Upcast: beatJQ})
	put(beatDoc1, "1")
	put(beatDoc2, "")
}

// wantNormalised wants events of version 2 only.
func wantNormalised(t *testing.T, what string, list []event.Event) {
	t.Helper()
	if len(list) != 3 {
		t.Errorf("%s: %d events", what, len(list))
	}
	for i, e := range list {
		stamp, _ := e.Headers.Get("x-schema-version")
		from, _ := e.Headers.Get("x-upcasted-from")
		if stamp != "2" || from != [3]string{"1", "1", ""}[i] || !strings.Contains(string(e.Payload), `"mem_mib":200`) || strings.Contains(string(e.Payload), "mem_mb") {
			t.Errorf("%s: event %d is stamped %q, upcast from %q: %s", what, i, stamp, from, e.Payload)
		}
	}
}

func TestSchemaCalls(t *testing.T) {
	h := newSchemas(t)
	_, err := h.SchemaVersions(h.ctx, "beat")
	coded(t, err, "not_found")
	v, fresh, err := h.RegisterSchema(h.ctx, "beat", client.SchemaDefinition{Schema: json.RawMessage(beatV1)})
	if err != nil || !fresh || v.Version != 1 || v.Compat != "backward" || v.Topic != "beat" || v.TS == 0 {
		t.Fatalf("%+v, %t, %v", v, fresh, err)
	}
	// The same again, with the signs that HTML escapes, is known.
	if v, fresh, err = h.RegisterSchema(h.ctx, "beat", client.SchemaDefinition{Version: 1, Schema: json.RawMessage(beatV1)}); err != nil || fresh || v.Version != 1 {
		t.Errorf("%+v, %t, %v", v, fresh, err)
	}
	next := client.SchemaDefinition{Schema: json.RawMessage(beatV2), Compat: "full", Upcast: beatJQ}
	problems, err := h.CheckSchema(h.ctx, "beat", client.SchemaDefinition{Schema: json.RawMessage(beatV2)})
	if err != nil || len(problems) == 0 {
		t.Errorf("%+v, %v", problems, err)
	}
	_, _, err = h.RegisterSchema(h.ctx, "beat", client.SchemaDefinition{Schema: json.RawMessage(beatV2)})
	coded(t, err, "schema_conflict")
	var refused *client.Error
	if !errors.As(err, &refused) || len(refused.Problems) != len(problems) || refused.Status != http.StatusConflict || refused.Temporary() {
		t.Errorf("%+v", refused)
	}
	for _, p := range problems {
		if p.Rule == "" || p.Detail == "" {
			t.Errorf("%+v", p)
		}
	}
	next.Compat = "backward"
	if problems, err = h.CheckSchema(h.ctx, "beat", next); err != nil || len(problems) != 0 {
		t.Errorf("%+v, %v", problems, err)
	}
	h.register("beat", next)
	list, err := h.SchemaVersions(h.ctx, "beat")
	if err != nil || len(list) != 2 || list[1].Upcast != beatJQ {
		t.Errorf("%+v, %v", list, err)
	}
	for _, version := range []int{0, 2} {
		if v, err := h.Schema(h.ctx, "beat", version); err != nil || v.Version != 2 || string(v.Schema) != beatV2 {
			t.Errorf("%+v, %v", v, err)
		}
	}
	_, err = h.Schema(h.ctx, "beat", 7)
	coded(t, err, "not_found")
	infos, err := h.Schemas(h.ctx)
	if err != nil || len(infos) != 1 || infos[0].Topic != "beat" || infos[0].Latest != 2 || !slices.Equal(infos[0].Versions, []int{1, 2}) {
		t.Errorf("%+v, %v", infos, err)
	}
	valid, err := h.ValidatePayload(h.ctx, "beat", json.RawMessage(beatDoc1), 1)
	if err != nil || !valid.Valid || valid.Version != 1 || len(valid.Errors) != 0 {
		t.Errorf("%+v, %v", valid, err)
	}
	// A payload that looks like the body of the call.
	valid, err = h.ValidatePayload(h.ctx, "beat", json.RawMessage(`{"payload":`+beatDoc2+`}`), 0)
	if err != nil || valid.Valid || valid.Version != 2 || len(valid.Errors) == 0 || valid.Errors[0].Message == "" {
		t.Errorf("%+v, %v", valid, err)
	}
	_, err = h.PostBatch(h.ctx, []event.Event{event.New("beat", json.RawMessage(`{"pid":"x"}`))})
	coded(t, err, "schema_invalid")
	if !errors.As(err, &refused) || len(refused.Errors) < 2 || refused.Index == nil {
		t.Errorf("%+v", refused)
	}
	_, err = h.Publish(h.ctx, "beat", map[string]any{"pid": "x"}) // over the WebSocket
	coded(t, err, "schema_invalid")
	if err := h.Close(h.ctx); err != nil {
		t.Error(err)
	}
	if !errors.As(err, &refused) || refused.Status != 0 || len(refused.Errors) < 2 || refused.Errors[0].Message == "" {
		t.Errorf("%+v", refused)
	}
}

func TestNormalisedReads(t *testing.T) {
	h := newSchemas(t)
	h.beats("beat")
	collect := func(what string, f func(add func(event.Event, error) bool)) {
		var list []event.Event
		f(func(e event.Event, err error) bool {
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			list = append(list, e)
			return len(list) < 3 || what != "tail"
		})
		wantNormalised(t, what, list)
	}
	earliest := client.Place{From: client.Earliest}
	collect("read", h.Read(h.ctx, "beat", earliest, client.ReadOptions{Normalise: true, Page: 2}))
	collect("export", h.Export(h.ctx, "beat", client.ExportOptions{Normalise: true}))
	collect("tail", h.Tail(h.ctx, "beat", client.TailOptions{From: earliest, Normalise: true}))
	pulled, err := h.Pull(h.ctx, client.PullRequest{Topic: "beat", Group: "p", From: earliest, Wait: 10 * time.Second, Normalise: true})
	if err != nil {
		t.Fatal(err)
	}
	var taken []event.Event
	for _, p := range pulled {
		taken = append(taken, p.Event)
	}
	wantNormalised(t, "pull", taken)
	// As it was stored without the option.
	if got := payloads(t, h.Read(h.ctx, "beat", earliest, client.ReadOptions{})); got != beatDoc1+" "+beatDoc1+" "+beatDoc2 {
		t.Errorf("stored is %s", got)
	}
}

func TestNormalisedSubscription(t *testing.T) {
	h := newSchemas(t)
	h.beats("beat")
	c := connect(t, strings.TrimPrefix(h.url, "http://"), client.Options{})
	ctx := limit(t)
	r := new(recorder)
	if _, err := c.Subscribe(ctx, "beat", "g", r.handle, client.FromEarliest(), client.Ordered(client.ByTopic), client.Normalise()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "three events come", func() bool { return r.count() == 3 })
	r.mu.Lock()
	wantNormalised(t, "subscription", r.got)
	r.mu.Unlock()
	// What cannot be brought up to the latest version is a dead letter.
	h.register("beat", client.SchemaDefinition{Schema: json.RawMessage(beatV3), Compat: "none"})
	late := new(recorder)
	if _, err := c.Subscribe(ctx, "beat", "late", late.handle, client.FromEarliest(), client.Normalise()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dead letters are there", func() bool {
		counts, err := h.LetterCounts(ctx)
		return err == nil && len(counts) == 1 && counts[0] == client.LetterCount{Topic: "beat", Group: "late", Count: 3}
	})
	if late.count() != 0 {
		t.Errorf("%d events came half done", late.count())
	}
}

// A stream that cannot go on says so, and names the event, also where much of
// the answer was sent before.
func TestNormalisedStreamsEndWithAnError(t *testing.T) {
	h := newSchemas(t)
	h.register("beat", client.SchemaDefinition{Schema: json.RawMessage(`{"type":"object","required":["fill"]}`)})
	const good = 200
	var events []event.Event
	for range good {
		events = append(events, event.New("beat", json.RawMessage(`{"fill":"`+strings.Repeat("x", 1000)+`"}`)))
	}
	post := func(events ...event.Event) {
		for i := range events {
			events[i].Headers = events[i].Headers.Set("x-schema-version", "1")
		}
		if _, err := h.PostBatch(h.ctx, events); err != nil {
			t.Fatal(err)
		}
	}
	post(events...)
	h.register("beat", client.SchemaDefinition{
		Schema: json.RawMessage(`{"type":"object","required":["fill","n"],"properties":{"n":{"type":"integer"}}}`),
		Upcast: `if .fill == "nobody would think of it" then error("no way") else .n = 1 end`,
	})
	// The trial of the upcaster has not met such a one.
	post(event.New("beat", json.RawMessage(`{"fill":"nobody would think of it"}`)), event.New("beat", json.RawMessage(`{"fill":"after"}`)))
	earliest := client.Place{From: client.Earliest}
	for what, events := range map[string]func(yield func(event.Event, error) bool){
		"read":   h.Read(h.ctx, "beat", earliest, client.ReadOptions{Normalise: true}),
		"export": h.Export(h.ctx, "beat", client.ExportOptions{Normalise: true}),
		"tail":   h.Tail(h.ctx, "beat", client.TailOptions{From: earliest, Normalise: true}),
	} {
		n := 0
		var failed error
		for e, err := range events {
			if failed != nil {
				t.Fatalf("%s goes on after %v", what, failed)
			}
			if failed = err; err == nil {
				if n++; e.Seq != uint64(n) || !strings.Contains(string(e.Payload), `"n":1`) {
					t.Fatalf("%s: event %d has seq %d: %s", what, n, e.Seq, e.Payload)
				}
			}
		}
		coded(t, failed, "schema_invalid")
		var refused *client.Error
		if n != good || !errors.As(failed, &refused) || refused.Seq != good+1 || !strings.Contains(failed.Error(), fmt.Sprintf("seq %d", good+1)) {
			t.Errorf("%s: %d events, then %+v", what, n, failed)
		}
	}
}

func TestCutover(t *testing.T) {
	h := newSchemas(t)
	h.beats("beat")
	told := 0
	got, err := h.Cutover(h.ctx, "beat", "beat.v2", func(client.Cutover) { told++ })
	want := client.Cutover{Topic: "beat", To: "beat.v2", Seq: 3, Tail: 3, Read: 3, Copied: 3, Verified: 3, Done: true}
	if err != nil || got != want || told < 2 {
		t.Errorf("%+v, %v, told %d times", got, err, told)
	}
	var list []event.Event
	for e, err := range h.Read(h.ctx, "beat.v2", client.Place{}, client.ReadOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	wantNormalised(t, "cutover", list)
	if got, err = h.Cutover(h.ctx, "beat", "beat.v2", nil); err != nil || got.Copied != 0 || got.Verified != 3 || !got.Done {
		t.Errorf("again: %+v, %v", got, err)
	}
	_, err = h.Cutover(h.ctx, "beat", "beat.v1", nil)
	coded(t, err, "invalid_argument")
	// Dual write goes on from there, and the settings tell.
	topic, err := h.SetTopic(h.ctx, "beat", map[string]any{"dual_write": true, "legacy_version": 1})
	if err != nil || topic.Settings.DualWriteTo != "beat.v2" || topic.Settings.DualWrite != (client.Window{On: true}) || topic.Settings.LegacyVersion != 1 {
		t.Errorf("%+v, %v", topic, err)
	}
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	topic, err = h.SetTopic(h.ctx, "beat", map[string]any{"dual_write": until})
	if err != nil || !topic.Settings.DualWrite.Until.Equal(until) {
		t.Errorf("%+v, %v", topic, err)
	}
	// An event that has no way up ends it, and is named.
	h.register("beat", client.SchemaDefinition{Schema: json.RawMessage(beatV3), Compat: "none"})
	_, err = h.Cutover(h.ctx, "beat", "beat.v3", nil)
	coded(t, err, "schema_invalid")
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Seq != 1 {
		t.Errorf("%+v", refused)
	}
}

// A cutover whose copies were removed again says so, and is not worth another
// try.
func TestCutoverMissesWhatWasRemoved(t *testing.T) {
	h, hub := schemasOf(t)
	h.beats("beat")
	if _, err := h.Cutover(h.ctx, "beat", "beat.v2", nil); err != nil {
		t.Fatal(err)
	}
	if err := hub.Log().Trim(h.ctx, "beat.v2", 3); err != nil {
		t.Fatal(err)
	}
	_, err := h.Cutover(h.ctx, "beat", "beat.v2", nil)
	coded(t, err, "not_found")
	if client.Temporary(err) || !strings.Contains(err.Error(), "1 events are in beat.v2 and 2 are missing, the first is seq 1 of beat") {
		t.Errorf("%v", err)
	}
}

// What is cut off is no end, and may be tried again.
func TestStreamsThatAreCutOff(t *testing.T) {
	const line = `{"topic":"a","to":"a.v1","seq":1,"tail":2,"read":1,"copied":1,"duplicates":0,"verified":0,"done":false}` + "\n"
	for _, c := range []struct {
		body, want string
		temporary  bool
	}{
		{line, "unexpected EOF", true},
		{line + `{"error":{"code":"unavailable","status":503,"detail":"later"}}` + "\n", "unavailable: later", true},
		{line + `{"error":{"code":"schema_invalid","status":422,"detail":"seq 2: no","seq":2}}` + "\n", "schema_invalid: seq 2: no", false},
		{line + `{"error":5}` + "\n", "client: a stream ends with an error that cannot be read", false},
		{line + `<html>` + "\n", "client: cutover: the answer is not that of a hub", false},
	} {
		cl := fake(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-ndjson")
			_, _ = io.WriteString(w, c.body)
		})
		got, err := cl.Cutover(t.Context(), "a", "a.v1", nil)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || client.Temporary(err) != c.temporary || got.Seq != 1 || got.Done {
			t.Errorf("%s: %+v, %v, temporary %t", c.body, got, err, client.Temporary(err))
		}
	}
}
