package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"promethean"
	"promethean/event"
	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
	"promethean/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds how long a test waits for what must come.
const limit = 5 * time.Minute

// world is a database of its own at a server. Of a fake, faults can be scripted.
type world struct {
	t    testing.TB
	fake *mongofake.Server
	uri  string // with the name of the database
	db   *mongo.Database
	coll *mongo.Collection
}

var databases atomic.Int64

// onEach runs a test against the fake, and against a deployment if the
// environment names one.
func onEach(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Run("fake", func(t *testing.T) { test(t, onFake(t, mongofake.Options{})) })
	t.Run("mongodb", func(t *testing.T) { test(t, connect(t, mongotest.Real(t), nil)) })
}

// onFake is for tests that script faults.
func onFake(t testing.TB, o mongofake.Options) *world {
	t.Helper()
	s := mongofake.Start(t, o)
	return connect(t, s.URI(), s)
}

func connect(t testing.TB, uri string, fake *mongofake.Server) *world {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("prom_%x_%d_%d", time.Now().UnixNano(), os.Getpid(), databases.Add(1))
	w := &world{t: t, fake: fake, uri: within(uri, name), db: client.Database(name)}
	w.coll = w.db.Collection(collection)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if fake == nil {
			w.ok(w.db.Drop(ctx))
		}
		w.ok(client.Disconnect(ctx))
	})
	return w
}

// within is an address with the name of a database. The driver is asked to look
// at the server often: it may take that long to disconnect, if it has just begun
// to wait for news of it.
func within(uri, database string) string {
	at, query, _ := strings.Cut(uri, "?")
	scheme, hosts, _ := strings.Cut(at, "://")
	hosts, _, _ = strings.Cut(hosts, "/")
	return scheme + "://" + hosts + "/" + database + "?heartbeatFrequencyMS=500&" + query
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
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

// play runs the example and gives what it says.
func (w *world) play(set settings) string {
	w.t.Helper()
	set.mongodb = w.uri
	var out bytes.Buffer
	if err := run(w.ctx(), &out, set); err != nil {
		w.t.Fatalf("%v\n%s", err, &out)
	}
	return out.String()
}

// wantFailure runs the example, which fails with an error that says something.
func (w *world) wantFailure(what string, set settings) {
	w.t.Helper()
	set.mongodb = w.uri
	var out bytes.Buffer
	if err := run(w.ctx(), &out, set); err == nil || !strings.Contains(err.Error(), what) {
		w.t.Fatalf("%v, want %q\n%s", err, what, &out)
	}
}

// wantLines looks for what was said.
func wantLines(t testing.TB, out string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !strings.Contains(out, line) {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
}

// script does something when a line begins with a text, and keeps what is said.
type script struct {
	on map[string]func()

	mu      sync.Mutex
	said    bytes.Buffer
	changed chan struct{} // closed when something is said
}

func newScript(on map[string]func()) *script {
	return &script{on: on, changed: make(chan struct{})}
}

// Write implements [io.Writer].
func (s *script) Write(b []byte) (int, error) {
	for at, do := range s.on {
		if bytes.HasPrefix(b, []byte(at)) {
			do()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	return s.said.Write(b)
}

// wait waits until something was said.
func (s *script) wait(ctx context.Context, what string) error {
	for {
		s.mu.Lock()
		said, changed := s.said.String(), s.changed
		s.mu.Unlock()
		if strings.Contains(said, what) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%q was not said: %w\n%s", what, ctx.Err(), said)
		}
	}
}

// mirrorOf reads what a directory has of the mirror.
func mirrorOf(t testing.TB, dir string) (events []event.Event, last map[string]json.RawMessage) {
	t.Helper()
	hub, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	last = make(map[string]json.RawMessage)
	for e, err := range hub.Read(context.Background(), store.Query{Topic: mirror}) {
		if err != nil {
			t.Fatal(err)
		}
		events, last[e.Key] = append(events, e), e.Payload
	}
	if err := hub.Close(); err != nil {
		t.Fatal(err)
	}
	return events, last
}
