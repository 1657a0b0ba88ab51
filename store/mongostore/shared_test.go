package mongostore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/event"
	"promethean/store"
	"promethean/store/mongostore"
)

// TestStoresShareTopic has several stores append to one topic.
func TestStoresShareTopic(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		var stores []*mongostore.Store
		for range 3 {
			stores = append(stores, open(t, uri, mongostore.Options{Database: name}))
		}
		var l ledger
		var all sync.WaitGroup
		shared := notes(20) // everybody appends these too
		var fresh atomic.Int32
		for a := range 9 {
			all.Go(func() {
				s := stores[a%3]
				for n := range 20 {
					events := append(notes(1+n%3), shared[n])
					got, err := s.Append(deadline(t), store.Batch{Events: events})
					if err != nil {
						t.Errorf("append: %v", err)
						return
					}
					if !got[len(got)-1].Duplicate {
						fresh.Add(1)
					} else if o := got[len(got)-1].Original; o == nil || o.ID != shared[n].ID {
						t.Errorf("a duplicate comes with the original %v", o)
					}
					l.add(events, got)
				}
			})
		}
		all.Wait()
		if n := fresh.Load(); n != 20 {
			t.Errorf("20 ids were new %d times", n)
		}
		for _, s := range stores {
			l.judge(t, s, 1)
		}
		again := open(t, uri, mongostore.Options{Database: name})
		for _, a := range put(t, again, shared...) {
			if !a.Duplicate {
				t.Errorf("after opening again, a known id is new")
			}
		}
		l.judge(t, again, 1)
	})
}

// TestExpectationsAcrossStores: what one store appended counts for another that
// has not looked since.
func TestExpectationsAcrossStores(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		a, b := open(t, uri, mongostore.Options{Database: name}), open(t, uri, mongostore.Options{Database: name})
		keyed := func() event.Event { e := note(0); e.Key = "k"; return e }
		put(t, a, note(1))
		put(t, b, keyed(), note(2)) // a believes that the topic ends at 1
		_, err := a.Append(deadline(t), store.Batch{Events: []event.Event{note(3)}, Expect: []store.Expect{{Topic: topic, Seq: 3}}})
		if err != nil {
			t.Fatalf("append with an expectation that holds: %v", err)
		}
		_, err = b.Append(deadline(t), store.Batch{Events: []event.Event{note(3)}, Expect: []store.Expect{{Topic: topic, Seq: 3}}})
		var conflict *store.SeqConflictError
		if !errors.As(err, &conflict) || conflict.Actual != 4 {
			t.Fatalf("append: %v; want a conflict with seq 4", err)
		}
		put(t, a, keyed())
		_, err = b.Append(deadline(t), store.Batch{Events: []event.Event{keyed()}, Expect: []store.Expect{{Topic: topic, Key: "k", Seq: 2}}})
		if !errors.As(err, &conflict) || conflict.Actual != 5 {
			t.Fatalf("append: %v; want a conflict with seq 5", err)
		}
	})
}

// TestWriterThatSlept is the case that the base of a topic is for: a writer
// believes in an end of the topic that has since been overtaken and trimmed
// away, so its insert meets nothing.
func TestWriterThatSlept(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		for _, size := range []int{1, 3, 40} { // shorter, as long, and longer than what stood there
			name := newDatabase(t, uri)
			slow, quick := open(t, uri, mongostore.Options{Database: name}), open(t, uri, mongostore.Options{Database: name})
			put(t, slow, notes(3)...)
			for range 4 {
				put(t, quick, notes(3)...)
			}
			if err := quick.Trim(deadline(t), topic, 12); err != nil { // the commit of 10 to 12 stays, cut
				t.Fatal(err)
			}
			events := notes(size)
			got := put(t, slow, events...)
			if got[0].Seq != 16 {
				t.Fatalf("an append behind 15 events got seq %d", got[0].Seq)
			}
			var l ledger
			l.add(events, got)
			l.judge(t, slow, 12)
			l.judge(t, quick, 12)
		}
	})
}

