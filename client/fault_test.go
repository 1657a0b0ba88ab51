package client_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"promethean/client"
	"promethean/event"
	"promethean/gateway"
	"promethean/gateway/auth"
	"promethean/internal/netfault"
)

// Publishers and a subscriber over a connection that is cut again and again:
// everything is stored once and settled.
func TestConnectionIsCut(t *testing.T) {
	s := faulty(t, gateway.Options{})
	c := s.connect(client.Options{MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond})
	ctx := limit(t)
	r := new(recorder)
	if _, err := c.Subscribe(ctx, "a", "g", r.handle, client.MaxAttempts(1000)); err != nil {
		t.Fatal(err)
	}
	const publishers, each = 8, 25
	var all sync.WaitGroup
	var done atomic.Int32
	for who := range publishers {
		all.Go(func() {
			for n := range each {
				if _, err := c.Publish(ctx, "a", [2]int{who, n}, client.Key(fmt.Sprint(who))); err != nil {
					t.Error(err)
				}
				done.Add(1)
			}
		})
	}
	for n := int32(10); n < publishers*each; n += 10 {
		eventually(t, "publishing goes on", func() bool { return done.Load() >= n })
		s.proxy.Down(true)
		s.proxy.Down(false)
	}
	all.Wait()
	s.settled("a", "g", publishers*each)
	seen := map[string]int{}
	for _, e := range s.stored("a") {
		seen[string(e.Payload)]++
	}
	if len(seen) != publishers*each || len(s.stored("a")) != publishers*each {
		t.Errorf("%d different events of %d, want %d", len(seen), len(s.stored("a")), publishers*each)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) != publishers*each {
		t.Errorf("%d events handled, want %d", len(r.seen), publishers*each)
	}
}

// A handler outlives its connection: it is told, its event comes again, and as
// it succeeds all the same nobody handles the event beside it or after it.
func TestHandlerOutlivesConnection(t *testing.T) {
	s := faulty(t, gateway.Options{})
	s.publish("a", 1)
	c := s.connect(client.Options{MinBackoff: time.Millisecond})
	ctx := limit(t)
	told, end, next := make(chan error, 1), make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	_, err := c.Subscribe(ctx, "a", "g", func(ctx context.Context, e event.Event, _ *client.Delivery) error {
		if e.Seq > 1 {
			if e.Seq == 3 {
				close(next)
			}
			return nil
		}
		calls.Add(1)
		<-ctx.Done()
		told <- context.Cause(ctx)
		<-end
		return nil
	}, client.FromEarliest())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the handler runs", func() bool { return calls.Load() == 1 })
	s.proxy.Down(true)
	if err := <-told; !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("%v", err)
	}
	s.proxy.Down(false)
	s.publish("a", 2) // the first of them has the same key, and waits
	<-next            // so the event has come again, too: the hub hands out in order
	close(end)
	s.settled("a", "g", 3)
	if n := calls.Load(); n != 1 {
		t.Errorf("%d handlers for one event", n)
	}
}

// The same, but the handler fails: the delivery that came meanwhile has its
// turn.
func TestHandlerFailsAfterConnection(t *testing.T) {
	s := faulty(t, gateway.Options{})
	s.publish("a", 1)
	c := s.connect(client.Options{MinBackoff: time.Millisecond})
	var calls atomic.Int32
	attempts := make(chan int, 2)
	_, err := c.Subscribe(limit(t), "a", "g", func(ctx context.Context, _ event.Event, d *client.Delivery) error {
		attempts <- d.Attempt
		if calls.Add(1) == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}, client.FromEarliest())
	if err != nil {
		t.Fatal(err)
	}
	if n := <-attempts; n != 1 {
		t.Errorf("attempt %d", n)
	}
	s.proxy.Down(true)
	s.proxy.Down(false)
	if n := <-attempts; n != 2 {
		t.Errorf("attempt %d", n)
	}
	s.settled("a", "g", 1)
}

