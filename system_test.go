package promethean_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
)

func TestSystemTopic(t *testing.T) {
	ctx := context.Background()
	h, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "Audit", "a.b", "intents", "leases", "marks", "marks.ms5", "a*"} {
		if _, err := h.SystemTopic(name, 0); !errors.Is(err, event.ErrInvalidTopic) {
			t.Errorf("%q: %v", name, err)
		}
	}
	settings := func(topic string) (s store.Settings, found bool) {
		t.Helper()
		for row, err := range h.Topics(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if row.Name == topic {
				s, found = row.Settings, true
			}
		}
		return s, found
	}

	s, err := h.SystemTopic("audit", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Append(ctx); err != nil {
		t.Fatal(err)
	}
	if _, found := settings("system.audit"); found {
		t.Error("nothing was written and the topic was made")
	}
	if err := s.Append(ctx, json.RawMessage(`{"n":1}`), json.RawMessage(`{"n":2}`)); err != nil {
		t.Fatal(err)
	}
	if got, _ := settings("system.audit"); got.Retention != time.Hour {
		t.Errorf("%+v", got)
	}
	var got []string
	for e, err := range h.Read(ctx, store.Query{Topic: s.Name()}) {
		if err != nil {
			t.Fatal(err)
		}
		if _, given := e.Partition.Get(); !given || e.TS == 0 || e.ID.IsZero() {
			t.Errorf("%+v", e)
		}
		got = append(got, string(e.Payload))
	}
	if len(got) != 2 || got[0] != `{"n":1}` || got[1] != `{"n":2}` {
		t.Errorf("%v", got)
	}
	if err := s.Append(ctx, json.RawMessage(`{"n":3}`), json.RawMessage(`{`)); !errors.Is(err, event.ErrBadJSON) {
		t.Errorf("a bad record: %v", err)
	}

	// Settings that are there stay.
	if err := h.SetTopic(ctx, "system.kept", store.Settings{Retention: time.Minute}); err != nil {
		t.Fatal(err)
	}
	kept, err := h.SystemTopic("kept", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.Append(ctx, json.RawMessage(`1`)); err != nil {
		t.Fatal(err)
	}
	if got, _ := settings("system.kept"); got.Retention != time.Minute {
		t.Errorf("%+v", got)
	}

	// Records with a key come one after the other, whoever writes them.
	first, err := s.AppendKeyed(ctx, "orders", 0, json.RawMessage(`{"n":3}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.AppendKeyed(ctx, "other", 0, json.RawMessage(`1`)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AppendKeyed(ctx, "orders", 0, json.RawMessage(`{"n":4}`)); !errors.Is(err, store.ErrSeqConflict) {
		t.Errorf("a second first record: %v", err)
	}
	if second, err := s.AppendKeyed(ctx, "orders", first, json.RawMessage(`{"n":5}`)); err != nil || second <= first {
		t.Errorf("seq %d after %d: %v", second, first, err)
	}
	if _, err := s.AppendKeyed(ctx, "", 0, json.RawMessage(`1`)); !errors.Is(err, event.ErrInvalidArgument) {
		t.Errorf("no key: %v", err)
	}
	got = nil
	for e, err := range h.Read(ctx, store.Query{Topic: s.Name(), Key: "orders"}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(e.Payload))
	}
	if len(got) != 2 || got[1] != `{"n":5}` {
		t.Errorf("%v", got)
	}

	// The way of everybody stays shut.
	if _, err := h.Publish(ctx, event.New("system.audit", json.RawMessage(`1`))); !errors.Is(err, event.ErrInvalidTopic) {
		t.Errorf("published: %v", err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(ctx, json.RawMessage(`1`)); !errors.Is(err, promethean.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
