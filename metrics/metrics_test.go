package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/metrics"
)

func TestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(metrics.Options{})
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(m)
		hub, err := promethean.OpenMemory(promethean.Options{Metrics: m})
		if err != nil {
			t.Fatal(err)
		}
		failed := false
		_, err = hub.Subscribe(t.Context(), "t.a", "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
			switch {
			case e.Key == "dead":
				return promethean.Dead(errors.New("no"))
			case e.Key == "again" && !failed:
				failed = true
				return promethean.Retry(0, errors.New("later"))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"ok", "again", "dead"} {
			if _, err := hub.Emit(t.Context(), "t.a", 1, promethean.Key(key)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if err := hub.Engine().Make(t.Context(), "t.a", "behind", group.Settings{}, group.Start{From: group.Earliest}); err != nil {
			t.Fatal(err)
		}
		lag := "# HELP group_lag Events that are not settled.\n# TYPE group_lag gauge\n" +
			"group_lag{group=\"behind\",topic=\"t.a\"} 3\ngroup_lag{group=\"g\",topic=\"t.a\"} 0\n"
		if err := testutil.GatherAndCompare(reg, strings.NewReader(lag), "group_lag"); err != nil {
			t.Error(err)
		}
		if err := hub.Close(); err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for _, c := range []struct {
			name, help, labels string
			n                  int
		}{
			{"events_acked_total", "Events settled by an ack.", `group="g",topic="t.a"`, 2},
			{"events_dead_lettered_total", "Events moved to the dead letters.", `group="g",topic="t.a"`, 1},
			{"events_delivered_total", "Events handed out.", `group="g",topic="t.a"`, 4},
			{"events_nacked_total", "Deliveries that failed.", `group="g",topic="t.a"`, 2},
			{"events_published_total", "Events stored.", `topic="t.a"`, 3},
			{"events_redelivered_total", "Events handed out again.", `group="g",topic="t.a"`, 1},
		} {
			fmt.Fprintf(&want, "# HELP %s %s\n# TYPE %s counter\n%s{%s} %d\n", c.name, c.help, c.name, c.name, c.labels, c.n)
		}
		fmt.Fprintf(&want, "# HELP events_inflight Events handed out and not settled.\n# TYPE events_inflight gauge\nevents_inflight{group=\"g\",topic=\"t.a\"} 0\n")
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want.String()), "events_acked_total", "events_dead_lettered_total",
			"events_delivered_total", "events_nacked_total", "events_published_total", "events_redelivered_total", "events_inflight"); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"publish_duration_ms", "delivery_handler_duration_ms", "delivery_latency_ms", "subscribe_poll_duration_ms", "store_sync_duration_ms"} {
			if n, err := testutil.GatherAndCount(reg, name); err != nil || n != 1 {
				t.Errorf("%s: %d series, %v", name, n, err)
			}
		}
	})
}

// Label values are bounded: what is beyond is counted together.
func TestBoundedSeries(t *testing.T) {
	m := metrics.New(metrics.Options{MaxSeries: 3, Namespace: "prom"})
	reg := prometheus.NewRegistry()
	reg.MustRegister(m)
	for i := range 10 {
		m.Published(fmt.Sprint("t", i), 0)
		m.Delivered(fmt.Sprint("t", i), "g", false)
	}
	for _, name := range []string{"prom_events_published_total", "prom_events_delivered_total"} {
		if n, err := testutil.GatherAndCount(reg, name); err != nil || n != 4 {
			t.Errorf("%s: %d series, want 3 and other; %v", name, n, err)
		}
	}
}
