package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"promethean/gateway/internal/frame"
	"promethean/group"
	"promethean/partition"
	"promethean/wire"
)

// A subscription to a partitioned group is one member of it, and has a member of
// the engine for each partition that it owns. ASSIGN tells the client which
// these are: before the first event of a new one, and before one is taken away
// no more events of it follow.

const (
	// joinWait bounds how long a SUBSCRIBE waits to be on the list of members.
	joinWait = 10 * time.Second
	// maxPast is how many ended subscriptions a connection remembers.
	maxPast = 1024
)

// parted is what a subscription to a partitioned group has beside others.
type parted struct {
	s      *sub
	member string // as the client named it
	ms     *partition.Membership

	// order is held while events are taken and queued, and while an ASSIGN is.
	// It comes before connection.mu and the locks of the engine.
	order sync.Mutex

	// Under connection.mu.
	known      bool // the client knows of the subscription
	told       bool // owns is known
	generation uint64
	owns       []int // ascending
	held       bool  // nothing is to be taken now
	over       error // why the membership has ended by itself
}

// parted makes a subscription one to a partitioned group.
func (c *connection) parted(f *frame.Frame, subs []*sub) error {
	switch {
	case c.g.o.Partitions == nil:
		return errNoPartitions
	case len(subs) != 1:
		return wire.Errorf(wire.InvalidArgument, "opts.partitioned: name one topic; each has partitions of its own")
	case isPattern(subs[0].name.topic):
		return wire.Errorf(wire.InvalidArgument, "opts.partitioned: name a topic, not a pattern; each topic has partitions of its own")
	}
	s := subs[0]
	s.set.Partitions = group.FollowTopic
	s.parted = &parted{s: s, member: f.Member}
	return nil
}

// join makes the subscription a member of the group.
func (p *parted) join() (err error) {
	s := p.s
	ctx, cancel := context.WithTimeout(s.c.ctx, joinWait)
	defer cancel()
	p.ms, err = s.c.g.o.Partitions.Join(ctx, s.name.topic, s.name.group, partition.Join{
		Member: p.member, Meta: map[string]string{"remote": s.c.remote}, Settings: s.set, Start: s.from,
		Serve: p.serve, Changed: p.changed, Fenced: p.fenced,
	})
	if err != nil {
		return err
	}
	s.c.ws.PingEvery(s.c.g.o.MemberPing)
	s.c.beats.Add(1)
	return nil
}

// serve takes a partition over.
func (p *parted) serve(n int, join func(group.MemberOptions) (*group.Member, error)) (stop func(), err error) {
	s := p.s
	c := s.c
	m := &member{s: s, topic: s.name.topic, number: n}
	o := s.o
	o.Notify = func() { c.wake(m) }
	c.mu.Lock()
	o.MaxInFlight = share(o.MaxInFlight, len(p.owns))
	c.mu.Unlock()
	if m.m, err = join(o); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.members = append(s.members[:len(s.members):len(s.members)], m)
	s.mu.Unlock()
	c.mu.Lock()
	p.gate(m)
	c.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.members = slices.DeleteFunc(slices.Clone(s.members), func(x *member) bool { return x == m })
		s.mu.Unlock()
		c.mu.Lock()
		m.opened = false
		c.mu.Unlock()
	}, nil
}

// share is how much of what a member may hold falls to one of so many
// partitions.
func share(most, partitions int) int {
	if most == 0 {
		most = group.DefaultMaxInFlight
	}
	return max(most/max(partitions, 1), 1)
}

// gate lets the events of a member go, or holds them back. connection.mu must be
// held.
func (p *parted) gate(m *member) {
	_, owned := slices.BinarySearch(p.owns, m.number)
	was := m.opened
	m.opened = p.known && p.over == nil && owned && !p.held
	if m.opened && !was && m.early {
		m.early = false
		p.s.c.add(m)
	}
}

// mayTake says whether events of a member may be taken now. If not, it is looked
// at again once they may. order must be held.
func (p *parted) mayTake(m *member) bool {
	c := p.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	m.early = !m.opened
	return m.opened
}

// hold has nothing more taken for the subscription, or goes on. There is nobody
// else who could have what is ready, so the members of the engine need not rest:
// whether they do is for the coordinator to say.
func (p *parted) hold(on bool) {
	c := p.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	p.held = on
	p.gateAll()
}

func (p *parted) gateAll() {
	for _, m := range p.s.all() {
		p.gate(m)
	}
}

// changed is told by the coordinator which partitions the member owns.
func (p *parted) changed(generation uint64, partitions []int) {
	p.order.Lock()
	defer p.order.Unlock()
	c := p.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	p.told, p.generation, p.owns = true, generation, partitions
	if p.known && p.over == nil {
		p.assign()
	}
}

