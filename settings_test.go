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

// Who watches settings hears of those that are there, and of each change.
func TestWatchSettings(t *testing.T) {
	in(t, func(t *testing.T, h *promethean.Hub) {
		ctx := context.Background()
		set := func(topic string, s store.Settings) {
			t.Helper()
			if err := h.SetTopic(ctx, topic, s); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := h.Publish(ctx, event.New("a.plain", json.RawMessage(`1`))); err != nil {
			t.Fatal(err)
		}
		set("a.old", store.Settings{Meta: []byte(`{"x":1}`)})
		heard := make(map[string][]string)
		stop := h.WatchSettings(func(topic string, s store.Settings) {
			heard[topic] = append(heard[topic], string(s.Meta))
		})
		set("a.old", store.Settings{Meta: []byte(`{"x":1}`)}) // the same
		set("a.old", store.Settings{Meta: []byte(`{"x":2}`)})
		set("a.plain", store.Settings{Retention: time.Hour})
		stop()
		set("a.old", store.Settings{Meta: []byte(`{"x":3}`)})
		if len(heard) != 2 || len(heard["a.old"]) != 2 || heard["a.old"][0] != `{"x":1}` || heard["a.old"][1] != `{"x":2}` || len(heard["a.plain"]) != 1 {
			t.Errorf("%q", heard)
		}
	})
}

// A record that is appended after a seq is stored only if that is the last one.
func TestSystemTopicAppendAfter(t *testing.T) {
	in(t, func(t *testing.T, h *promethean.Hub) {
		ctx := context.Background()
		s, err := h.SystemTopic("notes", 0)
		if err != nil {
			t.Fatal(err)
		}
		one := json.RawMessage(`1`)
		if err := s.AppendAfter(ctx, 0, one, one); err != nil {
			t.Fatal(err)
		}
		var conflict *store.SeqConflictError
		if err := s.AppendAfter(ctx, 1, one); !errors.As(err, &conflict) || conflict.Actual != 2 {
			t.Errorf("%v", err)
		}
		if err := s.AppendAfter(ctx, 2, one); err != nil {
			t.Error(err)
		}
	})
}

// bare is a bus without conditions.
type bare struct{ promethean.Bus }

func TestPublishIfOfABus(t *testing.T) {
	in(t, func(t *testing.T, h *promethean.Hub) {
		ctx := context.Background()
		e := event.New("a.b", json.RawMessage(`1`))
		expect := []store.Expect{{Topic: "a.b", Seq: 7}}
		if _, err := promethean.PublishIf(ctx, h, expect, e); !errors.Is(err, store.ErrSeqConflict) {
			t.Errorf("%v", err)
		}
		if _, err := promethean.PublishIf(ctx, bare{h}, expect, e); err == nil || errors.Is(err, store.ErrSeqConflict) {
			t.Errorf("%v", err)
		}
		if got, err := promethean.PublishIf(ctx, bare{h}, nil, e); err != nil || got[0].Seq != 1 {
			t.Errorf("%v %v", got, err)
		}
	})
}
