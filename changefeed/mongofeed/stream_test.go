package mongofeed_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"promethean/changefeed"
	"promethean/changefeed/mongofeed"
	"promethean/internal/mongofake"
)

func TestEveryOperation(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		w.insert(doc("before"))
		l := newTopic()
		stop := w.run(w.source(mongofeed.Options{}), l)
		l.streaming(t)
		first := l.place()
		w.insert(doc("a", "n", 1))
		l.has(t, 1)
		w.set("a", "n", 2)
		l.has(t, 2)
		_, err := w.coll.ReplaceOne(w.ctx(), doc("a"), doc("a", "m", bson.A{1.5, nil}))
		w.ok(err)
		w.remove("a")
		got := l.has(t, 4)
		want(t, got, `insert a {"_id":"a","n":1}`, `update a {"_id":"a","n":2}`, `replace a {"_id":"a","m":[1.5,null]}`, `delete a `)
		for i, c := range got {
			op, _ := c.Headers.Get("x-mongo-op")
			at, _ := c.Headers.Get("x-change-cluster-time")
			if op != string(c.Op) || strings.Count(at, ".") != 1 || time.Since(c.At).Abs() > time.Hour || c.Doc == nil != (i == 3) {
				t.Errorf("change %d: %+v", i, c)
			}
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("stopped: %v", err)
		}
		// Whoever reads them again gives them the same ids. The document of the
		// update is no longer found.
		again := newTopic()
		again.token = first
		w.run(w.source(mongofeed.Options{BatchSize: 1}), again)
		got = append(got[:1], got[2:]...)
		for i, c := range again.has(t, 3) {
			if c.ID != got[i].ID || c.Op != got[i].Op {
				t.Errorf("change %d: %v before, and %v now", i, got[i].ID, c.ID)
			}
		}
	})
}

func TestSnapshotThenStream(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		w.insert(doc(2, "n", 2), doc("x"), doc(1, "n", 1))
		l := newTopic()
		w.run(w.source(mongofeed.Options{Snapshot: true, BatchSize: 2}), l)
		want(t, l.has(t, 3), `snapshot 1 {"_id":1,"n":1}`, `snapshot 2 {"_id":2,"n":2}`, `snapshot x {"_id":"x"}`)
		l.streaming(t)
		w.set(1, "n", 7)
		want(t, l.has(t, 4)[3:], `update 1 {"_id":1,"n":7}`)
		b := l.handed()
		if len(b[0].Changes) != 0 || !b[0].Snapshot || b[0].Token == nil {
			t.Errorf("the place is not handed over first: %+v", b[0])
		}
		if op, _ := l.get()[0].Headers.Get("x-mongo-op"); op != "snapshot" {
			t.Errorf("the header says %q", op)
		}
	})
}

// TestNothingThereYet: a collection that does not exist is empty.
func TestNothingThereYet(t *testing.T) {
	onEach(t, func(w *world) {
		l := newTopic()
		w.run(w.source(mongofeed.Options{Snapshot: true}), l)
		l.streaming(w.t)
		w.insert(doc(1))
		want(w.t, l.has(w.t, 1), `insert 1 {"_id":1}`)
	})
}

// script makes changes that are the same every time, and gives how many.
func script(w *world) int {
	for i := range 6 {
		w.insert(doc(fmt.Sprint("new", i), "n", i))
	}
	w.set("old1", "n", 10)
	_, err := w.coll.ReplaceOne(w.ctx(), doc("old2"), doc("old2", "r", true))
	w.ok(err)
	w.remove("old3")
	return 9
}

