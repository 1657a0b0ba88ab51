package mongofake_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"promethean/internal/mongofake"
)

// session begins a transaction, and gives the context to use it with.
func session(t testing.TB, w world) (*mongo.Session, context.Context) {
	t.Helper()
	s, err := w.client.StartSession()
	ok(t, err)
	t.Cleanup(func() { s.EndSession(context.Background()) })
	ok(t, s.StartTransaction())
	return s, mongo.NewSessionContext(deadline(t), s)
}

func TestCommit(t *testing.T) {
	w := start(t, mongofake.Options{})
	insert(t, w, item(1, "n", 1))
	changes := watch(t, w.coll)
	s, in := session(t, w)
	_, err := w.coll.InsertOne(in, item(2))
	ok(t, err)
	_, err = w.coll.UpdateOne(in, item(1), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	ok(t, err)
	_, err = w.db.Collection("other").InsertOne(in, item(3))
	ok(t, err)

	wantIDs(t, ids(t, in, w.coll, bson.D{}), int32(1), int32(2))
	wantIDs(t, ids(t, in, w.coll, item(1, "n", 2)), int32(1))
	out := deadline(t)
	wantIDs(t, ids(t, out, w.coll, bson.D{}), int32(1))
	wantIDs(t, ids(t, out, w.coll, item(1, "n", 1)), int32(1))
	if n, err := w.coll.CountDocuments(in, bson.D{}); err != nil || n != 2 {
		t.Errorf("counted %d, %v", n, err)
	}
	ok(t, s.CommitTransaction(out))
	wantIDs(t, ids(t, out, w.coll, bson.D{}), int32(1), int32(2))
	list := next(t, changes, 2)
	if !slices.Equal(ops(list), []string{"insert", "update"}) || list[0].ClusterTime != list[1].ClusterTime || list[0].Number == nil {
		t.Errorf("the events of a transaction: %+v", list)
	}
	ok(t, s.CommitTransaction(out)) // again changes nothing
	none(t, changes)
}

func TestAbort(t *testing.T) {
	w := start(t, mongofake.Options{})
	insert(t, w, item(1, "n", 1))
	changes := watch(t, w.coll)
	s, in := session(t, w)
	_, err := w.coll.DeleteOne(in, item(1))
	ok(t, err)
	_, err = w.coll.InsertOne(in, item(2))
	ok(t, err)
	wantIDs(t, ids(t, in, w.coll, bson.D{}), int32(2))
	ok(t, s.AbortTransaction(deadline(t)))
	wantIDs(t, ids(t, deadline(t), w.coll, bson.D{}), int32(1))
	insert(t, w, item(2, "n", 5))
	if list := next(t, changes, 1); list[0].Key["_id"] != int32(2) || (*list[0].Full)[1].Value != int32(5) {
		t.Errorf("got %+v", list)
	}
}

// TestSnapshot: a transaction reads what was there when it began.
func TestSnapshot(t *testing.T) {
	w := start(t, mongofake.Options{})
	insert(t, w, item(1, "n", 1), item(2, "n", 1))
	_, in := session(t, w)
	wantIDs(t, ids(t, in, w.coll, bson.D{}), int32(1), int32(2))
	set(t, w, 1, "n", 2)
	set(t, w, 1, "n", 3)
	_, err := w.coll.DeleteOne(deadline(t), item(2))
	ok(t, err)
	insert(t, w, item(3, "n", 1))
	wantIDs(t, ids(t, in, w.coll, bson.D{{Key: "n", Value: 1}}), int32(1), int32(2))
	_, err = w.coll.UpdateOne(in, item(1), bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 9}}}})
	wantCode(t, err, 112, "TransientTransactionError")
}

func TestWriteConflict(t *testing.T) {
	w := start(t, mongofake.Options{})
	insert(t, w, item(1, "n", 1))
	a, inA := session(t, w)
	_, inB := session(t, w)
	up := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	_, err := w.coll.UpdateOne(inA, item(1), up)
	ok(t, err)
	_, err = w.coll.UpdateOne(inB, item(1), up)
	wantCode(t, err, 112, "TransientTransactionError")
	_, err = w.coll.InsertOne(inB, item(7)) // it is over
	wantCode(t, err, 251, "TransientTransactionError")

	// Who writes outside of a transaction waits for it.
	done := make(chan error)
	go func() {
		_, err := w.coll.UpdateOne(deadline(t), item(1), up)
		done <- err
	}()
	ok(t, w.Await(deadline(t), "update", 3))
	select {
	case err := <-done:
		t.Fatalf("the write did not wait: %v", err)
	default:
	}
	ok(t, a.CommitTransaction(deadline(t)))
	ok(t, <-done)
	wantIDs(t, ids(t, deadline(t), w.coll, item(1, "n", 3)), int32(1))
}

