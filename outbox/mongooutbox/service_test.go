package mongooutbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean"
	"promethean/event"
	"promethean/internal/mongofake"
	"promethean/outbox"
	"promethean/outbox/mongooutbox"
	"promethean/outbox/outboxtest"
)

// world is an outbox on the fake, which has transactions and change streams.
type world struct {
	*testing.T
	fake   *mongofake.Server
	client *mongo.Client
	db     *mongo.Database
	box    *mongooutbox.Outbox
	ctx    context.Context
}

func newWorld(t *testing.T) *world {
	t.Helper()
	fake := mongofake.Start(t, mongofake.Options{})
	s := server{uri: fake.URI()}
	client := connect(t, s)
	db := client.Database("service")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return &world{t, fake, client, db, newBox(t, s, db), ctx}
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) transact(do func(ctx context.Context) error) error {
	return mongooutbox.Transact(w.ctx, w.client, do)
}

func numbered(key string, n int) outbox.Row {
	return outbox.Row{Topic: "orders.placed", Key: key, Payload: json.RawMessage(fmt.Sprint(n))}
}

// until waits for a condition.
func (w *world) until(ok func() bool) {
	w.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.Fatal("it never came to that")
		}
	}
}

func (w *world) drain(p outbox.Publisher, o outbox.Options) *outbox.Drainer {
	w.Helper()
	d, err := outbox.New(w.box, p, o)
	w.check(err)
	var running sync.WaitGroup
	running.Go(func() { _ = d.Run(context.Background()) })
	w.Cleanup(func() {
		_ = d.Close()
		running.Wait()
	})
	return d
}

