package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// Defaults of the options.
const (
	DefaultTTL          = 15 * time.Second
	DefaultRefresh      = 3 * time.Second
	DefaultDrainTimeout = 10 * time.Second
	DefaultHookTimeout  = 30 * time.Second
)

// Errors of a membership that is over.
var (
	// ErrFenced says that another member came with the same id.
	ErrFenced = errors.New("another member has come with the same id")
	// ErrSwept says that the member was not heard of for too long.
	ErrSwept = errors.New("the member was not heard of for too long")
	// ErrLeft says that the member has left.
	ErrLeft = errors.New("the member has left")
	// ErrClosed says that the coordinator was closed.
	ErrClosed = errors.New("the coordinator is closed")
)

// Hubs tells which hubs live that share the engine; package cluster does.
type Hubs interface {
	// Alive says whether the hub with that id lives.
	Alive(ctx context.Context, id string) (bool, error)
	// OnGone has f called with the id of a hub that is gone.
	OnGone(f func(id string)) (stop func())
}

// Options configure a coordinator. The zero value works on an engine that is
// not shared.
type Options struct {
	// TTL is how long a member may be silent before it counts as dead, and how
	// long one that chose its id keeps its partitions when its connection is
	// lost. The default is 15 s.
	TTL time.Duration
	// Refresh is how often everything is looked at, in case that a wake-up was
	// missed. The default is 3 s.
	Refresh time.Duration
	// DrainTimeout is how long a partition that moves waits for what its member
	// holds. The default is 10 s.
	DrainTimeout time.Duration
	// HookTimeout is how long a hook may take. The default is 30 s.
	HookTimeout time.Duration
	// Hubs tells which hubs live. It is needed where several hubs share the
	// engine.
	Hubs Hubs
	// Self is the id of this hub among them. The default is the name by which
	// it owns groups, as in package cluster.
	Self string
	// Logger gets what has no caller to be told. The default discards.
	Logger *slog.Logger
}

// Coordinator decides, together with those of other hubs on the same engine,
// which member of a partitioned group has which partition. A hub has one. Its
// methods may be called concurrently.
type Coordinator struct {
	hub    *promethean.Hub
	o      Options
	lim    limits
	table  table
	told   *notices // nil where there is no other hub
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	ungone func()

	mu     sync.Mutex // before agent.mu
	agents map[groupName]*agent
	lives  map[string]time.Time // when it was heard that a hub lives
	closed bool
}

