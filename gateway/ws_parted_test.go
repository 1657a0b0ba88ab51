package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"promethean"
	"promethean/event"
	"promethean/gateway"
	"promethean/partition"
)

// divide makes a topic with so many partitions.
func (s *served) divide(topic string, n int) {
	s.Helper()
	if status, answer := s.do("PUT", "/topics/"+topic, fmt.Sprintf(`{"partitions":%d}`, n)); status != 200 {
		s.Fatalf("%d %v", status, answer)
	}
}

// parted subscribes to a partitioned group.
func (s *socket) parted(topic, member string) {
	s.Helper()
	s.ok(`{"op":"SUBSCRIBE","corr":"s","topic":%q,"group":"g","opts":{"partitioned":true,"member":%q,"from":"earliest"}}`, topic, member)
}

// assigned reads until an ASSIGN says what is wanted, and keeps what else comes.
// Generations must not fall.
func (s *socket) assigned(want func(partitions []int) bool) []int {
	s.Helper()
	last := -1.0
	for {
		f := s.frame("ASSIGN")
		generation, _ := f["generation"].(float64)
		if generation < last || f["topic"] == "" || f["group"] != "g" {
			s.Fatalf("%v after generation %v", f, last)
		}
		last = generation
		list := numbers(s, f["partitions"])
		if !slices.IsSorted(list) {
			s.Fatalf("%v", f)
		}
		if want(list) {
			return list
		}
	}
}

// frame gives the next frame of a kind, and keeps others.
func (s *socket) frame(op string) map[string]any {
	s.Helper()
	for i, f := range s.events {
		if f["op"] == op {
			s.events = slices.Delete(s.events, i, i+1)
			return f
		}
	}
	for {
		f, err := s.read()
		if err != nil {
			s.Fatalf("wait for %s: %v", op, err)
		}
		if f["op"] == op {
			return f
		}
		s.events = append(s.events, f)
	}
}

func numbers(t testing.TB, v any) []int {
	t.Helper()
	list, ok := v.([]any)
	if !ok {
		t.Fatalf("%v is no list", v)
	}
	out := make([]int, len(list))
	for i, x := range list {
		n, _ := x.(float64)
		out[i] = int(n)
	}
	return out
}

func count(n int) func([]int) bool { return func(list []int) bool { return len(list) == n } }

// spread publishes an event for each of so many keys.
func (s *served) spread(topic string, keys int) {
	s.Helper()
	var rows strings.Builder
	for k := range keys {
		fmt.Fprintf(&rows, `{"topic":%q,"payload":%d,"key":"k%d"}`+"\n", topic, k, k)
	}
	if status, answer := s.do("POST", "/publish", rows.String(), "Content-Type", "application/x-ndjson"); status != 201 {
		s.Fatalf("%d %v", status, answer)
	}
}

// takeAll takes so many events, each of a partition that the member owns, and
// acks them.
func (s *socket) takeAll(n int, owns []int) {
	s.Helper()
	for range n {
		f := s.frame("EVENT")
		p, _ := part(f, "event", "partition").(float64)
		if _, ok := slices.BinarySearch(owns, int(p)); !ok {
			s.Errorf("an event of partition %v came to the owner of %v", p, owns)
		}
		s.ok(`{"op":"ACK","topic":%q,"group":"g","id":%q,"lease":%q}`, part(f, "event", "topic"), part(f, "event", "id"), part(f, "ctx", "lease"))
	}
}

