package mongofeed_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean"
	"promethean/changefeed"
	"promethean/changefeed/mongofeed"
	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
	"promethean/store"
)

// begun gives a topic whose stream has begun and was stopped.
func begun(w *world, o mongofeed.Options) *topic {
	w.t.Helper()
	l := newTopic()
	stop := w.run(w.source(o), l)
	l.streaming(w.t)
	_ = stop()
	return l
}

func TestHistoryLost(t *testing.T) {
	w := onFake(t, mongofake.Options{})
	l := begun(w, mongofeed.Options{})
	w.insert(doc(1), doc(2))
	w.fake.TrimHistory(w.fake.ClusterTime())
	wantError(t, w.ends(w.source(mongofeed.Options{}), l), changefeed.ErrHistoryLost, "oplog", w.db.Name()+".things")

	// A place that the server cannot read is refused, and one that it does not
	// know any more is as good as lost.
	l = begun(w, mongofeed.Options{})
	stop := w.run(w.source(mongofeed.Options{}), l)
	w.insert(doc(3))
	l.has(t, 1)
	_ = stop()
	l.token = []byte(strings.Replace(string(l.token), `"_data":"`, `"_data":"82000000`, 1))
	wantError(t, w.ends(w.source(mongofeed.Options{}), l), changefeed.ErrRefused, "begin anew")
	l = begun(w, mongofeed.Options{})
	w.fake.Fail(mongofake.Fault{Command: "aggregate", Times: -1, Code: 280, Labels: []string{"NonResumableChangeStreamError"}})
	wantError(t, w.ends(w.source(mongofeed.Options{}), l), changefeed.ErrHistoryLost, "does not know the saved place")
}

// TestPositionLost: a stream that is open and too slow loses its position.
func TestPositionLost(t *testing.T) {
	w := onFake(t, mongofake.Options{})
	l := newTopic()
	calls := 0
	l.fail = func(changefeed.Batch) failure {
		if calls++; calls == 2 { // while this batch is stored, the log moves on
			w.insert(doc(3), doc(4))
			w.fake.TrimHistory(w.fake.ClusterTime())
		}
		return fine
	}
	done := make(chan error, 1)
	go func() { done <- w.source(mongofeed.Options{BatchSize: 1}).Stream(w.ctx(), nil, l.sink) }()
	l.streaming(t)
	w.insert(doc(1), doc(2))
	wantError(t, <-done, changefeed.ErrHistoryLost)
	if len(l.get()) < 1 {
		t.Error("nothing was handed over")
	}
}

// hub is a bus in memory with a feed from the collection.
func (w *world) feed(o changefeed.Options, source mongofeed.Options) (*promethean.Hub, *changefeed.Feed) {
	w.t.Helper()
	hub, err := promethean.OpenMemory(promethean.Options{})
	w.ok(err)
	o.Topic, o.Tokens = "things.changed", mongofeed.NewTokens(w.db)
	o.MinBackoff, o.MaxBackoff = time.Millisecond, 10*time.Millisecond
	feed, err := changefeed.Start(hub, w.source(source), o)
	w.ok(err)
	w.t.Cleanup(func() {
		if err := feed.Close(); err != nil {
			w.t.Error(err)
		}
		if err := hub.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return hub, feed
}

// until waits for a status.
func until(t testing.TB, feed *changefeed.Feed, what string, holds func(changefeed.Status) bool) changefeed.Status {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // nothing tells
		s := feed.Status()
		if holds(s) {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("%s did not come: %+v", what, s)
		}
	}
}

func stored(t testing.TB, hub *promethean.Hub) (lines []string) {
	t.Helper()
	for e, err := range hub.Read(context.Background(), store.Query{Topic: "things.changed"}) {
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		op, _ := e.Headers.Get("x-mongo-op")
		lines = append(lines, op+" "+e.Key+" "+string(e.Payload))
	}
	return lines
}

// TestFeed: from the collection to the topic, with tokens beside the collection.
func TestFeed(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		w.insert(doc(1, "n", 1))
		hub, feed := w.feed(changefeed.Options{}, mongofeed.Options{Snapshot: true})
		until(t, feed, "the stream", func(s changefeed.Status) bool { return s.State == changefeed.Streaming })
		w.set(1, "n", 2)
		until(t, feed, "the update", func(s changefeed.Status) bool { return s.Published == 2 })
		w.remove(1)
		s := until(t, feed, "the delete", func(s changefeed.Status) bool { return s.Published == 3 })
		if got := stored(t, hub); !slices.Equal(got, []string{`snapshot 1 {"_id":1,"n":1}`, `update 1 {"_id":1,"n":2}`, `delete 1 null`}) {
			t.Errorf("got %s", got)
		}
		if !strings.HasPrefix(s.Position, "cluster time ") || s.Failures != 0 {
			t.Errorf("the status is %+v", s)
		}
		if token, err := mongofeed.NewTokens(w.db).Load(w.ctx(), changefeed.DefaultKey); err != nil || token == nil {
			t.Errorf("the token is %s, %v", token, err)
		}
	})
}

