package logstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/store"
)

// keyedEvents appends events with these keys.
func keyedEvents(t testing.TB, s *Store, topic string, size int, keys ...string) {
	t.Helper()
	payload := json.RawMessage(`"` + strings.Repeat("x", size) + `"`)
	for part := range slices.Chunk(keys, 50) {
		var b store.Batch
		for _, k := range part {
			e := event.New(topic, payload)
			e.Key = k
			b.Events = append(b.Events, e)
		}
		if _, err := s.Append(context.Background(), b); err != nil {
			t.Fatal(err)
		}
	}
}

func mustCompact(t testing.TB, s *Store, topic string, c store.Compaction) store.Compacted {
	t.Helper()
	got, err := s.Compact(context.Background(), topic, c)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func seqsOf(t testing.TB, s *Store, q store.Query) (seqs []uint64) {
	t.Helper()
	for e, err := range s.Read(context.Background(), q) {
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, e.Seq)
	}
	return seqs
}

// More keys than are looked at in one scan: of each the last event stays.
func TestCompactInSeveralScans(t *testing.T) {
	const keys, events = 20_000, 50_000
	s, err := OpenMemory(Options{SegmentSize: 1 << 20}.Frugal())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	rng := rand.New(rand.NewPCG(1, 2))
	last := make(map[string]uint64)
	list := make([]string, events)
	for i := range list {
		list[i] = fmt.Sprint("key-", rng.IntN(keys))
		last[list[i]] = uint64(i + 1)
	}
	keyedEvents(t, s, "a.b", 20, list...)
	got := mustCompact(t, s, "a.b", store.Compaction{Before: events + 1})
	if got.Kept != uint64(len(last)) || got.Removed != events-uint64(len(last)) {
		t.Errorf("%+v; there are %d keys", got, len(last))
	}
	seqs := seqsOf(t, s, store.Query{Topic: "a.b"})
	want := make([]uint64, 0, len(last))
	for _, seq := range last {
		want = append(want, seq)
	}
	slices.Sort(want)
	if !slices.Equal(seqs, want) {
		t.Errorf("%d events are left, want the %d last of their keys", len(seqs), len(want))
	}
}