func TestPartedSubscription(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.divide("a.b", 8)
	one, two := s.dial(), s.dial()
	// The list comes after OK.
	one.send(`{"op":"SUBSCRIBE","corr":1,"topic":"a.b","group":"g","opts":{"partitioned":true,"from":"earliest"}}`)
	for i, op := range []string{"OK", "ASSIGN"} {
		if f, err := one.read(); err != nil || f["op"] != op {
			t.Fatalf("frame %d: %v %v, want %s", i, f, err, op)
		} else if op == "ASSIGN" && len(numbers(t, f["partitions"])) != 8 {
			t.Errorf("%v", f)
		}
	}
	two.parted("a.b", "")
	mine, his := one.assigned(count(4)), two.assigned(count(4))
	if all := slices.Sorted(slices.Values(slices.Concat(mine, his))); !slices.Equal(all, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Fatalf("%v and %v", mine, his)
	}
	s.spread("a.b", 64)
	share := 0
	for k := range 64 {
		if _, ok := slices.BinarySearch(mine, event.PartitionFor(fmt.Sprintf("k%d", k), event.ID{}, 8)); ok {
			share++
		}
	}
	one.takeAll(share, mine)
	two.takeAll(64-share, his)
	// Who leaves gives all to the other; what it held comes uncounted.
	s.spread("a.b", 64)
	held := two.frame("EVENT")
	two.ok(`{"op":"UNSUBSCRIBE","topic":"a.b","group":"g"}`)
	two.fails("fenced", "", `{"op":"ACK","topic":"a.b","group":"g","id":%q}`, part(held, "event", "id"))
	two.fails("fenced", "", `{"op":"MODACK","topic":"a.b","group":"g","id":%q,"extend_ms":1000}`, part(held, "event", "id"))
	one.assigned(count(8))
	for range 64 {
		f := one.frame("EVENT")
		if attempt := part(f, "ctx", "attempt"); attempt != 1.0 {
			t.Errorf("attempt %v", attempt)
		}
		one.ok(`{"op":"ACK","topic":"a.b","group":"g","ids":[%q]}`, part(f, "event", "id"))
	}
	// A lost connection of somebody without an id of its own leaves at once, and
	// what it held has failed.
	two.parted("a.b", "")
	two.assigned(count(4))
	one.assigned(count(4))
	s.spread("a.b", 64)
	held = two.frame("EVENT")
	_ = two.c.CloseNow()
	one.assigned(count(8))
	seen := 0
	for seen < 64 {
		f := one.frame("EVENT")
		if part(f, "event", "id") == part(held, "event", "id") && part(f, "ctx", "attempt") != 2.0 {
			t.Errorf("%v", f["ctx"])
		}
		one.ok(`{"op":"ACK","topic":"a.b","group":"g","id":%q}`, part(f, "event", "id"))
		seen++
	}
	if status, answer := s.do("GET", "/lag?topic=a.b&group=g", ""); status != 200 || answer["lag"] != 0.0 {
		t.Errorf("%d %v", status, answer)
	}
}

func TestPartedPause(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.divide("a.b", 4)
	c := s.dial()
	c.ok(`{"op":"SUBSCRIBE","topic":"a.b","group":"g","opts":{"partitioned":true,"batch":16,"from":"earliest"}}`)
	c.assigned(count(4))
	c.ok(`{"op":"PAUSE","topic":"a.b","group":"g"}`)
	s.spread("a.b", 32)
	// The answer to a frame after it comes without an event before it.
	c.ok(`{"op":"PUBLISH","topic":"other","payload":1}`)
	if len(c.events) > 0 {
		t.Errorf("while paused: %v", c.events)
	}
	c.ok(`{"op":"RESUME","topic":"a.b","group":"g"}`)
	for got := 0; got < 32; {
		f := c.frame("EVENTS")
		got += len(f["events"].([]any))
	}
}

func TestPartedStaticMember(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	s := serveParted(t, gateway.Options{Ping: 1600 * time.Millisecond, MemberPing: 100 * time.Millisecond}, partition.Options{TTL: ttl, Refresh: 50 * time.Millisecond})
	s.divide("a.b", 4)
	one, two := s.dial(), s.dial()
	one.parted("a.b", "one")
	one.assigned(count(4))
	two.parted("a.b", "two")
	his := two.assigned(count(2))
	one.assigned(count(2))
	// Its partitions wait for it.
	_ = two.c.CloseNow()
	s.until("away", func() bool { return s.member("two")["away_since"] != nil })
	two = s.dial()
	two.parted("a.b", "two")
	if again := two.assigned(count(2)); !slices.Equal(again, his) {
		t.Errorf("%v, and before %v", again, his)
	}
	// But not for ever.
	began := time.Now()
	_ = two.c.CloseNow()
	one.assigned(count(4))
	if took := time.Since(began); took < ttl/2 {
		t.Errorf("its partitions waited for %v", took)
	}
}

