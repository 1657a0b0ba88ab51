package natsstore_test

import (
	"context"
	"fmt"
	"testing"

	"promethean/event"
	"promethean/internal/natstest"
	"promethean/store"
	"promethean/store/natsstore"
)

// Reading in pieces, as a group does, gives what one read gives, also when the
// topic grows and is trimmed meanwhile.
func TestReadInPieces(t *testing.T) {
	s := open(t, natstest.Start(t, nil).URL(), natsstore.Options{})
	ctx := context.Background()
	const topic = "pieces.of"
	n := 0
	grow := func(by int) {
		for by > 0 {
			var events []event.Event
			for range min(by, 500) {
				n++
				e := event.New(topic, fmt.Appendf(nil, `{"n":%d}`, n))
				e.Key = fmt.Sprint("k", n%7)
				events = append(events, e)
			}
			if _, err := s.Append(ctx, store.Batch{Events: events}); err != nil {
				t.Fatal(err)
			}
			by -= len(events)
		}
	}
	grow(5000)
	pos := uint64(0)
	piece := func(limit int) int {
		got := 0
		for e, err := range s.Read(ctx, store.Query{Topic: topic, After: pos, Limit: limit}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Seq != pos+1 || string(e.Payload) != fmt.Sprintf(`{"n":%d}`, e.Seq) || e.Key != fmt.Sprint("k", e.Seq%7) {
				t.Fatalf("seq %d behind %d: key %s, %s", e.Seq, pos, e.Key, e.Payload)
			}
			pos = e.Seq
			got++
		}
		return got
	}
	for _, limit := range []int{100, 100, 700, 64, 1500, 100} {
		if got := piece(limit); got != limit {
			t.Fatalf("%d of %d events behind seq %d", got, limit, pos-uint64(got))
		}
	}
	// What was fetched ahead is gone.
	before := pos + 301
	if err := s.Trim(ctx, topic, before); err != nil {
		t.Fatal(err)
	}
	for e, err := range s.Read(ctx, store.Query{Topic: topic, After: pos, Limit: 100}) {
		if err != nil || e.Seq < before {
			t.Fatalf("seq %d, and everything below %d is trimmed: %v", e.Seq, before, err)
		}
	}
	pos = before - 1
	for i := range 60 {
		if i%10 == 0 {
			grow(300)
		}
		piece(100)
	}
	for piece(100) > 0 {
	}
	if pos != uint64(n) {
		t.Fatalf("the pieces end at seq %d, the topic at %d", pos, n)
	}
	// At the end, each event is there as soon as it is acknowledged.
	for range 50 {
		grow(1)
		if got := piece(100); got != 1 {
			t.Fatalf("%d events, want 1", got)
		}
	}
}
