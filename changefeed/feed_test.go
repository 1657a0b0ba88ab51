package changefeed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/changefeed"
	"promethean/event"
	"promethean/store"
)

// source is a list of changes; a token is how many of them are done.
type source struct {
	mu      sync.Mutex
	changes []changefeed.Change
	more    chan struct{} // closed when there are more
	batch   int
	errs    []error // what the next streams end with, before anything is read
	tokens  []string
	forgot  int
	closed  bool
}

func newSource(n int) *source {
	s := &source{batch: 3, more: make(chan struct{})}
	s.add(n)
	return s
}

func (s *source) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		i := len(s.changes) + 1
		c := changefeed.Change{
			ID: event.NameID(event.ID{}, strconv.Itoa(i)), Key: fmt.Sprint("k", i%4), Op: changefeed.OpUpdate,
			Doc: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i)), At: time.Now(),
			Headers: event.Headers{{Name: "x-mongo-op", Value: "update"}},
		}
		if i%5 == 0 {
			c.Op, c.Doc = changefeed.OpDelete, nil
		}
		s.changes = append(s.changes, c)
	}
	close(s.more)
	s.more = make(chan struct{})
}

func (s *source) fail(errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, errs...)
}

func (s *source) Stream(ctx context.Context, token []byte, sink func(context.Context, changefeed.Batch) error) error {
	s.mu.Lock()
	s.tokens = append(s.tokens, string(token))
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		s.mu.Unlock()
		return err
	}
	s.mu.Unlock()
	at, _ := strconv.Atoi(string(token))
	for {
		s.mu.Lock()
		more := s.more
		list := s.changes[at:min(at+s.batch, len(s.changes))]
		s.mu.Unlock()
		if len(list) == 0 {
			select {
			case <-more:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		at += len(list)
		if err := sink(ctx, changefeed.Batch{Changes: list, Token: []byte(strconv.Itoa(at)), Position: fmt.Sprint("at ", at)}); err != nil {
			return err
		}
	}
}

func (s *source) Status(context.Context) (changefeed.SourceStatus, error) {
	return changefeed.SourceStatus{LagBytes: 7, Server: "a list", Warning: "much"}, nil
}

func (s *source) Forget(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgot++
	return nil
}

func (s *source) Close() error {
	s.closed = true
	return nil
}

// tokens is a place that can fail.
type tokens struct {
	mu    sync.Mutex
	kept  map[string]string
	saves int
	fail  func(save int) error
}

func (k *tokens) Load(_ context.Context, key string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t, ok := k.kept[key]; ok {
		return []byte(t), nil
	}
	return nil, nil
}

func (k *tokens) Save(_ context.Context, key string, token []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.saves++
	if k.fail != nil {
		if err := k.fail(k.saves); err != nil {
			return err
		}
	}
	if k.kept == nil {
		k.kept = make(map[string]string)
	}
	k.kept[key] = string(token)
	return nil
}

func (k *tokens) Delete(_ context.Context, key string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.kept, key)
	return nil
}

// bus is a hub in memory whose publishes can fail.
type bus struct {
	*promethean.Hub
	mu     sync.Mutex
	calls  int
	before func(call int, events []event.Event) error
	after  func(call int) error
}

func (b *bus) Publish(ctx context.Context, events ...event.Event) ([]promethean.Receipt, error) {
	b.mu.Lock()
	b.calls++
	call, before, after := b.calls, b.before, b.after
	b.mu.Unlock()
	if before != nil {
		if err := before(call, events); err != nil {
			return nil, err
		}
	}
	got, err := b.Hub.Publish(ctx, events...)
	if err == nil && after != nil {
		err = after(call)
	}
	return got, err
}

const topic = "things.changed"

// world is a feed and what is around it, in virtual time.
type world struct {
	t    *testing.T
	src  *source
	keep *tokens
	bus  *bus
	feed *changefeed.Feed
}

func in(t *testing.T, n int, do func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hub, err := promethean.OpenMemory(promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		w := &world{t: t, src: newSource(n), keep: &tokens{}, bus: &bus{Hub: hub}}
		defer func() {
			w.stop()
			if err := hub.Close(); err != nil {
				t.Error(err)
			}
		}()
		do(w)
	})
}

