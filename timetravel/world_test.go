package timetravel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"promethean"
	"promethean/compact"
	"promethean/event"
	"promethean/internal/patch"
	"promethean/store"
	"promethean/store/storetest"
	"promethean/timetravel"
)

const topic = "process.state"

// world is a hub on an engine that compacts, and all that was ever published.
type world struct {
	testing.TB
	ctx  context.Context
	log  *storetest.Stepwise
	hub  *promethean.Hub
	full []event.Event
	// mark is the seq of the newest record about the topic.
	mark uint64
	sys  *promethean.SystemTopic
	was  compact.Mark
}

func start(t testing.TB) *world {
	t.Helper()
	log := storetest.NewStepwise(event.Limits{})
	hub, err := promethean.New(log, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	})
	sys, err := hub.SystemTopic("compactions", 0)
	if err != nil {
		t.Fatal(err)
	}
	return &world{TB: t, ctx: context.Background(), log: log, hub: hub, sys: sys, was: compact.Mark{Topic: topic}}
}

func (w *world) publish(key string, ts int64, payload string) uint64 {
	w.Helper()
	e := event.New(topic, json.RawMessage(payload))
	e.Key, e.TS = key, ts
	got, err := w.hub.Publish(w.ctx, e)
	if err != nil {
		w.Fatal(err)
	}
	e.Seq = got[0].Seq
	w.full = append(w.full, e)
	return e.Seq
}

// record stores a mark.
func (w *world) record(m compact.Mark) {
	w.Helper()
	text, err := json.Marshal(m)
	if err == nil {
		w.mark, err = w.sys.AppendKeyed(w.ctx, topic, w.mark, text)
	}
	if err != nil {
		w.Fatal(err)
	}
	w.was = m
}

// compact records and removes, as the compactor does. It stops before the last
// removals if it is to, and says how many there were.
func (w *world) compact(c store.Compaction, stopAfter int) int {
	w.Helper()
	m := w.was
	b, err := w.log.Bounds(w.ctx, topic)
	if err != nil {
		w.Fatal(err)
	}
	m.Trimmed = m.Trimmed || m.TrimmedBy(b.First, w.hub.Settings(topic))
	m.Before, m.Tombstones, m.Done = max(m.Before, c.Before), max(m.Tombstones, c.Tombstones), false
	for _, e := range w.full { // a bound, as it is found before
		if e.Seq < c.Tombstones {
			m.MaxTS = max(m.MaxTS, e.TS)
		}
	}
	w.record(m)
	n := 0
	stop := errors.New("enough")
	w.log.Removing.Set(func(string, uint64) error {
		if n++; n > stopAfter {
			return stop
		}
		return nil
	})
	if _, err := w.log.Compact(w.ctx, topic, c); err != nil && !errors.Is(err, stop) {
		w.Fatal(err)
	}
	if n <= stopAfter {
		if b, err = w.log.Bounds(w.ctx, topic); err != nil {
			w.Fatal(err)
		}
		m.Done, m.First = true, b.First
		w.record(m)
	}
	return n
}

// fold makes the state of all that was ever published.
func (w *world) fold(q timetravel.Query, r timetravel.Reducer) (state string, ts int64, seq uint64) {
	w.Helper()
	state = "null"
	for _, e := range w.full {
		if e.Key != q.Key || q.TS != nil && e.TS > *q.TS || q.AsOf != nil && e.Seq > *q.AsOf {
			continue
		}
		ts, seq = e.TS, e.Seq
		switch {
		case store.Tombstone(e.Payload):
			state = "null"
		case r == timetravel.Merge:
			text, err := patch.Merge([]byte(state), e.Payload)
			if err != nil {
				w.Fatal(err)
			}
			state = string(text)
		default:
			state = string(e.Payload)
		}
	}
	return state, ts, seq
}

func (w *world) at(q timetravel.Query, o timetravel.Options) (timetravel.State, error) {
	if q.Topic == "" {
		q.Topic = topic
	}
	return timetravel.At(w.ctx, w.hub, q, o)
}

// is checks an answer, "gone" for none.
func (w *world) is(want string, q timetravel.Query, o timetravel.Options) {
	w.Helper()
	s, err := w.at(q, o)
	got := string(s.State)
	var gone *timetravel.GoneError
	if errors.As(err, &gone) {
		got = "gone"
		if gone.Known {
			got += fmt.Sprintf(" %d", gone.Oldest)
		}
		if gone.OldestSeq > 0 {
			got += fmt.Sprintf(" seq %d", gone.OldestSeq)
		}
	} else if err != nil {
		w.Fatal(err)
	}
	if got != want {
		w.Errorf("%s: %s, want %s", text(q), got, want)
	}
}

func text(q timetravel.Query) string {
	s := "key " + q.Key
	if q.TS != nil {
		s += fmt.Sprintf(" ts %d", *q.TS)
	}
	if q.AsOf != nil {
		s += fmt.Sprintf(" asOf %d", *q.AsOf)
	}
	return s
}

func when(key string, ts int64) timetravel.Query { return timetravel.Query{Key: key, TS: &ts} }

func asOf(key string, seq uint64) timetravel.Query { return timetravel.Query{Key: key, AsOf: &seq} }
