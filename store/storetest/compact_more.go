package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"promethean/event"
	"promethean/store"
)

// compactTrim: a trim may cut anywhere, also in a gap. The first seq is that of
// an event all the same.
func compactTrim(t *trial) {
	var events []event.Event
	for n := range 60 {
		events = append(events, keyed(topicA, fmt.Sprint("k", n%20), n))
		if n%20 > 10 {
			events[n].Key = "hot"
		}
	}
	log := t.putAll(events)
	log = t.compact(log, store.Compaction{Before: 55})
	for before := uint64(1); before <= 61; before += 4 {
		t.ok(t.e.Trim(t.ctx, topicA, before), "trim before %d", before)
		log = slices.DeleteFunc(slices.Clone(log), func(e event.Event) bool { return e.Seq < before })
		t.wantTopic(topicA, 60, log)
	}
	t.reopens(func(string) { t.wantTopic(topicA, 60, log) })
	more := t.put(keyed(topicA, "hot", 1), keyed(topicA, "hot", 2))
	log = append(log, more...)
	log = t.compact(log, store.Compaction{Before: 63})
	t.reopens(func(string) { t.wantTopic(topicA, 62, log) })
}

// compactGroups: settlements and groups go by seqs, whether there is an event
// or not.
func compactGroups(t *trial) {
	log := make([]event.Event, 0, 12)
	for n := range 12 {
		log = append(log, t.put(keyed(topicA, fmt.Sprint("k", n%3), n))...)
	}
	c := store.Cursor{Topic: topicA, Group: "g"}
	version, err := t.e.PutCursor(t.ctx, c)
	t.ok(err, "put cursor")
	settle := func(ranges ...store.Range) {
		t.Helper()
		t.append(store.Batch{Settle: []store.Settlement{{Topic: topicA, Group: "g", Done: ranges, Handed: 12}}})
	}
	settle(store.Range{First: 2, Last: 3}, store.Range{First: 7, Last: 7})
	log = t.compact(log, store.Compaction{Before: 12})
	settle(store.Range{First: 5, Last: 6}) // gone, and in flight when it went
	settle(store.Range{First: 1, Last: 1})
	t.reopens(func(string) {
		t.wantTopic(topicA, 12, log)
		got, err := t.e.Cursor(t.ctx, topicA, "g")
		t.ok(err, "cursor")
		if got.Floor != 3 || !got.Settled.Contains(5) || !got.Settled.Contains(7) || got.Settled.Contains(4) || got.Settled.Contains(8) || got.Version < version {
			t.Fatalf("the group is %+v", got)
		}
	})
	settle(store.Range{First: 4, Last: 12})
	if got, err := t.e.Cursor(t.ctx, topicA, "g"); err != nil || got.Floor != 12 {
		t.Fatalf("the group is %+v, %v", got, err)
	}
}

// compactMany: more than an engine has at hand, over hot keys and cold ones.
func compactMany(t *trial) {
	total := min(t.h.Many, 6000)
	var events []event.Event
	for n := range total {
		key := fmt.Sprint("cold", n%97)
		switch {
		case n%3 == 0:
			key = "hot"
		case n == total/2:
			key = "once"
		case n%501 == 0:
			key = ""
		}
		e := keyed(topicA, key, n)
		if n == total-1 {
			e = tomb(topicA, "hot", n)
		}
		events = append(events, e)
	}
	log := t.putAll(events)
	half := uint64(total/2) - 7
	log = t.compact(log, store.Compaction{Before: half})
	t.wantTopic(topicA, uint64(total), log)
	log = t.compact(log, store.Compaction{Before: uint64(total) + 1, Tombstones: uint64(total) + 1})
	if len(log) > 200 {
		t.Fatalf("the case is broken: %d events are left", len(log))
	}
	t.reopens(func(string) {
		t.wantTopic(topicA, uint64(total), log)
		t.wantRead(store.Query{Topic: topicA, Key: "hot"}, nil)
		t.wantRead(store.Query{Topic: topicA, Key: "once"}, pick(log, store.Query{Topic: topicA, Key: "once"}))
	})
}

