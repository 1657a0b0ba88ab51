package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"promethean"
	"promethean/client"
	"promethean/cluster"
	"promethean/event"
	"promethean/gateway"
	"promethean/internal/mongotest"
	"promethean/internal/natstest"
	"promethean/internal/netfault"
	"promethean/store/mongostore"
	"promethean/store/natsstore"
)

// How long hubs own a group without renewing. Where one dies it is short, so that
// the others see it soon; elsewhere nobody is to lose a group on a machine that is
// slow.
const (
	ownFor  = 2 * time.Second
	ownLong = 20 * time.Second
)

// fleetHub is one of several hubs that share an engine. Others reach it by a
// proxy, and it reaches the engine by one.
type fleetHub struct {
	*served
	cluster *cluster.Cluster
	server  *httptest.Server
	plain   *httptest.Server // nil without TLS
	engine  *netfault.Proxy  // between the hub and its engine
	front   *netfault.Proxy
	log     *logBuffer
	stopped bool
	hurt    bool // it may not end well
}

// logBuffer is what a hub has said.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// onEngines runs a test over NATS, and over MongoDB where there is a server.
func onEngines(t *testing.T, test func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy))) {
	t.Run("nats", func(t *testing.T) {
		url := natstest.Start(t, nil).URL()
		test(t, func(t *testing.T) (promethean.Log, *netfault.Proxy) {
			p := netfault.New(t, strings.TrimPrefix(url, "nats://"))
			log, err := natsstore.Open(context.Background(), "nats://"+p.Addr(), natsstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return log, p
		})
	})
	mongotest.Each(t, func(t *testing.T, uri string) {
		database := "gateway_" + strings.ReplaceAll(event.NewID().String(), "-", "")
		test(t, func(t *testing.T) (promethean.Log, *netfault.Proxy) {
			p := netfault.New(t, mongotest.Host(t, uri))
			log, err := mongostore.Open(context.Background(), mongotest.Direct(p.Addr()), mongostore.Options{Database: database})
			if err != nil {
				t.Fatal(err)
			}
			return log, p
		})
	})
}

// fleet starts hubs that share an engine. change may alter the options of one.
func fleet(t *testing.T, n int, own time.Duration, open func(t *testing.T) (promethean.Log, *netfault.Proxy), change func(i int, o *gateway.Options, c *cluster.Options)) []*fleetHub {
	t.Helper()
	var out []*fleetHub
	for i := range n {
		log, engine := open(t)
		h := &fleetHub{engine: engine, log: &logBuffer{}}
		logger := slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		hub, err := promethean.New(log, promethean.Options{Owner: fmt.Sprint("hub ", i), OwnFor: own, Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		h.front = netfault.New(t, l.Addr().String())
		o, c := gateway.Options{Logger: logger}, cluster.Options{URL: "http://" + h.front.Addr(), Logger: logger}
		if change != nil {
			change(i, &o, &c)
		}
		if h.cluster, err = cluster.Join(hub, c); err != nil {
			t.Fatal(err)
		}
		o.Cluster = h.cluster
		g := gateway.New(hub, o)
		h.server = &httptest.Server{Listener: l, Config: &http.Server{Handler: g}}
		if o.PeerTLS != nil {
			h.server.StartTLS()
		} else {
			h.server.Start()
		}
		h.served = &served{TB: t, hub: hub, g: g, url: h.server.URL}
		if o.PeerTLS != nil { // clients of the test come without
			h.plain = httptest.NewServer(g)
			h.url = h.plain.URL
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("hub %d said:\n%s", i, h.log)
			}
			h.stop()
		})
		out = append(out, h)
	}
	return out
}

// stop ends a hub cleanly, as the program does.
func (h *fleetHub) stop() {
	if h.stopped {
		return
	}
	h.stopped = true
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := h.g.Close(ctx)
	h.server.Close()
	if h.plain != nil {
		h.plain.Close()
	}
	if err := errors.Join(err, h.cluster.Close(ctx), h.hub.Close()); err != nil && !h.hurt {
		h.Error(err)
	}
}

// kill has a hub vanish: nobody reaches it, and it does not reach the engine.
// What is left of it is let go at the end.
func (h *fleetHub) kill() {
	h.hurt = true
	h.engine.Down(true)
	h.front.Down(true)
}

// freeze has all connections of a hub stand still, or go on.
func (h *fleetHub) freeze(ice bool) {
	h.hurt = true
	h.front.Freeze(ice)
	h.engine.Freeze(ice)
}

// consumer is a member of a group on one hub.
type consumer struct {
	c   *client.Client
	sub *client.Subscription

	mu   sync.Mutex
	got  []event.Event
	more chan struct{}
}

func (x *consumer) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.got)
}