// The answer to an ack is lost: it is sent again, and the event does not come
// back.
func TestAckLosesAnswer(t *testing.T) {
	for _, fate := range []netfault.Fate{netfault.LoseResponse, netfault.LoseRequest} {
		s := faulty(t, gateway.Options{})
		c := s.connect(client.Options{MinBackoff: time.Millisecond})
		r := new(recorder)
		var lose atomic.Bool
		r.fail = func(event.Event, *client.Delivery) error {
			if r.count() == 1 {
				lose.Store(true)
			}
			return nil
		}
		if _, err := c.Subscribe(limit(t), "a", "g", r.handle); err != nil {
			t.Fatal(err)
		}
		s.proxy.Judge(func(chunk []byte) netfault.Fate {
			if lose.CompareAndSwap(true, false) {
				return fate
			}
			return netfault.Pass
		})
		s.publish("a", 1)
		s.settled("a", "g", 1)
		s.publish("a", 1)
		s.settled("a", "g", 2)
		if r.count() != 2 {
			t.Errorf("fate %d: %d deliveries of two events", fate, r.count())
		}
	}
}

// A hub that refuses the subscription when the client comes back to it ends it.
func TestRefusedLater(t *testing.T) {
	s := faulty(t, gateway.Options{})
	c := s.connect(client.Options{MinBackoff: time.Millisecond})
	ctx := limit(t)
	sub, err := c.Subscribe(ctx, "a", "g", new(recorder).handle, client.MaxAttempts(3))
	if err != nil {
		t.Fatal(err)
	}
	if sub.Err() != nil {
		t.Error(sub.Err())
	}
	s.proxy.Down(true)
	eventually(t, "the group has no member", func() bool { return s.hub.Engine().Delete(ctx, "a", "g") == nil })
	if err := s.hub.Engine().Make(ctx, "a", "g", groupSettings(time.Minute), startEarliest); err != nil {
		t.Fatal(err)
	}
	s.proxy.Down(false)
	<-sub.Done()
	wantCode(t, "group_conflict", sub.Err())
	if err := sub.Stop(ctx); err != nil {
		t.Errorf("stop of one that has ended: %v", err)
	}
}

// A hub that accepts connections and says nothing is noticed.
func TestSilentHub(t *testing.T) {
	s := faulty(t, gateway.Options{})
	var dials atomic.Int32
	c := s.connect(client.Options{MinBackoff: time.Millisecond, Ping: 30 * time.Millisecond, DialTimeout: 50 * time.Millisecond, HTTP: counting(&dials)})
	ctx := limit(t)
	r := new(recorder)
	if _, err := c.Subscribe(ctx, "a", "g", r.handle); err != nil {
		t.Fatal(err)
	}
	s.proxy.Freeze(true)
	eventually(t, "it connects again", func() bool { return dials.Load() > 2 })
	s.proxy.Freeze(false)
	if _, err := c.Publish(ctx, "a", 1); err != nil {
		t.Error(err)
	}
	s.settled("a", "g", 1)
}

// flood is a hub that says OK to everything, and sends events of 256 KiB
// whatever it is told.
func flood(t *testing.T, sent *atomic.Int64) http.Handler {
	text := strings.Repeat("x", floodSize)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.CloseNow() }()
		send := func(text string) error { return conn.Write(r.Context(), websocket.MessageText, []byte(text)) }
		subscribed := make(chan struct{})
		go func() {
			var once sync.Once
			for {
				_, data, err := conn.Read(r.Context())
				if err != nil {
					return
				}
				var f struct {
					Op   string
					Corr int
					IDs  []string
				}
				if err := json.Unmarshal(data, &f); err != nil {
					t.Error(err)
				}
				results := make([]string, len(f.IDs))
				for i, id := range f.IDs {
					results[i] = fmt.Sprintf(`{"id":%q,"ok":true}`, id)
				}
				if send(fmt.Sprintf(`{"op":"OK","corr":%d,"results":[%s]}`, f.Corr, strings.Join(results, ","))) != nil {
					return
				}
				if f.Op == "SUBSCRIBE" {
					once.Do(func() { close(subscribed) })
				}
			}
		}()
		for <-subscribed; err == nil; sent.Add(1) {
			err = send(fmt.Sprintf(`{"op":"EVENT","topic":"a","group":"g","event":{"id":%q,"seq":1,"ts":1,"topic":"a","payload":%q},"ctx":{"attempt":1,"lease":"1"}}`, event.NewID(), text))
		}
	})
}

const floodSize = 256 << 10

