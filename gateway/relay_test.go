package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/cluster"
	"promethean/gateway"
	"promethean/internal/natstest"
	"promethean/internal/netfault"
	"promethean/store/natsstore"
)

// pair starts two hubs over NATS, of which the first owns a group of a topic.
func pair(t testing.TB, change func(i int, o *gateway.Options, c *cluster.Options)) (own, other *fleetHub) {
	t.Helper()
	url := natstest.Start(t, nil).URL()
	h := fleet(t, 2, ownLong, func(t testing.TB) (promethean.Log, *netfault.Proxy) {
		p := netfault.New(t, strings.TrimPrefix(url, "nats://"))
		log, err := natsstore.Open(context.Background(), "nats://"+p.Addr(), natsstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return log, p
	}, change)
	return h[0], h[1]
}

// hold makes a hub the owner of a group by a member that takes nothing.
func (h *fleetHub) hold(topic, group, opts string, headers ...string) *socket {
	h.Helper()
	s := h.dial(headers...)
	s.ok(`{"op":"SUBSCRIBE","topic":%q,"group":%q,"opts":{"from":"earliest"%s}}`, topic, group, opts)
	s.ok(`{"op":"PAUSE","topic":%q,"group":%q}`, topic, group)
	until(h, "the owner", func() bool { return h.hub.Engine().Owns(topic, group) })
	return s
}

func TestFramesThroughTheOwner(t *testing.T) {
	own, other := pair(t, nil)
	own.hold("orders.placed", "g", `,"maxAttempts":3`)
	s := other.dial()
	s.fails("group_conflict", "maxAttempts", `{"op":"SUBSCRIBE","topic":"orders.placed","group":"g","opts":{"maxAttempts":4}}`)
	s.ok(`{"op":"SUBSCRIBE","corr":"s","topic":"orders.placed","group":"g","opts":{"batch":1}}`)
	ids := other.publish("orders.placed", "a", "1", "a", "2", "b", "3")
	var leases []string
	seen := make(map[string]any)
	for range 2 { // the second of a key waits
		e := s.event()
		id := part(e, "event", "id").(string)
		seen[id] = part(e, "ctx", "attempt")
		if e["op"] != "EVENT" || e["topic"] != "orders.placed" || e["group"] != "g" || part(e, "ctx", "maxAttempts") != 3.0 {
			t.Errorf("%v", e)
		}
		if id == ids[0] {
			leases = append(leases, part(e, "ctx", "lease").(string))
		}
	}
	if seen[ids[0]] != 1.0 || seen[ids[2]] != 1.0 {
		t.Fatalf("handed out: %v of %v", seen, ids)
	}
	settle := func(op, id, more string) string {
		return fmt.Sprintf(`{"op":%q,"corr":"c","topic":"orders.placed","group":"g","id":%q%s}`, op, id, more)
	}
	if got := s.ok("%s", settle("MODACK", ids[0], fmt.Sprintf(`,"lease":%q,"extend_ms":60000`, leases[0]))); got["corr"] != "c" {
		t.Errorf("%v", got)
	}
	s.fails("fenced", "", "%s", settle("NACK", ids[0], `,"lease":"7"`))
	s.ok("%s", settle("NACK", ids[0], `,"reason":"busy","delay_ms":0`))
	e := s.event()
	if part(e, "event", "id") != ids[0] || part(e, "ctx", "attempt") != 2.0 {
		t.Errorf("after a nack: %v", e)
	}
	got := s.ok(`{"op":"ACK","corr":1,"topic":"orders.placed","group":"g","ids":[%q,%q,"0192f7c1-0000-7000-8000-00000000dead"]}`, ids[0], ids[2])
	if text := fmt.Sprint(got["results"]); strings.Count(text, "ok:true") != 2 || !strings.Contains(text, "unknown_id") {
		t.Errorf("%v", got)
	}
	if e := s.event(); part(e, "event", "id") != ids[1] || part(e, "ctx", "attempt") != 1.0 {
		t.Errorf("the next of the key: %v", e)
	}
	// Left cleanly it does not count, dropped it does.
	s.ok(`{"op":"UNSUBSCRIBE","topic":"orders.placed","group":"g"}`)
	s.fails("not_subscribed", "", `{"op":"UNSUBSCRIBE","topic":"orders.placed","group":"g"}`)
	s.ok(`{"op":"SUBSCRIBE","topic":"orders.placed","group":"g"}`)
	if e := s.event(); part(e, "event", "id") != ids[1] || part(e, "ctx", "attempt") != 1.0 {
		t.Errorf("after UNSUBSCRIBE: %v", e)
	}
	_ = s.c.CloseNow() // it is gone without a word
	s = other.dial()
	s.ok(`{"op":"SUBSCRIBE","topic":"orders.placed","group":"g"}`)
	if e := s.event(); part(e, "event", "id") != ids[1] || part(e, "ctx", "attempt") != 2.0 {
		t.Errorf("after the connection was dropped: %v", e)
	}
	s.ok("%s", settle("ACK", ids[1], ""))
	other.settled("orders.placed", "g")
	// Paused, nothing comes; resumed, it does.
	s.ok(`{"op":"PAUSE","topic":"orders.placed","group":"g"}`)
	for i := range 5 { // somebody else gets all of them
		id := own.publish("orders.placed", fmt.Sprint("c", i), "4")[0]
		got := own.want(200, "", "POST", "/pull", `{"topic":"orders.placed","group":"g","max":1,"wait_ms":10000}`)
		if text := fmt.Sprint(got); !strings.Contains(text, id) {
			t.Errorf("while the member is paused a pull gives %s", text)
		}
		own.want(200, "", "POST", "/ack", fmt.Sprintf(`{"topic":"orders.placed","group":"g","ids":[%q]}`, id))
	}
	s.ok(`{"op":"RESUME","topic":"orders.placed","group":"g"}`)
	id := own.publish("orders.placed", "d", "5")[0]
	if e := s.event(); part(e, "event", "id") != id {
		t.Errorf("after RESUME: %v", e)
	}
}

// Each topic of a pattern may have another owner, and batches come as they are.
func TestPatternsThroughOwners(t *testing.T) {
	own, other := pair(t, nil)
	own.hold("orders.placed", "g", "")
	own.publish("orders.placed", "a", "1")
	other.publish("orders.sent", "a", "2")
	s := other.dial()
	s.ok(`{"op":"SUBSCRIBE","topic":"orders.*","group":"g","opts":{"from":"earliest","batch":10}}`)
	s.ok(`{"op":"SUBSCRIBE","topic":"orders.placed","group":"g","opts":{"batch":10}}`) // beside it, the same group
	got := make(map[any]int)
	take := func(n int) {
		t.Helper()
		for len(got) < n {
			e := s.event()
			if e["op"] != "EVENTS" {
				t.Fatalf("%v", e)
			}
			for _, x := range e["events"].([]any) {
				d := x.(map[string]any)
				got[part(d, "event", "topic")]++
				s.ok(`{"op":"ACK","topic":%q,"group":"g","id":%q}`, e["topic"], part(d, "event", "id"))
			}
		}
	}
	take(2)
	// A topic that appears, made on the other hub.
	own.publish("orders.paid", "a", "3")
	take(3)
	for _, topic := range []string{"orders.placed", "orders.sent", "orders.paid"} {
		if got[topic] != 1 {
			t.Errorf("%s came %d times", topic, got[topic])
		}
	}
}

func TestStreamThroughTheOwner(t *testing.T) {
	own, other := pair(t, nil)
	x := own.hold("a.b", "g", "")
	own.publish("a.b", "k", "1", "l", "2")
	src := other.listen("/subscribe?topic=a.b&group=g")
	m := src.want("1")
	if !strings.Contains(m.comment, "attempt 1, lease ") {
		t.Errorf("the comment is %q", m.comment)
	}
	second := src.want("2")
	for _, id := range []string{m.data.ID, second.data.ID} {
		other.want(200, "", "POST", "/ack", fmt.Sprintf(`{"topic":"a.b","group":"g","ids":[%q]}`, id))
	}
	// The owner goes: the stream stays.
	_ = x.c.CloseNow()
	own.stop()
	other.publish("a.b", "k", "3")
	src.want("3")
	if !other.hub.Engine().Owns("a.b", "g") {
		t.Error("the group was not taken over")
	}
}

// The owner asks for the client's own token, and the header alone opens nothing.
func TestTokensThroughTheOwner(t *testing.T) {
	own, other := pair(t, func(_ int, o *gateway.Options, _ *cluster.Options) { o.Verifier = tokens{} })
	const may, mayNot = "Bearer subscribe:orders.*,publish:orders.*,admin", "Bearer subscribe:other.*,publish:other.*"
	own.hold("orders.placed", "g", "", "Authorization", may)
	id := own.want(201, "", "POST", "/publish/orders.placed", "1", "Authorization", may)["id"].(string)
	ack := fmt.Sprintf(`{"topic":"orders.placed","group":"g","ids":[%q]}`, id)
	pull := `{"topic":"orders.placed","group":"g","max":1,"wait_ms":5000}`
	for _, h := range []*fleetHub{own, other} {
		h.want(401, "unauthorized", "POST", "/pull", pull)
		h.want(403, "forbidden", "POST", "/pull", pull, "Authorization", mayNot)
		h.want(401, "unauthorized", "POST", "/pull", pull, "X-Promethean-Forwarded", "1")
		h.want(403, "forbidden", "POST", "/pull", pull, "X-Promethean-Forwarded", "1", "Authorization", mayNot)
	}
	if got := other.want(200, "", "POST", "/pull", pull, "Authorization", may); len(got["events"].([]any)) != 1 {
		t.Errorf("%v", got)
	}
	// What says that it was forwarded is not forwarded.
	other.want(503, "unavailable", "POST", "/ack", ack, "Authorization", may, "X-Promethean-Forwarded", "1")
	// A page of another site is refused with it all the same.
	other.want(403, "forbidden", "POST", "/ack", ack, "Authorization", may, "X-Promethean-Forwarded", "1", "Origin", "https://evil.example")
	other.want(200, "", "POST", "/ack", ack, "Authorization", may)

	s := other.dial()
	s.ok(`{"op":"AUTH","token":%q}`, strings.TrimPrefix(may, "Bearer "))
	s.ok(`{"op":"SUBSCRIBE","topic":"orders.placed","group":"g"}`)
	id = other.want(201, "", "POST", "/publish/orders.placed", "2", "Authorization", may)["id"].(string)
	if e := s.event(); part(e, "event", "id") != id {
		t.Errorf("%v", e)
	}
	s.ok(`{"op":"AUTH","token":"subscribe:orders.*"}`)
	s.ok(`{"op":"ACK","topic":"orders.placed","group":"g","id":%q}`, id)
}

// A call of a scope that is recorded is recorded once, and a rate counts once.
func TestForwardedCallsCountOnce(t *testing.T) {
	own, other := pair(t, func(i int, o *gateway.Options, _ *cluster.Options) {
		if i == 0 {
			o.ConnectionRate = 1
		}
	})
	x := own.dial() // its frames count
	x.ok(`{"op":"SUBSCRIBE","topic":"orders.placed","group":"g","opts":{"from":"earliest"}}`)
	until(t, "the owner", func() bool { return own.hub.Engine().Owns("orders.placed", "g") })
	for i := range 20 {
		other.want(200, "", "PUT", "/groups/orders.placed/g", fmt.Sprintf(`{"maxAttempts":%d}`, 6+i))
	}
	until(t, "records", func() bool {
		_, _, text := other.raw("GET", "/export?topic=system.audit", "")
		n := strings.Count(text, `"action":"PUT /groups/{topic}/{group}"`)
		if n > 20 {
			t.Fatalf("%d records of 20 calls", n)
		}
		return n == 20
	})
}

// A client that does not read holds nothing up, and nothing piles up.
func TestSlowClientThroughTheOwner(t *testing.T) {
	own, other := pair(t, func(_ int, o *gateway.Options, _ *cluster.Options) { o.Queue, o.Stall = 64<<10, 3*time.Second })
	own.hold("orders.placed", "g", `,"ackTimeoutMs":600000`)
	nc, err := net.Dial("tcp", strings.TrimPrefix(other.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	if err := nc.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	frame := []byte(`{"op":"SUBSCRIBE","topic":"orders.placed","group":"g","opts":{"maxInFlight":100000}}`)
	request := fmt.Sprintf("GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", nc.RemoteAddr())
	head := []byte{0x81, 0x80 | byte(len(frame)), 0, 0, 0, 0} // a mask of zeros
	if len(frame) > 125 {
		t.Fatal("the frame needs a longer head")
	}
	if _, err := nc.Write(append(append([]byte(request), head...), frame...)); err != nil {
		t.Fatal(err)
	}
	const n = 200
	payload := `"` + strings.Repeat("x", 100<<10) + `"`
	ids := make(map[string]bool)
	for range n {
		ids[own.publish("orders.placed", "", payload)[0]] = true
	}
	// It is closed in the end, and what it held comes to somebody who reads.
	s := own.dial()
	s.ok(`{"op":"SUBSCRIBE","topic":"orders.placed","group":"g","opts":{"maxInFlight":1000}}`)
	for len(ids) > 0 {
		e := s.event()
		id := part(e, "event", "id").(string)
		if !ids[id] {
			t.Fatalf("%s came again", id)
		}
		delete(ids, id)
		s.ok(`{"op":"ACK","topic":"orders.placed","group":"g","id":%q}`, id)
	}
}

// Hubs whose addresses are https hold each other to what they are told to trust.
func TestHubsWithCertificates(t *testing.T) {
	known := httptest.NewTLSServer(nil) // all servers of a test have its certificate
	roots := x509.NewCertPool()
	roots.AddCert(known.Certificate())
	known.Close()
	own, other := pair(t, func(i int, o *gateway.Options, c *cluster.Options) {
		c.URL = strings.Replace(c.URL, "http://", "https://", 1)
		if o.PeerTLS = new(tls.Config); i == 1 {
			o.PeerTLS.RootCAs = roots
		}
	})
	pull := `{"topic":"orders.placed","group":%q,"max":1,"wait_ms":5000,"opts":{"from":"earliest"}}`
	own.publish("orders.placed", "a", "1")
	own.want(200, "", "POST", "/pull", fmt.Sprintf(pull, "g"))
	id := own.publish("orders.placed", "b", "2")[0]
	if got := other.want(200, "", "POST", "/pull", fmt.Sprintf(pull, "g")); !strings.Contains(fmt.Sprint(got), id) {
		t.Errorf("a pull over TLS gives %v", got)
	}
	s := other.dial()
	s.ok(`{"op":"SUBSCRIBE","topic":"orders.placed","group":"g"}`)
	id = own.publish("orders.placed", "c", "3")[0]
	if e := s.event(); part(e, "event", "id") != id {
		t.Errorf("%v", e)
	}
	// The first trusts nobody.
	other.want(200, "", "POST", "/pull", fmt.Sprintf(pull, "theirs"))
	own.want(503, "unavailable", "POST", "/pull", fmt.Sprintf(pull, "theirs"))
}
