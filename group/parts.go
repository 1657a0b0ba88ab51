package group

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"promethean/event"
	"promethean/store"
)

// errParted says that a group has partitions, each with a member of its own.
var errParted = fmt.Errorf("%w: partitioned is true, not false", ErrConflict)

// root is the state that all partitions of a group share. Its cursor says where
// the plan begins, and its generation counts how often that was set.
type root struct {
	cur   store.Cursor
	set   Settings
	terms terms // of the topic; empty if the group has a number of its own
	plan  Plan
}

// root reads it. A group that is not partitioned is ErrConflict.
func (e *Engine) root(ctx context.Context, topic, group string) (*root, error) {
	c, err := e.log.Cursor(ctx, topic, group)
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	x := &root{cur: c}
	if x.set, err = decodeSettings(c.Meta); err != nil {
		return nil, err
	}
	n := x.set.Partitions
	switch n {
	case 0:
		return nil, fmt.Errorf("%w: partitioned is false, not true", ErrConflict)
	case FollowTopic:
		if x.terms, err = e.countedTerms(ctx, topic); err != nil {
			return nil, err
		}
		if x.set.term >= len(x.terms.List) {
			return nil, fmt.Errorf("the group is at number %d of %d of its topic's divisions", x.set.term+1, len(x.terms.List))
		}
		n = x.terms.List[x.set.term].Count
	}
	x.plan = Plan{ID: fmt.Sprintf("%d.%d", c.Generation, x.set.term), Count: n}
	return x, nil
}

// until is where the plan ends, if it does.
func (x *root) until() (seq uint64, ends bool) {
	if x.set.Partitions == FollowTopic {
		return x.terms.until(x.set.term)
	}
	return 0, false
}

// maxParted is the longest name of a partitioned group: its cursors have names
// that tell the partition too.
const maxParted = 200

// partName is what the cursor of a partition goes by.
func partName(group string, x *root, number int) string {
	return fmt.Sprintf("system.partition:%d.%d.%d:%s", x.cur.Generation, x.set.term, number, group)
}

// parted is what this process knows of a partitioned group.
type parted struct {
	name

	mu       sync.Mutex
	paused   bool
	places   *places
	keyOf    func(*event.Event) string
	own      *divider // of a group with a number of its own
	dividers map[dividerName]*divider
}

type dividerName struct{ term, terms int }

func (e *Engine) partedOf(topic, group string) *parted {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := name{topic, group}
	g := e.parted[n]
	if g == nil {
		g = &parted{name: n, dividers: make(map[dividerName]*divider)}
		e.parted[n] = g
	}
	return g
}

// use takes over what a member says that partitions follow.
func (g *parted) use(keyOf func(*event.Event) string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if keyOf != nil && g.keyOf == nil {
		g.keyOf, g.own = keyOf, nil
	}
}

// pause says whether runners that are to come begin paused.
func (g *parted) pause(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = on
}

func (g *parted) isPaused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.paused
}

// divider gives the one that a plan goes by. There is one at a time, so that
// pages are divided once for all partitions.
func (g *parted) divider(i int, t *terms) *divider {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := dividerName{i, len(t.List)}
	d := g.dividers[n]
	if d == nil {
		d = t.divider(i)
		g.dividers[n] = d
	}
	return d
}

// ownDivider is divider for a group with a number of its own.
func (g *parted) ownDivider(count int) *divider {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.own == nil || g.own.count != count {
		g.own = &divider{count: count, keyOf: g.keyOf}
	}
	return g.own
}

// MakeParted makes a partitioned group, or checks that one that exists has no
// other settings. set.Partitions says how it is divided.
func (e *Engine) MakeParted(ctx context.Context, topic, group string, set Settings, start Start) (Plan, error) {
	p, err := e.makeParted(ctx, topic, group, set, start)
	if err != nil {
		return p, fmt.Errorf("topic %s, group %s: %w", topic, group, err)
	}
	return p, nil
}

