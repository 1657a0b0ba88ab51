package prometheantest_test

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

	"promethean"
	"promethean/event"
	"promethean/examples/process"
	"promethean/gateway"
	"promethean/gateway/auth"
	"promethean/prometheantest"
	"promethean/store"
)

// run stands for go test: it runs what would be the body of a test, and prints
// how that ended.
func run(test func(t testing.TB)) {
	if got := try(test); got.Failed() {
		fmt.Println("FAIL", got.said())
		return
	}
	fmt.Println("ok")
}

func ExampleStart() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		h.Publish("heartbeat.received", process.Heartbeat{PID: 1, Name: "stt", Host: "local"})
		h.ExpectEvents("process.state", map[string]any{"processId": "local:stt:1", "status": "alive"})
	})
	// Output: ok
}

func ExampleWithoutProjector() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t, prometheantest.WithoutProjector())
		h.Publish("heartbeat.received", process.Heartbeat{PID: 1, Name: "stt", Host: "local"})
		h.ExpectNone("process.state", 10*time.Millisecond)
	})
	// Output: ok
}

func ExampleInMemory() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t, prometheantest.InMemory())
		r, err := h.Client().Get(h.URL() + "/healthz")
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer func() { _ = r.Body.Close() }()
		fmt.Println(h.URL(), r.StatusCode)
	})
	// Output:
	// http://hub.test 200
	// ok
}

func ExamplePatience() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t, prometheantest.Patience(20*time.Millisecond))
		h.ExpectEvents("orders.placed", map[string]any{"item": "bread"})
	})
	// Output:
	// FAIL ExpectEvents orders.placed: 0 of 1 events came within 20ms
	//     missing 1: {"item":"bread"}
	//   there are no events of orders.placed
	//   no other topic has events
}

func ExampleHubOptions() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t, prometheantest.HubOptions(promethean.Options{Limits: event.Limits{Payload: 10}}))
		_, err := h.Bus().Emit(t.Context(), "orders.placed", "more than ten bytes")
		fmt.Println(err != nil)
	})
	// Output:
	// true
	// ok
}

func ExampleGatewayOptions() {
	run(func(t testing.TB) {
		tokens, err := auth.NewTokens(auth.Token{Name: "shop", Secret: "a-secret-of-the-test", Scopes: []string{"publish:orders.*"}})
		if err != nil {
			t.Fatalf("%v", err)
		}
		h := prometheantest.Start(t, prometheantest.GatewayOptions(gateway.Options{Verifier: tokens}))
		for _, token := range []string{"", "Bearer a-secret-of-the-test"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.URL()+"/publish/orders.placed", strings.NewReader(`1`))
			if err != nil {
				t.Fatalf("%v", err)
			}
			r.Header.Set("Authorization", token)
			got, err := h.Client().Do(r)
			if err != nil {
				t.Fatalf("%v", err)
			}
			_ = got.Body.Close()
			fmt.Println(got.StatusCode)
		}
	})
	// Output:
	// 401
	// 201
	// ok
}

func ExampleProjectorOptions() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t, prometheantest.ProjectorOptions(process.Options{StaleAfter: 20 * time.Millisecond, ScanEvery: 5 * time.Millisecond}))
		h.Publish("heartbeat.received", process.Heartbeat{PID: 1, Name: "stt", Host: "local"})
		h.ExpectEvents("process.state", map[string]any{"status": "alive"}, map[string]any{"status": "stale"})
	})
	// Output: ok
}

func ExampleHub_Bus() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		// The code under test takes a promethean.Bus.
		var bus promethean.Bus = h.Bus()
		if _, err := promethean.PublishAs(t.Context(), bus, "orders.placed", "bread"); err != nil {
			t.Fatalf("%v", err)
		}
		h.ExpectEvents("orders.placed", "bread")
	})
	// Output: ok
}

func ExampleHub_Client() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		r, err := h.Client().Post(h.URL()+"/publish/orders.placed?key=a", "application/json", strings.NewReader(`{"item":"bread"}`))
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer func() { _ = r.Body.Close() }()
		h.ExpectEvents("orders.placed", prometheantest.Event{Key: "a", Payload: map[string]any{"item": "bread"}})
	})
	// Output: ok
}

func ExampleHub_URL() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		// On a port, other programs reach it too.
		fmt.Println(strings.HasPrefix(h.URL(), "http://127.0.0.1:"))
	})
	// Output:
	// true
	// ok
}

func ExampleHub_Dial() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		transport := &http.Transport{DialContext: h.Dial}
		defer transport.CloseIdleConnections()
		r, err := (&http.Client{Transport: transport}).Get(h.URL() + "/readyz")
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer func() { _ = r.Body.Close() }()
		fmt.Println(r.StatusCode)
	})
	// Output:
	// 200
	// ok
}

func ExampleHub_Publish() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		got := h.Publish("orders.placed", map[string]any{"item": "bread"}, promethean.Key("a"), promethean.Tags("#early"))
		fmt.Println(got.Topic, got.Seq)
	})
	// Output:
	// orders.placed 1
	// ok
}

func ExampleHub_Events() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		h.Publish("orders.placed", json.RawMessage(`{"item": "bread"}`), promethean.Key("a"))
		for _, e := range h.Events("orders.placed") {
			fmt.Println(e.Seq, e.Key, string(e.Payload))
		}
	})
	// Output:
	// 1 a {"item": "bread"}
	// ok
}

