package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"promethean/event"
	"promethean/store"
)

var compactCases = []Case{
	{Name: "compact/the last of each key stays", needs: needsCompacts, run: compactKeys},
	{Name: "compact/events without a key stay", needs: needsCompacts, run: compactKeyless},
	{Name: "compact/tombstones", needs: needsCompacts, run: compactTombstones},
	{Name: "compact/one key", needs: needsCompacts, run: compactOneKey},
	{Name: "compact/bit by bit", needs: needsCompacts, run: compactBitByBit},
	{Name: "compact/every kind of read", needs: needsCompacts, run: compactReads},
	{Name: "compact/ids are free again", needs: needsCompacts, run: compactIDs},
	{Name: "compact/expectations on keys", needs: needsCompacts, run: compactExpect},
	{Name: "compact/everything goes", needs: needsCompacts, run: compactEverything},
	{Name: "compact/only its own topic", needs: needsCompacts, run: compactOwnTopic},
	{Name: "compact/what is not there", needs: needsCompacts, run: compactNothing},
	{Name: "compact/space comes back", needs: needsCompacts, run: compactBytes},
	{Name: "compact/trims on top", needs: needsCompacts, run: compactTrim},
	{Name: "compact/groups over gaps", needs: needsCompacts, run: compactGroups},
	{Name: "compact/many events", needs: needsCompacts, run: compactMany},
	{Name: "compact/while events come", needs: needsCompacts, run: compactWhileBusy},
	{Name: "compact/an ended context", needs: needsCompacts, run: compactCancelled},
}

// compact compacts a topic that holds log, compares what is said about it, and
// gives what must be left.
func (t *trial) compact(log []event.Event, c store.Compaction) []event.Event {
	t.Helper()
	topic := topicA
	if len(log) > 0 {
		topic = log[0].Topic
	}
	got, err := t.e.(store.Compacts).Compact(t.ctx, topic, c)
	t.ok(err, "compact %+v", c)
	gone := superseded(log, c)
	var left []event.Event
	var want store.Compacted
	for _, e := range log {
		last, dead := gone[e.Seq]
		if last {
			want.MaxTS = max(want.MaxTS, e.TS)
		}
		if !dead {
			left = append(left, e)
			if e.Seq < c.Before {
				want.Kept++
			}
		}
	}
	want.Removed = uint64(len(gone))
	if got.Bytes < 0 || got.Bytes == 0 && want.Removed > 0 {
		t.Fatalf("compact %+v: %d events gave back %d bytes", c, want.Removed, got.Bytes)
	}
	if got.Bytes = 0; got != want {
		t.Fatalf("compact %+v: %+v, want %+v", c, got, want)
	}
	return left
}

// wantTopic checks a topic by every kind of read.
func (t *trial) wantTopic(topic string, last uint64, log []event.Event) {
	t.Helper()
	first := last + 1
	if len(log) > 0 {
		first = log[0].Seq
	}
	t.wantBounds(topic, first, last)
	t.wantLog(topic, log)
	t.wantRead(store.Query{Topic: topic, Reverse: true}, pick(log, store.Query{Topic: topic, Reverse: true}))
	if err := agrees(t.ctx, t.e, store.Topic{Name: topic, Bounds: t.bounds(topic)}, log); err != nil {
		t.Fatal(err)
	}
}

// tomb makes a tombstone.
func tomb(topic, key string, n int) event.Event {
	e := keyed(topic, key, n)
	e.Payload = json.RawMessage(`{"_deleted":true,"why":"asked for"}`)
	if n%2 == 0 {
		e.Payload = json.RawMessage(`null`)
	}
	return e
}

func compactKeys(t *trial) {
	var events []event.Event
	for n := range 60 {
		events = append(events, keyed(topicA, fmt.Sprintf("k%d", n*n%11), n))
	}
	log := t.putAll(events)
	for _, before := range []uint64{0, 1, 2, 20, 20, 10, 45, 60, 61, math.MaxUint64} {
		log = t.compact(log, store.Compaction{Before: before})
		t.wantTopic(topicA, 60, log)
	}
	t.reopens(func(string) { t.wantTopic(topicA, 60, log) })
	log = append(log, t.put(keyed(topicA, "k1", 99))...)
	if last := log[len(log)-1].Seq; last != 61 {
		t.Fatalf("the next seq is %d, want 61", last)
	}
	log = t.compact(log, store.Compaction{Before: 62})
	t.reopens(func(string) { t.wantTopic(topicA, 61, log) })
}

