package gateway

import (
	"strings"
	"sync"

	"promethean"
	"promethean/event"
	"promethean/gateway/auth"
	"promethean/gateway/internal/frame"
	"promethean/group"
	"promethean/wire"
)

// subName names a subscription of a connection: what it named, a topic or a
// pattern, and the group.
type subName struct{ topic, group string }

// sub is one subscription: a member of the group on each topic that fits.
type sub struct {
	c    *connection
	name subName
	set  group.Settings
	from group.Start
	o    group.MemberOptions
	per  int // events a frame
	norm *normaliser

	follow *promethean.Following // nil: it is one topic
	parted *parted               // nil: the group is not partitioned

	paused bool // under connection.resting

	mu      sync.Mutex
	members []*member
	opened  bool // the client knows of it
	gone    bool
}

// member takes the events of one topic for a subscription.
type member struct {
	s     *sub
	topic string
	m     *group.Member
	// number is the partition that it takes, in a partitioned group.
	number int

	// Under connection.mu.
	opened bool // the client knows of the subscription: events may go
	early  bool // there were events before that
	queued bool // it is among the connection's ready ones

	foreign  bool          // another hub owns the group, as far as we know
	relaying bool          // somebody sees to it that it is served by that hub
	up       *upstream     // over which its events come; nil if they do not
	gone     bool          // it has left
	nudged   chan struct{} // has room for one: something of that has changed
}

// checkGroup says what is wrong with the name of a group that a client gives.
func checkGroup(name string) error {
	switch {
	case name == "":
		return wire.Errorf(wire.InvalidArgument, "group: name one")
	case strings.HasPrefix(name, "system."):
		return wire.Errorf(wire.InvalidArgument, "group: only the hub itself has groups under system.")
	}
	return nil
}

// subscribe serves SUBSCRIBE. Of several topics all are subscribed to, or none.
func (c *connection) subscribe(f *frame.Frame) error {
	if err := checkGroup(f.Group); err != nil {
		return err
	}
	subs := make([]*sub, 0, len(f.Topics))
	for _, topic := range f.Topics {
		if err := c.maySubscribe(topic); err != nil {
			return err
		}
		name := subName{topic, f.Group}
		if c.find(name) != nil {
			return wire.Errorf(wire.AlreadySubscribed, "the connection has a subscription to %s as group %s", topic, clip(f.Group))
		}
		for _, s := range subs {
			if s.name == name {
				return wire.Errorf(wire.InvalidArgument, "topics: %s stands there twice", topic)
			}
		}
		s := &sub{c: c, name: name, set: f.Settings, from: f.Start, per: max(f.PerFrame, 1)}
		s.o = group.MemberOptions{MaxInFlight: f.MaxInFlight, BatchSize: f.BatchSize}
		if f.BatchSize == 0 {
			s.o.BatchSize = max(group.DefaultBatchSize, f.PerFrame)
		}
		subs = append(subs, s)
	}
	if f.Partitioned { // only those who may subscribe learn what is not there
		if err := c.parted(f, subs); err != nil {
			return err
		}
	}
	norm, err := c.g.normaliser(f.Normalise)
	if err != nil {
		return err
	}
	for _, s := range subs {
		s.norm = norm
	}
	for i, s := range subs {
		if err := s.begin(); err != nil {
			for _, s := range subs[:i] {
				s.end(true)
			}
			return c.g.unfit(c.ctx, s.name.topic, s.name.group, err)
		}
	}
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		for _, s := range subs {
			s.end(true)
		}
		return wire.Errorf(wire.Draining, "the connection is closed")
	}
	if c.subs == nil {
		c.subs = make(map[subName]*sub, len(subs))
	}
	for _, s := range subs {
		c.subs[s.name] = s
	}
	c.mu.Unlock()
	c.ok(f.Corr)
	for _, s := range subs {
		s.open()
	}
	return nil
}

// maySubscribe checks a topic, or a pattern, and the access to it.
func (c *connection) maySubscribe(topic string) error {
	check := event.CheckTopic
	if isPattern(topic) {
		check = promethean.CheckPattern
	}
	if err := check(topic); err != nil {
		return err
	}
	return c.allow(auth.Subscribe, topic)
}

