package prometheantest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/event"
	"promethean/prometheantest"
	"promethean/store"
)

func TestFailNextAppend(t *testing.T) {
	both(t, func(t *testing.T, h *prometheantest.Hub) {
		noDisk := errors.New("no disk")
		h.FailNextAppend(noDisk, "orders.paid")
		h.FailNextAppend(store.ErrUnavailable)
		if _, err := h.Bus().Emit(t.Context(), "orders.placed", 1); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("the first append: %v", err)
		}
		h.Publish("orders.placed", 2)
		if _, err := h.Bus().Publish(t.Context(), event.New("orders.placed", []byte(`3`)), event.New("orders.paid", []byte(`4`))); !errors.Is(err, noDisk) {
			t.Errorf("the append with orders.paid: %v", err)
		}
		h.Publish("orders.paid", 5)
		h.ExpectEvents("orders.placed", 2)
		h.ExpectEvents("orders.paid", 5)
		// Over HTTP it is what the table of codes says.
		h.FailNextAppend(store.ErrUnavailable)
		if status, answer := call(t, h, "/publish/orders.placed", `6`); status != 503 || answer["code"] != "unavailable" {
			t.Errorf("%d %v", status, answer)
		}
		h.ExpectNone("orders.placed", 10*time.Millisecond)
		text := h.Recorder().String()
		for _, part := range []string{"refused     orders.placed #?  1  store is unavailable", "published   orders.placed #1  2", "refused     orders.paid #?  4  no disk"} {
			if !strings.Contains(text, part) {
				t.Errorf("%q is missing in\n%s", part, text)
			}
		}
	}, prometheantest.WithoutProjector())
}

// TestProjectorSurvivesFaults lets the projector's own publish fail: the
// heartbeat comes again, and leads to one state.
func TestProjectorSurvivesFaults(t *testing.T) {
	both(t, func(t *testing.T, h *prometheantest.Hub) {
		h.FailNextAppend(store.ErrUnavailable, "process.state")
		h.FailNextAppend(store.ErrUnavailable, "process.state")
		h.Publish("heartbeat.received", beat)
		h.ExpectEvents("process.state", map[string]any{"status": "alive"})
		h.ExpectNone("process.state", 10*time.Millisecond)
	})
}

// TestFailedDeadLetter stops a group by a fault. The hub says so when it is
// closed; the test asked for it and does not fail.
func TestFailedDeadLetter(t *testing.T) {
	both(t, func(t *testing.T, h *prometheantest.Hub) {
		if _, err := h.Bus().Subscribe(t.Context(), "orders.placed", "shop", func(context.Context, event.Event, *promethean.Delivery) error {
			return promethean.Dead(errors.New("poison"))
		}); err != nil {
			t.Fatal(err)
		}
		h.FailNextAppend(errors.New("no disk"), "dlq.orders.placed")
		h.Publish("orders.placed", 1)
		h.Eventually(func() error {
			if text := h.Recorder().String(); !strings.Contains(text, `msg="group stops" topic=orders.placed group=shop cause="no disk"`) {
				return errors.New("the group goes on")
			}
			return nil
		})
		h.ExpectNone("dlq.orders.placed", 10*time.Millisecond)
	}, prometheantest.WithoutProjector())
}

func TestExpireLeases(t *testing.T) {
	both(t, func(t *testing.T, h *prometheantest.Hub) {
		var attempts atomic.Int32
		over := make(chan error, 1)
		if _, err := h.Bus().Subscribe(t.Context(), "orders.placed", "shop", func(ctx context.Context, _ event.Event, d *promethean.Delivery) error {
			attempts.Store(int32(d.Attempt))
			if d.Attempt == 1 {
				<-ctx.Done()
				over <- ctx.Err()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		h.Publish("orders.placed", 1)
		if n := h.ExpireLeases("orders.placed", "shop"); n != 1 {
			t.Errorf("%d leases", n)
		}
		if err := <-over; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the handler's context ended with %v", err)
		}
		h.Eventually(func() error {
			if n := attempts.Load(); n != 2 {
				return errors.New("it has not come back")
			}
			return nil
		})
	}, prometheantest.WithoutProjector())
}

func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := prometheantest.Start(t, prometheantest.WithoutProjector())
		if _, err := h.Bus().Subscribe(t.Context(), "orders.placed", "shop", func(_ context.Context, e event.Event, d *promethean.Delivery) error {
			switch {
			case string(e.Payload) == "2":
				return promethean.Dead(errors.New("poison\nof two lines"))
			case d.Attempt == 1:
				return promethean.Retry(time.Second, errors.New("closed"))
			}
			return nil
		}, promethean.Ordered("topic")); err != nil {
			t.Fatal(err)
		}
		got := h.Publish("orders.placed", 1, promethean.Key("k"))
		synctest.Wait()
		h.Publish("orders.placed", "again", promethean.ID(got.ID))
		h.Publish("orders.placed", 2)
		h.ExpectEvents("dlq.orders.placed", map[string]any{"err": "poison\nof two lines"})
		// A group that is served over HTTP is known by name only.
		if _, answer := call(t, h, "/pull", `{"topic":"orders.placed","group":"far","max":1,"opts":{"from":"earliest"}}`); len(answer["events"].([]any)) != 1 {
			t.Fatal(answer)
		}
		synctest.Wait()
		text := h.Recorder().String()
		const want = `       +0s  published   orders.placed #1 k  1
       +0s  delivered   orders.placed #1 k → shop
       +0s  nacked      orders.placed #1 k → shop  closed
       +0s  duplicate   orders.placed #1
       +0s  published   orders.placed #2  2
       +1s  delivered   orders.placed #1 k → shop (attempt 2)
       +1s  acked       orders.placed #1 k → shop
       +1s  delivered   orders.placed #2 → shop
       +1s  nacked      orders.placed #2 → shop  poison …
       +1s  published   dlq.orders.placed #1  {"topic":"orders.placed",…
       +1s  delivered   orders.placed → far
`
		wantLines, lines := strings.Split(want, "\n"), strings.Split(text, "\n")
		for i, w := range wantLines {
			w = strings.TrimSpace(strings.TrimSuffix(w, "…"))
			if i >= len(lines) || !strings.HasPrefix(strings.TrimSpace(lines[i]), w) && !strings.Contains(lines[i], w) {
				t.Fatalf("line %d is not %q:\n%s", i+1, w, text)
			}
		}
		var acked int
		for _, r := range h.Recorder().Records() {
			if r.Kind == prometheantest.Acked && r.Event.ID == got.ID && r.Group == "shop" && r.After == time.Second {
				acked++
			}
		}
		if acked != 1 {
			t.Errorf("%d acks of %s", acked, got.ID)
		}
	})
}

// TestRecorderIsBounded keeps the last records.
func TestRecorderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := prometheantest.Start(t, prometheantest.WithoutProjector())
		const n = 25_000
		for range n / 500 {
			batch := make([]event.Event, 500)
			for i := range batch {
				batch[i] = event.New("a.b", []byte("1"))
			}
			if _, err := h.Bus().Publish(t.Context(), batch...); err != nil {
				t.Fatal(err)
			}
		}
		list := h.Recorder().Records()
		if len(list) != 10_000 || list[len(list)-1].Event.Seq != n || list[0].Event.Seq != n-10_000+1 {
			t.Errorf("%d records up to %d", len(list), list[len(list)-1].Event.Seq)
		}
		if text := h.Recorder().String(); !strings.HasPrefix(text, "    … 24950 earlier\n") {
			t.Error(text)
		}
	})
}
