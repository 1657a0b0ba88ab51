package prometheantest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/event"
	"promethean/prometheantest"
)

// failing runs f against a fake test in a bubble, with a hub, and gives what was
// said of it.
func failing(t *testing.T, f func(h *prometheantest.Hub), opts ...prometheantest.Option) (said, logs string) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		got := try(func(t testing.TB) { f(prometheantest.Start(t, opts...)) })
		said, logs = got.said(), strings.Join(got.logs, "\n")
	})
	return said, logs
}

// TestMessages compares what a failure says word by word: it is what people see
// of the kit on a bad day.
func TestMessages(t *testing.T) {
	for name, c := range map[string]struct {
		f    func(h *prometheantest.Hub)
		want string
		part bool // want is a part of it: the rest has ids, or words of others
	}{
		"a field differs": {
			func(h *prometheantest.Hub) {
				h.Publish("orders.placed", map[string]any{"item": "bread", "count": 2}, promethean.Key("a"))
				h.Publish("orders.placed", map[string]any{"item": "cake", "count": 1, "to": map[string]any{"zip code": "1"}}, promethean.Key("b"))
				h.ExpectEvents("orders.placed", map[string]any{"item": "bread"}, map[string]any{"item": "tart", "to": map[string]any{"zip code": 1}, "paid": true})
			},
			`ExpectEvents orders.placed: event 2 of 2 is not as expected (seq 2)
    payload.item
      - want "tart"
      + got  "cake"
    payload.paid
      - want true
      + got  nothing
    payload.to["zip code"]
      - want 1
      + got  "1"
  events of orders.placed:
  = #1 a  {"count":2,"item":"bread"}
  ≠ #2 b  {"count":1,"item":"cake","to":{"zip code":"1"}}
  no other topic has events`, false,
		},
		"too few": {
			func(h *prometheantest.Hub) {
				h.Publish("orders.placed", 1)
				h.ExpectEvents("orders.placed", 1)
				h.Publish("orders.placed", 2)
				h.ExpectEvents("orders.placed", 2, 3, prometheantest.Event{Key: "k", Headers: map[string]string{"x-a": "b"}, Payload: prometheantest.Exactly("<>")}, prometheantest.Event{})
			},
			`ExpectEvents orders.placed: 1 of 4 events came within 1m0s (virtual time)
    missing 2: 3
    missing 3: key "k", header x-a "b", payload exactly "\u003c\u003e"
    missing 4: any event
  events of orders.placed since the last expectation:
  = #2  2
  no other topic has events`, false,
		},
		"the wrong topic, and a dead letter": {
			func(h *prometheantest.Hub) {
				h.Publish("heartbeat.received", map[string]any{"pid": "x", "name": "stt"})
				h.ExpectEvents("process.states", nil)
			},
			`ExpectEvents process.states: 0 of 1 events came within 1m0s (virtual time)
    missing 1: null
  there are no events of process.states
  dlq.heartbeat.received has 1
    dead after 1 in process-projector: {"name":"stt","pid":"x"}: heartbeat: pid: want a whole number that is not negative, got "x"; host: want a text that is not empty, there is none; cpu_pct: want a number, there is none; mem_mb: want a number, there is none
  heartbeat.received has 1`, false,
		},
		"not exactly": {
			func(h *prometheantest.Hub) {
				h.Publish("orders.placed", map[string]any{"item": "bread", "list": []int{1, 2}, "n": 12})
				h.ExpectEvents("orders.placed", prometheantest.Exactly(map[string]any{"list": []int{1}, "n": []int{}}))
			},
			`ExpectEvents orders.placed: event 1 of 1 is not as expected (seq 1)
    payload.list
      - want 1 elements: [1]
      + got  2 elements: [1,2]
    payload.n
      - want []
      + got  12
    payload.item
      - want nothing
      + got  "bread"
  events of orders.placed:
  ≠ #1  {"item":"bread","list":[1,2],"n":12}
  no other topic has events`, false,
		},
		"fields beside the payload": {
			func(h *prometheantest.Hub) {
				h.Publish("orders.placed", nil, promethean.Key("a"), promethean.Tags("x"), promethean.SID("s"), promethean.Header("x-a", "1"), promethean.CausedBy(event.ID{15: 1}))
				h.ExpectEvents("orders.placed", prometheantest.Event{
					ID: event.ID{15: 3}, Key: "b", SID: "t", Tags: []string{"x", "y"}, CausedBy: []event.ID{{15: 2}},
					Headers: map[string]string{"x-a": "2", "x-b": "3"}, Payload: func() any { return 1 }(),
				})
			},
			`    key
      - want "b"
      + got  "a"
    sid
      - want "t"
      + got  "s"
    header x-a
      - want "2"
      + got  "1"
    header x-b
      - want "3"
      + got  nothing
    tags
      - want ["x","y"]
      + got  ["x"]
    caused_by
      - want ["00000000-0000-0000-0000-000000000002"]
      + got  ["00000000-0000-0000-0000-000000000001"]
    payload
      - want 1
      + got  null
`, true,
		},
		"a function": {
			func(h *prometheantest.Hub) {
				h.Publish("orders.placed", 1)
				h.ExpectEvents("orders.placed", func(e event.Event) error { return fmt.Errorf("seq %d is odd", e.Seq) })
			},
			`    the event
      - want no error of the function
      + got  seq 1 is odd
`, true,
		},
		"something where nothing should be": {
			func(h *prometheantest.Hub) {
				h.Publish("orders.placed", 1)
				h.ExpectEvents("orders.placed", 1)
				time.AfterFunc(3*time.Second, func() { h.Publish("orders.placed", 2, promethean.Key("k")) })
				h.ExpectNone("orders.placed", 5*time.Second)
			},
			`ExpectNone orders.placed: there are 1 after 3s of 5s (virtual time)
  events of orders.placed since the last expectation:
    #2 k  2`, false,
		},
		"never": {
			func(h *prometheantest.Hub) {
				n := 0
				h.Eventually(func() error { n++; return errors.New("the shop is closed") })
			},
			`Eventually: not within 1m0s (virtual time): the shop is closed
  no other topic has events`, false,
		},
		"what cannot be expected": {
			func(h *prometheantest.Hub) { h.ExpectEvents("orders.placed", 1, make(chan int)) },
			`ExpectEvents orders.placed: what is expected as event 2 of 2: it has no JSON form: json: unsupported type: chan int`, false,
		},
		"what is no JSON": {
			func(h *prometheantest.Hub) { h.ExpectEvents("orders.placed", json.RawMessage(`{"a":1} 2`)) },
			`ExpectEvents orders.placed: what is expected as event 1 of 1: it is no JSON: there is more after the value: {"a":1} 2`, false,
		},
		"a bad topic": {
			func(h *prometheantest.Hub) { h.ExpectEvents("Orders", 1) },
			`ExpectEvents Orders: read: topic`, true,
		},
		"a publish that is refused": {
			func(h *prometheantest.Hub) { h.Publish("dlq.orders", map[string]any{"a": 1}) },
			`only the hub itself writes under dlq.
    payload {"a":1}`, true,
		},
		"a fault that nobody meets": {
			func(h *prometheantest.Hub) { h.FailNextAppend(errors.New("no disk"), "orders.paid") },
			`: FailNextAppend: no such append came, so that nothing has failed`, true,
		},
		"a fault without an error": {
			func(h *prometheantest.Hub) { h.FailNextAppend(nil) },
			`FailNextAppend: the error is nil`, false,
		},
		"no lease": {
			func(h *prometheantest.Hub) { h.ExpireLeases("heartbeat.received", "process-projector") },
			`ExpireLeases: topic heartbeat.received, group process-projector: the group has no event in hand, waited 1m0s`, false,
		},
		"no group": {
			func(h *prometheantest.Hub) { h.ExpireLeases("orders.placed", "nobody") },
			`ExpireLeases: topic orders.placed, group nobody: `, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said, logs := failing(t, c.f)
			if said != c.want && !(c.part && strings.Contains(said, c.want)) {
				t.Errorf("said:\n%s\n\nwant:\n%s", said, c.want)
			}
			if !strings.HasPrefix(logs, "what the hub did:\n") && !strings.Contains(c.want, "no such append") {
				t.Errorf("the record was not printed: %q", logs)
			}
		})
	}
}

