package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"promethean/event"
	"promethean/store"
)

var readCases = []Case{
	{Name: "read/empty and unknown topics", run: readEmpty},
	{Name: "read/every query", run: readEveryQuery},
	{Name: "read/every field comes back", run: readEveryField},
	{Name: "read/payload bytes are exact", run: readExactPayload},
	{Name: "read/sizes of all kinds", run: readSizes},
	{Name: "read/may be left early", run: readLeftEarly},
	{Name: "read/two at once", run: readTwoAtOnce},
	{Name: "read/calls from inside the loop", run: readCallsInside},
	{Name: "read/covers what was visible", run: readCoversVisible},
	{Name: "read/while appends and trims go on", run: readWhileTrimming},
	{Name: "read/a yielded event is kept for good", run: readKeptForGood},
}

func readEmpty(t *trial) {
	t.ok(t.e.SetTopic(t.ctx, topicB, store.Settings{}), "set topic")
	t.reopens(func(string) {
		for _, topic := range []string{topicA, topicB} {
			for _, q := range []store.Query{
				{Topic: topic}, {Topic: topic, Reverse: true}, {Topic: topic, After: 5}, {Topic: topic, Until: 5},
				{Topic: topic, Key: "k"}, {Topic: topic, Partition: event.PartitionOf(0)}, {Topic: topic, Limit: 1},
			} {
				t.wantRead(q, nil)
			}
			t.wantBounds(topic, 1, 0)
			if b := t.bounds(topic); !b.Empty() || b.Bytes != 0 {
				t.Fatalf("topic %s: bounds %+v of an empty topic", topic, b)
			}
		}
	})
	for topic, err := range t.e.Topics(t.ctx) {
		t.ok(err, "topics")
		if topic.Name == topicA {
			t.Fatalf("asking for topic %s has made it", topicA)
		}
	}
}

// mixed stores events with few keys and partitions, some without either.
func (t *trial) mixed(topic string, count int) []event.Event {
	var events []event.Event
	for n := range count {
		e := note(topic, n)
		e.Key = []string{"a", "ab", "", "b", "a"}[n%5]
		if n%4 != 3 {
			e.Partition = event.PartitionOf(n % 3)
		}
		events = append(events, e)
	}
	return t.putAll(events)
}

// readEveryQuery tries all combinations of conditions, on a log as it was
// appended, cut, and read back from the disk.
func readEveryQuery(t *trial) {
	const count = 90
	log := t.mixed(topicA, count)
	t.mixed(topicB, 10) // of no concern
	try := func(share int) {
		t.Helper()
		rng := rand.New(rand.NewPCG(1, 2))
		for _, q := range queries(count) {
			if rng.IntN(share) == 0 {
				t.wantRead(q, pick(log, q))
			}
		}
	}
	try(1)
	t.ok(t.e.Trim(t.ctx, topicA, 32), "trim")
	log = log[31:]
	try(2)
	log = append(log, t.mixed(topicA, 20)...)
	if t.h.Reopen != nil {
		t.reopen()
		try(2)
	}
}

func queries(count uint64) (all []store.Query) {
	for _, after := range []uint64{0, 1, 31, 50, count - 1, count, count + 50} {
		for _, until := range []uint64{0, 1, 32, 60, count, count + 50} {
			for _, limit := range []int{0, 1, 7} {
				for _, key := range []string{"", "a", "ab", "never"} {
					for _, p := range []event.Partition{0, event.PartitionOf(0), event.PartitionOf(2), event.PartitionOf(9)} {
						for _, reverse := range []bool{false, true} {
							all = append(all, store.Query{Topic: topicA, After: after, Until: until, Limit: limit, Key: key, Partition: p, Reverse: reverse})
						}
					}
				}
			}
		}
	}
	return all
}

func readEveryField(t *trial) {
	var log []event.Event
	for n := range 20 {
		log = append(log, t.put(full(topicA, n), note(topicA, n))...)
	}
	e := note(topicA, 0)
	e.TS, e.Key, e.Partition = 0, strings.Repeat("é", event.MaxKey/2), event.PartitionOf(event.MaxPartitions-1)
	e.Tags = slices.Repeat([]string{strings.Repeat("t", event.MaxTag)}, event.MaxTags)
	f := note(topicA, 1)
	f.TS, f.SID = event.MaxTS, "\x00 \u2028"
	log = append(log, t.put(e, f)...)
	t.reopens(func(string) { t.wantLog(topicA, log) })
}

