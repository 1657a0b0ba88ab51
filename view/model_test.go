package view_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"promethean"
	"promethean/event"
	"promethean/internal/crashfs"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/view"
)

// state is what a plain fold of the log comes to for one key.
type state struct {
	fields  map[string]any // nil: deleted
	version *int64
	ts      int64
	seq     uint64
}

func versionOf(e *event.Event) (int64, bool, error) {
	var p struct{ V *int64 }
	if string(e.Payload) == "null" {
		return 0, false, nil
	}
	if err := json.Unmarshal(e.Payload, &p); err != nil || p.V == nil {
		return 0, false, err
	}
	return *p.V, true, nil
}

func bad(e *event.Event) bool {
	var p struct{ Bad bool }
	return json.Unmarshal(e.Payload, &p) == nil && p.Bad
}

func mapGood(e *event.Event) (json.RawMessage, error) {
	if bad(e) {
		return nil, fmt.Errorf("event %d is bad", e.Seq)
	}
	return e.Payload, nil
}

// fold is the plain way: event by event over the whole log.
func fold(events []event.Event, merge, versions bool) map[string]state {
	out := make(map[string]state)
	for i := range events {
		e := &events[i]
		gone := store.Tombstone(e.Payload)
		if e.Key == "" || !gone && bad(e) {
			continue
		}
		was := out[e.Key]
		now := state{ts: e.TS, seq: e.Seq}
		if versions {
			if v, ok, _ := versionOf(e); ok {
				now.version = &v
			}
		}
		if was.version != nil && now.version != nil && *was.version >= *now.version {
			continue
		}
		if gone {
			if now.version == nil {
				now.version = was.version
			}
			out[e.Key] = now
			continue
		}
		var fields map[string]any
		_ = json.Unmarshal(e.Payload, &fields)
		if now.fields = fields; merge {
			now.fields = patched(was.fields, fields).(map[string]any)
		}
		out[e.Key] = now
	}
	return out
}

// patched is RFC 7386 as it is written there.
func patched(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out := make(map[string]any)
	if t, ok := target.(map[string]any); ok {
		for k, v := range t {
			out[k] = v
		}
	}
	for k, v := range p {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = patched(out[k], v)
		}
	}
	return out
}

// randomEvent is one of few keys, late or not, with or without a version.
func randomEvent(r *rand.Rand, n int) event.Event {
	e := event.Event{Topic: topic, TS: 1000 + int64(n) - r.Int64N(20), Key: fmt.Sprint("k", r.IntN(6))}
	version := ""
	if r.IntN(2) == 0 {
		version = fmt.Sprintf(`,"v":%d`, n/2+r.IntN(12))
	}
	switch r.IntN(12) {
	case 0:
		e.Payload = json.RawMessage("null")
	case 1:
		e.Payload = json.RawMessage(`{"_deleted":true` + version + `}`)
	case 2:
		e.Payload = json.RawMessage(`{"bad":true` + version + `}`)
	case 3:
		e.Key, e.Payload = "", json.RawMessage(`{"n":0}`)
	default:
		sub := []string{`null`, `1`, `{"x":null,"y":2}`, `{"x":1}`, `[null,{"a":null}]`}
		e.Payload = fmt.Appendf(nil, `{"n":%d,"f%d":%s,"host":"h%d"%s}`, n, r.IntN(3), sub[r.IntN(len(sub))], r.IntN(3), version)
	}
	return e
}

// modelViews are views whose documents the fold knows.
type modelViews struct {
	t     *testing.T
	hub   *promethean.Hub
	views []*view.View
}

var folds = []struct {
	name            string
	merge, versions bool
}{{"plain", false, false}, {"versions", false, true}, {"merges", true, false}, {"both", true, true}}

func countAll(_ context.Context, e event.Event, tx *view.Tx) error {
	var p struct {
		Host string
		Bad  bool
	}
	if err := json.Unmarshal(e.Payload, &p); err != nil || p.Bad {
		return promethean.Dead(fmt.Errorf("bad: %w", err))
	}
	for _, key := range []string{"all", "host " + p.Host} {
		var s struct{ N int }
		if _, err := tx.Get("counts", key, &s); err != nil {
			return err
		}
		s.N++
		if err := tx.Put("counts", key, s); err != nil {
			return err
		}
	}
	return tx.Put("last", "event", map[string]any{"seq": e.Seq})
}