// A hub that sends whatever happens is not read any more when there is too much.
func TestHubThatDoesNotPause(t *testing.T) {
	var sent atomic.Int64
	server := httptest.NewServer(flood(t, &sent))
	defer server.Close()
	c, err := client.New(server.URL, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	open := make(chan struct{})
	var handled atomic.Int64
	sub, err := c.Subscribe(limit(t), "a", "g", func(context.Context, event.Event, *client.Delivery) error {
		<-open
		handled.Add(1)
		return nil
	}, client.MaxBytes(1<<20), client.Workers(1))
	if err != nil {
		t.Fatal(err)
	}
	last := int64(-1)
	eventually(t, "the hub cannot send any more", func() bool {
		<-time.After(100 * time.Millisecond)
		n := sent.Load()
		same := n == last && n > 0
		last = n
		return same
	})
	if n := sent.Load() * floodSize; n > 64<<20 {
		t.Errorf("%d bytes were taken", n)
	}
	close(open)
	eventually(t, "it goes on", func() bool { return handled.Load() > last && sent.Load() > last })
	if err := sub.Stop(limit(t)); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel() // this hub would not stop for a close either
	if err := c.Close(ended); err != nil {
		t.Error(err)
	}
}

// logBook collects what is logged.
type logBook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A hub that takes few frames a second gets everything in the end.
func TestFramesAreLimited(t *testing.T) {
	s := serve(t, gateway.Options{ConnectionRate: 40})
	s.publish("a", 60)
	c := s.connect(client.Options{MinBackoff: time.Millisecond})
	r := &recorder{fail: func(e event.Event, d *client.Delivery) error {
		if e.Seq%2 == 0 && d.Attempt == 1 {
			return client.Retry(0, errors.New("once more")) // a frame each
		}
		return nil
	}}
	sub, err := c.Subscribe(limit(t), "a", "g", r.handle, client.FromEarliest(), client.Workers(20))
	if err != nil {
		t.Fatal(err)
	}
	s.settled("a", "g", 60)
	if r.count() != 90 {
		t.Errorf("%d deliveries, want 90", r.count())
	}
	if err := sub.Stop(limit(t)); err != nil {
		t.Error(err)
	}
}

// verifier takes tokens that look like a JWT and are good until their time.
type verifier struct{ asked atomic.Int32 }

func (v *verifier) Verify(_ context.Context, token string) (*auth.Principal, error) {
	v.asked.Add(1)
	var ms int64
	if _, err := fmt.Sscanf(token, "until-%d.", &ms); err != nil {
		return nil, fmt.Errorf("%w: not ours", auth.ErrUnauthorized)
	}
	until := time.UnixMilli(ms)
	if time.Now().After(until) {
		return nil, fmt.Errorf("%w: over", auth.ErrUnauthorized)
	}
	scopes, err := auth.ParseScopes([]string{"publish:**", "subscribe:a"})
	return &auth.Principal{Name: "test", Scopes: scopes, Expires: until}, err
}

func token(life time.Duration) string {
	until := time.Now().Add(life)
	claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, until.Add(time.Second).Unix()))
	return fmt.Sprintf("until-%d.%s.x", until.UnixMilli(), claims)
}

func TestTokens(t *testing.T) {
	s := serve(t, gateway.Options{Verifier: new(verifier)})
	ctx := limit(t)
	for _, bad := range []string{"", "wrong", token(-time.Minute)} {
		c := s.connect(client.Options{Token: bad})
		_, err := c.Publish(ctx, "a", 1)
		wantCode(t, "unauthorized", err)
		_, err = c.Subscribe(ctx, "a", "g", new(recorder).handle)
		wantCode(t, "unauthorized", err)
		if err != nil && bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("the token stands in %v", err)
		}
	}
	c := s.connect(client.Options{Token: token(time.Minute)})
	if _, err := c.Publish(ctx, "a", 1); err != nil {
		t.Error(err)
	}
	_, err := c.Subscribe(ctx, "b", "g", new(recorder).handle)
	wantCode(t, "forbidden", err)

	// A source that fails is asked again.
	var calls atomic.Int32
	c = s.connect(client.Options{MinBackoff: time.Millisecond, TokenSource: func(context.Context) (string, error) {
		if calls.Add(1) < 3 {
			return "", errors.New("no issuer")
		}
		return token(time.Minute), nil
	}})
	if _, err := c.Publish(ctx, "a", 1); err != nil {
		t.Error(err)
	}
}
