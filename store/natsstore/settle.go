package natsstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"promethean/event"
	"promethean/store"
)

// groupCache holds the last known state of groups, so that a settlement by the
// owner is one round trip. It is only ever a guess: the server compares
// revisions, and a refusal is judged on what it has.
type groupCache struct {
	mu     sync.Mutex
	groups map[groupName]*group
}

type groupName struct{ topic, group string }

// group is one group's state and the settlements that wait for it.
type group struct {
	topic, name string

	mu      sync.Mutex
	cursor  store.Cursor
	rev     uint64 // 0: not known
	waiting []*settling
	busy    bool
}

// settling is one settlement on its way.
type settling struct {
	ctx  context.Context
	s    *store.Settlement
	done chan struct{}
	err  error
}

func (g *groupCache) init() { g.groups = make(map[groupName]*group) }

func (g *groupCache) get(topic, name string) *group {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := groupName{topic, name}
	x := g.groups[key]
	if x == nil {
		x = &group{topic: topic, name: name}
		g.groups[key] = x
	}
	return x
}

func (g *groupCache) drop(topic, name string) {
	x := g.get(topic, name)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cursor, x.rev = store.Cursor{}, 0
}

// note takes over a newer state.
func (g *group) note(c store.Cursor, rev uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if rev > g.rev {
		g.cursor, g.rev = c, rev
	}
}

// settleAll takes settlements one after the other.
func (s *Store) settleAll(ctx context.Context, list []store.Settlement) error {
	for i := range list {
		if err := s.settle(ctx, &list[i]); err != nil {
			return fmt.Errorf("append: settle group %s of topic %s: %w", shorten(list[i].Group), shorten(list[i].Topic), s.outcome(ctx, err))
		}
	}
	return nil
}

// settle queues one settlement: those that wait for a group at the same time
// share one round trip.
func (s *Store) settle(ctx context.Context, st *store.Settlement) error {
	if event.CheckTopic(st.Topic) != nil || st.Group == "" || len(st.Group) > maxGroup {
		return store.ErrNotFound
	}
	if err := s.checkDone(ctx, st); err != nil {
		return err
	}
	g := s.groups.get(st.Topic, st.Group)
	w := &settling{ctx: ctx, s: st, done: make(chan struct{})}
	g.mu.Lock()
	if !g.busy && !s.spawn(func() { s.settleGroup(g) }) {
		g.mu.Unlock()
		return store.ErrClosed
	}
	g.busy = true
	g.waiting = append(g.waiting, w)
	g.mu.Unlock()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkDone refuses seqs that no event has. Which error comes first where
// several apply is open, so it needs no word of the group.
func (s *Store) checkDone(ctx context.Context, st *store.Settlement) error {
	most := uint64(0)
	for _, r := range st.Done {
		if r.First <= r.Last {
			most = max(most, r.Last)
		}
	}
	if t := s.known(st.Topic); most == 0 || t != nil && most <= t.visible.Load() {
		return nil
	}
	i, err := s.inspect(ctx, st.Topic)
	if err != nil {
		return err
	}
	last := uint64(0)
	if i != nil {
		last = s.extent(st.Topic, i).Last
	}
	if most <= last {
		return nil
	}
	// An unknown group or an old epoch says more.
	c, _, err := s.loadCursor(ctx, st.Topic, st.Group)
	if err == nil {
		err = refusal(&c, st)
	}
	if err == nil {
		err = fmt.Errorf("%w: seq %d is above the last, %d", store.ErrInvalid, most, last)
	}
	return err
}

// refusal says why a group does not take a settlement.
func refusal(c *store.Cursor, st *store.Settlement) error {
	switch {
	case c.Version == 0:
		return store.ErrNotFound
	case c.Epoch != st.Epoch:
		return fmt.Errorf("epoch %d, stored %d: %w", st.Epoch, c.Epoch, store.ErrFenced)
	}
	return nil
}

// settleGroup works until no settlement waits.
func (s *Store) settleGroup(g *group) {
	for {
		g.mu.Lock()
		list := g.waiting
		g.waiting = nil
		if len(list) == 0 {
			g.busy = false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		s.settleList(g, list)
		for _, w := range list {
			close(w.done)
		}
	}
}

// settleList applies settlements to a group by compare-and-set. Applying one
// twice is the same as once, so a lost answer does no harm.
func (s *Store) settleList(g *group, list []*settling) {
	fail := func(err error) {
		for _, w := range list {
			if w.err == nil {
				w.err = err
			}
		}
	}
	for wait, stale := time.Duration(0), false; ; pause(s.ctx, &wait) {
		g.mu.Lock()
		c, rev := g.cursor.Clone(), g.rev
		g.mu.Unlock()
		read := rev == 0 || stale
		if read {
			var err error
			if c, rev, err = s.loadCursor(s.ctx, g.topic, g.name); err != nil {
				fail(err)
				return
			}
		}
		stale = false
		applied := 0
		for _, w := range list {
			if w.err = w.ctx.Err(); w.err == nil {
				w.err = refusal(&c, w.s)
			}
			if w.err == nil {
				c.Settle(w.s)
				applied++
			} else {
				stale = stale || !read
			}
		}
		if stale {
			continue // what was refused may be right by now
		}
		if applied == 0 {
			return
		}
		value, err := encodeCursor(&c)
		if err == nil {
			rev, err = s.put(s.ctx, s.cursors, groupKey(g.topic, g.name), value, rev)
		}
		if errors.Is(err, errRace) && s.ctx.Err() == nil {
			stale = true
			continue
		}
		if err != nil {
			fail(err)
			return
		}
		g.note(c, rev)
		return
	}
}