// TestFeedLosesHistory: without leave to begin anew the feed stops loudly, and
// with it there is a new snapshot.
func TestFeedLosesHistory(t *testing.T) {
	for _, may := range []bool{false, true} {
		w := onFake(t, mongofake.Options{})
		w.insert(doc("a"))
		first := begun(w, mongofeed.Options{Snapshot: true})
		w.ok(mongofeed.NewTokens(w.db).Save(w.ctx(), changefeed.DefaultKey, first.place()))
		w.insert(doc("b"))
		w.remove("a")
		w.fake.TrimHistory(w.fake.ClusterTime())
		hub, feed := w.feed(changefeed.Options{Resnapshot: may}, mongofeed.Options{Snapshot: true})
		until(t, feed, "the loss", func(s changefeed.Status) bool { return s.HistoryLost > 0 })
		if !may {
			s := until(t, feed, "the failure", func(s changefeed.Status) bool { return s.State == changefeed.Failed })
			if s.Error == "" || len(stored(t, hub)) != 0 {
				t.Errorf("%+v, %s", s, stored(t, hub))
			}
			feed.Resync() // by hand
		}
		until(t, feed, "the snapshot", func(s changefeed.Status) bool { return s.State == changefeed.Streaming })
		w.insert(doc("c"))
		until(t, feed, "the stream", func(s changefeed.Status) bool { return s.Published >= 2 })
		if got := stored(t, hub); !slices.Equal(got, []string{`snapshot b {"_id":"b"}`, `insert c {"_id":"c"}`}) {
			t.Errorf("got %s", got)
		}
	}
}

// TestFeedThroughFaults: a feed with all its parts, through faults of every
// kind, publishes every change once.
func TestFeedThroughFaults(t *testing.T) {
	w := onFake(t, mongofake.Options{})
	hub, feed := w.feed(changefeed.Options{}, mongofeed.Options{Snapshot: true, BatchSize: 3})
	until(t, feed, "the stream", func(s changefeed.Status) bool { return s.State == changefeed.Streaming })
	var lines []string
	for i := range 40 {
		switch i % 8 {
		case 1:
			w.fake.KillCursors()
		case 3:
			w.fake.Fail(mongofake.Fault{Command: "update", Cut: true, After: true}) // the token is saved, and nobody knows
		case 4:
			w.fake.Fail(mongofake.Fault{Command: "update", Times: 2, Code: 8}) // it is not saved
		case 5:
			w.fake.StepDown(0)
			w.fake.StepUp()
		case 6:
			w.fake.Fail(mongofake.Fault{Command: "getMore", Code: 280, Labels: []string{"NonResumableChangeStreamError"}})
		}
		id := fmt.Sprintf("k%02d", i)
		w.push(doc(id))
		lines = append(lines, `insert `+id+` {"_id":"`+id+`"}`)
	}
	until(t, feed, "all", func(s changefeed.Status) bool { return s.Published >= 40 })
	if got := stored(t, hub); !slices.Equal(got, lines) {
		t.Errorf("got %s", got)
	}
}

