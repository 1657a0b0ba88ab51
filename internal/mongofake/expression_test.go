package mongofake_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/internal/mongofake"
)

// parse reads extended JSON.
func parse(t testing.TB, text string) (d bson.D) {
	t.Helper()
	ok(t, bson.UnmarshalExtJSON([]byte(text), false, &d))
	return d
}

// plain gives a document as relaxed extended JSON.
func plain(t testing.TB, doc any) string {
	t.Helper()
	b, err := bson.MarshalExtJSON(doc, false, false)
	ok(t, err)
	return string(b)
}

// TestExpressions: the values are those of MongoDB's manual.
func TestExpressions(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, parse(t, `{"_id": 1, "n": 5, "s": "x", "nil": null, "list": [{"a": 1, "b": 2}, {"a": 3}, 7], "in": {"side": 4}, "none": []}`))
	for expr, want := range map[string]string{
		`"$n"`:                                  `5`,
		`"$in.side"`:                            `4`,
		`"$list.a"`:                             `[1,3]`,
		`"$none.a"`:                             `[]`,
		`"text"`:                                `"text"`,
		`["$n", "$no"]`:                         `[5,null]`,
		`{"x": "$n", "no": "$no"}`:              `{"x":5}`,
		`{"$literal": "$n"}`:                    `"$n"`,
		`{"$eq": ["$n", 5.0]}`:                  `true`,
		`{"$ne": ["$n", "$no"]}`:                `true`,
		`{"$gt": ["$s", "$n"]}`:                 `true`, // a text is above every number
		`{"$lt": ["$no", null]}`:                `true`, // what is missing is below null
		`{"$lte": ["$no", "$nope"]}`:            `true`,
		`{"$gte": ["$nil", "$no"]}`:             `true`,
		`{"$and": ["$n", {"$eq": [1, 1]}]}`:     `true`,
		`{"$and": ["$n", "$no"]}`:               `false`,
		`{"$and": []}`:                          `true`,
		`{"$or": [0, "$nil"]}`:                  `false`,
		`{"$or": [0, "$s"]}`:                    `true`,
		`{"$not": ["$no"]}`:                     `true`,
		`{"$in": [7, "$list"]}`:                 `true`,
		`{"$in": ["$s", ["a", "b"]]}`:           `false`,
		`{"$cond": [{"$gt": ["$n", 4]}, 1, 2]}`: `1`,
		`{"$ifNull": ["$nil", "$no", "$s"]}`:    `"x"`,
		`{"$add": ["$n", 1]}`:                   `6`,
		`{"$add": ["$n", 0.5]}`:                 `5.5`,
		`{"$add": ["$n", "$no"]}`:               `null`,
		`{"$arrayToObject": [[["k", 1]]]}`:      `{"k":1}`,
		`{"$arrayToObject": "$nil"}`:            `null`,
		`{"$arrayToObject": {"$literal": [{"k": "a", "v": 1}, {"k": "a", "v": 2}]}}`: `{"a":2}`,
		`{"$filter": {"input": "$list", "as": "e", "cond": {"$gt": ["$$e.a", 1]}}}`:  `[{"a":3}]`,
		`{"$filter": {"input": "$no", "cond": true}}`:                                `null`,
		`{"$eq": ["$$ROOT.n", 5]}`:                                                   `true`,
		`{"$gt": [{"$add": ["$$NOW", 1000]}, "$$NOW"]}`:                              `true`,
	} {
		found, err := w.coll.Aggregate(ctx, mongo.Pipeline{parse(t, `{"$project": {"_id": 0, "x": `+expr+`}}`)})
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		var docs []bson.D
		ok(t, found.All(ctx, &docs))
		if got := plain(t, docs[0]); got != `{"x":`+want+`}` {
			t.Errorf("%s gives %s, want %s", expr, got, want)
		}
	}
	for _, expr := range []string{`{"$add": ["$s", 1]}`, `{"$eq": [1]}`, `{"$in": [1, 2]}`, `{"$filter": {"input": "$n", "cond": true}}`, `"$$unknown"`, `"$a..b"`, `{"$ifNull": [1]}`} {
		if found, err := w.coll.Aggregate(ctx, mongo.Pipeline{parse(t, `{"$project": {"x": `+expr+`}}`)}); err == nil {
			t.Errorf("%s: no error, and %d documents", expr, found.RemainingBatchLength())
		}
	}
	wantIDs(t, ids(t, ctx, w.coll, parse(t, `{"$expr": {"$lt": ["$in.side", "$n"]}}`)), int32(1))
	wantIDs(t, ids(t, ctx, w.coll, parse(t, `{"$expr": {"$gt": ["$in.side", "$n"]}}`)))
}

