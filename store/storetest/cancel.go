package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"promethean/event"
	"promethean/store"
)

var cancelCases = []Case{
	{Name: "cancel/before the call", run: cancelBefore},
	{Name: "cancel/while appends run", run: cancelDuring},
	{Name: "cancel/during a read", run: cancelRead},
}

func cancelBefore(t *trial) {
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	e := note(topicA, 1)
	for range 20 {
		if _, err := t.e.Append(ctx, store.Batch{Events: []event.Event{e}}); !errors.Is(err, context.Canceled) {
			t.Fatalf("append with a cancelled context: %v", err)
		}
	}
	// One that is accepted would have come before this one.
	if got := t.put(note(topicA, 2)); got[0].Seq != 1 {
		t.Fatalf("a cancelled append has stored something: the first seq is %d", got[0].Seq)
	}
	if seq, err := t.e.LocateID(t.ctx, topicA, e.ID); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("locate an event of a cancelled append: %d, %v", seq, err)
	}
	past, stop := context.WithTimeout(t.ctx, -1)
	defer stop()
	if _, err := t.e.Append(past, store.Batch{Events: []event.Event{e}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("append past the deadline: %v", err)
	}
	t.put(e)
}

// cancelDuring cancels appends at any moment of their way. Whoever got an
// answer finds the event; whoever got none tries again with the same ids, and
// in the end everything is there once.
func cancelDuring(t *trial) {
	const appenders, batches, size = 8, 25, 3
	var mu sync.Mutex
	want := make(map[event.ID]uint64)
	var all sync.WaitGroup
	for a := range appenders {
		all.Go(func() {
			for n := range batches {
				b := store.Batch{Events: notes(topicA, size)}
				// The canceller races with the append, from ahead of it to
				// far behind.
				ctx, cancel := context.WithCancel(t.ctx)
				var canceller sync.WaitGroup
				switch (a + n) % 4 {
				case 0:
					cancel()
				default:
					canceller.Go(func() {
						for range (a * n) % 7 * 50 {
							_ = ctx.Err()
						}
						cancel()
					})
				}
				got, err := t.e.Append(ctx, b)
				canceller.Wait()
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("append: %v", err)
					return
				}
				if err != nil {
					if got, err = t.e.Append(t.ctx, b); err != nil {
						t.Errorf("append again: %v", err)
						return
					}
					for _, a := range got[1:] {
						if a.Duplicate != got[0].Duplicate {
							t.Errorf("half of a cancelled batch was stored: %+v", got)
							return
						}
					}
				}
				mu.Lock()
				for i, e := range b.Events {
					want[e.ID] = got[i].Seq
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	t.reopens(func(when string) {
		log := t.read(store.Query{Topic: topicA})
		for _, e := range log {
			if want[e.ID] != e.Seq {
				t.Fatalf("%s: seq %d holds an event that was acknowledged as %d", when, e.Seq, want[e.ID])
			}
		}
		if len(log) != len(want) {
			t.Fatalf("%s: %d events were acknowledged, %d are there", when, len(want), len(log))
		}
		if !slices.IsSortedFunc(log, func(a, b event.Event) int { return int(a.Seq) - int(b.Seq) }) {
			t.Fatalf("%s: the log is not in order", when)
		}
	})
}

func cancelRead(t *trial) {
	t.putAll(notes(topicA, 2000))
	for _, reverse := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.ctx)
		n, ended := 0, false
		for _, err := range t.e.Read(ctx, store.Query{Topic: topicA, Reverse: reverse}) {
			if ended {
				t.Fatal("an iteration goes on after its error")
			}
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Fatalf("a cancelled read: %v", err)
				}
				ended = true
				continue
			}
			if n++; n == 10 {
				cancel()
			}
		}
		// What is at hand already may still come, and the end after it.
		if !ended && n != 2000 {
			t.Fatalf("a cancelled read ended silently after %d events", n)
		}
		cancel()
	}
}
