package storetest

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"promethean/event"
	"promethean/store"
)

var idempotenceCases = []Case{
	{Name: "idempotence/a known id gives the stored event", run: knownIDGivesStored},
	{Name: "idempotence/an id twice in one batch", run: idTwiceInBatch},
	{Name: "idempotence/known ids among new ones", run: knownAmongNew},
	{Name: "idempotence/an id is unique per topic", run: idUniquePerTopic},
	{Name: "idempotence/one id from many appenders", run: oneIDManyAppenders},
	{Name: "idempotence/an answer waits for the original", run: answerWaitsForOriginal},
	{Name: "idempotence/ids of any kind after many events", run: idsAfterMany},
	{Name: "idempotence/a trimmed id is free", run: trimmedIDIsFree},
}

// other gives an event with the id and topic of e and nothing else in common.
func other(e event.Event) event.Event {
	f := full(e.Topic, 4711)
	f.ID, f.TS = e.ID, e.TS+1000
	return f
}

// wantDuplicate appends an event with the id of stored, but other content, and
// checks that the stored one comes back.
func (t *trial) wantDuplicate(stored event.Event) {
	t.Helper()
	t.wantOriginal(t.append(store.Batch{Events: []event.Event{other(stored)}})[0], stored)
}

func (t *trial) wantOriginal(got store.Appended, stored event.Event) {
	t.Helper()
	switch {
	case !got.Duplicate:
		t.Fatalf("topic %s: the id of seq %d was stored again as seq %d", stored.Topic, stored.Seq, got.Seq)
	case got.Seq != stored.Seq:
		t.Fatalf("topic %s: duplicate of seq %d, want %d", stored.Topic, got.Seq, stored.Seq)
	case got.Original == nil:
		t.Fatalf("topic %s: duplicate of seq %d without the original", stored.Topic, stored.Seq)
	case !same(got.Original, &stored):
		t.Fatalf("the original is %s, want %s", show(got.Original), show(&stored))
	}
}

func knownIDGivesStored(t *trial) {
	var log []event.Event
	for n := range 10 {
		log = append(log, t.put(full(topicA, n))...)
	}
	t.reopens(func(string) {
		for _, e := range log {
			t.wantDuplicate(e)
		}
		t.wantLog(topicA, log)
		t.wantBounds(topicA, 1, uint64(len(log)))
	})
	if got := t.put(note(topicA, 99)); got[0].Seq != log[len(log)-1].Seq+1 {
		t.Fatalf("duplicates used up seqs: the next is %d after %d", got[0].Seq, log[len(log)-1].Seq)
	}
}

func idTwiceInBatch(t *trial) {
	first, between := full(topicA, 1), note(topicA, 2)
	got := t.append(store.Batch{Events: []event.Event{first, between, other(first), other(first)}})
	first, between = at(first, got[0].Seq), at(between, got[1].Seq)
	if got[0].Duplicate || got[1].Duplicate || got[1].Seq != got[0].Seq+1 {
		t.Fatalf("answers %+v", got)
	}
	t.wantOriginal(got[2], first)
	t.wantOriginal(got[3], first)
	t.reopens(func(string) { t.wantLog(topicA, []event.Event{first, between}) })
}

func knownAmongNew(t *trial) {
	log := t.put(notes(topicA, 4)...)
	fresh := notes(topicA, 3)
	got := t.append(store.Batch{Events: []event.Event{fresh[0], other(log[2]), fresh[1], other(log[0]), fresh[2]}})
	t.wantOriginal(got[1], log[2])
	t.wantOriginal(got[3], log[0])
	for i, index := range []int{0, 2, 4} {
		if got[index].Duplicate || got[index].Seq != uint64(5+i) {
			t.Fatalf("new event %d: seq %d, duplicate %v; want %d, false", index, got[index].Seq, got[index].Duplicate, 5+i)
		}
		log = append(log, at(fresh[i], got[index].Seq))
	}
	t.reopens(func(string) { t.wantLog(topicA, log) })
}

func idUniquePerTopic(t *trial) {
	a := t.put(note(topicA, 1), note(topicA, 2))[1]
	b := other(a)
	b.Topic = topicB
	b = t.put(b)[0] // fails if the id counts as known
	if b.Seq != 1 {
		t.Fatalf("topic %s: seq %d, want 1", topicB, b.Seq)
	}
	t.reopens(func(string) {
		t.wantDuplicate(a)
		t.wantDuplicate(b)
	})
	if t.spans() { // dual write: one id on two topics, at once
		c := note(topicA, 3)
		d := c
		d.Topic = topicC
		t.put(c, d)
	}
}

