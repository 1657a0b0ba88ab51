package mongofake_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/internal/mongofake"
)

// change is what the tests look at in an event.
type change struct {
	ID          bson.Raw       `bson:"_id"`
	Op          string         `bson:"operationType"`
	ClusterTime bson.Timestamp `bson:"clusterTime"`
	WallTime    time.Time      `bson:"wallTime"`
	Full        *bson.D        `bson:"fullDocument"`
	Key         bson.M         `bson:"documentKey"`
	NS          struct{ DB, Coll string }
	To          struct{ DB, Coll string }
	Update      struct {
		Updated bson.M   `bson:"updatedFields"`
		Removed []string `bson:"removedFields"`
	} `bson:"updateDescription"`
	Number *int64 `bson:"txnNumber"`
}

func watch(t testing.TB, coll *mongo.Collection, o ...options.Lister[options.ChangeStreamOptions]) *mongo.ChangeStream {
	t.Helper()
	o = append([]options.Lister[options.ChangeStreamOptions]{options.ChangeStream().SetMaxAwaitTime(20 * time.Millisecond)}, o...)
	changes, err := coll.Watch(deadline(t), mongo.Pipeline{}, o...)
	ok(t, err)
	t.Cleanup(func() { _ = changes.Close(context.Background()) })
	return changes
}

// next takes n events.
func next(t testing.TB, changes *mongo.ChangeStream, n int) (list []change) {
	t.Helper()
	for range n {
		if !changes.Next(deadline(t)) {
			t.Fatalf("no event after %d: %v", len(list), changes.Err())
		}
		var c change
		ok(t, changes.Decode(&c))
		list = append(list, c)
	}
	return list
}

func ops(list []change) (names []string) {
	for _, c := range list {
		names = append(names, c.Op)
	}
	return names
}

// none demands that the stream is at its end for now. The first look may be at
// the batch that a new stream comes with.
func none(t testing.TB, changes *mongo.ChangeStream) {
	t.Helper()
	for range 2 {
		if changes.TryNext(deadline(t)) {
			t.Fatalf("an event that was not to come: %s", changes.Current)
		}
		ok(t, changes.Err())
	}
}

func set(t testing.TB, w world, id any, field string, v any) {
	t.Helper()
	_, err := w.coll.UpdateOne(deadline(t), item(id), bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: v}}}})
	ok(t, err)
}

func TestStreamOfEveryOperation(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, item(0))
	changes := watch(t, w.coll, options.ChangeStream().SetFullDocument(options.UpdateLookup))
	insert(t, w, item(1, "a", 1, "b", 1))
	_, err := w.db.Collection("other").InsertOne(ctx, item(9))
	ok(t, err)
	_, err = w.coll.UpdateOne(ctx, item(1), bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 2}}}, {Key: "$unset", Value: bson.D{{Key: "b", Value: 1}}}})
	ok(t, err)
	_, err = w.coll.ReplaceOne(ctx, item(1), item(1, "c", 3))
	ok(t, err)
	_, err = w.coll.DeleteOne(ctx, item(1))
	ok(t, err)
	list := next(t, changes, 4)
	if got := ops(list); !slices.Equal(got, []string{"insert", "update", "replace", "delete"}) {
		t.Fatalf("got %v", got)
	}
	for i, c := range list {
		if c.Key["_id"] != int32(1) || c.NS.Coll != "items" || c.NS.DB != "shop" || c.WallTime.IsZero() || c.ID.Lookup("_data").IsZero() {
			t.Errorf("event %d: %+v", i, c)
		}
		if i > 0 && !c.ClusterTime.After(list[i-1].ClusterTime) {
			t.Errorf("event %d is not after the one before", i)
		}
	}
	u := list[1].Update
	if len(u.Updated) != 1 || u.Updated["a"] != int32(2) || !slices.Equal(u.Removed, []string{"b"}) {
		t.Errorf("the update: %+v", u)
	}
	if list[1].Full != nil || list[2].Full == nil || list[3].Full != nil {
		t.Error("the lookup finds what is deleted, or a replacement has no document")
	}
	none(t, changes)
}

func TestStreamWaits(t *testing.T) {
	w := start(t, mongofake.Options{})
	changes := watch(t, w.coll, options.ChangeStream().SetMaxAwaitTime(20*time.Second))
	got := make(chan bool)
	go func() { got <- changes.Next(deadline(t)) }()
	ok(t, w.Await(deadline(t), "getMore", 1))
	began := time.Now()
	insert(t, w, item(1))
	if !<-got || time.Since(began) > 10*time.Second {
		t.Fatalf("it took %v: %v", time.Since(began), changes.Err())
	}
	// And for as long as it is told to.
	short := watch(t, w.coll, options.ChangeStream().SetMaxAwaitTime(5*time.Millisecond))
	none(t, short)
}

