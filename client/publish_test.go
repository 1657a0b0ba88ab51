package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"promethean/client"
	"promethean/event"
	"promethean/gateway"
	"promethean/internal/netfault"
)

func TestPublish(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.connect(client.Options{})
	ctx := limit(t)
	id, cause := event.NewID(), event.NewID()
	at := time.UnixMilli(1_700_000_000_123)
	r, err := c.Publish(ctx, "orders.placed", map[string]int{"n": 1}, client.Key("k\"é\n"), client.ID(id), client.At(at), client.Header("x-b", "2"),
		client.Header("x-a", "1"), client.Tags("#a", "#b"), client.CausedBy(cause), client.SID("s"), client.Partition(0), client.ExpectSeq(0))
	if err != nil {
		t.Fatal(err)
	}
	if want := (client.Receipt{ID: id, Topic: "orders.placed", Seq: 1}); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
	if r, err = c.Publish(ctx, "orders.placed", 1, client.ID(id)); err != nil || !r.Duplicate || r.Seq != 1 {
		t.Errorf("the same id again: %+v, %v", r, err)
	}
	raw := json.RawMessage(`{"html":"<&>","big":123456789012345678901234567890,"deep":` + strings.Repeat("[", 990) + strings.Repeat("]", 990) + `}`)
	if r, err = c.Publish(ctx, "orders.placed", raw); err != nil || r.Seq != 2 || r.ID.IsZero() {
		t.Errorf("%+v, %v", r, err)
	}
	list := s.stored("orders.placed")
	if len(list) != 2 {
		t.Fatalf("%d events", len(list))
	}
	e := list[0]
	if e.Key != "k\"é\n" || e.TS != at.UnixMilli() || e.SID != "s" || fmt.Sprint(e.Tags) != "[#a #b]" || e.CausedBy[0] != cause.String() ||
		fmt.Sprint(e.Headers) != "[{x-a 1} {x-b 2}]" || string(e.Payload) != `{"n":1}` {
		t.Errorf("%+v", e)
	}
	if !bytes.Equal(list[1].Payload, raw) {
		t.Errorf("%s, want %s", list[1].Payload, raw)
	}
}

func TestPublishEvents(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.connect(client.Options{})
	ctx := limit(t)
	if got, err := c.PublishEvents(ctx, nil); got != nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	events := []event.Event{
		{Topic: "a", Payload: []byte(`1`), Seq: 77}, event.New("b", []byte(` { "x" : 2 } `)), {Topic: "a", Payload: []byte(`null`), Key: "k"},
	}
	got, err := c.PublishEvents(ctx, events)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Seq != 1 || got[1].Seq != 1 || got[2].Seq != 2 || got[0].Topic != "a" || got[1].Topic != "b" || got[1].ID != events[1].ID || got[0].ID.IsZero() {
		t.Errorf("%+v", got)
	}
	if !events[0].ID.IsZero() {
		t.Error("the caller's events were changed")
	}
	events = []event.Event{event.New("b", []byte(`3`)), {Topic: "b", ID: events[1].ID, Payload: []byte(`4`)}}
	if got, err = c.PublishEvents(ctx, events); err != nil || got[0].Duplicate || !got[1].Duplicate || got[1].Seq != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	// All or nothing, and the row is named.
	_, err = c.PublishEvents(ctx, []event.Event{event.New("c", []byte(`1`)), event.New("C", []byte(`1`))})
	wantCode(t, "invalid_topic", err)
	var e *client.Error
	if errors.As(err, &e); e == nil || e.Index == nil || *e.Index != 1 {
		t.Errorf("%v does not name the row", err)
	}
	if n := len(s.stored("c")); n != 0 {
		t.Errorf("%d events of a refused batch", n)
	}
}

func TestPublishRefused(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.connect(client.Options{})
	ctx := limit(t)
	for _, x := range []struct {
		code, topic string
		payload     any
		opts        []client.PublishOption
	}{
		{"invalid_topic", "No Topic", 1, nil},
		{"invalid_topic", "system.x", 1, nil},
		{"invalid_header", "a", 1, []client.PublishOption{client.Header("Bad", "1")}},
		{"seq_conflict", "a", 1, []client.PublishOption{client.ExpectSeq(7)}},
		{"invalid_argument", "a", 1, []client.PublishOption{client.Partition(9)}},
		{"payload_too_large", "a", strings.Repeat("x", 2<<20), nil},
	} {
		_, err := c.Publish(ctx, x.topic, x.payload, x.opts...)
		wantCode(t, x.code, err)
	}
	// What need not be sent.
	if _, err := c.Publish(ctx, "a", json.RawMessage(`{`)); !errors.Is(err, event.ErrBadJSON) {
		t.Errorf("%v", err)
	}
	if _, err := c.Publish(ctx, "a", func() {}); err == nil {
		t.Error("a function is no payload")
	}
	if _, err := c.Publish(ctx, "a", 1, client.Key("\xff")); !errors.Is(err, event.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
	if n := len(s.stored("a")); n != 0 {
		t.Errorf("%d events", n)
	}
}

// A frame over the hub's limit ends the connection. Only its publish fails.
func TestPublishTooLargeFrame(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.connect(client.Options{MinBackoff: time.Millisecond})
	ctx := limit(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if _, err := c.Publish(ctx, "a", i); err != nil {
				t.Errorf("one beside it: %v", err)
			}
		})
	}
	_, err := c.Publish(ctx, "a", strings.Repeat("x", 10<<20))
	wantCode(t, "payload_too_large", err)
	all.Wait()
	if n := len(s.stored("a")); n != 8 {
		t.Errorf("%d events, want 8", n)
	}
}