func isPattern(topic string) bool { return strings.Contains(topic, "*") }

func (c *connection) find(name subName) *sub {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.subs[name]
}

// begin joins the group on all topics. Nothing is taken before open.
func (s *sub) begin() (err error) {
	switch {
	case s.parted != nil:
		return s.parted.join()
	case !isPattern(s.name.topic):
		return s.join(s.name.topic, false)
	}
	s.follow, err = s.c.g.hub.Follow([]string{s.name.topic}, s.join)
	if err != nil {
		s.end(true)
	}
	return err
}

// join makes a member for a topic; a fresh one is read from its first event.
func (s *sub) join(topic string, fresh bool) error {
	m := &member{s: s, topic: topic}
	from, o := s.from, s.o
	if fresh {
		from = group.Start{From: group.Earliest}
	}
	o.Notify = func() { s.c.wake(m) }
	if s.c.away != nil {
		m.nudged = make(chan struct{}, 1)
		o.Owned = m.owned
	}
	joined, err := s.c.g.hub.Engine().Join(s.c.ctx, topic, s.name.group, s.set, from, o)
	if err != nil {
		return err
	}
	m.m = joined
	rest := &s.c.resting
	rest.Lock()
	defer rest.Unlock()
	s.mu.Lock()
	gone, opened := s.gone, s.opened
	if !gone {
		s.members = append(s.members, m)
	}
	s.mu.Unlock()
	switch {
	case gone:
		joined.Leave()
		return nil
	case s.paused || s.c.parked:
		joined.Rest(true)
	}
	if opened {
		s.c.open(m)
	}
	return nil
}

// open lets events go: the client knows of the subscription.
func (s *sub) open() {
	s.mu.Lock()
	s.opened = true
	members := s.members
	s.mu.Unlock()
	if s.parted != nil {
		s.parted.open()
		return
	}
	for _, m := range members {
		s.c.open(m)
	}
}

func (s *sub) all() []*member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.members[:len(s.members):len(s.members)]
}

// end leaves the group. What the client holds goes back: as failed, or
// uncounted with leave.
func (s *sub) end(leave bool) {
	s.mu.Lock()
	s.gone = true
	members := s.members
	s.mu.Unlock()
	if s.parted != nil {
		s.parted.end(leave)
		return
	}
	if s.follow != nil {
		s.follow.Stop()
	}
	s.c.mu.Lock()
	for _, m := range members {
		m.gone = true
	}
	s.c.mu.Unlock()
	if a := s.c.away; a != nil && leave {
		a.leave(s.c, members)
	} else if a != nil {
		a.drop(members)
	}
	for _, m := range members {
		if leave {
			m.m.Leave()
		} else {
			m.m.Drop()
		}
	}
}

// unsubscribe serves UNSUBSCRIBE.
func (c *connection) unsubscribe(f *frame.Frame) error {
	subs := make([]*sub, 0, len(f.Topics))
	c.mu.Lock()
	for _, topic := range f.Topics {
		s := c.subs[subName{topic, f.Group}]
		if s == nil {
			c.mu.Unlock()
			return notSubscribed(topic, f.Group)
		}
		subs = append(subs, s)
	}
	for _, s := range subs {
		delete(c.subs, s.name)
		c.remember(s)
	}
	c.mu.Unlock()
	for _, s := range subs {
		s.end(true)
	}
	c.ok(f.Corr)
	return nil
}

func notSubscribed(topic, group string) error {
	return wire.Errorf(wire.NotSubscribed, "the connection has no subscription to %s as group %s", clip(topic), clip(group))
}

// pause serves PAUSE and RESUME: nothing is handed to this connection for the
// subscription. Other members of the group go on.
func (c *connection) pause(f *frame.Frame) error {
	s := c.find(subName{f.Topic, f.Group})
	if s == nil {
		return notSubscribed(f.Topic, f.Group)
	}
	c.resting.Lock()
	s.paused = f.Op == wire.OpPause
	s.rest(s.paused || c.parked)
	paused := s.paused
	members := s.all()
	c.resting.Unlock()
	if c.away != nil && s.parted == nil {
		c.away.rest(c, members, paused)
	}
	c.ok(f.Corr)
	return nil
}

