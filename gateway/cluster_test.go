package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"promethean"
	"promethean/client"
	"promethean/cluster"
	"promethean/event"
	"promethean/gateway"
)

func TestMembersOnAllHubs(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		h := fleet(t, 3, ownLong, open, nil)
		const n = 300
		for i := range n {
			h[i%3].publish("orders.placed", fmt.Sprint("k", i%7), fmt.Sprint(i))
		}
		// The order of each key, over all members. Nobody goes on before all have
		// come.
		var mu sync.Mutex
		last := make(map[string]uint64)
		var come sync.WaitGroup
		come.Add(len(h))
		handle := func(e event.Event) error {
			mu.Lock()
			defer mu.Unlock()
			if e.Seq <= last[e.Key] {
				t.Errorf("key %s: seq %d after %d", e.Key, e.Seq, last[e.Key])
			}
			last[e.Key] = e.Seq
			return nil
		}
		var all []*consumer
		for i := range h {
			here := sync.OnceFunc(come.Done)
			all = append(all, h[i].consume("orders.placed", "billing", func(e event.Event) error {
				here()
				come.Wait()
				return handle(e)
			}))
		}
		until(t, "all events", func() bool { return total(all...) >= n })
		judge(t, n, true, all...)
		h[0].settled("orders.placed", "billing")
		// A member that stops leaves the rest to the others.
		if err := all[0].sub.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		h[0].publish("orders.placed", "k1", "1", "k2", "2")
		until(t, "what came later", func() bool { return total(all...) >= n+2 })
	})
}

func TestCallsAtAnyHub(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		h := fleet(t, 2, ownLong, open, nil)
		ids := h[0].publish("orders.placed", "a", "1", "b", "2", "c", "3", "d", "4")
		pull := `{"topic":"orders.placed","group":"billing","max":1,"wait_ms":5000,"opts":{"from":"earliest","maxAttempts":2,"deadLetter":"key"}}`
		take := func(i int) (id, lease string) {
			t.Helper()
			got := h[i].want(200, "", "POST", "/pull", pull)
			list, _ := got["events"].([]any)
			if len(list) != 1 {
				t.Fatalf("a pull at hub %d gives %v", i, got)
			}
			d := list[0].(map[string]any)
			return d["event"].(map[string]any)["id"].(string), d["lease"].(string)
		}
		settle := func(i int, path, id, more, want string) {
			t.Helper()
			got := h[i].want(200, "", "POST", path, fmt.Sprintf(`{"topic":"orders.placed","group":"billing","ids":[%q]%s}`, id, more))
			r := got["results"].([]any)[0].(map[string]any)
			if err, _ := r["err"].(string); err != want {
				t.Errorf("%s at hub %d: %v, want %q", path, i, got, want)
			}
		}
		first, lease := take(0)
		if o := owner(h, "orders.placed", "billing"); o != 0 {
			t.Fatalf("hub %d owns the group", o)
		}
		settle(1, "/modack", first, fmt.Sprintf(`,"leases":[%q],"extend_ms":60000`, lease), "")
		settle(1, "/ack", first, "", "")
		second, lease := take(1)
		if second == first || second != ids[1] {
			t.Errorf("the second pull gives %s", second)
		}
		settle(1, "/nack", second, `,"leases":["1"]`, "fenced")
		settle(1, "/nack", second, fmt.Sprintf(`,"leases":[%q],"delay_ms":0`, lease), "")
		settle(1, "/ack", "0192f7c1-0000-7000-8000-00000000dead", "", "unknown_id")
		// It fails for good, and is replayed from the other hub.
		for range 5 {
			id, _ := take(1)
			if id != second {
				settle(1, "/ack", id, "", "")
				continue
			}
			settle(1, "/nack", id, `,"dead":true`, "")
			break
		}
		until(t, "a dead letter", func() bool {
			got := h[1].want(200, "", "GET", "/dlq", "")
			return got["count"] == 1.0
		})
		if got := h[1].want(200, "", "POST", "/dlq/orders.placed/replay", `{}`); got["replayed"] != 1.0 || got["remaining"] != 0.0 {
			t.Errorf("replay at the other hub: %v", got)
		}
		seen := false
		for range 4 {
			id, _ := take(1)
			settle(0, "/ack", id, "", "")
			if seen = seen || id == second; seen {
				break
			}
		}
		if !seen {
			t.Error("what was replayed did not come")
		}
		// Settings, and the cursor.
		h[1].want(200, "", "PUT", "/groups/orders.placed/billing", `{"maxAttempts":7}`)
		if got := h[0].want(200, "", "GET", "/groups?topic=orders.placed", ""); !strings.Contains(fmt.Sprint(got), "maxAttempts:7") {
			t.Errorf("the owner says %v", got)
		}
		h[1].want(200, "", "PUT", "/cursors", `{"topic":"orders.placed","group":"billing","to":{"from":"earliest"}}`)
		h[1].want(404, "not_found", "POST", "/ack", `{"topic":"orders.placed","group":"none","ids":["0192f7c1-0000-7000-8000-00000000dead"]}`)
		h[1].want(204, "", "DELETE", "/groups/orders.placed/billing", "")
		h[0].want(404, "not_found", "GET", "/lag?topic=orders.placed&group=billing", "")
	})
}