func oneIDManyAppenders(t *trial) {
	const appenders, rounds = 16, 20
	for round := range rounds {
		var fresh atomic.Int32
		answers := make([]store.Appended, appenders)
		candidates := make([]event.Event, appenders)
		id := event.NewID()
		if round%2 == 1 {
			id = randomID()
		}
		var all sync.WaitGroup
		for i := range appenders {
			candidates[i] = full(topicA, i)
			candidates[i].ID = id
			all.Go(func() {
				got, err := t.e.Append(t.ctx, store.Batch{Events: candidates[i : i+1]})
				if err == nil {
					err = answersFit(store.Batch{Events: candidates[i : i+1]}, got)
				}
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				if answers[i] = got[0]; !got[0].Duplicate {
					fresh.Add(1)
				}
				// Whoever got an answer must find the event, duplicate or not.
				if b, err := t.e.Bounds(t.ctx, topicA); err != nil || b.Last < got[0].Seq {
					t.Errorf("seq %d was answered, and the last visible one is %d, %v", got[0].Seq, b.Last, err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		if n := fresh.Load(); n != 1 {
			t.Fatalf("round %d: %d of %d appends of one id were new, want 1", round, n, appenders)
		}
		winner := slices.IndexFunc(answers, func(a store.Appended) bool { return !a.Duplicate })
		stored := at(candidates[winner], answers[winner].Seq)
		for i, a := range answers {
			if i != winner {
				t.wantOriginal(a, stored)
			}
		}
		t.wantRead(store.Query{Topic: topicA, After: uint64(round)}, []event.Event{stored})
	}
}

// answerWaitsForOriginal appends without waiting and then the same id with
// waiting: the second answer promises durability, so the event is visible.
func answerWaitsForOriginal(t *trial) {
	for n := range 50 {
		e := note(topicA, n)
		early := t.append(store.Batch{Events: []event.Event{e}, Async: true})[0]
		late := t.append(store.Batch{Events: []event.Event{e}})[0]
		t.wantOriginal(late, at(e, early.Seq))
		t.wantRead(store.Query{Topic: topicA, After: early.Seq - 1}, []event.Event{at(e, early.Seq)})
	}
}

func idsAfterMany(t *trial) {
	events := notes(topicA, t.h.Many)
	for i := range events {
		switch i % 3 {
		case 1:
			events[i].ID = randomID()
		case 2:
			events[i].ID = event.NameID(event.ID{7}, events[i].ID.String())
		}
	}
	log := t.putAll(events)
	spread := max(1, len(log)/97)
	t.reopens(func(string) {
		for i := 0; i < len(log); i += spread {
			t.wantDuplicate(log[i])
			if seq, err := t.e.LocateID(t.ctx, topicA, log[i].ID); err != nil || seq != log[i].Seq {
				t.Fatalf("locate id of seq %d: %d, %v", log[i].Seq, seq, err)
			}
		}
		// A whole batch again, as a publisher sends it after a lost answer.
		for i, a := range t.append(store.Batch{Events: log[:min(len(log), 100)]}) {
			t.wantOriginal(a, log[i])
		}
		if b := t.bounds(topicA); b.Last != uint64(len(log)) {
			t.Fatalf("last seq is %d after duplicates, want %d", b.Last, len(log))
		}
	})
}

func trimmedIDIsFree(t *trial) {
	log := t.put(notes(topicA, 10)...)
	t.ok(t.e.Trim(t.ctx, topicA, 6), "trim")
	t.reopens(func(when string) {
		if _, err := t.e.LocateID(t.ctx, topicA, log[2].ID); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("%s: locate a trimmed id: %v, want not found", when, err)
		}
		t.wantDuplicate(log[5]) // the first that is retained
	})
	again := log[2]
	again.Payload = json.RawMessage(`"again"`)
	again = t.put(again)[0]
	if again.Seq != 11 {
		t.Fatalf("seq %d, want 11", again.Seq)
	}
	t.reopens(func(string) {
		t.wantDuplicate(again)
		t.wantLog(topicA, append(slices.Clone(log[5:]), again))
	})
}
