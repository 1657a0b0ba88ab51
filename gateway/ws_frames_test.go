package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"promethean/gateway"
)

func TestWSRefusals(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.dial()
	for _, x := range []struct{ code, word, frame string }{
		{"bad_json", "", `{`},
		{"bad_json", "", ``},
		{"bad_json", "object", `[1]`},
		{"bad_json", "object", `"PUBLISH"`},
		{"bad_json", "", `{"op":"PUBLISH","op":"PUBLISH"}`},
		{"bad_json", "once", `{"op":"PUBLISH","topic":"a","payload":{"a":1,"a":2}}`},
		{"bad_json", "", `{"op":"PUBLISH","topic":"a","payload":NaN}`},
		{"bad_json", "", `{"op":"PUBLISH","topic":"a","payload":1} x`},
		{"bad_json", "deep", `{"op":"PUBLISH","topic":"a","payload":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + `}`},
		{"bad_json", "", `{"op":"PUBLISH","topic":"a","payload":"\ud800"}`},
		{"unknown_op", "JUMP", `{"op":"JUMP"}`},
		{"unknown_op", "op", `{"topic":"a"}`},
		{"unknown_op", "op", `{"op":5}`},
		{"invalid_argument", "corr", `{"op":"AUTH","token":"x","corr":{}}`},
		{"invalid_argument", "corr", `{"op":"AUTH","token":"x","corr":"` + strings.Repeat("c", 2000) + `"}`},
		{"invalid_argument", "token", `{"op":"AUTH"}`},
		{"invalid_argument", "nonsense", `{"op":"PUBLISH","topic":"a","payload":1,"nonsense":1}`},
		{"invalid_argument", "topic", `{"op":"PUBLISH","payload":1}`},
		{"invalid_argument", "topic", `{"op":"PUBLISH","topic":7,"payload":1}`},
		{"invalid_argument", "payload", `{"op":"PUBLISH","topic":"a"}`},
		{"invalid_topic", "", `{"op":"PUBLISH","topic":"","payload":1}`},
		{"invalid_topic", "", `{"op":"PUBLISH","topic":"../x","payload":1}`},
		{"invalid_topic", "", `{"op":"PUBLISH","topic":"DLQ.a","payload":1}`},
		{"invalid_topic", "only the hub", `{"op":"PUBLISH","topic":"dlq.a","payload":1}`},
		{"invalid_topic", "only the hub", `{"op":"PUBLISH","topic":"system.audit","payload":1}`},
		{"invalid_argument", "opts.key", `{"op":"PUBLISH","topic":"a","payload":1,"opts":{"key":1}}`},
		{"invalid_argument", "never null", `{"op":"PUBLISH","topic":"a","payload":1,"opts":{"key":null}}`},
		{"invalid_argument", "opts", `{"op":"PUBLISH","topic":"a","payload":1,"opts":5}`},
		{"invalid_argument", "opts.id", `{"op":"PUBLISH","topic":"a","payload":1,"opts":{"id":"x"}}`},
		{"invalid_argument", "opts.ts", `{"op":"PUBLISH","topic":"a","payload":1,"opts":{"ts":-1}}`},
		{"invalid_argument", "opts.ts", `{"op":"PUBLISH","topic":"a","payload":1,"opts":{"ts":1.5}}`},
		{"invalid_argument", "partition", `{"op":"PUBLISH","topic":"a","payload":1,"opts":{"partition":3}}`},
		{"invalid_argument", "opts.headers.x-a", `{"op":"PUBLISH","topic":"a","payload":1,"opts":{"headers":{"x-a":1}}}`},
		{"invalid_header", "", `{"op":"PUBLISH","topic":"a","payload":1,"opts":{"headers":{"authorization":"b"}}}`},
		{"invalid_argument", "SUBSCRIBE", `{"op":"PUBLISH","topic":"a","payload":1,"opts":{"maxInFlight":1}}`},
		{"invalid_argument", "key", `{"op":"PUBLISH","topic":"a","payload":1,"opts":{"key":"` + strings.Repeat("k", 1025) + `"}}`},
		{"payload_too_large", "", `{"op":"PUBLISH","topic":"a","payload":"` + strings.Repeat("p", 1<<20) + `"}`},
		{"invalid_argument", "events[1].payload", `{"op":"PUBLISH","events":[{"topic":"a","payload":1},{"topic":"a"}]}`},
		{"invalid_argument", "events[0].topic", `{"op":"PUBLISH","events":[{"payload":1}]}`},
		{"invalid_argument", "events[0]", `{"op":"PUBLISH","events":[1]}`},
		{"invalid_argument", "events[0].opts.id", `{"op":"PUBLISH","events":[{"topic":"a","payload":1,"opts":{"id":1}}]}`},
		{"invalid_argument", "events", `{"op":"PUBLISH","events":[]}`},
		{"invalid_argument", "events", `{"op":"PUBLISH","events":[{"topic":"a","payload":1}],"topic":"b"}`},
		{"batch_too_large", "10001", `{"op":"PUBLISH","events":[` + strings.Repeat(`{"topic":"a","payload":1},`, 10_000) + `{"topic":"a","payload":1}]}`},
		{"invalid_argument", "group", `{"op":"SUBSCRIBE","topic":"a"}`},
		{"invalid_argument", "topic", `{"op":"SUBSCRIBE","group":"g"}`},
		{"invalid_topic", "", `{"op":"SUBSCRIBE","topic":"a..*","group":"g"}`},
		{"invalid_argument", "topics", `{"op":"SUBSCRIBE","topics":[],"group":"g"}`},
		{"invalid_argument", "twice", `{"op":"SUBSCRIBE","topics":["a","a"],"group":"g"}`},
		{"invalid_argument", "system", `{"op":"SUBSCRIBE","topic":"system.intents","group":"system.roller"}`},
		{"invalid_argument", "from", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"from":"tomorrow"}}`},
		{"invalid_argument", "afterId", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"from":"afterId"}}`},
		{"cursor_unknown", "", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"from":"afterId","afterId":"0192f7c1-0000-7000-8000-000000000001"}}`},
		{"cursor_unknown", "", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"from":"seq","seq":9}}`},
		{"invalid_argument", "ordering", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"ordering":"random"}}`},
		{"invalid_argument", "deadLetter", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"deadLetter":"bin"}}`},
		{"invalid_argument", "opts.maxAttempts", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"maxAttempts":0}}`},
		{"invalid_argument", "filter", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"filter":"1 +"}}`},
		{"invalid_argument", "opts.filter", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"filter":1}}`},
		{"invalid_argument", "batchsize", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"batchsize":1}}`},
		{"invalid_argument", "PUBLISH", `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"key":"k"}}`},
		{"invalid_argument", "partitioned", `{"op":"SUBSCRIBE","topic":"*","group":"g","opts":{"partitioned":true}}`},
		{"not_subscribed", "", `{"op":"UNSUBSCRIBE","topic":"a","group":"g"}`},
		{"not_subscribed", "", `{"op":"PAUSE","topic":"a","group":"g"}`},
		{"not_subscribed", "", `{"op":"RESUME","topic":"a","group":"g"}`},
		{"not_subscribed", "", `{"op":"ACK","topic":"a","group":"g","id":"0192f7c1-0000-7000-8000-000000000001"}`},
		{"not_subscribed", "", `{"op":"NACK","topic":"a","group":"g","id":"0192f7c1-0000-7000-8000-000000000001"}`},
		{"invalid_argument", "id", `{"op":"ACK","topic":"a","group":"g"}`},
		{"invalid_argument", "id", `{"op":"ACK","topic":"a","group":"g","ids":[]}`},
		{"invalid_argument", "id", `{"op":"ACK","topic":"a","group":"g","id":5}`},
		{"invalid_argument", "lease", `{"op":"NACK","topic":"a","group":"g","id":"0192f7c1-0000-7000-8000-000000000001","lease":"x"}`},
		{"invalid_argument", "leases", `{"op":"NACK","topic":"a","group":"g","ids":["0192f7c1-0000-7000-8000-000000000001"],"leases":["1","2"]}`},
		{"invalid_argument", "extend_ms", `{"op":"MODACK","topic":"a","group":"g","id":"0192f7c1-0000-7000-8000-000000000001"}`},
		{"invalid_argument", "extend_ms", `{"op":"MODACK","topic":"a","group":"g","id":"0192f7c1-0000-7000-8000-000000000001","extend_ms":-1}`},
	} {
		c.fails(x.code, x.word, "%s", x.frame)
	}
	// A refusal carries corr wherever it stands, and the connection goes on.
	if got := c.fails("invalid_argument", "topic", `{"op":"PUBLISH","topic":7,"payload":1,"corr":"z"}`); got["corr"] != "z" {
		t.Errorf("%v", got)
	}
	if got := c.fails("unknown_op", "", `{"corr":1e3,"op":"X"}`); got["corr"] != 1e3 {
		t.Errorf("%v", got)
	}
	if got := c.ok(`{"corr":"last","op":"PUBLISH","topic":"a","payload":1}`); got["seq"] != 1.0 || got["corr"] != "last" {
		t.Errorf("something was stored before: %v", got)
	}
}

func TestWSSettle(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.dial()
	for i := range 4 {
		c.ok(`{"op":"PUBLISH","topic":"a","payload":%d}`, i)
	}
	c.ok(`{"op":"SUBSCRIBE","topic":"a","group":"g","corr":"s","opts":{"from":"earliest","maxAttempts":3,"ackTimeoutMs":60000,"ordering":"key","maxInFlight":1}}`)
	c.fails("already_subscribed", "", `{"op":"SUBSCRIBE","topic":"a","group":"g"}`)
	other := s.dial()
	other.fails("group_conflict", "maxAttempts", `{"op":"SUBSCRIBE","topics":["b","a"],"group":"g","opts":{"maxAttempts":9}}`)
	other.fails("not_subscribed", "", `{"op":"UNSUBSCRIBE","topic":"b","group":"g"}`)
	e := c.event()
	id := part(e, "event", "id")
	lease := part(e, "ctx", "lease")
	if part(e, "ctx", "attempt") != 1.0 || part(e, "ctx", "maxAttempts") != 3.0 || part(e, "ctx", "cursor") != 0.0 || e["topic"] != "a" || e["group"] != "g" {
		t.Errorf("%v", e)
	}
	if d, _ := part(e, "ctx", "ack_deadline_ms").(float64); d < 1e12 {
		t.Errorf("%v", e)
	}
	c.ok(`{"op":"MODACK","topic":"a","group":"g","id":"%v","lease":"%v","extend_ms":90000}`, id, lease)
	c.fails("fenced", "", `{"op":"MODACK","topic":"a","group":"g","id":"%v","lease":1,"extend_ms":1}`, id)
	c.fails("fenced", "", `{"op":"NACK","topic":"a","group":"g","id":"%v","lease":"1"}`, id)
	c.ok(`{"op":"NACK","topic":"a","group":"g","id":"%v","lease":"%v","delay_ms":0,"reason":"again"}`, id, lease)
	// It comes again, or the next one does before it.
	seen := map[any]float64{}
	for range 2 {
		e = c.event()
		seen[part(e, "event", "id")] = part(e, "ctx", "attempt").(float64)
		c.ok(`{"op":"ACK","topic":"a","group":"g","id":"%v"}`, part(e, "event", "id"))
	}
	if seen[id] != 2 && len(seen) != 2 {
		t.Errorf("%v", seen)
	}
	c.fails("unknown_id", "", `{"op":"ACK","topic":"a","group":"g","id":"0192f7c1-0000-7000-8000-000000000001"}`)
	e = c.event()
	got := c.ok(`{"op":"ACK","topic":"a","group":"g","corr":9,"ids":["0192f7c1-0000-7000-8000-000000000001","%v"]}`, part(e, "event", "id"))
	want := fmt.Sprintf("[map[err:unknown_id id:0192f7c1-0000-7000-8000-000000000001 ok:false] map[id:%v ok:true]]", part(e, "event", "id"))
	if fmt.Sprint(got["results"]) != want || got["corr"] != 9.0 {
		t.Errorf("%v", got)
	}
	e = c.event()
	c.ok(`{"op":"NACK","topic":"a","group":"g","ids":["%v"],"leases":["%v"],"dead":true,"reason":"bad"}`, part(e, "event", "id"), part(e, "ctx", "lease"))
	c.ok(`{"op":"SUBSCRIBE","topic":"dlq.a","group":"d","opts":{"from":"earliest"}}`)
	if e = c.event(); e["topic"] != "dlq.a" || part(e, "event", "partition") != 0.0 {
		t.Errorf("%v", e)
	}
}

func TestWSUnsubscribe(t *testing.T) {
	s := serve(t, gateway.Options{})
	a, b := s.dial(), s.dial()
	a.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
	b.ok(`{"op":"PUBLISH","topic":"t","payload":1}`)
	if e := a.event(); part(e, "ctx", "attempt") != 1.0 {
		t.Errorf("%v", e)
	}
	a.ok(`{"op":"UNSUBSCRIBE","topic":"t","group":"g"}`)
	a.fails("not_subscribed", "", `{"op":"UNSUBSCRIBE","topic":"t","group":"g"}`)
	b.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
	if e := b.event(); part(e, "ctx", "attempt") != 1.0 {
		t.Errorf("a clean unsubscribe counted: %v", e)
	}
	// One that is dropped counts.
	if err := b.c.CloseNow(); err != nil {
		t.Fatal(err)
	}
	a.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
	if e := a.event(); part(e, "ctx", "attempt") != 2.0 {
		t.Errorf("a dropped connection did not count: %v", e)
	}
}

func TestWSBatches(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.dial()
	rows := strings.Repeat(`{"topic":"t","payload":{"a":[1]}},`, 24) + `{"topic":"t","payload":null}`
	c.ok(`{"op":"PUBLISH","events":[%s]}`, rows)
	c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest","batch":10}}`)
	for n := 0; n < 25; {
		e := c.event()
		list, _ := e["events"].([]any)
		if e["op"] != "EVENTS" || len(list) == 0 || len(list) > 10 || e["topic"] != "t" || e["group"] != "g" {
			t.Fatalf("%v", e)
		}
		for _, x := range list {
			n++
			m, _ := x.(map[string]any)
			if part(m, "event", "seq") != float64(n) || part(m, "ctx", "attempt") != 1.0 {
				t.Errorf("%v", m)
			}
		}
	}
}

