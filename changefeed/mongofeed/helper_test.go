package mongofeed_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"promethean/changefeed"
	"promethean/changefeed/mongofeed"
	"promethean/event"
	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds how long a test waits for what must come.
const patience = 60 * time.Second

// world is a collection to feed from. Of a fake, faults can be scripted.
type world struct {
	t      testing.TB
	fake   *mongofake.Server
	client *mongo.Client
	db     *mongo.Database
	coll   *mongo.Collection
}

var databases atomic.Int64

// onEach runs a test against the fake, and against a deployment if the
// environment names one.
func onEach(t *testing.T, test func(w *world)) {
	t.Helper()
	t.Run("fake", func(t *testing.T) { test(onFake(t, mongofake.Options{})) })
	t.Run("mongodb", func(t *testing.T) { test(connect(t, mongotest.Real(t), nil)) })
}

// onFake is for tests that script faults.
func onFake(t testing.TB, o mongofake.Options) *world {
	t.Helper()
	s := mongofake.Start(t, o)
	return connect(t, s.URI(), s)
}

func connect(t testing.TB, uri string, fake *mongofake.Server) *world {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	db := client.Database(fmt.Sprintf("prom_%x_%d_%d", time.Now().UnixNano(), os.Getpid(), databases.Add(1)))
	w := &world{t: t, fake: fake, client: client, db: db, coll: db.Collection("things")}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if fake == nil {
			w.ok(db.Drop(ctx))
		}
		w.ok(client.Disconnect(ctx))
	})
	return w
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) insert(docs ...bson.D) {
	w.t.Helper()
	_, err := w.coll.InsertMany(w.ctx(), docs)
	w.ok(err)
}

// push inserts a document through whatever happens.
func (w *world) push(d bson.D) {
	w.t.Helper()
	for ctx := w.ctx(); ; {
		_, err := w.coll.InsertOne(ctx, d)
		if err == nil || mongo.IsDuplicateKeyError(err) {
			return
		}
		if ctx.Err() != nil {
			w.t.Errorf("insert: %v", err)
			return
		}
	}
}

func (w *world) set(id any, field string, v any) {
	w.t.Helper()
	_, err := w.coll.UpdateOne(w.ctx(), doc(id), bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: v}}}})
	w.ok(err)
}

func (w *world) remove(id any) {
	w.t.Helper()
	_, err := w.coll.DeleteOne(w.ctx(), doc(id))
	w.ok(err)
}

func (w *world) post(images bool) {
	w.t.Helper()
	w.ok(w.db.RunCommand(w.ctx(), bson.D{
		{Key: "collMod", Value: "things"}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: images}}},
	}).Err())
}

func doc(id any, more ...any) bson.D {
	d := bson.D{{Key: "_id", Value: id}}
	for i := 0; i < len(more); i += 2 {
		d = append(d, bson.E{Key: more[i].(string), Value: more[i+1]})
	}
	return d
}

// source reads the collection. It asks often, so that tests are short.
func (w *world) source(o mongofeed.Options) *mongofeed.Source {
	w.t.Helper()
	o.Client, o.Database = w.client, w.db.Name()
	if o.Collection == "" {
		o.Collection = "things"
	}
	if o.MaxAwait == 0 {
		o.MaxAwait = 20 * time.Millisecond
	}
	s, err := mongofeed.New(o)
	w.ok(err)
	return s
}

// topic keeps what a feed publishes as a hub does: an id that is known is not
// stored again. It keeps the token too.
type topic struct {
	mu      sync.Mutex
	changes []changefeed.Change
	batches []changefeed.Batch
	known   map[event.ID]bool
	again   int
	token   []byte
	changed chan struct{} // closed at every batch
	// fail may end a batch: before anything of it is stored, after some of its
	// changes, or before the token is saved.
	fail func(changefeed.Batch) failure
}

type failure int

const (
	fine failure = iota
	before
	halfway
	noToken
)

var errSink = errors.New("the sink fails")

func newTopic() *topic { return &topic{known: map[event.ID]bool{}, changed: make(chan struct{})} }

func (l *topic) sink(_ context.Context, b changefeed.Batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	how := fine
	if l.fail != nil {
		how = l.fail(b)
	}
	if how == before || how == halfway && len(b.Changes) == 0 {
		return errSink
	}
	for i, c := range b.Changes {
		if how == halfway && i >= len(b.Changes)/2 {
			return errSink
		}
		if l.known[c.ID] {
			l.again++
			continue
		}
		l.known[c.ID] = true
		l.changes = append(l.changes, c)
	}
	if how == noToken {
		return errSink
	}
	l.batches = append(l.batches, b)
	l.token = b.Token
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

func (l *topic) get() []changefeed.Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.changes)
}

// repeated is how many changes came that were known.
func (l *topic) repeated() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.again
}

func (l *topic) place() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

func (l *topic) handed() []changefeed.Batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.batches)
}

// await waits until a condition holds, which is looked at after every batch.
func (l *topic) await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	late := time.After(patience)
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%s did not come: %s", what, list(l.get()))
		}
	}
}

// has waits for so many changes.
func (l *topic) has(t testing.TB, n int) []changefeed.Change {
	t.Helper()
	l.await(t, fmt.Sprintf("change %d", n), func() bool { return len(l.get()) >= n })
	return l.get()
}

// streaming waits until the stream has begun.
func (l *topic) streaming(t testing.TB) {
	t.Helper()
	l.await(t, "the stream", func() bool {
		b := l.handed()
		return len(b) > 0 && !b[len(b)-1].Snapshot
	})
}

// list writes changes as texts: op key doc.
func list(changes []changefeed.Change) (lines []string) {
	for _, c := range changes {
		lines = append(lines, fmt.Sprintf("%s %s %s", c.Op, c.Key, c.Doc))
	}
	return lines
}

func want(t testing.TB, got []changefeed.Change, lines ...string) {
	t.Helper()
	if !slices.Equal(list(got), lines) {
		t.Fatalf("got:\n\t%s\nwant:\n\t%s", strings.Join(list(got), "\n\t"), strings.Join(lines, "\n\t"))
	}
}

// run streams into a topic until stop is called, which gives the error.
func (w *world) run(s *mongofeed.Source, l *topic) (stop func() error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Stream(ctx, l.place(), l.sink) }()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() {
			cancel()
			err = <-done
		})
		return err
	}
	w.t.Cleanup(func() { _ = stop() })
	return stop
}

// ends streams until the source ends by itself.
func (w *world) ends(s *mongofeed.Source, l *topic) error {
	w.t.Helper()
	ctx := w.ctx()
	err := s.Stream(ctx, l.place(), l.sink)
	if ctx.Err() != nil {
		w.t.Fatalf("the stream does not end: %v", err)
	}
	return err
}

// keepGoing streams, and comes back with the last token after errors as a feed
// does, until the topic holds what it should.
func (w *world) keepGoing(s *mongofeed.Source, l *topic, holds func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.ctx())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = s.Stream(ctx, l.place(), l.sink)
		}
	}()
	l.await(w.t, "all that should", holds)
	cancel()
	<-done
}

func wantError(t testing.TB, err, kind error, says ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got %v, want %v", err, kind)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("got %v; it should say %q", err, text)
		}
	}
}