func (e *Engine) makeParted(ctx context.Context, topic, group string, set Settings, start Start) (Plan, error) {
	if err := event.CheckTopic(topic); err != nil {
		return Plan{}, err
	}
	if group == "" || len(group) > maxParted {
		return Plan{}, fmt.Errorf("%w: a partitioned group's name has 1 to %d bytes, not %d", ErrInvalid, maxParted, len(group))
	}
	if err := set.check(); err != nil {
		return Plan{}, err
	}
	if set.Partitions == 0 {
		return Plan{}, fmt.Errorf("%w: partitions 0 is not within 1 to %d", ErrInvalid, event.MaxPartitions)
	}
	for {
		x, err := e.root(ctx, topic, group)
		if err == nil {
			if err := x.set.fits(set); err != nil {
				return Plan{}, err
			}
			return e.plan(ctx, topic, group)
		}
		if !errors.Is(err, ErrNotFound) {
			return Plan{}, err
		}
		if _, err := CompileFilter(set.Filter); err != nil {
			return Plan{}, err
		}
		floor, err := e.Floor(ctx, topic, start)
		if err != nil {
			return Plan{}, err
		}
		c := store.Cursor{Topic: topic, Group: group, Generation: 1}
		if err := e.place(ctx, &c, set.withDefaults(), floor); err != nil && !lostRace(err) {
			return Plan{}, err
		}
	}
}

// place lets a partitioned group begin after a seq. c is its cursor.
func (e *Engine) place(ctx context.Context, c *store.Cursor, set Settings, floor uint64) error {
	if set.term = 0; set.Partitions == FollowTopic {
		t, err := e.countedTerms(ctx, c.Topic)
		if err != nil {
			return err
		}
		set.term = t.at(floor)
	}
	c.Floor, c.Handed, c.Meta = floor, 0, set.encode()
	_, err := e.log.PutCursor(ctx, *c)
	return err
}

// Plan says how a group is divided now. If all of a plan that has ended is
// settled, the next one begins with this call.
func (e *Engine) Plan(ctx context.Context, topic, group string) (Plan, error) {
	p, err := e.plan(ctx, topic, group)
	if err != nil {
		return p, fmt.Errorf("topic %s, group %s: %w", topic, group, err)
	}
	return p, nil
}

func (e *Engine) plan(ctx context.Context, topic, group string) (Plan, error) {
	for {
		x, err := e.root(ctx, topic, group)
		if err != nil {
			return Plan{}, err
		}
		for _, r := range e.runnersOf(topic, group) {
			if r.part.plan != x.plan {
				r.abandon()
				e.forgetRunner(r)
			}
		}
		until, ends := x.until()
		if !ends {
			return x.plan, nil
		}
		for n := range x.plan.Count {
			c, err := e.log.Cursor(ctx, topic, partName(group, x, n))
			switch {
			case errors.Is(err, store.ErrNotFound):
				c.Floor = x.cur.Floor // nobody has had it so far
			case err != nil:
				return Plan{}, err
			}
			if c.Floor < until {
				return x.plan, nil
			}
		}
		was := *x
		x.set.term++
		x.cur.Floor, x.cur.Meta = until, x.set.encode()
		if _, err := e.log.PutCursor(ctx, x.cur); err != nil && !lostRace(err) {
			return Plan{}, err
		}
		e.retire(ctx, &was)
	}
}

// retire removes what is left of a plan. Whoever is still at it is fenced.
func (e *Engine) retire(ctx context.Context, x *root) {
	for n := range x.plan.Count {
		name := name{x.cur.Topic, partName(x.cur.Group, x, n)}
		e.mu.Lock()
		r := e.runners[name]
		e.mu.Unlock()
		if r != nil {
			r.abandon()
			e.forgetRunner(r)
		}
		for {
			c, err := e.log.Cursor(ctx, name.topic, name.group)
			if err == nil {
				err = e.log.DeleteCursor(ctx, name.topic, name.group, c.Version)
			}
			if !lostRace(err) {
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					e.o.Logger.Warn("a cursor of an old division stays behind", "topic", name.topic, "group", name.group, "err", err)
				}
				break
			}
		}
	}
}

// abandon ends a runner whose cursor is no more. What is on its way to the log
// may count still, so its answer is waited for.
func (r *runner) abandon() {
	end := func() error {
		r.own.owned = false
		r.clear(ErrFenced)
		r.shutOut()
		return nil
	}
	if err := r.do(end); err != nil { // it records nothing any more
		r.mu.Lock()
		_ = end()
		r.mu.Unlock()
	}
	if err := r.close(); err != nil {
		r.e.o.Logger.Warn("end a partition", "topic", r.topic, "group", r.group, "err", err)
	}
}

// runnersOf gives those of a group's partitions that this process has.
func (e *Engine) runnersOf(topic, group string) []*runner {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*runner
	for _, r := range e.runners {
		if r.part != nil && r.topic == topic && r.group == group {
			out = append(out, r)
		}
	}
	return out
}
