package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// socket is a WebSocket to a hub.
type socket struct {
	*testing.T
	c    *websocket.Conn
	next int
	kept []frame // events that came while an answer was awaited
}

// frame is one that the hub sends.
type frame struct {
	Op     string          `json:"op"`
	Corr   json.RawMessage `json:"corr"`
	Code   string          `json:"code"`
	Msg    string          `json:"msg"`
	ID     string          `json:"id"`
	Seq    uint64          `json:"seq"`
	IDs    []string        `json:"ids"`
	Dup    bool            `json:"duplicate"`
	Topic  string          `json:"topic"`
	Group  string          `json:"group"`
	Event  record          `json:"event"`
	Ctx    deliveryCtx     `json:"ctx"`
	Events []frame         `json:"events"`

	Generation uint64 `json:"generation"`
	Partitions []int  `json:"partitions"`
	Member     string `json:"member"`

	Results []struct {
		ID  string `json:"id"`
		OK  bool   `json:"ok"`
		Err string `json:"err"`
	} `json:"results"`
}

type deliveryCtx struct {
	Attempt     int     `json:"attempt"`
	MaxAttempts int     `json:"maxAttempts"`
	Lease       any     `json:"lease"`
	Deadline    int64   `json:"ack_deadline_ms"`
	Cursor      *uint64 `json:"cursor"`
}

func (p *hub) dial(headers ...string) *socket {
	p.Helper()
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, _, err := websocket.Dial(ctx, strings.Replace(p.url, "http", "ws", 1)+"/ws", &websocket.DialOptions{HTTPHeader: h}) //nolint:bodyclose // the connection goes on
	if err != nil {
		p.Fatal(err)
	}
	c.SetReadLimit(64 << 20)
	p.Cleanup(func() { _ = c.CloseNow() })
	return &socket{T: p.T, c: c}
}

// send writes a frame as it is.
func (s *socket) send(text string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		s.Fatal(err)
	}
}

func (s *socket) read() (f frame, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, data, err := s.c.Read(ctx)
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(data, &f)
}

// ask sends a frame with a corr of its own and waits for its answer.
func (s *socket) ask(op, fields string) frame {
	s.Helper()
	s.next++
	corr := fmt.Sprintf(`"c%d"`, s.next)
	if fields != "" {
		fields = "," + fields
	}
	s.send(fmt.Sprintf(`{"op":%q,"corr":%s%s}`, op, corr, fields))
	for {
		f, err := s.read()
		if err != nil {
			s.Fatalf("%s %s: %v", op, fields, err)
		}
		if f.Op == "EVENT" || f.Op == "EVENTS" || f.Op == "ASSIGN" {
			s.kept = append(s.kept, f)
			continue
		}
		if string(f.Corr) != corr {
			s.Fatalf("%s: corr %s, want %s", op, f.Corr, corr)
		}
		return f
	}
}

// ok wants OK.
func (s *socket) ok(op, fields string) frame {
	s.Helper()
	f := s.ask(op, fields)
	if f.Op != "OK" {
		s.Fatalf("%s %s: %s %s %s", op, fields, f.Op, f.Code, f.Msg)
	}
	return f
}

// err wants ERR with a code.
func (s *socket) err(code, op, fields string) {
	s.Helper()
	if f := s.ask(op, fields); f.Op != "ERR" || f.Code != code || f.Msg == "" {
		s.Errorf("%s %.200s: %s %s %q, want %s", op, fields, f.Op, f.Code, f.Msg, code)
	}
}

// event waits for the next event.
func (s *socket) event() frame {
	s.Helper()
	if len(s.kept) > 0 {
		f := s.kept[0]
		s.kept = s.kept[1:]
		return f
	}
	f, err := s.read()
	if err != nil || f.Op != "EVENT" && f.Op != "EVENTS" {
		s.Fatalf("want an event: %+v, %v", f, err)
	}
	return f
}

