package storetest

import (
	"errors"
	"math"

	"promethean/event"
	"promethean/store"
)

var beginCases = []Case{
	{Name: "begin/bounds and reads", needs: needsBegins, run: beginBounds},
	{Name: "begin/before the first event", needs: needsBegins | needsReopen, run: beginEmpty},
	{Name: "begin/only an empty topic", needs: needsBegins, run: beginRefused},
	{Name: "begin/what is said of the topic before", needs: needsBegins, run: beginKnown},
	{Name: "begin/with many events", needs: needsBegins, run: beginMany},
}

func (t *trial) begin(topic string, seq uint64) {
	t.Helper()
	t.ok(t.e.(store.Begins).Begin(t.ctx, topic, seq), "begin topic %s with %d", topic, seq)
}

func (t *trial) wantBegin(topic string, seq uint64, want error) {
	t.Helper()
	if err := t.e.(store.Begins).Begin(t.ctx, topic, seq); !errors.Is(err, want) {
		t.Fatalf("begin topic %s with %d: %v, want %v", topic, seq, err, want)
	}
}

func beginBounds(t *trial) {
	const first = 5_000_000_000
	t.begin(topicA, first)
	t.begin(topicA, first) // a repetition
	t.wantBounds(topicA, first, first-1)
	t.wantLog(topicA, nil)
	log := t.put(keyed(topicA, "a", 1), note(topicA, 2), keyed(topicA, "a", 3))
	if log[0].Seq != first {
		t.Fatalf("the first seq is %d, want %d", log[0].Seq, uint64(first))
	}
	log = append(log, t.put(keyed(topicA, "b", 4))...)
	t.reopens(func(string) { t.wantTopic(topicA, first+3, log) })
	log = append(log, t.put(keyed(topicA, "b", 5))...)
	t.wantDuplicate(log[1])
	t.ok(t.e.Trim(t.ctx, topicA, first+1), "trim")
	t.reopens(func(string) { t.wantTopic(topicA, first+4, log[1:]) })
}

// beginEmpty: it is kept also if no event comes before a restart.
func beginEmpty(t *trial) {
	t.begin(topicA, 42)
	for range 2 {
		t.reopen()
		t.wantBounds(topicA, 42, 41)
	}
	if e := t.put(note(topicA, 1))[0]; e.Seq != 42 {
		t.Fatalf("the first seq is %d, want 42", e.Seq)
	}
}

func beginRefused(t *trial) {
	t.put(notes(topicA, 3)...)
	for _, seq := range []uint64{1, 2, 4, 9} {
		t.wantBegin(topicA, seq, store.ErrConflict)
	}
	t.wantBounds(topicA, 1, 3)
	t.ok(t.e.Trim(t.ctx, topicA, 4), "trim")
	t.wantBegin(topicA, 9, store.ErrConflict)
	t.begin(topicA, 4)
	t.begin(topicB, 7)
	t.wantBegin(topicB, 8, store.ErrConflict)
	t.wantBegin(topicB, 1, store.ErrConflict)
	t.wantBegin(topicC, 0, store.ErrInvalid)
	t.wantBegin(topicC, math.MaxUint64, store.ErrInvalid)
	t.wantBegin("No topic", 3, event.ErrInvalidTopic)
	for _, row := range t.topics() {
		if row.Name == topicC {
			t.Fatal("a refused begin has made a topic")
		}
	}
	if e := t.put(note(topicA, 1))[0]; e.Seq != 4 {
		t.Fatalf("the next seq is %d, want 4", e.Seq)
	}
}

// beginKnown: settings and groups that came first stay, and expectations are
// about the new place.
func beginKnown(t *trial) {
	set := store.Settings{Partitions: 3, Meta: []byte(`{"a":1}`)}
	t.ok(t.e.SetTopic(t.ctx, topicA, set), "set topic")
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g", Floor: 7})
	t.begin(topicA, 1)
	t.begin(topicA, 11)
	t.wantSettings(topicA, set)
	t.wantConflict(store.Expect{Topic: topicA, Seq: 0}, 10)
	e := note(topicA, 1)
	got := t.append(store.Batch{Events: []event.Event{e}, Expect: []store.Expect{{Topic: topicA, Seq: 10}}})
	if got[0].Seq != 11 {
		t.Fatalf("the first seq is %d, want 11", got[0].Seq)
	}
	t.settle(store.Settlement{Topic: topicA, Group: "g", Done: []store.Range{{First: 8, Last: 11}}})
	if c := t.cursor(topicA, "g"); c.Floor != 11 {
		t.Fatalf("the floor is %d, want 11", c.Floor)
	}
}

func beginMany(t *trial) {
	t.begin(topicA, 1_000_001)
	log := t.putAll(notes(topicA, 3000))
	t.reopens(func(string) { t.wantTopic(topicA, 1_003_000, log) })
}
