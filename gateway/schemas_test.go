package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/gateway"
)

// evolved gives a topic two versions: a is called b in the second.
func (s *served) evolved(topic string) {
	s.Helper()
	schema := func(name string) string {
		return `{"type":"object","additionalProperties":false,"required":["` + name + `"],"properties":{"` + name + `":{"type":"integer"},"pad":{"type":"string"}}}`
	}
	s.want(201, "", "POST", "/schemas/"+topic, `{"schema":`+schema("a")+`}`)
	s.want(201, "", "POST", "/schemas/"+topic, `{"schema":`+schema("b")+`,"upcast":".b = .a | del(.a)"}`)
}

// old publishes an event of the first version.
func (s *served) old(topic, payload string) {
	s.Helper()
	s.want(201, "", "POST", "/publish/"+topic, payload, "x-schema-version", "1")
}

// lost stores an event that no upcaster can help, past what validates.
func (s *served) lost(topic string) {
	s.Helper()
	e := promethean.Header("x-schema-version", "1")
	if _, err := s.hub.Emit(context.Background(), topic, map[string]int{"c": 1}, e); err != nil {
		s.Fatal(err)
	}
}

// letter waits for the only dead letter of a group.
func (s *served) letter(topic, group string) any {
	s.Helper()
	for over := time.After(patience); ; {
		dead := s.want(200, "", "GET", "/dlq/"+topic+"?group="+group, "")
		if records := dead["records"].([]any); len(records) == 1 {
			return records[0]
		}
		select {
		case <-over:
			s.Fatalf("%v", dead)
		case <-time.After(5 * time.Millisecond): // it is being written
		}
	}
}

func TestNormalisedWebSocket(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.evolved("a.b")
	s.old("a.b", `{"a":1}`)
	s.lost("a.b")
	s.old("a.b", `{"a":2}`)
	for name, opts := range map[string]string{"single": `"normalise":true`, "batch": `"normalise":true,"batch":10`} {
		c := s.dial()
		c.ok(`{"op":"SUBSCRIBE","topic":"a.b","group":"%s","opts":{"from":"earliest",%s}}`, name, opts)
		var got []string
		for len(got) < 2 {
			f := c.event()
			list, _ := f["events"].([]any)
			if f["op"] == "EVENT" {
				list = []any{f}
			}
			for _, x := range list {
				e := x.(map[string]any)["event"].(map[string]any)
				h := e["headers"].(map[string]any)
				got = append(got, fmt.Sprintf("%v/%v/%v", e["payload"].(map[string]any)["b"], h["x-schema-version"], h["x-upcasted-from"]))
			}
		}
		if !slices.Equal(got, []string{"1/2/1", "2/2/1"}) {
			t.Errorf("%s: %v", name, got)
		}
		if letter := s.letter("a.b", name); !strings.Contains(fmt.Sprint(letter), "map[c:1]") {
			t.Errorf("%s: %v", name, letter)
		}
	}
	// All that is wrong is named, and what came with it is not held back.
	c := s.dial()
	c.send(`{"op":"PUBLISH","corr":"1","topic":"a.b","payload":{"b":1}}`)
	c.send(`{"op":"PUBLISH","corr":"2","topic":"a.b","payload":{"b":"x","d":1}}`)
	c.send(`{"op":"PUBLISH","corr":"3","topic":"a.b","payload":{"b":3}}`)
	for _, want := range []string{"OK", "ERR", "OK"} {
		f := c.answer()
		if f["op"] != want {
			t.Errorf("%v", f)
		}
		if errs, _ := f["errors"].([]any); want == "ERR" && (len(errs) != 2 || f["code"] != "schema_invalid") {
			t.Errorf("%v", f)
		}
	}
}

// What is wrong with the only event there is comes without its number.
func TestErrorsOfOneEvent(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.evolved("a.b")
	for _, path := range []string{"/publish/a.b", "/publish/a.c?partition=9", "/publish/dlq.x"} {
		_, got := s.do("POST", path, `{"c":1}`)
		if got["index"] != nil || got["detail"] == nil || strings.Contains(got["detail"].(string), "event 0") {
			t.Errorf("%s: %v", path, got)
		}
	}
	if got := s.want(422, "schema_invalid", "POST", "/publish", `[{"topic":"a.b","payload":1}]`, "Content-Type", "application/json"); got["index"] != 0.0 {
		t.Errorf("%v", got)
	}
	c := s.dial()
	for _, opts := range []string{"", `,"opts":{"expect_seq":0}`} {
		if got := c.fails("schema_invalid", "not valid", `{"op":"PUBLISH","topic":"a.b","payload":{"c":1}%s}`, opts); strings.Contains(fmt.Sprint(got["msg"]), "event 0") {
			t.Errorf("%v", got)
		}
	}
}

func TestNormalisedEvents(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.evolved("a.b")
	s.old("a.b", `{"a":1}`)
	s.lost("a.b")
	src := s.listen("/subscribe?topic=a.b&from=earliest&normalise=1")
	if m, ok := src.next(); !ok || m.id != "1" || string(m.data.Payload) != `{"b":1}` {
		t.Errorf("%+v", m)
	}
	if m, ok := src.next(); !ok || m.event != "error" || m.data.Seq != 2 {
		t.Errorf("%+v", m)
	}
	if m, ok := src.next(); ok {
		t.Errorf("it goes on after an error: %+v", m)
	}
	src = s.listen("/subscribe?topic=a.b&from=earliest&normalise=1&group=g")
	if m, ok := src.next(); !ok || string(m.data.Payload) != `{"b":1}` {
		t.Errorf("%+v", m)
	}
	s.old("a.b", `{"a":3}`)
	if m, ok := src.next(); !ok || m.id != "3" || string(m.data.Payload) != `{"b":3}` {
		t.Errorf("%+v", m)
	}
}