// startModel opens a store as a disk has it, with all views.
func startModel(t *testing.T, fs *crashfs.FS, batch int) *modelViews {
	t.Helper()
	log, err := logstore.Open("data", logstore.Options{FS: fs, SegmentSize: 64 << 10, Limits: event.Limits{Payload: 4 << 10}})
	if err != nil {
		t.Fatal(err)
	}
	hub, err := promethean.New(log, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := &modelViews{t: t, hub: hub}
	for _, f := range folds {
		o := view.ChangelogOptions{Topic: topic, Collection: f.name, Merge: f.merge, Map: mapGood, BatchSize: batch}
		if f.versions {
			o.VersionOf = versionOf
		}
		m.add(view.Changelog(t.Context(), hub, o))
	}
	m.add(view.Transactional(t.Context(), hub, view.TransactionalOptions{
		Topic: topic, Name: "txn", Handler: countAll, BatchSize: batch, Collections: []store.Collection{{Name: "counts"}, {Name: "last"}},
	}))
	return m
}

func (m *modelViews) add(v *view.View, err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
	m.views = append(m.views, v)
}

func (m *modelViews) close() {
	for _, v := range m.views {
		_ = v.Close() // the disk may be gone
	}
	_ = m.hub.Close()
}

// check compares all views with a fold of the log.
func (m *modelViews) check() {
	m.t.Helper()
	ctx := m.t.Context()
	var events []event.Event
	for e, err := range m.hub.Read(ctx, store.Query{Topic: topic}) {
		if err != nil {
			m.t.Fatal(err)
		}
		events = append(events, e)
	}
	last := uint64(len(events))
	for _, v := range m.views {
		if err := v.Wait(ctx, last); err != nil {
			m.t.Fatal(err)
		}
	}
	for i, f := range folds {
		want := fold(events, f.merge, f.versions)
		c := m.views[i].Source()
		n := 0
		for key, s := range want {
			d, err := c.Get(ctx, key)
			if s.fields == nil {
				if err == nil {
					m.t.Errorf("%s: %s is %s, should be deleted", f.name, key, d.Body)
				}
				continue
			}
			n++
			var got map[string]any
			if err == nil {
				err = json.Unmarshal(d.Body, &got)
			}
			s.fields["_key"], s.fields["_ts"] = key, float64(s.ts)
			if err != nil || d.Seq != s.seq || d.TS != s.ts || !reflect.DeepEqual(got, s.fields) {
				m.t.Errorf("%s: %s at %d\n got %s (%v)\nwant %v at %d", f.name, key, d.Seq, d.Body, err, s.fields, s.seq)
			}
		}
		if s, err := m.views[i].Status(ctx); err != nil || s.Collections[0].Count != int64(n) {
			m.t.Errorf("%s: %d documents, should be %d (%v)", f.name, s.Collections[0].Count, n, err)
		}
	}
	counts := make(map[string]int)
	for i := range events {
		var p struct{ Host string }
		if bad(&events[i]) {
			continue
		}
		_ = json.Unmarshal(events[i].Payload, &p)
		counts["all"]++
		counts["host "+p.Host]++
	}
	for key, want := range counts {
		var s struct{ N int }
		d, err := m.views[len(folds)].Collection("counts").Get(ctx, key)
		if err == nil {
			err = json.Unmarshal(d.Body, &s)
		}
		if err != nil || s.N != want {
			m.t.Errorf("counter %q is %d, should be %d (%v)", key, s.N, want, err)
		}
	}
	if m.t.Failed() {
		m.t.FailNow()
	}
}

// However often power is lost, the views equal a fold of the log, and counters
// are exact; also after a rebuild.
func TestCrashes(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	r := rand.New(rand.NewPCG(7, 8))
	fs := crashfs.New()
	n := 0
	for round := range rounds {
		m := startModel(t, fs, 1+r.IntN(20))
		m.check()
		if round%7 == 3 {
			for _, v := range m.views {
				if err := v.Rebuild(t.Context(), view.RebuildOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			m.check()
		}
		if round%5 == 4 {
			if err := m.views[r.IntN(len(m.views))].StartRebuild(view.RebuildOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for range 1 + r.IntN(60) {
			var list []event.Event
			for range 1 + r.IntN(4) {
				n++
				list = append(list, randomEvent(r, n))
			}
			if _, err := m.hub.Publish(t.Context(), list...); err != nil {
				t.Fatal(err)
			}
		}
		if round%3 == 0 { // documents that are durable, and some that are not
			if err := m.views[0].Wait(t.Context(), uint64(n)/2); err != nil {
				t.Fatal(err)
			}
		}
		image := fs.Image(r.Uint64(), crashfs.Config{})
		m.close()
		fs = image
	}
	m := startModel(t, fs, 10)
	m.check()
	m.close()
}

// A long log of all kinds comes to the same in batches of any size.
func TestModel(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := startModel(t, crashfs.New(), []int{1, 3, 50, 500}[seed%4])
		var list []event.Event
		for n := range 1500 {
			list = append(list, randomEvent(r, n))
			if len(list) > r.IntN(300) {
				if _, err := m.hub.Publish(t.Context(), list...); err != nil {
					t.Fatal(err)
				}
				list = nil
			}
		}
		m.check()
		for _, v := range m.views {
			if err := v.Rebuild(t.Context(), view.RebuildOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		m.check()
		m.close()
	}
}
