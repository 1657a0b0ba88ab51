package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"

	"promethean/gateway"
)

// stored gives the events of a topic.
func (s *served) stored(topic string) (out []storedEvent) {
	s.Helper()
	_, _, text := s.raw("GET", "/export?ndjson=0&topic="+topic, "")
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		s.Fatalf("%s: %v", text, err)
	}
	return out
}

type storedEvent struct {
	ID      string
	TS      int64
	Key     string
	Headers map[string]string
	Payload json.RawMessage
}

// The SDK's own client publishes in both modes.
func TestCloudEventsSDK(t *testing.T) {
	s := serve(t, gateway.Options{})
	client, err := cloudevents.NewClientHTTP(cloudevents.WithTarget(s.url + "/cloudevents"))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	e := cloudevents.NewEvent()
	e.SetID("order-1")
	e.SetSource("https://shop.example/checkout")
	e.SetType("orders.placed")
	e.SetSubject("customer-1")
	e.SetTime(at)
	e.SetExtension("region", "eu")
	if err := e.SetData(cloudevents.ApplicationJSON, json.RawMessage(`{"n":12345678901234567890}`)); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []func(context.Context) context.Context{cloudevents.WithEncodingBinary, cloudevents.WithEncodingStructured} {
		if result := client.Send(mode(context.Background()), e); !cloudevents.IsACK(result) {
			t.Fatal(result)
		}
	}
	got := s.stored("orders.placed")
	if len(got) != 1 { // sent twice: the id follows from source and id
		t.Fatalf("%+v", got)
	}
	want := uuid.NewSHA1(uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://shop.example/checkout")), []byte("order-1")).String()
	g := got[0]
	if g.ID != want || g.Key != "customer-1" || g.TS != at.UnixMilli() || string(g.Payload) != `{"n":12345678901234567890}` ||
		g.Headers["x-ce-region"] != "eu" || g.Headers["x-ce-source"] != "https://shop.example/checkout" || g.Headers["x-ce-id"] != "order-1" || g.Headers["x-ce-subject"] != "" {
		t.Errorf("%+v", g)
	}
}

func TestCloudEvents(t *testing.T) {
	s := serve(t, gateway.Options{})
	const id = "0192f7c1-0000-7000-8000-00000000000"
	const structured, batched = "application/cloudevents+json; charset=utf-8", "application/cloudevents-batch+json"
	one := func(n int, more string) string {
		return fmt.Sprintf(`{"specversion":"1.0","id":"%s%d","source":"/s","type":"a.b"%s}`, id, n, more)
	}
	s.want(201, "", "POST", "/cloudevents", one(1, `,"partitionkey":"p","subject":"s","count":3,"on":true,"none":null,"traceparent":"00-1-2-03","data": [1.0, "\u003c"]`), "Content-Type", structured)
	s.want(200, "", "POST", "/cloudevents", one(1, ``), "Content-Type", structured)
	if got := s.want(201, "", "POST", "/cloudevents", "["+one(2, `,"data":null`)+","+one(3, `,"data_base64":"AQI="`)+"]", "Content-Type", batched); got["count"] != 2.0 {
		t.Errorf("%v", got)
	}
	binary := func(status int, code string, body string, headers ...string) map[string]any {
		t.Helper()
		all := append([]string{"Ce-Specversion", "1.0", "Ce-Source", "/s", "Ce-Type", "a.b"}, headers...)
		return s.want(status, code, "POST", "/cloudevents", body, all...)
	}
	binary(201, "", "", "Ce-Id", id+"4")
	binary(201, "", "plain \"text\"", "Ce-Id", id+"5", "Content-Type", "text/plain; charset=utf-8")
	binary(201, "", "\x00\xff", "Ce-Id", id+"6", "Content-Type", "application/octet-stream", "Ce-Note", "caf%C3%A9 100%")
	binary(201, "", "\x00", "Ce-Id", id+"7", "Content-Type", "application/octet-stream", "Ce-Note", "caf%C3%A9")
	binary(201, "", `{"a":1}`, "Ce-Id", id+"8", "Content-Type", "application/vnd.shop+json")
	got := s.stored("a.b")
	for i, want := range []string{`[1.0,"\u003c"]`, `null`, `"AQI="`, `null`, `"plain \"text\""`, `"AP8="`, `"AA=="`, `{"a":1}`} {
		if string(got[i].Payload) != want || got[i].ID != id+fmt.Sprint(i+1) {
			t.Errorf("event %d: %+v, want %s", i, got[i], want)
		}
	}
	h := got[0].Headers
	if got[0].Key != "p" || h["x-ce-subject"] != "s" || h["x-ce-count"] != "3" || h["x-ce-on"] != "true" || h["traceparent"] != "00-1-2-03" || h["x-ce-id"] != "" || len(h) != 6 {
		t.Errorf("%+v", got[0])
	}
	if got[6].Headers["x-ce-note"] != "café" || got[6].Headers["x-ce-datacontentencoding"] != "base64" || got[5].Headers["x-ce-note"] != "caf%C3%A9 100%" {
		t.Errorf("%v, %v", got[5].Headers, got[6].Headers)
	}

	for _, c := range []struct {
		status           int
		code, kind, body string
		index            any
	}{
		{400, "bad_json", structured, `{`, nil},
		{400, "bad_json", structured, one(9, "") + "1", nil},
		{400, "bad_json", structured, one(9, `,"id":"x"`), nil},
		{400, "bad_json", structured, one(9, `,"data":`+strings.Repeat("[", 1001)+strings.Repeat("]", 1001)), nil},
		{400, "invalid_argument", structured, `[]`, nil},
		{400, "invalid_argument", structured, `{"specversion":"0.3","id":"1","source":"/s","type":"a.b"}`, nil},
		{400, "invalid_argument", structured, `{"specversion":"1.0","source":"/s","type":"a.b"}`, nil},
		{400, "invalid_argument", structured, `{"specversion":"1.0","id":"1","type":"a.b"}`, nil},
		{400, "invalid_argument", structured, one(9, `,"Upper":"x"`), nil},
		{400, "invalid_argument", structured, one(9, `,"ext":{}`), nil},
		{400, "invalid_argument", structured, one(9, `,"time":"noon"`), nil},
		{400, "invalid_argument", structured, one(9, `,"data":1,"data_base64":"AA=="`), nil},
		{400, "invalid_argument", structured, one(9, `,"data_base64":"?"`), nil},
		{400, "invalid_topic", structured, strings.Replace(one(9, ""), "a.b", "com.Example", 1), nil},
		{400, "invalid_topic", structured, strings.Replace(one(9, ""), "a.b", "dlq.a", 1), nil},
		{413, "payload_too_large", structured, one(9, `,"data":"`+strings.Repeat("x", 1<<20)+`"`), nil},
		{413, "payload_too_large", structured, one(9, `,"data":"`+strings.Repeat("x", 2<<20)+`"`), nil},
		{400, "invalid_argument", "application/cloudevents+avro", "x", nil},
		{400, "invalid_argument", "application/json", "{}", nil},
		{400, "invalid_argument", "a/b/c;;", "{}", nil},
		{400, "invalid_argument", batched, "[]", nil},
		{400, "invalid_argument", batched, "{}", nil},
		{400, "bad_json", batched, "[" + one(9, ""), 1.0},
		{400, "invalid_argument", batched, "[" + one(9, "") + `,{"specversion":"1.0"}]`, 1.0},
		{400, "invalid_topic", batched, "[" + one(9, "") + "," + strings.Replace(one(10, ""), "a.b", "A", 1) + "]", 1.0},
	} {
		if got := s.want(c.status, c.code, "POST", "/cloudevents", c.body, "Content-Type", c.kind); got["index"] != c.index {
			t.Errorf("%.100s: %v", c.body, got)
		}
	}
	binary(400, "bad_json", "{", "Ce-Id", "9", "Content-Type", "application/json")
	binary(400, "invalid_argument", "1", "Ce-Id", "9", "Ce-Bad_Name", "x")
	binary(400, "invalid_argument", "1")
	if n := len(s.stored("a.b")); n != 8 {
		t.Errorf("%d events are stored", n)
	}
}