// A group's dead letters may be of hubs that own different groups.
func TestReplayOfSeveralGroups(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		h := fleet(t, 2, ownLong, open, nil)
		h[0].publish("orders.placed", "a", "1")
		var all []*consumer
		var mu sync.Mutex
		failed := make(map[int]int)
		for i := range h {
			all = append(all, h[i].consume("orders.placed", fmt.Sprint("group", i), func(event.Event) error {
				mu.Lock()
				defer mu.Unlock()
				if failed[i]++; failed[i] == 1 {
					return client.Dead(errors.New("no"))
				}
				return nil
			}, client.OnDead(client.DeadKey)))
			until(t, "the owner", func() bool { return owner(h, "orders.placed", fmt.Sprint("group", i)) == i })
		}
		until(t, "dead letters", func() bool { return h[0].want(200, "", "GET", "/dlq", "")["count"] == 2.0 })
		if got := h[1].want(200, "", "POST", "/dlq/orders.placed/replay", `{"to":"group"}`); got["replayed"] != 2.0 || got["remaining"] != 0.0 {
			t.Errorf("replay: %v", got)
		}
		until(t, "both", func() bool { return all[0].count() == 1 && all[1].count() == 1 })
	})
}

// inTime has something done that must not take longer than a limit, up to three
// times with a topic and hubs of its own: a busy machine is late now and then, a
// broken promise is late every time.
func inTime(t *testing.T, limit time.Duration, do func(topic string) time.Duration) {
	t.Helper()
	var took []time.Duration
	for len(took) < 3 {
		took = append(took, do(fmt.Sprint("orders.placed", len(took))))
		if took[len(took)-1] <= limit {
			return
		}
	}
	t.Errorf("it took %v, and not %v or less", took, limit)
}

// ownedBy has a member of a group at each of three hubs, with six events settled,
// and tells which hub owns it.
func ownedBy(t *testing.T, h []*fleetHub, topic string) (was int, all []*consumer) {
	t.Helper()
	for i := range h {
		all = append(all, h[i].consume(topic, "billing", nil))
	}
	h[1].publish(topic, "a", "0", "b", "0", "c", "0", "d", "0", "e", "0", "f", "0")
	until(t, "the first events", func() bool { return total(all...) == 6 })
	h[0].settled(topic, "billing")
	until(t, "an owner", func() bool { was = owner(h, topic, "billing"); return was >= 0 })
	return was, all
}

func TestOwnerClosesCleanly(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		inTime(t, time.Second, func(topic string) time.Duration {
			h := fleet(t, 3, ownLong, open, nil)
			was, all := ownedBy(t, h, topic)
			h[was].stop()
			others := []*fleetHub{h[(was+1)%3], h[(was+2)%3]}
			left := []*consumer{all[(was+1)%3], all[(was+2)%3]}
			others[0].publish(topic, "x", "1", "y", "1")
			took := until(t, "what came later", func() bool { n := handled(left...); return n[7] > 0 && n[8] > 0 })
			until(t, "two hubs", func() bool { return others[0].want(200, "", "GET", "/ops/cluster", "")["count"] == 2.0 })
			judge(t, 8, true, all...)
			others[0].stop()
			others[1].stop()
			return took
		})
	})
}

func TestOwnerDies(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		inTime(t, ownFor+time.Second, func(topic string) time.Duration {
			h := fleet(t, 3, ownFor, open, nil)
			was, all := ownedBy(t, h, topic)
			h[was].kill()
			began := time.Now()
			others := []*fleetHub{h[(was+1)%3], h[(was+2)%3]}
			left := []*consumer{all[(was+1)%3], all[(was+2)%3]}
			others[1].publish(topic, "x", "1", "y", "1")
			until(t, "what came later", func() bool { n := handled(left...); return n[7] > 0 && n[8] > 0 })
			took := time.Since(began)
			judge(t, 8, false, all...)
			h[was].engine.Down(false)
			h[was].front.Down(false)
			for i := range h {
				h[i].stop()
			}
			return took
		})
	})
}

