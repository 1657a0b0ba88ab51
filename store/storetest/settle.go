package storetest

import (
	"errors"
	"math/rand/v2"
	"sync"

	"promethean/event"
	"promethean/store"
)

var settleCases = []Case{
	{Name: "settle/in any order", run: settleAnyOrder},
	{Name: "settle/attempts are kept until settled", run: settleAttempts},
	{Name: "settle/handed only rises", run: settleHanded},
	{Name: "settle/twice is once", run: settleTwice},
	{Name: "settle/the version stays", run: settleVersion},
	{Name: "settle/refused", run: settleRefused},
	{Name: "settle/an epoch is taken", run: settleTake},
	{Name: "settle/what is pending counts", run: settlePending},
	{Name: "settle/several groups at once", run: settleSeveral},
	{Name: "settle/from many goroutines", run: settleMany},
	{Name: "settle/trimmed events", run: settleTrimmed},
}

// settle applies one settlement in a batch of its own.
func (t *trial) settle(s store.Settlement) {
	t.Helper()
	t.append(store.Batch{Settle: []store.Settlement{s}})
}

// done is a settlement of single seqs of group g on topicA.
func done(seqs ...uint64) store.Settlement {
	s := store.Settlement{Topic: topicA, Group: "g"}
	for _, seq := range seqs {
		s.Done = append(s.Done, store.Range{First: seq, Last: seq})
	}
	return s
}

func settleAnyOrder(t *trial) {
	t.putAll(notes(topicA, 300))
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
	for _, c := range []struct {
		s     store.Settlement
		floor uint64
		above store.Ranges
	}{
		{done(3), 0, store.Ranges{{First: 3, Last: 3}}},
		{done(5, 4), 0, store.Ranges{{First: 3, Last: 5}}},
		{done(10, 2), 0, store.Ranges{{First: 2, Last: 5}, {First: 10, Last: 10}}},
		{done(1), 5, store.Ranges{{First: 10, Last: 10}}},
		{store.Settlement{Topic: topicA, Group: "g", Done: []store.Range{{First: 8, Last: 12}, {First: 9, Last: 10}}}, 5, store.Ranges{{First: 8, Last: 12}}},
		{store.Settlement{Topic: topicA, Group: "g", Done: []store.Range{{First: 1, Last: 7}}}, 12, nil},
		{store.Settlement{Topic: topicA, Group: "g", Done: []store.Range{{First: 13, Last: 300}}}, 300, nil},
	} {
		t.settle(c.s)
		t.reopens(func(string) {
			t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1, Floor: c.floor, Settled: c.above})
		})
	}
	// Every second one, then the rest, in random order.
	t.makeGroup(store.Cursor{Topic: topicA, Group: "h"})
	order := rand.New(rand.NewPCG(5, 6)).Perm(150)
	for _, odd := range []uint64{0, 1} {
		for _, i := range order {
			s := done(uint64(2*i) + 2 - odd)
			s.Group = "h"
			t.settle(s)
		}
		if odd == 0 {
			if c := t.cursor(topicA, "h"); c.Floor != 0 || c.Settled.Len() != 150 || len(c.Settled) != 150 {
				t.Fatalf("floor %d and %d settled in %d ranges; want 0 and 150 in 150", c.Floor, c.Settled.Len(), len(c.Settled))
			}
		}
	}
	t.wantCursor(store.Cursor{Topic: topicA, Group: "h", Version: 1, Floor: 300})
}