func (w *world) start(o changefeed.Options) {
	w.t.Helper()
	o.Topic, o.Tokens = topic, w.keep
	var err error
	if w.feed, err = changefeed.Start(w.bus, w.src, o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) stop() {
	if w.feed != nil {
		if err := w.feed.Close(); err != nil {
			w.t.Error(err)
		}
		w.feed = nil
	}
}

// stored are the events of the topic.
func (w *world) stored() (list []event.Event) {
	w.t.Helper()
	for e, err := range w.bus.Read(context.Background(), store.Query{Topic: topic}) {
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			w.t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// whole waits until all changes are stored, and wants each once and in order.
func (w *world) whole() {
	w.t.Helper()
	for range 1000 {
		synctest.Wait()
		if s := w.feed.Status(); s.Position == fmt.Sprint("at ", len(w.src.changes)) {
			break
		}
		time.Sleep(time.Second)
	}
	got := w.stored()
	if len(got) != len(w.src.changes) {
		w.t.Fatalf("%d events of %d changes; %+v", len(got), len(w.src.changes), w.feed.Status())
	}
	for i, c := range w.src.changes {
		want := string(c.Doc)
		if c.Doc == nil {
			want = "null"
		}
		if e := got[i]; e.ID != c.ID || e.Key != c.Key || string(e.Payload) != want || e.TS != c.At.UnixMilli() {
			w.t.Fatalf("event %d is %+v, the change %+v", i+1, e, c)
		}
	}
}

func TestFeed(t *testing.T) {
	in(t, 20, func(w *world) {
		w.start(changefeed.Options{})
		w.whole()
		w.src.add(5)
		w.whole()
		s := w.feed.Status()
		if s.State != changefeed.Streaming || s.Published != 25 || s.Duplicates != 0 || s.LagBytes != 7 || s.Server != "a list" || s.Warning != "much" || s.Name != topic || s.Error != "" {
			t.Errorf("status %+v", s)
		}
		if v, _ := w.stored()[0].Headers.Get("x-mongo-op"); v != "update" {
			t.Errorf("header %q", v)
		}
		w.stop()
		if !w.src.closed {
			t.Error("the source is not closed")
		}
		if w.keep.kept[changefeed.DefaultKey] != "25" {
			t.Errorf("places %v", w.keep.kept)
		}
	})
}

// The feed is stopped by a failure at each step once: before a publish, after it,
// and when a place is saved.
func TestCrashes(t *testing.T) {
	boom := errors.New("boom")
	for step := 1; step <= 8; step++ {
		for name, harm := range map[string]func(w *world){
			"before publish": func(w *world) {
				w.bus.before = func(call int, _ []event.Event) error {
					if call == step {
						return fmt.Errorf("%w: %w", store.ErrUnavailable, boom)
					}
					return nil
				}
			},
			"after publish": func(w *world) {
				w.bus.after = func(call int) error {
					if call == step {
						return fmt.Errorf("%w: %w", store.ErrUnavailable, boom)
					}
					return nil
				}
			},
			"save": func(w *world) {
				w.keep.fail = func(n int) error {
					if n == step {
						return boom
					}
					return nil
				}
			},
		} {
			t.Run(fmt.Sprint(name, " ", step), func(t *testing.T) {
				in(t, 24, func(w *world) {
					harm(w)
					w.start(changefeed.Options{})
					w.whole()
					if s := w.feed.Status(); s.Failures != 1 || s.Published+s.Duplicates < 24 {
						t.Errorf("status %+v", s)
					}
				})
			})
		}
	}
}

// A change that is refused stops the feed until it is taken; it says which one.
func TestRefused(t *testing.T) {
	in(t, 10, func(w *world) {
		refuse := true
		w.bus.before = func(_ int, events []event.Event) error {
			for i := range events {
				if refuse && string(events[i].Payload) == `{"n":7}` {
					return fmt.Errorf("%w: seven", store.ErrInvalid)
				}
			}
			return nil
		}
		w.start(changefeed.Options{})
		synctest.Wait()
		time.Sleep(time.Minute)
		s := w.feed.Status()
		if s.State != changefeed.Waiting || !strings.Contains(s.Error, `"k3"`) || !strings.Contains(s.Error, "seven") {
			t.Errorf("status %+v", s)
		}
		if n := len(w.stored()); n != 6 {
			t.Errorf("%d events are stored", n)
		}
		if s.Failures > 15 {
			t.Errorf("%d tries in a minute", s.Failures)
		}
		if s.Lag < time.Minute {
			t.Errorf("a change waits for a minute, and the lag is %v", s.Lag)
		}
		w.bus.mu.Lock()
		refuse = false
		w.bus.mu.Unlock()
		w.whole()
		if s := w.feed.Status(); s.State != changefeed.Streaming || s.Error != "" {
			t.Errorf("status %+v", s)
		}
		at := w.feed.Status().Lag
		time.Sleep(time.Minute)
		if now := w.feed.Status().Lag; now != at {
			t.Errorf("with nothing to publish the lag goes from %v to %v", at, now)
		}
	})
}

func TestSkipRefused(t *testing.T) {
	in(t, 10, func(w *world) {
		w.bus.before = func(_ int, events []event.Event) error {
			for i := range events {
				if string(events[i].Payload) == `{"n":7}` {
					return fmt.Errorf("%w: seven", store.ErrInvalid)
				}
			}
			return nil
		}
		w.start(changefeed.Options{SkipRefused: true, Map: func(c *changefeed.Change) (json.RawMessage, error) {
			if string(c.Doc) == `{"n":2}` {
				return nil, errors.New("two")
			}
			return c.Doc, nil
		}})
		synctest.Wait()
		if n, s := len(w.stored()), w.feed.Status(); n != 8 || s.Refused != 2 || s.State != changefeed.Streaming {
			t.Errorf("%d events; status %+v", n, s)
		}
	})
}

func TestFilterMapAndSize(t *testing.T) {
	in(t, 10, func(w *world) {
		w.start(changefeed.Options{
			MaxPayload: 20,
			Filter:     func(c *changefeed.Change) (bool, error) { return string(c.Doc) != `{"n":1}`, nil },
			Map: func(c *changefeed.Change) (json.RawMessage, error) {
				if string(c.Doc) == `{"n":3}` {
					return json.RawMessage(`"` + strings.Repeat("x", 30) + `"`), nil
				}
				return json.RawMessage(`[` + string(c.Doc) + `]`), nil
			},
		})
		synctest.Wait()
		got := w.stored()
		if len(got) != 9 || string(got[0].Payload) != `[{"n":2}]` || string(got[1].Payload) != `{"_oversized":32}` || string(got[3].Payload) != "null" {
			t.Fatalf("%v", got)
		}
		if v, _ := got[1].Headers.Get("x-change-oversized"); v != "32" {
			t.Errorf("headers %v", got[1].Headers)
		}
		if s := w.feed.Status(); s.Filtered != 1 || s.Oversized != 1 {
			t.Errorf("status %+v", s)
		}
	})
}

// A map that fails, or gives nothing, is an error that names the change.
func TestBadMap(t *testing.T) {
	for _, give := range []func(*changefeed.Change) (json.RawMessage, error){
		func(*changefeed.Change) (json.RawMessage, error) { return nil, errors.New("cannot") },
		func(*changefeed.Change) (json.RawMessage, error) { return json.RawMessage(" "), nil },
	} {
		in(t, 1, func(w *world) {
			w.start(changefeed.Options{Map: give})
			synctest.Wait()
			if s := w.feed.Status(); s.State != changefeed.Waiting || !strings.Contains(s.Error, `map of update "k1"`) {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// Lost history stops the feed for good, until somebody asks it to begin anew.
func TestHistoryLost(t *testing.T) {
	in(t, 9, func(w *world) {
		w.start(changefeed.Options{})
		w.whole()
		w.stop()
		w.src.fail(fmt.Errorf("oplog: %w", changefeed.ErrHistoryLost))
		w.start(changefeed.Options{})
		time.Sleep(time.Hour)
		if s := w.feed.Status(); s.State != changefeed.Failed || s.HistoryLost != 1 || s.Failures != 1 || !strings.Contains(s.Error, "oplog") {
			t.Fatalf("status %+v", s)
		}
		w.feed.Resync()
		w.whole()
		if w.src.forgot != 1 || w.src.tokens[2] != "" {
			t.Errorf("forgot %d, tokens %q", w.src.forgot, w.src.tokens)
		}
		if s := w.feed.Status(); s.State != changefeed.Streaming || s.Duplicates != 9 {
			t.Errorf("status %+v", s)
		}
	})
}

func TestResnapshot(t *testing.T) {
	in(t, 9, func(w *world) {
		w.keep.kept = map[string]string{changefeed.DefaultKey: "4"}
		w.src.fail(changefeed.ErrHistoryLost)
		w.start(changefeed.Options{Resnapshot: true})
		w.whole()
		if s := w.feed.Status(); s.HistoryLost != 1 || w.src.forgot != 1 || s.State != changefeed.Streaming {
			t.Errorf("forgot %d, status %+v", w.src.forgot, s)
		}
	})
}

// Resync while events flow, and twice at once.
func TestResyncWhileStreaming(t *testing.T) {
	in(t, 9, func(w *world) {
		w.start(changefeed.Options{})
		w.whole()
		w.feed.Resync()
		w.feed.Resync()
		time.Sleep(time.Second)
		w.whole()
		if s := w.feed.Status(); w.src.forgot == 0 || s.Duplicates == 0 || s.State != changefeed.Streaming {
			t.Errorf("forgot %d, status %+v", w.src.forgot, s)
		}
	})
}

// Whatever else goes wrong is tried again, with pauses that grow.
func TestBackoff(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		state changefeed.State
	}{
		"away":    {errors.New("connection refused"), changefeed.Waiting},
		"gone":    {changefeed.ErrGone, changefeed.Gone},
		"refused": {changefeed.ErrRefused, changefeed.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, 3, func(w *world) {
				for range 12 {
					w.src.fail(c.err)
				}
				w.start(changefeed.Options{})
				began := time.Now()
				time.Sleep(50 * time.Second)
				synctest.Wait()
				if s := w.feed.Status(); s.State != c.state || s.Failures < 2 || s.Failures > 10 {
					t.Errorf("status %+v", s)
				}
				w.whole()
				if took := time.Since(began); took < time.Minute {
					t.Errorf("12 failures took %v", took)
				}
			})
		})
	}
}

func TestBadOptions(t *testing.T) {
	for name, o := range map[string]changefeed.Options{
		"no topic":  {Tokens: &tokens{}},
		"bad topic": {Topic: "A b", Tokens: &tokens{}},
		"no tokens": {Topic: topic},
		"negative":  {Topic: topic, Tokens: &tokens{}, MaxPayload: -1},
	} {
		if _, err := changefeed.Start(nil, nil, o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