// wake is called by the engine when there is something to take for a member.
// It is called under a lock of the engine's.
func (c *connection) wake(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !m.opened {
		m.early = true
		return
	}
	c.add(m)
}

// open lets the events of a member go.
func (c *connection) open(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.opened = true
	if m.early {
		c.add(m)
	}
	c.relay(m)
}

// add has somebody take what there is for a member. mu must be held.
func (c *connection) add(m *member) {
	if m.queued || c.ended {
		return
	}
	m.queued = true
	c.ready = append(c.ready, m)
	if !c.delivering {
		c.delivering = c.g.workers.Go(c.deliverer)
	}
}

// deliver takes events for members until there are none or the client has
// enough.
func (c *connection) deliver() {
	for {
		c.mu.Lock()
		if len(c.ready) == 0 || c.ended || c.ws.Closed() {
			c.ready, c.delivering = nil, false
			c.mu.Unlock()
			break
		}
		m := c.ready[0]
		c.ready = c.ready[1:]
		m.queued = false
		c.mu.Unlock()
		if c.ws.Full() {
			if c.ws.Flush(); c.ws.Full() {
				c.park()
			}
		}
		c.hand(m)
	}
	c.ws.Flush()
}

// perTake is how many events of single frames are taken at a time, and how many
// bytes of events at most, beyond which one more may go.
const (
	perTake   = 64
	takeBytes = 256 << 10
)

// hand queues events of a member for the client.
func (c *connection) hand(m *member) {
	if p := m.s.parted; p != nil {
		p.order.Lock()
		defer p.order.Unlock()
		if !p.mayTake(m) {
			return
		}
	}
	n := perTake
	if m.s.per > 1 {
		n = m.s.per
	}
	list := m.m.TakeWithin(n, min(takeBytes, c.g.o.Queue/4+1))
	if list = m.s.norm.deliveries(c.ctx, m.m, list); len(list) == 0 {
		return
	}
	var err error
	if m.s.per > 1 {
		b := frame.AppendEvents(c.ws.Begin(), m.topic, m.s.name.group)
		for i := range list {
			if b, err = frame.AppendDelivery(b, i == 0, &list[i]); err != nil {
				c.broken(m, &list[i], err)
				return
			}
		}
		c.ws.End(append(b, "]}"...))
		return
	}
	for i := range list {
		b, err := frame.AppendEvent(c.ws.Begin(), m.topic, m.s.name.group, &list[i])
		if err != nil {
			c.broken(m, &list[i], err)
			continue
		}
		c.ws.End(b)
	}
}

// broken is for an event that does not encode, which no stored one should do.
// Its lease runs out, and in the end it is a dead letter.
func (c *connection) broken(m *member, d *group.Delivery, err error) {
	c.ws.Cancel()
	c.g.o.Logger.Error("an event does not encode", "topic", m.topic, "seq", d.Event.Seq, "err", err)
}

// park has the members rest while the queue is full, so that others of their
// groups get what is ready.
func (c *connection) park() {
	c.rest(true)
	if !c.ws.Full() {
		c.rest(false) // there was room meanwhile, and nobody will say so
	}
}

// hasRoom is called when the queue is no longer full.
func (c *connection) hasRoom() { c.rest(false) }

func (c *connection) rest(on bool) {
	c.resting.Lock()
	defer c.resting.Unlock()
	c.parked = on
	c.mu.Lock()
	subs := make([]*sub, 0, len(c.subs))
	for _, s := range c.subs {
		subs = append(subs, s)
	}
	c.mu.Unlock()
	for _, s := range subs {
		s.rest(on || s.paused)
	}
}

// rest has nothing more taken for the subscription, or goes on.
func (s *sub) rest(on bool) {
	if s.parted != nil {
		s.parted.hold(on)
		return
	}
	for _, m := range s.all() {
		m.m.Rest(on)
	}
}
