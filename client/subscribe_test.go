package client_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"promethean/client"
	"promethean/event"
	"promethean/gateway"
)

func TestSubscribe(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a", 300)
	c := s.connect(client.Options{})
	r := &recorder{fail: func(e event.Event, d *client.Delivery) error {
		if d.Group != "g" || d.Attempt != 1 || d.MaxAttempts != 5 || d.Lease == 0 || time.Until(d.Deadline) < 20*time.Second || e.Topic != "a" {
			t.Errorf("%+v of %+v", d, e)
		}
		return nil
	}}
	sub, err := c.Subscribe(limit(t), "a", "g", r.handle, client.FromEarliest())
	if err != nil {
		t.Fatal(err)
	}
	s.settled("a", "g", 300)
	s.publish("a", 10)
	s.settled("a", "g", 310)
	if err := sub.Stop(limit(t)); err != nil {
		t.Error(err)
	}
	<-sub.Done()
	if sub.Err() != nil || len(r.seen) != 310 || len(r.got) != 310 {
		t.Errorf("%v, %d events, %d deliveries", sub.Err(), len(r.seen), len(r.got))
	}
	// The whole event comes.
	got := map[event.ID]string{}
	for _, e := range r.got {
		got[e.ID] = fmt.Sprintf("%+v", e)
	}
	for _, want := range s.stored("a") {
		if text := fmt.Sprintf("%+v", want); got[want.ID] != text {
			t.Fatalf("%s, want %s", got[want.ID], text)
		}
	}
}

