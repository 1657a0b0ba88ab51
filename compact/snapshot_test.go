package compact_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"promethean/compact"
	"promethean/event"
	"promethean/store"
	"promethean/timetravel"
)

var snapshots = compact.Settings{Compaction: true, Snapshot: &compact.Snapshot{}}

// Every key that changed has a record, in the order of the log.
func TestSnapshots(t *testing.T) {
	w := start(t, snapshots, compact.Options{})
	w.publish("a", `{"n":12345678901234567890,"s":"<&>"}`, "b", `1`, "c", `1`, "b", `null`)
	w.sweep()
	check := func(want ...string) {
		t.Helper()
		list := w.records()
		if len(list) != len(want) {
			t.Fatalf("%+v, want %d", list, len(want))
		}
		for i, r := range list {
			if got := fmt.Sprintf("%d:%s=%s upto %d", r.Seq, r.Key, r.Payload, r.UpTo); got != want[i] {
				t.Errorf("%s, want %s", got, want[i])
			}
			if r.ID.IsZero() || r.Deleted != (string(r.Payload) == "null") || r.MaxTS < r.TS {
				t.Errorf("%+v", r)
			}
		}
	}
	first := []string{`1:a={"n":12345678901234567890,"s":"<&>"} upto 0`, `3:c=1 upto 0`, `4:b=null upto 4`}
	check(first...)
	if r := w.sweep(); r.Snapshots != 0 {
		t.Errorf("nothing has changed: %+v", r)
	}
	w.restart()
	if r := w.sweep(); r.Snapshots != 0 {
		t.Errorf("nothing has changed: %+v", r)
	}
	w.publish("c", `2`, "c", `3`)
	w.sweep()
	check(append(first, `6:c=3 upto 6`)...)
	set, err := compact.SettingsOf(w.hub.Settings(topic + ".snapshot"))
	if err != nil || !set.Compaction || set.Snapshot != nil {
		t.Errorf("%+v, %v", set, err)
	}
	// It is compacted by itself.
	if _, err := w.c.Compact(w.ctx, topic+".snapshot"); err != nil {
		t.Fatal(err)
	}
	check(first[0], first[2], `6:c=3 upto 6`)
}