// TestCountersAreExact: transactions that run into each other are tried again by
// the driver, and none is lost or done twice.
func TestCountersAreExact(t *testing.T) {
	w := start(t, mongofake.Options{})
	insert(t, w, item(1, "n", 0))
	const writers, times = 4, 10
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			s, err := w.client.StartSession()
			if err != nil {
				t.Error(err)
				return
			}
			defer s.EndSession(context.Background())
			for j := range times {
				_, err := s.WithTransaction(deadline(t), func(ctx context.Context) (any, error) {
					if _, err := w.coll.UpdateOne(ctx, item(1), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
						return nil, err
					}
					return w.coll.InsertOne(ctx, item(100+i*times+j))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	wantIDs(t, ids(t, deadline(t), w.coll, item(1, "n", writers*times)), int32(1))
	if got := ids(t, deadline(t), w.coll, bson.D{}); len(got) != 1+writers*times {
		t.Errorf("%d documents", len(got))
	}
}

func TestDuplicateEndsTransaction(t *testing.T) {
	w := start(t, mongofake.Options{})
	insert(t, w, item(1))
	s, in := session(t, w)
	_, err := w.coll.InsertOne(in, item(2))
	ok(t, err)
	_, err = w.coll.InsertOne(in, item(1))
	if !mongo.IsDuplicateKeyError(err) {
		t.Fatalf("got %v", err)
	}
	wantCode(t, s.CommitTransaction(deadline(t)), 251)
	wantIDs(t, ids(t, deadline(t), w.coll, bson.D{}), int32(1))
	s, in = session(t, w)
	_, err = w.coll.InsertOne(in, item(2))
	ok(t, err)
	wantCode(t, w.db.CreateCollection(in, "new"), 263)
	_ = s
}

// TestForgottenTransaction: one that nobody ends is in the way for its lifetime.
func TestForgottenTransaction(t *testing.T) {
	w := start(t, mongofake.Options{TransactionLifetime: 50 * time.Millisecond})
	insert(t, w, item(1, "n", 1))
	s, in := session(t, w)
	_, err := w.coll.DeleteOne(in, item(1))
	ok(t, err)
	set(t, w, 1, "n", 2)
	err = s.CommitTransaction(deadline(t))
	var server mongo.ServerError
	if !errors.As(err, &server) || !server.HasErrorCode(251) {
		t.Fatalf("got %v", err)
	}
}

// TestUnknownCommitResult: the driver commits again, whether the first try was
// done or not.
func TestUnknownCommitResult(t *testing.T) {
	for name, f := range map[string]mongofake.Fault{
		"cut before":     {Cut: true},
		"cut after":      {Cut: true, After: true},
		"told, not done": {Code: 64, Labels: []string{"UnknownTransactionCommitResult"}},
		"told and done":  {Code: 64, After: true, Labels: []string{"UnknownTransactionCommitResult"}},
		"write concern":  {Code: 64, WriteConcern: true, Labels: []string{"UnknownTransactionCommitResult"}},
		"stepped down":   {Code: 189},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, mongofake.Options{})
			insert(t, w, item(0))
			f.Command = "commitTransaction"
			w.Fail(f)
			s, err := w.client.StartSession()
			ok(t, err)
			defer s.EndSession(context.Background())
			changes := watch(t, w.coll)
			runs := 0
			_, err = s.WithTransaction(deadline(t), func(ctx context.Context) (any, error) {
				runs++
				return w.coll.InsertOne(ctx, item(1))
			})
			ok(t, err)
			if w.Calls("commitTransaction") != 2 || w.Pending() != 0 {
				t.Errorf("%d commits, %d faults are left, the work ran %d times", w.Calls("commitTransaction"), w.Pending(), runs)
			}
			wantIDs(t, ids(t, deadline(t), w.coll, bson.D{}), int32(0), int32(1))
			next(t, changes, 1)
			none(t, changes)
		})
	}
}

// TestTransientError: the driver runs the whole transaction again.
func TestTransientError(t *testing.T) {
	w := start(t, mongofake.Options{})
	w.Fail(mongofake.Fault{Command: "insert", Skip: 1, Code: 112})
	s, err := w.client.StartSession()
	ok(t, err)
	defer s.EndSession(context.Background())
	runs := 0
	_, err = s.WithTransaction(deadline(t), func(ctx context.Context) (any, error) {
		runs++
		if _, err := w.coll.InsertOne(ctx, item(1)); err != nil {
			return nil, err
		}
		return w.coll.InsertOne(ctx, item(2))
	})
	ok(t, err)
	if runs != 2 {
		t.Errorf("it ran %d times", runs)
	}
	wantIDs(t, ids(t, deadline(t), w.coll, bson.D{}), int32(1), int32(2))
}
