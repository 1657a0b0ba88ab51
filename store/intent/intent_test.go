package intent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/store"
	"promethean/store/intent"
	"promethean/store/storetest"
)

// mortal is an engine without abilities that can be told to die at its n-th
// append.
type mortal struct {
	storetest.Plain
	left *atomic.Int64 // appends until it dies
}

var errDead = errors.New("dead")

func (m mortal) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if m.left.Add(-1) < 0 {
		return nil, errDead
	}
	return m.Plain.Append(ctx, b)
}

func (m mortal) MaxBatch() (events, bytes int) { return 3, 1 << 10 }

// over opens a wrapped engine over the reference. It dies at its n-th append.
func over(ref *storetest.Reference, n int) (intent.Engine, *atomic.Int64) {
	left := new(atomic.Int64)
	left.Store(int64(n))
	return intent.Wrap(mortal{storetest.Plain{Engine: ref}, left}, intent.Options{}), left
}

const never = 1 << 40

// batch has events of several topics, more than the engine takes at a time.
func batch() (events []event.Event) {
	for i := range 11 {
		e := event.New([]string{"a.x", "b.x", "c.x"}[i%3], []byte(fmt.Sprintf("{ \"n\" : %d, \"html\":\"<&>\" }", i)))
		e.Key = "k"
		events = append(events, e)
	}
	return append(events, event.New("a.x", []byte(`"`+strings.Repeat("x", 2000)+`"`)))
}

// holds checks what the topics hold: all of the batch in order, or nothing.
func holds(t *testing.T, log store.Log, want []event.Event) {
	t.Helper()
	byTopic := make(map[string][]event.Event)
	for _, e := range want {
		byTopic[e.Topic] = append(byTopic[e.Topic], e)
	}
	for _, topic := range []string{"a.x", "b.x", "c.x"} {
		n := 0
		for e, err := range log.Read(context.Background(), store.Query{Topic: topic}) {
			if err != nil {
				t.Fatal(err)
			}
			if n >= len(byTopic[topic]) || e.ID != byTopic[topic][n].ID || string(e.Payload) != string(byTopic[topic][n].Payload) || e.Key != byTopic[topic][n].Key {
				t.Fatalf("topic %s, seq %d: a strange event %s", topic, e.Seq, e.Payload)
			}
			n++
		}
		if n != len(byTopic[topic]) {
			t.Fatalf("topic %s has %d events, want %d", topic, n, len(byTopic[topic]))
		}
	}
}

func TestSeveralTopics(t *testing.T) {
	log, _ := over(storetest.NewReference(event.Limits{}), never)
	defer func() { _ = log.Close() }()
	events := batch()
	got, err := log.Append(context.Background(), store.Batch{Events: events})
	if err != nil {
		t.Fatal(err)
	}
	holds(t, log, events)
	next := map[string]uint64{}
	for i, a := range got {
		if next[events[i].Topic]++; a.Seq != next[events[i].Topic] || a.Duplicate {
			t.Errorf("answer %d: %+v, want seq %d", i, a, next[events[i].Topic])
		}
	}
	again, err := log.Append(context.Background(), store.Batch{Events: events})
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range again {
		if !a.Duplicate || a.Seq != got[i].Seq || a.Original == nil {
			t.Errorf("answer %d to a retry: %+v", i, a)
		}
	}
	holds(t, log, events)
	c, err := log.Cursor(context.Background(), intent.Topic, "system.roller")
	b, _ := log.Bounds(context.Background(), intent.Topic)
	if err != nil || c.Floor != b.Last || b.Last == 0 {
		t.Errorf("the intents end at %d, done are %d, %v", b.Last, c.Floor, err)
	}
}

// Whatever step the process dies at, another does the rest, or nothing of it
// has happened.
func TestCrashAtEveryStep(t *testing.T) {
	for n := 0; ; n++ {
		finished := false
		synctest.Test(t, func(t *testing.T) {
			ref := storetest.NewReference(event.Limits{})
			mine, left := over(ref, n)
			events := batch()
			_, err := mine.Append(context.Background(), store.Batch{Events: events})
			finished = err == nil
			if !finished && !errors.Is(err, errDead) {
				t.Fatal(err)
			}
			left.Store(-never) // it stays dead
			// Another process has the store open all the time; one is new.
			theirs, _ := over(ref, never)
			began := time.Now()
			for time.Since(began) < time.Minute {
				time.Sleep(time.Second)
			}
			b, err := theirs.Bounds(context.Background(), "a.x")
			if err != nil {
				t.Fatal(err)
			}
			if b.Last == 0 {
				events = nil // it died before the intent was whole
			}
			holds(t, theirs, events)
			if finished && len(events) == 0 {
				t.Error("what was answered is not there")
			}
			// What was not written to its end is dropped in the end.
			time.Sleep(10 * time.Minute)
			c, err := theirs.Cursor(context.Background(), intent.Topic, "system.roller")
			if last, _ := theirs.Bounds(context.Background(), intent.Topic); err == nil && c.Floor != last.Last {
				t.Errorf("step %d: the intents end at %d, done are %d", n, last.Last, c.Floor)
			}
			holds(t, theirs, events)
			_, _ = mine.Close(), theirs.Close() // the reference is closed twice
		})
		if finished {
			if n < 10 {
				t.Errorf("only %d steps", n)
			}
			return
		}
	}
}

func TestRefused(t *testing.T) {
	log, _ := over(storetest.NewReference(event.Limits{}), never)
	defer func() { _ = log.Close() }()
	events := batch()
	_, err := log.Append(context.Background(), store.Batch{Events: events, Expect: []store.Expect{{Topic: "a.x"}}})
	if !errors.Is(err, store.ErrInvalid) {
		t.Errorf("with an expectation: %v", err)
	}
	events[5].Payload = []byte("{")
	var ee *store.EventError
	if _, err = log.Append(context.Background(), store.Batch{Events: events}); !errors.As(err, &ee) || ee.Index != 5 {
		t.Errorf("with a bad event: %v", err)
	}
	holds(t, log, nil)
	if b, _ := log.Bounds(context.Background(), intent.Topic); b.Last != 0 {
		t.Error("an intent was written for what was refused")
	}
}

// What it wraps keeps its promises.
func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Name: "intent",
		Open: func(t testing.TB) storetest.Engine {
			log := intent.Wrap(storetest.Plain{Engine: storetest.NewReference(event.Limits{}), Most: 10_000}, intent.Options{})
			t.Cleanup(func() { _ = log.Close() })
			return log
		},
	})
}