// consume subscribes to a group on a hub; what handle says decides about events.
func (h *fleetHub) consume(topic, group string, handle func(event.Event) error, opts ...client.SubscribeOption) *consumer {
	h.Helper()
	x := &consumer{more: make(chan struct{}, 1)}
	c, err := client.New("http://"+h.front.Addr(), client.Options{})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx) // its hub may be gone
	})
	x.c = c
	x.sub, err = c.Subscribe(context.Background(), topic, group, func(_ context.Context, e event.Event, _ *client.Delivery) error {
		if handle != nil {
			if err := handle(e); err != nil {
				return err
			}
		}
		x.mu.Lock()
		x.got = append(x.got, e)
		x.mu.Unlock()
		select {
		case x.more <- struct{}{}:
		default:
		}
		return nil
	}, append([]client.SubscribeOption{client.FromEarliest(), client.BatchSize(1), client.MaxInFlight(1)}, opts...)...)
	if err != nil {
		h.Fatal(err)
	}
	return x
}

// until waits for a condition, which nothing announces.
func until(t testing.TB, within time.Duration, what string, is func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !is() {
		if time.Since(began) > within {
			t.Fatalf("waited %v in vain: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(began)
}

// settled waits until all that was published is settled.
func (h *fleetHub) settled(topic, group string) {
	h.Helper()
	until(h, 10*time.Second, "the cursor", func() bool {
		_, at := h.do("GET", "/lag?topic="+topic+"&group="+group, "")
		return at["lag"] == 0.0
	})
}

func total(list ...*consumer) (n int) {
	for _, x := range list {
		n += x.count()
	}
	return n
}

// owner finds which hub owns a group, -1 if none does.
func owner(list []*fleetHub, topic, group string) int {
	for i, h := range list {
		if !h.stopped && h.hub.Engine().Owns(topic, group) {
			return i
		}
	}
	return -1
}

// judge checks that what consumers have got is all of a topic, in order of keys,
// and how often each came.
func judge(t *testing.T, want int, once bool, list ...*consumer) {
	t.Helper()
	seen := make(map[uint64]int)
	for _, x := range list {
		x.mu.Lock()
		for _, e := range x.got {
			seen[e.Seq]++
		}
		x.mu.Unlock()
	}
	for seq := uint64(1); seq <= uint64(want); seq++ {
		if n := seen[seq]; n == 0 || once && n > 1 {
			t.Errorf("seq %d was handled %d times", seq, n)
		}
	}
}

func TestMembersOnAllHubs(t *testing.T) {
	onEngines(t, func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy)) {
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
		until(t, 60*time.Second, "all events", func() bool { return total(all...) >= n })
		judge(t, n, true, all...)
		h[0].settled("orders.placed", "billing")
		// A member that stops leaves the rest to the others.
		if err := all[0].sub.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		h[0].publish("orders.placed", "k1", "1", "k2", "2")
		until(t, 10*time.Second, "what came later", func() bool { return total(all...) >= n+2 })
	})
}

func TestCallsAtAnyHub(t *testing.T) {
	onEngines(t, func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy)) {
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
		until(t, 10*time.Second, "a dead letter", func() bool {
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
	onEngines(t, func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy)) {
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
			until(t, 10*time.Second, "the owner", func() bool { return owner(h, "orders.placed", fmt.Sprint("group", i)) == i })
		}
		until(t, 10*time.Second, "dead letters", func() bool { return h[0].want(200, "", "GET", "/dlq", "")["count"] == 2.0 })
		if got := h[1].want(200, "", "POST", "/dlq/orders.placed/replay", `{"to":"group"}`); got["replayed"] != 2.0 || got["remaining"] != 0.0 {
			t.Errorf("replay: %v", got)
		}
		until(t, 10*time.Second, "both", func() bool { return all[0].count() == 1 && all[1].count() == 1 })
	})
}

func TestOwnerClosesCleanly(t *testing.T) {
	onEngines(t, func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy)) {
		h := fleet(t, 3, ownLong, open, nil)
		all := make([]*consumer, 3)
		for i := range h {
			all[i] = h[i].consume("orders.placed", "billing", nil)
		}
		h[1].publish("orders.placed", "a", "0", "b", "0", "c", "0", "d", "0", "e", "0", "f", "0")
		until(t, 20*time.Second, "the first events", func() bool { return total(all...) == 6 })
		h[0].settled("orders.placed", "billing")
		was := -1
		until(t, 10*time.Second, "an owner", func() bool { was = owner(h, "orders.placed", "billing"); return was >= 0 })
		h[was].stop()
		others := []*fleetHub{h[(was+1)%3], h[(was+2)%3]}
		left := []*consumer{all[(was+1)%3], all[(was+2)%3]}
		had := total(left...)
		others[0].publish("orders.placed", "x", "1", "y", "1")
		took := until(t, 10*time.Second, "what came later", func() bool { return total(left...) >= had+2 })
		if took > time.Second {
			t.Errorf("it took %v", took)
		}
		until(t, 5*time.Second, "two hubs", func() bool { return others[0].want(200, "", "GET", "/ops/cluster", "")["count"] == 2.0 })
		judge(t, 8, true, all...)
	})
}

