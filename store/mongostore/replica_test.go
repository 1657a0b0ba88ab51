package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
	"promethean/store"
	"promethean/store/mongostore"
)

// What only a replica set has: change streams, transactions, and a primary that
// steps down. Faults are scripted on the fake.

// TestWakeByChangeStream: where the server tells of changes nobody waits for the
// next look, also not after the stream was lost.
func TestWakeByChangeStream(t *testing.T) {
	late := 20 * time.Second // no look comes before
	test := func(t *testing.T, uri string, lose func(turn int)) {
		name := newDatabase(t, uri)
		o := mongostore.Options{Database: name, PollMin: late, PollMax: late}
		reader, writer := open(t, uri, o), open(t, uri, mongostore.Options{Database: name})
		put(t, writer, note(0))
		w := reader.Watch(topic)
		defer w.Stop()
		<-w.C // the first look tells of what is there
		for n := range 6 {
			began := time.Now()
			put(t, writer, note(n))
			select {
			case <-w.C:
			case <-deadline(t).Done():
				t.Fatal("waited in vain for a wake-up")
			}
			if took := time.Since(began); took > late/2 {
				t.Fatalf("event %d of another store woke after %v", n, took)
			}
			lose(n)
		}
	}
	t.Run("fake", func(t *testing.T) {
		fake := mongofake.Start(t, mongofake.Options{})
		test(t, fake.URI(), func(turn int) {
			if turn%2 == 0 {
				// The stream that is open by now, or its next one.
				before := fake.Calls("aggregate")
				fake.KillCursors()
				if err := fake.Await(deadline(t), "aggregate", before+1); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
	t.Run("mongodb", func(t *testing.T) { test(t, mongotest.Real(t), func(int) {}) })
}

// TestStreamWithTimeLimit: where the address limits the time of calls, a change
// stream at rest is not lost again and again.
func TestStreamWithTimeLimit(t *testing.T) {
	const limit = 500 * time.Millisecond
	fake := mongofake.Start(t, mongofake.Options{})
	late := time.Hour
	open(t, fmt.Sprintf("%s&timeoutMS=%d", fake.URI(), limit.Milliseconds()), mongostore.Options{Database: newDatabase(t, fake.URI()), PollMin: late, PollMax: late})
	if err := fake.Await(deadline(t), "getMore", 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*limit)
	defer cancel()
	if err := fake.Await(ctx, "aggregate", fake.Calls("aggregate")+1); err == nil {
		t.Error("the stream was opened anew")
	}
}

// TestPrimaryStepsDown has the primary go for a while, again and again, while
// several stores append and settle: calls wait for the next one, nobody is told
// anything that is not so, and nothing is stored twice.
func TestPrimaryStepsDown(t *testing.T) {
	fake := mongofake.Start(t, mongofake.Options{})
	o := mongostore.Options{Database: newDatabase(t, fake.URI()), RetryFor: 30 * time.Second}
	stores := []*mongostore.Store{open(t, fake.URI(), o), open(t, fake.URI(), o)}
	if _, err := stores[0].PutCursor(deadline(t), store.Cursor{Topic: topic, Group: "g"}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(deadline(t))
	defer stop()
	var steps sync.WaitGroup
	downs := 0
	steps.Go(func() {
		// NotWritablePrimary, InterruptedDueToReplStateChange, PrimarySteppedDown
		for codes := []int32{10107, 11602, 189}; fake.Await(ctx, "insert", fake.Calls("insert")+5) == nil; downs++ {
			fake.StepDown(codes[downs%len(codes)])
			_ = fake.Await(ctx, "hello", fake.Calls("hello")+1) // somebody has noticed
			fake.StepUp()
		}
	})
	var l ledger
	var all sync.WaitGroup
	const appenders, each = 6, 25
	for a := range appenders {
		all.Go(func() {
			s := stores[a%2]
			for n := range each {
				events := notes(1 + n%3)
				got, err := s.Append(deadline(t), store.Batch{Events: events})
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				for _, x := range got {
					if x.Duplicate {
						t.Errorf("a new event is called a duplicate of seq %d", x.Seq)
					}
				}
				l.add(events, got)
				settled := []store.Range{{First: got[0].Seq, Last: got[len(got)-1].Seq}}
				if _, err := s.Append(deadline(t), store.Batch{Settle: []store.Settlement{{Topic: topic, Group: "g", Done: settled}}}); err != nil {
					t.Errorf("settle: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	stop()
	steps.Wait()
	if downs < 5 {
		t.Errorf("the primary went only %d times", downs)
	}
	again := open(t, fake.URI(), o)
	l.judge(t, again, 1)
	b, err := again.Bounds(deadline(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := again.Cursor(deadline(t), topic, "g"); err != nil || c.Floor != b.Last || len(c.Settled) != 0 {
		t.Fatalf("everything up to %d is settled, and the cursor says %+v, %v", b.Last, c, err)
	}
}

// TestKilledCursors: a server may forget a cursor that is read. Whoever reads the
// log goes on all the same, and misses nothing.
func TestKilledCursors(t *testing.T) {
	fake := mongofake.Start(t, mongofake.Options{})
	s := open(t, fake.URI(), mongostore.Options{Database: newDatabase(t, fake.URI())})
	const many = 800
	for n := range many {
		put(t, s, note(n))
	}
	// CursorNotFound, CursorKilled
	for _, code := range []int32{43, 237} {
		fake.Fail(mongofake.Fault{Command: "getMore", Code: code, When: func(command bson.Raw) bool {
			_, err := command.LookupErr("maxTimeMS")
			return err != nil // it is no change stream's
		}})
	}
	last := uint64(0)
	for e, err := range s.Read(deadline(t), store.Query{Topic: topic}) {
		if err != nil || e.Seq != last+1 {
			t.Fatalf("seq %d after %d, %v", e.Seq, last, err)
		}
		last = e.Seq
	}
	if last != many || fake.Pending() != 0 {
		t.Errorf("the last of %d events is %d, and %d faults are left", many, last, fake.Pending())
	}
}

// TestDocsTransactionFaults: whatever happens to a transaction, a batch is
// committed once and as a whole.
func TestDocsTransactionFaults(t *testing.T) {
	unknown := []string{"UnknownTransactionCommitResult"}
	transient := []string{"TransientTransactionError"}
	for name, f := range map[string]mongofake.Fault{
		"a write conflicts":             {Command: "update", Code: 112, Labels: transient, Times: 3},
		"a read finds no snapshot":      {Command: "find", Code: 246, Labels: transient, Times: 2, When: inTransaction},
		"cut within it":                 {Command: "update", Cut: true, Times: 2, When: inTransaction},
		"the commit is unknown, undone": {Command: "commitTransaction", Code: 64, Labels: unknown, Times: 2},
		"the commit is unknown, done":   {Command: "commitTransaction", Code: 64, Labels: unknown, After: true, Times: 2},
		"the commit is cut, undone":     {Command: "commitTransaction", Cut: true},
		"the commit is cut, done":       {Command: "commitTransaction", Cut: true, After: true},
		"the commit is cut twice, done": {Command: "commitTransaction", Cut: true, After: true, Times: 3},
		"the commit conflicts":          {Command: "commitTransaction", Code: 112, Labels: transient, Times: 2},
		"the majority is late":          {Command: "commitTransaction", Code: 64, WriteConcern: true, Labels: unknown},
		"the primary goes":              {Command: "commitTransaction", Code: 91, Times: 2},
	} {
		for skip := range 3 { // in the first commit, and in later ones
			t.Run(fmt.Sprint(name, "/", skip), func(t *testing.T) {
				fake := mongofake.Start(t, mongofake.Options{})
				o := mongostore.Options{Database: newDatabase(t, fake.URI())}
				d := openDocs(t, fake.URI(), o)
				counting(t, d)
				f := f
				f.Skip = skip
				fake.Fail(f)
				const batches = 12
				for from := uint64(0); from < batches; {
					stale, err := countOn(deadline(t), d, from)
					if err != nil && !errors.Is(err, store.ErrUnavailable) || stale != 0 {
						t.Fatalf("the batch from %d: %d stale, %v", from, stale, err)
					}
					if err == nil {
						from++
						continue
					}
					r, err := d.Reader(deadline(t), "r") // it may be done
					if err != nil || r.Seq < from || r.Seq > from+1 {
						t.Fatalf("the reader is at %d after a batch from %d that may be done, %v", r.Seq, from, err)
					}
					from = r.Seq
				}
				if n := fake.Pending(); n != 0 {
					t.Errorf("the fault did not happen")
				}
				if n := fake.Calls("commitTransaction"); n < batches {
					t.Errorf("%d transactions were committed, want %d or more", n, batches)
				}
				counted(t, openDocs(t, fake.URI(), o), batches)
			})
		}
	}
}

// TestDocsAsOne: who reads while batches are committed sees all of a batch or
// nothing of it.
func TestDocsAsOne(t *testing.T) {
	test := func(t *testing.T, uri string) {
		o := mongostore.Options{Database: newDatabase(t, uri)}
		d, other := openDocs(t, uri, o), openDocs(t, uri, o)
		counting(t, d)
		pair := func(seq uint64) []store.DocOp {
			return []store.DocOp{docOp("c", "left", seq, bodyAt(seq)), docOp("c", "right", seq, bodyAt(seq))}
		}
		const batches = 200
		var writing sync.WaitGroup
		writing.Go(func() {
			for from := range uint64(batches) {
				if _, err := d.Commit(deadline(t), store.DocBatch{Reader: "r", From: from, To: from + 1, Ops: pair(from + 1)}); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for seen := uint64(0); seen < batches && !t.Failed(); {
			var seqs []uint64
			for x, err := range other.Changes(deadline(t), "c", 0) {
				if err != nil {
					t.Fatal(err)
				}
				seqs = append(seqs, x.Seq)
			}
			if len(seqs) != 0 && (len(seqs) != 2 || seqs[0] != seqs[1]) {
				t.Fatalf("documents of one batch are of %v", seqs)
			}
			if len(seqs) == 2 {
				seen = seqs[0]
			}
		}
		writing.Wait()
	}
	t.Run("fake", func(t *testing.T) { test(t, mongofake.Start(t, mongofake.Options{}).URI()) })
	t.Run("mongodb", func(t *testing.T) { test(t, mongotest.Real(t)) })
}

// inTransaction says whether a command is part of a transaction.
func inTransaction(command bson.Raw) bool {
	_, err := command.LookupErr("autocommit")
	return err == nil
}
