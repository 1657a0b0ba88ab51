package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestContractPartitioned walks partitioned groups: who has what, and who is
// refused.
func TestContractPartitioned(t *testing.T) {
	onEach(t, func(t *testing.T, store string) {
		p := startHub(t, "--store", store)
		p.get(nil, 200, "PUT", "/topics/p.a", `{"partitions":8}`)
		walkMembers(p)
		walkSameMember(p)
		walkMixing(p)
		p.stop()
	})
}

// member is a connection in a partitioned group.
type member struct {
	*socket
	has  []int
	last map[string]uint64 // by key: the last seq
}

func (p *hub) member(topic, id string) *member {
	p.Helper()
	m := &member{socket: p.dial(), last: make(map[string]uint64)}
	m.ok("SUBSCRIBE", fmt.Sprintf(`"topic":%q,"group":"g","opts":{"partitioned":true,"member":%q,"from":"earliest"}`, topic, id))
	return m
}

// take gives the next frame, and notes what it says. Events must be of partitions
// that the member has, and in the order of their key.
func (m *member) take() frame {
	m.Helper()
	var f frame
	if len(m.kept) > 0 {
		f, m.kept = m.kept[0], m.kept[1:]
	} else {
		var err error
		if f, err = m.read(); err != nil {
			m.Fatal(err)
		}
	}
	switch f.Op {
	case "ASSIGN":
		if f.Topic == "" || f.Group != "g" || !slices.IsSorted(f.Partitions) {
			m.Errorf("%+v", f)
		}
		m.has = f.Partitions
	case "EVENT":
		if n := *f.Event.Partition; !slices.Contains(m.has, n) {
			m.Errorf("an event of partition %d came to the owner of %v", n, m.has)
		}
		if key := f.Event.Key; f.Event.Seq < m.last[key] {
			m.Errorf("key %s: seq %d after %d", key, f.Event.Seq, m.last[key])
		}
		m.last[f.Event.Key] = f.Event.Seq
	}
	return f
}

// assigned waits until the member has so many partitions, and gives events back
// that come meanwhile.
func (m *member) assigned(n int) []int {
	m.Helper()
	var kept []frame
	for m.has == nil || len(m.has) != n {
		if f := m.take(); f.Op == "EVENT" {
			kept = append(kept, f)
		}
	}
	m.kept = append(kept, m.kept...)
	return m.has
}

// event waits for the next event.
func (m *member) event() frame {
	m.Helper()
	for {
		if f := m.take(); f.Op == "EVENT" {
			return f
		}
	}
}

func (m *member) ack(f frame) {
	m.Helper()
	m.ok("ACK", fmt.Sprintf(`"topic":%q,"group":"g","id":%q,"lease":%s`, f.Topic, f.Event.ID, quoted(f.Ctx.Lease)))
}

// spread publishes an event for each of so many keys.
func (p *hub) spread(topic string, keys int) {
	p.Helper()
	var rows strings.Builder
	for k := range keys {
		fmt.Fprintf(&rows, `{"topic":%q,"payload":%d,"key":"k%d"}`+"\n", topic, k, k)
	}
	p.get(nil, 201, "POST", "/publish", rows.String(), "Content-Type", "application/x-ndjson")
}

