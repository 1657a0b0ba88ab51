package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"promethean/gateway"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// socket is a client.
type socket struct {
	testing.TB
	c *websocket.Conn
	// events came while something else was waited for.
	events []map[string]any
}

// dial opens a WebSocket, with headers as pairs.
func (s *served) dial(headers ...string) *socket {
	s.Helper()
	h := make(http.Header)
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, s.url+"/ws", &websocket.DialOptions{HTTPHeader: h}) //nolint:bodyclose // it has none
	if err != nil {
		s.Fatal(err)
	}
	c.SetReadLimit(64 << 20)
	s.Cleanup(func() { _ = c.CloseNow() }) // it may be closed
	return &socket{TB: s.TB, c: c}
}

// send sends a frame.
func (s *socket) send(frame string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.c.Write(ctx, websocket.MessageText, []byte(frame)); err != nil {
		s.Fatalf("send %.200s: %v", frame, err)
	}
}

// read reads the next frame, or gives the error.
func (s *socket) read() (frame map[string]any, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, data, err := s.c.Read(ctx)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &frame); err != nil {
		s.Fatalf("the hub sent %.200s: %v", data, err)
	}
	return frame, nil
}

// answer reads until an OK or ERR comes, and keeps events for later.
func (s *socket) answer() map[string]any {
	s.Helper()
	for {
		f, err := s.read()
		if err != nil {
			s.Fatal(err)
		}
		if f["op"] == "OK" || f["op"] == "ERR" {
			return f
		}
		s.events = append(s.events, f)
	}
}

// event gives the next EVENT or EVENTS.
func (s *socket) event() map[string]any {
	s.Helper()
	if len(s.events) > 0 {
		f := s.events[0]
		s.events = s.events[1:]
		return f
	}
	f, err := s.read()
	if err != nil {
		s.Fatal(err)
	}
	if f["op"] != "EVENT" && f["op"] != "EVENTS" {
		s.Fatalf("want an event, got %v", f)
	}
	return f
}

// ok sends a frame and wants OK.
func (s *socket) ok(format string, args ...any) map[string]any {
	s.Helper()
	frame := fmt.Sprintf(format, args...)
	s.send(frame)
	f := s.answer()
	if f["op"] != "OK" {
		s.Fatalf("%.200s: %v", frame, f)
	}
	return f
}

// fails sends a frame and wants an error with a code, whose message has a word.
func (s *socket) fails(code, word, format string, args ...any) map[string]any {
	s.Helper()
	frame := fmt.Sprintf(format, args...)
	s.send(frame)
	f := s.answer()
	if msg, _ := f["msg"].(string); f["op"] != "ERR" || f["code"] != code || !strings.Contains(msg, word) {
		s.Errorf("%.200s: %v, want %s with %q", frame, f, code, word)
	}
	return f
}

// closed reads until the connection ends and gives the close code, and the last
// frame before it.
func (s *socket) closed() (code int, last map[string]any) {
	s.Helper()
	for {
		f, err := s.read()
		if err == nil {
			last = f
			continue
		}
		var ce websocket.CloseError
		if !errors.As(err, &ce) {
			s.Fatalf("the connection ended without a close frame: %v; last %v", err, last)
		}
		return int(ce.Code), last
	}
}

// sub names parts of an EVENT.
func part(f map[string]any, path ...string) any {
	var v any = f
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

func TestWSPublish(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.dial()
	const id = "0192f7c1-0000-7000-8000-000000000001"
	got := c.ok(`{"op":"PUBLISH","corr":"a","topic":"orders.placed","payload":{"n":1.10,"s":"\u00e9<"},"opts":{"key":"k","id":"%s","ts":5,"sid":"s","partition":0,"headers":{"x-b":"2","x-a":"1"},"tags":["t"],"caused_by":["c"]}}`, id)
	if got["corr"] != "a" || got["id"] != id || got["seq"] != 1.0 || got["duplicate"] != nil {
		t.Errorf("%v", got)
	}
	if got = c.ok(`{"op":"PUBLISH","corr":7,"topic":"orders.placed","payload":1,"opts":{"id":"%s"}}`, id); got["duplicate"] != true || got["corr"] != 7.0 || got["seq"] != 1.0 {
		t.Errorf("%v", got)
	}
	if got = c.fails("seq_conflict", "", `{"op":"PUBLISH","corr":"x","topic":"orders.placed","payload":1,"opts":{"expect_seq":5}}`); got["expected"] != 5.0 || got["actual"] != 1.0 || got["corr"] != "x" {
		t.Errorf("%v", got)
	}
	c.ok(`{"op":"PUBLISH","topic":"orders.placed","payload":null,"opts":{"expect_seq":1}}`)
	got = c.ok(`{"op":"PUBLISH","events":[{"topic":"a","payload":1},{"topic":"b","payload":2,"key":"k","id":"%s"},{"topic":"b","payload":2,"opts":{"id":"%s"}}]}`, id, id)
	if ids, _ := got["ids"].([]any); len(ids) != 3 || ids[1] != id || fmt.Sprint(got["seqs"]) != "[1 1 1]" || fmt.Sprint(got["duplicates"]) != "[2]" {
		t.Errorf("%v", got)
	}
	if got = c.fails("invalid_topic", "", `{"op":"PUBLISH","events":[{"topic":"a","payload":1},{"topic":"A","payload":2}]}`); got["index"] != 1.0 {
		t.Errorf("%v", got)
	}
	c.ok(`{"op":"SUBSCRIBE","topic":"orders.placed","group":"g","opts":{"from":"earliest"}}`)
	e := c.event()
	want := `{"caused_by":["c"],"headers":{"x-a":"1","x-b":"2"},"id":"` + id + `","key":"k","partition":0,"payload":{"n":1.1,"s":"é\u003c"},"seq":1,"sid":"s","tags":["t"],"topic":"orders.placed","ts":5}`
	if have, err := json.Marshal(e["event"]); err != nil || string(have) != want {
		t.Errorf("%s %v, want %s", have, err, want)
	}
}