// TestCrashAtEveryPoint: the sink ends at its k-th batch, before it has stored
// anything, in the middle, or before the token is saved. Nothing is lost and
// nothing is stored twice, whatever k.
func TestCrashAtEveryPoint(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		for i := range 7 {
			w.insert(doc(fmt.Sprint("old", i)))
		}
		o := mongofeed.Options{Snapshot: true, BatchSize: 2}
		// The beginning is the same for all: a snapshot that was begun, and
		// changes since.
		begun := newTopic()
		begun.fail = func(b changefeed.Batch) failure {
			if len(b.Changes) > 0 {
				return before
			}
			return fine
		}
		wantError(t, w.ends(w.source(o), begun), errSink)
		n := script(w)
		whole := newTopic()
		whole.token = begun.place()
		stop := w.run(w.source(o), whole)
		reference := list(whole.has(t, 6+6+n)) // old3 is deleted, 6 new are in the snapshot as well
		batches := len(whole.handed())
		_ = stop()
		if batches < 8 {
			t.Fatalf("only %d batches: the test tries nothing", batches)
		}
		for k := range batches {
			for _, how := range []failure{before, halfway, noToken} {
				l := newTopic()
				l.token = begun.place()
				calls, crashed := 0, false
				l.fail = func(changefeed.Batch) failure {
					if calls++; calls == k+1 && !crashed {
						crashed = true
						return how
					}
					return fine
				}
				if err := w.ends(w.source(o), l); !errors.Is(err, errSink) {
					t.Fatalf("crash %d %d: %v", k, how, err)
				}
				stop := w.run(w.source(o), l)
				want(t, l.has(t, len(reference)), reference...)
				if how == noToken && len(whole.handed()[k].Changes) > 0 {
					l.await(t, "what was stored before the crash", func() bool { return l.repeated() > 0 })
				}
				_ = stop()
			}
		}
	})
}

// TestSnapshotGoesOn: a snapshot that was interrupted goes on behind the last
// _id, whatever types there are.
func TestSnapshotGoesOn(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		oid := bson.NewObjectID()
		w.insert(doc(1), doc(2.5), doc("a"), doc("b"), doc(doc("in")), doc(oid), doc(true), doc(bson.NewDateTimeFromTime(time.UnixMilli(5))))
		const n = 8
		for k := 1; k < n; k++ {
			l := newTopic()
			o := mongofeed.Options{Snapshot: true, BatchSize: 1}
			l.fail = func(changefeed.Batch) failure {
				if len(l.changes) == k {
					return before
				}
				return fine
			}
			wantError(t, w.ends(w.source(o), l), errSink)
			l.fail = nil
			stop := w.run(w.source(o), l)
			l.streaming(t)
			_ = stop()
			if got := l.get(); len(got) != n || l.again != 0 {
				t.Fatalf("interrupted after %d: %d documents, %d of them again:\n%s", k, len(got), l.again, strings.Join(list(got), "\n"))
			}
		}
	})
}

// state is what a reader of the topic ends up with.
func state(changes []changefeed.Change) map[string]string {
	now := make(map[string]string)
	for _, c := range changes {
		if c.Doc == nil {
			delete(now, c.Key)
		} else {
			now[c.Key] = string(c.Doc)
		}
	}
	return now
}