// TestNoPrimaryForAWhile: the feed waits for the next one, and goes on where it
// was.
func TestNoPrimaryForAWhile(t *testing.T) {
	for _, code := range []int32{10107, 91, 189} {
		w := onFake(t, mongofake.Options{})
		hub, feed := w.feed(changefeed.Options{}, mongofeed.Options{Snapshot: true})
		until(t, feed, "the stream", func(s changefeed.Status) bool { return s.State == changefeed.Streaming })
		w.insert(doc(1))
		until(t, feed, "the first", func(s changefeed.Status) bool { return s.Published == 1 })
		w.fake.StepDown(code)
		w.ok(w.fake.Await(w.ctx(), "hello", w.fake.Calls("hello")+2)) // the clients have seen it
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.push(doc(2))
		}()
		w.ok(w.fake.Await(w.ctx(), "hello", w.fake.Calls("hello")+1))
		w.fake.StepUp()
		<-done
		until(t, feed, "the second", func(s changefeed.Status) bool { return s.Published >= 2 && s.State == changefeed.Streaming })
		if got := stored(t, hub); !slices.Equal(got, []string{`insert 1 {"_id":1}`, `insert 2 {"_id":2}`}) {
			t.Errorf("code %d: got %s", code, got)
		}
	}
}

func TestGone(t *testing.T) {
	for _, how := range []string{"drop", "rename", "dropDatabase"} {
		t.Run(how, func(t *testing.T) {
			onEach(t, func(w *world) {
				t := w.t
				w.insert(doc(0))
				l := begun(w, mongofeed.Options{})
				w.insert(doc(1), doc(2))
				var err error
				says := "drop"
				switch how {
				case "drop":
					err = w.coll.Drop(w.ctx())
				case "rename":
					says = "rename to " + w.db.Name() + ".new"
					err = w.client.Database("admin").RunCommand(w.ctx(), bson.D{
						{Key: "renameCollection", Value: w.db.Name() + ".things"}, {Key: "to", Value: w.db.Name() + ".new"},
					}).Err()
				default:
					err = w.db.Drop(w.ctx())
				}
				w.ok(err)
				for range 2 { // whoever comes back meets it again
					wantError(t, w.ends(w.source(mongofeed.Options{}), l), changefeed.ErrGone, says)
					want(t, l.get(), `insert 1 {"_id":1}`, `insert 2 {"_id":2}`)
				}
				// Who begins anew goes on with the collection of that name.
				w.insert(doc(7))
				l = begun(w, mongofeed.Options{Snapshot: true})
				want(t, l.get(), `snapshot 7 {"_id":7}`)
			})
		})
	}
}

func TestOversized(t *testing.T) {
	w := onFake(t, mongofake.Options{MaxDocument: 20 << 10})
	w.insert(doc(1))
	l := begun(w, mongofeed.Options{})
	w.insert(doc(2))
	w.set(1, "text", strings.Repeat("x", 19<<10)) // in the update and in the document
	for range 2 {
		wantError(t, w.ends(w.source(mongofeed.Options{BatchSize: 1}), l), changefeed.ErrRefused, "larger than the 16 MiB", "begin anew")
		want(t, l.get(), `insert 2 {"_id":2}`)
	}
}

func TestRefused(t *testing.T) {
	w := onFake(t, mongofake.Options{Standalone: true})
	wantError(t, w.ends(w.source(mongofeed.Options{}), newTopic()), changefeed.ErrRefused, "no change streams", "replica set")

	w = onFake(t, mongofake.Options{})
	if s, err := w.source(mongofeed.Options{}).Status(w.ctx()); err != nil || s.Server != "MongoDB 7.0.0" || s.LagBytes != -1 {
		t.Errorf("the status is %+v, %v", s, err)
	}
	w.fake.Fail(mongofake.Fault{Command: "aggregate", Code: 13, Message: "not authorized on prom to execute command"})
	wantError(t, w.ends(w.source(mongofeed.Options{}), newTopic()), changefeed.ErrRefused, "may not", "changeStream")
	w.fake.Fail(mongofake.Fault{Command: "aggregate", Code: 166})
	wantError(t, w.ends(w.source(mongofeed.Options{}), newTopic()), changefeed.ErrRefused, "cannot be watched")
	l := begun(w, mongofeed.Options{})
	wantError(t, w.ends(w.source(mongofeed.Options{Collection: "other"}), l), changefeed.ErrRefused, "token is of", "key of its own")
	l.token = []byte("0/16B3748")
	wantError(t, w.ends(w.source(mongofeed.Options{}), l), changefeed.ErrRefused, "of another kind")
}

