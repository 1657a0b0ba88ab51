package timetravel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"promethean/compact"
	"promethean/event"
	"promethean/store"
	"promethean/timetravel"
)

var merge = timetravel.Options{Reduce: timetravel.Merge}

func TestAt(t *testing.T) {
	w := start(t)
	w.publish("a", 100, `{"n":12345678901234567890,"s":"up"}`)
	w.publish("b", 110, `{"b":1}`)
	w.publish("a", 200, `{"s":"down"}`)
	w.publish("a", 150, `{"late":1.50}`) // came late, and stands where it does
	w.publish("a", 300, `null`)
	w.publish("a", 400, `{"again":true}`)
	w.publish("a", 500, `{"_deleted":true}`)

	var o timetravel.Options
	w.is(`null`, when("a", 99), o)
	w.is(`{"n":12345678901234567890,"s":"up"}`, when("a", 100), o)
	w.is(`{"late":1.50}`, when("a", 150), o)
	w.is(`{"late":1.50}`, when("a", 250), o)
	w.is(`null`, when("a", 300), o)
	w.is(`{"again":true}`, when("a", 499), o)
	w.is(`null`, when("a", 500), o)
	w.is(`null`, timetravel.Query{Key: "a"}, o)
	w.is(`{"b":1}`, timetravel.Query{Key: "b"}, o)
	w.is(`null`, timetravel.Query{Key: "nobody"}, o)
	w.is(`null`, timetravel.Query{Key: "a", Topic: "no.such"}, o)

	w.is(`null`, asOf("a", 0), o)
	w.is(`{"s":"down"}`, asOf("a", 3), o)
	w.is(`{"late":1.50}`, asOf("a", 4), o)
	w.is(`null`, asOf("a", 1<<63), o)
	w.is(`{"n":12345678901234567890,"s":"up"}`, timetravel.Query{Key: "a", TS: new(int64(150)), AsOf: new(uint64(3))}, o)

	w.is(`{"n":12345678901234567890,"s":"down","late":1.50}`, when("a", 200), merge)
	w.is(`{"n":12345678901234567890,"s":"up","late":1.50}`, when("a", 199), merge)
	w.is(`{"again":true}`, when("a", 400), merge)
	w.is(`null`, timetravel.Query{Key: "a"}, merge)

	s, err := w.at(when("a", 200), merge)
	if err != nil || s.Events != 3 || s.Seq != 4 || s.TS != 150 || s.Topic != topic || s.Key != "a" {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := w.at(when("a", 250), o); err != nil || s.Events != 3 || s.Seq != 4 || s.TS != 150 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := w.at(when("a", 1), o); err != nil || s.Events != 0 || s.Seq != 0 || s.TS != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestBadQueries(t *testing.T) {
	w := start(t)
	for _, q := range []timetravel.Query{
		{Topic: "No Topic", Key: "a"}, {Topic: topic}, {Topic: topic, Key: string(make([]byte, event.MaxKey+1))}, {Topic: topic, Key: "a", TS: new(int64(-1))},
	} {
		if _, err := timetravel.At(w.ctx, w.hub, q, timetravel.Options{}); !errors.Is(err, event.ErrInvalidArgument) && !errors.Is(err, event.ErrInvalidTopic) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if _, err := w.at(timetravel.Query{Key: "a"}, timetravel.Options{Reduce: "sum"}); !errors.Is(err, event.ErrInvalidArgument) {
		t.Error(err)
	}
	if _, err := timetravel.ParseReducer("sum"); !errors.Is(err, event.ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestAtFunc(t *testing.T) {
	w := start(t)
	w.publish("a", 1, `2`)
	w.publish("a", 2, `3`)
	w.publish("a", 3, `null`)
	w.publish("a", 4, `5`)
	sum := func(prev *int, e event.Event) (*int, error) {
		var n int
		if err := json.Unmarshal(e.Payload, &n); err != nil {
			return nil, err
		}
		if prev != nil {
			n += *prev
		}
		return &n, nil
	}
	at := func(ts int64, o timetravel.Options) string {
		t.Helper()
		n, s, err := timetravel.AtFunc(w.ctx, w.hub, timetravel.Query{Topic: topic, Key: "a", TS: &ts}, o, sum)
		if err != nil {
			return err.Error()
		}
		if text, err := json.Marshal(n); err != nil || string(text) != string(s.State) {
			t.Errorf("%s, %s, %v", text, s.State, err)
		}
		return string(s.State)
	}
	for ts, want := range []string{"null", "2", "5", "null", "5"} {
		if got := at(int64(ts), timetravel.Options{}); got != want {
			t.Errorf("%d: %s, want %s", ts, got, want)
		}
	}
	// What was trimmed is in a snapshot of one's own.
	if err := w.hub.Log().Trim(w.ctx, topic, 2); err != nil {
		t.Fatal(err)
	}
	fetch := timetravel.Options{FetchSnapshot: func(_ context.Context, q timetravel.Query) (*timetravel.Snapshot, error) {
		if *q.TS < 1 {
			return nil, nil
		}
		return &timetravel.Snapshot{State: json.RawMessage(`2`), Seq: 1, TS: 1, MaxTS: 1}, nil
	}}
	if got := at(2, fetch); got != "5" {
		t.Error(got)
	}
	if got := at(2, timetravel.Options{}); got == "5" || got == "3" {
		t.Error(got)
	}
	if got := at(4, timetravel.Options{}); got != "5" { // since the tombstone all is there
		t.Error(got)
	}
	fails := func(*int, event.Event) (*int, error) { return nil, errors.New("no such thing") }
	if _, _, err := timetravel.AtFunc(w.ctx, w.hub, timetravel.Query{Topic: topic, Key: "a"}, timetravel.Options{}, fails); err == nil {
		t.Error("an error of the reducer is swallowed")
	}
}

func TestGoneAfterTrim(t *testing.T) {
	w := start(t)
	w.publish("a", 100, `1`)
	w.publish("b", 110, `1`)
	w.publish("a", 200, `2`)
	w.publish("a", 150, `3`)
	if err := w.hub.Log().Trim(w.ctx, topic, 3); err != nil {
		t.Fatal(err)
	}
	var o timetravel.Options
	w.is(`gone 150`, when("a", 149), o)
	w.is(`3`, when("a", 150), o)
	w.is(`3`, timetravel.Query{Key: "a"}, o)
	w.is(`gone`, timetravel.Query{Key: "b"}, o) // nobody knows
	w.is(`gone seq 3`, asOf("a", 2), o)
	w.is(`2`, asOf("a", 3), o)
	w.is(`gone`, when("a", 150), merge)
	w.publish("a", 160, `null`)
	w.is(`null`, when("a", 160), merge)
	w.is(`gone 160`, when("a", 159), merge)
}

func TestGoneAfterCompaction(t *testing.T) {
	w := start(t)
	w.publish("a", 100, `1`)    // 1
	w.publish("dead", 110, `1`) // 2
	w.publish("a", 200, `2`)    // 3
	w.publish("dead", 210, `null`)
	w.publish("b", 220, `1`) // 5
	w.publish("a", 300, `3`)
	w.compact(store.Compaction{Before: 6, Tombstones: 5}, 100)
	var o timetravel.Options
	w.is(`gone 200`, when("a", 199), o)
	w.is(`2`, when("a", 200), o)
	w.is(`3`, when("a", 300), o)
	w.is(`1`, when("b", 220), o)
	w.is(`gone 220`, when("b", 219), o)
	// The tombstone is gone, and so is what it deleted; the mark says since when.
	w.is(`null`, timetravel.Query{Key: "dead"}, o)
	w.is(`null`, when("dead", 210), o)
	w.is(`gone 210`, when("dead", 209), o)
	w.is(`gone`, asOf("dead", 3), o)
	w.is(`null`, asOf("dead", 4), o)
	// A key that is new was nothing before.
	w.publish("new", 400, `{"x":1}`)
	w.is(`null`, when("new", 399), o)
	w.is(`null`, when("new", 399), merge)
	w.is(`{"x":1}`, when("new", 400), merge)
	w.is(`gone`, when("a", 300), merge)
	// Where it was trimmed too, nobody knows of what is not there.
	if err := w.hub.Log().Trim(w.ctx, topic, 6); err != nil {
		t.Fatal(err)
	}
	w.is(`gone`, timetravel.Query{Key: "dead"}, o)
	w.is(`gone`, timetravel.Query{Key: "b"}, o)
	w.is(`3`, timetravel.Query{Key: "a"}, o)
}

// snapshots writes records of all that is there up to a seq, as the compactor
// does.
func (w *world) snapshots(to string, from, upTo uint64, since uint64) {
	w.Helper()
	last := map[string]compact.Record{}
	high := map[string]int64{}
	for _, e := range w.full {
		if e.Seq > upTo {
			break
		}
		high[e.Key] = max(high[e.Key], e.TS)
		if e.Seq <= from {
			continue
		}
		r := compact.Record{Key: e.Key, Payload: e.Payload, TS: e.TS, Seq: e.Seq, MaxTS: high[e.Key], UpTo: from, Since: since}
		if store.Tombstone(e.Payload) {
			r.Payload, r.Deleted = json.RawMessage("null"), true
		}
		last[e.Key] = r
	}
	var list []compact.Record
	for _, r := range last {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b compact.Record) int { return int(a.Seq) - int(b.Seq) })
	for i, r := range list {
		if i == len(list)-1 {
			r.UpTo = upTo
		}
		text, err := json.Marshal(r)
		if err != nil {
			w.Fatal(err)
		}
		e := event.New(to, text)
		e.Key = r.Key
		if _, err := w.hub.Publish(w.ctx, e); err != nil {
			w.Fatal(err)
		}
	}
}

// What was removed is answered from a snapshot that covers it.
func TestSnapshots(t *testing.T) {
	w := start(t)
	o := timetravel.Options{SnapshotTopic: "process.state.snapshot"}
	w.publish("a", 100, `1`)
	w.publish("b", 120, `1`)
	w.publish("a", 200, `2`)
	w.publish("c", 90, `1`)
	w.snapshots(o.SnapshotTopic, 0, 4, 0)
	w.publish("b", 500, `2`)
	w.publish("b", 510, `3`)
	if err := w.hub.Log().Trim(w.ctx, topic, 5); err != nil {
		t.Fatal(err)
	}
	w.is(`2`, timetravel.Query{Key: "a"}, o)
	w.is(`2`, when("a", 200), o)
	w.is(`gone 200`, when("a", 199), o) // what it was before is in no snapshot
	w.is(`1`, when("b", 120), o)
	w.is(`2`, when("b", 500), o)
	w.is(`1`, asOf("b", 4), o)
	w.is(`gone seq 5`, asOf("b", 1), o)
	w.is(`gone`, timetravel.Query{Key: "nobody"}, o)
	if err := w.hub.Log().Trim(w.ctx, topic, 6); err != nil {
		t.Fatal(err)
	}
	w.is(`gone 510`, when("b", 200), o) // the event at 5 may have counted
	// Snapshots that came after a gap say nothing of keys that are older.
	w.publish("d", 600, `1`)
	w.snapshots(o.SnapshotTopic, 6, 7, 6)
	w.is(`gone`, timetravel.Query{Key: "a"}, o)
	w.is(`1`, timetravel.Query{Key: "d"}, o)
}

// The topic's own snapshots are found by its settings.
func TestSnapshotsBySettings(t *testing.T) {
	w := start(t)
	w.publish("a", 100, `{"x":1}`)
	var s store.Settings
	if err := (compact.Settings{Compaction: true, Snapshot: &compact.Snapshot{}}).Put(&s); err != nil {
		t.Fatal(err)
	}
	if err := w.hub.SetTopic(w.ctx, topic, s); err != nil {
		t.Fatal(err)
	}
	w.snapshots(topic+".snapshot", 0, 1, 0)
	if err := w.hub.Log().Trim(w.ctx, topic, 2); err != nil {
		t.Fatal(err)
	}
	w.is(`{"x":1}`, timetravel.Query{Key: "a"}, timetravel.Options{})
	w.is(`gone`, timetravel.Query{Key: "a"}, merge) // they are no merged states
}

// What goes while it is read is not taken for what never was.
func TestCompactionWhileReading(t *testing.T) {
	for want, o := range map[string]timetravel.Options{"gone 600": {}, "gone": merge} {
		w := start(t)
		w.publish("a", 100, `{"n":1}`)
		w.publish("a", 110, `{"n":2}`)
		w.publish("a", 500, `{"n":3}`)
		began := false
		w.log.Reading.Set(func(q store.Query, seq uint64) {
			if q.Topic != topic || began {
				return
			}
			began = true
			w.publish("a", 600, `{"n":4}`)
			w.compact(store.Compaction{Before: 5, Tombstones: 5}, 100)
		})
		w.is(want, when("a", 120), o)
		if !began {
			t.Error("nothing was read")
		}
	}
	// A key that is alive all the time is never null.
	w := start(t)
	w.publish("a", 100, `1`)
	began := false
	w.log.Reading.Set(func(q store.Query, seq uint64) {
		if q.Topic != topic || began {
			return
		}
		began = true
		w.publish("a", 100, `2`)
		w.compact(store.Compaction{Before: 3, Tombstones: 3}, 100)
	})
	w.is(`2`, timetravel.Query{Key: "a"}, timetravel.Options{})
	// One that is deleted and gone while its events are read is not half there.
	w = start(t)
	w.publish("a", 100, `{"a":1}`)
	w.publish("a", 100, `null`)
	began = false
	w.log.Reading.Set(func(q store.Query, seq uint64) {
		if q.Topic != topic || seq != 2 || began {
			return
		}
		began = true
		w.compact(store.Compaction{Before: 3, Tombstones: 3}, 100)
	})
	w.is(`null`, timetravel.Query{Key: "a"}, merge)
}

// What an answer rests on is looked at again.
func TestCompactionBetweenTwoLooks(t *testing.T) {
	for want, o := range map[string]timetravel.Options{"gone 50": {}, "gone": merge} {
		for _, ahead := range []bool{false, true} {
			w := start(t)
			w.publish("a", 1, `null`)
			w.publish("a", 2, `{"n":2}`)
			w.publish("a", 50, `{"n":3}`)
			w.log.Ahead.Store(ahead)
			began := false
			w.log.Reading.Set(func(q store.Query, seq uint64) {
				if q.Topic == topic && seq == 2 && !began {
					began = true
					w.compact(store.Compaction{Before: 4}, 100)
				}
			})
			w.is(want, when("a", 10), o)
			if !began {
				t.Error("nothing was read")
			}
		}
	}
}

// Every answer is that of a fold of all that was ever published, or there is
// none; and there is one where nothing was removed.
func TestAnswersAreThoseOfTheFullLog(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 60
	}
	answers, none := 0, 0
	for seed := range rounds {
		a, n := play(t, uint64(seed))
		answers, none = answers+a, none+n
	}
	t.Logf("%d answers, %d gone", answers, none)
	if answers < none || none == 0 {
		t.Errorf("%d answers and %d gone: the play is not what it should be", answers, none)
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { play(t, seed) })
}

func play(t *testing.T, seed uint64) (answers, none int) {
	r := rand.New(rand.NewPCG(seed, 7))
	w := start(t)
	snapTopic := "process.state.snapshot"
	keys := []string{"a", "b", "c"}
	mayTrim := r.IntN(2) == 0
	if mayTrim {
		if err := w.hub.SetTopic(w.ctx, topic, store.Settings{Retention: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	removed, covered, since := false, uint64(0), uint64(0)
	clock := int64(1000)
	for range 12 + r.IntN(40) {
		switch n := r.IntN(20); {
		case n < 15:
			clock += int64(r.IntN(10))
			ts := clock
			if r.IntN(3) == 0 {
				ts -= int64(r.IntN(60)) // it comes late
			}
			payload := fmt.Sprintf(`{"k%d":%d}`, r.IntN(3), r.IntN(5))
			switch r.IntN(6) {
			case 0:
				payload = `null`
			case 1:
				payload = fmt.Sprintf(`{"k%d":null}`, r.IntN(3))
			}
			w.publish(keys[r.IntN(len(keys))], ts, payload)
		case n == 15 && mayTrim && len(w.full) > 0:
			before := uint64(1 + r.IntN(len(w.full)+1))
			removed = removed || before > 1
			if before > covered+1 {
				since = max(since, before) // what was never covered is gone
			}
			if err := w.hub.Log().Trim(w.ctx, topic, before); err != nil {
				t.Fatal(err)
			}
		case n <= 17 && len(w.full) > 0:
			before := uint64(1 + r.IntN(len(w.full)+1))
			c := store.Compaction{Before: before, Tombstones: uint64(r.IntN(int(before) + 1))}
			if c.Tombstones > covered+1 {
				c.Tombstones = covered + 1 // the compactor waits for the snapshots
			}
			removed = w.compact(c, r.IntN(8)) > 0 || removed || before > 1
		case n == 18 && len(w.full) > 0:
			upTo := uint64(len(w.full))
			w.snapshots(snapTopic, covered, upTo, since)
			covered = upTo
		}
	}
	for range 60 {
		q := timetravel.Query{Topic: topic, Key: append(keys, "nobody")[r.IntN(4)]}
		if r.IntN(4) > 0 {
			q.TS = new(1000 + int64(r.IntN(int(clock-1000)+20)) - 10)
		}
		if r.IntN(3) == 0 {
			q.AsOf = new(uint64(r.IntN(len(w.full) + 3)))
		}
		for _, o := range []timetravel.Options{{}, merge, {SnapshotTopic: snapTopic}} {
			state, ts, seq := w.fold(q, o.Reduce)
			got, err := w.at(q, o)
			var gone *timetravel.GoneError
			switch {
			case errors.As(err, &gone) && removed:
				none++
				w.honest(q, o, gone)
			case err != nil:
				t.Fatalf("seed %d, %s, %+v: %v", seed, text(q), o, err)
			case string(got.State) != state || state != "null" && (got.TS != ts || got.Seq != seq):
				t.Fatalf("seed %d, %s, %+v: %+v, want %s of %d at %d", seed, text(q), o, got, state, seq, ts)
			default:
				answers++
			}
		}
	}
	return answers, none
}

// honest checks that there is an answer where an error says so.
func (w *world) honest(q timetravel.Query, o timetravel.Options, gone *timetravel.GoneError) {
	w.Helper()
	switch {
	case gone.Known:
		q.TS = &gone.Oldest
	case gone.OldestSeq > 0:
		q.AsOf = &gone.OldestSeq
	default:
		return
	}
	state, _, _ := w.fold(q, o.Reduce)
	if got, err := w.at(q, o); err != nil || string(got.State) != state {
		w.Errorf("%s was said to have an answer: %s, %v", text(q), got.State, err)
	}
}

func TestHistory(t *testing.T) {
	w := start(t)
	w.publish("a", 1, `{"n":1,"s":"x"}`)
	w.publish("b", 2, `{"n":1}`)
	w.publish("a", 3, `{"n":2}`)
	w.publish("a", 2, `null`)
	w.publish("a", 5, `{"n":3}`)
	steps := func(q timetravel.HistoryQuery, o timetravel.Options) (out []string) {
		t.Helper()
		q.Topic, q.Key = topic, "a"
		for s, err := range timetravel.History(w.ctx, w.hub, q, o) {
			if err != nil {
				t.Fatal(err)
			}
			changes, err := json.Marshal(s.Changes)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%d %s %v %s", s.Event.Seq, s.State, s.Known, changes))
		}
		return out
	}
	check := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%q\nwant %q", got, want)
		}
	}
	one := `1 {"n":1,"s":"x"} true [{"op":"replace","path":"","from":null,"to":{"n":1,"s":"x"}}]`
	end := []string{`4 null true [{"op":"replace","path":"","from":{"n":2},"to":null}]`, `5 {"n":3} true [{"op":"replace","path":"","from":null,"to":{"n":3}}]`}
	check(steps(timetravel.HistoryQuery{}, timetravel.Options{}), append([]string{
		one, `3 {"n":2} true [{"op":"replace","path":"/n","from":1,"to":2},{"op":"remove","path":"/s","from":"x"}]`,
	}, end...)...)
	check(steps(timetravel.HistoryQuery{After: 1, Limit: 1}, merge), `3 {"n":2,"s":"x"} true [{"op":"replace","path":"/n","from":1,"to":2}]`)
	check(steps(timetravel.HistoryQuery{After: 4}, merge), end[1])
	// What was before the first that is left is not made up.
	if err := w.hub.Log().Trim(w.ctx, topic, 2); err != nil {
		t.Fatal(err)
	}
	check(steps(timetravel.HistoryQuery{}, timetravel.Options{}), append([]string{`3 {"n":2} false null`}, end...)...)
	check(steps(timetravel.HistoryQuery{}, merge), `3  false null`, `4 null false null`, end[1])
	for _, err := range timetravel.History(w.ctx, w.hub, timetravel.HistoryQuery{Topic: topic}, merge) {
		if !errors.Is(err, event.ErrInvalidArgument) {
			t.Errorf("no key: %v", err)
		}
	}
	for _, err := range timetravel.History(w.ctx, w.hub, timetravel.HistoryQuery{Topic: topic, Key: "a"}, timetravel.Options{Reduce: "sum"}) {
		if !errors.Is(err, event.ErrInvalidArgument) {
			t.Errorf("no reducer: %v", err)
		}
	}
}

func TestDiff(t *testing.T) {
	w := start(t)
	w.publish("a", 1, `{"n":1,"s":"x"}`)
	w.publish("a", 3, `{"n":2,"s":"x"}`)
	got, err := timetravel.Diff(w.ctx, w.hub, timetravel.Query{Topic: topic, Key: "a", TS: new(int64(2))}, timetravel.Query{Topic: topic, Key: "a"}, timetravel.Options{})
	if err != nil || len(got) != 1 || got[0].Path != "/n" || string(got[0].From) != "1" || string(got[0].To) != "2" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := timetravel.Diff(w.ctx, w.hub, timetravel.Query{Topic: topic, Key: "a"}, timetravel.Query{Topic: topic, Key: "a"}, timetravel.Options{}); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