// The options reach the hub.
func TestSubscribeOptions(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a", 4)
	c := s.connect(client.Options{})
	events := s.stored("a")
	for name, from := range map[string]client.SubscribeOption{
		"seq": client.AfterSeq(2), "id": client.AfterID(events[1].ID), "time": client.FromTime(time.UnixMilli(0)), "latest": client.FromLatest(),
	} {
		r := new(recorder)
		if _, err := c.Subscribe(limit(t), "a", name, r.handle, from, client.Where(`payload != 3`), client.Ordered(client.ByTopic), client.OnDead(client.DeadKey),
			client.MaxAttempts(3), client.AckTimeout(time.Minute), client.Member("me"), client.BatchSize(7), client.MaxInFlight(5), client.Workers(2)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s.settled("a", name, 4)
		if want := map[string]int{"seq": 1, "id": 1, "time": 3, "latest": 0}[name]; r.count() != want {
			t.Errorf("%s: %d events, want %d", name, r.count(), want)
		}
		info, err := s.hub.Engine().Info(context.Background(), "a", name)
		if err != nil {
			t.Fatal(err)
		}
		if g := info.Settings; g.Ordering != "topic" || g.DeadLetter != "key" || g.MaxAttempts != 3 || g.AckTimeout != time.Minute || g.Filter != `payload != 3` {
			t.Errorf("%s: %+v", name, g)
		}
	}
	if _, err := c.Subscribe(limit(t), "a", "x", new(recorder).handle, client.Workers(-1)); !errors.Is(err, event.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
	if _, err := c.Subscribe(limit(t), "a", "x", nil); !errors.Is(err, event.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
}

func TestSubscribeRefused(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.connect(client.Options{})
	ctx := limit(t)
	h := new(recorder).handle
	if _, err := c.Subscribe(ctx, "a", "g", h, client.MaxAttempts(3)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Subscribe(ctx, "a", "g", h)
	wantCode(t, "already_subscribed", err)
	_, err = s.connect(client.Options{}).Subscribe(ctx, "a", "g", h, client.MaxAttempts(4))
	wantCode(t, "group_conflict", err)
	_, err = c.Subscribe(ctx, "A", "g", h)
	wantCode(t, "invalid_topic", err)
	_, err = c.Subscribe(ctx, "b", "system.x", h)
	wantCode(t, "invalid_argument", err)
	_, err = c.Subscribe(ctx, "b", "g", h, client.Where("1 +"))
	wantCode(t, "invalid_argument", err)
	// A refused one leaves nothing behind.
	if _, err = c.Subscribe(ctx, "b", "g", h); err != nil {
		t.Error(err)
	}
}

// Failures of every kind come again, or go to the dead letters.
func TestHandlerFails(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.connect(client.Options{})
	ctx := limit(t)
	for _, text := range []string{`"error"`, `"retry"`, `"panic"`, `"exit"`, `"dead"`} {
		if _, err := c.Publish(ctx, "a", text, client.Key(text)); err != nil {
			t.Fatal(err)
		}
	}
	var retried atomic.Int64
	r := &recorder{fail: func(e event.Event, d *client.Delivery) error {
		text := strings.Trim(string(e.Payload), `"\`)
		if d.Attempt > 1 {
			if text == "retry" {
				retried.Store(time.Now().UnixMilli() - retried.Load())
			}
			return nil
		}
		switch text {
		case "retry":
			retried.Store(time.Now().UnixMilli())
			return fmt.Errorf("wrapped: %w", client.Retry(300*time.Millisecond, errors.New("later")))
		case "panic":
			panic("oh")
		case "exit":
			runtime.Goexit()
		case "dead":
			return client.Dead(errors.New("never \xff"))
		}
		return errors.New("no")
	}}
	if _, err := c.Subscribe(ctx, "a", "g", r.handle, client.FromEarliest(), client.Workers(1)); err != nil {
		t.Fatal(err)
	}
	s.settled("a", "g", 5)
	if r.count() != 9 {
		t.Errorf("%d deliveries, want 9: two of each, and one of the dead", r.count())
	}
	if ms := retried.Load(); ms < 299 {
		t.Errorf("came again after %d ms, not 300", ms)
	}
	dead := s.stored("dlq.a")
	if len(dead) != 1 || !strings.Contains(string(dead[0].Payload), "never \uFFFD") {
		t.Errorf("%+v", dead)
	}
}

// Events of one key come one after the other, those of others at the same time.
func TestOrder(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.connect(client.Options{})
	ctx := limit(t)
	const keys, each = 5, 20
	var events []event.Event
	for n := range each {
		for k := range keys {
			e := event.New("a", fmt.Appendf(nil, "%d", n))
			e.Key = fmt.Sprint(k)
			events = append(events, e)
		}
	}
	if _, err := c.PublishEvents(ctx, events); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	next, busy, most, total := map[string]int{}, map[string]bool{}, 0, 0
	together := make(chan struct{})
	_, err := c.Subscribe(ctx, "a", "g", func(ctx context.Context, e event.Event, _ *client.Delivery) error {
		mu.Lock()
		if busy[e.Key] || string(e.Payload) != fmt.Sprint(next[e.Key]) {
			t.Errorf("key %s: %s while %d is next, at work: %v", e.Key, e.Payload, next[e.Key], busy[e.Key])
		}
		busy[e.Key] = true
		if most = max(most, len(busy)); most == keys && total == 0 {
			total = -1
			close(together)
		}
		mu.Unlock()
		<-together // only if all keys run at a time does anybody go on
		mu.Lock()
		defer mu.Unlock()
		delete(busy, e.Key)
		next[e.Key]++
		return nil
	}, client.FromEarliest())
	if err != nil {
		t.Fatal(err)
	}
	s.settled("a", "g", keys*each)
}

func TestWorkers(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a", 50)
	c := s.connect(client.Options{})
	var now, most atomic.Int32
	_, err := c.Subscribe(limit(t), "a", "g", func(context.Context, event.Event, *client.Delivery) error {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		runtime.Gosched()
		now.Add(-1)
		return nil
	}, client.FromEarliest(), client.Workers(3))
	if err != nil {
		t.Fatal(err)
	}
	s.settled("a", "g", 50)
	if m := most.Load(); m > 3 {
		t.Errorf("%d handlers at a time", m)
	}
}

func TestManualAck(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a", 4)
	c := s.connect(client.Options{})
	ctx := limit(t)
	type one struct {
		e event.Event
		d *client.Delivery
	}
	got := make(chan one, 10)
	sub, err := c.Subscribe(ctx, "a", "g", func(_ context.Context, e event.Event, d *client.Delivery) error {
		got <- one{e, d}
		return nil
	}, client.FromEarliest(), client.ManualAck(), client.Ordered(client.ByTopic))
	if err != nil {
		t.Fatal(err)
	}
	x := <-got
	if err := x.d.Extend(ctx, time.Minute); err != nil {
		t.Error(err)
	}
	if err := x.d.Ack(ctx); err != nil {
		t.Error(err)
	}
	if err := x.d.Ack(ctx); err == nil || errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("a second ack: %v", err)
	}
	x = <-got
	if err := x.d.Nack(ctx, client.Retry(0, errors.New("again"))); err != nil {
		t.Error(err)
	}
	x = <-got
	if x.e.Seq != 2 || x.d.Attempt != 2 {
		t.Errorf("seq %d, attempt %d", x.e.Seq, x.d.Attempt)
	}
	for range 2 {
		if results, err := c.Ack(ctx, "a", "g", x.e.ID); err != nil || results[0] != (client.Result{ID: x.e.ID}) {
			t.Errorf("%v, %v", results, err)
		}
	}
	x = <-got
	if results, err := c.ModAck(ctx, "a", "g", time.Minute, x.e.ID, event.NewID()); err != nil || results[0].Err != nil {
		t.Errorf("%v, %v", results, err)
	} else {
		wantCode(t, "unknown_id", results[1].Err)
	}
	if results, err := c.Nack(ctx, "a", "g", "no", x.e.ID); err != nil || results[0].Err != nil {
		t.Errorf("%v, %v", results, err)
	}
	x = <-got
	if x.e.Seq != 3 || x.d.Attempt != 2 {
		t.Errorf("seq %d, attempt %d", x.e.Seq, x.d.Attempt)
	}
	if err := sub.Stop(ctx); err != nil {
		t.Error(err)
	}
	if err := x.d.Ack(ctx); !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("%v", err)
	}
	_, err = c.Ack(ctx, "b", "g", x.e.ID)
	wantCode(t, "not_subscribed", err)
}

// Stop waits for handlers at work; what waits for a handler goes back as if it
// had not come.
func TestStop(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a", 20)
	c := s.connect(client.Options{})
	ctx := limit(t)
	begun, end := make(chan struct{}, 100), make(chan struct{})
	first, err := c.Subscribe(ctx, "a", "g", func(context.Context, event.Event, *client.Delivery) error {
		begun <- struct{}{}
		<-end
		return nil
	}, client.FromEarliest(), client.Workers(2))
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- first.Stop(ctx) }()
	select {
	case err := <-stopped:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(end)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if n := len(begun); n != 0 {
		t.Errorf("%d more handlers after Stop", n)
	}
	r := &recorder{fail: func(_ event.Event, d *client.Delivery) error {
		if d.Attempt != 1 {
			t.Errorf("attempt %d", d.Attempt)
		}
		return nil
	}}
	if _, err := c.Subscribe(ctx, "a", "g", r.handle); err != nil {
		t.Fatal(err)
	}
	s.settled("a", "g", 20)
	if r.count() != 18 {
		t.Errorf("%d events, want those 18 that had no handler", r.count())
	}

	// A handler that does not end in time is left behind, and told.
	s.publish("b", 1)
	left, told := make(chan struct{}), make(chan error, 1)
	slow, err := c.Subscribe(ctx, "b", "g", func(ctx context.Context, _ event.Event, _ *client.Delivery) error {
		close(left)
		<-ctx.Done()
		told <- ctx.Err()
		return ctx.Err()
	}, client.FromEarliest())
	if err != nil {
		t.Fatal(err)
	}
	<-left
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := slow.Stop(short); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "at work") {
		t.Errorf("%v", err)
	}
	<-told
}

func TestPause(t *testing.T) {
	s := faulty(t, gateway.Options{})
	c := s.connect(client.Options{MinBackoff: time.Millisecond})
	ctx := limit(t)
	r := new(recorder)
	sub, err := c.Subscribe(ctx, "a", "g", r.handle)
	if err != nil {
		t.Fatal(err)
	}
	sub.Pause()
	sub.Pause()
	if _, err := c.Publish(ctx, "a", 1); err != nil { // the hub has PAUSE before it
		t.Fatal(err)
	}
	// It stays paused over a lost connection.
	s.proxy.Down(true)
	s.proxy.Down(false)
	for i := range 3 {
		if _, err := c.Publish(ctx, "a", i); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.count(); n != 0 {
		t.Errorf("%d events came while it was paused", n)
	}
	sub.Resume()
	s.settled("a", "g", 4)
	sub.Pause()
	sub.Resume()
	if _, err := c.Publish(ctx, "a", 1); err != nil {
		t.Fatal(err)
	}
	s.settled("a", "g", 5)
}

func TestPatterns(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a.x", 3)
	c := s.connect(client.Options{})
	ctx := limit(t)
	r := new(recorder)
	sub, err := c.Subscribe(ctx, "a.*", "g", r.handle, client.Topics("b", "c.**"), client.FromEarliest(), client.MaxInFlight(2))
	if err != nil {
		t.Fatal(err)
	}
	s.publish("b", 2)
	s.publish("a.y", 4) // it is new
	s.publish("c.d.e", 5)
	s.publish("other", 5)
	for topic, n := range map[string]uint64{"a.x": 3, "a.y": 4, "b": 2, "c.d.e": 5} {
		s.settled(topic, "g", n)
	}
	if err := sub.Stop(ctx); err != nil {
		t.Error(err)
	}
	if r.count() != 14 || len(r.seen) != 14 {
		t.Errorf("%d deliveries of %d events, want 14", r.count(), len(r.seen))
	}
}
