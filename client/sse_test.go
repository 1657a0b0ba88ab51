package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"promethean/client"
	"promethean/event"
	"promethean/internal/netfault"
)

// soon are options with short pauses.
func soon(from client.Place) client.TailOptions {
	return client.TailOptions{From: from, MinWait: time.Millisecond, MaxWait: 10 * time.Millisecond}
}

// A tail over a network that fails gets every event once, in order.
func TestTailGoesOn(t *testing.T) {
	h := newAPI(t)
	proxy := netfault.New(t, strings.TrimPrefix(h.url, "http://"))
	c := apiClient(t, "http://"+proxy.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h.post("a", 1) // before the tail: not its concern
	const events = 300
	o := soon(client.Place{})
	lost := 0
	o.Lost = func(error) { lost++ }
	begun := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		<-begun
		for i := range events {
			if _, err := h.PostBatch(ctx, []event.Event{event.New("a", json.RawMessage(fmt.Sprint(i)))}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	// The end of the topic is found before the first connection, so what is
	// published while the tail cannot connect is not left out.
	proxy.Judge(func(chunk []byte) netfault.Fate {
		if strings.HasPrefix(string(chunk), "GET /subscribe") {
			select {
			case <-begun:
			default:
				close(begun)
			}
		}
		return netfault.Pass
	})
	n := 0
	for e, err := range c.Tail(ctx, "a", o) {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprint(n); string(e.Payload) != want || e.Seq != uint64(n+2) {
			t.Fatalf("event %d is %s with seq %d", n, e.Payload, e.Seq)
		}
		if n++; n%100 == 50 {
			proxy.Down(true)
			proxy.Down(false)
		}
		if n == events {
			break
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n != events || lost == 0 {
		t.Errorf("%d events, lost %d times", n, lost)
	}
}

func TestTailEnds(t *testing.T) {
	h := newAPI(t)
	h.post("a", 3)
	// With a refusal, also where it comes later.
	for _, err := range h.Tail(t.Context(), "A", client.TailOptions{}) {
		coded(t, err, "invalid_topic")
	}
	// With the context.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ends error
	for _, err := range h.Tail(ctx, "a", soon(client.Place{From: client.Earliest})) {
		if err != nil {
			ends = err
		}
		cancel()
	}
	if !errors.Is(ends, context.Canceled) {
		t.Errorf("ended with %v", ends)
	}
	// Where there is no hub, at once.
	c := apiClient(t, "http://127.0.0.1:1")
	for _, err := range c.Tail(t.Context(), "a", client.TailOptions{From: client.Place{From: client.Earliest}}) {
		if !client.Temporary(err) {
			t.Errorf("ended with %v", err)
		}
	}
}

// A hub that has gone is waited for, but not for ever.
func TestTailGivesUp(t *testing.T) {
	var calls atomic.Int64
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			_, _ = io.WriteString(w, ": open\n\nid: 1\nevent: event\ndata: {\"id\":\"0192f7c1-0000-7000-8000-000000000001\",\"seq\":4,\"topic\":\"a\",\"payload\":1}\n\n")
			return
		}
		if got := r.Header.Get("Last-Event-ID"); got != "4" {
			t.Errorf("goes on after %q", got)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	o := soon(client.Place{From: client.Earliest})
	o.GiveUp = 50 * time.Millisecond
	events := 0
	var ends error
	for _, err := range c.Tail(t.Context(), "a", o) {
		if ends = err; err == nil {
			events++
		}
	}
	var refused *client.Error
	if events != 1 || !errors.As(ends, &refused) || refused.Status != 503 || calls.Load() < 3 {
		t.Errorf("%d events, %d calls, ended with %v", events, calls.Load(), ends)
	}
	calls.Store(0)
	o.GiveUp = -1
	for _, err := range c.Tail(t.Context(), "a", o) {
		ends = err
	}
	if !errors.Is(ends, io.ErrUnexpectedEOF) || calls.Load() != 1 {
		t.Errorf("%d calls, ended with %v", calls.Load(), ends)
	}
}

// A connection over which nothing comes any more is lost, though nothing says
// so.
func TestTailNoticesSilence(t *testing.T) {
	h := newAPI(t)
	h.post("a", 2)
	proxy := netfault.New(t, strings.TrimPrefix(h.url, "http://"))
	c := apiClient(t, "http://"+proxy.Addr())
	o := soon(client.Place{From: client.Earliest})
	o.Silence = 50 * time.Millisecond
	lost := make(chan error, 100)
	o.Lost = func(err error) {
		select {
		case lost <- err:
		default:
		}
		proxy.Freeze(false)
	}
	n := 0
	for e, err := range c.Tail(t.Context(), "a", o) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if e.Seq != uint64(n) {
			t.Fatalf("seq %d after %d events", e.Seq, n)
		}
		if n == 2 {
			proxy.Freeze(true)
			h.post("a", 3)
		}
		if n == 5 {
			break
		}
	}
	if err := <-lost; !client.Temporary(err) {
		t.Errorf("lost by %v", err)
	}
}