// exactPayloads are what a store that parses JSON would change.
var exactPayloads = []string{
	`null`, `true`, `0`, `-0`, `0.10`, `1e999`, `-12.50E+7`, `123456789012345678901234567890.000`, `9007199254740993`,
	`""`, `"\u0061\/\ud83d\ude00\u2028"`, "\"é\u2028<>&\u007f\"", `"\\\"\b\f\n\r\t"`,
	`{}`, `[]`, `{"b":1,"a":{"":null}}`, `[[],[{}],{"x":[1,2.0,3e0]}]`, `{"$set":{"a.b":1},"_id":"x"}`,
}

func readExactPayload(t *trial) {
	var log []event.Event
	for _, p := range exactPayloads {
		e := note(topicA, 0)
		e.Payload = json.RawMessage(p)
		log = append(log, t.put(e)...)
	}
	t.reopens(func(when string) {
		for i, e := range t.read(store.Query{Topic: topicA}) {
			if string(e.Payload) != exactPayloads[i] {
				t.Fatalf("%s: payload %s, want %s", when, e.Payload, exactPayloads[i])
			}
		}
		t.wantLog(topicA, log)
		t.wantDuplicate(log[0])
	})
}

// readSizes mixes events around the sizes at which stores cut blocks.
func readSizes(t *trial) {
	var log []event.Event
	for _, size := range []int{2, 400, 511, 512, 513, 4000, 4096, 32 << 10, 32<<10 + 1, 64 << 10, 100, 300 << 10, 2, t.h.Payload} {
		size = min(size, t.h.Payload)
		log = append(log, t.put(sized(topicA, size))...)
		log = append(log, t.put(sized(topicA, 3), sized(topicA, min(size, 40<<10)))...)
	}
	t.reopens(func(string) {
		t.wantLog(topicA, log)
		for _, i := range []int{5, 12, len(log) - 1} {
			t.wantRead(store.Query{Topic: topicA, After: log[i].Seq - 1, Limit: 1}, log[i:i+1])
			t.wantRead(store.Query{Topic: topicA, Until: log[i].Seq, Reverse: true, Limit: 1}, log[i:i+1])
		}
	})
}

func readLeftEarly(t *trial) {
	log := t.putAll(notes(topicA, 300))
	for _, stop := range []int{1, 2, 150, 299} {
		for _, reverse := range []bool{false, true} {
			n := 0
			for e, err := range t.e.Read(t.ctx, store.Query{Topic: topicA, Reverse: reverse}) {
				t.ok(err, "read")
				want := log[n]
				if reverse {
					want = log[len(log)-1-n]
				}
				if !same(&e, &want) {
					t.Fatalf("event %d is %s, want %s", n, show(&e), show(&want))
				}
				if n++; n == stop {
					break
				}
			}
		}
	}
	for range t.e.Topics(t.ctx) {
		break
	}
	// An iterator that is never ranged over holds nothing either.
	_ = t.e.Read(t.ctx, store.Query{Topic: topicA})
	t.ok(t.e.Close(), "close after reads that were left early")
}

func readTwoAtOnce(t *trial) {
	log := t.putAll(notes(topicA, 200))
	up, stopUp := iter.Pull2(t.e.Read(t.ctx, store.Query{Topic: topicA}))
	defer stopUp()
	down, stopDown := iter.Pull2(t.e.Read(t.ctx, store.Query{Topic: topicA, Reverse: true}))
	defer stopDown()
	for i := range log {
		for _, c := range []struct {
			next func() (event.Event, error, bool)
			want event.Event
		}{{up, log[i]}, {down, log[len(log)-1-i]}} {
			e, err, ok := c.next()
			if err != nil || !ok || !same(&e, &c.want) {
				t.Fatalf("step %d: %s, %v, %v; want %s", i, show(&e), err, ok, show(&c.want))
			}
		}
	}
	if _, _, ok := up(); ok {
		t.Fatal("the iteration goes on after the last event")
	}
}

// readCallsInside hangs if a lock is held while the caller has the event.
func readCallsInside(t *trial) {
	log := t.putAll(notes(topicA, 50))
	n := 0
	for e, err := range t.e.Read(t.ctx, store.Query{Topic: topicA, Until: 50}) {
		t.ok(err, "read")
		if !same(&e, &log[n]) {
			t.Fatalf("event %d is %s, want %s", n, show(&e), show(&log[n]))
		}
		if n++; n%10 == 0 {
			t.put(note(topicA, 0), note(topicA, 1))
			t.wantBounds(topicA, 1, uint64(50+n/5))
			t.wantRead(store.Query{Topic: topicA, Limit: 1}, log[:1])
			t.ok(t.e.SetTopic(t.ctx, topicB, store.Settings{Partitions: n}), "set topic")
			t.makeGroup(store.Cursor{Topic: topicA, Group: fmt.Sprint("g", n)})
		}
	}
	if n != 50 {
		t.Fatalf("%d events, want 50", n)
	}
	for range t.e.Topics(t.ctx) {
		t.put(note(topicC, 0))
		break
	}
	for range t.e.Cursors(t.ctx, "") {
		t.put(note(topicC, 0))
		break
	}
}

