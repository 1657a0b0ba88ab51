package prometheantest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"promethean"
	"promethean/event"
	"promethean/examples/process"
	"promethean/prometheantest"
	"promethean/view"
)

// both runs a test in a bubble and on a port.
func both(t *testing.T, f func(t *testing.T, h *prometheantest.Hub), opts ...prometheantest.Option) {
	t.Helper()
	t.Run("bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, prometheantest.Start(t, opts...)) })
	})
	t.Run("port", func(t *testing.T) {
		before := goleak.IgnoreCurrent()
		t.Cleanup(func() { goleak.VerifyNone(t, before) }) // after the hub's own
		f(t, prometheantest.Start(t, opts...))
	})
	t.Run("memory", func(t *testing.T) {
		f(t, prometheantest.Start(t, append(opts, prometheantest.InMemory())...))
	})
}

var beat = process.Heartbeat{PID: 1, Name: "stt", Host: "local", CPUPct: 1, MemMB: 2}

// TestHarness goes from end to end: a heartbeat leads to a
// state, and the projector's group has a cursor.
func TestHarness(t *testing.T) {
	both(t, func(t *testing.T, h *prometheantest.Hub) {
		beat := h.Publish("heartbeat.received", map[string]any{"pid": 1, "name": "stt", "host": "local", "cpu_pct": 1, "mem_mb": 2})
		h.ExpectEvents("process.state", prometheantest.Event{
			Key:      "local:stt:1",
			CausedBy: []event.ID{beat.ID},
			Payload:  process.State{ProcessID: "local:stt:1", Name: "stt", Host: "local", PID: 1, CPUPct: 1, MemMB: 2, LastSeenTS: beat.TS, Status: process.Alive},
		})
		// The state is published before the heartbeat is acked.
		h.Eventually(func() error {
			at, err := h.Bus().Cursor(t.Context(), "heartbeat.received", "process-projector")
			if err == nil && at.LastID != beat.ID {
				err = fmt.Errorf("the cursor is at seq %d", at.Seq)
			}
			return err
		})
	})
}

func TestSilenceTakesNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := prometheantest.Start(t)
		began := time.Now()
		h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, map[string]any{"status": "alive"})
		h.ExpectEvents(process.StateTopic, map[string]any{"status": "stale"})
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("stale after %v of virtual time, want 15s", took)
		}
		h.ExpectNone(process.StateTopic, time.Hour)
		if took := time.Since(began); took != time.Hour+15*time.Second {
			t.Errorf("an hour of nothing took %v of virtual time", took-15*time.Second)
		}
	})
}

// call posts to the hub and gives the answer.
func call(t *testing.T, h *prometheantest.Hub, path, body string) (int, map[string]any) {
	t.Helper()
	r, err := h.Client().Post(h.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	var answer map[string]any
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, answer
}

func TestHTTPAndWebSocket(t *testing.T) {
	both(t, func(t *testing.T, h *prometheantest.Hub) {
		status, answer := call(t, h, "/publish/heartbeat.received", `{"pid":1,"name":"stt","host":"local","cpu_pct":1,"mem_mb":2}`)
		if status != http.StatusCreated || answer["seq"] != 1.0 {
			t.Fatalf("%d %v", status, answer)
		}
		ws, _, err := websocket.Dial(t.Context(), h.URL()+"/ws", &websocket.DialOptions{HTTPClient: h.Client()}) //nolint:bodyclose // it has none
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ws.CloseNow() }()
		if err := ws.Write(t.Context(), websocket.MessageText, []byte(`{"op":"SUBSCRIBE","topic":"process.state","group":"watch","opts":{"from":"earliest"}}`)); err != nil {
			t.Fatal(err)
		}
		var frame struct {
			Op    string
			Event struct{ Payload process.State }
		}
		for frame.Op != "EVENT" {
			_, text, err := ws.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &frame); err != nil {
				t.Fatal(err)
			}
		}
		if got := frame.Event.Payload; got.ProcessID != "local:stt:1" || got.Status != process.Alive {
			t.Errorf("%+v", got)
		}
		if h.DropConnections() == 0 {
			t.Error("no connection was dropped")
		}
		if _, _, err := ws.Read(t.Context()); err == nil || errors.As(err, new(websocket.CloseError)) {
			t.Errorf("the connection ended with a word: %v", err)
		}
		// What it held comes back to the next one, counted.
		_, answer = call(t, h, "/pull", `{"topic":"process.state","group":"watch","max":1,"wait_ms":5000}`)
		if list := answer["events"].([]any); len(list) != 1 || list[0].(map[string]any)["attempt"] != 2.0 {
			t.Errorf("%v", answer)
		}
	})
}

