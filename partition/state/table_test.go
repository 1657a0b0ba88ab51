package state_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/compact"
	"promethean/deadletter"
	"promethean/event"
	"promethean/group"
	"promethean/partition/state"
	"promethean/store"
	"promethean/store/storetest"
)

func TestCounts(t *testing.T) {
	hub := open(t)
	tab := table[int](t, hub, state.Options{}, 0)
	a, b := publish(t, hub, "a", 1), publish(t, hub, "b", 1)
	ok(t, tab.Update(t.Context(), a, nil, add(2)))
	ok(t, tab.Update(t.Context(), b, nil, add(3)))
	ok(t, tab.Update(t.Context(), a, nil, add(2))) // once more
	ok(t, tab.Update(t.Context(), publish(t, hub, "a", 1), nil, add(5)))
	want(t, tab, "a", 7)
	want(t, tab, "b", 3)
	want(t, tab, "c", -1)
	if tab.Len() != 2 || !slices.Equal(tab.Partitions(), []int{0}) || tab.Changelog() != "sums.changelog" {
		t.Errorf("%d keys in %v of %s", tab.Len(), tab.Partitions(), tab.Changelog())
	}
	if got := fmt.Sprint(records(t, hub, "sums.changelog")); got != "[1:a=2<1 2:b=3<2 3:a=7<3]" {
		t.Error(got)
	}
	set, err := compact.SettingsOf(hub.Settings("sums.changelog"))
	if err != nil || !set.Compaction || set.Snapshot == nil || time.Duration(set.Tombstones) < 50*365*24*time.Hour {
		t.Errorf("%+v, %v", set, err)
	}
	for e, err := range hub.Read(t.Context(), store.Query{Topic: "sums.changelog", Limit: 1}) {
		if err != nil || !slices.Equal(e.CausedBy, []string{a.ID.String()}) {
			t.Errorf("%+v, %v", e, err)
		}
	}
	// Another one has it all.
	again := table[int](t, hub, state.Options{Source: source}, 0)
	want(t, again, "a", 7)
	ok(t, again.Update(t.Context(), b, nil, add(3)))
	want(t, again, "b", 3)
	sum := 0
	for x, err := range again.Range(0) {
		if err != nil || x.Key == "a" && x.Source != 3 {
			t.Errorf("%+v, %v", x, err)
		}
		sum += x.Value
	}
	if sum != 10 {
		t.Errorf("sum %d", sum)
	}
}

// A worker that does not know that it has lost its partition neither counts
// twice nor loses anything.
func TestStaleOwner(t *testing.T) {
	hub := open(t)
	old, now := table[int](t, hub, state.Options{}, 0), table[int](t, hub, state.Options{}, 0)
	first := publish(t, hub, "a", 1)
	ok(t, old.Update(t.Context(), first, nil, add(1)))
	ok(t, now.Update(t.Context(), first, nil, add(1)))
	second := publish(t, hub, "a", 1)
	ok(t, now.Update(t.Context(), second, nil, add(1)))
	want(t, old, "a", 1) // it does not know
	calls := 0
	ok(t, old.Update(t.Context(), second, nil, func(v int, _ bool) (int, error) { calls++; return v + 1, nil }))
	want(t, old, "a", 2)
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
	// The stale one is quicker for once.
	third := publish(t, hub, "a", 1)
	ok(t, old.Update(t.Context(), third, nil, add(1)))
	ok(t, now.Update(t.Context(), third, nil, add(1)))
	want(t, now, "a", 3)
	// It applies to the newest value even if the stale one has another.
	ok(t, now.Update(t.Context(), publish(t, hub, "a", 1), nil, add(10)))
	ok(t, old.Update(t.Context(), publish(t, hub, "a", 1), nil, add(10)))
	want(t, old, "a", 23)
}