func ExampleHub_Eventually() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		h.Publish("heartbeat.received", process.Heartbeat{PID: 1, Name: "stt", Host: "local"})
		h.Eventually(func() error {
			lag, err := h.Bus().Lag(t.Context(), "heartbeat.received", "process-projector")
			if err == nil && lag.Events > 0 {
				err = fmt.Errorf("%d heartbeats are not handled", lag.Events)
			}
			return err
		})
	})
	// Output: ok
}

func ExampleHub_ExpectEvents() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		h.Publish("orders.placed", map[string]any{"item": "bread", "count": 2}, promethean.Key("a"))
		h.Publish("orders.placed", map[string]any{"item": "cake", "count": 1}, promethean.Key("b"))
		h.ExpectEvents("orders.placed", map[string]any{"item": "bread"})
		h.ExpectEvents("orders.placed", map[string]any{"item": "tart"}) // the next one
	})
	// Output:
	// FAIL ExpectEvents orders.placed: event 1 of 1 is not as expected (seq 2)
	//     payload.item
	//       - want "tart"
	//       + got  "cake"
	//   events of orders.placed since the last expectation:
	//   ≠ #2 b  {"count":1,"item":"cake"}
	//   no other topic has events
}

func ExampleHub_ExpectNone() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		h.Publish("orders.placed", "bread")
		h.ExpectEvents("orders.placed", "bread")
		h.ExpectNone("orders.placed", 10*time.Millisecond) // in a bubble an hour takes no time
	})
	// Output: ok
}

func ExampleEvent() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		h.Publish("orders.placed", map[string]any{"item": "bread", "count": 2}, promethean.Key("a"), promethean.Header("x-shop", "north"))
		h.ExpectEvents("orders.placed", prometheantest.Event{
			Key: "a", Headers: map[string]string{"x-shop": "north"}, Payload: map[string]any{"count": 2},
		})
	})
	// Output: ok
}

func ExampleExactly() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		h.Publish("orders.placed", map[string]any{"item": "bread", "count": 2})
		h.ExpectEvents("orders.placed", prometheantest.Exactly(map[string]any{"item": "bread"}))
	})
	// Output:
	// FAIL ExpectEvents orders.placed: event 1 of 1 is not as expected (seq 1)
	//     payload.count
	//       - want nothing
	//       + got  2
	//   events of orders.placed:
	//   ≠ #1  {"count":2,"item":"bread"}
	//   no other topic has events
}

func ExampleHub_FailNextAppend() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		h.FailNextAppend(store.ErrUnavailable)
		_, err := h.Bus().Emit(t.Context(), "orders.placed", "bread")
		fmt.Println(errors.Is(err, store.ErrUnavailable))
		h.ExpectNone("orders.placed", 10*time.Millisecond)
	})
	// Output:
	// true
	// ok
}

func ExampleHub_DropConnections() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		r, err := h.Client().Get(h.URL() + "/subscribe?topic=orders.placed")
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer func() { _ = r.Body.Close() }()
		fmt.Println(h.DropConnections())
		_, err = io.ReadAll(r.Body)
		fmt.Println(err != nil)
	})
	// Output:
	// 1
	// true
	// ok
}

func ExampleHub_ExpireLeases() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		var attempt atomic.Int32
		if _, err := h.Bus().Subscribe(t.Context(), "orders.placed", "shop", func(ctx context.Context, _ event.Event, d *promethean.Delivery) error {
			if attempt.Store(int32(d.Attempt)); d.Attempt == 1 {
				<-ctx.Done() // it hangs
			}
			return nil
		}); err != nil {
			t.Fatalf("%v", err)
		}
		h.Publish("orders.placed", "bread")
		fmt.Println(h.ExpireLeases("orders.placed", "shop"))
		h.Eventually(func() error {
			if attempt.Load() < 2 {
				return errors.New("it has not come back")
			}
			return nil
		})
	})
	// Output:
	// 1
	// ok
}

func ExampleHub_Stop() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t)
		h.Stop() // how does the code under test take that?
		_, err := h.Bus().Emit(t.Context(), "orders.placed", "bread")
		fmt.Println(errors.Is(err, promethean.ErrClosed))
	})
	// Output:
	// true
	// ok
}

func ExampleHub_Recorder() {
	run(func(t testing.TB) {
		h := prometheantest.Start(t, prometheantest.WithoutProjector())
		h.Publish("orders.placed", "bread", promethean.Key("a"))
		for _, r := range h.Recorder().Records() {
			fmt.Println(r.Kind, r.Topic, r.Event.Seq, r.Event.Key)
		}
	})
	// Output:
	// published orders.placed 1 a
	// ok
}

func ExampleRecorder() {
	record := prometheantest.Record{
		After: 1500 * time.Millisecond, Kind: prometheantest.Nacked, Topic: "orders.placed", Group: "shop",
		Event: event.Event{ID: event.NewID(), Seq: 7, Key: "a"}, Attempt: 2, Err: errors.New("the shop is closed"),
	}
	fmt.Println(strings.TrimSpace(record.String()))
	// Output: +1.5s  nacked      orders.placed #7 a → shop (attempt 2)  the shop is closed
}
