package storetest

import (
	"promethean/event"
	"promethean/store"
)

var orderCases = []Case{
	{Name: "order/first seq is 1", run: firstSeqIsOne},
	{Name: "order/topics count apart", run: topicsCountApart},
	{Name: "order/a batch counts in the order given", run: batchCountsInOrder},
	{Name: "order/a batch over topics counts in the order given", needs: needsTopics, run: batchOverTopicsCounts},
	{Name: "order/the caller's seq is ignored", run: callersSeqIsIgnored},
	{Name: "order/appended is found by every call", run: appendedIsFound},
	{Name: "order/goes on after reopening", needs: needsReopen, run: orderGoesOn},
}

func firstSeqIsOne(t *trial) {
	t.wantBounds(topicA, 1, 0)
	for want := uint64(1); want <= 20; want++ {
		got := t.append(store.Batch{Events: []event.Event{note(topicA, int(want))}})
		if got[0].Seq != want || got[0].Duplicate {
			t.Fatalf("append %d: seq %d, duplicate %v", want, got[0].Seq, got[0].Duplicate)
		}
		t.wantBounds(topicA, 1, want)
	}
}

func topicsCountApart(t *trial) {
	var logs [3][]event.Event
	topics := []string{topicA, topicB, topicC}
	for n := range 30 {
		// Not round-robin, so that a shared counter cannot look like three.
		which := n * n % 3
		e := t.put(note(topics[which], n))
		logs[which] = append(logs[which], e...)
		if got, want := e[0].Seq, uint64(len(logs[which])); got != want {
			t.Fatalf("topic %s: seq %d, want %d", topics[which], got, want)
		}
	}
	t.reopens(func(string) {
		for i, topic := range topics {
			t.wantLog(topic, logs[i])
			t.wantBounds(topic, 1, uint64(len(logs[i])))
		}
	})
}

func batchCountsInOrder(t *trial) {
	var log []event.Event
	for _, size := range []int{1, 2, 7, 100, 1, t.h.MaxBatch} {
		log = append(log, t.put(notes(topicA, size)...)...)
	}
	for i := range log {
		if log[i].Seq != uint64(i+1) {
			t.Fatalf("event %d has seq %d", i+1, log[i].Seq)
		}
	}
	t.reopens(func(string) { t.wantLog(topicA, log) })
}

func batchOverTopicsCounts(t *trial) {
	topics := []string{topicB, topicA, topicB, topicC, topicA, topicB}
	logs := make(map[string][]event.Event)
	for round := range 5 {
		var batch []event.Event
		for i, topic := range topics {
			batch = append(batch, note(topic, 10*round+i))
		}
		for _, e := range t.put(batch...) {
			logs[e.Topic] = append(logs[e.Topic], e)
			if want := uint64(len(logs[e.Topic])); e.Seq != want {
				t.Fatalf("topic %s: seq %d, want %d", e.Topic, e.Seq, want)
			}
		}
	}
	t.reopens(func(string) {
		for topic, log := range logs {
			t.wantLog(topic, log)
		}
	})
}

func callersSeqIsIgnored(t *trial) {
	log := t.put(at(note(topicA, 1), 77), at(note(topicA, 2), 1))
	if log[0].Seq != 1 || log[1].Seq != 2 {
		t.Fatalf("seqs %d and %d, want 1 and 2", log[0].Seq, log[1].Seq)
	}
	t.wantLog(topicA, log)
}

// appendedIsFound tries, right after each acknowledgement, every call that
// could be served from an index that lags behind.
func appendedIsFound(t *trial) {
	for n := range 200 {
		e := t.put(keyed(topicA, "k", n))[0]
		if seq, err := t.e.LocateID(t.ctx, topicA, e.ID); err != nil || seq != e.Seq {
			t.Fatalf("locate id of seq %d: %d, %v", e.Seq, seq, err)
		}
		if seq, err := t.e.LocateTime(t.ctx, topicA, e.TS); err != nil || seq != e.Seq {
			t.Fatalf("locate time of seq %d: %d, %v", e.Seq, seq, err)
		}
		for _, q := range []store.Query{
			{Topic: topicA, After: e.Seq - 1},
			{Topic: topicA, Reverse: true, Limit: 1},
			{Topic: topicA, Key: "k", After: e.Seq - 1},
			{Topic: topicA, Key: "k", Reverse: true, Limit: 1},
		} {
			t.wantRead(q, []event.Event{e})
		}
		t.wantBounds(topicA, 1, e.Seq)
		again := t.append(store.Batch{Events: []event.Event{e}})
		if !again[0].Duplicate || again[0].Seq != e.Seq {
			t.Fatalf("appended again, seq %d is not known", e.Seq)
		}
	}
}

func orderGoesOn(t *trial) {
	var log []event.Event
	for round := range 5 {
		log = append(log, t.put(notes(topicA, 3+round)...)...)
		t.reopen()
		t.wantBounds(topicA, 1, uint64(len(log)))
		t.wantLog(topicA, log)
	}
}
