package compact_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"promethean"
	"promethean/compact"
	"promethean/event"
	"promethean/store"
	"promethean/timetravel"
)

// On the embedded engine, with publishers, compactions, cold starts and
// questions about the past all at once: nothing is lost, nothing comes twice,
// and no answer is wrong.
func TestEverythingAtOnce(t *testing.T) {
	dir := t.TempDir()
	hub, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := compact.Start(t.Context(), hub, compact.Options{Every: -1})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, ctx: context.Background(), hub: hub, c: c}
	w.settings(topic, snapshots)
	const writers, keys, each = 3, 20, 400
	state := make([]map[string]string, writers)
	var publishing, working sync.WaitGroup
	var stop atomic.Bool
	for i := range writers {
		state[i] = make(map[string]string)
		publishing.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range each {
				key, payload := fmt.Sprintf("w%d.%d", i, r.IntN(keys)), fmt.Sprint(n)
				if r.IntN(10) == 0 {
					payload = "null"
				}
				e := event.New(topic, json.RawMessage(payload))
				e.Key = key
				if _, err := hub.Publish(w.ctx, e); err != nil {
					t.Error(err)
					return
				}
				if state[i][key] = payload; payload == "null" {
					delete(state[i], key)
				}
				// What is known now is what was published last.
				s, err := timetravel.At(w.ctx, hub, timetravel.Query{Topic: topic, Key: key}, timetravel.Options{})
				if err != nil || string(s.State) != payload {
					t.Errorf("%s is %s, not %s: %v", key, s.State, payload, err)
					return
				}
			}
		})
	}
	working.Go(func() {
		for !stop.Load() && !t.Failed() {
			for _, name := range []string{topic, topic + ".snapshot"} {
				if _, err := c.Compact(w.ctx, name); err != nil && !errors.Is(err, event.ErrInvalidArgument) { // not made yet
					t.Error(err)
				}
			}
		}
	})
	working.Go(func() {
		for !stop.Load() && !t.Failed() {
			w.coldStart()
		}
	})
	publishing.Wait()
	stop.Store(true)
	working.Wait()
	want := make(map[string]string)
	for _, m := range state {
		maps.Copy(want, m)
	}
	check := func() {
		t.Helper()
		if got := w.coldStart(); !maps.Equal(got, want) {
			t.Errorf("%v\nwant %v", got, want)
		}
		if b, err := hub.Log().Bounds(w.ctx, topic); err != nil || b.Last != writers*each {
			t.Errorf("%+v, %v", b, err)
		}
	}
	check()
	if _, err := c.Compact(w.ctx, topic); err != nil {
		t.Fatal(err)
	}
	check()
	n := 0
	for _, err := range hub.Read(w.ctx, store.Query{Topic: topic}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n > writers*keys {
		t.Errorf("%d events are left of %d keys", n, writers*keys)
	}
	if err := errors.Join(c.Close(), hub.Close()); err != nil {
		t.Fatal(err)
	}
	if hub, err = promethean.Open(dir, promethean.Options{}); err != nil {
		t.Fatal(err)
	}
	w.hub = hub
	check()
	if err := hub.Close(); err != nil {
		t.Error(err)
	}
}

// coldStart gives the state of every key as one who starts from the snapshots
// finds it.
func (w *world) coldStart() map[string]string {
	w.Helper()
	got, seqs := make(map[string]string), make(map[uint64]bool)
	take := func(e event.Event, err error) {
		if err != nil {
			w.Error(err)
			return
		}
		if seqs[e.Seq] {
			w.Errorf("seq %d comes twice", e.Seq)
		}
		seqs[e.Seq] = true
		if got[e.Key] = string(e.Payload); store.Tombstone(e.Payload) {
			delete(got, e.Key)
		}
	}
	c, err := compact.ColdStart(w.ctx, w.hub, topic)
	if err != nil {
		w.Error(err)
		return nil
	}
	for e, err := range c.All(w.ctx) {
		take(e, err)
	}
	last := c.After
	for e, err := range w.hub.Read(w.ctx, store.Query{Topic: topic, After: c.After}) {
		take(e, err)
		if err == nil && e.Seq <= last {
			w.Errorf("seq %d after %d", e.Seq, last)
		}
		last = e.Seq
	}
	return got
}
