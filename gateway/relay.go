package gateway

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"promethean/gateway/internal/frame"
	"promethean/wire"
)

// A member of a group that another hub owns is served by that hub: its events
// come over an upstream, and what the client settles goes there. The member
// stays one of this hub's engine all the while. If the owner dies or gives the
// group up, this hub competes for it as if there were no relaying, and serves
// the member itself if it wins; else the member is relayed to whoever did.
//
// The hub that owns the group decides about order and leases. Once this hub has
// become the owner, nothing that the former one has sent is passed on.

const (
	// relayPause is how long after a try that failed the next one comes, at
	// first and at most.
	relayPause, relayMaxPause = 20 * time.Millisecond, 250 * time.Millisecond
	// relayRefused is the same where the owner says no, or cannot be reached for
	// good.
	relayRefused = 2 * time.Second
)

// owned is called by the engine: whether this hub owns the group. It is called
// under a lock of the engine's.
func (m *member) owned(is bool) {
	c := m.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.foreign = !is; is {
		m.up = nil // what still comes from there is late
	}
	c.relay(m)
}

// relay sees to it that a member is served by the owner of its group. mu must be
// held.
func (c *connection) relay(m *member) {
	switch {
	case m.relaying:
		m.nudge()
	case !m.foreign || !m.opened || m.gone || c.ended || c.away == nil:
	case c.forwarded:
		// It is the other hub that looks for the owner.
		m.relaying = c.g.workers.Go(func() { c.disown(m) })
	default:
		m.relaying = true
		c.g.open.Add(1) // the connection itself is still counted
		go m.relay()
	}
}

// nudge has the goroutine that relays look again.
func (m *member) nudge() {
	select {
	case m.nudged <- struct{}{}:
	default:
	}
}

// disown tells another hub that this one does not own a group, and forgets its
// subscription.
func (c *connection) disown(m *member) {
	s := m.s
	c.mu.Lock()
	if c.subs[s.name] == s {
		delete(c.subs, s.name)
	}
	c.mu.Unlock()
	s.end(true)
	b := frame.AppendErr(c.ws.Begin(), nil, wire.Unavailable, "another hub owns the group")
	c.ws.End(append(frame.AppendSource(b, m.topic, s.name.group), '}'))
	c.ws.Flush()
}

// relay serves a member through the owner of its group, whoever that is, until
// this hub is the owner or the member is gone.
func (m *member) relay() {
	c := m.s.c
	defer c.g.open.Done()
	wait := relayPause
	for {
		c.mu.Lock()
		if m.gone || c.ended || !m.foreign {
			m.relaying = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		began := time.Now()
		err := m.throughOwner(c.away.life)
		var gone *noAddress
		var refused *wire.Error
		switch {
		case errors.Is(err, errTaken), errors.As(err, &gone):
			wait = relayRefused
		case errors.As(err, &refused) && refused.Code != wire.Unavailable && refused.Code != wire.Draining:
			c.g.o.Logger.Warn("the owner of a group does not take a subscription", "topic", m.topic, "group", clip(m.s.name.group), "err", err)
			wait = relayRefused
		case time.Since(began) > relayRefused:
			wait = relayPause // it was served
		default:
			wait = min(2*wait, relayMaxPause)
		}
		m.m.Seek() // the owner may be gone
		m.await(c.away.life, wait)
	}
}

// await waits for a while, or until something has changed.
func (m *member) await(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.nudged:
	case <-ctx.Done():
	}
}

// throughOwner finds the owner, and returns when it no longer serves the member.
func (m *member) throughOwner(ctx context.Context) error {
	c := m.s.c
	if m.isPaused() {
		m.await(ctx, time.Hour) // RESUME says so
		return nil
	}
	find, cancel := context.WithTimeout(ctx, upstreamWait)
	hub, err := c.g.peers.owner(find, m.topic, m.s.name.group)
	cancel()
	if err != nil {
		return err
	}
	u, err := c.upstream(ctx, hub)
	if err != nil {
		return err
	}
	s, err := u.subscribe(ctx, m)
	if err != nil {
		return err
	}
	if m.isPaused() {
		u.rest(m, true)
	}
	for {
		select {
		case <-s.over:
			return nil
		case <-m.nudged:
		case <-ctx.Done():
			return ctx.Err()
		}
		c.mu.Lock()
		gone, foreign := m.gone, m.foreign
		c.mu.Unlock()
		switch {
		case gone: // whoever ended it has said so there
			return nil
		case !foreign:
			u.leave(m)
			return nil
		}
	}
}

func (m *member) isPaused() bool {
	rest := &m.s.c.resting
	rest.Lock()
	defer rest.Unlock()
	return m.s.paused
}

// relays says whether another hub serves a group for this client.
func (c *connection) relays(topic, group string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range c.away.upstreams {
		u.mu.Lock()
		s := u.subs[subName{topic, group}]
		u.mu.Unlock()
		if s != nil && s.m.up == u {
			return true
		}
	}
	return false
}

// leave has the hubs that serve members take back what the client holds. The
// members are gone.
func (a *away) leave(c *connection, members []*member) {
	var all sync.WaitGroup
	for _, m := range members {
		c.mu.Lock()
		u := m.up
		c.mu.Unlock()
		if u != nil {
			all.Go(func() { u.leave(m) })
		}
		m.nudge()
	}
	all.Wait()
}

// drop has the goroutines of members that are gone end. What the client holds
// has failed: the hubs that serve them learn it when the upstreams end.
func (a *away) drop(members []*member) {
	for _, m := range members {
		m.nudge()
	}
}

// rest has the hubs that serve members hand nothing to them, or do so again.
func (a *away) rest(c *connection, members []*member, on bool) {
	for _, m := range members {
		c.mu.Lock()
		u := m.up
		c.mu.Unlock()
		if u != nil {
			u.rest(m, on)
		}
		m.nudge()
	}
}

// end ends everything with the connection.
func (a *away) end(c *connection) {
	c.mu.Lock()
	list := slices.Collect(maps.Values(a.upstreams))
	c.mu.Unlock()
	for _, u := range list {
		u.cancel()
	}
	a.stop()
}

// away is what a connection needs to have members served by other hubs. It is
// nil where there are none. Its maps and texts are under connection.mu.
type away struct {
	life context.Context // ends with the connection
	stop context.CancelFunc

	dialing   sync.Mutex           // held while an upstream is made; before connection.mu
	upstreams map[string]*upstream // by the id of the hub
	token     string               // the client's
}

// away makes what a connection needs for that.
func (g *Gateway) away(token string) *away {
	if !g.peers.several() {
		return nil
	}
	a := &away{upstreams: make(map[string]*upstream), token: token}
	a.life, a.stop = context.WithCancel(context.Background())
	return a
}

// bearer is the client's token.
func (c *connection) bearer() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.away.token
}

// reauthenticate shows a new token to the hubs that serve the client.
func (c *connection) reauthenticate(token string) {
	if c.away == nil {
		return
	}
	c.mu.Lock()
	c.away.token = token
	list := slices.Collect(maps.Values(c.away.upstreams))
	c.mu.Unlock()
	for _, u := range list {
		u.authenticate(token)
	}
}
