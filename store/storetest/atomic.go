package storetest

import (
	"encoding/json"
	"errors"

	"promethean/event"
	"promethean/store"
)

var atomicCases = []Case{
	{Name: "atomic/a bad event stores nothing", run: badEventStoresNothing},
	{Name: "atomic/a bad event over topics stores nothing", needs: needsTopics, run: badEventOverTopics},
	{Name: "atomic/a failed expectation stores nothing", run: failedExpectStoresNothing},
	{Name: "atomic/a refused settlement stores nothing", needs: needsSettles, run: refusedSettlementStoresNothing},
	{Name: "atomic/a refused batch settles nothing", needs: needsSettles, run: refusedBatchSettlesNothing},
	{Name: "atomic/events and settlement together", needs: needsSettles, run: eventsAndSettlement},
}

// refused appends a batch that must fail with want, see refusal.
func (t *trial) refused(b store.Batch, want error, topics ...string) {
	t.Helper()
	_ = t.refusal(b, want, topics...)
}

// refusal appends a batch that must fail with want, and checks that the topics
// are as they were and that the refused ids are not taken for known. It gives
// the error for a closer look.
func (t *trial) refusal(b store.Batch, want error, topics ...string) error {
	t.Helper()
	before := make(map[string][]event.Event)
	for _, topic := range topics {
		before[topic] = t.read(store.Query{Topic: topic})
	}
	answers, err := t.e.Append(t.ctx, b)
	if !errors.Is(err, want) {
		t.Fatalf("append: %v, want %q", err, want)
	}
	if answers != nil {
		t.Fatalf("append failed and gave %d answers", len(answers))
	}
	for _, topic := range topics {
		last := uint64(0)
		if n := len(before[topic]); n > 0 {
			last = before[topic][n-1].Seq
		}
		t.wantLog(topic, before[topic])
		if b := t.bounds(topic); b.Last != last {
			t.Fatalf("topic %s: last seq is %d after a refused batch, was %d", topic, b.Last, last)
		}
	}
	for _, e := range b.Events {
		if e.ID.IsZero() || event.CheckTopic(e.Topic) != nil {
			continue
		}
		known := false
		for _, old := range before[e.Topic] {
			known = known || old.ID == e.ID
		}
		if seq, err := t.e.LocateID(t.ctx, e.Topic, e.ID); !known && !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("locate an id of a refused batch: seq %d, %v; want not found", seq, err)
		}
	}
	return err
}

func badEventStoresNothing(t *trial) {
	log := t.put(notes(topicA, 3)...)
	for _, index := range []int{0, 1, 4} {
		batch := notes(topicA, 5)
		batch[index].Payload = json.RawMessage(`{"n":`)
		err := t.refusal(store.Batch{Events: batch}, event.ErrBadJSON, topicA)
		var bad *store.EventError
		if !errors.As(err, &bad) || bad.Index != index {
			t.Fatalf("append: %v; want an EventError with index %d", err, index)
		}
		// The sound events of the batch are free to come again.
		batch[index].Payload = json.RawMessage(`{}`)
		log = append(log, t.put(batch...)...)
	}
	t.reopens(func(string) { t.wantLog(topicA, log) })
}

func badEventOverTopics(t *trial) {
	t.put(note(topicA, 1))
	bad := note(topicC, 3)
	bad.ID = event.ID{}
	err := t.refusal(store.Batch{Events: []event.Event{note(topicA, 2), note(topicB, 2), bad}}, event.ErrInvalidArgument, topicA, topicB, topicC)
	var at *store.EventError
	if !errors.As(err, &at) || at.Index != 2 {
		t.Fatalf("append: %v; want an EventError with index 2", err)
	}
}

func failedExpectStoresNothing(t *trial) {
	t.put(note(topicA, 1))
	t.refused(store.Batch{Events: notes(topicA, 3), Expect: []store.Expect{{Topic: topicA, Seq: 7}}}, store.ErrSeqConflict, topicA)
	// One condition that holds does not save one that fails.
	t.refused(store.Batch{
		Events: notes(topicA, 3),
		Expect: []store.Expect{{Topic: topicA, Seq: 1}, {Topic: topicA, Key: "k", Seq: 9}},
	}, store.ErrSeqConflict, topicA)
	if got := t.put(note(topicA, 2)); got[0].Seq != 2 {
		t.Fatalf("the refused batches used up seqs: the next is %d, want 2", got[0].Seq)
	}
}