// open lets ASSIGN and events go: the client knows of the subscription.
func (p *parted) open() {
	p.order.Lock()
	defer p.order.Unlock()
	c := p.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	p.known = true
	switch {
	case p.over != nil:
		p.tell()
	case p.told:
		p.assign()
	}
}

// assign tells the client what it owns. connection.mu must be held, and order.
func (p *parted) assign() {
	c := p.s.c
	c.ws.End(frame.AppendAssign(c.ws.Begin(), p.s.name.topic, p.s.name.group, p.generation, p.owns))
	p.gateAll()
	c.flush()
}

// flush has somebody write what is queued. mu must be held.
func (c *connection) flush() {
	if !c.delivering && !c.ended {
		c.delivering = c.g.workers.Go(c.deliverer)
	}
}

// fenced is told by the coordinator that the membership has ended.
func (p *parted) fenced(cause error) {
	c := p.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	p.over = cause
	if p.known {
		p.tell()
	}
}

// tell ends a subscription whose membership has ended, and says so to the client.
// connection.mu must be held.
func (p *parted) tell() {
	s := p.s
	c := s.c
	p.gateAll()
	if c.subs[s.name] != s {
		return // it has unsubscribed meanwhile
	}
	delete(c.subs, s.name)
	c.remember(s)
	c.beats.Add(-1)
	id := p.ms.ID()
	msg := fmt.Sprintf("member %s of topic %s, group %s: %v", clip(id), s.name.topic, clip(s.name.group), p.over)
	b := frame.AppendErr(c.ws.Begin(), nil, codeOf(p.over), msg)
	b = frame.AppendSource(b, s.name.topic, s.name.group)
	c.ws.End(append(frame.AppendField(b, "member", id), '}'))
	c.flush()
}

// end leaves the group: what the client holds goes back at once, uncounted or as
// failed.
func (p *parted) end(leave bool) {
	p.s.c.beats.Add(-1)
	if !leave {
		p.ms.Drop()
		return
	}
	ctx, cancel := context.WithCancel(p.s.c.ctx)
	cancel() // it has nothing left to finish
	if err := p.ms.Leave(ctx); err != nil {
		p.s.c.g.o.Logger.Debug("a member has left before it was done", "err", err)
	}
}

// remember notes that the connection has had a subscription to a partitioned
// group: what it settles late is fenced. mu must be held.
func (c *connection) remember(s *sub) {
	if s.parted == nil {
		return
	}
	if c.past == nil || len(c.past) >= maxPast {
		c.past = make(map[subName]struct{})
	}
	c.past[s.name] = struct{}{}
}

// asMember gives the partitions by which a connection settles events of a
// partitioned group. ok is false if it is not, and was not, a member of one.
func (c *connection) asMember(topic, name string) (as []*group.Member, ok bool) {
	n := subName{topic, name}
	c.mu.Lock()
	s := c.subs[n]
	_, past := c.past[n]
	c.mu.Unlock()
	if s == nil {
		return nil, past
	}
	if s.parted == nil {
		return nil, false
	}
	for _, m := range s.all() {
		as = append(as, m.m)
	}
	return as, true
}

// heard is called when something has come from the client, which therefore
// lives.
func (c *connection) heard() {
	if c.beats.Load() == 0 {
		return
	}
	now := time.Now()
	if now.Sub(c.beat) < c.g.o.MemberPing/16 {
		return
	}
	c.beat = now
	c.mu.Lock()
	var all []*partition.Membership
	for _, s := range c.subs {
		if s.parted != nil {
			all = append(all, s.parted.ms)
		}
	}
	c.mu.Unlock()
	for _, ms := range all {
		_ = ms.Heartbeat() // that it is over is said by the coordinator itself
	}
}

// errNoPartitions says that the hub has no coordinator.
var errNoPartitions = wire.Errorf(wire.Unsupported, "partitioned: this hub has no partitioned groups")

// unpartitioned refuses options that only a member over a WebSocket can have.
func (g *Gateway) unpartitioned(o *options) error {
	switch {
	case !o.Partitioned:
		return nil
	case g.o.Partitions == nil:
		return errNoPartitions
	}
	return wire.Errorf(wire.GroupConflict, "partitioned: members of a partitioned group stay: subscribe over a WebSocket")
}

// unfit says what to do about a group that is partitioned, if that is why err
// came.
func (g *Gateway) unfit(ctx context.Context, topic, name string, err error) error {
	if codeOf(err) != wire.GroupConflict {
		return err
	}
	i, bad := g.hub.Engine().Info(ctx, topic, name)
	if bad != nil || i.Settings.Partitions == 0 {
		return err
	}
	return wire.Errorf(wire.GroupConflict, "group %s on topic %s is partitioned: subscribe over a WebSocket, with opts.partitioned", clip(name), topic)
}