func TestPartedSameMember(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.divide("a.b", 4)
	old, young := s.dial(), s.dial()
	old.parted("a.b", "me")
	old.assigned(count(4))
	s.spread("a.b", 8)
	held := old.frame("EVENT")
	young.parted("a.b", "me")
	young.assigned(count(4))
	f := old.frame("ERR")
	if msg, _ := f["msg"].(string); f["code"] != "fenced" || f["topic"] != "a.b" || f["group"] != "g" || f["member"] != "me" || f["corr"] != nil || !strings.Contains(msg, "me") {
		t.Errorf("%v", f)
	}
	// The connection goes on, without the subscription.
	old.fails("fenced", "", `{"op":"ACK","topic":"a.b","group":"g","id":%q}`, part(held, "event", "id"))
	old.fails("fenced", "", `{"op":"NACK","topic":"a.b","group":"g","id":%q,"lease":%q}`, part(held, "event", "id"), part(held, "ctx", "lease"))
	old.fails("not_subscribed", "", `{"op":"UNSUBSCRIBE","topic":"a.b","group":"g"}`)
	old.ok(`{"op":"PUBLISH","topic":"other","payload":1}`)
	for range 8 {
		f := young.frame("EVENT")
		young.ok(`{"op":"ACK","topic":"a.b","group":"g","id":%q,"lease":%q}`, part(f, "event", "id"), part(f, "ctx", "lease"))
	}
	// A lease of an epoch that is over settles nothing, whoever says so.
	s.spread("a.b", 1)
	f = young.frame("EVENT")
	lease := part(f, "ctx", "lease")
	third := s.dial()
	third.parted("a.b", "me")
	third.assigned(count(4))
	again := third.frame("EVENT")
	if part(again, "event", "id") != part(f, "event", "id") || part(again, "ctx", "attempt") != 1.0 {
		t.Errorf("%v", again)
	}
	if status, answer := s.do("POST", "/ack", fmt.Sprintf(`{"topic":"a.b","group":"g","ids":[%q],"leases":[%q]}`, part(f, "event", "id"), lease)); status != 200 || answer["count"] != 0.0 {
		t.Errorf("%d %v", status, answer)
	}
	third.ok(`{"op":"ACK","topic":"a.b","group":"g","id":%q,"lease":%q}`, part(again, "event", "id"), part(again, "ctx", "lease"))
}

// TestPartedSilentMember has a client that answers nothing: it is swept after
// the TTL, though its connection stands.
func TestPartedSilentMember(t *testing.T) {
	s := serveParted(t, gateway.Options{Ping: 1600 * time.Millisecond, MemberPing: 100 * time.Millisecond}, partition.Options{TTL: 500 * time.Millisecond, Refresh: 50 * time.Millisecond})
	s.divide("a.b", 4)
	one, two := s.dial(), s.dial()
	two.parted("a.b", "two")
	two.assigned(count(4))
	one.parted("a.b", "")
	one.assigned(count(4)) // two reads nothing any more, not even pings
	for {                  // and hears of it when it does
		if f := two.frame("ERR"); f["code"] == "unavailable" && f["member"] == "two" {
			break
		}
	}
	two.parted("a.b", "two")
	two.assigned(count(2))
}

func TestPartedRefusals(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.dial()
	c.fails("invalid_argument", "pattern", `{"op":"SUBSCRIBE","topic":"a.*","group":"g","opts":{"partitioned":true}}`)
	c.fails("invalid_argument", "one topic", `{"op":"SUBSCRIBE","topics":["a.b","a.c"],"group":"g","opts":{"partitioned":true}}`)
	c.fails("invalid_argument", "256", `{"op":"SUBSCRIBE","topic":"a.b","group":"g","opts":{"partitioned":true,"member":%q}}`, strings.Repeat("m", 257))
	c.fails("invalid_argument", "", `{"op":"SUBSCRIBE","topic":"a.b","group":%q,"opts":{"partitioned":true}}`, strings.Repeat("g", 250))
	c.ok(`{"op":"SUBSCRIBE","topic":"a.b","group":"plain","opts":{"member":"shown"}}`)
	c.fails("already_subscribed", "", `{"op":"SUBSCRIBE","topic":"a.b","group":"plain","opts":{"partitioned":true}}`)
	c.parted("a.b", "")
	c.assigned(count(1))
	// A group is partitioned or not.
	other := s.dial()
	other.fails("group_conflict", "partitioned", `{"op":"SUBSCRIBE","topic":"a.b","group":"plain","opts":{"partitioned":true}}`)
	other.fails("group_conflict", "opts.partitioned", `{"op":"SUBSCRIBE","topic":"a.b","group":"g"}`)
	other.fails("group_conflict", "", `{"op":"SUBSCRIBE","topic":"a.b","group":"g","opts":{"partitioned":true,"maxAttempts":9}}`)
	for _, row := range [][3]string{
		{"POST", "/pull", `{"topic":"a.b","group":"g"}`},
		{"POST", "/pull", `{"topic":"a.b","group":"g","opts":{"partitioned":true}}`},
		{"GET", "/subscribe?topic=a.b&group=g", ""},
		{"GET", "/subscribe?topic=a.b&group=g&partitioned=1", ""},
	} {
		status, answer := s.do(row[0], row[1], row[2])
		if detail, _ := answer["detail"].(string); status != 409 || answer["code"] != "group_conflict" || !strings.Contains(detail, "WebSocket") {
			t.Errorf("%s %s: %d %v", row[0], row[1], status, answer)
		}
	}
	if status, answer := s.do("PUT", "/groups/a.b/plain", `{"partitioned":true}`); status != 409 {
		t.Errorf("%d %v", status, answer)
	}
	if status, answer := s.do("PUT", "/groups/a.b/made", `{"partitioned":true,"from":"earliest"}`); status != 200 || part(answer, "settings", "partitioned") != true {
		t.Errorf("%d %v", status, answer)
	}
	if status, answer := s.do("DELETE", "/groups/a.b/g", ""); status != 400 {
		t.Errorf("with a member: %d %v", status, answer)
	}
	c.ok(`{"op":"UNSUBSCRIBE","topic":"a.b","group":"g"}`)
	s.until("nobody", func() bool {
		status, _ := s.do("DELETE", "/groups/a.b/g", "")
		return status == 204
	})
}

