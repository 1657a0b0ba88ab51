package mongofake_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/internal/mongofake"
)

// TestRetriedWrite: a write whose answer was lost is sent again by the driver,
// and is not done again.
func TestRetriedWrite(t *testing.T) {
	w := start(t, mongofake.Options{})
	insert(t, w, item(1, "n", 0))
	w.Fail(mongofake.Fault{Command: "update", Cut: true, After: true})
	up := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	r, err := w.coll.UpdateOne(deadline(t), item(1), up)
	if err != nil || r.ModifiedCount != 1 || w.Calls("update") != 2 {
		t.Fatalf("%+v, %v after %d tries", r, err, w.Calls("update"))
	}
	w.Fail(mongofake.Fault{Command: "update", Code: 91})
	_, err = w.coll.UpdateOne(deadline(t), item(1), up)
	ok(t, err)
	wantIDs(t, ids(t, deadline(t), w.coll, item(1, "n", 2)), int32(1))
	w.Fail(mongofake.Fault{Command: "update", Code: 11601, When: func(cmd bson.Raw) bool { return cmd.Lookup("update").StringValue() == "items" }})
	_, err = w.db.Collection("other").UpdateOne(deadline(t), item(1), up)
	ok(t, err)
	_, err = w.coll.UpdateOne(deadline(t), item(1), up)
	wantCode(t, err, 11601)
	if w.Pending() != 0 {
		t.Errorf("%d faults are left", w.Pending())
	}
}

// TestFailingStatement: one statement fails, and the others are done.
func TestFailingStatement(t *testing.T) {
	w := start(t, mongofake.Options{})
	insert(t, w, item(1), item(2), item(3))
	w.Fail(mongofake.Fault{Command: "delete", Statement: 2, Code: 8000, Message: "not this one"})
	var models []mongo.WriteModel
	for n := range 3 {
		models = append(models, mongo.NewDeleteOneModel().SetFilter(item(n+1)))
	}
	_, err := w.coll.BulkWrite(deadline(t), models, options.BulkWrite().SetOrdered(false))
	var bulk mongo.BulkWriteException
	if !errors.As(err, &bulk) || len(bulk.WriteErrors) != 1 || bulk.WriteErrors[0].Index != 1 || bulk.WriteErrors[0].Code != 8000 {
		t.Errorf("the error: %v", err)
	}
	wantIDs(t, ids(t, deadline(t), w.coll, bson.D{}), int32(2))
}

func TestHealAndDelay(t *testing.T) {
	w := start(t, mongofake.Options{})
	w.Fail(mongofake.Fault{Command: "insert", Times: -1, Code: 8000})
	for range 3 {
		_, err := w.coll.InsertOne(deadline(t), item(1))
		wantCode(t, err, 8000)
	}
	w.Heal()
	insert(t, w, item(1))
	w.Fail(mongofake.Fault{Command: "find", Delay: 50 * time.Millisecond})
	began := time.Now()
	wantIDs(t, ids(t, deadline(t), w.coll, bson.D{}), int32(1))
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	w.Fail(mongofake.Fault{Command: "find", Delay: time.Hour})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := w.coll.FindOne(ctx, item(1)).Err(); err == nil {
		t.Error("an answer that was held back came")
	}
}

// TestStreamSurvives: whatever the driver may resume from, it resumes from, and
// no event is missing or comes twice.
func TestStreamSurvives(t *testing.T) {
	for name, harm := range map[string]func(world){
		"killed cursor": func(w world) { w.KillCursors() },
		"cut getMore":   func(w world) { w.Fail(mongofake.Fault{Command: "getMore", Cut: true}) },
		"lost batch":    func(w world) { w.Fail(mongofake.Fault{Command: "getMore", Cut: true, After: true}) },
		"labelled error": func(w world) {
			w.Fail(mongofake.Fault{Command: "getMore", Code: 8, Labels: []string{"ResumableChangeStreamError"}})
		},
		"code of its own": func(w world) { w.Fail(mongofake.Fault{Command: "getMore", Code: 11602}) },
		"step down": func(w world) {
			w.StepDown(0)
			w.StepUp()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, mongofake.Options{})
			changes := watch(t, w.coll, options.ChangeStream().SetMaxAwaitTime(20*time.Millisecond).SetBatchSize(2))
			const n = 12
			for i := range n {
				insert(t, w, item(i))
			}
			for i := range n {
				if i%5 == 3 {
					harm(w)
				}
				if c := next(t, changes, 1); c[0].Key["_id"] != int32(i) {
					t.Fatalf("event %d is of %v", i, c[0].Key)
				}
			}
			none(t, changes)
		})
	}
}

