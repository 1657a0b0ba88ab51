package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"promethean"
	"promethean/store"
)

const (
	// DefaultEvery is how often a hub looks at the others.
	DefaultEvery = 400 * time.Millisecond
	// joinWait bounds how long Join waits for the engine.
	joinWait = 30 * time.Second
)

// Options configure a membership. The zero value works.
type Options struct {
	// URL is how other hubs reach this one, such as http://10.0.0.5:7070. The
	// default is none: its groups are served by itself alone.
	URL string
	// Version is the hub's, for people.
	Version string
	// TTL is how long a hub that died counts as alive. The default is how long
	// it owns groups without renewing: 10 s unless the hub says otherwise.
	TTL time.Duration
	// Every is how often the others are looked at, a little more or less. The
	// default is DefaultEvery.
	Every time.Duration
	// Logger hears of hubs that come and go. The default discards.
	Logger *slog.Logger
}

// Hub is one of the list.
type Hub struct {
	// ID names the hub; it is the owner's name of its groups' leases.
	ID string
	// URL is how others reach it, "" if they do not.
	URL     string
	Version string
	Started time.Time
	// Seen is when it last renewed, by the engine's clock; zero if it is not
	// alive.
	Seen  time.Time
	Alive bool
	// Self says that it is the hub that was asked.
	Self bool
}

// Cluster is this hub's place among those that share its engine. Its methods
// may be called concurrently.
type Cluster struct {
	o      Options
	self   Hub
	log    promethean.Log
	leases store.Leases // nil on an engine that is not shared
	holds  store.Holds

	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu     sync.Mutex
	lease  store.Lease
	list   registry        // as it was last read
	seen   map[string]bool // others that were alive when they were looked at
	told   map[*callback]struct{}
	away   bool // the engine does not answer, which was said
	closed bool
}

// callback is one of those that are told of hubs that went.
type callback struct{ gone func(id string) }

// Join puts a hub on the list. Close the cluster before the hub.
func Join(hub *promethean.Hub, o Options) (*Cluster, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.TTL <= 0 {
		o.TTL = hub.Engine().OwnFor()
	}
	if o.Every <= 0 {
		o.Every = DefaultEvery
	}
	if err := CheckURL(o.URL); o.URL != "" && err != nil {
		return nil, fmt.Errorf("join the cluster: %w", err)
	}
	o.URL = strings.TrimRight(o.URL, "/")
	now := time.Now().Truncate(time.Millisecond).UTC()
	c := &Cluster{
		o: o, log: hub.Log(), seen: make(map[string]bool), told: make(map[*callback]struct{}),
		self: Hub{ID: hub.Engine().Owner(), URL: o.URL, Version: o.Version, Started: now, Seen: now, Alive: true, Self: true},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if _, shared := c.log.(store.Shared); !shared {
		return c, nil
	}
	var leases, holds bool
	c.leases, leases = c.log.(store.Leases)
	c.holds, holds = store.As[store.Holds](c.log)
	if !leases || !holds {
		return nil, fmt.Errorf("join the cluster: %w: the engine does not say who holds a lease", errors.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(c.ctx, joinWait)
	defer cancel()
	// The lease comes first: who is on the list without one is dead.
	var err error
	if c.lease, err = c.leases.Acquire(ctx, leaseName(c.self.ID), c.self.ID, o.TTL); err == nil {
		err = c.register(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("join the cluster as %s: %w", c.self.ID, err)
	}
	c.tasks.Go(c.keep)
	c.tasks.Go(c.watch)
	return c, nil
}

func leaseName(id string) string { return "hub\n" + id }

// Self is this hub.
func (c *Cluster) Self() Hub { return c.self }

// Shared says whether there can be other hubs.
func (c *Cluster) Shared() bool { return c.leases != nil }

// Hubs gives all hubs of the list by id, as they stand now.
func (c *Cluster) Hubs(ctx context.Context) ([]Hub, error) {
	if c.leases == nil {
		self := c.self
		self.Seen = time.Now()
		return []Hub{self}, nil
	}
	list, _, err := c.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("list hubs: %w", err)
	}
	out := make([]Hub, len(list.Hubs))
	for i, e := range list.Hubs {
		out[i] = c.hub(e)
		l, err := c.holds.Holder(ctx, leaseName(e.ID))
		switch {
		case err == nil:
			out[i].Alive, out[i].Seen = true, l.Expires.Add(-time.Duration(e.TTLms)*time.Millisecond)
		case !errors.Is(err, store.ErrNotFound):
			return nil, fmt.Errorf("list hubs: %w", err)
		}
	}
	return out, nil
}

func (c *Cluster) hub(e entry) Hub {
	return Hub{ID: e.ID, URL: e.URL, Version: e.Version, Started: time.UnixMilli(e.Started).UTC(), Self: e.ID == c.self.ID}
}

// Find gives a hub of the list, without asking whether it lives. One that is
// not there is store.ErrNotFound.
func (c *Cluster) Find(ctx context.Context, id string) (Hub, error) {
	if id == c.self.ID {
		return c.self, nil
	}
	c.mu.Lock()
	i := c.list.index(id)
	if i >= 0 {
		defer c.mu.Unlock()
		return c.hub(c.list.Hubs[i]), nil
	}
	c.mu.Unlock()
	if c.leases != nil { // it may have come since
		list, _, err := c.read(ctx)
		if err != nil {
			return Hub{}, fmt.Errorf("find hub %s: %w", id, err)
		}
		if i := list.index(id); i >= 0 {
			return c.hub(list.Hubs[i]), nil
		}
	}
	return Hub{}, fmt.Errorf("find hub %s: %w", id, store.ErrNotFound)
}

// Alive says whether a hub lives: its lease is held. One that was never there
// does not.
func (c *Cluster) Alive(ctx context.Context, id string) (bool, error) {
	if c.leases == nil {
		return id == c.self.ID, nil
	}
	_, err := c.holds.Holder(ctx, leaseName(id))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("whether hub %s lives: %w", id, err)
	}
	return true, nil
}

// OnGone has f called when another hub of the list is gone: it has closed, or
// its lease has ended. That is noticed within 500 ms while the engine answers.
// Calls come one after the other, so f should be quick. The function that is
// returned ends that; f may run once more while it does.
func (c *Cluster) OnGone(f func(id string)) (stop func()) {
	b := &callback{f}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told[b] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.told, b)
	}
}