// TestContractWS walks the frames.
func TestContractWS(t *testing.T) {
	onEach(t, func(t *testing.T, store string) {
		p := startHub(t, "--store", store)
		s := p.dial()
		s.ok("AUTH", `"token":"whatever"`) // auth is off
		// Publishing.
		f := s.ok("PUBLISH", `"topic":"w.a","payload":{"n": 12345678901234567890},"opts":{"key":"k","id":"`+id1+`","headers":{"x-a":"b"},"tags":["t"],"sid":"s","caused_by":["c"],"ts":7}`)
		if f.ID != id1 || f.Seq != 1 || f.Dup {
			t.Errorf("%+v", f)
		}
		if f = s.ok("PUBLISH", `"topic":"w.a","payload":1,"opts":{"id":"`+id1+`"}`); !f.Dup || f.Seq != 1 {
			t.Errorf("%+v", f)
		}
		if f = s.ok("PUBLISH", `"events":[{"topic":"w.a","payload":2,"key":"k"},{"topic":"w.a","payload":3}]`); len(f.IDs) != 2 {
			t.Errorf("%+v", f)
		}
		s.err("seq_conflict", "PUBLISH", `"topic":"w.a","payload":1,"opts":{"expect_seq":1}`)
		s.ok("PUBLISH", `"topic":"w.a","payload":4,"opts":{"expect_seq":3}`)
		s.err("invalid_topic", "PUBLISH", `"topic":"W","payload":1`)
		s.err("invalid_topic", "PUBLISH", `"topic":"dlq.x","payload":1`)
		s.err("invalid_header", "PUBLISH", `"topic":"w.a","payload":1,"opts":{"headers":{"color":"red"}}`)
		s.err("invalid_argument", "PUBLISH", `"topic":"w.a"`)
		s.err("invalid_argument", "PUBLISH", `"topic":"w.a","payload":1,"opts":{"id":"x"}`)
		s.err("payload_too_large", "PUBLISH", `"topic":"w.a","payload":"`+strings.Repeat("x", 1<<20)+`"`)
		s.err("unknown_op", "DANCE", "")
		if log := p.replay("w.a"); len(log) != 4 || string(log[0].Payload) != `{"n":12345678901234567890}` || log[0].TS != 7 {
			t.Errorf("%d events, the first %s", len(log), log[0].Payload)
		}
		// What is no frame is answered, and the connection stays.
		for _, bad := range []string{`{"op":`, `[]`, `"x"`, "{\"op\":\"PUBLISH\",\"payload\":" + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + "}"} {
			s.send(bad)
			if f, err := s.read(); err != nil || f.Op != "ERR" || f.Code != "bad_json" {
				t.Errorf("%.40s: %+v, %v", bad, f, err)
			}
		}
		walkSubscriptions(p, s)
		// A frame beyond the limit ends the connection.
		_ = s.c.Write(context.Background(), websocket.MessageText, []byte(`{"op":"PUBLISH","topic":"w.a","payload":"`+strings.Repeat("x", 33<<20)+`"}`)) // it may be cut off
		for err := error(nil); err == nil; {
			if _, err = s.read(); websocket.CloseStatus(err) != -1 && websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
				t.Errorf("a frame beyond the limit: %v", err)
			}
		}
		p.get(nil, 200, "GET", "/readyz", "")
		p.stop()
	})
}