// A compaction that finds nothing to do leaves every file as it is.
func TestCompactOfNothing(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open("data", tiny(fs))
	if err != nil {
		t.Fatal(err)
	}
	keyedEvents(t, s, "a.b", 10, "a", "b", "a", "c")
	mustCompact(t, s, "a.b", store.Compaction{Before: 5})
	s.WaitTidy()
	s.WaitMarked()
	before := files(t, fs, "data")
	for _, c := range []store.Compaction{{Before: 5}, {Before: 99}, {Before: 4}, {Before: 5, Tombstones: 5}} {
		if got := mustCompact(t, s, "a.b", c); got.Removed != 0 || c.Before > 4 && got.Kept != 3 {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	after := files(t, fs, "data")
	for name := range before {
		if !strings.Contains(name, "state") && after[name] != before[name] {
			t.Errorf("%s has changed", name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d files, and there were %d", len(after), len(before))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A directory is of the older version until it has gaps, and what reads
// directories finds them sound, also in a backup.
func TestCompactedDirectory(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open("data", tiny(fs))
	if err != nil {
		t.Fatal(err)
	}
	version := func() uint64 {
		n, err := s.manifestNum(keyFormat)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var keys []string
	for n := range 2000 {
		keys = append(keys, fmt.Sprint("k", n*n%300))
	}
	keyedEvents(t, s, "a.b", 50, keys...)
	keyedEvents(t, s, "c.d", 50, keys...)
	if version() != versionNoGaps {
		t.Errorf("version %d before", version())
	}
	mustCompact(t, s, "a.b", store.Compaction{Before: 1500})
	if version() != manifestVersion {
		t.Errorf("version %d after", version())
	}
	if err := s.Backup(context.Background(), "copy"); err != nil {
		t.Fatal(err)
	}
	want := seqsOf(t, s, store.Query{Topic: "a.b"})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"data", "copy"} {
		sum, problems, notes := checked(t, fs, dir)
		if len(problems)+len(notes) > 0 || sum.Events != uint64(len(want)+2000) {
			t.Errorf("%s: %d events, want %d; %v %v", dir, sum.Events, len(want)+2000, problems, notes)
		}
		c, err := Open(dir, tiny(fs))
		if err != nil {
			t.Fatal(err)
		}
		if got := seqsOf(t, c, store.Query{Topic: "a.b"}); !slices.Equal(got, want) {
			t.Errorf("%s: %d events, want %d", dir, len(got), len(want))
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A section that is lost is told from one that was compacted.
	tamper(t, fs, func(b *pebble.Batch) {
		k, _ := row(t, b, "d\x00\x00\x00\x01")
		if err := b.Delete(k, nil); err != nil {
			t.Fatal(err)
		}
	})
	if _, problems, _ := checked(t, fs, "data"); len(problems) == 0 {
		t.Error("the check has not noticed that a section is gone")
	}
}

// Entries of events that are gone do not slow a hot key down for good.
func TestCompactCleansIndexes(t *testing.T) {
	s, err := OpenMemory(Options{SegmentSize: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	keys := make([]string, 20_000)
	for i := range keys {
		keys[i] = "hot"
		if i%100 == 0 {
			keys[i] = fmt.Sprint("cold", i)
		}
	}
	keyedEvents(t, s, "a.b", 10, keys...)
	mustCompact(t, s, "a.b", store.Compaction{Before: 20_001})
	for _, kind := range []indexKind{idIndex, keyIndex} {
		n := uint64(0)
		for _, r := range s.index(kind) {
			n += r.run.Count()
		}
		if n > 201 {
			t.Errorf("the %s index has %d entries for 201 events", kind, n)
		}
	}
	if s.Stale() != 0 {
		t.Errorf("%d entries are said to lead nowhere", s.Stale())
	}
	if got := seqsOf(t, s, store.Query{Topic: "a.b", Key: "hot"}); len(got) != 1 || got[0] != 20_000 {
		t.Errorf("the hot key has %v", got)
	}
}

// A few entries that lead nowhere among many are left: nobody is led astray by
// them, and a check can tell them from events that are lost.
func TestCompactLeavesFewEntries(t *testing.T) {
	fs := vfs.NewMem()
	o := tiny(fs).Frugal()
	s, err := Open("data", o)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for n := range 1000 {
		keys = append(keys, fmt.Sprint("k", n))
	}
	keys = append(keys, "k500", "k501", "k502")
	keyedEvents(t, s, "a.b", 50, keys...)
	var gone event.Event
	for e, err := range s.Read(context.Background(), store.Query{Topic: "a.b", Until: 502, Reverse: true, Limit: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		gone = e
	}
	if got := mustCompact(t, s, "a.b", store.Compaction{Before: 1004}); got.Removed != 3 {
		t.Fatalf("%+v", got)
	}
	if s.Stale() != 3 {
		t.Fatalf("%d entries lead nowhere, want 3", s.Stale())
	}
	if _, err := s.LocateID(context.Background(), "a.b", gone.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the id of seq %d is still known: %v", gone.Seq, err)
	}
	for _, reverse := range []bool{false, true} {
		if got := seqsOf(t, s, store.Query{Topic: "a.b", Key: gone.Key, Reverse: reverse}); len(got) != 1 || got[0] != 1002 {
			t.Errorf("key %s has %v", gone.Key, got)
		}
	}
	got, err := s.Append(context.Background(), store.Batch{Events: []event.Event{gone}})
	if err != nil || got[0].Duplicate || got[0].Seq != 1004 {
		t.Errorf("sent again: %+v, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if sum, problems, notes := checked(t, fs, "data"); len(problems)+len(notes) > 0 || sum.Events != 1001 {
		t.Errorf("%d events; %v %v", sum.Events, problems, notes)
	}
	tamper(t, fs, func(b *pebble.Batch) {
		if err := b.Delete(sectionKey(1, 1), nil); err != nil {
			t.Fatal(err)
		}
	})
	_, problems, _ := checked(t, fs, "data")
	if !slices.ContainsFunc(problems, func(p Problem) bool { return strings.Contains(p.What, "lead to no event") }) {
		t.Errorf("the check has not noticed that a section is gone: %d problems", len(problems))
	}
}