// TestLeftovers has a writer die between its insert at an outdated place and
// the removal. What it left must not count in any way, and not block its ids.
func TestLeftovers(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		ctx := deadline(t)
		name := newDatabase(t, uri)
		s := open(t, uri, mongostore.Options{Database: name})
		for range 5 {
			put(t, s, notes(3)...)
		}
		if err := s.Trim(ctx, topic, 11); err != nil {
			t.Fatal(err)
		}
		// From 4 to 103: begins where a commit was, ends far beyond the topic.
		lost := notes(100)
		var events bson.A
		for i, e := range lost {
			events = append(events, bson.D{{Key: "seq", Value: int64(4 + i)}, {Key: "id", Value: bson.Binary{Subtype: 4, Data: e.ID[:]}}, {Key: "ts", Value: e.TS}, {Key: "key", Value: "lost"}, {Key: "payload", Value: "0"}})
		}
		client := connect(t, uri)
		defer func() { _ = client.Disconnect(context.Background()) }()
		_, err := client.Database(name).Collection("promethean_commits").InsertOne(ctx, bson.D{
			{Key: "_id", Value: bson.D{{Key: "t", Value: topic}, {Key: "s", Value: int64(4)}}}, {Key: "t", Value: topic}, {Key: "last", Value: int64(103)},
			{Key: "at", Value: time.Now()}, {Key: "hi", Value: lost[0].TS}, {Key: "top", Value: lost[0].TS}, {Key: "cum", Value: int64(1)},
			{Key: "c", Value: bson.Binary{Data: make([]byte, 12)}}, {Key: "events", Value: events},
		})
		if err != nil {
			t.Fatal(err)
		}
		var l ledger
		for _, x := range []*mongostore.Store{s, open(t, uri, mongostore.Options{Database: name})} {
			l.judge(t, x, 11)
			for e, err := range x.Read(ctx, store.Query{Topic: topic, Reverse: true}) {
				if err != nil || e.Key == "lost" {
					t.Fatalf("read: %+v, %v", e, err)
				}
			}
			for e, err := range x.Read(ctx, store.Query{Topic: topic, Key: "lost"}) {
				t.Fatalf("read by key: %+v, %v", e, err)
			}
			if seq, err := x.LocateID(ctx, topic, lost[50].ID); !errors.Is(err, store.ErrNotFound) {
				t.Fatalf("locate: %d, %v", seq, err)
			}
		}
		got := put(t, s, lost...)
		if got[0].Duplicate || got[0].Seq != 16 {
			t.Fatalf("append: %+v; want seq 16", got[0])
		}
		l.add(lost, got)
		l.judge(t, s, 11)
	})
}

// TestTrimsRaceAppends has two stores append and trim one topic at once.
func TestTrimsRaceAppends(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		stores := []*mongostore.Store{open(t, uri, mongostore.Options{Database: name}), open(t, uri, mongostore.Options{Database: name})}
		var l ledger
		var highest atomic.Uint64
		var writers, others sync.WaitGroup
		done := make(chan struct{})
		for a := range 6 {
			writers.Go(func() {
				for n := range 25 {
					events := notes(1 + (a+n)%7)
					got, err := stores[a%2].Append(deadline(t), store.Batch{Events: events})
					if err != nil {
						t.Errorf("append: %v", err)
						return
					}
					for i := range got {
						if got[i].Duplicate || i > 0 && got[i].Seq != got[i-1].Seq+1 {
							t.Errorf("append: %+v", got)
							return
						}
						for old := highest.Load(); old < got[i].Seq && !highest.CompareAndSwap(old, got[i].Seq); old = highest.Load() {
						}
					}
					l.mu.Lock()
					for i := range got {
						for id, seq := range l.acked {
							if seq == got[i].Seq && id != events[i].ID {
								t.Errorf("seq %d was given twice", seq)
							}
						}
					}
					l.mu.Unlock()
					l.add(events, got)
				}
			})
		}
		var trimmed atomic.Uint64
		for i, s := range stores {
			others.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					before := highest.Load()
					if i == 1 {
						before = max(before, 5) - 3 // into the middle of a commit
					}
					if err := s.Trim(deadline(t), topic, before); err != nil {
						t.Errorf("trim: %v", err)
						return
					}
					for old := trimmed.Load(); old < before && !trimmed.CompareAndSwap(old, before); old = trimmed.Load() {
					}
				}
			})
			others.Go(func() {
				for last := uint64(0); ; {
					select {
					case <-done:
						return
					default:
					}
					for e, err := range s.Read(deadline(t), store.Query{Topic: topic, After: last}) {
						if err != nil || e.Seq <= last {
							t.Errorf("read: seq %d after %d, %v", e.Seq, last, err)
							return
						}
						last = e.Seq
					}
				}
			})
		}
		writers.Wait()
		close(done)
		others.Wait()
		if t.Failed() {
			return
		}
		b, err := stores[0].Bounds(deadline(t), topic)
		if err != nil || b.Last != uint64(len(l.acked)) || b.First < trimmed.Load() {
			t.Fatalf("bounds %+v, %v after %d events, trimmed before %d", b, err, len(l.acked), trimmed.Load())
		}
		for _, s := range stores {
			l.judge(t, s, b.First)
		}
	})
}