func TestLongListsAreCut(t *testing.T) {
	said, _ := failing(t, func(h *prometheantest.Hub) {
		var want []any
		for i := range 100 {
			h.Publish("orders.placed", map[string]any{"n": i, "text": strings.Repeat("ä", 300)})
			want = append(want, map[string]any{"n": i})
		}
		want[70] = map[string]any{"n": -1}
		h.ExpectEvents("orders.placed", want...)
	})
	if lines := strings.Count(said, "\n"); lines > 40 || len(said) > 10_000 {
		t.Errorf("%d lines, %d bytes", lines, len(said))
	}
	for _, part := range []string{"event 71 of 100", "… 60 as expected", "≠ #71", "… 20 more", "- want -1", "+ got  70"} {
		if !strings.Contains(said, part) {
			t.Errorf("%q is missing in\n%s", part, said)
		}
	}
}

// TestMatches is what has to be let pass.
func TestMatches(t *testing.T) {
	both(t, func(t *testing.T, h *prometheantest.Hub) {
		got := h.Publish("orders.placed", json.RawMessage(`{"n":1.0,"big":12345678901234567890,"list":[{"a":1,"b":2}],"text":"<"}`),
			promethean.Key("k"), promethean.Tags("x"), promethean.Header("x-a", "1"), promethean.Header("x-b", "2"))
		list := h.ExpectEvents("orders.placed", prometheantest.Event{
			ID: got.ID, Key: "k", Tags: []string{"x"}, Headers: map[string]string{"x-b": "2"},
			Payload: json.RawMessage(`{"n":1e0,"list":[{"b":2}],"big":12345678901234567890}`),
		})
		if len(list) != 1 || list[0].Seq != 1 || list[0].ID != got.ID {
			t.Errorf("%+v", list)
		}
		h.Publish("orders.placed", nil)
		h.Publish("orders.placed", "text")
		h.ExpectEvents("orders.placed", nil, &prometheantest.Event{Payload: prometheantest.Exactly("text")})
		h.ExpectEvents("orders.placed") // nothing is always there
		h.Publish("orders.placed", json.RawMessage(`12345678901234567891`))
		h.ExpectEvents("orders.placed", func(e event.Event) error {
			if string(e.Payload) != `12345678901234567891` {
				return errors.New("the payload was changed")
			}
			return nil
		})
		if n := len(h.Events("orders.placed")); n != 4 {
			t.Errorf("%d events", n)
		}
		h.ExpectNone("orders.placed", 10*time.Millisecond)
	}, prometheantest.WithoutProjector())
}