// TestNoPartitions has a hub without a coordinator.
func TestNoPartitions(t *testing.T) {
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := gateway.New(hub, gateway.Options{})
	server := httptest.NewServer(g)
	defer func() {
		err := g.Close(context.Background())
		server.Close()
		if err := errors.Join(err, hub.Close()); err != nil {
			t.Error(err)
		}
	}()
	s := &served{TB: t, hub: hub, g: g, url: server.URL}
	s.want(501, "unsupported", "GET", "/ops/partitions?group=g", "")
	s.want(501, "unsupported", "PUT", "/groups/a.b/g", `{"partitioned":true}`)
	s.want(501, "unsupported", "POST", "/pull", `{"topic":"a.b","group":"g","opts":{"partitioned":true}}`)
	c := s.dial()
	c.fails("unsupported", "partitioned", `{"op":"SUBSCRIBE","topic":"a.b","group":"g","opts":{"partitioned":true}}`)
	if err := c.c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}

func TestShowPartitions(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.divide("a.b", 4)
	c := s.dial()
	c.parted("a.b", "me")
	c.assigned(count(4))
	s.spread("a.b", 16)
	f := c.frame("EVENT")
	s.until("it is through", func() bool { return part(s.group("a.b"), "last_rebalance", "took_ms") != nil })
	g := s.group("a.b")
	if g["partitioned"] != true || g["generation"].(float64) < 1 || part(g, "last_rebalance", "moved") != 4.0 {
		t.Errorf("%v", g)
	}
	m := s.member("me")
	if m["static"] != true || m["last_heartbeat"].(float64) <= 0 || !slices.Equal(numbers(t, m["partitions"]), []int{0, 1, 2, 3}) || part(m, "meta", "remote") == nil {
		t.Errorf("%v", m)
	}
	lag := 0.0
	for i, x := range g["partitions"].([]any) {
		p := x.(map[string]any)
		if p["partition"] != float64(i) || p["owner"] != "me" || p["epoch"].(float64) < 1 || p["inflight"] == nil {
			t.Errorf("%v", p)
		}
		lag += p["lag"].(float64)
	}
	if lag != 16 {
		t.Errorf("%v events are not settled, of which %v is one", lag, part(f, "event", "id"))
	}
	if status, answer := s.do("GET", "/ops/partitions?group=nobody", ""); status != 404 || answer["code"] != "not_found" {
		t.Errorf("%d %v", status, answer)
	}
	if status, answer := s.do("GET", "/ops/partitions?group=g&topic=A", ""); status != 400 || answer["code"] != "invalid_topic" {
		t.Errorf("%d %v", status, answer)
	}
	c.ok(`{"op":"SUBSCRIBE","topic":"a.b","group":"plain"}`)
	if _, answer := s.do("GET", "/ops/partitions?group=plain", ""); answer["count"] != 1.0 || part(answer["groups"].([]any)[0].(map[string]any), "partitioned") != false {
		t.Errorf("%v", answer)
	}
	if _, answer := s.do("GET", "/ops/partitions", ""); answer["count"] != 1.0 {
		t.Errorf("%v", answer)
	}
}

// group shows group g of a topic.
func (s *served) group(topic string) map[string]any {
	s.Helper()
	status, answer := s.do("GET", "/ops/partitions?group=g&topic="+topic, "")
	if status != 200 || answer["count"] != 1.0 {
		s.Fatalf("%d %v", status, answer)
	}
	return answer["groups"].([]any)[0].(map[string]any)
}

// member shows one of group g on a.b, nil if there is none.
func (s *served) member(id string) map[string]any {
	s.Helper()
	for _, x := range s.group("a.b")["members"].([]any) {
		if m := x.(map[string]any); m["id"] == id {
			return m
		}
	}
	return nil
}

// until waits for a condition.
func (s *served) until(what string, ok func() bool) {
	s.Helper()
	for over := time.After(patience); !ok(); {
		select {
		case <-over:
			s.Fatalf("%s did not come", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}
