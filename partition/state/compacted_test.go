package state_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"promethean"
	"promethean/compact"
	"promethean/event"
	"promethean/partition/state"
	"promethean/store"
)

// stage is a hub with a compactor that works when it is told to, at a time of its
// own.
func stage(t *testing.T) (*promethean.Hub, *compact.Compactor, *atomic.Int64) {
	t.Helper()
	hub := open(t)
	var now atomic.Int64
	now.Store(time.Now().UnixMilli())
	c, err := compact.Start(t.Context(), hub, compact.Options{Every: -1, Now: func() time.Time { return time.UnixMilli(now.Load()) }})
	ok(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return hub, c, &now
}

func sweep(t *testing.T, c *compact.Compactor) {
	t.Helper()
	_, err := c.Compact(t.Context(), "sums.changelog")
	ok(t, err)
	if _, err = c.Compact(t.Context(), "sums.changelog.snapshot"); err != nil && !errors.Is(err, event.ErrInvalidArgument) {
		t.Fatal(err)
	}
}

// Compaction takes nothing away that is needed, and after it tables are restored
// from snapshots.
func TestCompacted(t *testing.T) {
	hub, c, now := stage(t)
	tab := table[int](t, hub, state.Options{}, 0)
	first := publish(t, hub, "gone", 1)
	ok(t, tab.Update(t.Context(), first, nil, add(1)))
	ok(t, tab.Update(t.Context(), publish(t, hub, "gone", 1), nil, func(int, bool) (int, error) { return 0, state.Delete }))
	for range 5 {
		ok(t, tab.Update(t.Context(), publish(t, hub, "a", 1), nil, add(1)))
	}
	sweep(t, c)
	now.Add((20 * 365 * 24 * time.Hour).Milliseconds())
	ok(t, tab.Update(t.Context(), publish(t, hub, "b", 1), nil, add(1)))
	sweep(t, c)
	if got := fmt.Sprint(records(t, hub, "sums.changelog")); got != "[2:gone=null<2 7:a=5<7 8:b=1<8]" {
		t.Error(got)
	}
	if got := len(records(t, hub, "sums.changelog.snapshot")); got != 3 {
		t.Errorf("%d snapshots", got)
	}
	ok(t, tab.Update(t.Context(), publish(t, hub, "c", 1), nil, add(1)))
	again := table[int](t, hub, state.Options{}, 0)
	want(t, again, "a", 5)
	want(t, again, "b", 1)
	want(t, again, "c", 1)
	ok(t, again.Update(t.Context(), first, nil, add(1)))
	want(t, again, "gone", -1)
	ok(t, again.Update(t.Context(), publish(t, hub, "a", 1), nil, add(1)))
	want(t, again, "a", 6)
}

// A changelog that is much larger than what is left of it is not read whole.
func TestRestoredFromSnapshots(t *testing.T) {
	hub, c, _ := stage(t)
	var set store.Settings
	ok(t, (compact.Settings{Compaction: true, History: compact.Age(time.Hour), Snapshot: &compact.Snapshot{}}).Put(&set))
	ok(t, hub.SetTopic(t.Context(), "sums.changelog", set))
	tab := table[int](t, hub, state.Options{}, 0)
	for range 100 {
		ok(t, tab.Update(t.Context(), publish(t, hub, "a", 1), nil, add(1)))
	}
	ok(t, tab.Update(t.Context(), publish(t, hub, "gone", 1), nil, add(1)))
	sweep(t, c)
	ok(t, tab.Update(t.Context(), publish(t, hub, "gone", 1), nil, func(int, bool) (int, error) { return 0, state.Delete }))
	ok(t, tab.Update(t.Context(), publish(t, hub, "b", 1), nil, add(1)))
	var said strings.Builder
	again := table[int](t, hub, state.Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}, 0)
	if n := len(records(t, hub, "sums.changelog")); n != 103 || !strings.Contains(said.String(), "records=4 keys=2 ") {
		t.Errorf("%d records, %s", n, &said)
	}
	want(t, again, "a", 100)
	want(t, again, "b", 1)
	want(t, again, "gone", -1)
	ok(t, again.Update(t.Context(), publish(t, hub, "a", 1), nil, add(1)))
	want(t, again, "a", 101)
	// Settings of others stay.
	if set, err := compact.SettingsOf(hub.Settings("sums.changelog")); err != nil || set.History != compact.Age(time.Hour) {
		t.Errorf("%+v, %v", set, err)
	}
}

// With a limit to tombstones, a deleted key is forgotten after it: an event that
// comes even later is a new one, and whoever remembers the key makes no mistake.
func TestForgottenKeys(t *testing.T) {
	hub, c, now := stage(t)
	o := state.Options{Tombstones: time.Hour}
	stale, tab := table[int](t, hub, o, 0), table[int](t, hub, o, 0)
	first := publish(t, hub, "a", 1)
	ok(t, stale.Update(t.Context(), first, nil, add(1)))
	ok(t, tab.Update(t.Context(), publish(t, hub, "a", 1), nil, func(int, bool) (int, error) { return 0, state.Delete }))
	ok(t, tab.Update(t.Context(), publish(t, hub, "b", 1), nil, add(1)))
	sweep(t, c)
	now.Add(time.Minute.Milliseconds())
	ok(t, tab.Update(t.Context(), first, nil, add(1)))
	want(t, tab, "a", -1)
	now.Add((2 * time.Hour).Milliseconds())
	ok(t, tab.Update(t.Context(), publish(t, hub, "b", 1), nil, add(1)))
	sweep(t, c)
	if got := fmt.Sprint(records(t, hub, "sums.changelog")); got != "[4:b=2<4]" {
		t.Fatal(got)
	}
	ok(t, table[int](t, hub, o, 0).Update(t.Context(), first, nil, add(1)))
	if got := fmt.Sprint(records(t, hub, "sums.changelog")); got != "[4:b=2<4 5:a=1<1]" {
		t.Error(got)
	}
	ok(t, stale.Update(t.Context(), publish(t, hub, "a", 1), nil, add(1)))
	want(t, stale, "a", 2)
}