// An answer that is under way when an event cannot be normalised says so, and is
// cut: it is never taken for the whole.
func TestNormalisedStreamThatBreaks(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.evolved("a.b")
	pad := strings.Repeat("x", 10_000)
	for i := range 30 {
		s.old("a.b", fmt.Sprintf(`{"a":%d,"pad":%q}`, i, pad))
	}
	s.lost("a.b")
	s.old("a.b", `{"a":31}`)
	for path, last := range map[string]string{
		"/export?topic=a.b&normalise=1":          `{"error":`,
		"/export?topic=a.b&normalise=1&ndjson=0": `,{"error":`,
		"/replay?topic=a.b&normalise=1":          `],"count":30,"error":`,
	} {
		got, err := http.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(got.Body)
		_ = got.Body.Close()
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: ended with %v", path, err)
		}
		at := bytes.LastIndex(body, []byte(last))
		if at < 0 {
			t.Errorf("%s: ends with %.300s", path, body[max(len(body)-300, 0):])
			continue
		}
		var p struct {
			Code string
			Seq  uint64
		}
		text := body[at+len(last):]
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&p); err != nil || p.Code != "schema_invalid" || p.Seq != 31 {
			t.Errorf("%s: %s %v", path, text, err)
		}
	}
}

// A gateway without a registry says that it has none.
func TestWithoutSchemas(t *testing.T) {
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := gateway.New(hub, gateway.Options{})
	server := httptest.NewServer(g)
	defer func() {
		err := g.Close(context.Background())
		server.Close()
		if err := errors.Join(err, hub.Close()); err != nil {
			t.Error(err)
		}
	}()
	s := &served{TB: t, hub: hub, g: g, url: server.URL}
	for _, call := range [][3]string{
		{"GET", "/schemas", ""},
		{"GET", "/schemas/a.b", ""},
		{"GET", "/schemas/a.b/latest", ""},
		{"POST", "/schemas/a.b", `{"schema":{}}`},
		{"POST", "/schemas/a.b/check", `{"schema":{}}`},
		{"POST", "/schemas/a.b/validate", `1`},
		{"POST", "/schemas/a.b/cutover", `{"to":"a.b.v1"}`},
		{"GET", "/replay?topic=a.b&normalise=1", ""},
		{"GET", "/export?topic=a.b&normalise=1", ""},
		{"GET", "/subscribe?topic=a.b&normalise=1", ""},
		{"POST", "/pull", `{"topic":"a.b","group":"g","opts":{"normalise":true}}`},
		{"PUT", "/topics/a.b", `{"strict_schema":true}`},
	} {
		s.want(501, "unsupported", call[0], call[1], call[2])
	}
	s.dial().fails("unsupported", "normalise", `{"op":"SUBSCRIBE","topic":"a.b","group":"g","opts":{"normalise":true}}`)
	s.want(201, "", "POST", "/publish/a.b", `1`)
}

// A dead letter can be mended on its way back; what comes out is held to the
// schema.
func TestTransformedLetters(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.evolved("a.b")
	s.lost("a.b")
	if p := s.pull(`{"topic":"a.b","group":"g","wait_ms":100,"opts":{"from":"earliest","normalise":true}}`); len(p.Events) != 0 {
		t.Errorf("%+v", p)
	}
	s.letter("a.b", "g")
	got := s.want(400, "invalid_argument", "POST", "/dlq/a.b/replay", `{"transform":"{d: .payload.c}"}`)
	if !strings.Contains(got["detail"].(string), "0 were replayed") {
		t.Errorf("%v", got)
	}
	if got := s.want(200, "", "POST", "/dlq/a.b/replay", `{"transform":"{a: (.payload.c + .seq)}"}`); got["replayed"] != 1.0 {
		t.Errorf("%v", got)
	}
	p := s.pull(`{"topic":"a.b","group":"g","wait_ms":5000,"opts":{"normalise":true}}`)
	if len(p.Events) != 1 || string(p.Events[0].Event.Payload) != `{"b":2}` {
		t.Errorf("%+v", p)
	}
}

func TestCutoverRoute(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.want(400, "invalid_argument", "POST", "/schemas/a.b/cutover", `{"to":"a.b.v1"}`)
	s.evolved("a.b")
	for i := range 20 {
		s.old("a.b", fmt.Sprintf(`{"a":%d}`, i))
	}
	s.want(400, "invalid_argument", "POST", "/schemas/a.b/cutover", `{"to":"a.b.v1"}`)
	s.want(400, "invalid_argument", "POST", "/schemas/a.b/cutover", `{}`)
	last := func() map[string]any {
		t.Helper()
		status, _, text := s.raw("POST", "/schemas/a.b/cutover", `{"to":"a.b.v2"}`)
		lines := strings.Split(strings.TrimSpace(text), "\n")
		var got map[string]any
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil || status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		return got
	}
	if got := last(); got["done"] != true || got["copied"] != 20.0 || got["verified"] != 20.0 {
		t.Errorf("%v", got)
	}
	if got := last(); got["done"] != true || got["read"] != 0.0 || got["verified"] != 20.0 {
		t.Errorf("%v", got)
	}
	if got := len(s.stored("a.b.v2")); got != 20 {
		t.Errorf("%d events", got)
	}
}
