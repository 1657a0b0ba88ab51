package group_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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

// world is an engine over a log: one in memory, in virtual time, or one of a
// server.
type world struct {
	t    testing.TB
	kind kind
	fs   *crashfs.FS // of a log in memory
	log  group.Log
	e    *group.Engine
	// server opens the log of a server; then time is real.
	server func() (group.Log, error)
	cut    *atomic.Bool // it is out of reach
}

// kind says what the engine makes of a log in memory.
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
		return storetest.Share(log)
	}
	return log
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, fs: crashfs.New()}
	w.open()
	t.Cleanup(func() { w.close() })
	return w
}

// ownFor is how long a world owns a group without renewing.
func (w *world) ownFor() time.Duration {
	if w.server != nil {
		return 2 * time.Second
	}
	return group.DefaultOwnFor
}

func (w *world) open() {
	w.t.Helper()
	o := group.Options{OwnFor: w.ownFor()}
	if l, ok := w.t.(*lateness); ok {
		o.Logger = slog.New(l.listen())
	}
	if w.server != nil {
		log, err := w.server()
		if err != nil {
			w.t.Fatal(err)
		}
		w.cut = new(atomic.Bool)
		w.log, w.e = log, group.New(cutOff(log, w.cut), o)
		return
	}
	log, err := logstore.Open("data", logstore.Options{FS: w.fs, SegmentSize: 64 << 10, Limits: event.Limits{Payload: 8 << 10}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.log, w.e = log, group.New(w.kind.of(log), o)
}

func (w *world) close() {
	if w.e == nil {
		return
	}
	if err := w.e.Close(context.Background()); err != nil && !errors.Is(err, store.ErrUnavailable) {
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
	w.fail(seed)
	w.open()
}

// fail lets the power fail: of the disk, or of the process that talks to a
// server. Whoever waits for an answer then gets one, or an error.
func (w *world) fail(seed uint64, calls ...*sync.WaitGroup) {
	image := w.fs
	if w.server != nil {
		w.cut.Store(true)
	} else {
		image = w.fs.Image(seed, crashfs.Config{})
	}
	for _, c := range calls {
		c.Wait()
	}
	w.close()
	w.fs = image
}

// settleDown lets everything happen that needs no time.
func (w *world) settleDown() {
	w.t.Helper()
	if w.server == nil {
		synctest.Wait()
		return
	}
	deadline := time.Now().Add(30 * time.Second)
	for !w.e.Quiet() {
		if time.Now().After(deadline) {
			w.t.Fatal("the engine does not come to rest")
		}
		time.Sleep(time.Millisecond)
	}
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
		m.w.settleDown()
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
