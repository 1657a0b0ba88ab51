package compact_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"promethean"
	"promethean/compact"
	"promethean/event"
	"promethean/store"
	"promethean/store/storetest"
)

const topic = "process.state"

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a hub with a compactor that works when it is told to.
type world struct {
	testing.TB
	ctx   context.Context
	log   *storetest.Stepwise
	hub   *promethean.Hub
	c     *compact.Compactor
	clock *clock
	o     compact.Options
	// left is how many appends of snapshots are taken before they fail;
	// negative: all are.
	left atomic.Int64
}

var errCut = errors.New("cut")

// cut is the engine, whose appends of snapshots fail when the test says so.
type cut struct {
	*storetest.Stepwise
	left *atomic.Int64
}

// Append implements [store.Log].
func (c cut) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if len(b.Events) > 0 && b.Events[0].Topic == topic+".snapshot" && c.left.Load() >= 0 && c.left.Add(-1) < 0 {
		c.left.Store(0)
		return nil, errCut
	}
	return c.Stepwise.Append(ctx, b)
}

// start opens a hub whose topic has these settings.
func start(t testing.TB, set compact.Settings, o compact.Options) *world {
	t.Helper()
	w := &world{TB: t, ctx: context.Background(), log: storetest.NewStepwise(event.Limits{}), clock: &clock{now: time.UnixMilli(1_000_000_000)}, o: o}
	w.left.Store(-1)
	w.o.Every, w.o.Now = -1, w.clock.Now
	w.open()
	w.settings(topic, set)
	t.Cleanup(func() { w.close() })
	return w
}

func (w *world) open() {
	w.Helper()
	var err error
	if w.hub, err = promethean.New(cut{w.log, &w.left}, promethean.Options{}); err != nil {
		w.Fatal(err)
	}
	if w.c, err = compact.Start(w.ctx, w.hub, w.o); err != nil {
		w.Fatal(err)
	}
}

func (w *world) close() {
	w.Helper()
	if err := w.c.Close(); err != nil {
		w.Error(err)
	}
	if err := w.hub.Close(); err != nil {
		w.Error(err)
	}
}

// restart opens the hub again on what is stored.
func (w *world) restart() {
	w.Helper()
	w.close()
	w.log = w.log.Reopen()
	w.open()
}

func (w *world) settings(topic string, set compact.Settings) {
	w.Helper()
	s := w.hub.Settings(topic)
	if err := set.Put(&s); err != nil {
		w.Fatal(err)
	}
	if err := w.hub.SetTopic(w.ctx, topic, s); err != nil {
		w.Fatal(err)
	}
}

// publish stores events given as key and payload.
func (w *world) publish(pairs ...string) {
	w.Helper()
	for i := 0; i < len(pairs); i += 2 {
		e := event.New(topic, json.RawMessage(pairs[i+1]))
		e.Key, e.TS = pairs[i], w.clock.Now().UnixMilli()
		if _, err := w.hub.Publish(w.ctx, e); err != nil {
			w.Fatal(err)
		}
	}
}

// sweep has the compactor work once.
func (w *world) sweep() compact.Report {
	w.Helper()
	r, err := w.c.Compact(w.ctx, topic)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// events lists what is there as seq:key=payload.
func (w *world) events(topic string) string {
	w.Helper()
	var out []string
	for e, err := range w.hub.Read(w.ctx, store.Query{Topic: topic}) {
		if err != nil {
			w.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%d:%s=%s", e.Seq, e.Key, e.Payload))
	}
	return strings.Join(out, " ")
}

func (w *world) want(want string) {
	w.Helper()
	if got := w.events(topic); got != want {
		w.Errorf("%s\nwant %s", got, want)
	}
}

// records gives the snapshots, in order.
func (w *world) records() (list []compact.Record) {
	w.Helper()
	for e, err := range w.hub.Read(w.ctx, store.Query{Topic: topic + ".snapshot"}) {
		if err != nil {
			w.Fatal(err)
		}
		r, err := compact.ParseRecord(&e)
		if err != nil || r.Key != e.Key {
			w.Fatalf("%+v: %v", e, err)
		}
		list = append(list, r)
	}
	return list
}

func (w *world) mark() compact.Mark {
	w.Helper()
	m, err := compact.MarkOf(w.ctx, w.hub.Log(), topic)
	if err != nil {
		w.Fatal(err)
	}
	return m
}

const (
	hour = compact.Age(time.Hour)
	day  = 24 * hour
)
