package group_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/internal/crashfs"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/store/storetest"
)

const topic = "orders.placed"

// world is an engine over a log in memory.
type world struct {
	t    testing.TB
	kind kind
	fs   *crashfs.FS
	log  *logstore.Store
	e    *group.Engine
}

// kind says what the engine makes of the log.
type kind int

const (
	whole  kind = iota // all that it can
	weak               // no settlements beside events, one topic a batch, small batches
	shared             // likewise, and others may have it open too
)

// of gives the log as an engine of that kind has it.
func (k kind) of(log *logstore.Store) group.Log {
	switch k {
	case weak:
		return storetest.Plain{Engine: log}
	case shared:
		return sharedLog{storetest.Plain{Engine: log}, log}
	}
	return log
}

// sharedLog is one that other processes may have open.
type sharedLog struct {
	storetest.Plain
	store.Leases
}

func (sharedLog) SharedByProcesses() {}

func newWorld(t testing.TB) *world {
	w := &world{t: t, fs: crashfs.New()}
	w.open()
	t.Cleanup(func() { w.close() })
	return w
}

func (w *world) open() {
	w.t.Helper()
	log, err := logstore.Open("data", logstore.Options{FS: w.fs, SegmentSize: 64 << 10, Limits: event.Limits{Payload: 8 << 10}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.log, w.e = log, group.New(w.kind.of(log), group.Options{})
}

func (w *world) close() {
	if w.e == nil {
		return
	}
	if err := w.e.Close(context.Background()); err != nil {
		w.t.Error(err)
	}
	if err := w.log.Close(); err != nil {
		w.t.Error(err)
	}
	w.e, w.log = nil, nil
}

// crash lets the power fail and opens what is left on the disk, which is all
// that was synced and some of the rest.
func (w *world) crash(seed uint64) {
	image := w.fs.Image(seed, crashfs.Config{})
	w.close()
	w.fs = image
	w.open()
}

// publish appends one event for each key and gives them with their seqs.
func (w *world) publish(keys ...string) []event.Event {
	w.t.Helper()
	var out []event.Event
	for i, k := range keys {
		e := event.New(topic, fmt.Appendf(nil, `{"n":%d}`, i))
		e.Key = k
		got, err := w.log.Append(context.Background(), store.Batch{Events: []event.Event{e}})
		if err != nil {
			w.t.Fatal(err)
		}
		e.Seq = got[0].Seq
		out = append(out, e)
	}
	return out
}

// join makes a member that begins with the first event.
func (w *world) join(name string, set group.Settings, o group.MemberOptions) *member {
	w.t.Helper()
	m := &member{w: w, called: make(chan struct{}, 1)}
	o.Notify = func() {
		select {
		case m.called <- struct{}{}:
		default:
		}
	}
	var err error
	if m.Member, err = w.e.Join(context.Background(), topic, name, set, group.Start{From: group.Earliest}, o); err != nil {
		w.t.Fatal(err)
	}
	return m
}

// member takes what it is told of.
type member struct {
	*group.Member
	w      *world
	called chan struct{}
}

// next waits for an event.
func (m *member) next() group.Delivery {
	m.w.t.Helper()
	for {
		if d := m.Take(1); len(d) > 0 {
			return d[0]
		}
		select {
		case <-m.called:
		case <-time.After(10 * time.Minute):
			m.w.t.Fatal("nothing is delivered")
		}
	}
}

// try takes an event if one can be had without letting time pass.
func (m *member) try() (group.Delivery, bool) {
	for range 2 { // the first may wait for a record
		synctest.Wait()
		if d := m.Take(1); len(d) > 0 {
			return d[0], true
		}
	}
	return group.Delivery{}, false
}

func (m *member) ack(d group.Delivery) {
	m.w.t.Helper()
	m.w.ack("g", d.Event.ID)
}

func (w *world) ack(name string, ids ...event.ID) {
	w.t.Helper()
	sel := make([]group.Selected, len(ids))
	for i, id := range ids {
		sel[i].ID = id
	}
	res, err := w.e.Ack(topic, name, sel, false)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range res {
		if r.Err != nil {
			w.t.Fatalf("ack %s: %v", r.ID, r.Err)
		}
	}
}

func (w *world) nack(name string, id event.ID, n group.Nack) {
	w.t.Helper()
	res, err := w.e.Nack(topic, name, []group.Selected{{ID: id}}, n)
	if err != nil || res[0].Err != nil {
		w.t.Fatal(err, res)
	}
}

func (w *world) info(name string) group.Info {
	w.t.Helper()
	i, err := w.e.Info(context.Background(), topic, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return i
}

func (w *world) letters(name string) (out []group.LetterAt) {
	w.t.Helper()
	if err := w.e.Letters(context.Background(), topic, name, func(l group.LetterAt) bool {
		out = append(out, l)
		return true
	}); err != nil {
		w.t.Fatal(err)
	}
	return out
}

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

func decode(b []byte, v any) error { return json.Unmarshal(b, v) }