// TestLeaseBetweenStores: time and epochs are the server's.
func TestLeaseBetweenStores(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		a, b := open(t, uri, mongostore.Options{Database: name}), open(t, uri, mongostore.Options{Database: name})
		l, err := a.Acquire(deadline(t), "l", "$owner", time.Minute) // a name that means something to the server
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Acquire(deadline(t), "l", "b", time.Minute); !errors.Is(err, store.ErrHeld) {
			t.Fatalf("acquire: %v, want that it is held", err)
		}
		if err := b.Release(deadline(t), l); err != nil { // by whoever knows it
			t.Fatal(err)
		}
		next, err := b.Acquire(deadline(t), "l", "b", time.Minute)
		if err != nil || next.Epoch <= l.Epoch {
			t.Fatalf("acquire: %+v after epoch %d, %v", next, l.Epoch, err)
		}
	})
}

// TestWatchBetweenStores: events of another store wake, also on topics that
// came later, and a store at rest leaves the server alone.
func TestWatchBetweenStores(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		p := newProxy(t, uri)
		const least, most = 20 * time.Millisecond, 500 * time.Millisecond
		reader := open(t, p.uri(), mongostore.Options{Database: name, PollMin: least, PollMax: most})
		writer := open(t, uri, mongostore.Options{Database: name})
		w, all := reader.Watch(topic), reader.Watch()
		defer w.Stop()
		for n := range 5 {
			put(t, writer, note(n))
			for _, x := range []*store.Watch{w, all} {
				select {
				case <-x.C:
				case <-deadline(t).Done():
					t.Fatal("waited in vain for a wake-up")
				}
			}
		}
		all.Stop()
		atRest(t, p, most)
	})
}

// atRest wants the pause between two looks to grow to most, and to stay so. A
// look is one request, and the next one is sent most after the answer to it. So
// the proxy sees them at least most apart, however slow everything is, and in a
// window as many as such pauses fit into it, and one more. A change stream asks
// beside that, and seldom.
func atRest(t *testing.T, p *proxy, most time.Duration) {
	t.Helper()
	window := 4*most - most/10 // three pauses fit
	look := func() (requests, limit int) {
		began, before := time.Now(), p.count()
		<-time.After(window)
		requests = p.count() - before
		return requests, int(time.Since(began)/most) + 1
	}
	requests, limit := look()
	for giveUp := deadline(t); requests > limit; requests, limit = look() { // the pause has not grown yet
		if giveUp.Err() != nil {
			t.Fatalf("a store at rest sends %d requests where %d are due", requests, limit)
		}
	}
	before := p.awaits()
	if requests, limit = look(); requests > limit {
		t.Errorf("a store that was at rest sends %d requests where %d are due", requests, limit)
	}
	if asked := p.awaits() - before; asked > 1 {
		t.Errorf("a change stream at rest asks %d times in %v", asked, window)
	}
}

// TestFencedAcrossStores: a new owner's epoch ends the settlements of the one
// before, whose state is in another process.
func TestFencedAcrossStores(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		old, next := open(t, uri, mongostore.Options{Database: name}), open(t, uri, mongostore.Options{Database: name})
		put(t, old, notes(10)...)
		settle := func(s *mongostore.Store, epoch, seq uint64) error {
			_, err := s.Append(deadline(t), store.Batch{Settle: []store.Settlement{{Topic: topic, Group: "g", Epoch: epoch, Done: []store.Range{{First: seq, Last: seq}}}}})
			return err
		}
		if _, err := old.PutCursor(deadline(t), store.Cursor{Topic: topic, Group: "g", Epoch: 1}); err != nil {
			t.Fatal(err)
		}
		if err := settle(old, 1, 1); err != nil {
			t.Fatal(err)
		}
		c, err := next.Cursor(deadline(t), topic, "g")
		if err != nil {
			t.Fatal(err)
		}
		c.Epoch = 2
		if _, err := next.PutCursor(deadline(t), c); err != nil {
			t.Fatal(err)
		}
		if err := settle(old, 1, 2); !errors.Is(err, store.ErrFenced) {
			t.Fatalf("settle: %v, want fenced", err)
		}
		if err := settle(next, 2, 3); err != nil {
			t.Fatal(err)
		}
		if err := settle(old, 2, 2); err != nil { // it has learnt
			t.Fatal(err)
		}
		if c, err := next.Cursor(deadline(t), topic, "g"); err != nil || c.Floor != 3 || c.Version != 2 {
			t.Fatalf("cursor %+v, %v", c, err)
		}
		// Deleted and made again it is another group, whatever is remembered.
		if err := next.DeleteCursor(deadline(t), topic, "g", 2); err != nil {
			t.Fatal(err)
		}
		if err := settle(old, 2, 4); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("settle: %v, want not found", err)
		}
	})
}