func TestDeleteAndKeep(t *testing.T) {
	hub := open(t)
	tab := table[int](t, hub, state.Options{}, 0)
	first := publish(t, hub, "a", 1)
	ok(t, tab.Update(t.Context(), first, nil, add(1)))
	ok(t, tab.Update(t.Context(), publish(t, hub, "a", 1), nil, func(int, bool) (int, error) { return 0, state.Keep }))
	want(t, tab, "a", 1)
	gone := publish(t, hub, "a", 1)
	ok(t, tab.Update(t.Context(), gone, nil, func(v int, found bool) (int, error) {
		if v != 1 || !found {
			t.Errorf("%d, %t", v, found)
		}
		return 0, fmt.Errorf("it is over: %w", state.Delete)
	}))
	want(t, tab, "a", -1)
	if tab.Len() != 0 {
		t.Errorf("%d keys", tab.Len())
	}
	for _, tab := range []*state.Table[string, int]{tab, table[int](t, hub, state.Options{}, 0)} {
		// What was before the delete does not bring the key back, not even as an
		// error of somebody who misses it.
		for _, e := range []event.Event{first, gone} {
			ok(t, tab.Update(t.Context(), e, nil, add(1)))
			ok(t, tab.Update(t.Context(), e, nil, func(v int, found bool) (int, error) {
				return v, errors.New("no such key")
			}))
		}
		want(t, tab, "a", -1)
	}
	ok(t, tab.Update(t.Context(), publish(t, hub, "a", 1), nil, add(7)))
	want(t, tab, "a", 7)
	if got := fmt.Sprint(records(t, hub, "sums.changelog")); got != "[1:a=1<1 2:a=null<3 3:a=7<4]" {
		t.Error(got)
	}
	// A value that is a tombstone is one.
	pointers := table[*int](t, hub, state.Options{}, 0)
	ok(t, pointers.Update(t.Context(), publish(t, hub, "a", 1), nil, func(*int, bool) (*int, error) { return nil, nil }))
	if pointers.Len() != 0 {
		t.Error("the nil is kept")
	}
}