func walkSubscriptions(p *hub, s *socket) {
	t := s.T
	s.ok("SUBSCRIBE", `"topic":"w.a","group":"g","opts":{"from":"earliest"}`)
	s.err("already_subscribed", "SUBSCRIBE", `"topic":"w.a","group":"g"`)
	f := s.event()
	if f.Topic != "w.a" || f.Group != "g" || f.Event.Seq != 1 || f.Ctx.Attempt != 1 || f.Ctx.MaxAttempts != 5 || f.Ctx.Lease == nil || f.Ctx.Deadline <= 0 || f.Ctx.Cursor == nil || *f.Ctx.Cursor != 0 {
		t.Errorf("%+v", f)
	}
	seen := map[uint64]frame{1: f}
	for len(seen) < 3 { // 1, 3 and 4; 2 waits for 1, which has its key
		f := s.event()
		seen[f.Event.Seq] = f
	}
	if _, early := seen[2]; early {
		t.Error("seq 2 came before 1 was settled")
	}
	s.ok("ACK", `"topic":"w.a","group":"g","id":"`+seen[1].Event.ID+`"`)
	if f = s.event(); f.Event.Seq != 2 {
		t.Errorf("after 1 is acked: seq %d", f.Event.Seq)
	}
	if got := s.ok("ACK", fmt.Sprintf(`"topic":"w.a","group":"g","ids":[%q,%q]`, f.Event.ID, seen[3].Event.ID)); len(got.Results) != 2 || !got.Results[0].OK || !got.Results[1].OK {
		t.Errorf("%+v", got)
	}
	s.err("unknown_id", "ACK", `"topic":"w.a","group":"g","id":"`+id2+`"`)
	s.ok("MODACK", `"topic":"w.a","group":"g","extend_ms":60000,"id":"`+seen[4].Event.ID+`"`)
	s.ok("NACK", `"topic":"w.a","group":"g","delay_ms":10,"reason":"r","id":"`+seen[4].Event.ID+`"`)
	f = s.event()
	if f.Event.Seq != 4 || f.Ctx.Attempt != 2 {
		t.Errorf("after a nack: %+v", f)
	}
	s.err("fenced", "NACK", `"topic":"w.a","group":"g","lease":`+quoted(seen[4].Ctx.Lease)+`,"id":"`+f.Event.ID+`"`)
	// Unsubscribing gives it back, uncounted.
	s.ok("UNSUBSCRIBE", `"topic":"w.a","group":"g"`)
	s.err("not_subscribed", "UNSUBSCRIBE", `"topic":"w.a","group":"g"`)
	s.ok("SUBSCRIBE", `"topic":"w.a","group":"g"`)
	if f = s.event(); f.Event.Seq != 4 || f.Ctx.Attempt != 2 {
		t.Errorf("after unsubscribing: %+v", f)
	}
	// A connection that drops gives it back too, and that counts.
	other := p.dial()
	third := p.dial()
	third.ok("SUBSCRIBE", `"topic":"w.b","group":"g","opts":{"from":"earliest"}`)
	s.ok("PUBLISH", `"topic":"w.b","payload":1`)
	if f = third.event(); f.Ctx.Attempt != 1 {
		t.Errorf("%+v", f)
	}
	_ = third.c.CloseNow()
	other.ok("SUBSCRIBE", `"topic":"w.b","group":"g"`)
	if f = other.event(); f.Event.Seq != 1 || f.Ctx.Attempt != 2 {
		t.Errorf("after a drop: %+v", f)
	}
	other.ok("ACK", `"topic":"w.b","group":"g","id":"`+f.Event.ID+`"`)
	// Pausing.
	other.ok("PAUSE", `"topic":"w.b","group":"g"`)
	s.ok("PUBLISH", `"topic":"w.b","payload":2`)
	other.ok("RESUME", `"topic":"w.b","group":"g"`)
	if f = other.event(); f.Event.Seq != 2 {
		t.Errorf("%+v", f)
	}
	// Batches, patterns, lists.
	other.ok("SUBSCRIBE", `"topic":"w.*","group":"all","opts":{"from":"earliest","batch":10,"ordering":"none"}`)
	got := 0
	for got < 6 {
		f := other.event()
		if f.Op != "EVENTS" {
			t.Fatalf("%+v", f)
		}
		for _, e := range f.Events {
			if e.Event.Seq == 0 || e.Ctx.Attempt != 1 {
				t.Errorf("%+v", e)
			}
			got++
		}
	}
	s.ok("PUBLISH", `"topic":"w.new","payload":1`)
	if f = other.event(); f.Topic != "w.new" || len(f.Events) != 1 || f.Events[0].Event.Seq != 1 {
		t.Errorf("a topic that appears: %+v", f)
	}
	other.ok("SUBSCRIBE", `"topics":["w.a","w.b"],"group":"two","opts":{"from":"latest"}`)
	other.ok("SUBSCRIBE", `"topic":"w.a","group":"n","opts":{"normalise":true}`)
	other.err("group_conflict", "SUBSCRIBE", `"topic":"w.a","group":"g","opts":{"maxAttempts":9}`)
	other.err("invalid_argument", "SUBSCRIBE", `"topic":"w.a","group":""`)
	other.err("invalid_argument", "SUBSCRIBE", `"topic":"w.a","group":"x","opts":{"ordering":"sideways"}`)
	other.err("cursor_unknown", "SUBSCRIBE", `"topic":"w.a","group":"x","opts":{"from":"afterId","afterId":"`+id2+`"}`)
}
