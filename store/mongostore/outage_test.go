package mongostore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"promethean/event"
	"promethean/internal/netfault"
	"promethean/store"
	"promethean/store/mongostore"
)

const topic = "mongostore.test"

func note(n int) event.Event {
	return event.New(topic, json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)))
}

func notes(count int) (out []event.Event) {
	for n := range count {
		out = append(out, note(n))
	}
	return out
}

func put(t testing.TB, s *mongostore.Store, events ...event.Event) []store.Appended {
	t.Helper()
	got, err := s.Append(deadline(t), store.Batch{Events: events})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// ledger is what appenders were told.
type ledger struct {
	mu    sync.Mutex
	acked map[event.ID]uint64
}

func (l *ledger) add(events []event.Event, got []store.Appended) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acked == nil {
		l.acked = make(map[event.ID]uint64)
	}
	for i := range events {
		l.acked[events[i].ID] = got[i].Seq
	}
}

// judge reads the topic: without a gap, in order, each id once, and everything
// that was acknowledged where it was said to be.
func (l *ledger) judge(t *testing.T, s *mongostore.Store, first uint64) {
	t.Helper()
	next := first
	found := make(map[event.ID]uint64)
	for e, err := range s.Read(deadline(t), store.Query{Topic: topic}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq != next {
			t.Fatalf("seq %d comes where %d is due", e.Seq, next)
		}
		if before, twice := found[e.ID]; twice {
			t.Fatalf("the event of seq %d stands at %d too", before, e.Seq)
		}
		found[e.ID] = e.Seq
		next++
	}
	missing := 0
	for id, seq := range l.acked {
		if seq >= first && found[id] != seq {
			if missing++; missing < 5 {
				t.Errorf("id %s was acknowledged as %d and stands at %d", id, seq, found[id])
			}
		}
	}
	if missing > 0 {
		t.Fatalf("%d of %d acknowledged events are not where they should be", missing, len(l.acked))
	}
	b, err := s.Bounds(deadline(t), topic)
	if err != nil || b.Last != next-1 || b.First != first {
		t.Fatalf("bounds %+v, %v; want %d to %d", b, err, first, next-1)
	}
}

// TestServerAway takes the server away and gives it back: calls fail in time
// and say why, and then the same store goes on.
func TestServerAway(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		p := newProxy(t, uri)
		s := open(t, p.uri(), mongostore.Options{Database: name, RetryFor: 2 * time.Second, Timeout: 2 * time.Second, PollMax: 50 * time.Millisecond})
		put(t, s, notes(3)...)
		if _, err := s.PutCursor(deadline(t), store.Cursor{Topic: topic, Group: "g"}); err != nil {
			t.Fatal(err)
		}
		lease, err := s.Acquire(deadline(t), "l", "me", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		settle := store.Batch{Settle: []store.Settlement{{Topic: topic, Group: "g", Done: []store.Range{{First: 1, Last: 2}}}}}
		e := note(4)
		calls := map[string]func() error{
			"append": func() error {
				_, err := s.Append(deadline(t), store.Batch{Events: []event.Event{e}})
				return err
			},
			"settle": func() error { _, err := s.Append(deadline(t), settle); return err },
			"read": func() error {
				for _, err := range s.Read(deadline(t), store.Query{Topic: topic}) {
					if err != nil {
						return err
					}
				}
				return nil
			},
			"bounds":  func() error { _, err := s.Bounds(deadline(t), topic); return err },
			"cursor":  func() error { _, err := s.Cursor(deadline(t), topic, "g"); return err },
			"topics":  func() error { _, err := s.LocateTime(deadline(t), topic, 0); return err },
			"acquire": func() error { _, err := s.Acquire(deadline(t), "l", "me", time.Minute); return err },
			"renew":   func() error { _, err := s.Renew(deadline(t), lease, time.Minute); return err },
			"trim":    func() error { return s.Trim(deadline(t), topic, 2) },
		}
		p.Down(true)
		var all sync.WaitGroup
		began := time.Now()
		for what, call := range calls {
			all.Go(func() {
				if err := call(); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s while the server is away: %v, want %q", what, err, store.ErrUnavailable)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("calls took %v to say that the server is away", took)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		if _, err := s.Append(ctx, store.Batch{Events: []event.Event{note(5)}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("append with a context that ends: %v", err)
		}
		p.Down(false)
		for what, call := range calls {
			for err := call(); err != nil; err = call() {
				if !errors.Is(err, store.ErrUnavailable) {
					t.Fatalf("%s after the server is back: %v", what, err)
				}
				if time.Since(began) > 40*time.Second {
					t.Fatalf("%s: the server is back, and still %v", what, err)
				}
			}
		}
		// One with time looks what is there: half a second is little on a busy
		// machine.
		patient := open(t, uri, mongostore.Options{Database: name})
		var l ledger
		l.judge(t, patient, 2)
		// A watch survives it too.
		w := s.Watch(topic)
		defer w.Stop()
		put(t, patient, note(6))
		b, err := patient.Bounds(deadline(t), topic)
		if err != nil || b.Last < 5 {
			t.Fatalf("bounds %+v, %v", b, err)
		}
		select {
		case <-w.C:
		case <-deadline(t).Done():
			t.Fatal("waited in vain for a wake-up")
		}
	})
}

// TestShortOutage: appends that meet a short absence wait for its end.
func TestShortOutage(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		p := newProxy(t, uri)
		s := open(t, p.uri(), mongostore.Options{Database: name, RetryFor: 30 * time.Second, Timeout: time.Second})
		var l ledger
		var count atomic.Int32
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 30 {
					events := notes(2)
					got, err := s.Append(deadline(t), store.Batch{Events: events})
					if err != nil {
						t.Errorf("append: %v", err)
						return
					}
					l.add(events, got)
					if n := count.Add(1); n%60 == 0 {
						p.Down(true)
						time.AfterFunc(200*time.Millisecond, func() { p.Down(false) })
					}
				}
			})
		}
		all.Wait()
		time.AfterFunc(300*time.Millisecond, func() { p.Down(false) })
		l.judge(t, s, 1)
	})
}

