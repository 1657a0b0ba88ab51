package natsstore_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/event"
	"promethean/internal/natstest"
	"promethean/store"
	"promethean/store/natsstore"
)

// quick gives up soon.
var quick = natsstore.Options{RetryFor: 2 * time.Second, AttemptTimeout: 2 * time.Second}

// wantRefused checks that a store cannot be opened, and what the error says.
func wantRefused(t *testing.T, url string, o natsstore.Options, says ...string) {
	t.Helper()
	_ = refusal(t, url, o, says...)
}

func refusal(t *testing.T, url string, o natsstore.Options, says ...string) error {
	t.Helper()
	s, err := natsstore.Open(deadline(t), url, o)
	if err == nil {
		_ = s.Close()
		t.Fatal("the store opens")
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			t.Fatalf("%v: says nothing of %q", err, part)
		}
	}
	return err
}

func makeStream(t *testing.T, url string, c jetstream.StreamConfig) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(deadline(t), c); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefused(t *testing.T) {
	t.Parallel()
	t.Run("no server", func(t *testing.T) {
		if err := refusal(t, "nats://127.0.0.1:1", quick, "connect to"); !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
	})
	t.Run("no JetStream", func(t *testing.T) {
		url := natstest.Start(t, func(o *natstest.Options) { o.JetStream = false }).URL()
		wantRefused(t, url, quick, "no JetStream", "enable it")
	})
	t.Run("small payloads", func(t *testing.T) {
		url := natstest.Start(t, func(o *natstest.Options) { o.MaxPayload = 1 << 20 }).URL()
		wantRefused(t, url, quick, "max_payload is 1048576", "raise max_payload", "Options.Limits.Payload to at most")
		o := quick
		o.Limits.Payload = 400 << 10
		open(t, url, o)
	})
	t.Run("replicas", func(t *testing.T) {
		o := quick
		o.Replicas = 3
		wantRefused(t, natstest.Start(t, nil).URL(), o, "Options.Replicas, which is 3")
	})
	t.Run("options", func(t *testing.T) {
		for _, o := range []natsstore.Options{{Prefix: "a.b"}, {Prefix: strings.Repeat("x", 33)}, {Duplicates: 1}, {Replicas: 9}, {Cert: "c"}} {
			if err := refusal(t, "nats://127.0.0.1:1", o); !errors.Is(err, store.ErrInvalid) {
				t.Fatal(err)
			}
		}
	})
	t.Run("foreign streams", func(t *testing.T) {
		url := natstest.Start(t, nil).URL()
		makeStream(t, url, jetstream.StreamConfig{Name: "theirs", Subjects: []string{"promethean.a.*"}})
		wantRefused(t, url, quick, "foreign stream theirs", "choose another Options.Prefix")
		o := quick
		o.Prefix = "p"
		s := open(t, url, o)
		makeStream(t, url, jetstream.StreamConfig{Name: "p-orders_placed", Subjects: []string{"x"}})
		_, err := s.Append(deadline(t), store.Batch{Events: []event.Event{newEvent("", 1)}})
		if err == nil || !strings.Contains(err.Error(), "foreign stream p-orders_placed") {
			t.Fatal(err)
		}
		if _, err := s.Bounds(deadline(t), topic); err == nil {
			t.Fatal("bounds of a foreign stream")
		}
		makeStream(t, url, jetstream.StreamConfig{Name: "KV_q-groups", Subjects: []string{"$KV.q-groups.>"}})
		o.Prefix = "q"
		wantRefused(t, url, o, "foreign stream KV_q-groups")
	})
	t.Run("logins", func(t *testing.T) {
		url := natstest.Start(t, func(o *natstest.Options) { o.Username, o.Password = "me", "secret" }).URL()
		wantRefused(t, url, quick, "Authorization")
		o := quick
		o.User, o.Password = "me", "secret"
		open(t, url, o)
		url = natstest.Start(t, func(o *natstest.Options) { o.Authorization = "token" }).URL()
		o = quick
		o.Token = "token"
		open(t, url, o)
		o.NKeySeed = filepath.Join(t.TempDir(), "none")
		wantRefused(t, url, o, "nkey seed")
	})
}

// TestServerAwayAndBack stops the server under a store.
func TestServerAwayAndBack(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, nil)
	s := open(t, server.URL(), quick)
	ctx := deadline(t)
	w := s.Watch(topic)
	defer w.Stop()
	first := newEvent("k", 1)
	mustAppend(t, s, store.Batch{Events: []event.Event{first}})
	<-w.C
	if _, err := s.PutCursor(ctx, store.Cursor{Topic: topic, Group: "g"}); err != nil {
		t.Fatal(err)
	}

	server.Stop()
	began := time.Now()
	second := newEvent("k", 2)
	for name, call := range map[string]func() error{
		"append": func() error { _, err := s.Append(ctx, store.Batch{Events: []event.Event{second}}); return err },
		"read": func() error {
			for _, err := range s.Read(ctx, store.Query{Topic: topic}) {
				return err
			}
			return nil
		},
		"bounds":  func() error { _, err := s.Bounds(ctx, topic); return err },
		"cursor":  func() error { _, err := s.Cursor(ctx, topic, "g"); return err },
		"acquire": func() error { _, err := s.Acquire(ctx, "l", "me", time.Second); return err },
		"settle": func() error {
			_, err := s.Append(ctx, store.Batch{Settle: []store.Settlement{{Topic: topic, Group: "g", Handed: 5}}})
			return err
		},
	} {
		if err := call(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s without a server: %v", name, err)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("giving up took %v", took)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := s.Append(short, store.Batch{Events: []event.Event{second}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("append with a deadline: %v", err)
	}

	server.Start(t)
	for {
		got, err := s.Append(ctx, store.Batch{Events: []event.Event{second}})
		if err == nil {
			if got[0].Seq != 2 {
				t.Fatalf("%+v", got)
			}
			break
		}
		if !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	<-w.C
	if got := mustAppend(t, s, store.Batch{Events: []event.Event{first}}); !got[0].Duplicate || got[0].Seq != 1 {
		t.Fatalf("%+v", got[0])
	}
	if log := readAll(t, s, store.Query{Topic: topic}); len(log) != 2 {
		t.Fatalf("%d events, want 2", len(log))
	}
	// Another process wakes us too.
	mustAppend(t, open(t, server.URL(), quick), store.Batch{Events: []event.Event{newEvent("k", 3)}})
	select {
	case <-w.C:
	case <-ctx.Done():
		t.Fatal("no wake-up after the server came back")
	}
}

// TestWatchAcrossStores: a topic is made and written by another store.
func TestWatchAcrossStores(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	a, b := open(t, url, natsstore.Options{}), open(t, url, natsstore.Options{})
	ctx := deadline(t)
	one, all := a.Watch(topic), a.Watch()
	defer one.Stop()
	defer all.Stop()
	for seq := uint64(1); seq <= 20; seq++ {
		mustAppend(t, b, store.Batch{Events: []event.Event{newEvent("k", 1)}})
		for _, w := range []*store.Watch{one, all} {
			for {
				select {
				case <-w.C:
				case <-ctx.Done():
					t.Fatalf("no wake-up for seq %d", seq)
				}
				if log := readAll(t, a, store.Query{Topic: topic, After: seq - 1}); len(log) == 1 {
					break
				}
				if w == all {
					break // it was woken before
				}
			}
		}
	}
}