// What a function is given is its own: a change that does not come about leaves
// nothing behind.
func TestValuesAreOwn(t *testing.T) {
	hub := open(t)
	tab := table[map[string]int](t, hub, state.Options{}, 0)
	count := func(v map[string]int, found bool) (map[string]int, error) {
		if !found {
			v = make(map[string]int)
		}
		v["n"]++
		return v, nil
	}
	ok(t, tab.Update(t.Context(), publish(t, hub, "a", 1), nil, count))
	next := publish(t, hub, "a", 1)
	err := tab.Update(t.Context(), next, nil, func(v map[string]int, found bool) (map[string]int, error) {
		if v, err := count(v, found); err != nil || v["n"] != 2 {
			t.Error(v, err)
		}
		return nil, errors.New("no")
	})
	is(t, err, err, `table sums, key "a", partition 0: no`)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tab.Update(ended, next, nil, count); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	got, _, err := tab.Get("a")
	ok(t, err)
	got["n"] = 99
	ok(t, tab.Update(t.Context(), next, nil, count))
	if got, _, err = tab.Get("a"); err != nil || got["n"] != 2 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestPartitions(t *testing.T) {
	hub := open(t)
	divide(t, hub, 4)
	tab := table[int](t, hub, state.Options{Source: source}, 1, 3)
	elsewhere := 0
	for i := range 40 {
		key := fmt.Sprint("k", i)
		e := publish(t, hub, key, 1)
		err := tab.Update(t.Context(), e, nil, add(i))
		if n, _ := e.Partition.Get(); n == 1 || n == 3 {
			ok(t, err)
			want(t, tab, key, i)
			continue
		}
		elsewhere++
		n, _ := e.Partition.Get()
		is(t, err, state.ErrNotAssigned, fmt.Sprintf("table sums, key %q, partition %d: the partition is not assigned to this table", key, n))
		if _, _, err := tab.Get(key); !errors.Is(err, state.ErrNotAssigned) {
			t.Error(err)
		}
	}
	if elsewhere == 0 || tab.Len() != 40-elsewhere {
		t.Errorf("%d keys, %d elsewhere", tab.Len(), elsewhere)
	}
	ok(t, tab.Revoked(t.Context(), 3))
	ok(t, tab.Revoked(t.Context(), 0))
	for _, err := range tab.Range(3) {
		is(t, err, state.ErrNotAssigned, "table sums, partition 3: the partition is not assigned to this table")
	}
	for x, err := range tab.Range(1) {
		if err != nil || event.PartitionFor(x.Key, event.ID{}, 4) != 1 {
			t.Error(x, err)
		}
	}
	if !slices.Equal(tab.Partitions(), []int{1}) {
		t.Errorf("%v", tab.Partitions())
	}
	is(t, tab.Assigned(t.Context(), 4), event.ErrInvalidArgument, "table sums, partition 4: restore: invalid argument: there are 4 partitions")
	is(t, tab.Assigned(t.Context(), -1), event.ErrInvalidArgument, "table sums, partition -1: restore: invalid argument: there are 4 partitions")
}

// After a change of their number, partitions have the keys that belong to them
// now, whatever the partitions are that their records were stored in.
func TestAnotherNumberOfPartitions(t *testing.T) {
	hub := open(t)
	const keys = 60
	sum := func(tab *state.Table[string, int], count int) {
		t.Helper()
		found := 0
		for n := range count {
			ok(t, tab.Assigned(t.Context(), n))
			for x, err := range tab.Range(n) {
				if err != nil || event.PartitionFor(x.Key, event.ID{}, count) != n {
					t.Error(n, x, err)
				}
				found += x.Value
			}
		}
		for i := range keys {
			ok(t, tab.Update(t.Context(), publish(t, hub, fmt.Sprint("k", i), 1), nil, add(1)))
		}
		if tab.Len() != keys {
			t.Errorf("%d keys", tab.Len())
		}
		if hub.Settings("sums.changelog").Partitions != count {
			t.Errorf("the changelog has %d partitions", hub.Settings("sums.changelog").Partitions)
		}
	}
	for round, count := range []int{4, 7, 2, 1, 8} {
		divide(t, hub, count)
		tab := table[int](t, hub, state.Options{Source: source})
		sum(tab, count)
		for i := range keys {
			want(t, tab, fmt.Sprint("k", i), round+1)
		}
	}
}

// A table may have a number of partitions, and keys, of its own.
func TestOwnKeys(t *testing.T) {
	hub := open(t)
	o := state.Options{Partitions: 3, KeyOf: func(e *event.Event) string { return strings.Trim(string(e.Payload), `"`) }}
	tab := table[int](t, hub, o, 0, 1, 2)
	for range 3 {
		for _, key := range []string{"x", "y", "z"} {
			ok(t, tab.Update(t.Context(), publish(t, hub, "whatever", key), nil, add(1)))
		}
	}
	again := table[int](t, hub, o, event.PartitionFor("y", event.ID{}, 3))
	want(t, again, "y", 3)
	// Without a key of the table's the event's own counts, as it does for order.
	ok(t, tab.Update(t.Context(), publish(t, hub, "whatever", ""), nil, add(1)))
	want(t, tab, "whatever", 1)
}

// A publisher may choose a partition by hand.
func TestChosenPartition(t *testing.T) {
	hub := open(t)
	divide(t, hub, 4)
	at := event.PartitionFor("a", event.ID{}, 4)
	other := (at + 1) % 4
	tab := table[int](t, hub, state.Options{Source: source}, other)
	for range 3 {
		e := publish(t, hub, "a", 1)
		e.Partition = event.PartitionOf(other)
		for range 2 {
			ok(t, tab.Update(t.Context(), e, nil, add(1)))
		}
	}
	if tab.Len() != 0 {
		t.Error("a key is where it does not belong")
	}
	ok(t, tab.Assigned(t.Context(), at))
	want(t, tab, "a", 3)
}

func TestRefused(t *testing.T) {
	hub := open(t)
	for _, c := range []struct {
		name string
		o    state.Options
		want string
	}{
		{"Sums", state.Options{}, `changelog: topic: `},
		{"", state.Options{}, `changelog: topic: `},
		{strings.Repeat("a", 190), state.Options{}, `changelog: topic: `},
		{"system", state.Options{}, `changelog: system.changelog is the hub's own topic`},
		{"a", state.Options{Source: "x", Changelog: "x"}, `changelog: x is the source`},
		{"a", state.Options{Source: "X"}, `source: topic: `},
		{"a", state.Options{Partitions: -1}, `partitions -1 is not within 1 to 65536`},
		{"a", state.Options{Partitions: 1_000_000}, `partitions 1000000 is not within 1 to 65536`},
		{"a", state.Options{KeyOf: func(*event.Event) string { return "" }}, `KeyOf is for a group with a number of partitions of its own`},
		{"a", state.Options{Group: "g"}, `group g is given without the source`},
		{"a", state.Options{Tombstones: -1}, `tombstones -1ns is negative`},
	} {
		_, err := state.New[string, int](hub, c.name, c.o)
		if err == nil || !strings.HasPrefix(err.Error(), "table "+c.name+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, %+v: %v; want %s", c.name, c.o, err, c.want)
		}
	}
	tab := table[string](t, hub, state.Options{})
	e := publish(t, hub, "a", 1)
	set := func(v string) func(string, bool) (string, error) {
		return func(string, bool) (string, error) { return v, nil }
	}
	is(t, tab.Update(t.Context(), e, nil, set("x")), state.ErrNotAssigned, `table sums, key "a": the partition is not assigned to this table`)
	_, _, err := tab.Get("a")
	is(t, err, state.ErrNotAssigned, `table sums, key "a": the partition is not assigned to this table`)
	ok(t, tab.Assigned(t.Context(), 0))
	unpublished, other := e, e
	unpublished.Seq, other.Topic = 0, "other"
	for _, c := range []struct {
		e     event.Event
		value string
		want  string
	}{
		{publish(t, hub, "", 1), "x", "it has no key"},
		{unpublished, "x", "it has no seq"},
		{other, "x", "it is of topic other, and the table of " + source},
		{e, strings.Repeat("x", 2<<20), "payload"},
	} {
		if err := tab.Update(t.Context(), c.e, nil, set(c.value)); !promethean.IsDead(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v; want %s", err, c.want)
		}
	}
	funcs := table[func()](t, hub, state.Options{}, 0)
	if err := funcs.Update(t.Context(), e, nil, func(func(), bool) (func(), error) { return func() {}, nil }); !promethean.IsDead(err) {
		t.Error(err)
	}
	if got := records(t, hub, "sums.changelog"); len(got) != 0 {
		t.Error(got)
	}
}

// A record that somebody else has written, or that is of another type, is an
// error of its key alone.
func TestForeignRecords(t *testing.T) {
	hub := open(t)
	tab := table[int](t, hub, state.Options{}, 0)
	ok(t, tab.Update(t.Context(), publish(t, hub, "a", 1), nil, add(1)))
	for _, key := range []string{"a", "b"} {
		if _, err := hub.Emit(t.Context(), "sums.changelog", 5, promethean.Key(key)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := hub.Emit(t.Context(), "sums.changelog", "text", promethean.Key("c"), promethean.Header(state.SourceHeader, "1")); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	again := table[int](t, hub, state.Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}, 0)
	if n := strings.Count(said.String(), "is not the table's"); n != 2 {
		t.Errorf("%d times:\n%s", n, &said)
	}
	for _, tab := range []*state.Table[string, int]{tab, again} {
		for _, c := range []struct{ key, want string }{
			{"a", "topic sums.changelog, seq 2: the record is not the table's: it has no x-source-seq"},
			{"b", "topic sums.changelog, seq 3: the record is not the table's: it has no x-source-seq"},
			{"c", "topic sums.changelog, seq 4: value: json: cannot unmarshal string into Go value of type int"},
		} {
			err := tab.Update(t.Context(), publish(t, hub, c.key, 1), nil, add(1))
			text := fmt.Sprintf("table sums, key %q, partition 0: %s", c.key, c.want)
			is(t, err, err, text)
			_, _, err = tab.Get(c.key)
			is(t, err, err, text)
		}
		ok(t, tab.Update(t.Context(), publish(t, hub, "d", 1), nil, add(1)))
	}
	failed := 0
	for _, err := range again.Range(0) {
		if err != nil {
			failed++
		}
	}
	if failed != 1 {
		t.Errorf("%d errors: the first ends it", failed)
	}
}

// A restore ends with its context, and leaves things as they were; one that was
// overtaken does not come in late.
func TestRestoreEnds(t *testing.T) {
	hub := open(t)
	tab := table[int](t, hub, state.Options{}, 0)
	ok(t, tab.Update(t.Context(), publish(t, hub, "a", 1), nil, add(1)))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tab.Assigned(ended, 0); !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "table sums, partition 0: restore: ") {
		t.Error(err)
	}
	want(t, tab, "a", 1)
	fresh := table[int](t, hub, state.Options{})
	if err := fresh.Assigned(ended, 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, _, err := fresh.Get("a"); !errors.Is(err, state.ErrNotAssigned) {
		t.Error(err)
	}
}

func TestRestoreIsOvertaken(t *testing.T) {
	log := storetest.NewStepwise(event.Limits{})
	hub, err := promethean.New(log, promethean.Options{})
	ok(t, err)
	defer func() { _ = hub.Close() }()
	tab := table[int](t, hub, state.Options{}, 0)
	ok(t, tab.Update(t.Context(), publish(t, hub, "a", 1), nil, add(1)))
	for _, c := range []struct {
		meanwhile func(context.Context, int) error
		here      int
	}{{tab.Revoked, 0}, {tab.Assigned, 1}} {
		ok(t, tab.Revoked(t.Context(), 0))
		log.Reading.Set(func(q store.Query, _ uint64) {
			if strings.HasPrefix(q.Topic, "system.") {
				return // the hub hears what others say
			}
			log.Reading.Unset()
			ok(t, c.meanwhile(t.Context(), 0))
		})
		if err := tab.Assigned(t.Context(), 0); !errors.Is(err, state.ErrNotAssigned) {
			t.Error(err)
		}
		if len(tab.Partitions()) != c.here {
			t.Errorf("%v", tab.Partitions())
		}
	}
	// What others append while a restore reads is in it.
	ok(t, tab.Revoked(t.Context(), 0))
	other := table[int](t, hub, state.Options{}, 0)
	log.Reading.Set(func(q store.Query, _ uint64) {
		if strings.HasPrefix(q.Topic, "system.") {
			return // the hub hears what others say
		}
		log.Reading.Unset()
		ok(t, other.Update(t.Context(), publish(t, hub, "a", 1), nil, add(1)))
		ok(t, other.Update(t.Context(), publish(t, hub, "b", 1), nil, add(1)))
	})
	ok(t, tab.Assigned(t.Context(), 0))
	want(t, tab, "a", 2)
	want(t, tab, "b", 1)
}

// A dead letter that comes back to its group counts if it can be told that it
// did not before, and is refused otherwise.
func TestDeadLetters(t *testing.T) {
	for _, policy := range []group.Policy{group.DeadEvent, group.DeadKey} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hub, err := promethean.OpenMemory(promethean.Options{})
				ok(t, err)
				defer func() { _ = hub.Close() }()
				tab := table[[]int](t, hub, state.Options{}, 0)
				bad := true
				_, err = hub.Subscribe(t.Context(), source, "g", promethean.Handle(
					func(ctx context.Context, n int, e event.Event, d *promethean.Delivery) error {
						if bad && n < 10 {
							return promethean.Dead(errors.New("not yet"))
						}
						return tab.Update(ctx, e, d, func(v []int, _ bool) ([]int, error) { return append(v, n), nil })
					}), promethean.OnDead(policy))
				ok(t, err)
				send := func(list ...int) {
					for _, n := range list {
						publish(t, hub, "a", n)
						synctest.Wait()
					}
				}
				replay := func(to deadletter.Target) {
					t.Helper()
					if r, err := deadletter.Replay(t.Context(), hub, source, deadletter.Options{To: to}); err != nil || r.Replayed == 0 {
						t.Fatal(r, err)
					}
					synctest.Wait()
				}
				check := func(list ...int) {
					t.Helper()
					if got, _, err := tab.Get("a"); err != nil || !slices.Equal(got, list) {
						t.Errorf("%v, want %v (%v)", got, list, err)
					}
				}
				send(10, 1, 11, 2, 12)
				if policy == group.DeadKey {
					check(10)
					bad = false
					replay(deadletter.ToGroup)
					check(10, 1, 11, 2, 12)
					return
				}
				check(10, 11, 12)
				bad = false
				replay(deadletter.ToGroup)
				check(10, 11, 12)
				ok(t, hub.Engine().Letters(t.Context(), source, "g", func(l group.LetterAt) bool {
					if !strings.Contains(l.Err, "replay it to the topic in place of the group") {
						t.Errorf("%+v", l)
					}
					return true
				}))
				replay(deadletter.ToTopic)
				check(10, 11, 12, 1, 2)
				// One that nothing came after is known not to have been applied.
				bad = true
				send(3)
				bad = false
				replay(deadletter.ToGroup)
				check(10, 11, 12, 1, 2, 3)
			})
		})
	}
}