// TestStopsWithItsTest leaves connections of all kinds open, and a request that
// waits.
func TestStopsWithItsTest(t *testing.T) {
	for _, opts := range [][]prometheantest.Option{nil, {prometheantest.InMemory()}, {prometheantest.WithoutProjector()}} {
		before := goleak.IgnoreCurrent()
		waits := make(chan error, 1)
		var late *prometheantest.Hub
		got := try(func(t testing.TB) {
			h := prometheantest.Start(t, opts...)
			late = h
			h.Publish("a.b", 1)
			r, err := h.Client().Get(h.URL() + "/subscribe?topic=a.b&from=earliest") //nolint:bodyclose // the hub has to end it
			if err != nil {
				t.Fatalf("%v", err)
			}
			go func() {
				_, err := io.Copy(io.Discard, r.Body)
				waits <- err
			}()
			ws, _, err := websocket.Dial(context.Background(), h.URL()+"/ws", &websocket.DialOptions{HTTPClient: h.Client()}) //nolint:bodyclose // it has none
			if err != nil {
				t.Fatalf("%v", err)
			}
			_ = ws.CloseRead(context.Background())
		})
		if got.Failed() {
			t.Fatal(got.said())
		}
		<-waits // however it ended
		if _, err := late.Bus().Emit(t.Context(), "a.b", 2); !errors.Is(err, promethean.ErrClosed) {
			t.Errorf("after its test the hub answers %v", err)
		}
		if _, err := late.Dial(t.Context(), "tcp", strings.TrimPrefix(late.URL(), "http://")); err == nil {
			t.Error("after its test the hub takes connections")
		}
		goleak.VerifyNone(t, before)
	}
}

func TestDialReachesTheHubOnly(t *testing.T) {
	h := prometheantest.Start(t, prometheantest.WithoutProjector())
	_, err := h.Client().Get("http://example.org/") //nolint:bodyclose // there is none
	if err == nil || !strings.Contains(err.Error(), "reaches the hub of the test only") {
		t.Error(err)
	}
	if r, err := h.Client().Get(h.URL() + "/readyz"); err != nil || r.StatusCode != http.StatusOK {
		t.Error(r, err)
	} else {
		_ = r.Body.Close()
	}
}

func TestStopTwice(t *testing.T) {
	both(t, func(t *testing.T, h *prometheantest.Hub) {
		h.Stop()
		h.Stop()
		if _, err := h.Bus().Emit(t.Context(), "a.b", 1); !errors.Is(err, promethean.ErrClosed) {
			t.Error(err)
		}
	})
}

// A view of the code under test is served, and ends with the hub.
func TestViews(t *testing.T) { both(t, testViews, prometheantest.WithoutProjector()) }

func testViews(t *testing.T, h *prometheantest.Hub) {
	v, err := view.Changelog(t.Context(), h.Bus(), view.ChangelogOptions{Topic: "orders.placed", Collection: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Views().Add(v); err != nil {
		t.Fatal(err)
	}
	r, err := h.Bus().Emit(t.Context(), "orders.placed", map[string]int{"n": 1}, promethean.Key("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Wait(t.Context(), r.Seq); err != nil {
		t.Fatal(err)
	}
	got, err := h.Client().Get(h.URL() + "/views/orders/snap/a")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	if got.StatusCode != http.StatusOK || got.Header.Get("ETag") == "" {
		t.Errorf("%s %v", got.Status, got.Header)
	}
}