// TestPipelineUpdate: the stages see the document as it was before each of them,
// and the server's time.
func TestPipelineUpdate(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, item(1, "a", 1, "b", 2))
	swap := bson.A{parse(t, `{"$set": {"a": "$b", "b": "$a", "c": "$no"}}`), parse(t, `{"$set": {"sum": {"$add": ["$a", "$b"]}, "at": "$$NOW"}}`)}
	began := time.Now().Add(-time.Millisecond)
	r, err := w.coll.UpdateOne(ctx, item(1), swap)
	if err != nil || r.ModifiedCount != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	var got struct {
		A, B, Sum int
		At        time.Time
	}
	ok(t, w.coll.FindOne(ctx, item(1)).Decode(&got))
	if got.A != 2 || got.B != 1 || got.Sum != 3 || got.At.Before(began.Truncate(time.Millisecond)) || got.At.After(time.Now()) {
		t.Errorf("it is %+v", got)
	}
	var doc bson.D
	ok(t, w.coll.FindOneAndUpdate(ctx, item(2), bson.A{parse(t, `{"$set": {"n": {"$add": [{"$ifNull": ["$n", 0]}, 1]}}}`)},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&doc))
	if text := plain(t, doc); text != `{"_id":2,"n":1}` {
		t.Errorf("an upsert made %s", text)
	}
	r, err = w.coll.UpdateMany(ctx, bson.D{}, bson.A{parse(t, `{"$set": {"all": true}}`)})
	if err != nil || r.ModifiedCount != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = w.coll.UpdateOne(ctx, item(1), bson.A{parse(t, `{"$set": {"_id": 7}}`)})
	wantCode(t, err, 66)
}