func settleAttempts(t *trial) {
	t.putAll(notes(topicA, 20))
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g", Attempts: map[uint64]uint32{2: 4}})
	attempts := func(list ...store.Attempt) store.Settlement {
		return store.Settlement{Topic: topicA, Group: "g", Attempts: list}
	}
	want := store.Cursor{Topic: topicA, Group: "g", Version: 1}
	for _, c := range []struct {
		s     store.Settlement
		floor uint64
		above store.Ranges
		left  map[uint64]uint32
	}{
		{attempts(store.Attempt{Seq: 5, Count: 1}, store.Attempt{Seq: 6, Count: 2}), 0, nil, map[uint64]uint32{2: 4, 5: 1, 6: 2}},
		{attempts(store.Attempt{Seq: 5, Count: 2}), 0, nil, map[uint64]uint32{2: 4, 5: 2, 6: 2}},
		{done(5), 0, store.Ranges{{First: 5, Last: 5}}, map[uint64]uint32{2: 4, 6: 2}},
		{attempts(store.Attempt{Seq: 5, Count: 3}), 0, store.Ranges{{First: 5, Last: 5}}, map[uint64]uint32{2: 4, 6: 2}},
		{done(1, 2, 3), 3, store.Ranges{{First: 5, Last: 5}}, map[uint64]uint32{6: 2}},
		{attempts(store.Attempt{Seq: 2, Count: 9}), 3, store.Ranges{{First: 5, Last: 5}}, map[uint64]uint32{6: 2}},
		{done(4, 6), 6, nil, nil},
	} {
		t.settle(c.s)
		want.Floor, want.Settled, want.Attempts = c.floor, c.above, c.left
		t.reopens(func(string) { t.wantCursor(want) })
	}
}

func settleHanded(t *trial) {
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
	want := store.Cursor{Topic: topicA, Group: "g", Version: 1}
	// The watermark may run ahead of the log.
	for _, c := range []struct{ handed, want uint64 }{{10, 10}, {4, 10}, {0, 10}, {1000, 1000}} {
		t.settle(store.Settlement{Topic: topicA, Group: "g", Handed: c.handed})
		want.Handed = c.want
		t.reopens(func(string) { t.wantCursor(want) })
	}
}

func settleTwice(t *trial) {
	t.putAll(notes(topicA, 20))
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
	s := store.Settlement{Topic: topicA, Group: "g", Done: []store.Range{{First: 1, Last: 3}, {First: 7, Last: 9}}, Attempts: []store.Attempt{{Seq: 5, Count: 2}}, Handed: 12}
	want := store.Cursor{Topic: topicA, Group: "g", Version: 1, Floor: 3, Settled: store.Ranges{{First: 7, Last: 9}}, Attempts: map[uint64]uint32{5: 2}, Handed: 12}
	for range 3 {
		t.settle(s)
		t.reopens(func(string) { t.wantCursor(want) })
	}
	t.append(store.Batch{Settle: []store.Settlement{s, s}})
	t.wantCursor(want)
}

// settleVersion: who has read a cursor may replace it although settlements
// came in between; they are guarded by the epoch instead.
func settleVersion(t *trial) {
	t.putAll(notes(topicA, 20))
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g", Epoch: 1})
	c := t.cursor(topicA, "g")
	s := done(1, 2)
	s.Epoch = 1
	t.settle(s)
	if got := t.cursor(topicA, "g"); got.Version != 1 || got.Floor != 2 {
		t.Fatalf("version %d and floor %d after a settlement, want 1 and 2", got.Version, got.Floor)
	}
	c.Epoch, c.Floor = 2, 10 // a cursor that was moved
	version, err := t.e.PutCursor(t.ctx, c)
	t.ok(err, "put cursor")
	if _, err := t.e.Append(t.ctx, store.Batch{Settle: []store.Settlement{s}}); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("settle with the epoch of the owner before: %v, want fenced", err)
	}
	s.Epoch, s.Done = 2, []store.Range{{First: 11, Last: 11}}
	t.settle(s)
	t.reopens(func(string) {
		t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: version, Epoch: 2, Floor: 11})
	})
}

