package mongofake_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"promethean/internal/mongofake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server with a client of it.
type world struct {
	*mongofake.Server
	client *mongo.Client
	db     *mongo.Database
	coll   *mongo.Collection
}

func start(t testing.TB, o mongofake.Options) world {
	t.Helper()
	s := mongofake.Start(t, o)
	client := connect(t, s)
	return world{Server: s, client: client, db: client.Database("shop"), coll: client.Database("shop").Collection("items")}
}

func connect(t testing.TB, s *mongofake.Server) *mongo.Client {
	t.Helper()
	// The driver asks twice a second whether the server is back: it may not learn
	// so from a connection that was cut.
	client, err := mongo.Connect(options.Client().ApplyURI(s.URI()).SetServerSelectionTimeout(time.Minute).SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Disconnect(context.Background()); err != nil {
			t.Errorf("disconnect: %v", err)
		}
	})
	return client
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantCode demands an error of the server with a code and labels.
func wantCode(t testing.TB, err error, code int, labels ...string) {
	t.Helper()
	var server mongo.ServerError
	if !errors.As(err, &server) || !server.HasErrorCode(code) {
		t.Fatalf("got %v, want the code %d", err, code)
	}
	for _, label := range labels {
		if !server.HasErrorLabel(label) {
			t.Errorf("got %v, want the label %s", err, label)
		}
	}
}

func insert(t testing.TB, w world, docs ...any) {
	t.Helper()
	_, err := w.coll.InsertMany(deadline(t), docs)
	ok(t, err)
}

func item(id any, more ...any) bson.D {
	d := bson.D{{Key: "_id", Value: id}}
	for i := 0; i < len(more); i += 2 {
		d = append(d, bson.E{Key: more[i].(string), Value: more[i+1]})
	}
	return d
}

// ids gives the _ids that a filter finds.
func ids(t testing.TB, ctx context.Context, coll *mongo.Collection, filter any, o ...options.Lister[options.FindOptions]) []any {
	t.Helper()
	found, err := coll.Find(ctx, filter, o...)
	ok(t, err)
	var docs []bson.M
	ok(t, found.All(ctx, &docs))
	list := []any{}
	for _, d := range docs {
		list = append(list, d["_id"])
	}
	return list
}

func wantIDs(t testing.TB, got []any, want ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestHandshake(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	ok(t, w.client.Ping(ctx, nil))
	var info struct{ Version string }
	ok(t, w.db.RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info))
	var hello struct {
		SetName   string `bson:"setName"`
		Primary   bool   `bson:"isWritablePrimary"`
		MaxWire   int    `bson:"maxWireVersion"`
		Minutes   int    `bson:"logicalSessionTimeoutMinutes"`
		Hosts     []string
		ClusterAt bson.Raw `bson:"$clusterTime"`
	}
	ok(t, w.db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello))
	if info.Version != "7.0.0" || !hello.Primary || hello.MaxWire != 21 || hello.Minutes == 0 || hello.SetName == "" || len(hello.Hosts) != 1 || hello.ClusterAt == nil {
		t.Fatalf("got %+v, %+v", info, hello)
	}
}

