package storetest

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"

	"promethean/event"
	"promethean/store"
)

var expectCases = []Case{
	{Name: "expect/last seq of a topic", run: expectTopic},
	{Name: "expect/last seq of a key", run: expectKey},
	{Name: "expect/a key that stands in old data", run: expectOldKey},
	{Name: "expect/trimmed keys count as none", run: expectTrimmedKey},
	{Name: "expect/a topic that the batch does not write", needs: needsTopics, run: expectOtherTopic},
	{Name: "expect/a retry is not judged again", run: expectRetry},
	{Name: "expect/what is pending counts", run: expectPending},
	{Name: "expect/racing for the topic", run: func(t *trial) { expectRace(t, "") }},
	{Name: "expect/racing for a key", run: func(t *trial) { expectRace(t, "counter") }},
}

// wantConflict appends with one expectation that must fail, because the last
// seq is actual.
func (t *trial) wantConflict(x store.Expect, actual uint64) {
	t.Helper()
	e := keyed(x.Topic, x.Key, 0)
	_, err := t.e.Append(t.ctx, store.Batch{Events: []event.Event{e}, Expect: []store.Expect{x}})
	if !errors.Is(err, store.ErrSeqConflict) {
		t.Fatalf("append with %+v: %v, want a seq conflict", x, err)
	}
	var conflict *store.SeqConflictError
	if !errors.As(err, &conflict) {
		t.Fatalf("append with %+v: %v is no SeqConflictError", x, err)
	}
	if want := (store.SeqConflictError{Topic: x.Topic, Key: x.Key, Expected: x.Seq, Actual: actual}); *conflict != want {
		t.Fatalf("append with %+v: %+v, want %+v", x, *conflict, want)
	}
}

// wantAccepted appends an event of the expectation's topic and key.
func (t *trial) wantAccepted(x store.Expect, n int) event.Event {
	t.Helper()
	e := keyed(x.Topic, x.Key, n)
	return at(e, t.append(store.Batch{Events: []event.Event{e}, Expect: []store.Expect{x}})[0].Seq)
}

func expectTopic(t *trial) {
	t.wantConflict(store.Expect{Topic: topicA, Seq: 1}, 0)
	for last := range uint64(5) {
		t.wantConflict(store.Expect{Topic: topicA, Seq: last + 1}, last)
		if last > 0 {
			t.wantConflict(store.Expect{Topic: topicA}, last)
		}
		t.put(note(topicB, 1)) // of no concern
		if e := t.wantAccepted(store.Expect{Topic: topicA, Seq: last}, 1); e.Seq != last+1 {
			t.Fatalf("seq %d, want %d", e.Seq, last+1)
		}
	}
	t.reopens(func(string) { t.wantConflict(store.Expect{Topic: topicA, Seq: 4}, 5) })
	t.wantAccepted(store.Expect{Topic: topicA, Seq: 5}, 1)
	// The last seq stays when the events are gone.
	t.ok(t.e.Trim(t.ctx, topicA, 100), "trim")
	t.reopens(func(string) { t.wantConflict(store.Expect{Topic: topicA, Seq: 0}, 6) })
	t.wantAccepted(store.Expect{Topic: topicA, Seq: 6}, 1)
}

func expectKey(t *trial) {
	t.put(keyed(topicA, "a", 1), keyed(topicA, "ab", 2), note(topicA, 3), keyed(topicA, "a", 4))
	t.put(keyed(topicB, "a", 1))
	t.reopens(func(string) {
		t.wantConflict(store.Expect{Topic: topicA, Key: "a", Seq: 1}, 4)
		t.wantConflict(store.Expect{Topic: topicA, Key: "ab", Seq: 4}, 2)
		t.wantConflict(store.Expect{Topic: topicA, Key: "abc", Seq: 1}, 0)
		t.wantConflict(store.Expect{Topic: topicB, Key: "a", Seq: 4}, 1)
		t.wantConflict(store.Expect{Topic: topicC, Key: "a", Seq: 1}, 0)
	})
	t.wantAccepted(store.Expect{Topic: topicA, Key: "abc", Seq: 0}, 5)
	t.wantAccepted(store.Expect{Topic: topicA, Key: "abc", Seq: 5}, 6)
	t.wantAccepted(store.Expect{Topic: topicA, Key: "ab", Seq: 2}, 7)
	t.wantAccepted(store.Expect{Topic: topicA, Key: "a", Seq: 4}, 8)
	// Keys are bytes: none of these is another.
	for _, key := range []string{"a\x00", "a/", "A", " a", "ä", "a\u0308"} {
		t.wantConflict(store.Expect{Topic: topicA, Key: key, Seq: 8}, 0)
	}
}