func settleRefused(t *trial) {
	t.putAll(notes(topicA, 5))
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g", Epoch: 2})
	for _, c := range []struct {
		s    store.Settlement
		want error
	}{
		{store.Settlement{Topic: topicA, Group: "g", Epoch: 1, Handed: 3}, store.ErrFenced},
		{store.Settlement{Topic: topicA, Group: "g", Epoch: 3, Handed: 3}, store.ErrFenced},
		{store.Settlement{Topic: topicA, Group: "h", Epoch: 2, Handed: 3}, store.ErrNotFound},
		{store.Settlement{Topic: topicC, Group: "g", Epoch: 2, Handed: 3}, store.ErrNotFound},
		{store.Settlement{Topic: topicA, Group: "g", Epoch: 2, Done: []store.Range{{First: 6, Last: 6}}}, store.ErrInvalid},
		{store.Settlement{Topic: topicA, Group: "g", Epoch: 2, Done: []store.Range{{First: 1, Last: 2}, {First: 4, Last: 6}}}, store.ErrInvalid},
	} {
		if _, err := t.e.Append(t.ctx, store.Batch{Settle: []store.Settlement{c.s}}); !errors.Is(err, c.want) {
			t.Fatalf("settle %+v: %v, want %q", c.s, err, c.want)
		}
	}
	t.reopens(func(string) { t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1, Epoch: 2}) })
	t.ok(t.e.DeleteCursor(t.ctx, topicA, "g", 1), "delete cursor")
	s := done(1)
	s.Epoch = 2
	if _, err := t.e.Append(t.ctx, store.Batch{Settle: []store.Settlement{s}}); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("settle a deleted group: %v, want not found", err)
	}
	// That there is no group says more than that there is no event.
	s.Done[0].Last = 9
	if _, err := t.e.Append(t.ctx, store.Batch{Settle: []store.Settlement{s}}); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("settle what does not exist in a deleted group: %v, want not found", err)
	}
}

// settlePending settles events whose append was answered and may not be
// durable yet: settlements are judged against all that was accepted.
// settleTake takes the epoch away from many who settle: what they were told is
// done is in the cursor, and afterwards they settle no more.
func settleTake(t *trial) {
	const settlers, each = 4, 25
	t.putAll(notes(topicA, settlers*each))
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g", Epoch: 2})
	take := store.Settlement{Topic: topicA, Group: "g", Epoch: 2, Take: 7}
	if _, shared := t.e.(store.Shared); !shared {
		if _, err := t.e.Append(t.ctx, store.Batch{Settle: []store.Settlement{take}}); !errors.Is(err, store.ErrInvalid) {
			t.Fatalf("take an epoch: %v, want %q", err, store.ErrInvalid)
		}
		t.reopens(func(string) { t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1, Epoch: 2}) })
		return
	}
	var mu sync.Mutex
	want := store.Cursor{Topic: topicA, Group: "g", Version: 1, Epoch: 7}
	begun := make(chan struct{}, settlers*each)
	var all sync.WaitGroup
	for w := range settlers {
		all.Go(func() {
			for n := range each {
				begun <- struct{}{}
				s := done(uint64(n*settlers + w + 1))
				s.Epoch = 2
				_, err := t.e.Append(t.ctx, store.Batch{Settle: []store.Settlement{s}})
				switch {
				case err == nil:
					mu.Lock()
					want.Settle(&s)
					mu.Unlock()
				case !errors.Is(err, store.ErrFenced):
					t.Errorf("settle: %v", err)
				default:
					return
				}
			}
		})
	}
	for range settlers * each / 4 {
		<-begun // in the middle of it
	}
	t.settle(take)
	all.Wait()
	if t.Failed() {
		return
	}
	t.reopens(func(string) { t.wantCursor(want) })
	for _, s := range []store.Settlement{{Handed: 3, Epoch: 2}, {Take: 9, Epoch: 2}, {Take: 9, Epoch: 6}} {
		s.Topic, s.Group = topicA, "g"
		if _, err := t.e.Append(t.ctx, store.Batch{Settle: []store.Settlement{s}}); !errors.Is(err, store.ErrFenced) {
			t.Fatalf("settle %+v when the epoch is 7: %v, want %q", s, err, store.ErrFenced)
		}
	}
	t.settle(store.Settlement{Topic: topicA, Group: "g", Epoch: 7, Take: 8, Handed: 3})
	want.Epoch, want.Handed = 8, 3
	t.reopens(func(string) { t.wantCursor(want) })
}