// compactWhileBusy compacts over and over while several publishers
// append and a reader reads. Of each key the last event must be left.
func compactWhileBusy(t *trial) {
	const publishers, each = 3, 150
	compactor := t.e.(store.Compacts)
	var busy, rest sync.WaitGroup
	done := make(chan struct{})
	fail := make(chan error, publishers+2)
	for p := range publishers {
		busy.Go(func() {
			for n := range each {
				// In the last round each key gets an event that is known.
				e := keyed(topicA, fmt.Sprintf("p%d-%d", p, n%5), n)
				if _, err := t.e.Append(t.ctx, store.Batch{Events: []event.Event{e}}); err != nil {
					fail <- fmt.Errorf("append: %w", err)
					return
				}
			}
		})
	}
	rest.Go(func() {
		for {
			b, err := t.e.Bounds(t.ctx, topicA)
			if err == nil {
				_, err = compactor.Compact(t.ctx, topicA, store.Compaction{Before: b.Last + 1})
			}
			if err != nil {
				fail <- fmt.Errorf("compact: %w", err)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	rest.Go(func() {
		shown := make(map[uint64]event.ID)
		for over := false; !over; {
			select {
			case <-done:
				over = true
			default:
			}
			before := uint64(0)
			for e, err := range t.e.Read(t.ctx, store.Query{Topic: topicA}) {
				if id, ok := shown[e.Seq]; err != nil || e.Seq <= before || ok && id != e.ID {
					fail <- fmt.Errorf("read: seq %d behind %d, with another event: %v, %w", e.Seq, before, ok && id != e.ID, err)
					return
				}
				before, shown[e.Seq] = e.Seq, e.ID
			}
		}
	})
	busy.Wait()
	close(done)
	rest.Wait()
	select {
	case err := <-fail:
		t.Fatal(err)
	default:
	}
	_, err := compactor.Compact(t.ctx, topicA, store.Compaction{Before: publishers*each + 1})
	t.ok(err, "compact")
	t.reopens(func(when string) {
		last := make(map[string]int64)
		log := t.read(store.Query{Topic: topicA})
		for _, e := range log {
			last[e.Key] = e.TS - baseTS
		}
		for p := range publishers {
			for k := range 5 {
				if got := last[fmt.Sprintf("p%d-%d", p, k)]; got != int64(each-5+k) {
					t.Fatalf("%s: key p%d-%d is at %d, want %d", when, p, k, got, each-5+k)
				}
			}
		}
		if len(log) != publishers*5 {
			t.Fatalf("%s: %d events are left of %d keys", when, len(log), publishers*5)
		}
		t.wantTopic(topicA, publishers*each, log)
	})
}

// compactCancelled: a call that ends early has removed some, and none that
// must stay.
func compactCancelled(t *trial) {
	var events []event.Event
	for n := range 400 {
		events = append(events, keyed(topicA, fmt.Sprint("k", n*n%37), n))
	}
	log := t.putAll(events)
	c := store.Compaction{Before: 401}
	left := superseded(log, c)
	ended, cancel := context.WithCancel(t.ctx)
	cancel()
	compactor := t.e.(store.Compacts)
	if _, err := compactor.Compact(ended, topicA, c); !errors.Is(err, context.Canceled) {
		t.Fatalf("with an ended context: %v", err)
	}
	t.wantTopic(topicA, 400, log)
	ctx, cancel := context.WithCancel(t.ctx)
	var wg sync.WaitGroup
	wg.Go(cancel)
	if _, err := compactor.Compact(ctx, topicA, c); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatalf("with a context that ends: %v", err)
	}
	wg.Wait()
	there := make(map[uint64]bool)
	for _, e := range t.read(store.Query{Topic: topicA}) {
		there[e.Seq] = true
	}
	for _, e := range log {
		if _, dead := left[e.Seq]; !dead && !there[e.Seq] {
			t.Fatalf("seq %d, the last of key %s, is gone", e.Seq, e.Key)
		}
	}
	_, err := compactor.Compact(t.ctx, topicA, c)
	t.ok(err, "compact")
	log = slices.DeleteFunc(log, func(e event.Event) bool { _, dead := left[e.Seq]; return dead })
	t.reopens(func(string) { t.wantTopic(topicA, 400, log) })
}