// TestResumeEverywhere: from each token, the rest comes, and only that.
func TestResumeEverywhere(t *testing.T) {
	w := start(t, mongofake.Options{})
	begin := watch(t, w.coll)
	first := begin.ResumeToken()
	if first == nil {
		t.Fatal("a new stream has no token")
	}
	const n = 10
	for i := range n {
		insert(t, w, item(i))
	}
	list := next(t, begin, n)
	tokens := []bson.Raw{first}
	for _, c := range list {
		tokens = append(tokens, c.ID)
	}
	for i, token := range tokens {
		for name, o := range map[string]*options.ChangeStreamOptionsBuilder{
			"resumeAfter": options.ChangeStream().SetResumeAfter(token),
			"startAfter":  options.ChangeStream().SetStartAfter(token),
		} {
			changes := watch(t, w.coll, o.SetBatchSize(3).SetMaxAwaitTime(time.Millisecond))
			for j, c := range next(t, changes, n-i) {
				if c.Key["_id"] != int32(i+j) {
					t.Errorf("%s %d: event %d is of %v", name, i, j, c.Key)
				}
			}
			none(t, changes)
		}
	}
	at := list[4].ClusterTime
	if got := next(t, watch(t, w.coll, options.ChangeStream().SetStartAtOperationTime(&at)), 1); got[0].Key["_id"] != int32(4) {
		t.Errorf("from a time on: %v", got)
	}
}

// TestTokenMovesWithOthers: the token goes forward with changes that are none of
// the stream's, and never passes one that is.
func TestTokenMovesWithOthers(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	changes := watch(t, w.coll, options.ChangeStream().SetMaxAwaitTime(time.Millisecond))
	before := changes.ResumeToken().String()
	for i := range 3 {
		_, err := w.db.Collection("other").InsertOne(ctx, item(i))
		ok(t, err)
	}
	none(t, changes)
	after := changes.ResumeToken()
	if after.String() <= before {
		t.Fatalf("the token %s is not after %s", after, before)
	}
	insert(t, w, item(1))
	if got := next(t, watch(t, w.coll, options.ChangeStream().SetResumeAfter(after)), 1); got[0].Op != "insert" {
		t.Fatalf("got %v", got)
	}
}

func TestStreamPipeline(t *testing.T) {
	w := start(t, mongofake.Options{})
	changes, err := w.coll.Watch(deadline(t), mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}, {Key: "fullDocument.n", Value: bson.D{{Key: "$gt", Value: 1}}}}}},
		{{Key: "$project", Value: bson.D{{Key: "n", Value: "$fullDocument.n"}}}},
	})
	ok(t, err)
	defer func() { _ = changes.Close(context.Background()) }()
	insert(t, w, item(1, "n", 1), item(2, "n", 2))
	next(t, changes, 1)
	if changes.Current.Lookup("n").Int32() != 2 || !changes.Current.Lookup("operationType").IsZero() {
		t.Errorf("got %s", changes.Current)
	}
	without, err := w.coll.Watch(deadline(t), mongo.Pipeline{{{Key: "$project", Value: bson.D{{Key: "_id", Value: 0}}}}})
	ok(t, err)
	defer func() { _ = without.Close(context.Background()) }()
	insert(t, w, item(3))
	if without.Next(deadline(t)) {
		t.Error("an event without a token")
	}
	wantCode(t, without.Err(), 280, "NonResumableChangeStreamError")
}

func TestDropAndRenameEndTheStream(t *testing.T) {
	for _, how := range []string{"drop", "rename", "dropDatabase", "renamed over"} {
		t.Run(how, func(t *testing.T) {
			w := start(t, mongofake.Options{})
			ctx := deadline(t)
			insert(t, w, item(0))
			_, err := w.db.Collection("else").InsertOne(ctx, item(1))
			ok(t, err)
			changes := watch(t, w.coll)
			insert(t, w, item(1))
			op := how
			switch how {
			case "drop":
				err = w.coll.Drop(ctx)
			case "dropDatabase":
				op, err = "drop", w.db.Drop(ctx)
			case "rename":
				err = w.client.Database("admin").RunCommand(ctx, bson.D{{Key: "renameCollection", Value: "shop.items"}, {Key: "to", Value: "shop.new"}}).Err()
			default:
				op = "rename"
				err = w.client.Database("admin").RunCommand(ctx, bson.D{{Key: "renameCollection", Value: "shop.else"}, {Key: "to", Value: "shop.items"}, {Key: "dropTarget", Value: true}}).Err()
			}
			ok(t, err)
			list := next(t, changes, 3)
			if got := ops(list); !slices.Equal(got, []string{"insert", op, "invalidate"}) {
				t.Fatalf("got %v", got)
			}
			if changes.Next(ctx) || changes.Err() != nil || changes.ID() != 0 {
				t.Errorf("the stream goes on, or fails: %v", changes.Err())
			}
			_, err = w.coll.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(list[2].ID))
			wantCode(t, err, 260)
			insert(t, w, item(7))
			if got := next(t, watch(t, w.coll, options.ChangeStream().SetStartAfter(list[2].ID)), 1); got[0].Key["_id"] != int32(7) {
				t.Errorf("after the end: %+v", got)
			}
		})
	}
}