// TestServerAway: that is no refusal, and tried again.
func TestServerAway(t *testing.T) {
	s, err := mongofeed.New(mongofeed.Options{URI: "mongodb://127.0.0.1:1/d?serverSelectionTimeoutMS=200", Collection: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	err = s.Stream(context.Background(), nil, newTopic().sink)
	if err == nil || errors.Is(err, changefeed.ErrRefused) || errors.Is(err, changefeed.ErrHistoryLost) || !strings.Contains(err.Error(), "d.c") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := s.Status(ctx); err == nil {
		t.Error("a server that is away has a status")
	}
}

func TestOptions(t *testing.T) {
	for says, o := range map[string]mongofeed.Options{
		"address":         {Database: "d", Collection: "c"},
		"not both":        {URI: "mongodb://h/d", Client: onFake(t, mongofake.Options{}).client, Collection: "c"},
		"of a collection": {URI: "mongodb://h/d"},
		"of a database":   {URI: "mongodb://h/", Collection: "c"},
		"server":          {URI: "http://h/", Database: "d", Collection: "c"},
		"updateLookup":    {URI: "mongodb://h/d", Collection: "c", FullDocument: "default"},
		"negative":        {URI: "mongodb://h/d", Collection: "c", BatchSize: -1},
		"named":           {URI: "mongodb://h/d", Collection: "system.views"},
	} {
		s, err := mongofeed.New(o)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v; it should say %q", err, says)
		}
	}
}

// tokensOn tries a place for tokens.
func tokensOn(w *world) {
	t := w.t
	k := mongofeed.NewTokens(w.db)
	if token, err := k.Load(w.ctx(), "a"); err != nil || token != nil {
		t.Fatalf("no token is %q, %v", token, err)
	}
	for _, text := range []string{`{"of":"x"}`, "two"} {
		w.ok(k.Save(w.ctx(), "a", []byte(text)))
		if token, err := k.Load(w.ctx(), "a"); err != nil || string(token) != text {
			t.Errorf("got %q, %v", token, err)
		}
	}
	w.ok(k.Save(w.ctx(), "b", []byte("other")))
	w.ok(k.Delete(w.ctx(), "a"))
	w.ok(k.Delete(w.ctx(), "a"))
	if token, err := k.Load(w.ctx(), "a"); err != nil || token != nil {
		t.Errorf("a deleted token is %q, %v", token, err)
	}
	if token, err := k.Load(w.ctx(), "b"); err != nil || string(token) != "other" {
		t.Errorf("got %q, %v", token, err)
	}
	_, err := w.db.Collection("changefeed_tokens").InsertOne(w.ctx(), doc("odd"))
	w.ok(err)
	if _, err := k.Load(w.ctx(), "odd"); err == nil || !strings.Contains(err.Error(), "odd") {
		t.Errorf("a document without a token: %v", err)
	}
}

func TestTokens(t *testing.T) { onEach(t, tokensOn) }

// TestCompatibleServer: it keeps tokens, and has no change streams, which it
// says in its own words.
func TestCompatibleServer(t *testing.T) {
	w := connect(t, mongotest.Compatible(t), nil)
	tokensOn(w)
	err := w.ends(w.source(mongofeed.Options{Snapshot: true}), newTopic())
	wantError(t, err, changefeed.ErrRefused, "no change streams", "replica set")
	t.Log(err)
	if s, err := w.source(mongofeed.Options{}).Status(w.ctx()); err != nil || s.LagBytes != -1 || s.Server == "" {
		t.Errorf("the status is %+v, %v", s, err)
	}
}
