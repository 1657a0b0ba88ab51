package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"promethean/event"
	"promethean/gateway"
	"promethean/gateway/auth"
)

// secrets is a verifier that knows some.
type secrets map[string]*auth.Principal

func (v secrets) Verify(_ context.Context, token string) (*auth.Principal, error) {
	if p := v[token]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: nobody knows it", auth.ErrUnauthorized)
}

func principal(t *testing.T, expires time.Time, scopes ...string) *auth.Principal {
	t.Helper()
	p := &auth.Principal{Name: "test", Expires: expires}
	for _, s := range scopes {
		scope, err := auth.ParseScope(s)
		if err != nil {
			t.Fatal(err)
		}
		p.Scopes = append(p.Scopes, scope)
	}
	return p
}

func TestWSAuth(t *testing.T) {
	never := time.Time{}
	s := serve(t, gateway.Options{Verifier: secrets{
		"pub": principal(t, never, "publish:a.*"),
		"sub": principal(t, never, "subscribe:a.**", "publish:a.*"),
		"one": principal(t, never, "subscribe:a.x"),
	}})
	c := s.dial()
	for _, frame := range []string{
		`{"op":"PUBLISH","topic":"a.x","payload":1}`, `{"op":"SUBSCRIBE","topic":"a.x","group":"g"}`, `{"op":"UNSUBSCRIBE","topic":"a.x","group":"g"}`,
		`{"op":"ACK","topic":"a.x","group":"g","id":"0192f7c1-0000-7000-8000-000000000001"}`, `{"op":"NACK","topic":"a.x","group":"g","id":"0192f7c1-0000-7000-8000-000000000001"}`,
		`{"op":"MODACK","topic":"a.x","group":"g","id":"0192f7c1-0000-7000-8000-000000000001","extend_ms":1}`,
		`{"op":"PAUSE","topic":"a.x","group":"g"}`, `{"op":"RESUME","topic":"a.x","group":"g"}`, `{"op":"AUTH","token":"wrong"}`,
		`{"op":"HELP"}`, `{"op":"PUBLISH","events":[]}`, `{"op":"SUBSCRIBE","topic":"a.x","group":"g","opts":{"no":1}}`, `{"op":"ACK","topic":"a.x","group":"g"}`,
	} {
		c.fails("unauthorized", "", "%s", frame)
	}
	c.fails("bad_json", "", `{"op":`)
	c.ok(`{"op":"AUTH","token":"pub","corr":1}`)
	c.ok(`{"op":"PUBLISH","topic":"a.x","payload":1}`)
	c.ok(`{"op":"PUBLISH","topic":"a.x","payload":1}`)
	c.fails("forbidden", "", `{"op":"PUBLISH","topic":"b","payload":1}`)
	c.fails("forbidden", "", `{"op":"PUBLISH","events":[{"topic":"a.x","payload":1},{"topic":"b","payload":1}]}`)
	c.fails("forbidden", "", `{"op":"SUBSCRIBE","topic":"a.x","group":"g"}`)
	c.fails("forbidden", "", `{"op":"ACK","topic":"a.x","group":"g","id":"0192f7c1-0000-7000-8000-000000000001"}`)
	c.fails("forbidden", "", `{"op":"NACK","topic":"a.x","group":"g","id":"0192f7c1-0000-7000-8000-000000000001"}`)
	c.ok(`{"op":"AUTH","token":"sub"}`)
	c.ok(`{"op":"SUBSCRIBE","topic":"a.**","group":"g"}`)
	c.fails("forbidden", "", `{"op":"SUBSCRIBE","topic":"**","group":"g"}`)
	c.fails("forbidden", "", `{"op":"SUBSCRIBE","topic":"b","group":"g","opts":{"partitioned":true}}`)
	c.fails("invalid_argument", "", `{"op":"SUBSCRIBE","topic":"a.*","group":"h","opts":{"partitioned":true}}`)
	// A token that does not cover what there is, or is wrong, leaves the old one.
	c.fails("forbidden", "a.**", `{"op":"AUTH","token":"one"}`)
	c.fails("unauthorized", "", `{"op":"AUTH","token":"wrong"}`)
	c.ok(`{"op":"PUBLISH","topic":"a.x","payload":1}`)
	if got := c.ok(`{"op":"PUBLISH","topic":"a.x","payload":1}`); got["seq"] != 4.0 {
		t.Errorf("%v", got)
	}

	c = s.dial("Authorization", "Bearer sub")
	c.ok(`{"op":"PUBLISH","topic":"a.x","payload":1}`)
	s.want(401, "unauthorized", "GET", "/ws", "", "Authorization", "Bearer wrong", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")

	// With auth off AUTH is welcome all the same.
	serve(t, gateway.Options{}).dial().ok(`{"op":"AUTH","token":"any"}`)
}

// brief is a verifier whose secrets end soon after they are shown, but for the
// one that is named.
type brief struct{ *auth.Principal }

func (v brief) Verify(_ context.Context, token string) (*auth.Principal, error) {
	p := *v.Principal
	if token != "long" {
		p.Expires = time.Now().Add(50 * time.Millisecond)
	}
	return &p, nil
}

func TestWSTokenEnds(t *testing.T) {
	s := serve(t, gateway.Options{AuthWait: 50 * time.Millisecond, Verifier: brief{principal(t, time.Time{}, "subscribe:**", "publish:**")}})
	c := s.dial()
	if code, last := c.closed(); code != 4100 || last["code"] != "unauthorized" {
		t.Errorf("without a token: %d %v", code, last)
	}
	c = s.dial("Authorization", "Bearer long")
	c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
	c.ok(`{"op":"PUBLISH","topic":"t","payload":1}`)
	c.event()
	c.ok(`{"op":"AUTH","token":"short"}`)
	if code, last := c.closed(); code != 4100 || last["code"] != "unauthorized" {
		t.Errorf("token ended: %d %v", code, last)
	}
	c = s.dial("Authorization", "Bearer long")
	c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
	if e := c.event(); part(e, "ctx", "attempt") != 2.0 { // the lease of the other one came back
		t.Errorf("%v", e)
	}
}

func TestWSRate(t *testing.T) {
	s := serve(t, gateway.Options{ConnectionRate: 5, TopicRate: map[string]float64{"slow": 1}})
	c := s.dial()
	for range 5 {
		c.ok(`{"op":"AUTH","token":"x"}`)
	}
	if got := c.fails("rate_limited", "5", `{"op":"PUBLISH","topic":"a","payload":1,"corr":"r"}`); got["corr"] != "r" {
		t.Errorf("%v", got)
	}
	c = s.dial()
	c.ok(`{"op":"PUBLISH","topic":"slow","payload":1}`)
	c.fails("rate_limited", "slow", `{"op":"PUBLISH","topic":"slow","payload":1}`)
	c.ok(`{"op":"PUBLISH","topic":"other","payload":1}`)
}

func TestWSProtocolErrors(t *testing.T) {
	s := serve(t, gateway.Options{})
	for _, x := range []struct {
		name string
		code int
		last string
		data []byte
	}{
		{"too big", 1009, "payload_too_large", []byte{0x81, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4}},
		{"2^63", 1009, "payload_too_large", []byte{0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}},
		{"binary", 1003, "", appendFrame(nil, 0x82, []byte("x"))},
		{"bad UTF-8", 1007, "bad_json", appendFrame(nil, 0x81, []byte("{\"op\":\"\xff\"}"))},
		{"no mask", 1002, "", []byte{0x81, 0x01, 'x'}},
		{"reserved bit", 1002, "", appendFrame(nil, 0xc1, []byte("x"))},
		{"continuation of nothing", 1002, "", appendFrame(nil, 0x80, []byte("x"))},
		{"opcode", 1002, "", appendFrame(nil, 0x83, []byte("x"))},
		{"long ping", 1002, "", appendFrame(nil, 0x89, bytes.Repeat([]byte("x"), 126))},
		{"ping in fragments", 1002, "", appendFrame(nil, 0x09, []byte("x"))},
		{"close code", 1002, "", appendFrame(nil, 0x88, []byte{0, 1})},
		{"close of one byte", 1002, "", appendFrame(nil, 0x88, []byte{0})},
		{"close", 1000, "", appendFrame(nil, 0x88, []byte{3, 232, 'b', 'y', 'e'})},
	} {
		c := dialRaw(t, s.url)
		if _, err := c.nc.Write(x.data); err != nil {
			t.Fatal(err)
		}
		code, last := 0, ""
		for code == 0 {
			first, err := c.r.Peek(1)
			if err != nil {
				t.Fatalf("%s: %v", x.name, err)
			}
			isClose := first[0] == 0x88
			msg, err := c.next()
			if err != nil {
				t.Fatalf("%s: %v", x.name, err)
			}
			if isClose {
				code = int(msg[0])<<8 | int(msg[1])
			} else {
				last = string(msg)
			}
		}
		if code != x.code || (x.last == "") != (last == "") || !strings.Contains(last, x.last) {
			t.Errorf("%s: %d %s, want %d %s", x.name, code, last, x.code, x.last)
		}
		if _, err := c.r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection goes on: %v", x.name, err)
		}
	}
	// Fragments, with a ping between them, are one message.
	c := dialRaw(t, s.url)
	c.out = appendFrame(c.out, 0x01, []byte(`{"op":"PUBLISH","topic":"a"`))
	c.out = appendFrame(c.out, 0x89, []byte("are you there"))
	c.out = appendFrame(c.out, 0x00, []byte(`,"payload":`))
	c.out = appendFrame(c.out, 0x80, []byte(`"x"}`))
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	if pong, err := c.next(); err != nil || string(pong) != "are you there" {
		t.Errorf("%s %v", pong, err)
	}
	if f := c.frame(t); f["op"] != "OK" || f["seq"] != 1.0 {
		t.Errorf("%v", f)
	}
}