// Close takes the hub off the list at once. It returns when ctx ends at the
// latest; the lease ends by itself then. Nobody is told of anything after it.
func (c *Cluster) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	clear(c.told)
	c.mu.Unlock()
	c.cancel()
	c.tasks.Wait()
	if c.leases == nil {
		return nil
	}
	err := c.update(ctx, func(r *registry) bool { return r.remove(c.self.ID, c.self.Started.UnixMilli()) })
	if err = errors.Join(err, c.leases.Release(ctx, c.lease)); err != nil {
		return fmt.Errorf("leave the cluster: %w", err)
	}
	return nil
}

// keep renews the lease until Close.
func (c *Cluster) keep() {
	for c.pause(c.o.TTL/3 - rand.N(c.o.TTL/30+1)) {
		for !c.renew() {
			if !c.pause(min(c.o.TTL/10, time.Second)) {
				return
			}
		}
	}
}

// renew prolongs the lease, or takes it anew if it is over. It says whether
// that worked.
func (c *Cluster) renew() bool {
	ctx, cancel := context.WithTimeout(c.ctx, c.o.TTL)
	defer cancel()
	l, err := c.leases.Renew(ctx, c.lease, c.o.TTL)
	if errors.Is(err, store.ErrFenced) {
		c.o.Logger.Warn("this hub was gone for the others", "id", c.self.ID)
		l, err = c.leases.Acquire(ctx, leaseName(c.self.ID), c.self.ID, c.o.TTL)
		if err == nil {
			err = c.register(ctx)
		}
	}
	if err == nil {
		c.lease = l // of this goroutine until Close has waited for it
	}
	c.noteAway(err)
	return err == nil
}

// watch looks at the others until Close.
func (c *Cluster) watch() {
	for c.pause(c.o.Every - c.o.Every/8 + rand.N(c.o.Every/4+1)) {
		ctx, cancel := context.WithTimeout(c.ctx, c.o.TTL)
		gone, err := c.look(ctx)
		cancel()
		c.noteAway(err)
		for _, id := range gone {
			c.o.Logger.Warn("a hub is gone", "id", id)
			c.mu.Lock()
			told := make([]*callback, 0, len(c.told))
			for b := range c.told {
				told = append(told, b)
			}
			c.mu.Unlock()
			for _, b := range told {
				b.gone(id)
			}
		}
	}
}

// look reads the list, takes off it who is dead, puts this hub back if somebody
// took it off, and gives those who went since the last time.
func (c *Cluster) look(ctx context.Context) (gone []string, err error) {
	list, _, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	if list.index(c.self.ID) < 0 {
		// Without its lease it would be dead for the others: keep comes first.
		alive, err := c.Alive(ctx, c.self.ID)
		if err == nil && alive {
			err = c.register(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
	ids := make([]string, 0, len(list.Hubs))
	for _, e := range list.Hubs {
		ids = append(ids, e.ID)
	}
	c.mu.Lock()
	for id := range c.seen {
		if !slices.Contains(ids, id) {
			ids = append(ids, id) // it has closed, or somebody took it off
		}
	}
	c.mu.Unlock()
	for _, id := range ids {
		if id == c.self.ID {
			continue
		}
		alive, err := c.Alive(ctx, id)
		if err != nil {
			return gone, err
		}
		if alive {
			c.mu.Lock()
			if !c.seen[id] {
				c.o.Logger.Info("another hub is there", "id", id)
			}
			c.seen[id] = true
			c.mu.Unlock()
			continue
		}
		if i := list.index(id); i >= 0 {
			started := list.Hubs[i].Started
			if err := c.update(ctx, func(r *registry) bool { return r.remove(id, started) }); err != nil {
				return gone, err
			}
		}
		c.mu.Lock()
		delete(c.seen, id)
		c.mu.Unlock()
		gone = append(gone, id)
	}
	return gone, nil
}

// noteAway says once that the engine does not answer, and once that it does.
func (c *Cluster) noteAway(err error) {
	if c.ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	was := c.away
	c.away = err != nil
	c.mu.Unlock()
	if err != nil && !was {
		c.o.Logger.Warn("the list of hubs is out of reach", "err", err)
	}
}

// pause waits, and says whether to go on.
func (c *Cluster) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