func TestDocuments(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, item(1, "n", 1, "tag", "a"), item(2, "n", 2, "tag", "b"), item(3, "n", 3), item(4, "n", 4.5, "in", bson.D{{Key: "x", Value: 7}}))

	for _, c := range []struct {
		filter string
		want   []any
	}{
		{`{}`, []any{int32(1), int32(2), int32(3), int32(4)}},
		{`{"_id": 2}`, []any{int32(2)}},
		{`{"_id": 2.0}`, []any{int32(2)}},
		{`{"n": {"$gt": 1, "$lte": 3}}`, []any{int32(2), int32(3)}},
		{`{"n": {"$gte": 4.5}}`, []any{int32(4)}},
		{`{"n": {"$lt": 2}}`, []any{int32(1)}},
		{`{"n": {"$gt": "1"}}`, []any{}},
		{`{"tag": {"$exists": false}}`, []any{int32(3), int32(4)}},
		{`{"tag": null}`, []any{int32(3), int32(4)}},
		{`{"tag": {"$ne": "a"}}`, []any{int32(2), int32(3), int32(4)}},
		{`{"tag": {"$in": ["a", "z"]}}`, []any{int32(1)}},
		{`{"tag": {"$nin": ["a", null]}}`, []any{int32(2)}},
		{`{"$or": [{"n": 1}, {"tag": "b"}]}`, []any{int32(1), int32(2)}},
		{`{"$and": [{"n": {"$gt": 1}}, {"n": {"$not": {"$gt": 2}}}]}`, []any{int32(2)}},
		{`{"$nor": [{"n": 1}, {"n": 2}]}`, []any{int32(3), int32(4)}},
		{`{"in.x": 7}`, []any{int32(4)}},
		{`{"in": {"x": 7}}`, []any{int32(4)}},
	} {
		var filter bson.D
		ok(t, bson.UnmarshalExtJSON([]byte(c.filter), false, &filter))
		if got := ids(t, ctx, w.coll, filter); !slices.Equal(got, c.want) {
			t.Errorf("%s finds %v, want %v", c.filter, got, c.want)
		}
	}
	wantIDs(t, ids(t, ctx, w.coll, bson.D{}, options.Find().SetSort(bson.D{{Key: "n", Value: -1}}).SetSkip(1).SetLimit(2)), int32(3), int32(2))

	var shown bson.D
	ok(t, w.coll.FindOne(ctx, item(4), options.FindOne().SetProjection(bson.D{{Key: "in.x", Value: 1}, {Key: "_id", Value: 0}})).Decode(&shown))
	if len(shown) != 1 || shown[0].Key != "in" {
		t.Errorf("the projection gives %v", shown)
	}
	n, err := w.coll.CountDocuments(ctx, bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 1}}}})
	if err != nil || n != 3 {
		t.Errorf("counted %d, %v", n, err)
	}
	n, err = w.coll.EstimatedDocumentCount(ctx)
	if err != nil || n != 4 {
		t.Errorf("estimated %d, %v", n, err)
	}
}

// TestArrays: a filter on an array means it as a whole or one of its elements.
func TestArrays(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, item(1, "a", bson.A{1, 2}), item(2, "a", bson.A{bson.D{{Key: "b", Value: 3}}, bson.D{}}), item(3, "a", 2))
	wantIDs(t, ids(t, ctx, w.coll, bson.D{{Key: "a", Value: 2}}), int32(1), int32(3))
	wantIDs(t, ids(t, ctx, w.coll, bson.D{{Key: "a", Value: bson.A{1, 2}}}), int32(1))
	wantIDs(t, ids(t, ctx, w.coll, bson.D{{Key: "a.b", Value: 3}}), int32(2))
	wantIDs(t, ids(t, ctx, w.coll, bson.D{{Key: "a.1", Value: 2}}), int32(1))
	wantIDs(t, ids(t, ctx, w.coll, bson.D{{Key: "a.b", Value: nil}}), int32(2), int32(3))
}

// TestMin: where a read begins in the index over _id, whatever the types.
func TestMin(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, item("b"), item(2), item("a"), item(1), item(true))
	sorted := func() *options.FindOptionsBuilder { return options.Find().SetSort(item(1)) }
	wantIDs(t, ids(t, ctx, w.coll, bson.D{}, sorted()), int32(1), int32(2), "a", "b", true)
	wantIDs(t, ids(t, ctx, w.coll, bson.D{}, sorted().SetMin(item(2)).SetHint(item(1))), int32(2), "a", "b", true)
	_, err := w.coll.Find(ctx, bson.D{}, sorted().SetMin(item(2)))
	wantCode(t, err, 51173)
}

func TestCursors(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	var docs []any
	for i := range 250 {
		docs = append(docs, item(i))
	}
	insert(t, w, docs...)
	before := w.Calls("getMore")
	if got := ids(t, ctx, w.coll, bson.D{}, options.Find().SetBatchSize(100)); len(got) != 250 || w.Calls("getMore")-before != 2 {
		t.Fatalf("%d documents with %d getMores", len(got), w.Calls("getMore")-before)
	}
	// What a read gives later is as it is then.
	found, err := w.coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(10).SetSort(item(1)))
	ok(t, err)
	_, err = w.coll.DeleteOne(ctx, item(200))
	ok(t, err)
	_, err = w.coll.UpdateOne(ctx, item(201), bson.D{{Key: "$set", Value: bson.D{{Key: "late", Value: true}}}})
	ok(t, err)
	var rest []bson.M
	ok(t, found.All(ctx, &rest))
	if len(rest) != 249 || rest[200]["_id"] != int32(201) || rest[200]["late"] != true {
		t.Errorf("%d documents, the 200th is %v", len(rest), rest[200])
	}
	found, err = w.coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(10))
	ok(t, err)
	if w.Cursors() != 1 {
		t.Errorf("%d cursors are open", w.Cursors())
	}
	w.KillCursors()
	for found.Next(ctx) {
	}
	wantCode(t, found.Err(), 43)
}