func readCoversVisible(t *trial) {
	log := t.putAll(notes(topicA, 10))
	seq := t.e.Read(t.ctx, store.Query{Topic: topicA})
	// The iteration begins with the loop, not with the call.
	log = append(log, t.putAll(notes(topicA, 10))...)
	var got []event.Event
	for e, err := range seq {
		t.ok(err, "read")
		got = append(got, e)
	}
	if diff := differ(got, log); diff != "" {
		t.Fatal(diff)
	}
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	if got, err := readAll(ctx, t.e, store.Query{Topic: topicA}); !errors.Is(err, context.Canceled) {
		t.Fatalf("a read with a cancelled context gave %d events and %v", len(got), err)
	}
}

// readWhileTrimming: what is trimmed under a reader is left out silently, and
// nothing else is.
func readWhileTrimming(t *trial) {
	const rounds, size = 40, 25
	log := t.putAll(notes(topicA, 10*size))
	done := make(chan struct{})
	var mu sync.Mutex
	var reads [][]event.Event
	var readers sync.WaitGroup
	for r := range 3 {
		readers.Go(func() {
			for ended := false; !ended; {
				select {
				case <-done:
					ended = true
				default:
				}
				got, err := readAll(t.ctx, t.e, store.Query{Topic: topicA, Reverse: r == 2})
				if err != nil {
					t.Errorf("read under trims: %v", err)
					return
				}
				if r == 2 {
					slices.Reverse(got)
				}
				mu.Lock()
				reads = append(reads, got)
				mu.Unlock()
			}
		})
	}
	trimmed := uint64(1)
	func() {
		defer readers.Wait()
		defer close(done)
		for range rounds {
			log = append(log, t.put(notes(topicA, size)...)...)
			trimmed += size
			t.ok(t.e.Trim(t.ctx, topicA, trimmed), "trim")
		}
	}()
	for _, got := range reads {
		for i, e := range got {
			want := log[e.Seq-1]
			if !same(&e, &want) {
				t.Fatalf("read %s, want %s", show(&e), show(&want))
			}
			if i > 0 && (e.Seq <= got[i-1].Seq || e.Seq != got[i-1].Seq+1 && e.Seq > trimmed) {
				t.Fatalf("a read went from seq %d to %d, and only what is below %d was trimmed", got[i-1].Seq, e.Seq, trimmed)
			}
		}
	}
	t.wantLog(topicA, log[trimmed-1:])
}

// readKeptForGood keeps events of every kind of read while the store goes on
// working, and looks whether their memory was used again.
func readKeptForGood(t *trial) {
	var events []event.Event
	for n := range 1000 {
		events = append(events, full(topicA, n))
	}
	log := t.putAll(events)
	downwards := slices.Clone(log)
	slices.Reverse(downwards)
	byKey := store.Query{Topic: topicA, Key: log[3].Key}
	want := map[string][]event.Event{"forwards": log, "backwards": downwards, "by key": pick(log, byKey), "as originals": log[:100]}
	kept := map[string][]event.Event{
		"forwards":  t.read(store.Query{Topic: topicA}),
		"backwards": t.read(store.Query{Topic: topicA, Reverse: true}),
		"by key":    t.read(byKey),
	}
	for _, e := range log[:100] {
		kept["as originals"] = append(kept["as originals"], *t.append(store.Batch{Events: []event.Event{e}})[0].Original)
	}
	compare := func(when string) {
		t.Helper()
		for name := range kept {
			if diff := differ(kept[name], want[name]); diff != "" {
				t.Fatalf("events read %s have changed in the caller's hands %s: %s", name, when, diff)
			}
		}
	}
	compare("at once")
	for range 5 {
		var more []event.Event
		for n := range t.h.Many / 20 {
			more = append(more, full(topicB, n))
		}
		t.putAll(more)
		t.read(store.Query{Topic: topicB})
		t.read(store.Query{Topic: topicA, Key: log[4].Key})
	}
	t.ok(t.e.Trim(t.ctx, topicA, 900), "trim")
	compare("while the store worked")
	t.ok(t.e.Close(), "close")
	compare("on Close")
}