func TestAddWantsATransaction(t *testing.T) {
	w := newWorld(t)
	if err := w.box.Add(w.ctx, numbered("a", 1)); err == nil || !strings.Contains(err.Error(), "transaction") {
		t.Errorf("without a session: %v", err)
	}
	err := w.client.UseSession(w.ctx, func(ctx context.Context) error { return w.box.Add(ctx, numbered("a", 1)) })
	if err == nil || !strings.Contains(err.Error(), "transaction") {
		t.Errorf("in a session without a transaction: %v", err)
	}
	if rows, err := w.box.ClaimBatch(w.ctx, "me", 10, time.Minute); err != nil || len(rows) > 0 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// The service's data and the row are both there or neither is.
func TestBothOrNeither(t *testing.T) {
	w := newWorld(t)
	orders := w.db.Collection("orders")
	no := errors.New("the customer left")
	place := func(n int, outcome error) error {
		return w.transact(func(ctx context.Context) error {
			if _, err := orders.InsertOne(ctx, bson.D{{Key: "_id", Value: n}}); err != nil {
				return err
			}
			if err := w.box.Add(ctx, numbered("a", n)); err != nil {
				return err
			}
			return outcome
		})
	}
	w.check(place(1, nil))
	if err := place(2, no); !errors.Is(err, no) {
		t.Fatal(err)
	}
	if err := place(1, nil); err == nil { // the order is there already
		t.Fatal("the same order was placed twice")
	}
	w.check(place(3, nil))
	rows, err := w.box.ClaimBatch(w.ctx, "me", 10, time.Minute)
	w.check(err)
	if len(rows) != 2 || string(rows[0].Payload) != "1" || string(rows[1].Payload) != "3" {
		t.Errorf("%+v", rows)
	}
}

// Many transactions add to one key at once. Some collide, and are tried again;
// the places have no gap and follow the commits, which count in a document of the
// service's.
func TestOrderOfCommits(t *testing.T) {
	w := newWorld(t)
	const writers, each = 4, 10
	counter := w.db.Collection("counter")
	log := &outboxtest.Log{}
	d := w.drain(log, outbox.Options{Every: 5 * time.Millisecond, Batch: 3})
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range each {
				err := w.transact(func(ctx context.Context) error {
					var c struct{ N int }
					// Read, then write elsewhere: only the outbox's own counter makes
					// them collide.
					if err := counter.FindOne(ctx, bson.D{}).Decode(&c); err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
						return err
					}
					if err := w.box.Add(ctx, numbered("a", c.N+1)); err != nil {
						return err
					}
					_, err := counter.UpdateOne(ctx, bson.D{{Key: "_id", Value: "n"}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	w.until(func() bool { return log.Len() == writers*each })
	w.check(d.Close())
	log.Check(t, "orders.placed", writers*each, "a")
}

// Whatever happens to a transaction or to what a drainer tells the server, a row
// is published once if its data is there.
func TestFaults(t *testing.T) {
	unknown := []string{"UnknownTransactionCommitResult"}
	for name, f := range map[string]mongofake.Fault{
		"insert conflicts":         {Command: "insert", Code: 112, Labels: []string{"TransientTransactionError"}},
		"place conflicts":          {Command: "findAndModify", Code: 112, Labels: []string{"TransientTransactionError"}},
		"connection lost in it":    {Command: "insert", Cut: true},
		"commit unknown, not done": {Command: "commitTransaction", Code: 64, Labels: unknown},
		"commit unknown, done":     {Command: "commitTransaction", Code: 64, After: true, Labels: unknown},
		"commit cut, done":         {Command: "commitTransaction", Cut: true, After: true},
		"claim cut, not done":      {Command: "update", Cut: true},
		"claim cut, done":          {Command: "update", Cut: true, After: true, Times: 2},
		"mark cut, done":           {Command: "update", Skip: 1, Cut: true, After: true, Times: 2},
		"find fails":               {Command: "find", Code: 189, Times: 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.fake.Fail(f)
			orders := w.db.Collection("orders")
			for n := range 3 {
				w.check(w.transact(func(ctx context.Context) error {
					if _, err := orders.InsertOne(ctx, bson.D{{Key: "_id", Value: n}}); err != nil {
						return err
					}
					return w.box.Add(ctx, numbered("a", n+1))
				}))
			}
			log := &outboxtest.Log{}
			d := w.drain(log, outbox.Options{Every: 5 * time.Millisecond, Lease: time.Second})
			// On a busy machine the lease may end before a mark is answered: then
			// nobody has counted the row, and it is sent all the same.
			w.until(func() bool {
				s, err := w.box.Stats(w.ctx)
				return log.Len() >= 3 && err == nil && s == (outbox.Stats{})
			})
			w.check(d.Close())
			log.Check(t, "orders.placed", 3, "a")
			s, err := w.box.Stats(w.ctx)
			if n := w.fake.Pending(); err != nil || s != (outbox.Stats{}) || n != 0 || d.Status().RefusedTotal != 0 {
				t.Errorf("stats %+v, %v; %d faults are left; status %+v", s, err, n, d.Status())
			}
		})
	}
}

// What could not be done for one row because others were in its way is done again
// for that row alone, and no row is counted twice.
func TestContendedRow(t *testing.T) {
	w := newWorld(t)
	w.check(w.transact(func(ctx context.Context) error {
		return w.box.Add(ctx, numbered("a", 1), numbered("b", 2), numbered("c", 3))
	}))
	rows, err := w.box.ClaimBatch(w.ctx, "me", 3, time.Hour)
	w.check(err)
	for _, r := range rows {
		w.check(w.box.MarkError(w.ctx, "me", outbox.Refusal{ID: r.ID, Reason: "no"}))
	}
	w.fake.Fail(mongofake.Fault{Command: "update", Statement: 2, Code: 16908292, Message: "canceling statement due to lock timeout"})
	before := w.fake.Calls("update")
	n, err := w.box.Retry(w.ctx)
	if calls := w.fake.Calls("update") - before; err != nil || n != 3 || calls != 2 {
		t.Errorf("%d rows in %d calls, %v; want 3 in 2", n, calls, err)
	}
}

// A server that goes away and comes back, and a change stream that ends, delay
// rows and lose none; being woken begins again.
func TestServerGoesAway(t *testing.T) {
	w := newWorld(t)
	log := &outboxtest.Log{}
	d := w.drain(log, outbox.Options{Every: 5 * time.Millisecond})
	add := func(n int) {
		t.Helper()
		w.check(w.transact(func(ctx context.Context) error { return w.box.Add(ctx, numbered("a", n)) }))
	}
	add(1)
	w.until(func() bool { return log.Len() == 1 && d.Status().Waking })
	w.fake.KillCursors()
	add(2)
	w.until(func() bool { return log.Len() == 2 })
	w.fake.Down(true)
	w.until(func() bool { return d.Status().Outage != "" })
	w.fake.Down(false)
	w.until(func() bool { return d.Status().Outage == "" })
	add(3)
	w.until(func() bool { return log.Len() == 3 })
	w.fake.StepDown(10107)
	w.fake.StepUp()
	add(4)
	w.until(func() bool { return log.Len() == 4 })
	w.check(d.Close())
	log.Check(t, "orders.placed", 4, "a")
	if s := d.Status(); s.RefusedTotal != 0 {
		t.Errorf("status %+v", s)
	}
}

// Counters of keys go once nothing of the key waits and nobody adds to it.
func TestCountersArePruned(t *testing.T) {
	w := newWorld(t)
	h := harness(server{uri: w.fake.URI()})(t)
	keys := w.client.Database(dbOf(h)).Collection(mongooutbox.DefaultCollection + "_places")
	add := func(rows ...outbox.Row) {
		t.Helper()
		x, err := h.Begin(w.ctx)
		w.check(err)
		w.check(x.Add(w.ctx, rows...))
		w.check(x.Commit(w.ctx))
	}
	count := func(want int64) {
		t.Helper()
		if n, err := keys.CountDocuments(w.ctx, bson.D{}); err != nil || n != want {
			t.Fatalf("%d counters, %v; want %d", n, err, want)
		}
	}
	add(numbered("a", 1), numbered("b", 1), numbered("b", 2))
	rows, err := h.Store.ClaimBatch(w.ctx, "me", 10, time.Hour)
	w.check(err)
	for _, r := range rows {
		if r.Key == "a" || string(r.Payload) == "1" {
			w.check(h.Store.MarkSent(w.ctx, r.ID))
		}
	}
	prune := func() {
		t.Helper()
		_, err := h.Store.Prune(w.ctx, time.Hour, 100)
		w.check(err)
	}
	prune()
	count(2)
	h.Advance(t, 2*time.Hour)
	prune()
	count(1) // b waits
	add(numbered("a", 2), numbered("b", 3))
	_, err = h.Store.RequeueExpired(w.ctx)
	w.check(err)
	rows, err = h.Store.ClaimBatch(w.ctx, "me", 10, time.Hour)
	w.check(err)
	var got []string
	for _, r := range rows {
		got = append(got, r.Key+string(r.Payload))
	}
	if s := fmt.Sprint(got); !strings.Contains(s, "a2") || strings.Index(s, "b2") > strings.Index(s, "b3") || len(got) != 3 {
		t.Errorf("claimed %s", s)
	}
}

func dbOf(h outboxtest.Harness) string {
	return h.Store.(interface{ DatabaseName() string }).DatabaseName()
}

func TestOpen(t *testing.T) {
	w := newWorld(t)
	w.check(w.transact(func(ctx context.Context) error { return w.box.Add(ctx, numbered("a", 1)) }))
	box, err := mongooutbox.Open(w.ctx, strings.Replace(w.fake.URI(), "/?", "/service?", 1)+"&serverMonitoringMode=poll", mongooutbox.Options{})
	w.check(err)
	rows, err := box.ClaimBatch(w.ctx, "me", 10, time.Minute)
	if err != nil || len(rows) != 1 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	w.check(box.Close())
	w.check(box.Close())
	if _, err := box.ClaimBatch(w.ctx, "me", 10, time.Minute); err == nil {
		t.Error("a closed outbox was read")
	}
	for _, uri := range []string{"", "http://x", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50"} {
		if _, err := mongooutbox.Open(w.ctx, uri, mongooutbox.Options{}); err == nil {
			t.Errorf("%q was opened", uri)
		}
	}
	for _, o := range []mongooutbox.Options{{Collection: "a$b"}, {Collection: "system.users"}} {
		if _, err := mongooutbox.New(w.db, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// A document that is no row, and one that cannot be read, hold up nothing else.
func TestForeignDocuments(t *testing.T) {
	w := newWorld(t)
	coll := w.db.Collection(mongooutbox.DefaultCollection)
	id := event.NewID()
	for _, d := range []bson.D{
		{{Key: "_id", Value: "text"}, {Key: "state", Value: "pending"}, {Key: "until", Value: int64(0)}},
		{{Key: "_id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]}}, {Key: "topic", Value: "a"}, {Key: "payload", Value: 5}, {Key: "state", Value: "pending"}, {Key: "until", Value: int64(0)}},
	} {
		_, err := coll.InsertOne(w.ctx, d)
		w.check(err)
	}
	w.check(w.transact(func(ctx context.Context) error { return w.box.Add(ctx, numbered("a", 1)) }))
	log := &outboxtest.Log{}
	d := w.drain(log, outbox.Options{Every: 5 * time.Millisecond})
	w.until(func() bool { return log.Len() == 1 && d.Status().RefusedTotal == 1 })
	list, err := w.box.Errors(w.ctx, 10)
	if err != nil || len(list) != 1 || list[0].ID != id || !strings.Contains(list[0].Error, "payload") {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestDrainSpeed logs how many rows a second one drainer publishes into a hub on
// the embedded engine.
func TestDrainSpeed(t *testing.T) {
	onEach(t, func(t *testing.T, s server) {
		const n = 3000
		h := harness(s)(t)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		for at := 0; at < n; at += 500 {
			rows := make([]outbox.Row, 500)
			for i := range rows {
				rows[i] = numbered(fmt.Sprint("key ", i%50), at+i)
			}
			x, err := h.Begin(ctx)
			if err == nil {
				err = errors.Join(x.Add(ctx, rows...), x.Commit(ctx))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		hub, err := promethean.Open(t.TempDir(), promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = hub.Close() }()
		d, err := outbox.New(h.Store, outbox.ToBus(hub.Publish), outbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var running sync.WaitGroup
		running.Go(func() { _ = d.Run(ctx) })
		for d.Status().SentTotal < n && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		took := time.Since(began)
		_ = d.Close()
		running.Wait()
		if sent := d.Status().SentTotal; sent != n {
			t.Errorf("%d of %d rows were sent", sent, n)
		}
		t.Logf("%d rows in %s: %.0f rows/s", n, took.Round(time.Millisecond), float64(n)/took.Seconds())
	})
}

// A stream that wakes is not lost for a time limit that the address sets for
// calls, and asks the server seldom while nothing comes.
func TestWakeAtRest(t *testing.T) {
	const limit = 500 * time.Millisecond
	fake := mongofake.Start(t, mongofake.Options{})
	s := server{uri: fmt.Sprintf("%s&timeoutMS=%d", fake.URI(), limit.Milliseconds())}
	box := newBox(t, s, connect(t, s).Database("service"))
	ctx, cancel := context.WithCancel(t.Context())
	woken, err := box.Wake(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := fake.Await(ctx, "getMore", 1); err != nil {
		t.Fatal(err)
	}
	asked, stop := context.WithTimeout(ctx, 5*limit)
	defer stop()
	if fake.Await(asked, "getMore", 2) == nil {
		t.Error("it asks more than once in 2.5 s")
	}
	select {
	case _, open := <-woken:
		t.Errorf("woken by nothing, or ended: open %v", open)
	default:
	}
	cancel()
	for range woken { // until it has ended
	}
}