func compactOneKey(t *trial) {
	var events []event.Event
	for n := range 40 {
		events = append(events, keyed(topicA, fmt.Sprintf("k%d", n%3), n))
	}
	events = append(events, tomb(topicA, "k1", 40), tomb(topicA, "k2", 41))
	log := t.putAll(events)
	for _, c := range []store.Compaction{
		{Before: 100, Tombstones: 100, Key: "no such key"},
		{Before: 20, Key: "k0"},
		{Before: 100, Tombstones: 42, Key: "k1"},
		{Before: 100, Key: "k2"},
		{Before: 100, Tombstones: 100, Key: "k2"},
	} {
		log = t.compact(log, c)
		t.wantTopic(topicA, 42, log)
	}
	// What one of a key has removed is not taken into account by one of all.
	log = t.compact(log, store.Compaction{Before: 100})
	log = append(log, t.put(tomb(topicA, "k0", 50), keyed(topicA, "k4", 51))...)
	for _, c := range []store.Compaction{{Before: 44}, {Before: 44, Tombstones: 100, Key: "k0"}, {Before: 44}} {
		log = t.compact(log, c)
	}
	t.reopens(func(string) { t.wantTopic(topicA, 44, log) })
}

func compactKeyless(t *trial) {
	log := t.put(note(topicA, 0), keyed(topicA, "a", 1), note(topicA, 2), keyed(topicA, "a", 3), tomb(topicA, "", 4), note(topicA, 5), tomb(topicA, "", 7))
	log = t.compact(log, store.Compaction{Before: 100, Tombstones: 100})
	if len(log) != 6 {
		t.Fatalf("the case is broken: %d events are left", len(log))
	}
	t.reopens(func(string) { t.wantTopic(topicA, 7, log) })
}

// compactTombstones: they go only below a seq of their own, and only as the
// last of their key; until then they stand like any event.
func compactTombstones(t *trial) {
	alive := keyed(topicA, "e", 14)
	alive.Payload = json.RawMessage(`{"_deleted":"true","inner":{"_deleted":true}}`)
	log := t.put(
		keyed(topicA, "a", 1), tomb(topicA, "a", 2), // deleted
		tomb(topicA, "b", 3), keyed(topicA, "b", 4), // made again
		keyed(topicA, "c", 5), tomb(topicA, "c", 6), // deleted by null
		tomb(topicA, "d", 7), tomb(topicA, "d", 8), // twice
		alive,                                         // says the word, and is none
		keyed(topicA, "f", 10), tomb(topicA, "f", 11), // deleted later
		keyed(topicA, "g", 12), tomb(topicA, "g", 13), keyed(topicA, "g", 14), // comes back above Before
	)
	log = t.compact(log, store.Compaction{Before: 14})
	t.wantTopic(topicA, 14, log)
	log = t.compact(log, store.Compaction{Before: 14, Tombstones: 6})
	t.wantTopic(topicA, 14, log)
	// A tombstone goes though a later event of its key is above Before.
	log = t.compact(log, store.Compaction{Before: 14, Tombstones: math.MaxUint64})
	t.wantTopic(topicA, 14, log)
	log = t.compact(log, store.Compaction{Before: 15, Tombstones: 15})
	t.reopens(func(string) { t.wantTopic(topicA, 14, log) })
	if len(log) != 3 { // b, e and g
		t.Fatalf("the case is broken: %d events are left", len(log))
	}
}

// compactBitByBit: what is left by one compaction is a log like any other.
func compactBitByBit(t *trial) {
	var log []event.Event
	last := uint64(0)
	for round := range 12 {
		var events []event.Event
		for n := range 25 {
			key := fmt.Sprintf("k%d", (n*n+round)%13)
			switch n % 9 {
			case 4:
				events = append(events, note(topicA, n))
			case 7:
				events = append(events, tomb(topicA, key, n))
			default:
				events = append(events, keyed(topicA, key, n))
			}
		}
		log = append(log, t.putAll(events)...)
		last += 25
		log = t.compact(log, store.Compaction{Before: last - uint64(round), Tombstones: last - 20})
		t.wantTopic(topicA, last, log)
	}
	t.reopens(func(string) { t.wantTopic(topicA, last, log) })
	if log = t.compact(log, store.Compaction{Before: last + 1, Tombstones: last + 1}); len(log) > 50 {
		t.Fatalf("the case is broken: %d events are left", len(log))
	}
	t.reopens(func(string) { t.wantTopic(topicA, last, log) })
}