// TestCutConnections: the driver may give a stream up when all connections end at
// once. A new one goes on from the token of the old.
func TestCutConnections(t *testing.T) {
	w := start(t, mongofake.Options{})
	changes := watch(t, w.coll, options.ChangeStream().SetMaxAwaitTime(20*time.Millisecond).SetBatchSize(2))
	const n = 12
	for i := range n {
		insert(t, w, item(i))
	}
	for i := 0; i < n; {
		if i%4 == 1 {
			w.CutConnections()
		}
		if !changes.Next(deadline(t)) {
			changes = watch(t, w.coll, options.ChangeStream().SetResumeAfter(changes.ResumeToken()))
			continue
		}
		if id := changes.Current.Lookup("documentKey", "_id").Int32(); id != int32(i) {
			t.Fatalf("event %d is of %d", i, id)
		}
		i++
	}
	// The last cut may have ended this one.
	none(t, watch(t, w.coll, options.ChangeStream().SetResumeAfter(changes.ResumeToken()).SetMaxAwaitTime(20*time.Millisecond)))
}

// TestStreamEnds: what the driver may not resume from is an error.
func TestStreamEnds(t *testing.T) {
	w := start(t, mongofake.Options{})
	changes := watch(t, w.coll)
	w.Fail(mongofake.Fault{Command: "getMore", Code: 280, Labels: []string{"NonResumableChangeStreamError"}})
	if changes.Next(deadline(t)) {
		t.Fatal("an event came")
	}
	wantCode(t, changes.Err(), 280, "NonResumableChangeStreamError")
}

func TestStepDown(t *testing.T) {
	for _, code := range []int32{10107, 91, 189} {
		w := start(t, mongofake.Options{})
		insert(t, w, item(1))
		s, in := session(t, w)
		_, err := w.coll.InsertOne(in, item(2))
		ok(t, err)
		changes := watch(t, w.coll, options.ChangeStream().SetMaxAwaitTime(20*time.Second))
		got := make(chan bool, 1)
		before := w.Calls("getMore")
		go func() { got <- changes.Next(deadline(t)) }()
		ok(t, w.Await(deadline(t), "getMore", before+1))

		w.StepDown(code)
		direct, err := mongo.Connect(options.Client().ApplyURI(w.URI()).SetDirect(true).SetHeartbeatInterval(500 * time.Millisecond).SetRetryReads(false).SetRetryWrites(false))
		ok(t, err)
		_, err = direct.Database("shop").Collection("items").InsertOne(deadline(t), item(3))
		wantCode(t, err, int(code))
		// A read that names no preference is for the primary.
		ok(t, direct.Database("shop").Collection("items").FindOne(deadline(t), item(1)).Err()) // direct connections prefer the primary
		ok(t, direct.Disconnect(context.Background()))

		short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		if _, err := w.coll.InsertOne(short, item(4)); err == nil {
			t.Error("a secondary takes a write")
		}
		cancel()
		w.StepUp()
		_, err = w.coll.InsertOne(deadline(t), item(5))
		ok(t, err)
		if !<-got {
			t.Fatalf("the stream ended: %v", changes.Err())
		}
		if id := changes.Current.Lookup("documentKey", "_id").Int32(); id != 5 {
			t.Errorf("the event is of %d", id)
		}
		err = s.CommitTransaction(deadline(t))
		wantCode(t, err, 251)
		wantIDs(t, ids(t, deadline(t), w.coll, bson.D{}), int32(1), int32(5))
	}
}

// TestDown: a server that is away comes back with what it had.
func TestDown(t *testing.T) {
	w := start(t, mongofake.Options{})
	insert(t, w, item(1))
	changes := watch(t, w.coll, options.ChangeStream().SetMaxAwaitTime(10*time.Millisecond))
	w.Down(true)
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := w.coll.InsertOne(short, item(2)); err == nil {
		t.Error("a server that is away takes a write")
	}
	w.Down(false)
	insert(t, w, item(3))
	if got := next(t, changes, 1); got[0].Key["_id"] != int32(3) {
		t.Errorf("got %+v", got)
	}
}
