package mongostore_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/event"
	"promethean/store"
	"promethean/store/mongostore"
)

// wantStartError opens a store that must be refused with a message that says
// what is wrong.
func wantStartError(t *testing.T, uri string, o mongostore.Options, kind error, says ...string) {
	t.Helper()
	s, err := mongostore.Open(deadline(t), uri, o)
	if err == nil {
		_ = s.Close()
		t.Fatalf("open %+v succeeds, want an error that says %q", o, says)
	}
	if kind != nil && !errors.Is(err, kind) {
		t.Errorf("open: %v, want %q", err, kind)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("open: %v; it should say %q", err, text)
		}
	}
}

func TestBadAddress(t *testing.T) {
	for _, uri := range []string{"", "http://127.0.0.1", "mongodb://", "127.0.0.1:27017"} {
		wantStartError(t, uri, mongostore.Options{}, store.ErrInvalid, "address")
	}
}

func TestNoServer(t *testing.T) {
	began := time.Now()
	wantStartError(t, "mongodb://127.0.0.1:1/", mongostore.Options{RetryFor: time.Second, Timeout: 300 * time.Millisecond}, store.ErrUnavailable, "is it running")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := mongostore.Open(ctx, "mongodb://127.0.0.1:1/", mongostore.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("open with a cancelled context: %v", err)
	}
}

func TestStartErrors(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		ctx := deadline(t)
		client := connect(t, uri)
		defer func() { _ = client.Disconnect(context.Background()) }()

		foreign := newDatabase(t, uri)
		if _, err := client.Database(foreign).Collection("promethean_topics").InsertOne(ctx, bson.D{{Key: "mine", Value: 1}}); err != nil {
			t.Fatal(err)
		}
		wantStartError(t, uri, mongostore.Options{Database: foreign}, nil, "promethean_topics", "not ours", "prefix")
		open(t, uri, mongostore.Options{Database: foreign, Prefix: "other_"}) // beside it is room

		newer := newDatabase(t, uri)
		if _, err := client.Database(newer).Collection("promethean_meta").InsertOne(ctx, bson.D{{Key: "_id", Value: "promethean"}, {Key: "format", Value: int32(99)}}); err != nil {
			t.Fatal(err)
		}
		wantStartError(t, uri, mongostore.Options{Database: newer}, store.ErrFormat, "99")

		odd := newDatabase(t, uri)
		if _, err := client.Database(odd).Collection("promethean_meta").InsertOne(ctx, bson.D{{Key: "_id", Value: "promethean"}, {Key: "format", Value: "text"}}); err != nil {
			t.Fatal(err)
		}
		wantStartError(t, uri, mongostore.Options{Database: odd}, nil, "not ours")

		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword("nobody", "wrong")
		wantStartError(t, u.String(), mongostore.Options{Database: odd}, nil, "refuses the login", "password")
	})
}

// TestPrefixes: stores in one database with different prefixes share nothing,
// and the database may come from the address.
func TestPrefixes(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		u.Path = "/" + name
		if q := u.Query(); u.User != nil && !q.Has("authSource") {
			q.Set("authSource", "admin")
			u.RawQuery = q.Encode()
		}
		a, b := open(t, u.String(), mongostore.Options{Prefix: "a_"}), open(t, uri, mongostore.Options{Database: name, Prefix: "b_"})
		put(t, a, notes(3)...)
		if got, err := b.Bounds(deadline(t), topic); err != nil || got.Last != 0 {
			t.Fatalf("bounds %+v, %v", got, err)
		}
		again := open(t, uri, mongostore.Options{Database: name, Prefix: "a_"})
		if got, err := again.Bounds(deadline(t), topic); err != nil || got.Last != 3 {
			t.Fatalf("bounds %+v, %v", got, err)
		}
	})
}

// TestManyOpenAtOnce: several processes that start on an empty database make it
// together.
func TestManyOpenAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&locked{w: &log}, nil))
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				s, err := mongostore.Open(deadline(t), uri, mongostore.Options{Database: name, Logger: logger})
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				_ = s.Close()
			})
		}
		all.Wait()
		if !strings.Contains(log.String(), "made an index") {
			t.Errorf("the log does not tell of indexes: %s", log.String())
		}
		put(t, open(t, uri, mongostore.Options{Database: name}), note(1))
	})
}

type locked struct {
	mu sync.Mutex
	w  *strings.Builder
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// TestRefusedBatches: what this engine does not do, it says.
func TestRefusedBatches(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		s := open(t, uri, mongostore.Options{Database: newDatabase(t, uri)})
		other := note(2)
		other.Topic = "mongostore.other"
		settle := []store.Settlement{{Topic: topic, Group: "g"}}
		large := notes(7)
		for i := range large {
			large[i].Payload = []byte(`"` + strings.Repeat("x", 1<<20-2) + `"`)
		}
		events, _ := s.MaxBatch()
		for _, c := range []struct {
			b    store.Batch
			want error
			says string
		}{
			{store.Batch{Events: []event.Event{note(1), other}}, store.ErrInvalid, "one topic"},
			{store.Batch{Events: []event.Event{note(1)}, Settle: settle}, store.ErrInvalid, "settlements beside events"},
			{store.Batch{Events: []event.Event{note(1)}, Expect: []store.Expect{{Topic: other.Topic}}}, store.ErrInvalid, "expectation 0"},
			{store.Batch{Events: notes(events + 1)}, store.ErrTooLarge, "limit"},
			{store.Batch{Events: large}, store.ErrTooLarge, "event 6"},
		} {
			if _, err := s.Append(deadline(t), c.b); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("append: %v; want %q, and that it says %q", err, c.want, c.says)
			}
		}
		// What is allowed, goes.
		put(t, s, large[:5]...)
		got := put(t, s, notes(events)...)
		if got[events-1].Seq != uint64(5+events) {
			t.Fatalf("seq %d, want %d", got[events-1].Seq, 5+events)
		}
		var l ledger
		l.judge(t, s, 1)
	})
}
