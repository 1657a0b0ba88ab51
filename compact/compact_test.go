package compact_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/compact"
	"promethean/event"
	"promethean/store"
	"promethean/store/storetest"
)

func TestLatestOfEveryKeyStays(t *testing.T) {
	var reports []compact.Report
	w := start(t, compact.Settings{Compaction: true}, compact.Options{Observe: func(r compact.Report) { reports = append(reports, r) }})
	w.publish("a", `1`, "b", `1`, "a", `2`, "c", `null`, "a", `3`)
	r := w.sweep()
	w.want(`2:b=1 4:c=null 5:a=3`) // the tombstone has a day
	if r.Compacted.Removed != 2 || r.Compacted.Kept != 3 || r.Before != 6 || r.Err != nil || len(reports) != 1 {
		t.Errorf("%+v, %d reports", r, len(reports))
	}
	if r := w.sweep(); r.Before != 0 {
		t.Errorf("nothing has come: %+v", r)
	}
	w.publish("b", `2`)
	w.clock.pass(24 * time.Hour)
	w.sweep()
	w.want(`5:a=3 6:b=2`)
	if m := w.mark(); m.Before != 7 || m.Tombstones != 6 || !m.Done || m.MaxTS != 1_000_000_000 || m.Trimmed {
		t.Errorf("%+v", m)
	}
}

// Superseded events stay as long as the history is, also over restarts.
func TestHistoryWindow(t *testing.T) {
	w := start(t, compact.Settings{Compaction: true, History: hour}, compact.Options{})
	for i := range 120 { // one a minute
		w.publish("a", fmt.Sprint(i))
		w.sweep()
		if i%7 == 0 {
			w.restart()
		}
		w.clock.pass(time.Minute)
		oldest := 0
		for e, err := range w.hub.Read(w.ctx, store.Query{Topic: topic, Limit: 1}) {
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(e.Payload, &oldest); err != nil {
				t.Fatal(err)
			}
		}
		// Event i-k was superseded k-1 minutes ago.
		if oldest > max(i-59, 0) || oldest < i-70 {
			t.Fatalf("minute %d: the oldest is %d", i, oldest)
		}
	}
	if n := len(w.mark().Ticks); n > 60 {
		t.Errorf("%d moments are kept", n)
	}
}

func TestTombstones(t *testing.T) {
	low := uint64(math.MaxUint64)
	w := start(t, compact.Settings{Compaction: true, Tombstones: hour}, compact.Options{Hold: func(string) uint64 { return low }})
	w.publish("a", `1`, "b", `1`, "a", `null`, "b", `{"_deleted":true}`)
	w.sweep()
	w.want(`3:a=null 4:b={"_deleted":true}`)
	w.clock.pass(59 * time.Minute)
	w.publish("c", `1`)
	w.sweep()
	w.want(`3:a=null 4:b={"_deleted":true} 5:c=1`)
	w.clock.pass(time.Minute)
	low = 4 // a view has not seen the last one
	w.sweep()
	w.want(`4:b={"_deleted":true} 5:c=1`)
	low = 6
	w.sweep()
	w.want(`5:c=1`)
}

// What was to be removed is recorded first, and done again after a crash.
func TestCrashes(t *testing.T) {
	crash := errors.New("crash")
	for n := range 5 {
		w := start(t, compact.Settings{Compaction: true, Tombstones: hour}, compact.Options{})
		w.publish("a", `1`, "a", `2`, "b", `1`, "b", `null`, "a", `3`)
		w.clock.pass(time.Hour)
		w.sweep() // sees the end
		w.publish("a", `4`)
		w.clock.pass(time.Hour)
		removed := 0
		w.log.Removing.Set(func(of string, _ uint64) error {
			m := w.mark()
			if of != topic || m.Before != 7 || m.Done {
				t.Errorf("%s: nothing is recorded: %+v", of, m)
			}
			if removed++; removed > n {
				return crash
			}
			return nil
		})
		if _, err := w.c.Compact(w.ctx, topic); (err == nil) != (removed <= n) || err != nil && !errors.Is(err, crash) {
			t.Fatal(err)
		}
		w.log.Removing.Unset()
		w.restart()
		w.sweep()
		w.want(`6:a=4`)
		if m := w.mark(); !m.Done || m.Before != 7 || m.Trimmed {
			t.Errorf("%+v", m)
		}
	}
}

// A compaction that finds nothing to remove is none for those who ask for the
// past.
func TestNothingToRemove(t *testing.T) {
	w := start(t, compact.Settings{Compaction: true}, compact.Options{})
	w.publish("a", `1`, "b", `1`)
	if r := w.sweep(); r.Before != 3 || r.Compacted.Removed != 0 {
		t.Errorf("%+v", r)
	}
	if m := w.mark(); m.Before != 0 || !m.Done {
		t.Errorf("%+v", m)
	}
	if r := w.sweep(); r.Before != 0 {
		t.Errorf("it was looked at: %+v", r)
	}
}