func refusedSettlementStoresNothing(t *trial) {
	t.put(notes(topicA, 5)...)
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g", Epoch: 3})
	good := store.Settlement{Topic: topicA, Group: "g", Epoch: 3, Done: []store.Range{{First: 1, Last: 2}}}
	for _, c := range []struct {
		name string
		s    store.Settlement
		want error
	}{
		{"an old epoch", store.Settlement{Topic: topicA, Group: "g", Epoch: 2, Done: good.Done}, store.ErrFenced},
		{"a coming epoch", store.Settlement{Topic: topicA, Group: "g", Epoch: 4, Done: good.Done}, store.ErrFenced},
		{"an unknown group", store.Settlement{Topic: topicA, Group: "h", Epoch: 3, Done: good.Done}, store.ErrNotFound},
		{"a group of another topic", store.Settlement{Topic: topicB, Group: "g", Epoch: 3, Done: good.Done}, store.ErrNotFound},
		{"a seq above the last", store.Settlement{Topic: topicA, Group: "g", Epoch: 3, Done: []store.Range{{First: 5, Last: 100}}}, store.ErrInvalid},
	} {
		t.Logf("with %s", c.name)
		t.refused(store.Batch{Events: notes(topicA, 2), Settle: []store.Settlement{c.s}}, c.want, topicA)
		t.refused(store.Batch{Events: notes(topicA, 2), Settle: []store.Settlement{good, c.s}}, c.want, topicA)
		t.refused(store.Batch{Settle: []store.Settlement{good, c.s}}, c.want, topicA)
		t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1, Epoch: 3})
	}
	if got := t.put(note(topicA, 9)); got[0].Seq != 6 {
		t.Fatalf("the refused batches used up seqs: the next is %d, want 6", got[0].Seq)
	}
}

func refusedBatchSettlesNothing(t *trial) {
	t.put(notes(topicA, 5)...)
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
	settle := []store.Settlement{{Topic: topicA, Group: "g", Done: []store.Range{{First: 1, Last: 5}}, Handed: 5}}
	bad := note(topicA, 7)
	bad.Payload = nil
	t.refused(store.Batch{Events: []event.Event{bad}, Settle: settle}, event.ErrBadJSON, topicA)
	t.refused(store.Batch{Events: notes(topicA, 1), Settle: settle, Expect: []store.Expect{{Topic: topicA, Seq: 4}}}, store.ErrSeqConflict, topicA)
	t.reopens(func(string) { t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1}) })
}

func eventsAndSettlement(t *trial) {
	dead := topicA
	if t.spans() {
		dead = topicC // as a dead letter goes to a topic of its own
	}
	log := t.put(notes(topicA, 5)...)
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g", Epoch: 1})
	letter := note(dead, 100)
	batch := store.Batch{
		Events: []event.Event{letter},
		Settle: []store.Settlement{{Topic: topicA, Group: "g", Epoch: 1, Done: []store.Range{{First: 1, Last: 2}, {First: 4, Last: 4}}, Handed: 5}},
	}
	want := store.Cursor{Topic: topicA, Group: "g", Version: 1, Epoch: 1, Floor: 2, Settled: store.Ranges{{First: 4, Last: 4}}, Handed: 5}
	seq := t.append(batch)[0].Seq
	// A retry after a lost answer: the event is known, the settlement is
	// applied already.
	if got := t.append(batch); !got[0].Duplicate || got[0].Seq != seq {
		t.Fatalf("a retry gave seq %d, duplicate %v; want %d, true", got[0].Seq, got[0].Duplicate, seq)
	}
	t.reopens(func(string) {
		t.wantCursor(want)
		if dead == topicA {
			t.wantLog(topicA, append(log, at(letter, seq)))
		} else {
			t.wantLog(topicA, log)
			t.wantLog(dead, []event.Event{at(letter, seq)})
		}
	})
}