func settlePending(t *trial) {
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
	for n := range 100 {
		seq := t.append(store.Batch{Events: []event.Event{note(topicA, n)}, Async: true})[0].Seq
		t.settle(done(seq))
		t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1, Floor: seq})
	}
	// Several callers, each behind its own events.
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for n := range 20 {
				got, err := t.e.Append(t.ctx, store.Batch{Events: []event.Event{note(topicA, n)}, Async: true})
				if err == nil {
					_, err = t.e.Append(t.ctx, store.Batch{Settle: []store.Settlement{done(got[0].Seq)}})
				}
				if err != nil {
					t.Errorf("settle: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	if !t.Failed() {
		t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1, Floor: 260})
	}
}

func settleSeveral(t *trial) {
	t.putAll(notes(topicA, 10))
	topics := []string{topicA, topicA}
	if t.spans() {
		topics[1] = topicB
		t.putAll(notes(topicB, 10))
	}
	t.makeGroup(store.Cursor{Topic: topics[0], Group: "g"})
	t.makeGroup(store.Cursor{Topic: topics[1], Group: "h"})
	b := store.Batch{Settle: []store.Settlement{
		{Topic: topics[0], Group: "g", Done: []store.Range{{First: 1, Last: 4}}},
		{Topic: topics[1], Group: "h", Done: []store.Range{{First: 2, Last: 2}}},
		{Topic: topics[0], Group: "g", Done: []store.Range{{First: 6, Last: 6}}, Handed: 9},
	}}
	t.append(b)
	t.reopens(func(string) {
		t.wantCursor(store.Cursor{Topic: topics[0], Group: "g", Version: 1, Floor: 4, Settled: store.Ranges{{First: 6, Last: 6}}, Handed: 9})
		t.wantCursor(store.Cursor{Topic: topics[1], Group: "h", Version: 1, Settled: store.Ranges{{First: 2, Last: 2}}})
	})
}

// settleMany has workers settle their share of a topic, each seq in a call of
// its own and some with events beside them, as consumers that forward do.
func settleMany(t *trial) {
	const workers, each = 8, 40
	t.putAll(notes(topicA, workers*each))
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for n := range each {
				s := done(uint64(n*workers + w + 1))
				s.Handed = s.Done[0].Last
				b := store.Batch{Settle: []store.Settlement{s}}
				if n%4 == 0 && t.spans() && t.settlesBeside() {
					b.Events = []event.Event{note(topicB, n)}
				}
				if _, err := t.e.Append(t.ctx, b); err != nil {
					t.Errorf("settle: %v", err)
					return
				}
				if c, err := t.e.Cursor(t.ctx, topicA, "g"); err != nil || c.Floor < s.Done[0].Last && !c.Settled.Contains(s.Done[0].Last) {
					t.Errorf("seq %d is settled, and the cursor says %+v, %v", s.Done[0].Last, c, err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	t.reopens(func(string) {
		t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1, Floor: workers * each, Handed: workers * each})
		if t.spans() && t.settlesBeside() {
			t.wantBounds(topicB, 1, workers*each/4)
		}
	})
}

// settleTrimmed: what retention removed is settled like anything else.
func settleTrimmed(t *trial) {
	t.putAll(notes(topicA, 20))
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
	t.settle(done(15))
	t.ok(t.e.Trim(t.ctx, topicA, 100), "trim")
	t.settle(store.Settlement{Topic: topicA, Group: "g", Done: []store.Range{{First: 1, Last: 10}}})
	t.reopens(func(string) {
		t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1, Floor: 10, Settled: store.Ranges{{First: 15, Last: 15}}})
	})
}