func TestWSPause(t *testing.T) {
	s := serve(t, gateway.Options{})
	a, b := s.dial(), s.dial()
	a.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
	a.ok(`{"op":"PAUSE","topic":"t","group":"g"}`)
	a.ok(`{"op":"PUBLISH","topic":"t","payload":1}`)
	// Another member gets it though the first was there before.
	b.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
	e := b.event()
	b.ok(`{"op":"ACK","topic":"t","group":"g","id":"%v"}`, part(e, "event", "id"))
	b.ok(`{"op":"UNSUBSCRIBE","topic":"t","group":"g"}`)
	b.ok(`{"op":"PUBLISH","topic":"t","payload":2}`)
	// Nothing has come: the answer to RESUME is the first frame.
	a.send(`{"op":"RESUME","topic":"t","group":"g"}`)
	if f, err := a.read(); err != nil || f["op"] != "OK" {
		t.Fatalf("%v %v", f, err)
	}
	if e := a.event(); part(e, "event", "payload") != 2.0 {
		t.Errorf("%v", e)
	}
}

func TestWSPatterns(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.dial()
	c.ok(`{"op":"PUBLISH","topic":"a.x","payload":"old"}`)
	c.ok(`{"op":"SUBSCRIBE","topics":["a.*","b"],"group":"g"}`)
	c.fails("already_subscribed", "", `{"op":"SUBSCRIBE","topic":"a.*","group":"g"}`)
	c.ok(`{"op":"PUBLISH","events":[{"topic":"a.x","payload":1},{"topic":"b","payload":2},{"topic":"a.new","payload":3},{"topic":"a.new.deep","payload":4},{"topic":"c","payload":5}]}`)
	got := map[any]any{}
	for range 3 {
		e := c.event()
		got[e["topic"]] = part(e, "event", "payload")
		c.ok(`{"op":"ACK","topic":"%v","group":"g","id":"%v"}`, e["topic"], part(e, "event", "id"))
	}
	if fmt.Sprint(got) != "map[a.new:3 a.x:1 b:2]" {
		t.Errorf("%v", got)
	}
	c.ok(`{"op":"UNSUBSCRIBE","topics":["b","a.*"],"group":"g"}`)
	c.ok(`{"op":"PUBLISH","topic":"a.x","payload":1}`)
	if len(c.events) != 0 {
		t.Errorf("%v", c.events)
	}
}