func TestWSHandshake(t *testing.T) {
	s := serve(t, gateway.Options{})
	good := []string{"Connection", "keep-alive, Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
	for _, x := range [][]string{
		{},
		{"Connection", "close"},
		{"Upgrade", "h2c"},
		{"Sec-WebSocket-Version", "8"},
		{"Sec-WebSocket-Key", "short"},
	} {
		headers := append(append([]string(nil), good...), x...)
		if len(x) == 0 {
			headers = nil
		}
		s.want(400, "invalid_argument", "GET", "/ws", "", headers...)
	}
	for _, x := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Host", "evil.example"}} {
		s.want(403, "forbidden", "GET", "/ws", "", append(append([]string(nil), good...), x...)...)
	}
}

func TestWSDrain(t *testing.T) {
	var open atomic.Int64
	s := serve(t, gateway.Options{Connections: func(d int) { open.Add(int64(d)) }})
	c, idle := s.dial(), s.dial()
	c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
	c.ok(`{"op":"PUBLISH","topic":"t","payload":1}`)
	c.event()
	if open.Load() != 2 {
		t.Errorf("%d connections", open.Load())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, x := range []*socket{c, idle} {
			if code, _ := x.closed(); code != 1001 {
				t.Errorf("closed with %d", code)
			}
		}
	}()
	if err := s.g.Close(context.Background()); err != nil {
		t.Error(err)
	}
	<-done
	if open.Load() != 0 {
		t.Errorf("%d connections", open.Load())
	}
	if i, err := s.hub.Engine().Info(context.Background(), "t", "g"); err != nil || i.Members != 0 || i.InFlight != 0 || i.Pending != 0 {
		t.Errorf("leases did not return uncounted: %+v %v", i, err)
	}
	if _, _, err := websocket.Dial(context.Background(), s.url+"/ws", nil); err == nil { //nolint:bodyclose // it fails
		t.Error("a connection was opened after Drain")
	}
}