// A hub that others cannot reach, though it lives: they say so, and nothing is
// lost.
func TestOwnerIsCutOffFromOthers(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		h := fleet(t, 2, ownLong, open, nil)
		h[0].publish("orders.placed", "a", "0", "b", "0")
		h[0].want(200, "", "POST", "/pull", `{"topic":"orders.placed","group":"billing","max":0,"opts":{"from":"earliest"}}`)
		until(t, "the owner", func() bool { return owner(h, "orders.placed", "billing") == 0 })
		x := h[1].consume("orders.placed", "billing", nil)
		until(t, "events over the owner", func() bool { return x.count() == 2 })
		h[0].front.Down(true)
		h[1].publish("orders.placed", "a", "1")
		got := h[1].want(503, "unavailable", "POST", "/pull", `{"topic":"orders.placed","group":"billing","max":1}`)
		if text := fmt.Sprint(got["detail"]); !strings.Contains(text, "hub 0") || !strings.Contains(text, h[0].front.Addr()) {
			t.Errorf("the refusal says %q", text)
		}
		until(t, "a word in the log", func() bool {
			return strings.Contains(h[1].log.String(), "cannot be reached by the address that it gave")
		})
		h[0].front.Down(false)
		until(t, "what came meanwhile", func() bool { return x.count() >= 3 })
		judge(t, 3, true, x)
	})
}

// Frozen connections say nothing: they are found out.
func TestOwnerIsFrozen(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		h := fleet(t, 2, ownFor, open, nil)
		own := h[0].consume("orders.placed", "billing", nil)
		until(t, "the owner", func() bool { return owner(h, "orders.placed", "billing") == 0 })
		x := h[1].consume("orders.placed", "billing", nil)
		h[1].publish("orders.placed", "a", "0", "b", "0", "c", "0", "d", "0")
		until(t, "the first events", func() bool { return total(own, x) == 4 })
		h[0].freeze(true)
		h[1].publish("orders.placed", "a", "1", "b", "1")
		until(t, "what came later", func() bool { n := handled(x); return n[5] > 0 && n[6] > 0 }) // and earlier ones again, maybe
		h[0].freeze(false)
		judge(t, 6, false, own, x)
	})
}

func TestWrongAddress(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		h := fleet(t, 2, ownLong, open, func(i int, _ *gateway.Options, c *cluster.Options) {
			if i == 0 {
				c.URL = "http://127.0.0.1:1"
			}
		})
		id := h[0].publish("orders.placed", "a", "0")[0]
		h[0].want(200, "", "POST", "/pull", `{"topic":"orders.placed","group":"billing","max":1,"opts":{"from":"earliest"}}`)
		got := h[1].want(503, "unavailable", "POST", "/ack", fmt.Sprintf(`{"topic":"orders.placed","group":"billing","ids":[%q]}`, id))
		if text := fmt.Sprint(got["detail"]); !strings.Contains(text, "http://127.0.0.1:1") {
			t.Errorf("the refusal says %q", text)
		}
		if !strings.Contains(h[1].log.String(), "cluster.advertise") {
			t.Error("the log says nothing")
		}
	})
}

// An owner without a gateway is competed with, as before.
func TestOwnerWithoutAddress(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		h := fleet(t, 2, ownLong, open, func(i int, _ *gateway.Options, c *cluster.Options) {
			if i == 0 {
				c.URL = ""
			}
		})
		h[0].publish("orders.placed", "a", "0")
		sub, err := h[0].hub.Subscribe(context.Background(), "orders.placed", "billing", func(context.Context, event.Event, *promethean.Delivery) error { return nil }, promethean.FromEarliest())
		if err != nil {
			t.Fatal(err)
		}
		until(t, "the owner", func() bool { return owner(h, "orders.placed", "billing") == 0 })
		if got := h[1].want(200, "", "POST", "/pull", `{"topic":"orders.placed","group":"billing","max":1,"wait_ms":50}`); len(got["events"].([]any)) != 0 {
			t.Errorf("a pull gives %v", got)
		}
		h[1].want(503, "unavailable", "POST", "/ack", `{"topic":"orders.placed","group":"billing","ids":["0192f7c1-0000-7000-8000-00000000dead"]}`)
		x := h[1].consume("orders.placed", "billing", nil)
		if err := sub.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		h[0].publish("orders.placed", "a", "1")
		until(t, "the rest", func() bool { return x.count() >= 1 })
	})
}

func TestClusterRoute(t *testing.T) {
	onEngines(t, func(t *testing.T, open engineOf) {
		h := fleet(t, 2, ownLong, open, func(_ int, o *gateway.Options, c *cluster.Options) { o.Version, c.Version = "v7", "v7" })
		_, _, text := h[1].raw("GET", "/ops/cluster", "")
		var got struct {
			Count int
			Hubs  []struct {
				ID, URL, Version string
				Started, Seen    int64
				Alive, Self      bool
			}
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Count != 2 || len(got.Hubs) != 2 {
			t.Fatalf("%s: %v", text, err)
		}
		for i, x := range got.Hubs {
			if x.ID != fmt.Sprint("hub ", i) || x.URL != "http://"+h[i].front.Addr() || x.Version != "v7" || !x.Alive || x.Self != (i == 1) || x.Seen < x.Started-1000 {
				t.Errorf("hub %d: %+v", i, x)
			}
		}
	})
}
