package gateway_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"promethean"
	"promethean/changefeed"
	"promethean/cluster"
	"promethean/event"
	"promethean/gateway"
	"promethean/internal/mongotest"
	"promethean/internal/netfault"
	"promethean/store"
	"promethean/store/mongostore"
	"promethean/view"
)

// A change feed runs at one hub. Any of them tells how it is doing, and has it
// begin anew.
func TestFeedsAtAnyHub(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		sets := make([]*changefeed.Set, 2)
		var logs []promethean.Log
		h := fleet(t, 2, ownLong, func(t testing.TB) (promethean.Log, *netfault.Proxy) {
			log, p := open(t)
			logs = append(logs, log)
			return log, p
		}, func(i int, o *gateway.Options, _ *cluster.Options) {
			leases, _ := store.As[store.Leases](logs[i])
			sets[i] = changefeed.NewSet(changefeed.SetOptions{Leases: leases, Owner: fmt.Sprint("hub ", i), Logger: o.Logger})
			o.Changefeeds = sets[i]
		})
		defer func() {
			if err := errors.Join(sets[0].Close(), sets[1].Close()); err != nil {
				t.Error(err)
			}
		}()
		keep := &places{} // of both, as one database would
		for i := range h {
			err := sets[i].Add(h[i].g.Bus(), func() (changefeed.Source, changefeed.Tokens, error) { return &three{}, keep, nil },
				changefeed.Options{Name: "things", Topic: "things.changed"})
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				until(t, "the feed", func() bool { return sets[0].List()[0].State == changefeed.Streaming })
			}
		}
		until(t, "the other hub knows", func() bool { return sets[1].List()[0].State == changefeed.Elsewhere })
		for i := range h {
			got := askFor(h[i].served, "GET", "/ops/changefeeds", "").text
			if !strings.Contains(got, `"state":"streaming"`) || !strings.Contains(got, `"hub":"hub 0"`) || !strings.Contains(got, `"published":3`) {
				t.Errorf("hub %d says %s", i, got)
			}
		}
		if a := askFor(h[1].served, "POST", "/ops/changefeeds/things/resync", ""); a.status != 202 || !strings.Contains(a.text, `"hub":"hub 0"`) {
			t.Errorf("resync: %d %s", a.status, a.text)
		}
		until(t, "everything anew", func() bool {
			return strings.Contains(askFor(h[1].served, "GET", "/ops/changefeeds", "").text, `"duplicates":3`)
		})
		if a := askFor(h[1].served, "POST", "/ops/changefeeds/none/resync", ""); a.status != 404 {
			t.Errorf("a feed that there is not: %d %s", a.status, a.text)
		}

		// Its hub cannot be reached: what is known is told.
		h[0].front.Down(true)
		got := askFor(h[1].served, "GET", "/ops/changefeeds", "").text
		if !strings.Contains(got, `"state":"elsewhere"`) || !strings.Contains(got, `"hub":"hub 0"`) {
			t.Errorf("with its hub away: %s", got)
		}
		a := askFor(h[1].served, "POST", "/ops/changefeeds/things/resync", "")
		if a.status != 503 || a.code != "unavailable" || !strings.Contains(a.text, "hub 0") {
			t.Errorf("resync with its hub away: %d %s", a.status, a.text)
		}
		h[0].front.Down(false)

		// Its hub ends: another one has the feed.
		if err := sets[0].Close(); err != nil {
			t.Fatal(err)
		}
		until(t, "the other hub goes on", func() bool { return sets[1].List()[0].State != changefeed.Elsewhere })
		for i := range h {
			if got := askFor(h[i].served, "GET", "/ops/changefeeds", "").text; !strings.Contains(got, `"hub":"hub 1"`) {
				t.Errorf("hub %d says %s", i, got)
			}
		}
	})
}

// Where hubs share their documents one of them projects, and any of them can be
// asked to build a view anew, and how far that is.
func TestRebuildAtAnyHub(t *testing.T) {
	onMongoDB(t, func(t *testing.T, uri string) {
		database := "gateway_" + strings.ReplaceAll(event.NewID().String(), "-", "")
		sets := []*view.Set{view.NewSet(), view.NewSet()}
		h := fleet(t, 2, ownLong, func(t testing.TB) (promethean.Log, *netfault.Proxy) {
			p := netfault.New(t, mongotest.Host(t, uri))
			log, err := mongostore.Open(t.Context(), mongotest.Direct(p.Addr()), mongostore.Options{Database: database})
			if err != nil {
				t.Fatal(err)
			}
			return log, p
		}, func(i int, o *gateway.Options, _ *cluster.Options) { o.Views = sets[i] })
		h[0].publish("orders.placed", "a", `{"n":1}`, "b", `{"n":2}`)
		for i := range h {
			v, err := view.Changelog(t.Context(), h[i].hub, view.ChangelogOptions{Topic: "orders.placed", Collection: "orders"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := v.Close(); err != nil {
					t.Error(err)
				}
			})
			if err := sets[i].Add(v); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "the documents", func() bool {
			return askFor(h[1].served, "GET", "/views/orders/snap/b", "").status == 200
		})
		if a := askFor(h[1].served, "GET", "/views/orders", ""); a.status != 200 || strings.Contains(a.text, "rebuild") {
			t.Errorf("before any rebuild: %d %s", a.status, a.text)
		}
		a := askFor(h[1].served, "POST", "/views/orders/rebuild", `{"from":"earliest"}`)
		if a.status != 202 || !strings.Contains(a.text, `"rebuild":{`) {
			t.Errorf("rebuild: %d %s", a.status, a.text)
		}
		until(t, "the rebuild", func() bool {
			return strings.Contains(askFor(h[1].served, "GET", "/views/orders", "").text, `"state":"done"`)
		})
		if a := askFor(h[1].served, "GET", "/views", ""); a.status != 200 || !strings.Contains(a.text, `"state":"done"`) {
			t.Errorf("all views: %d %s", a.status, a.text)
		}
		h[0].front.Down(true)
		if a := askFor(h[1].served, "GET", "/views/orders", ""); a.status != 200 || !strings.Contains(a.text, `"count":2`) {
			t.Errorf("with its hub away: %d %s", a.status, a.text)
		}
		if a := askFor(h[1].served, "POST", "/views/orders/rebuild", ""); a.status != 503 || !strings.Contains(a.text, "hub 0") {
			t.Errorf("rebuild with its hub away: %d %s", a.status, a.text)
		}
		h[0].front.Down(false)
	})
}