// TestSnapshotUnderWriters: with writers at work during the snapshot, a reader
// of the topic ends up with what is in the collection.
func TestSnapshotUnderWriters(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		const docs, writers, writes = 300, 3, 150
		var all []bson.D
		for i := range docs {
			all = append(all, doc(i, "n", 0))
		}
		w.insert(all...)
		l := newTopic()
		failing := rand.New(rand.NewPCG(1, 2))
		l.fail = func(changefeed.Batch) failure { return failure(max(failing.IntN(12)-8, 0)) } // now and then
		var work sync.WaitGroup
		for i := range writers {
			work.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), 7))
				for j := range writes {
					id := random.IntN(docs + 50)
					var err error
					switch random.IntN(4) {
					case 0:
						_, err = w.coll.DeleteOne(w.ctx(), doc(id))
					case 1:
						_, err = w.coll.ReplaceOne(w.ctx(), doc(id), doc(id, "by", i, "r", j))
					case 2:
						if _, err = w.coll.InsertOne(w.ctx(), doc(id, "by", i, "i", j)); mongo.IsDuplicateKeyError(err) {
							err = nil
						}
					default:
						_, err = w.coll.UpdateOne(w.ctx(), doc(id), bson.D{{Key: "$set", Value: bson.D{{Key: "u", Value: i*1000 + j}}}})
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		done := make(chan struct{})
		go func() {
			work.Wait()
			_, err := w.coll.InsertOne(w.ctx(), doc("last"))
			if err != nil {
				t.Error(err)
			}
			close(done)
		}()
		w.keepGoing(w.source(mongofeed.Options{Snapshot: true, BatchSize: 16}), l, func() bool {
			got := l.get()
			return len(got) > 0 && got[len(got)-1].Key == "last"
		})
		<-done
		now := state(l.get())
		found, err := w.coll.Find(w.ctx(), bson.D{})
		w.ok(err)
		n := 0
		for ; found.Next(w.ctx()); n++ {
			text, err := bson.MarshalExtJSON(found.Current, false, false)
			w.ok(err)
			if key := fmt.Sprint(value(found.Current.Lookup("_id"))); now[key] != string(text) {
				t.Errorf("%s is %s, and %s in the topic", key, text, now[key])
			}
		}
		if n != len(now) {
			t.Errorf("%d documents, %d in the topic", n, len(now))
		}
		if l.again == 0 {
			t.Error("nothing was told again: the crashes were none")
		}
	})
}

func value(v bson.RawValue) (x any) {
	_ = v.Unmarshal(&x)
	return x
}

// TestUpdateOfWhatIsGone: an update whose document was deleted before it was
// read is left out, the token moves on, and the delete tells.
func TestUpdateOfWhatIsGone(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		w.insert(doc(1, "n", 0), doc(2, "n", 0))
		l := newTopic()
		stop := w.run(w.source(mongofeed.Options{}), l)
		l.streaming(t)
		_ = stop()
		w.set(1, "n", 1)
		w.set(2, "n", 1)
		w.set(2, "n", 2)
		w.remove(1)
		w.run(w.source(mongofeed.Options{BatchSize: 1}), l)
		want(t, l.has(t, 3), `update 2 {"_id":2,"n":2}`, `update 2 {"_id":2,"n":2}`, `delete 1 `)
	})
}

func TestPostImages(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		w.insert(doc(1, "n", 0), doc(2, "n", 0))
		w.post(true)
		l := newTopic()
		o := mongofeed.Options{FullDocument: mongofeed.WhenAvailable}
		stop := w.run(w.source(o), l)
		l.streaming(t)
		_ = stop()
		from := l.place()
		w.set(1, "n", 1)
		w.post(false)
		w.set(2, "n", 1) // no image, and deleted later
		w.set(1, "n", 2) // no image: it is looked up
		w.set(1, "n", 3)
		w.remove(2)
		w.run(w.source(o), l)
		want(t, l.has(t, 4), `update 1 {"_id":1,"n":1}`, `update 1 {"_id":1,"n":3}`, `update 1 {"_id":1,"n":3}`, `delete 2 `)

		l = newTopic()
		l.token = from
		err := w.ends(w.source(mongofeed.Options{FullDocument: mongofeed.Required, BatchSize: 1}), l)
		wantError(t, err, changefeed.ErrRefused, "post image", "updateLookup")
	})
}

// TestIdleTokenMoves: while nothing changes in the collection the token moves
// with the rest of the server.
func TestIdleTokenMoves(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		l := newTopic()
		w.run(w.source(mongofeed.Options{TokenEvery: time.Millisecond}), l)
		l.streaming(t)
		first := string(l.place())
		for i := range 3 {
			_, err := w.db.Collection("other").InsertOne(w.ctx(), doc(i))
			w.ok(err)
		}
		l.await(t, "another token", func() bool { return string(l.place()) != first })
		if len(l.get()) != 0 {
			t.Errorf("got %s", list(l.get()))
		}
		w.insert(doc(1))
		l.has(t, 1)
	})
}