// The largest TS of a key outlives the event that had it.
func TestMaxTS(t *testing.T) {
	w := start(t, snapshots, compact.Options{})
	publish := func(key string, ts int64) {
		t.Helper()
		e := event.New(topic, json.RawMessage(`1`))
		e.Key, e.TS = key, ts
		if _, err := w.hub.Publish(w.ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	last := func() compact.Record {
		t.Helper()
		w.sweep()
		list := w.records()
		return list[len(list)-1]
	}
	publish("a", 500)
	publish("b", 900)
	publish("a", 100)
	if r := last(); r.Key != "a" || r.TS != 100 || r.MaxTS != 500 {
		t.Errorf("%+v", r)
	}
	publish("a", 200)
	if r := last(); r.TS != 200 || r.MaxTS != 500 {
		t.Errorf("%+v", r)
	}
	w.restart()
	publish("a", 300)
	publish("c", 50)
	if r := last(); r.Key != "c" || r.MaxTS != 50 {
		t.Errorf("%+v", r)
	}
	if list := w.records(); list[len(list)-2].MaxTS != 500 {
		t.Errorf("%+v", list)
	}
}

// Nothing is removed that no snapshot covers.
func TestCompactionWaitsForSnapshots(t *testing.T) {
	w := start(t, snapshots, compact.Options{})
	w.publish("a", `1`, "a", `2`)
	broken := errors.New("broken")
	w.log.Removing.Set(func(string, uint64) error {
		if len(w.records()) == 0 {
			return broken
		}
		return nil
	})
	w.sweep()
	w.want(`2:a=2`)
}

// A round that was cut short, at whatever place, leaves nothing out and nothing
// twice, in the same process and in the next.
func TestSnapshotCrashes(t *testing.T) {
	for batches := range 5 {
		for _, restart := range []bool{false, true} {
			w := start(t, snapshots, compact.Options{})
			publish := func(n int) {
				for i := range n {
					w.publish(fmt.Sprint("k", i%600), fmt.Sprint(i))
				}
			}
			publish(700) // three batches of records
			w.left.Store(int64(batches))
			_, err := w.c.Compact(w.ctx, topic)
			if short := batches < 3; short != errors.Is(err, errCut) || !short && err != nil {
				t.Fatalf("%d batches: %v", batches, err)
			}
			if got := len(w.records()); got != min(256*batches, 600) {
				t.Errorf("%d batches: %d records", batches, got)
			}
			publish(300) // some keys that have a record, and some that have none
			w.left.Store(-1)
			if restart {
				w.restart()
			}
			w.sweep()
			w.allCovered()
			if c, err := compact.ColdStart(w.ctx, w.hub, topic); err != nil || c.After != 1000 {
				t.Errorf("%+v, %v", c, err)
			}
		}
	}
}

// allCovered checks that the records are those of the last event of every key.
func (w *world) allCovered() {
	w.Helper()
	last, seen := map[string]uint64{}, map[uint64]bool{}
	list := w.records()
	for i, r := range list {
		if seen[r.Seq] {
			w.Errorf("seq %d has two records", r.Seq)
		}
		if seen[r.Seq] = true; r.Seq < last[r.Key] {
			w.Errorf("a record of %s goes back to %d", r.Key, r.Seq)
		}
		last[r.Key] = r.Seq
		if i > 0 && r.UpTo < list[i-1].UpTo {
			w.Errorf("what is covered goes back to %d", r.UpTo)
		}
	}
	for e, err := range w.hub.Read(w.ctx, store.Query{Topic: topic}) {
		if err != nil {
			w.Fatal(err)
		}
		if last[e.Key] < e.Seq {
			w.Errorf("the event %d of %s has no record", e.Seq, e.Key)
		}
	}
}

// Who starts from the snapshots, and goes on with what comes after, has the
// state of every key, whatever is published and compacted meanwhile.
func TestColdStart(t *testing.T) {
	w := start(t, snapshots, compact.Options{})
	if c, err := compact.ColdStart(w.ctx, w.hub, "no.such"); err != nil || c.After != 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	state := map[string]string{} // as it should be
	change := func() {
		key, payload := fmt.Sprint("k", r.IntN(40)), fmt.Sprint(r.IntN(1000))
		if r.IntN(5) == 0 {
			payload = "null"
		}
		w.publish(key, payload)
		if state[key] = payload; payload == "null" {
			delete(state, key)
		}
	}
	for round := range 30 {
		for range r.IntN(60) {
			change()
		}
		if r.IntN(3) > 0 {
			w.sweep()
		}
		c, err := compact.ColdStart(w.ctx, w.hub, topic)
		if err != nil {
			t.Fatal(err)
		}
		got, seqs := map[string]string{}, map[uint64]bool{}
		take := func(e event.Event) {
			if seqs[e.Seq] {
				t.Errorf("round %d: seq %d comes twice", round, e.Seq)
			}
			seqs[e.Seq] = true
			if got[e.Key] = string(e.Payload); store.Tombstone(e.Payload) {
				delete(got, e.Key)
			}
			if e.Topic != topic || e.TS == 0 || e.ID.IsZero() {
				t.Errorf("%+v", e)
			}
		}
		n := 0
		for e, err := range c.All(w.ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if store.Tombstone(e.Payload) {
				t.Errorf("a tombstone: %+v", e)
			}
			take(e)
			if n++; n%10 == 5 { // the world goes on
				change()
				w.sweep()
				if _, err := w.c.Compact(w.ctx, topic+".snapshot"); err != nil {
					t.Fatal(err)
				}
			}
		}
		for e, err := range w.hub.Read(w.ctx, store.Query{Topic: topic, After: c.After}) {
			if err != nil {
				t.Fatal(err)
			}
			take(e)
		}
		if fmt.Sprint(got) != fmt.Sprint(state) {
			t.Fatalf("round %d: %v\nwant %v", round, got, state)
		}
	}
}

// A cold start may leave keys out.
func TestColdStartOfSomeKeys(t *testing.T) {
	w := start(t, snapshots, compact.Options{})
	w.publish("a", `1`, "b", `1`, "c", `1`, "a", `2`, "c", `null`, "d", `1`)
	w.sweep()
	c, err := compact.ColdStart(w.ctx, w.hub, topic)
	if err != nil {
		t.Fatal(err)
	}
	c.Keep = func(key string) bool { return key == "a" || key == "c" }
	var got []string
	for e, err := range c.All(w.ctx) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s=%s", e.Key, e.Payload))
	}
	if fmt.Sprint(got) != "[a=2]" || c.After != 6 {
		t.Errorf("%v, after %d", got, c.After)
	}
}

// The past can be asked for within the history, also of what snapshots alone
// know, and is gone beyond it.
func TestTimeTravel(t *testing.T) {
	w := start(t, compact.Settings{Compaction: true, History: hour, Snapshot: &compact.Snapshot{}}, compact.Options{})
	at := map[int]int64{}
	for i := range 180 {
		w.publish("a", fmt.Sprint(i))
		if i == 0 {
			w.publish("gone", `1`, "gone", `null`)
		}
		at[i] = w.clock.Now().UnixMilli()
		w.sweep()
		w.clock.pass(time.Minute)
	}
	ask := func(key string, ts int64) (string, error) {
		s, err := timetravel.At(w.ctx, w.hub, timetravel.Query{Topic: topic, Key: key, TS: &ts}, timetravel.Options{})
		return string(s.State), err
	}
	for i := 120; i < 180; i++ {
		if got, err := ask("a", at[i]+1); err != nil || got != fmt.Sprint(i) {
			t.Errorf("minute %d: %s, %v", i, got, err)
		}
	}
	var gone *timetravel.GoneError
	if got, err := ask("a", at[60]); !errors.As(err, &gone) || !gone.Known {
		t.Errorf("%s, %v", got, err)
	} else if got, err := ask("a", gone.Oldest); err != nil {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := ask("gone", at[179]); err != nil || got != "null" {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := ask("new", at[179]); err != nil || got != "null" {
		t.Errorf("%s, %v", got, err)
	}
}