func compactReads(t *trial) {
	var events []event.Event
	for n := range 120 {
		e := keyed(topicA, fmt.Sprintf("k%d", n*n%19), n)
		if n%10 == 3 {
			e.Key = ""
		}
		e.Partition = event.PartitionOf(n % 3)
		e.TS = baseTS + int64(n*37%120)
		events = append(events, e)
	}
	log := t.putAll(events)
	whole := log
	log = t.compact(log, store.Compaction{Before: 90})
	var queries []store.Query
	for _, after := range []uint64{0, 1, 40, log[0].Seq, 88, 89, 119, 120} {
		for _, until := range []uint64{0, 41, 89, 95} {
			for _, limit := range []int{0, 1, 7} {
				for _, key := range []string{"", "k0", "k1", "k4", "k7"} {
					queries = append(queries, store.Query{Topic: topicA, After: after, Until: until, Limit: limit, Key: key})
				}
				queries = append(queries, store.Query{Topic: topicA, After: after, Until: until, Limit: limit, Partition: event.PartitionOf(1)})
			}
		}
	}
	t.reopens(func(when string) {
		for _, q := range queries {
			for _, q.Reverse = range []bool{false, true} {
				t.wantRead(q, pick(log, q))
			}
		}
		for ts := int64(baseTS - 1); ts < baseTS+122; ts++ {
			want := uint64(121)
			if i := slices.IndexFunc(log, func(e event.Event) bool { return e.TS >= ts }); i >= 0 {
				want = log[i].Seq
			}
			got, err := t.e.LocateTime(t.ctx, topicA, ts)
			t.ok(err, "locate time")
			if got != want {
				t.Fatalf("%s: time %d is located at %d, want %d", when, ts-baseTS, got, want)
			}
		}
		there := make(map[uint64]bool)
		for _, e := range log {
			there[e.Seq] = true
		}
		for _, e := range whole {
			seq, err := t.e.LocateID(t.ctx, topicA, e.ID)
			if there[e.Seq] && (err != nil || seq != e.Seq) || !there[e.Seq] && !errors.Is(err, store.ErrNotFound) {
				t.Fatalf("%s: the id of seq %d is located at %d, %v", when, e.Seq, seq, err)
			}
		}
	})
}

// compactIDs: what is gone is forgotten, as by a trim: the same id is stored
// anew, and is known from then on.
func compactIDs(t *trial) {
	var events []event.Event
	for n := range 40 {
		e := keyed(topicA, fmt.Sprintf("k%d", n%4), n)
		if n%2 == 0 {
			e.ID = randomID()
		}
		events = append(events, e)
	}
	log := t.putAll(events)
	left := t.compact(log, store.Compaction{Before: 41})
	if len(left) != 4 {
		t.Fatalf("the case is broken: %d events are left", len(left))
	}
	answers := t.append(store.Batch{Events: events})
	for i, a := range answers {
		want := store.Appended{Seq: uint64(41 + i)}
		if i >= 36 {
			want = store.Appended{Seq: uint64(1 + i), Duplicate: true}
		}
		if a.Seq != want.Seq || a.Duplicate != want.Duplicate {
			t.Fatalf("sent again, event %d of 40: seq %d, duplicate %v; want %d, %v", i, a.Seq, a.Duplicate, want.Seq, want.Duplicate)
		}
		if !a.Duplicate {
			left = append(left, at(events[i], a.Seq))
		}
	}
	t.reopens(func(string) {
		t.wantTopic(topicA, 76, left)
		for i, a := range t.append(store.Batch{Events: events}) {
			if !a.Duplicate || a.Seq != answers[i].Seq {
				t.Fatalf("sent once more, event %d: seq %d, duplicate %v; want %d", i, a.Seq, a.Duplicate, answers[i].Seq)
			}
		}
	})
	// Once more: an id whose old seq and newer seq are both gone.
	left = t.compact(left, store.Compaction{Before: 77})
	t.wantTopic(topicA, 76, left)
	if a := t.append(store.Batch{Events: events[:1]})[0]; a.Duplicate || a.Seq != 77 {
		t.Fatalf("sent a fourth time: %+v", a)
	}
}

