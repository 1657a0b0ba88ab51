package storetest

import (
	"promethean/event"
	"promethean/store"
)

var asyncCases = []Case{
	{Name: "async/becomes visible", run: asyncVisible},
	{Name: "async/in order with the others", run: asyncInOrder},
	{Name: "async/by setting of the topic", run: asyncBySetting},
	{Name: "async/is there after Close", needs: needsReopen, run: asyncAfterClose},
}

// await waits until seq of a topic is visible.
func (t *trial) await(topic string, seq uint64) {
	t.Helper()
	w := t.e.Watch(topic)
	defer w.Stop()
	for t.bounds(topic).Last < seq {
		t.wait(w.C, "an asynchronous append to become visible")
	}
}

func asyncVisible(t *trial) {
	for n := range 50 {
		events := []event.Event{note(topicA, n), note(topicA, n)}
		got := t.append(store.Batch{Events: events, Async: true})
		t.await(topicA, got[1].Seq)
		t.wantRead(store.Query{Topic: topicA, After: got[0].Seq - 1}, []event.Event{at(events[0], got[0].Seq), at(events[1], got[1].Seq)})
	}
}

func asyncInOrder(t *trial) {
	var log []event.Event
	for n := range 300 {
		e := note(topicA, n)
		got := t.append(store.Batch{Events: []event.Event{e}, Async: n%10 != 9})
		log = append(log, at(e, got[0].Seq))
		if got[0].Seq != uint64(n+1) {
			t.Fatalf("append %d: seq %d", n+1, got[0].Seq)
		}
		if n%10 == 9 { // durable, and so is all before it
			t.wantLog(topicA, log)
		}
	}
	t.await(topicA, uint64(len(log)))
	t.reopens(func(string) { t.wantLog(topicA, log) })
}

func asyncBySetting(t *trial) {
	t.ok(t.e.SetTopic(t.ctx, topicA, store.Settings{Async: true}), "set topic")
	var log []event.Event
	for n := range 50 {
		e := note(topicA, n)
		log = append(log, at(e, t.append(store.Batch{Events: []event.Event{e}})[0].Seq))
	}
	t.await(topicA, uint64(len(log)))
	t.wantLog(topicA, log)
	if t.spans() { // a batch is asynchronous only if all of its topics are
		a, b := note(topicA, 100), note(topicB, 100)
		got := t.append(store.Batch{Events: []event.Event{a, b}})
		t.wantBounds(topicA, 1, got[0].Seq)
		t.wantLog(topicB, []event.Event{at(b, got[1].Seq)})
	}
}

func asyncAfterClose(t *trial) {
	var log []event.Event
	for n := range 100 {
		e := note(topicA, n)
		log = append(log, at(e, t.append(store.Batch{Events: []event.Event{e}, Async: true})[0].Seq))
	}
	t.reopen() // Close answers what waits
	t.wantLog(topicA, log)
}
