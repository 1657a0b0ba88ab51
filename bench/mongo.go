package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"promethean/event"
	"promethean/store/mongostore"
)

// Rows of the figure about MongoDB.
const (
	rowInsertOne  = "an insert for each event, 64 publishers"
	rowOursMongo  = "us over mongodb, 64 publishers"
	rowInsertMany = "inserts of the mean commit, 1 publisher"
)

var mongoAgainst = map[string]string{rowOursMongo: rowInsertOne}

// mongoURL is where a MongoDB, or a server that speaks like one, is.
func mongoURL() string {
	for _, name := range []string{"PROMETHEAN_TEST_MONGODB_URI", "PROMETHEAN_TEST_MONGODB_COMPATIBLE_URI"} {
		if url := os.Getenv(name); url != "" {
			return url
		}
	}
	return ""
}

// mongoFigure compares us with plain inserts, if there is a server.
func (b *bench) mongoFigure(ctx context.Context) error {
	url := mongoURL()
	if url == "" {
		b.progress("%s: left out: neither PROMETHEAN_TEST_MONGODB_URI nor PROMETHEAN_TEST_MONGODB_COMPATIBLE_URI is set", figMongo)
		return nil
	}
	p := planShared(b.short)
	client, err := mongo.Connect(options.Client().ApplyURI(url).SetRetryWrites(false).SetWriteConcern(writeconcern.Majority()))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	f := figure{
		name: figMongo, title: "Over MongoDB, or a server that speaks like it",
		note:    "Plain inserts have the indexes that ours need: unique by topic and id, and by topic and key.",
		entries: []entry{{name: rowInsertOne}, {name: rowOursMongo}, {name: rowInsertMany}},
	}
	mean := 1 // of the round before
	in := func(run func(ctx context.Context, db *mongo.Database) (outcome, error)) func(context.Context, string) (outcome, error) {
		return func(ctx context.Context, _ string) (outcome, error) {
			db := client.Database(fmt.Sprintf("bench_%d", time.Now().UnixNano()))
			out, err := run(ctx, db)
			return out, errors.Join(err, db.Drop(context.WithoutCancel(ctx)))
		}
	}
	m := b.roundsOf(ctx, f, map[string]func(context.Context, string) (outcome, error){
		rowInsertOne: in(func(ctx context.Context, db *mongo.Database) (outcome, error) {
			return plainMongo(ctx, db, p.publish, 64, 1)
		}),
		rowOursMongo: in(func(ctx context.Context, db *mongo.Database) (out outcome, err error) {
			out, mean, err = oursMongo(ctx, url, db, p.publish)
			return out, err
		}),
		rowInsertMany: in(func(ctx context.Context, db *mongo.Database) (outcome, error) {
			return plainMongo(ctx, db, p.publish, 1, mean)
		}),
	}, map[string]string{rowInsertOne: durable, rowOursMongo: durable, rowInsertMany: durable})
	m.note += fmt.Sprintf(" The mean commit had %d events.", mean)
	b.results.figures[figMongo] = m
	b.note(m)
	b.show(sharedSection(m, mongoAgainst))
	return ctx.Err()
}

// oursMongo publishes through the engine, and says how many events a commit
// had.
func oursMongo(ctx context.Context, url string, db *mongo.Database, d time.Duration) (out outcome, mean int, err error) {
	log, err := mongostore.Open(ctx, url, mongostore.Options{Database: db.Name()})
	if err != nil {
		return out, 1, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	out, err = publishFor(ctx, d, 64, 1, func(int) (publisher, error) { return logPublisher{log}, nil })
	if err != nil {
		return out, 1, err
	}
	commits, err := db.Collection("promethean_commits").CountDocuments(ctx, bson.D{})
	return out, max(1, int(out.events/max(commits, 1))), err
}

// mongoPublisher inserts a document for each event.
type mongoPublisher struct{ c *mongo.Collection }

func plainMongo(ctx context.Context, db *mongo.Database, d time.Duration, publishers, size int) (outcome, error) {
	c := db.Collection("events")
	for _, keys := range []bson.D{{{Key: "topic", Value: 1}, {Key: "key", Value: 1}, {Key: "seq", Value: 1}}, {{Key: "topic", Value: 1}, {Key: "at", Value: 1}}} {
		if _, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: keys}); err != nil {
			return outcome{}, err
		}
	}
	if _, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "topic", Value: 1}, {Key: "id", Value: 1}}, Options: options.Index().SetUnique(true)}); err != nil {
		return outcome{}, err
	}
	return publishFor(ctx, d, publishers, size, func(int) (publisher, error) { return mongoPublisher{c}, nil })
}

// Publish implements publisher.
func (p mongoPublisher) Publish(ctx context.Context, evs []event.Event) error {
	docs := make([]any, len(evs))
	for i := range evs {
		e := &evs[i]
		docs[i] = bson.D{
			{Key: "id", Value: e.ID.String()}, {Key: "topic", Value: e.Topic}, {Key: "key", Value: e.Key}, {Key: "at", Value: e.TS},
			{Key: "seq", Value: e.TS}, {Key: "payload", Value: string(e.Payload)}, {Key: "headers", Value: fmt.Sprint(e.Headers)},
		}
	}
	if len(docs) == 1 {
		_, err := p.c.InsertOne(ctx, docs[0])
		return err
	}
	_, err := p.c.InsertMany(ctx, docs)
	return err
}

// Close implements publisher.
func (mongoPublisher) Close() error { return nil }