// New makes the coordinator of a hub. Close it before the hub.
func New(hub *promethean.Hub, o Options) (*Coordinator, error) {
	for _, x := range []struct {
		name  string
		value *time.Duration
		unset time.Duration
	}{
		{"TTL", &o.TTL, DefaultTTL}, {"Refresh", &o.Refresh, DefaultRefresh},
		{"DrainTimeout", &o.DrainTimeout, DefaultDrainTimeout}, {"HookTimeout", &o.HookTimeout, DefaultHookTimeout},
	} {
		if *x.value < 0 {
			return nil, fmt.Errorf("coordinator: %w: %s %v is negative", group.ErrInvalid, x.name, *x.value)
		}
		if *x.value == 0 {
			*x.value = x.unset
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Coordinator{
		hub: hub, o: o, lim: limits{ttl: o.TTL}, table: new(memoryTable),
		agents: make(map[groupName]*agent), lives: make(map[string]time.Time), ungone: func() {},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if _, shared := hub.Log().(store.Shared); shared {
		if o.Hubs == nil {
			return nil, fmt.Errorf("coordinator: %w: several hubs may share this engine, so it has to know them", group.ErrInvalid)
		}
		if o.Self == "" {
			c.o.Self = hub.Engine().Owner()
		}
		c.table = cursorTable{hub.Log()}
		var err error
		if c.told, err = listen(c); err != nil {
			return nil, fmt.Errorf("coordinator: %w", err)
		}
		c.ungone = o.Hubs.OnGone(c.gone)
	}
	return c, nil
}

// Close has all members leave, as [Membership.Leave] does, and releases
// everything. It returns when ctx ends at the latest; hooks that do not end are
// left behind.
func (c *Coordinator) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	var all []*Membership
	for _, a := range c.agents {
		all = append(all, a.memberships()...)
	}
	c.mu.Unlock()
	c.ungone()
	var wg sync.WaitGroup
	errs := make([]error, len(all)+1)
	for i, ms := range all {
		wg.Go(func() { errs[i] = ms.Leave(ctx) })
	}
	wg.Wait()
	c.cancel()
	idle := make(chan struct{})
	go func() {
		c.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return errors.Join(errs...)
	case <-ctx.Done():
	}
	select { // all that ends by itself may do so
	case <-idle:
	case <-time.After(closeGrace):
		errs[len(all)] = fmt.Errorf("close the coordinator: %w", ctx.Err())
	}
	return errors.Join(errs...)
}

// closeGrace is how long Close waits for its own work once its time is over.
const closeGrace = 100 * time.Millisecond

// Join is what a membership is made of.
type Join struct {
	// Member is the member's id. It then keeps its partitions for the TTL when
	// it is dropped, and when it comes again, here or at another hub, it gets
	// them back without a move; one that is still there with the same id is
	// fenced. With "" an id is made up, and the member leaves at once when it
	// is dropped.
	Member string
	// Meta is shown to people.
	Meta map[string]string
	// Settings are the group's; Partitions says how it is divided and must not
	// be 0.
	Settings group.Settings
	// Start is where a new group begins.
	Start group.Start
	// KeyOf gives what partition and order follow; see [group.PartOptions].
	KeyOf func(*event.Event) string

	// Serve is called for every partition that the member gets, at the same
	// time for several. It calls join once, with what the member of that
	// partition needs, and takes from the member that join gives: nothing
	// comes before Assigned has returned. MaxInFlight and BatchSize are those
	// of one partition. If join fails, so does Serve.
	//
	// stop is called once, when no more is to be taken: the member holds
	// nothing, or what it holds has gone back. stop must not wait for long.
	// After it the member has left.
	Serve func(n int, join func(group.MemberOptions) (*group.Member, error)) (stop func(), err error)
	// Assigned is called before the first event of a partition. If it fails or
	// takes too long, the partition is given to somebody else, or tried again
	// after a while. May be nil.
	Assigned func(ctx context.Context, n int) error
	// Revoked is called after the last event of a partition for which Assigned
	// has returned without an error. The partition is nobody else's until it
	// returns, unless it was lost: the member was fenced, swept or dropped, or
	// its hub was cut off. May be nil.
	Revoked func(ctx context.Context, n int) error
	// Changed is told all partitions that the member has, in ascending order,
	// before the first event of one that is new, and as soon as one is to be
	// let go of. Calls come one after the other; it must be quick. May be nil.
	Changed func(generation uint64, partitions []int)
	// Fenced is called once if the membership ends by itself: with ErrFenced,
	// ErrSwept, or because the group is gone. Nothing more is handed out. It
	// must be quick. May be nil.
	Fenced func(error)

	// present says that the member lives as long as the process.
	present bool
}

// Join makes a member of a partitioned group, which is made if need be. Its
// functions may be called before Join returns.
func (c *Coordinator) Join(ctx context.Context, topic, name string, o Join) (*Membership, error) {
	ms, err := c.join(ctx, topic, name, o)
	if err != nil {
		return nil, fmt.Errorf("join topic %s, group %s: %w", topic, name, err)
	}
	return ms, nil
}

func (c *Coordinator) join(ctx context.Context, topic, name string, o Join) (*Membership, error) {
	switch {
	case o.Serve == nil:
		return nil, fmt.Errorf("%w: nobody serves the partitions", group.ErrInvalid)
	case o.Settings.Partitions == 0:
		return nil, fmt.Errorf("%w: a partitioned group has at least one partition", group.ErrInvalid)
	case len(o.Member) > maxMember:
		return nil, fmt.Errorf("%w: a member's id has at most %d bytes, not %d", group.ErrInvalid, maxMember, len(o.Member))
	case o.KeyOf != nil && o.Settings.Partitions == group.FollowTopic:
		return nil, fmt.Errorf("%w: a group that follows the partitions of its topic has no key of its own", group.ErrInvalid)
	}
	size := 0
	for k, v := range o.Meta {
		size += len(k) + len(v)
	}
	if size > maxMeta {
		return nil, fmt.Errorf("%w: what a member says of itself has at most %d bytes, not %d", group.ErrInvalid, maxMeta, size)
	}
	if _, err := c.hub.Engine().MakeParted(ctx, topic, name, o.Settings, o.Start); err != nil {
		return nil, err
	}
	ms := newMembership(o)
	if err := c.enter(groupName{topic, name}, ms); err != nil {
		return nil, err
	}
	select {
	case <-ms.ready:
		return ms, nil
	case <-ms.gone:
		return nil, ms.Heartbeat()
	case <-ctx.Done():
		ms.Drop()
		return nil, ctx.Err()
	}
}

const (
	// maxMember bounds a member's id, and maxMeta what it says of itself: all
	// members of a group are kept in one document.
	maxMember = 256
	maxMeta   = 1024
)

// enter puts a membership into the hands of the group's agent.
func (c *Coordinator) enter(n groupName, ms *Membership) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	a := c.agents[n]
	if a == nil {
		a = newAgent(c, n)
		c.agents[n] = a
		c.work.Go(a.loop)
	}
	a.enter(ms)
	return nil
}

// gone has everybody look who has members of a hub that is no more.
func (c *Coordinator) gone(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lives, id)
	for _, a := range c.agents {
		a.wakeUp()
	}
}

// alive says whether a hub lives. That one does is believed for a while; that
// one does not is asked each time: it may have been cut off, and be back.
func (c *Coordinator) alive(ctx context.Context, id string) bool {
	if c.o.Hubs == nil {
		return id == c.o.Self
	}
	c.mu.Lock()
	asked, known := c.lives[id]
	c.mu.Unlock()
	if known && time.Since(asked) < c.o.Refresh {
		return true
	}
	now := time.Now()
	alive, err := c.o.Hubs.Alive(ctx, id)
	if err != nil {
		c.o.Logger.Warn("ask whether a hub lives", "hub", id, "err", err)
		return true // rather late than wrong
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.lives, id); alive {
		c.lives[id] = now
	}
	return alive
}

// poke has the agent of a group look again, if there is one.
func (c *Coordinator) poke(n groupName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.agents[n]; a != nil {
		a.wakeUp()
	}
}
