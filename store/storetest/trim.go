package storetest

import (
	"fmt"
	"math"

	"promethean/event"
	"promethean/store"
)

var trimCases = []Case{
	{Name: "trim/bounds and reads", run: trimBoundsAndReads},
	{Name: "trim/beyond the end", run: trimBeyondEnd},
	{Name: "trim/what is not there", run: trimNothing},
	{Name: "trim/only its own topic", run: trimOwnTopic},
	{Name: "trim/keys follow", run: trimKeys},
	{Name: "trim/bytes shrink", run: trimBytes},
}

func trimBoundsAndReads(t *trial) {
	log := t.putAll(notes(topicA, 100))
	for _, before := range []uint64{1, 2, 11, 10, 11, 60, 1, 100} {
		t.ok(t.e.Trim(t.ctx, topicA, before), "trim before %d", before)
		for len(log) > 0 && log[0].Seq < before {
			log = log[1:]
		}
		first := log[0].Seq
		t.wantBounds(topicA, first, 100)
		t.wantLog(topicA, log)
		t.wantRead(store.Query{Topic: topicA, After: first - 1, Limit: 1}, log[:1])
		if first > 1 { // an Until of 0 would be no bound
			t.wantRead(store.Query{Topic: topicA, Until: first - 1}, nil)
		}
		t.wantRead(store.Query{Topic: topicA, Until: first, Reverse: true}, log[:1])
	}
	t.reopens(func(string) {
		t.wantBounds(topicA, 100, 100)
		t.wantLog(topicA, log)
	})
}

// trimBeyondEnd: a seq is never given twice, also not after everything is gone.
func trimBeyondEnd(t *trial) {
	last := uint64(0)
	for round, before := range []uint64{6, 1000, math.MaxUint64} {
		t.put(notes(topicA, 5)...)
		last += 5
		t.ok(t.e.Trim(t.ctx, topicA, before), "trim before %d", before)
		t.reopens(func(string) {
			t.wantBounds(topicA, last+1, last)
			if b := t.bounds(topicA); !b.Empty() {
				t.Fatalf("round %d: bounds %+v after everything was trimmed", round, b)
			}
			t.wantLog(topicA, nil)
			t.wantRead(store.Query{Topic: topicA, Reverse: true}, nil)
		})
	}
	e := t.put(note(topicA, 0))[0]
	if e.Seq != last+1 {
		t.Fatalf("the next seq is %d, want %d", e.Seq, last+1)
	}
	t.reopens(func(string) {
		t.wantBounds(topicA, last+1, last+1)
		t.wantLog(topicA, []event.Event{e})
	})
}

func trimNothing(t *trial) {
	t.ok(t.e.Trim(t.ctx, topicA, 50), "trim an unknown topic")
	t.wantBounds(topicA, 1, 0)
	t.ok(t.e.SetTopic(t.ctx, topicA, store.Settings{}), "set topic")
	t.ok(t.e.Trim(t.ctx, topicA, 50), "trim an empty topic")
	t.reopens(func(string) { t.wantBounds(topicA, 1, 0) })
	// A trim is about what is there, not about what comes.
	log := t.put(notes(topicA, 3)...)
	if log[0].Seq != 1 {
		t.Fatalf("the first seq is %d, want 1", log[0].Seq)
	}
	t.ok(t.e.Trim(t.ctx, topicA, 0), "trim before 0")
	t.reopens(func(string) { t.wantLog(topicA, log) })
}

func trimOwnTopic(t *trial) {
	logs := make(map[string][]event.Event)
	topics := []string{topicA, topicB, topicC}
	for n := range 30 {
		for _, topic := range topics {
			logs[topic] = append(logs[topic], t.put(keyed(topic, "k", n))...)
		}
	}
	t.ok(t.e.Trim(t.ctx, topicA, 21), "trim")
	logs[topicA] = logs[topicA][20:]
	t.ok(t.e.Trim(t.ctx, topicB, 31), "trim")
	logs[topicB] = nil
	t.reopens(func(string) {
		for _, topic := range topics {
			t.wantLog(topic, logs[topic])
			t.wantRead(store.Query{Topic: topic, Key: "k"}, logs[topic])
		}
	})
}

func trimKeys(t *trial) {
	var events []event.Event
	for n := range 200 {
		events = append(events, keyed(topicA, fmt.Sprintf("k%d", n*n%17), n))
	}
	log := t.putAll(events)
	for _, before := range []uint64{2, 50, 140, 200} {
		t.ok(t.e.Trim(t.ctx, topicA, before), "trim")
		for k := range 17 {
			for _, reverse := range []bool{false, true} {
				q := store.Query{Topic: topicA, Key: fmt.Sprintf("k%d", k), Reverse: reverse}
				t.wantRead(q, pick(log[before-1:], q))
			}
		}
	}
	t.reopens(func(string) {
		t.wantRead(store.Query{Topic: topicA, Key: log[199].Key}, log[199:])
		t.wantRead(store.Query{Topic: topicA, Key: "k3", Until: 150}, nil)
	})
}

func trimBytes(t *trial) {
	if b := t.bounds(topicA); b.Bytes != 0 {
		t.Fatalf("an unknown topic has %d bytes", b.Bytes)
	}
	const count, size = 200, 1000
	for range count / 20 {
		var events []event.Event
		for range 20 {
			events = append(events, sized(topicA, size))
		}
		t.put(events...)
	}
	before := t.bounds(topicA).Bytes
	// "About": an engine may count after compression or with its overhead.
	if before < count*size/10 || before > count*size*10 {
		t.Fatalf("%d events of %d bytes take %d bytes", count, size, before)
	}
	t.ok(t.e.Trim(t.ctx, topicA, count/2+1), "trim")
	half := t.bounds(topicA).Bytes
	if half <= 0 || half >= before {
		t.Fatalf("%d bytes before half was trimmed, %d after", before, half)
	}
	t.ok(t.e.Trim(t.ctx, topicA, count+1), "trim")
	t.reopens(func(when string) {
		if b := t.bounds(topicA); b.Bytes < 0 || b.Bytes >= half {
			t.Fatalf("%s: %d bytes before all was trimmed, %d after", when, half, b.Bytes)
		}
	})
}