// TestTransaction: what a transaction did comes together, and what was rolled
// back never.
func TestTransaction(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		w.insert(doc(1))
		l := newTopic()
		w.run(w.source(mongofeed.Options{}), l)
		l.streaming(t)
		err := w.client.UseSession(w.ctx(), func(ctx context.Context) error {
			s := mongo.SessionFromContext(ctx)
			for _, commit := range []bool{false, true} {
				if err := s.StartTransaction(); err != nil {
					return err
				}
				for i := range 3 {
					if _, err := w.coll.InsertOne(ctx, doc(fmt.Sprintf("%v%d", commit, i))); err != nil {
						return err
					}
				}
				if !commit {
					if err := s.AbortTransaction(ctx); err != nil {
						return err
					}
				}
			}
			return s.CommitTransaction(ctx)
		})
		w.ok(err)
		got := l.has(t, 3)
		want(t, got, `insert true0 {"_id":"true0"}`, `insert true1 {"_id":"true1"}`, `insert true2 {"_id":"true2"}`)
		a, _ := got[0].Headers.Get("x-change-cluster-time")
		if b, _ := got[2].Headers.Get("x-change-cluster-time"); a != b || got[0].ID == got[1].ID {
			t.Errorf("the changes of a transaction: %+v", got)
		}
	})
}

// TestSurvives: after whatever happens to the server or the way to it, nothing
// is missing and nothing comes twice.
func TestSurvives(t *testing.T) {
	label := func(labels ...string) func(*world) {
		return func(w *world) { w.fake.Fail(mongofake.Fault{Command: "getMore", Code: 8, Labels: labels}) }
	}
	for name, harm := range map[string]func(*world){
		"killed cursors":  func(w *world) { w.fake.KillCursors() },
		"cut connections": func(w *world) { w.fake.CutConnections() },
		"cut getMore":     func(w *world) { w.fake.Fail(mongofake.Fault{Command: "getMore", Cut: true}) },
		"lost batch":      func(w *world) { w.fake.Fail(mongofake.Fault{Command: "getMore", Cut: true, After: true}) },
		"resumable label": label("ResumableChangeStreamError"),
		"final label":     label("NonResumableChangeStreamError"),
		"failing aggregate": func(w *world) {
			w.fake.KillCursors()
			w.fake.Fail(mongofake.Fault{Command: "aggregate", Times: 3, Code: 91})
		},
		"step down":    func(w *world) { w.fake.StepDown(10107); w.fake.StepUp() },
		"stepped down": func(w *world) { w.fake.StepDown(189); w.fake.StepUp() },
		"away": func(w *world) {
			w.fake.Down(true)
			w.fake.Down(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onFake(t, mongofake.Options{})
			l := newTopic()
			const docs, n = 5, 40
			var lines []string
			for i := range docs {
				w.insert(doc(fmt.Sprint("s", i)))
				lines = append(lines, fmt.Sprintf(`snapshot s%d {"_id":"s%d"}`, i, i))
			}
			for i := range n {
				lines = append(lines, fmt.Sprintf(`insert n%02d {"_id":"n%02d"}`, i, i))
			}
			var writer sync.WaitGroup
			defer writer.Wait()
			writer.Go(func() {
				for i := range n {
					if i == 0 {
						l.streaming(t)
					}
					w.push(doc(fmt.Sprintf("n%02d", i)))
				}
			})
			calls := 0
			l.fail = func(changefeed.Batch) failure {
				if calls++; calls%4 == 3 && calls < 40 {
					harm(w)
				}
				return fine
			}
			w.keepGoing(w.source(mongofeed.Options{Snapshot: true, BatchSize: 2}), l, func() bool { return len(l.get()) >= len(lines) })
			want(t, l.get(), lines...)
		})
	}
}