func TestUpdates(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, item(1, "n", 1, "gone", true), item(2, "n", 2))
	set := func(update any, o ...options.Lister[options.UpdateOneOptions]) *mongo.UpdateResult {
		t.Helper()
		r, err := w.coll.UpdateOne(ctx, item(1), update, o...)
		ok(t, err)
		return r
	}
	r := set(bson.D{
		{Key: "$set", Value: bson.D{{Key: "a.b", Value: "x"}}}, {Key: "$unset", Value: bson.D{{Key: "gone", Value: ""}}},
		{Key: "$inc", Value: bson.D{{Key: "n", Value: 5}}}, {Key: "$max", Value: bson.D{{Key: "top", Value: 3}}},
		{Key: "$push", Value: bson.D{{Key: "list", Value: 9}}}, {Key: "$setOnInsert", Value: bson.D{{Key: "never", Value: 1}}},
	})
	if r.MatchedCount != 1 || r.ModifiedCount != 1 {
		t.Errorf("got %+v", r)
	}
	if r = set(bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 6}}}}); r.MatchedCount != 1 || r.ModifiedCount != 0 {
		t.Errorf("an update that changes nothing: %+v", r)
	}
	var raw bson.Raw
	ok(t, w.coll.FindOne(ctx, item(1)).Decode(&raw))
	if got, want := raw.String(), `{"_id": {"$numberInt":"1"},"n": {"$numberInt":"6"},"a": {"b": "x"},"top": {"$numberInt":"3"},"list": [{"$numberInt":"9"}]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	all, err := w.coll.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$currentDate", Value: bson.D{{Key: "at", Value: true}}}})
	if err != nil || all.ModifiedCount != 2 {
		t.Errorf("update all: %+v, %v", all, err)
	}
	up, err := w.coll.UpdateOne(ctx, item(7, "kind", "new"), bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "x", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
	if err != nil || up.UpsertedID != int32(7) {
		t.Errorf("upsert: %+v, %v", up, err)
	}
	wantIDs(t, ids(t, ctx, w.coll, bson.D{{Key: "kind", Value: "new"}, {Key: "x", Value: 1}}), int32(7))
	_, err = w.coll.ReplaceOne(ctx, item(7), bson.D{{Key: "only", Value: "this"}})
	ok(t, err)
	wantIDs(t, ids(t, ctx, w.coll, bson.D{{Key: "kind", Value: bson.D{{Key: "$exists", Value: false}}}, {Key: "only", Value: "this"}}), int32(7))
	del, err := w.coll.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: 1}}}})
	if err != nil || del.DeletedCount != 2 {
		t.Errorf("delete: %+v, %v", del, err)
	}
	_, err = w.coll.UpdateOne(ctx, item(1), bson.D{{Key: "$set", Value: bson.D{{Key: "_id", Value: 5}}}})
	wantCode(t, err, 66)
}

func TestFindAndModify(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, item(1, "n", 3), item(2, "n", 2))
	byN := bson.D{{Key: "n", Value: 1}}
	claim := bson.D{{Key: "$set", Value: bson.D{{Key: "by", Value: "me"}}}}
	var got bson.M
	ok(t, w.coll.FindOneAndUpdate(ctx, bson.D{{Key: "by", Value: nil}}, claim, options.FindOneAndUpdate().SetSort(byN).SetReturnDocument(options.After)).Decode(&got))
	if got["_id"] != int32(2) || got["by"] != "me" {
		t.Errorf("got %v", got)
	}
	clear(got)
	ok(t, w.coll.FindOneAndUpdate(ctx, bson.D{{Key: "by", Value: nil}}, claim, options.FindOneAndUpdate().SetSort(byN)).Decode(&got))
	if got["_id"] != int32(1) || got["by"] != nil {
		t.Errorf("the document before: %v", got)
	}
	if err := w.coll.FindOneAndUpdate(ctx, bson.D{{Key: "by", Value: nil}}, claim).Err(); !errors.Is(err, mongo.ErrNoDocuments) {
		t.Errorf("no document: %v", err)
	}
	ok(t, w.coll.FindOneAndDelete(ctx, item(1)).Err())
	wantIDs(t, ids(t, ctx, w.coll, bson.D{}), int32(2))
	clear(got)
	ok(t, w.coll.FindOneAndUpdate(ctx, item("seq"), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int64(1)}}}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&got))
	if got["n"] != int64(1) {
		t.Errorf("the counter: %v", got)
	}
}

func TestUnique(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	_, err := w.coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}, Options: options.Index().SetUnique(true)})
	ok(t, err)
	insert(t, w, item(1, "a", 1, "b", 1), item(2, "a", 1, "b", 2))
	_, err = w.coll.InsertOne(ctx, item(1))
	if !mongo.IsDuplicateKeyError(err) {
		t.Errorf("the same _id: %v", err)
	}
	_, err = w.coll.InsertOne(ctx, item(3, "a", 1, "b", 2))
	if !mongo.IsDuplicateKeyError(err) || !strings.Contains(err.Error(), "a_1_b_1") {
		t.Errorf("the same key: %v", err)
	}
	_, err = w.coll.UpdateOne(ctx, item(2), bson.D{{Key: "$set", Value: bson.D{{Key: "b", Value: 1}}}})
	if !mongo.IsDuplicateKeyError(err) {
		t.Errorf("an update to the same key: %v", err)
	}
	_, err = w.coll.DeleteOne(ctx, item(1))
	ok(t, err)
	_, err = w.coll.UpdateOne(ctx, item(2), bson.D{{Key: "$set", Value: bson.D{{Key: "b", Value: 1}}}})
	ok(t, err)
	insert(t, w, item(3, "a", 1, "b", 2))
	// An unordered insert goes on behind what is refused.
	many, err := w.coll.InsertMany(ctx, []any{item(3), item(8, "a", 8), item(9, "a", 9)}, options.InsertMany().SetOrdered(false))
	var bulk mongo.BulkWriteException
	if !errors.As(err, &bulk) || len(bulk.WriteErrors) != 1 || bulk.WriteErrors[0].Index != 0 || many == nil {
		t.Errorf("unordered: %v", err)
	}
	wantIDs(t, ids(t, ctx, w.coll, bson.D{}), int32(2), int32(3), int32(8), int32(9))
	specs, err := w.coll.Indexes().ListSpecifications(ctx)
	if err != nil || len(specs) != 2 || specs[1].Unique == nil || !*specs[1].Unique {
		t.Errorf("the indexes: %v, %v", specs, err)
	}
}

func TestCollections(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	ok(t, w.db.CreateCollection(ctx, "b"))
	wantCode(t, w.db.CreateCollection(ctx, "b"), 48)
	insert(t, w, item(1))
	names, err := w.db.ListCollectionNames(ctx, bson.D{})
	if err != nil || !slices.Equal(names, []string{"b", "items"}) {
		t.Fatalf("names %v, %v", names, err)
	}
	rename := bson.D{{Key: "renameCollection", Value: "shop.items"}, {Key: "to", Value: "shop.b"}}
	wantCode(t, w.client.Database("admin").RunCommand(ctx, rename).Err(), 48)
	ok(t, w.client.Database("admin").RunCommand(ctx, append(rename, bson.E{Key: "dropTarget", Value: true})).Err())
	wantIDs(t, ids(t, ctx, w.db.Collection("b"), bson.D{}), int32(1))
	ok(t, w.db.Collection("b").Drop(ctx))
	ok(t, w.db.Drop(ctx))
	if names, err = w.db.ListCollectionNames(ctx, bson.D{}); err != nil || len(names) != 0 {
		t.Fatalf("names %v, %v", names, err)
	}
}

func TestGroup(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, item(1, "s", "a", "n", 3), item(2, "s", "b", "n", 1), item(3, "s", "a", "n", 2))
	found, err := w.coll.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$group", Value: bson.D{
			{Key: "_id", Value: "$s"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}, {Key: "least", Value: bson.D{{Key: "$min", Value: "$n"}}},
		}}},
		{{Key: "$sort", Value: item(1)}},
	})
	ok(t, err)
	var rows []struct {
		ID       string `bson:"_id"`
		N, Least int
	}
	ok(t, found.All(ctx, &rows))
	if len(rows) != 2 || rows[0].ID != "a" || rows[0].N != 2 || rows[0].Least != 2 || rows[1].N != 1 {
		t.Errorf("got %+v", rows)
	}
}

// TestUnknown: what the fake does not know it names, and changes nothing.
func TestUnknown(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, item(1, "n", 1))
	for says, cmd := range map[string]string{
		"mapReduce":   `{"mapReduce": "items"}`,
		"$where":      `{"find": "items", "filter": {"$where": "1"}}`,
		"$regex":      `{"find": "items", "filter": {"a": {"$regex": "x"}}}`,
		"$natural":    `{"find": "items", "sort": {"$natural": 1}}`,
		"find.let":    `{"find": "items", "let": {}}`,
		"$slice":      `{"find": "items", "projection": {"a": {"$slice": 1}}, "filter": {}}`,
		"$lookup":     `{"aggregate": "items", "pipeline": [{"$lookup": {}}], "cursor": {}}`,
		"$avg":        `{"aggregate": "items", "pipeline": [{"$group": {"_id": 1, "x": {"$avg": "$n"}}}], "cursor": {}}`,
		"$$USER":      `{"aggregate": "items", "pipeline": [{"$group": {"_id": "$$USER"}}], "cursor": {}}`,
		"$toUpper":    `{"aggregate": "items", "pipeline": [{"$project": {"x": {"$toUpper": "$a"}}}], "cursor": {}}`,
		"$first":      `{"find": "items", "filter": {"$expr": {"$first": "$a"}}}`,
		"collation":   `{"update": "items", "updates": [{"q": {}, "u": {"a": 1}, "collation": {}}]}`,
		"$mul":        `{"update": "items", "updates": [{"q": {}, "u": {"$mul": {"n": 2}}}]}`,
		"$replace":    `{"update": "items", "updates": [{"q": {}, "u": [{"$replaceWith": {"n": 2}}]}]}`,
		"expireAfter": `{"createIndexes": "items", "indexes": [{"key": {"a": 1}, "name": "a", "expireAfterSeconds": 1}]}`,
		"a_text":      `{"createIndexes": "items", "indexes": [{"key": {"a": "a_text"}, "name": "a"}]}`,
		"capped":      `{"create": "c", "capped": true}`,
	} {
		var d bson.D
		ok(t, bson.UnmarshalExtJSON([]byte(cmd), false, &d))
		var reply bson.Raw
		err := w.db.RunCommand(ctx, d).Decode(&reply)
		if says == "$avg" && err != nil && strings.Contains(err.Error(), "'x'") {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), says) && !strings.Contains(err.Error(), strings.Split(says, ".")[0]) {
			t.Errorf("%s: %s, %v; the error should say %q", cmd, reply, err, says)
		}
	}
	wantIDs(t, ids(t, ctx, w.coll, bson.D{{Key: "n", Value: 1}}), int32(1))
}

// TestCloseWhileWaiting: closing a server ends all that it runs, also what waits.
// TestMain sees to it that nothing is left.
func TestCloseWhileWaiting(t *testing.T) {
	s, err := mongofake.Open(mongofake.Options{})
	ok(t, err)
	client, err := mongo.Connect(options.Client().ApplyURI(s.URI()))
	ok(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	changes, err := client.Database("d").Collection("c").Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetMaxAwaitTime(time.Hour))
	ok(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		changes.Next(ctx)
	}()
	ok(t, s.Await(deadline(t), "getMore", 1))
	s.Close()
	cancel()
	<-done
	_ = changes.Close(context.Background())
	ok(t, client.Disconnect(context.Background()))
	if err := s.Await(deadline(t), "getMore", 1_000_000); err == nil {
		t.Error("a closed server gets commands")
	}
}