// TestWSOrder sends many PUBLISH frames at once: each is answered, a bad one
// fails alone, and the log has them in the order in which they were sent.
func TestWSOrder(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := dialRaw(t, s.url)
	const n = 500
	for i := range n {
		topic := []string{"a", "b"}[i%2]
		if i%100 == 50 {
			topic = "dlq.x"
		}
		c.add(fmt.Appendf(nil, `{"op":"PUBLISH","corr":%d,"topic":"%s","payload":%d}`, i, topic, i))
	}
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	seqs := map[string]float64{}
	answered := map[float64]bool{}
	for range n {
		f := c.frame(t)
		i := f["corr"].(float64)
		answered[i] = true
		if bad := int(i)%100 == 50; bad != (f["code"] == "invalid_topic") {
			t.Fatalf("%v", f)
		} else if !bad {
			topic := []string{"a", "b"}[int(i)%2]
			if seq := f["seq"].(float64); seq <= seqs[topic] {
				t.Fatalf("topic %s: seq %v after %v", topic, seq, seqs[topic])
			} else {
				seqs[topic] = seq
			}
		}
	}
	if len(answered) != n || seqs["a"] != n/2-5 || seqs["b"] != n/2 {
		t.Errorf("%d answers, %v", len(answered), seqs)
	}
}