// TestBigNumbersDiffer guards against a comparison by float64.
func TestBigNumbersDiffer(t *testing.T) {
	said, _ := failing(t, func(h *prometheantest.Hub) {
		h.Publish("orders.placed", json.RawMessage(`12345678901234567890`))
		h.ExpectEvents("orders.placed", json.RawMessage(`12345678901234567891`))
	})
	if !strings.Contains(said, "+ got  12345678901234567890") {
		t.Error(said)
	}
}

func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		got := try(func(t testing.TB) {
			h := prometheantest.Start(t, prometheantest.Patience(7*time.Second), prometheantest.WithoutProjector())
			h.ExpectEvents("a.b", 1)
		})
		if took := time.Since(began); took != 7*time.Second || !strings.Contains(got.said(), "0 of 1 events came within 7s") {
			t.Errorf("%v: %s", took, got.said())
		}
	})
}

// TestLastMoment expects what comes at the very end of its patience.
func TestLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := prometheantest.Start(t, prometheantest.Patience(time.Second), prometheantest.WithoutProjector())
		time.AfterFunc(time.Second, func() { h.Publish("a.b", 1) })
		h.ExpectEvents("a.b", 1)
		time.AfterFunc(time.Second, func() { h.Publish("a.b", 2) })
		got := try(func(testing.TB) {
			h.Eventually(func() error {
				if len(h.Events("a.b")) < 2 {
					return errors.New("not yet")
				}
				return nil
			})
		})
		if got.Failed() {
			t.Error(got.said())
		}
	})
}