// TestWSSlow has a client subscribe to more than it reads. What waits for it is
// bounded, others get what it does not take, and in the end it is closed.
func TestWSSlow(t *testing.T) {
	const queue = 256 << 10
	s := serve(t, gateway.Options{Queue: queue, Stall: 3 * time.Second})
	payload := []byte(`"` + strings.Repeat("x", 32<<10) + `"`)
	const total = 1000 // 32 MiB: far more than sockets hold
	batch := make([]event.Event, 0, 100)
	for range total / 100 {
		batch = batch[:0]
		for range 100 {
			batch = append(batch, event.New("t", payload))
		}
		if _, err := s.hub.Publish(context.Background(), batch...); err != nil {
			t.Fatal(err)
		}
	}
	slow := dialRaw(t, s.url)
	slow.add([]byte(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest","maxInFlight":100000}}`))
	if err := slow.flush(); err != nil {
		t.Fatal(err)
	}
	if err := slow.ok(); err != nil {
		t.Fatal(err)
	}
	// It was handed what the sockets and the queue hold, not all.
	waitFor(t, "leases to return", func() bool {
		i, err := s.hub.Engine().Info(context.Background(), "t", "g")
		if err != nil {
			t.Fatal(err)
		}
		if i.InFlight == total {
			t.Fatal("everything was handed to a client that does not read")
		}
		return i.Members == 0 && i.InFlight == 0
	})
	c := s.dial()
	c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"maxInFlight":100000}}`)
	seen := map[any]bool{}
	for len(seen) < total {
		e := c.event()
		if part(e, "ctx", "attempt") != 1.0 {
			t.Fatalf("what it never saw counts as delivered: %v", part(e, "ctx"))
		}
		seen[part(e, "event", "seq")] = true
	}
	// The slow one reads at last: what was under way, why, and the end.
	last := ""
	for {
		msg, err := slow.next()
		if err != nil {
			break // closed, or reset
		}
		if len(msg) < 200 {
			last += string(msg)
		}
	}
	if last != "" && !strings.Contains(last, "slow_consumer") {
		t.Errorf("last: %s", last)
	}
}

// waitFor waits for a condition that nothing signals.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	every := time.NewTicker(2 * time.Millisecond)
	defer every.Stop()
	for !ok() {
		select {
		case <-every.C:
		case <-limit.C:
			t.Fatal("waited in vain for " + what)
		}
	}
}

// TestWSSilent has a client that never answers a ping.
func TestWSSilent(t *testing.T) {
	s := serve(t, gateway.Options{Ping: 100 * time.Millisecond})
	c := dialRaw(t, s.url)
	c.add([]byte(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`))
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	if err := c.ok(); err != nil {
		t.Fatal(err)
	}
	pings := 0
	for {
		first, err := c.r.Peek(1)
		if err != nil {
			t.Fatal(err)
		}
		isClose := first[0] == 0x88
		msg, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if isClose {
			if code := int(msg[0])<<8 | int(msg[1]); code != 4002 || pings == 0 {
				t.Errorf("%d after %d pings", code, pings)
			}
			break
		}
		pings++
	}
	waitFor(t, "the member to leave", func() bool {
		i, err := s.hub.Engine().Info(context.Background(), "t", "g")
		return err == nil && i.Members == 0
	})
	// One that answers stays.
	alive := s.dial()
	ctx, cancel := context.WithTimeout(context.Background(), 600*time.Millisecond)
	defer cancel()
	if _, _, err := alive.c.Read(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a client that answers pings: %v", err)
	}
}

// TestWSHalfSent has a client begin a message and not end it.
func TestWSHalfSent(t *testing.T) {
	s := serve(t, gateway.Options{BodyWait: 100 * time.Millisecond})
	c := dialRaw(t, s.url)
	if _, err := c.nc.Write([]byte{0x81, 0xfe, 0x10, 0x00, 0, 0, 0, 0, '{'}); err != nil {
		t.Fatal(err)
	}
	msg, err := c.next()
	if err != nil || len(msg) < 2 || int(msg[0])<<8|int(msg[1]) != 1002 {
		t.Errorf("%q %v", msg, err)
	}
}