func walkMembers(p *hub) {
	one := p.member("p.a", "")
	one.assigned(8)
	two := p.member("p.a", "")
	two.assigned(4)
	one.assigned(4)
	if all := slices.Sorted(slices.Values(slices.Concat(one.has, two.has))); !slices.Equal(all, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
		p.Fatalf("%v and %v", one.has, two.has)
	}
	p.spread("p.a", 40)
	p.spread("p.a", 40)
	log := p.replay("p.a")
	mine := 0
	for _, e := range log {
		if slices.Contains(one.has, *e.Partition) {
			mine++
		}
	}
	for range mine {
		one.ack(one.event())
	}
	for range len(log) - mine {
		two.ack(two.event())
	}
	p.until("all is settled", func() bool { return p.lag("p.a", "g") == 0 })
	// A change of owners is seen by whoever looks.
	var shown struct {
		Groups []struct {
			Generation uint64 `json:"generation"`
			Members    []struct {
				Static     bool  `json:"static"`
				Heartbeat  int64 `json:"last_heartbeat"`
				Partitions []int `json:"partitions"`
			} `json:"members"`
			Partitions []struct {
				Owner  string `json:"owner"`
				Epoch  uint64 `json:"epoch"`
				Cursor uint64 `json:"cursor"`
				Lag    uint64 `json:"lag"`
			} `json:"partitions"`
			Last *struct {
				At     int64  `json:"at"`
				TookMs *int64 `json:"took_ms"`
				Moved  int    `json:"moved"`
			} `json:"last_rebalance"`
		} `json:"groups"`
	}
	p.until("the rebalance is through", func() bool {
		p.get(&shown, 200, "GET", "/ops/partitions?group=g&topic=p.a", "")
		return shown.Groups[0].Last != nil && shown.Groups[0].Last.TookMs != nil
	})
	if g := shown.Groups[0]; g.Generation == 0 || len(g.Members) != 2 || g.Members[0].Static || g.Members[0].Heartbeat == 0 || len(g.Members[0].Partitions) != 4 ||
		len(g.Partitions) != 8 || g.Partitions[0].Owner == "" || g.Partitions[0].Epoch == 0 || g.Partitions[0].Lag != 0 || g.Last.Moved != 4 {
		p.Errorf("%+v", g)
	}
	// A connection that is lost leaves at once, and what it held has failed. The
	// stale lease settles nothing.
	p.spread("p.a", 40)
	held := two.event()
	_ = two.c.CloseNow()
	one.assigned(8)
	for range 40 {
		f := one.event()
		if f.Event.ID == held.Event.ID {
			if f.Ctx.Attempt != 2 {
				p.Errorf("%+v", f.Ctx)
			}
			if got := p.settle("ack", "p.a", "g", `,"leases":[`+quoted(held.Ctx.Lease)+`]`, held.Event.ID); got[held.Event.ID] != "fenced" {
				p.Errorf("%v", got)
			}
		}
		one.ack(f)
	}
	// Who leaves gives back what it holds, uncounted.
	p.spread("p.a", 8)
	held = one.event()
	one.ok("UNSUBSCRIBE", `"topic":"p.a","group":"g"`)
	one.err("fenced", "ACK", `"topic":"p.a","group":"g","id":"`+held.Event.ID+`"`)
	three := p.member("p.a", "three")
	three.assigned(8)
	for range 8 {
		f := three.event()
		if f.Ctx.Attempt != 1 {
			p.Errorf("%+v", f.Ctx)
		}
		three.ack(f)
	}
	three.ok("UNSUBSCRIBE", `"topic":"p.a","group":"g"`)
}

// walkSameMember has two connections with one id.
func walkSameMember(p *hub) {
	p.get(nil, 200, "PUT", "/topics/p.b", `{"partitions":4}`)
	old := p.member("p.b", "me")
	old.assigned(4)
	p.spread("p.b", 4)
	held := old.event()
	young := p.member("p.b", "me")
	young.assigned(4)
	f := old.take()
	for f.Op != "ERR" {
		f = old.take()
	}
	if f.Code != "fenced" || f.Corr != nil || f.Topic != "p.b" || f.Group != "g" || f.Member != "me" || f.Msg == "" {
		p.Errorf("%+v", f)
	}
	old.err("fenced", "ACK", `"topic":"p.b","group":"g","id":"`+held.Event.ID+`"`)
	old.err("fenced", "NACK", `"topic":"p.b","group":"g","id":"`+held.Event.ID+`"`)
	old.ok("PUBLISH", `"topic":"p.c","payload":1`)
	// With its own id a member comes back to what it had.
	_ = young.c.CloseNow()
	again := p.member("p.b", "me")
	again.assigned(4)
	for range 4 {
		again.ack(again.event())
	}
	again.ok("PAUSE", `"topic":"p.b","group":"g"`)
	p.spread("p.b", 4)
	again.ok("RESUME", `"topic":"p.b","group":"g"`)
	for range 4 {
		again.ack(again.event())
	}
	p.until("all is settled", func() bool { return p.lag("p.b", "g") == 0 })
}

// walkMixing uses groups in ways that they are not made for.
func walkMixing(p *hub) {
	s := p.dial()
	s.ok("SUBSCRIBE", `"topic":"p.b","group":"plain"`)
	other := p.dial()
	other.err("group_conflict", "SUBSCRIBE", `"topic":"p.b","group":"plain","opts":{"partitioned":true}`)
	other.err("group_conflict", "SUBSCRIBE", `"topic":"p.b","group":"g"`)
	other.err("invalid_argument", "SUBSCRIBE", `"topic":"p.*","group":"x","opts":{"partitioned":true}`)
	p.refused(409, "group_conflict", "POST", "/pull", `{"topic":"p.b","group":"g"}`)
	p.refused(409, "group_conflict", "GET", "/subscribe?topic=p.b&group=g", "")
	p.refused(404, "not_found", "GET", "/ops/partitions?group=nobody", "")
	var g struct {
		Settings struct {
			Partitioned bool `json:"partitioned"`
		} `json:"settings"`
	}
	if p.get(&g, 200, "PUT", "/groups/p.b/made", `{"partitioned":true}`); !g.Settings.Partitioned {
		p.Errorf("%+v", g)
	}
}

// lag is how many events a group has not settled.
func (p *hub) lag(topic, group string) uint64 {
	p.Helper()
	var got struct {
		Lag uint64 `json:"lag"`
	}
	p.get(&got, 200, "GET", "/lag?topic="+topic+"&group="+group, "")
	return got.Lag
}