func compactExpect(t *trial) {
	t.put(
		keyed(topicA, "stays", 1), keyed(topicA, "goes", 2), keyed(topicA, "stays", 3),
		tomb(topicA, "goes", 4), keyed(topicA, "back", 5), tomb(topicA, "back", 6), note(topicA, 7),
	)
	expect := func(key string, seq uint64) error {
		e := keyed(topicB, "other", 1)
		if !t.spans() {
			e = note(topicA, 1)
		}
		_, err := t.e.Append(t.ctx, store.Batch{Events: []event.Event{e}, Expect: []store.Expect{{Topic: topicA, Key: key, Seq: seq}}})
		return err
	}
	if _, err := t.e.(store.Compacts).Compact(t.ctx, topicA, store.Compaction{Before: 8, Tombstones: 8}); err != nil {
		t.Fatal(err)
	}
	t.reopens(func(when string) {
		for _, c := range []struct {
			key       string
			wrong, is uint64
		}{{"stays", 1, 3}, {"goes", 4, 0}, {"back", 5, 0}, {"never", 1, 0}} {
			var conflict *store.SeqConflictError
			if err := expect(c.key, c.wrong); !errors.As(err, &conflict) || conflict.Actual != c.is {
				t.Fatalf("%s: key %s is expected to end at %d: %v; want a conflict with %d", when, c.key, c.wrong, err, c.is)
			}
			t.ok(expect(c.key, c.is), "%s: key %s is expected to end at %d", when, c.key, c.is)
		}
	})
	last := t.put(keyed(topicA, "goes", 9))[0].Seq
	t.ok(expect("goes", last), "a key that came back")
}

// compactEverything: a topic of which nothing is left goes on where it was.
func compactEverything(t *trial) {
	t.put(keyed(topicA, "a", 1), keyed(topicA, "b", 3), tomb(topicA, "a", 5), tomb(topicA, "b", 4))
	got, err := t.e.(store.Compacts).Compact(t.ctx, topicA, store.Compaction{Before: 5, Tombstones: 5})
	t.ok(err, "compact")
	if got.Removed != 4 || got.Kept != 0 || got.MaxTS != baseTS+5 {
		t.Fatalf("compact: %+v", got)
	}
	t.reopens(func(string) {
		t.wantTopic(topicA, 4, nil)
		if b := t.bounds(topicA); !b.Empty() {
			t.Fatalf("bounds are %+v", b)
		}
	})
	log := t.put(keyed(topicA, "a", 6))
	if log[0].Seq != 5 {
		t.Fatalf("the next seq is %d, want 5", log[0].Seq)
	}
	t.reopens(func(string) { t.wantTopic(topicA, 5, log) })
}

func compactOwnTopic(t *trial) {
	logs := make(map[string][]event.Event)
	topics := []string{topicA, topicB, topicC}
	for n := range 40 {
		for _, topic := range topics {
			logs[topic] = append(logs[topic], t.put(keyed(topic, fmt.Sprint("k", n%3), n))...)
		}
	}
	logs[topicA] = t.compact(logs[topicA], store.Compaction{Before: 41})
	logs[topicC] = t.compact(logs[topicC], store.Compaction{Before: 30})
	t.reopens(func(string) {
		for _, topic := range topics {
			t.wantTopic(topic, 40, logs[topic])
		}
	})
}

func compactNothing(t *trial) {
	c := t.e.(store.Compacts)
	got, err := c.Compact(t.ctx, topicA, store.Compaction{Before: 10, Tombstones: 10})
	t.ok(err, "compact an unknown topic")
	if got != (store.Compacted{}) {
		t.Fatalf("an unknown topic: %+v", got)
	}
	t.wantBounds(topicA, 1, 0)
	for topic, err := range t.e.Topics(t.ctx) {
		t.ok(err, "topics")
		if topic.Name == topicA {
			t.Fatal("compacting has made the topic")
		}
	}
	log := t.put(keyed(topicA, "a", 1), keyed(topicA, "b", 2))
	for _, x := range []store.Compaction{{}, {Before: 1}, {Before: 3}, {Before: 3, Tombstones: 3}, {Tombstones: 9}} {
		log = t.compact(log, x)
	}
	t.wantTopic(topicA, 2, log)
}

func compactBytes(t *trial) {
	const count, size = 200, 1000
	var log []event.Event
	for n := range count {
		e := sized(topicA, size)
		e.Key = fmt.Sprint("k", n%10)
		log = append(log, t.put(e)...)
	}
	before := t.bounds(topicA).Bytes
	t.compact(log, store.Compaction{Before: count + 1})
	t.reopens(func(when string) {
		if b := t.bounds(topicA); b.Bytes <= 0 || b.Bytes > before/4 {
			t.Fatalf("%s: %d bytes before 19 of 20 events went, %d after", when, before, b.Bytes)
		}
	})
}