// A topic that is trimmed too says so in its mark.
func TestTrimmed(t *testing.T) {
	w := start(t, compact.Settings{Compaction: true}, compact.Options{})
	w.publish("a", `1`, "b", `1`, "a", `2`)
	w.sweep()
	if w.mark().Trimmed {
		t.Error("it was not")
	}
	if err := w.log.Trim(w.ctx, topic, 3); err != nil {
		t.Fatal(err)
	}
	w.publish("a", `3`)
	w.sweep()
	if !w.mark().Trimmed {
		t.Error("it was")
	}
}

func TestOldMarksGo(t *testing.T) {
	w := start(t, compact.Settings{Compaction: true}, compact.Options{})
	for i := range 600 {
		w.publish("a", fmt.Sprint(i))
		w.sweep()
	}
	b, err := w.log.Bounds(w.ctx, compact.Topic)
	if err != nil || b.Last < 1000 || b.First < 100 {
		t.Errorf("%+v, %v", b, err)
	}
	if m := w.mark(); m.Before != 601 {
		t.Errorf("%+v", m)
	}
}

// Two hubs on one engine do not both work on a topic, and one takes over.
func TestOneOwner(t *testing.T) {
	w := start(t, compact.Settings{Compaction: true, Snapshot: &compact.Snapshot{}}, compact.Options{})
	other, err := promethean.New(noClose{w.log}, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := compact.Start(w.ctx, other, compact.Options{Every: -1, Now: w.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	w.publish("a", `1`, "a", `2`)
	w.sweep()
	if r, err := c.Compact(w.ctx, topic); err != nil || r.Before != 0 || r.Snapshots != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := w.c.Close(); err != nil { // gives it back
		t.Fatal(err)
	}
	w.publish("a", `3`)
	if r, err := c.Compact(w.ctx, topic); err != nil || r.Before != 4 || r.Snapshots != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := errors.Join(c.Close(), other.Close()); err != nil {
		t.Error(err)
	}
	w.want(`3:a=3`)
}

// noClose is an engine that another hub closes.
type noClose struct{ *storetest.Stepwise }

func (noClose) Close() error { return nil }

func TestGuard(t *testing.T) {
	w := start(t, compact.Settings{Compaction: true, Snapshot: &compact.Snapshot{Topic: "other.snapshot"}}, compact.Options{})
	bus := compact.Guard(w.hub, w.c)
	keyed := event.New(topic, json.RawMessage(`1`))
	keyed.Key = "a"
	bare := event.New(topic, json.RawMessage(`1`))
	_, err := bus.Publish(w.ctx, keyed, bare)
	var row *store.EventError
	if !errors.Is(err, event.ErrInvalidArgument) || !errors.As(err, &row) || row.Index != 1 || !strings.Contains(err.Error(), topic) {
		t.Errorf("no key: %v", err)
	}
	w.want(``)
	if _, err := bus.Publish(w.ctx, event.New("other.snapshot", json.RawMessage(`1`))); !errors.Is(err, compact.ErrReserved) {
		t.Errorf("a snapshot: %v", err)
	}
	if _, err := promethean.PublishIf(w.ctx, bus, []store.Expect{{Topic: topic, Seq: 1}}, keyed); !errors.Is(err, store.ErrSeqConflict) {
		t.Errorf("under a condition: %v", err)
	}
	if _, err := promethean.PublishIf(w.ctx, bus, []store.Expect{{Topic: topic}}, keyed); err != nil {
		t.Error(err)
	}
	if _, err := bus.Publish(w.ctx, event.New("else.where", json.RawMessage(`1`))); err != nil {
		t.Error(err)
	}
	w.settings(topic, compact.Settings{})
	if _, err := bus.Publish(w.ctx, bare); err != nil {
		t.Errorf("it is not compacted any more: %v", err)
	}
}

func TestPrepare(t *testing.T) {
	w := start(t, compact.Settings{Compaction: true, Snapshot: &compact.Snapshot{}}, compact.Options{})
	w.publish("a", `1`)
	w.sweep()
	if _, err := w.hub.Publish(w.ctx, event.New("has.events", json.RawMessage(`1`))); err != nil {
		t.Fatal(err)
	}
	to := func(name string) compact.Settings {
		return compact.Settings{Compaction: true, Snapshot: &compact.Snapshot{Topic: name}}
	}
	for _, c := range []struct {
		topic, wrong string
		set          compact.Settings
	}{
		{"a.b", "", compact.Settings{}},
		{"a.b", "", compact.Settings{Compaction: true, History: hour, Tombstones: hour}},
		{"a.b", "", to("")},
		{"a.b", "", to("x.y")},
		{topic, "", to("")},
		{topic, "", to("x.y")},
		{"a.b", "history", compact.Settings{History: hour}},
		{"a.b", "tombstones", compact.Settings{Tombstones: hour}},
		{"a.b", "snapshot", compact.Settings{Snapshot: &compact.Snapshot{}}},
		{"a.b", "snapshot.topic", to("A")},
		{"a.b", "snapshot.topic", to("a.b")},
		{"a.b", "snapshot.topic", to("system.x")},
		{"a.b", "snapshot.topic", to(topic)},               // has snapshots of its own
		{"a.b", "snapshot.topic", to(topic + ".snapshot")}, // is taken
		{"a.b", "snapshot.topic", to("has.events")},
		{"system.x", "compaction", compact.Settings{Compaction: true}},
		{topic + ".snapshot", "compaction", compact.Settings{}},
		{topic + ".snapshot", "snapshot", to("")},
	} {
		was := w.hub.Settings(c.topic)
		now := was
		if err := c.set.Put(&now); err != nil {
			t.Fatal(err)
		}
		err := w.c.Prepare(w.ctx, c.topic, was, now)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong+": ") {
			t.Errorf("%s %+v: %v, want %q", c.topic, c.set, err, c.wrong)
		}
		if err != nil && !errors.Is(err, event.ErrInvalidArgument) && !errors.Is(err, event.ErrInvalidTopic) {
			t.Errorf("%v is of no kind", err)
		}
	}
	was := w.hub.Settings(topic + ".snapshot")
	now := was
	now.Retention = time.Hour
	if err := w.c.Prepare(w.ctx, topic+".snapshot", was, now); !errors.Is(err, event.ErrInvalidArgument) {
		t.Errorf("retention of snapshots: %v", err)
	}
}

// An engine that cannot compact says so.
func TestUnsupported(t *testing.T) {
	hub, err := promethean.New(storetest.Plain{Engine: storetest.NewReference(event.Limits{})}, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := compact.Start(t.Context(), hub, compact.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var now store.Settings
	if err := (compact.Settings{Compaction: true}).Put(&now); err != nil {
		t.Fatal(err)
	}
	if err := c.Prepare(t.Context(), topic, store.Settings{}, now); !errors.Is(err, compact.ErrUnsupported) {
		t.Error(err)
	}
	if _, err := c.Compact(t.Context(), topic); !errors.Is(err, compact.ErrUnsupported) {
		t.Error(err)
	}
	if err := errors.Join(c.Close(), hub.Close()); err != nil {
		t.Error(err)
	}
}

// By itself it works now and then, and soon after settings have changed.
func TestByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := storetest.NewStepwise(event.Limits{})
		hub, err := promethean.New(log, promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		seen := make(chan compact.Report, 100)
		c, err := compact.Start(t.Context(), hub, compact.Options{Observe: func(r compact.Report) { seen <- r }})
		if err != nil {
			t.Fatal(err)
		}
		w := &world{TB: t, ctx: t.Context(), log: log, hub: hub, c: c, clock: &clock{now: time.Now()}}
		w.publish("a", `1`, "a", `2`)
		began := time.Now()
		w.settings(topic, compact.Settings{Compaction: true, Snapshot: &compact.Snapshot{Every: compact.Age(time.Minute)}})
		r := <-seen
		if took := time.Since(began); took > 0 || r.Compacted.Removed != 1 || r.Snapshots != 1 {
			t.Errorf("after %v: %+v", took, r)
		}
		w.publish("a", `3`)
		for r = range seen { // the snapshot topic is one of them
			if r.Topic == topic {
				break
			}
		}
		if took := time.Since(began); took != time.Minute || r.Compacted.Removed != 1 || r.Snapshots != 1 {
			t.Errorf("after %v: %+v", took, r)
		}
		w.want(`3:a=3`)
		w.settings(topic, compact.Settings{})
		w.publish("a", `4`, "a", `5`)
		time.Sleep(time.Hour)
		w.want(`3:a=3 4:a=4 5:a=5`)
		w.settings(topic, compact.Settings{Compaction: true})
		synctest.Wait()
		w.want(`5:a=5`)
		if err := errors.Join(c.Close(), hub.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A large topic is not rewritten for little.
func TestLittleToGain(t *testing.T) {
	w := start(t, compact.Settings{Compaction: true}, compact.Options{})
	big := `"` + strings.Repeat("x", 900<<10) + `"`
	for i := range 80 {
		w.publish(fmt.Sprint("k", i), big)
	}
	w.publish("k0", `1`)
	if r := w.sweep(); r.Compacted.Removed != 1 {
		t.Fatalf("%+v", r)
	}
	sweep := func(want uint64) {
		t.Helper()
		if r := w.c.Look(w.ctx, topic); r.Err != nil || r.Compacted.Removed != want {
			t.Errorf("%+v, want %d removed", r, want)
		}
	}
	w.publish("k1", `1`)
	sweep(0)
	for i := range 40 {
		w.publish(fmt.Sprint("k", i%4), `2`)
	}
	sweep(41)
	w.publish("k1", `1`)
	sweep(0)
	w.clock.pass(time.Hour)
	sweep(1)
}