func expectOldKey(t *trial) {
	old := t.put(keyed(topicA, "old", 0))[0]
	var rest []event.Event
	for i := range t.h.Many {
		rest = append(rest, keyed(topicA, fmt.Sprintf("k%d", i%1000), i))
	}
	t.putAll(rest)
	t.reopens(func(string) {
		t.wantConflict(store.Expect{Topic: topicA, Key: "old"}, old.Seq)
		t.wantConflict(store.Expect{Topic: topicA, Key: "never", Seq: old.Seq}, 0)
	})
	t.wantAccepted(store.Expect{Topic: topicA, Key: "old", Seq: old.Seq}, 1)
}

func expectTrimmedKey(t *trial) {
	t.put(keyed(topicA, "gone", 1), keyed(topicA, "both", 2), keyed(topicA, "both", 3))
	t.ok(t.e.Trim(t.ctx, topicA, 3), "trim")
	t.reopens(func(string) {
		t.wantConflict(store.Expect{Topic: topicA, Key: "gone", Seq: 1}, 0)
		t.wantConflict(store.Expect{Topic: topicA, Key: "both", Seq: 2}, 3)
	})
	e := t.wantAccepted(store.Expect{Topic: topicA, Key: "gone", Seq: 0}, 4)
	t.wantConflict(store.Expect{Topic: topicA, Key: "gone", Seq: 0}, e.Seq)
}

func expectOtherTopic(t *trial) {
	t.put(note(topicB, 1))
	e := note(topicA, 1)
	x := []store.Expect{{Topic: topicB, Seq: 1}, {Topic: topicC, Seq: 0}, {Topic: topicB, Key: "k", Seq: 0}}
	t.refused(store.Batch{Events: []event.Event{e}, Expect: append(x, store.Expect{Topic: topicC, Seq: 1})}, store.ErrSeqConflict, topicA, topicB, topicC)
	t.append(store.Batch{Events: []event.Event{e}, Expect: x})
}

// expectRetry: a publisher whose answer was lost sends the same batch again.
// Its expectation is false by then, through its own success.
func expectRetry(t *trial) {
	batch := store.Batch{Events: notes(topicA, 2), Expect: []store.Expect{{Topic: topicA, Seq: 0}}}
	first := t.append(batch)
	t.reopens(func(string) {
		for i, a := range t.append(batch) {
			if !a.Duplicate || a.Seq != first[i].Seq {
				t.Fatalf("a retry gave %+v, want a duplicate of seq %d", a, first[i].Seq)
			}
		}
	})
	// With one new event it is no retry.
	batch.Events = append(batch.Events, note(topicA, 3))
	t.refused(batch, store.ErrSeqConflict, topicA)
}

// expectPending judges against batches that may not be durable yet.
func expectPending(t *trial) {
	for n := range uint64(100) {
		e := keyed(topicA, "k", int(n))
		batch := store.Batch{Events: []event.Event{e}, Async: true, Expect: []store.Expect{{Topic: topicA, Seq: n}, {Topic: topicA, Key: "k", Seq: n}}}
		if got := t.append(batch); got[0].Seq != n+1 {
			t.Fatalf("seq %d, want %d", got[0].Seq, n+1)
		}
		t.wantConflict(store.Expect{Topic: topicA, Seq: n}, n+1)
		t.wantConflict(store.Expect{Topic: topicA, Key: "k", Seq: n}, n+1)
	}
}

// expectRace has goroutines append to a chain by compare-and-set. Each event
// says after which seq it was meant to come; if two ever succeed on the same
// one, or one slips in between, the chain is broken.
func expectRace(t *trial, key string) {
	const racers, each = 8, 25
	start := t.put(note(topicA, 0), keyed(topicA, "of no concern", 0))
	first := uint64(0)
	if key == "" {
		first = start[1].Seq
	}
	var all sync.WaitGroup
	for r := range racers {
		all.Go(func() {
			for n := 0; n < each; {
				last := uint64(0)
				found, err := readAll(t.ctx, t.e, store.Query{Topic: topicA, Key: key, Reverse: true, Limit: 1})
				if err != nil {
					t.Errorf("read: %v", err)
					return
				}
				if len(found) > 0 {
					last = found[0].Seq
				}
				runtime.Gosched() // here the others catch up
				e := keyed(topicA, key, r*each+n)
				e.SID = strconv.FormatUint(last, 10)
				_, err = t.e.Append(t.ctx, store.Batch{Events: []event.Event{e}, Expect: []store.Expect{{Topic: topicA, Key: key, Seq: last}}})
				switch {
				case err == nil:
					n++
				case !errors.Is(err, store.ErrSeqConflict):
					t.Errorf("append: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	chain := t.read(store.Query{Topic: topicA, Key: key, After: first})
	if len(chain) != racers*each {
		t.Fatalf("%d appends succeeded, and the log holds %d", racers*each, len(chain))
	}
	for last := first; len(chain) > 0; chain = chain[1:] {
		if chain[0].SID != strconv.FormatUint(last, 10) {
			t.Fatalf("seq %d was accepted as the next after %s, and it stands after %d", chain[0].Seq, chain[0].SID, last)
		}
		last = chain[0].Seq
	}
}