func TestOwnerDies(t *testing.T) {
	onEngines(t, func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy)) {
		h := fleet(t, 3, ownFor, open, nil)
		all := make([]*consumer, 3)
		for i := range h {
			all[i] = h[i].consume("orders.placed", "billing", nil)
		}
		h[0].publish("orders.placed", "a", "0", "b", "0", "c", "0", "d", "0", "e", "0", "f", "0")
		until(t, 20*time.Second, "the first events", func() bool { return total(all...) == 6 })
		h[0].settled("orders.placed", "billing")
		was := -1
		until(t, 10*time.Second, "an owner", func() bool { was = owner(h, "orders.placed", "billing"); return was >= 0 })
		h[was].kill()
		began := time.Now()
		others := []*fleetHub{h[(was+1)%3], h[(was+2)%3]}
		left := []*consumer{all[(was+1)%3], all[(was+2)%3]}
		others[1].publish("orders.placed", "x", "1", "y", "1")
		had := total(left...)
		until(t, 20*time.Second, "what came later", func() bool { return total(left...) >= had+2 })
		if took := time.Since(began); took > ownFor+time.Second {
			t.Errorf("it took %v", took)
		}
		judge(t, 8, false, all...)
		h[was].engine.Down(false)
		h[was].front.Down(false)
	})
}

// A hub that others cannot reach, though it lives: they say so, and nothing is
// lost.
func TestOwnerIsCutOffFromOthers(t *testing.T) {
	onEngines(t, func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy)) {
		h := fleet(t, 2, ownLong, open, nil)
		h[0].publish("orders.placed", "a", "0", "b", "0")
		h[0].want(200, "", "POST", "/pull", `{"topic":"orders.placed","group":"billing","max":0,"opts":{"from":"earliest"}}`)
		until(t, 5*time.Second, "the owner", func() bool { return owner(h, "orders.placed", "billing") == 0 })
		x := h[1].consume("orders.placed", "billing", nil)
		until(t, 10*time.Second, "events over the owner", func() bool { return x.count() == 2 })
		h[0].front.Down(true)
		h[1].publish("orders.placed", "a", "1")
		got := h[1].want(503, "unavailable", "POST", "/pull", `{"topic":"orders.placed","group":"billing","max":1}`)
		if text := fmt.Sprint(got["detail"]); !strings.Contains(text, "hub 0") || !strings.Contains(text, h[0].front.Addr()) {
			t.Errorf("the refusal says %q", text)
		}
		until(t, 10*time.Second, "a word in the log", func() bool {
			return strings.Contains(h[1].log.String(), "cannot be reached by the address that it gave")
		})
		h[0].front.Down(false)
		until(t, 10*time.Second, "what came meanwhile", func() bool { return x.count() >= 3 })
		judge(t, 3, true, x)
	})
}

// Frozen connections say nothing: they are found out.
func TestOwnerIsFrozen(t *testing.T) {
	onEngines(t, func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy)) {
		h := fleet(t, 2, ownFor, open, nil)
		own := h[0].consume("orders.placed", "billing", nil)
		until(t, 5*time.Second, "the owner", func() bool { return owner(h, "orders.placed", "billing") == 0 })
		x := h[1].consume("orders.placed", "billing", nil)
		h[1].publish("orders.placed", "a", "0", "b", "0", "c", "0", "d", "0")
		until(t, 10*time.Second, "the first events", func() bool { return total(own, x) == 4 })
		h[0].freeze(true)
		had := x.count()
		h[1].publish("orders.placed", "a", "1", "b", "1")
		until(t, 20*time.Second, "what came later", func() bool { return x.count() >= had+2 })
		h[0].freeze(false)
		judge(t, 6, false, own, x)
	})
}

func TestWrongAddress(t *testing.T) {
	onEngines(t, func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy)) {
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
	onEngines(t, func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy)) {
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
		until(t, 5*time.Second, "the owner", func() bool { return owner(h, "orders.placed", "billing") == 0 })
		if got := h[1].want(200, "", "POST", "/pull", `{"topic":"orders.placed","group":"billing","max":1,"wait_ms":50}`); len(got["events"].([]any)) != 0 {
			t.Errorf("a pull gives %v", got)
		}
		h[1].want(503, "unavailable", "POST", "/ack", `{"topic":"orders.placed","group":"billing","ids":["0192f7c1-0000-7000-8000-00000000dead"]}`)
		x := h[1].consume("orders.placed", "billing", nil)
		if err := sub.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		h[0].publish("orders.placed", "a", "1")
		until(t, 10*time.Second, "the rest", func() bool { return x.count() >= 1 })
	})
}

func TestClusterRoute(t *testing.T) {
	onEngines(t, func(t *testing.T, open func(t *testing.T) (promethean.Log, *netfault.Proxy)) {
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
