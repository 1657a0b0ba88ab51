package mongooutbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"promethean/event"
	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
	"promethean/internal/rapidtest"
	"promethean/outbox"
	"promethean/outbox/mongooutbox"
	"promethean/outbox/outboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a deployment that the tests run against.
type server struct {
	uri string
	// unreal says why its transactions undo nothing, deaf why it has no change
	// streams.
	unreal, deaf string
}

// onEach runs a test against the fake, and against every server that the
// environment names.
func onEach(t *testing.T, test func(t *testing.T, s server)) {
	t.Helper()
	t.Run("fake", func(t *testing.T) { test(t, server{uri: mongofake.Start(t, mongofake.Options{}).URI()}) })
	t.Run("compatible", func(t *testing.T) {
		test(t, server{mongotest.Compatible(t), "the compatible server has no transactions", "the compatible server has no change streams"})
	})
	t.Run("mongodb", func(t *testing.T) { test(t, server{uri: mongotest.Real(t)}) })
}

func connect(t testing.TB, s server) *mongo.Client {
	t.Helper()
	// A client that is closed in the midst of a streamed heartbeat may wait for
	// it; there are many short-lived ones here.
	o := options.Client().ApplyURI(s.uri).SetServerMonitoringMode("poll").
		SetHeartbeatInterval(500 * time.Millisecond).SetServerSelectionTimeout(5 * time.Second)
	if s.unreal != "" {
		o.SetRetryWrites(false)
	}
	client, err := mongo.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return client
}

var databases atomic.Int64

// newDatabase gives a database of the test's own, which is dropped in the end.
func newDatabase(t testing.TB, client *mongo.Client) *mongo.Database {
	t.Helper()
	db := client.Database(fmt.Sprintf("outbox_%x_%d_%d", time.Now().UnixNano(), os.Getpid(), databases.Add(1)))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := db.Drop(ctx); err != nil {
			t.Errorf("drop database: %v", err)
		}
	})
	return db
}

func newBox(t testing.TB, s server, db *mongo.Database) *mongooutbox.Outbox {
	t.Helper()
	box, err := mongooutbox.New(db, mongooutbox.Options{WithoutTransactions: s.unreal != ""})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Setup(context.Background()); err != nil {
		t.Fatal(err)
	}
	return box
}

// tx is a transaction of a session. One that met a write conflict is done again,
// as WithTransaction does.
type tx struct {
	box  *mongooutbox.Outbox
	sess *mongo.Session
	rows []outbox.Row
}

func begin(client *mongo.Client, box *mongooutbox.Outbox) (outboxtest.Tx, error) {
	sess, err := client.StartSession()
	if err != nil {
		return nil, err
	}
	if err := sess.StartTransaction(); err != nil {
		return nil, err
	}
	return &tx{box: box, sess: sess}, nil
}

func (x *tx) again(ctx context.Context, err error) error {
	for {
		var labelled mongo.LabeledError
		if !errors.As(err, &labelled) || !labelled.HasErrorLabel("TransientTransactionError") || ctx.Err() != nil {
			return err
		}
		_ = x.sess.AbortTransaction(ctx)
		if err := x.sess.StartTransaction(); err != nil {
			return err
		}
		err = x.box.Add(mongo.NewSessionContext(ctx, x.sess), x.rows...)
	}
}

func (x *tx) Add(ctx context.Context, rows ...outbox.Row) error {
	err := x.box.Add(mongo.NewSessionContext(ctx, x.sess), rows...)
	if err == nil {
		x.rows = append(x.rows, rows...)
		return nil
	}
	var labelled mongo.LabeledError
	if !errors.As(err, &labelled) || !labelled.HasErrorLabel("TransientTransactionError") {
		return err
	}
	x.rows = append(x.rows, rows...)
	return x.again(ctx, err)
}

func (x *tx) Commit(ctx context.Context) error {
	defer x.sess.EndSession(ctx)
	return x.sess.CommitTransaction(ctx)
}

func (x *tx) Rollback(ctx context.Context) error {
	defer x.sess.EndSession(ctx)
	return x.sess.AbortTransaction(ctx)
}

// bare adds rows on a server that has no transactions: at once.
type bare struct{ *mongooutbox.Outbox }

func (bare) Commit(context.Context) error   { return nil }
func (bare) Rollback(context.Context) error { return nil }

func harness(s server) func(t testing.TB) outboxtest.Harness {
	return func(t testing.TB) outboxtest.Harness {
		client := connect(t, s)
		db := newDatabase(t, client)
		box := newBox(t, s, db)
		rows := db.Collection(mongooutbox.DefaultCollection)
		return outboxtest.Harness{
			Store: box, NoTransactions: s.unreal, NoWaking: s.deaf, Timeout: 3 * time.Minute,
			Again: func(t testing.TB) outbox.Store { return newBox(t, s, connect(t, s).Database(db.Name())) },
			Begin: func(context.Context) (outboxtest.Tx, error) {
				if s.unreal != "" {
					return bare{box}, nil
				}
				return begin(client, box)
			},
			Advance: func(t testing.TB, d time.Duration) {
				by := bson.D{{Key: "since", Value: -d.Milliseconds()}, {Key: "until", Value: -d.Milliseconds()}, {Key: "added", Value: -d.Milliseconds()}}
				shift(t, rows, by)
				shift(t, db.Collection(mongooutbox.DefaultCollection+"_places"), bson.D{{Key: "at", Value: -d.Milliseconds()}})
			},
			Raw: func(t testing.TB, id event.ID, topic, key, payload string) {
				_, err := rows.InsertOne(context.Background(), bson.D{
					{Key: "_id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]}}, {Key: "topic", Value: topic}, {Key: "key", Value: key},
					{Key: "lane", Value: topic + "\x00" + key}, {Key: "place", Value: int64(1)}, {Key: "payload", Value: payload}, {Key: "added", Value: int64(1)},
					{Key: "state", Value: outbox.Pending}, {Key: "since", Value: int64(0)}, {Key: "until", Value: int64(0)}, {Key: "attempts", Value: 0},
				})
				if err != nil {
					t.Fatal(err)
				}
			},
		}
	}
}

func shift(t testing.TB, c *mongo.Collection, by bson.D) {
	t.Helper()
	if _, err := c.UpdateMany(context.Background(), bson.D{}, bson.D{{Key: "$inc", Value: by}}); err != nil {
		t.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	onEach(t, func(t *testing.T, s server) { outboxtest.Run(t, harness(s)) })
}

// TestModel draws fewer sequences than rapid would: each step asks a server.
func TestModel(t *testing.T) {
	rapidtest.Checks(t, 15)
	onEach(t, func(t *testing.T, s server) { outboxtest.Model(t, harness(s)) })
}