// TestLostAnswers loses requests and answers of inserts: whoever appends is
// told the truth, and nothing is stored twice.
func TestLostAnswers(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		p := newProxy(t, uri)
		o := mongostore.Options{Database: name, RetryFor: 30 * time.Second, Timeout: 2 * time.Second}
		stores := []*mongostore.Store{open(t, p.uri(), o), open(t, p.uri(), o)}
		if _, err := stores[0].PutCursor(deadline(t), store.Cursor{Topic: topic, Group: "g"}); err != nil {
			t.Fatal(err)
		}
		n := 0
		p.Judge(func(chunk []byte) netfault.Fate {
			if !bytes.Contains(chunk, []byte("\x02insert\x00")) && !bytes.Contains(chunk, []byte("\x02update\x00")) {
				return netfault.Pass
			}
			n++
			switch n % 14 { // each loss costs the driver half a second
			case 3:
				return netfault.LoseRequest
			case 6, 11:
				return netfault.LoseResponse
			}
			return netfault.Pass
		})
		var l ledger
		var all sync.WaitGroup
		for a := range 8 {
			all.Go(func() {
				s := stores[a%2]
				for range 15 {
					events := notes(3)
					got, err := s.Append(deadline(t), store.Batch{Events: events})
					if err != nil {
						t.Errorf("append: %v", err)
						return
					}
					for i := range got {
						if got[i].Duplicate {
							t.Errorf("a new event is called a duplicate of seq %d", got[i].Seq)
						}
					}
					l.add(events, got)
					done := []store.Range{{First: got[0].Seq, Last: got[2].Seq}}
					if _, err := s.Append(deadline(t), store.Batch{Settle: []store.Settlement{{Topic: topic, Group: "g", Done: done}}}); err != nil {
						t.Errorf("settle: %v", err)
						return
					}
				}
			})
		}
		all.Wait()
		p.Judge(nil)
		l.judge(t, stores[0], 1)
		if c, err := stores[1].Cursor(deadline(t), topic, "g"); err != nil || c.Floor != 8*15*3 || len(c.Settled) != 0 {
			t.Fatalf("everything is settled, and the cursor says %+v, %v", c, err)
		}
	})
}

// TestLostRetry sends known ids again over a connection that loses the first
// request: the place is free then, and the ids are not.
func TestLostRetry(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		p := newProxy(t, uri)
		s := open(t, p.uri(), mongostore.Options{Database: newDatabase(t, uri), RetryFor: 20 * time.Second})
		first := notes(3)
		put(t, s, first...)
		for _, how := range []netfault.Fate{netfault.LoseRequest, netfault.LoseResponse} {
			lost := false
			p.Judge(func(chunk []byte) netfault.Fate {
				if lost || !bytes.Contains(chunk, []byte("\x02insert\x00")) {
					return netfault.Pass
				}
				lost = true
				return how
			})
			fresh := note(9)
			got := put(t, s, first[0], fresh, first[2])
			if !got[0].Duplicate || got[0].Seq != 1 || got[1].Duplicate || !got[2].Duplicate || got[2].Seq != 3 {
				t.Fatalf("append: %+v", got)
			}
		}
		var l ledger
		l.judge(t, s, 1)
	})
}

// TestLostCursorAnswers: a cursor that was put or deleted, and nobody was told,
// is no conflict for the one who did it.
func TestLostCursorAnswers(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		p := newProxy(t, uri)
		s := open(t, p.uri(), mongostore.Options{Database: name, RetryFor: 30 * time.Second})
		loseOne := func() {
			lost := false
			p.Judge(func(chunk []byte) netfault.Fate {
				for _, command := range []string{"\x02insert\x00", "\x02update\x00", "\x02delete\x00"} {
					if !lost && bytes.Contains(chunk, []byte(command)) && bytes.Contains(chunk, []byte("promethean_cursors")) {
						lost = true
						return netfault.LoseResponse
					}
				}
				return netfault.Pass
			})
		}
		for version := range uint64(3) {
			loseOne()
			got, err := s.PutCursor(deadline(t), store.Cursor{Topic: topic, Group: "g", Version: version, Epoch: version})
			if err != nil || got != version+1 {
				t.Fatalf("put cursor: version %d, %v; want %d", got, err, version+1)
			}
		}
		loseOne()
		if err := s.DeleteCursor(deadline(t), topic, "g", 3); err != nil {
			t.Fatalf("delete cursor: %v", err)
		}
		if _, err := s.Cursor(deadline(t), topic, "g"); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("cursor: %v, want not found", err)
		}
	})
}

// TestCloseWhileAway: Close ends also when the server does not answer, and
// leaves nothing behind.
func TestCloseWhileAway(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		p := newProxy(t, uri)
		name := newDatabase(t, uri)
		before := goleak.IgnoreCurrent()
		s := open(t, p.uri(), mongostore.Options{Database: name, RetryFor: 2 * time.Second, Timeout: 2 * time.Second})
		put(t, s, note(1))
		w := s.Watch()
		defer w.Stop()
		p.Down(true)
		failed := make(chan error, 1)
		go func() {
			_, err := s.Append(deadline(t), store.Batch{Events: notes(1)})
			failed <- err
		}()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrClosed) {
			t.Fatalf("append: %v", err)
		}
		if err := goleak.Find(before); err != nil {
			t.Fatal(err)
		}
	})
}