// Many goroutines share the connection, and nobody gets another one's answer.
func TestPublishConcurrently(t *testing.T) {
	s := serve(t, gateway.Options{})
	var dials atomic.Int32
	c := s.connect(client.Options{MaxPending: 32, HTTP: counting(&dials)})
	ctx := limit(t)
	var all sync.WaitGroup
	for who := range 64 {
		all.Go(func() {
			for n := range 20 {
				id := event.NewID()
				r, err := c.Publish(ctx, fmt.Sprintf("t%d", who%4), [2]int{who, n}, client.ID(id), client.Key(fmt.Sprint(who)))
				if err != nil || r.ID != id || r.Duplicate {
					t.Errorf("%+v, %v", r, err)
					return
				}
			}
		})
	}
	all.Wait()
	for topic := range 4 {
		next := map[string]int{}
		for _, e := range s.stored(fmt.Sprintf("t%d", topic)) {
			if want := fmt.Sprintf("[%s,%d]", e.Key, next[e.Key]); string(e.Payload) != want {
				t.Fatalf("%s, want %s: the order of one goroutine is not kept", e.Payload, want)
			}
			next[e.Key]++
		}
		if len(next) != 16 {
			t.Errorf("%d publishers in topic %d", len(next), topic)
		}
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// Every answer is lost once, and every event is stored once.
func TestPublishLosesAnswers(t *testing.T) {
	for _, fate := range []netfault.Fate{netfault.LoseResponse, netfault.LoseRequest} {
		s := faulty(t, gateway.Options{})
		lost := 0
		s.proxy.Judge(func(chunk []byte) netfault.Fate {
			if bytes.HasPrefix(chunk, []byte("GET /ws")) || lost == 20 {
				return netfault.Pass
			}
			lost++
			return fate
		})
		c := s.connect(client.Options{MinBackoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond})
		ctx := limit(t)
		for i := range 30 {
			if _, err := c.Publish(ctx, "a", i); err != nil {
				t.Fatal(err)
			}
		}
		list := s.stored("a")
		for i, e := range list {
			if string(e.Payload) != fmt.Sprint(i) {
				t.Errorf("event %d is %s", i, e.Payload)
			}
		}
		if len(list) != 30 || lost != 20 {
			t.Errorf("%d events, %d lost", len(list), lost)
		}
	}
}

// A publish with an expectation whose answer was lost: the retry finds its own
// event, which is no conflict.
func TestExpectSeqLosesAnswer(t *testing.T) {
	s := faulty(t, gateway.Options{})
	c := s.connect(client.Options{MinBackoff: time.Millisecond})
	ctx := limit(t)
	if _, err := c.Publish(ctx, "a", 0, client.ExpectSeq(0)); err != nil {
		t.Fatal(err)
	}
	var lost atomic.Bool
	s.proxy.Judge(func(chunk []byte) netfault.Fate {
		if !bytes.HasPrefix(chunk, []byte("GET /ws")) && lost.CompareAndSwap(false, true) {
			return netfault.LoseResponse
		}
		return netfault.Pass
	})
	r, err := c.Publish(ctx, "a", 1, client.ExpectSeq(1))
	if err != nil || r.Seq != 2 || !r.Duplicate || !lost.Load() {
		t.Errorf("%+v, %v, lost %v", r, err, lost.Load())
	}
	if _, err = c.Publish(ctx, "a", 2, client.ExpectSeq(1)); err == nil {
		t.Error("a conflict was not noticed")
	}
	wantCode(t, "seq_conflict", err)
}

// An overloaded hub is asked again until it takes the event.
func TestPublishRateLimited(t *testing.T) {
	s := serve(t, gateway.Options{TopicRate: map[string]float64{"a": 20}})
	c := s.connect(client.Options{MinBackoff: time.Millisecond})
	ctx := limit(t)
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if _, err := c.Publish(ctx, "a", i); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(s.stored("a")); n != 40 {
		t.Errorf("%d events", n)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	var err error
	for err == nil {
		_, err = c.Publish(short, "a", 1)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// A hub that is not there yet is waited for; when there is no more time, the
// error says what is wrong.
func TestPublishWaitsForTheHub(t *testing.T) {
	s := faulty(t, gateway.Options{})
	s.proxy.Down(true)
	c := s.connect(client.Options{MinBackoff: time.Millisecond})
	short, cancel := context.WithTimeout(limit(t), 50*time.Millisecond)
	defer cancel()
	_, err := c.Publish(short, "a", 1)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no connection to") {
		t.Errorf("%v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.Publish(limit(t), "a", 2)
		done <- err
	}()
	s.proxy.Down(false)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if list := s.stored("a"); len(list) != 1 || string(list[0].Payload) != "2" {
		t.Errorf("%v", list)
	}
}

func TestNotAHub(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c := connect(t, addr, client.Options{MinBackoff: time.Millisecond})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := c.Publish(ctx, "a", 1); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
	// A server that is no hub is told from a hub that is not there.
	s := serve(t, gateway.Options{})
	c = connect(t, "http://"+s.addr+"/elsewhere", client.Options{})
	_, err = c.Publish(limit(t), "a", 1)
	wantCode(t, "not_found", err)
}

func TestClosedClient(t *testing.T) {
	s := serve(t, gateway.Options{})
	c, err := client.New(s.addr, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := limit(t)
	if _, err := c.Publish(ctx, "a", 1); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Publish(ctx, "a", 1); !errors.Is(err, client.ErrClosed) {
		t.Errorf("%v", err)
	}
	if _, err := c.Subscribe(ctx, "a", "g", new(recorder).handle); !errors.Is(err, client.ErrClosed) {
		t.Errorf("%v", err)
	}
	unused, err := client.New(s.addr, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := unused.Close(ctx); err != nil {
		t.Error(err)
	}
}