// TestElements: elements that are pulled, found by a projection, shown in part, and
// unwound.
func TestElements(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	insert(t, w, parse(t, `{"_id": 1, "list": [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}, {"n": 3}], "few": [1, 2, 1]}`))
	show := func(what, projection, want string) {
		t.Helper()
		var doc bson.D
		ok(t, w.coll.FindOne(ctx, item(1), options.FindOne().SetProjection(parse(t, projection))).Decode(&doc))
		if got := plain(t, doc); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	show("the element that is meant", `{"list": {"$elemMatch": {"n": {"$gt": 1}}}}`, `{"_id":1,"list":[{"n":2,"t":"b"}]}`)
	show("no element is meant", `{"list": {"$elemMatch": {"n": 9}}}`, `{"_id":1}`)
	show("a field of each", `{"_id": 0, "list.n": 1}`, `{"list":[{"n":1},{"n":2},{"n":3}]}`)
	show("all but a field of each", `{"list.n": 0, "few": 0}`, `{"_id":1,"list":[{"t":"a"},{"t":"b"},{}]}`)
	found, err := w.coll.Aggregate(ctx, mongo.Pipeline{
		parse(t, `{"$unwind": "$list"}`), parse(t, `{"$match": {"list.n": {"$gt": 1}}}`), parse(t, `{"$project": {"n": "$list.n"}}`),
	})
	ok(t, err)
	var docs []bson.D
	ok(t, found.All(ctx, &docs))
	if got := plain(t, bson.D{{Key: "x", Value: docs}}); got != `{"x":[{"_id":1,"n":2},{"_id":1,"n":3}]}` {
		t.Errorf("unwound: %s", got)
	}
	_, err = w.coll.UpdateOne(ctx, item(1), parse(t, `{"$pull": {"list": {"n": {"$in": [1, 3]}}, "few": 1, "none": 5}}`))
	ok(t, err)
	show("what is left", `{"_id": 0}`, `{"list":[{"n":2,"t":"b"}],"few":[2]}`)
	_, err = w.coll.UpdateOne(ctx, item(1), parse(t, `{"$pull": {"few": {"$gte": 2}}}`))
	ok(t, err)
	show("nothing is left", `{"few": 1, "_id": 0}`, `{"few":[]}`)
}

// TestUniqueArrays: an index over an array holds each element, and binds between
// documents but not within one.
func TestUniqueArrays(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	_, err := w.coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: parse(t, `{"t": 1, "list.id": 1}`), Options: options.Index().SetUnique(true)})
	ok(t, err)
	add := func(text string) error {
		_, err := w.coll.InsertOne(ctx, parse(t, text))
		return err
	}
	ok(t, add(`{"_id": 1, "t": "a", "list": [{"id": 1}, {"id": 2}, {"id": 2}]}`))
	ok(t, add(`{"_id": 2, "t": "b", "list": [{"id": 1}]}`))
	wantCode(t, add(`{"_id": 3, "t": "a", "list": [{"id": 3}, {"id": 2}]}`), 11000)
	ok(t, add(`{"_id": 4, "t": "a", "list": []}`))
	wantCode(t, add(`{"_id": 5, "t": "a", "list": []}`), 11000)
	ok(t, add(`{"_id": 6, "t": "a"}`)) // missing is not the same as empty
	_, err = w.coll.UpdateOne(ctx, item(1), parse(t, `{"$pull": {"list": {"id": 2}}}`))
	ok(t, err)
	ok(t, add(`{"_id": 3, "t": "a", "list": [{"id": 3}, {"id": 2}]}`))
	_, err = w.coll.UpdateOne(ctx, item(1), parse(t, `{"$push": {"list": {"id": 3}}}`))
	wantCode(t, err, 11000)
}

// TestViews: a view shows what its pipeline makes of the collection by now, and
// nobody writes to it.
func TestViews(t *testing.T) {
	w := start(t, mongofake.Options{})
	ctx := deadline(t)
	ok(t, w.db.CreateView(ctx, "rows", "items", mongo.Pipeline{parse(t, `{"$unwind": "$list"}`), parse(t, `{"$project": {"_id": "$list", "from": "$_id"}}`)}))
	wantCode(t, w.db.CreateView(ctx, "rows", "items", mongo.Pipeline{}), 48)
	rows := w.db.Collection("rows")
	wantIDs(t, ids(t, ctx, rows, bson.D{}))
	insert(t, w, item(1, "list", bson.A{3, 1}), item(2, "list", bson.A{2}), item(3))
	wantIDs(t, ids(t, ctx, rows, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: -1}}).SetSkip(1).SetLimit(1)), int32(2))
	wantIDs(t, ids(t, ctx, rows, item(3)), int32(3))
	n, err := rows.CountDocuments(ctx, bson.D{{Key: "from", Value: 1}})
	if err != nil || n != 2 {
		t.Errorf("%d rows, %v", n, err)
	}
	_, err = rows.InsertOne(ctx, item(9))
	wantCode(t, err, 166)
	list, err := w.db.ListCollectionSpecifications(ctx, bson.D{{Key: "type", Value: "view"}})
	if err != nil || len(list) != 1 || list[0].Name != "rows" || !list[0].ReadOnly {
		t.Errorf("the views: %+v, %v", list, err)
	}
	ok(t, rows.Drop(ctx))
	wantIDs(t, ids(t, ctx, rows, bson.D{}))
	ok(t, w.db.CreateView(ctx, "rows", "items", mongo.Pipeline{}))
	wantIDs(t, ids(t, ctx, rows, bson.D{}), int32(1), int32(2), int32(3))
}