func TestPostImages(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, item(1, "n", 0))
	when := watch(t, w.coll, options.ChangeStream().SetFullDocument(options.WhenAvailable))
	required := watch(t, w.coll, options.ChangeStream().SetFullDocument(options.Required))
	ok(t, w.db.RunCommand(ctx, bson.D{{Key: "collMod", Value: "items"}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: true}}}}).Err())
	set(t, w, 1, "n", 1)
	ok(t, w.db.RunCommand(ctx, bson.D{{Key: "collMod", Value: "items"}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: false}}}}).Err())
	set(t, w, 1, "n", 2)
	list := next(t, when, 2)
	if list[0].Full == nil || (*list[0].Full)[1].Value != int32(1) || list[1].Full != nil {
		t.Errorf("got %v and %v", list[0].Full, list[1].Full)
	}
	for required.Next(ctx) {
	}
	wantCode(t, required.Err(), 47)
}

func TestHistoryLost(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	open := watch(t, w.coll, options.ChangeStream().SetMaxAwaitTime(time.Millisecond))
	insert(t, w, item(1), item(2))
	list := next(t, watch(t, w.coll, options.ChangeStream().SetResumeAfter(open.ResumeToken())), 2)
	w.TrimHistory(list[0].ClusterTime)
	_, err := w.coll.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(list[0].ID))
	wantCode(t, err, 286)
	at := list[0].ClusterTime
	_, err = w.coll.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetStartAtOperationTime(&at))
	wantCode(t, err, 286)
	none(t, watch(t, w.coll, options.ChangeStream().SetResumeAfter(list[1].ID).SetMaxAwaitTime(time.Millisecond)))
	for open.Next(ctx) {
	}
	wantCode(t, open.Err(), 136)
	_, err = w.db.Collection("other").Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(list[1].ID))
	wantCode(t, err, 280, "NonResumableChangeStreamError")
	_, err = w.coll.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(bson.D{{Key: "_data", Value: "8263"}}))
	wantCode(t, err, 260)
}

func TestOversizedEvent(t *testing.T) {
	w := start(t, mongofake.Options{MaxDocument: 20 << 10})
	changes := watch(t, w.coll, options.ChangeStream().SetFullDocument(options.UpdateLookup))
	insert(t, w, item(1, "text", ""))
	next(t, changes, 1)
	long := string(make([]byte, 19<<10))
	set(t, w, 1, "text", long) // once in the update and once in the document
	if changes.Next(deadline(t)) {
		t.Fatal("an event that is too large came")
	}
	wantCode(t, changes.Err(), 10334)
	_, err := w.coll.InsertOne(deadline(t), item(2, "text", long+long))
	wantCode(t, err, 10334)
}

func TestStandaloneHasNoStream(t *testing.T) {
	w := start(t, mongofake.Options{Standalone: true})
	insert(t, w, item(1))
	_, err := w.coll.Watch(deadline(t), mongo.Pipeline{})
	wantCode(t, err, 40573)
	err = w.client.UseSession(deadline(t), func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) { return w.coll.InsertOne(ctx, item(2)) })
		return err
	})
	if err == nil {
		t.Fatal("a transaction succeeds")
	}
}

// TestWiderStreams: of a database and of all.
func TestWiderStreams(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	ofDB, err := w.db.Watch(ctx, mongo.Pipeline{})
	ok(t, err)
	defer func() { _ = ofDB.Close(context.Background()) }()
	all, err := w.client.Watch(ctx, mongo.Pipeline{})
	ok(t, err)
	defer func() { _ = all.Close(context.Background()) }()
	insert(t, w, item(1))
	_, err = w.client.Database("far").Collection("x").InsertOne(ctx, item(2))
	ok(t, err)
	ok(t, w.coll.Drop(ctx))
	ok(t, w.db.Drop(ctx)) // it is empty: no event
	if got := ops(next(t, ofDB, 2)); !slices.Equal(got, []string{"insert", "drop"}) {
		t.Errorf("of the database: %v", got)
	}
	if got := fmt.Sprint(ops(next(t, all, 3))); got != "[insert insert drop]" {
		t.Errorf("of all: %v", got)
	}
}
