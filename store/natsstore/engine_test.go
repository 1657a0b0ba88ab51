package natsstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/event"
	"promethean/internal/natstest"
	"promethean/store"
	"promethean/store/natsstore"
)

const topic = "orders.placed"

func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func newEvent(key string, n int) event.Event {
	e := event.New(topic, json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)))
	e.Key = key
	return e
}

func mustAppend(t testing.TB, s *natsstore.Store, b store.Batch) []store.Appended {
	t.Helper()
	got, err := s.Append(deadline(t), b)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func readAll(t testing.TB, s *natsstore.Store, q store.Query) (out []event.Event) {
	t.Helper()
	for e, err := range s.Read(deadline(t), q) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// ledger is what publishers were told.
type ledger struct {
	mu    sync.Mutex
	acked map[event.ID]uint64
}

// publish has one publisher append singles and batches through s. Its events
// say in SID who it is and how far it got.
func (l *ledger) publish(ctx context.Context, t testing.TB, s *natsstore.Store, who, count int) {
	for n := 0; n < count; {
		var b store.Batch
		for range 1 + n%3*(n%2) {
			e := newEvent(fmt.Sprint(who), n)
			e.SID = fmt.Sprintf("%d:%06d", who, n)
			b.Events = append(b.Events, e)
			n++
		}
		for first := true; ; first = false {
			got, err := s.Append(ctx, b)
			if errors.Is(err, store.ErrUnavailable) {
				continue // the same ids again
			}
			if err != nil {
				t.Errorf("publisher %d: %v", who, err)
				return
			}
			l.mu.Lock()
			for i := range got {
				l.acked[b.Events[i].ID] = got[i].Seq
				if first && got[i].Duplicate {
					t.Errorf("publisher %d: seq %d is called a duplicate, and was sent in one call alone", who, got[i].Seq)
				}
			}
			l.mu.Unlock()
			break
		}
	}
}

// judge compares the log with what publishers were told.
func (l *ledger) judge(t testing.TB, s *natsstore.Store) {
	t.Helper()
	log := readAll(t, s, store.Query{Topic: topic})
	if len(log) != len(l.acked) {
		t.Errorf("%d events were acknowledged, %d are there", len(l.acked), len(log))
	}
	last := make(map[string]string)
	for i, e := range log {
		if e.Seq != uint64(i+1) {
			t.Fatalf("event %d has seq %d", i+1, e.Seq)
		}
		if l.acked[e.ID] != e.Seq {
			t.Fatalf("seq %d holds an event that was acknowledged as %d", e.Seq, l.acked[e.ID])
		}
		delete(l.acked, e.ID) // a second one would not be found
		if e.SID <= last[e.Key] {
			t.Fatalf("seq %d, %s, comes after %s of the same publisher", e.Seq, e.SID, last[e.Key])
		}
		last[e.Key] = e.SID
	}
}

func TestSeveralStoresOneTopic(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	ctx := deadline(t)
	l := ledger{acked: make(map[event.ID]uint64)}
	var all sync.WaitGroup
	var stores []*natsstore.Store
	for range 3 {
		stores = append(stores, open(t, url, natsstore.Options{}))
	}
	for who := range 12 {
		all.Go(func() { l.publish(ctx, t, stores[who%3], who, 150) })
	}
	all.Wait()
	l.judge(t, stores[0])
}

// TestOneIDFromSeveralStores has stores append the same ids at the same time,
// alone and in batches that overlap.
func TestOneIDFromSeveralStores(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	ctx := deadline(t)
	stores := []*natsstore.Store{open(t, url, natsstore.Options{}), open(t, url, natsstore.Options{}), open(t, url, natsstore.Options{})}
	const rounds = 40
	for round := range rounds {
		events := []event.Event{newEvent("", round), newEvent("", round), newEvent("", round)}
		var all sync.WaitGroup
		var mu sync.Mutex
		fresh := make(map[event.ID]int)
		for i, s := range stores {
			all.Go(func() {
				batch := events
				if round%2 == 0 {
					batch = events[i : i+1 : i+1]
					batch = append(batch, events[(i+1)%3])
				}
				got, err := s.Append(ctx, store.Batch{Events: batch})
				if err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for j, a := range got {
					if !a.Duplicate {
						fresh[batch[j].ID]++
					} else if a.Original == nil || a.Original.ID != batch[j].ID {
						t.Errorf("round %d: a duplicate without its original", round)
					}
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		for _, e := range events {
			if fresh[e.ID] != 1 {
				t.Fatalf("round %d: an id was stored %d times", round, fresh[e.ID])
			}
		}
	}
	if log := readAll(t, stores[0], store.Query{Topic: topic}); len(log) != 3*rounds {
		t.Fatalf("%d events, want %d", len(log), 3*rounds)
	}
}

// TestIDBeyondTheWindow appends ids that the server has forgotten.
func TestIDBeyondTheWindow(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	o := natsstore.Options{Duplicates: time.Second}
	a, b := open(t, url, o), open(t, url, o)
	mustAppend(t, b, store.Batch{Events: []event.Event{newEvent("", 0)}}) // its index is old by then
	var events []event.Event
	for n := range 20 {
		events = append(events, newEvent("k", n))
	}
	first := mustAppend(t, a, store.Batch{Events: events})
	<-time.After(1500 * time.Millisecond) // the server's window
	for i, s := range []*natsstore.Store{a, b, open(t, url, o)} {
		for j, got := range mustAppend(t, s, store.Batch{Events: events}) {
			if !got.Duplicate || got.Seq != first[j].Seq || got.Original == nil || got.Original.ID != events[j].ID {
				t.Fatalf("store %d: event %d: %+v", i, j, got)
			}
		}
		if got := mustAppend(t, s, store.Batch{Events: events[3:4]}); !got[0].Duplicate {
			t.Fatalf("store %d stores a known id again", i)
		}
	}
}

// TestExpectationsTogether judges more at once than the server can.
func TestExpectationsTogether(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	s := open(t, url, natsstore.Options{})
	mustAppend(t, s, store.Batch{Events: []event.Event{newEvent("a", 1), newEvent("b", 2), newEvent("a", 3)}})
	good := []store.Expect{{Topic: topic, Key: "a", Seq: 3}, {Topic: topic, Key: "b", Seq: 2}, {Topic: topic, Key: "c"}, {Topic: topic, Seq: 3}}
	for i := range good {
		bad := append([]store.Expect(nil), good...)
		bad[i].Seq += 7
		_, err := s.Append(deadline(t), store.Batch{Events: []event.Event{newEvent("a", 4), newEvent("c", 5)}, Expect: bad})
		var conflict *store.SeqConflictError
		if !errors.As(err, &conflict) || conflict.Key != good[i].Key || conflict.Actual != good[i].Seq {
			t.Fatalf("expectation %d: %v", i, err)
		}
	}
	got := mustAppend(t, s, store.Batch{Events: []event.Event{newEvent("a", 4), newEvent("c", 5)}, Expect: good})
	if got[0].Seq != 4 || got[1].Seq != 5 {
		t.Fatalf("%+v", got)
	}
	_, err := s.Append(deadline(t), store.Batch{Events: []event.Event{newEvent("a", 4)}, Expect: []store.Expect{{Topic: "other"}}})
	if !errors.Is(err, store.ErrInvalid) {
		t.Fatalf("an expectation about another topic: %v", err)
	}
}

// TestRetention has events expire: seqs go on and ids are free.
func TestRetention(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	s := open(t, url, natsstore.Options{})
	ctx := deadline(t)
	if err := s.SetTopic(ctx, topic, store.Settings{Retention: time.Second}); err != nil {
		t.Fatal(err)
	}
	e := newEvent("k", 1)
	mustAppend(t, s, store.Batch{Events: []event.Event{e, newEvent("k", 2)}})
	for {
		b, err := s.Bounds(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		if b.Empty() {
			if b.First != 3 || b.Last != 2 {
				t.Fatalf("bounds %+v", b)
			}
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal("nothing expires")
		case <-time.After(20 * time.Millisecond):
		}
	}
	if _, err := s.LocateID(ctx, topic, e.ID); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("an expired id: %v", err)
	}
	if got := mustAppend(t, s, store.Batch{Events: []event.Event{e}}); got[0].Duplicate || got[0].Seq != 3 {
		t.Fatalf("%+v", got[0])
	}
}

// TestLargestEvents stores events that use every limit, with texts that are
// hard to put into subjects and headers.
func TestLargestEvents(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	prefix := "a-prefix-of-thirty-two-bytes-xyz"
	s := open(t, url, natsstore.Options{Prefix: prefix})
	rng := rand.New(rand.NewPCG(1, 2))
	text := func(kind string, n int) string {
		b := make([]byte, n)
		for i := range b {
			switch kind {
			case "blanks":
				b[i] = " \t\r\n"[rng.IntN(4)]
			case "zeros":
				b[i] = 0
			case "dots":
				b[i] = ".*>="[rng.IntN(4)]
			default:
				b[i] = byte(' ' + rng.IntN(95))
			}
		}
		return string(b)
	}
	for _, kind := range []string{"blanks", "zeros", "dots", "text"} {
		name := "dlq."
		for len(name) < event.MaxTopic+4 {
			name += "t"
		}
		e := event.New(name, json.RawMessage(`null`))
		e.Key, e.SID = text(kind, event.MaxKey), text(kind, event.MaxSID)
		e.Partition = event.PartitionOf(event.MaxPartitions - 1)
		e.Headers = event.Headers{{Name: "x-a", Value: text(kind, event.MaxHeaderBytes-3)}}
		for range event.MaxTags {
			e.Tags = append(e.Tags, text(kind, event.MaxTag))
			e.CausedBy = append(e.CausedBy, text(kind, event.MaxCause))
		}
		got := mustAppend(t, s, store.Batch{Events: []event.Event{e}, Expect: []store.Expect{{Topic: name, Key: e.Key}}})
		e.Seq = got[0].Seq
		for _, q := range []store.Query{{Topic: name, After: e.Seq - 1}, {Topic: name, Key: e.Key, Reverse: true}} {
			log := readAll(t, s, q)
			if len(log) != 1 || string(event.AppendBinary(nil, &log[0], true)) != string(event.AppendBinary(nil, &e, true)) {
				t.Fatalf("%s: %d events, not as they were", kind, len(log))
			}
		}
	}
}

// TestForeignMessage: what others write into a stream of ours is not an event.
func TestForeignMessage(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	s := open(t, url, natsstore.Options{Prefix: "p"})
	mustAppend(t, s, store.Batch{Events: []event.Event{newEvent("k", 1)}})
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(deadline(t), "p."+topic+".k", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	var failed error
	for _, err := range s.Read(deadline(t), store.Query{Topic: topic}) {
		failed = err
	}
	var corrupt *store.CorruptError
	if !errors.As(failed, &corrupt) || corrupt.Offset != 2 {
		t.Fatalf("read: %v", failed)
	}
	// Appends go on.
	if got := mustAppend(t, s, store.Batch{Events: []event.Event{newEvent("k", 1)}}); got[0].Seq != 3 {
		t.Fatalf("%+v", got)
	}
}

// TestManyRanges keeps a state with very many settled ranges.
func TestManyRanges(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	s := open(t, url, natsstore.Options{})
	c := store.Cursor{Topic: topic, Group: "g"}
	for i := range uint64(200_000) {
		c.Settled = append(c.Settled, store.Range{First: 10 + 5*i, Last: 11 + 5*i})
	}
	if _, err := s.PutCursor(deadline(t), c); err != nil {
		t.Fatal(err)
	}
	got, err := s.Cursor(deadline(t), topic, "g")
	if err != nil || len(got.Settled) != len(c.Settled) || got.Settled[777] != c.Settled[777] {
		t.Fatalf("%d ranges, %v", len(got.Settled), err)
	}
}
