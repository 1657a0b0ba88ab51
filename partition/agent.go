package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"promethean/group"
)

// agent looks after the members of one group at this hub. It compares how they
// stand with the roster, in rounds: it writes into the roster what has happened
// here, and does here what the roster says. A round that has nothing to do
// changes nothing, so one may be made at any time, and one that fails is made
// again.
type agent struct {
	c     *Coordinator
	name  groupName
	wake  chan struct{}
	asked atomic.Bool // the plan may be another one

	mu      sync.Mutex // before part.mu
	members map[string]*Membership
	swept   map[uint64]bool // sessions that are to go at once
	calls   []func()        // what members are to be told

	// Of the loop alone.
	away    map[string]noted // members that are away
	full    time.Time        // when everything was looked at last
	again   time.Duration    // how long to wait after a failure
	planned time.Duration    // how long to wait for the next plan
	next    time.Time        // when the next round is due
	shut    bool             // nobody may come in now
}

// noted is when it was seen that a member is away.
type noted struct {
	session uint64
	at      time.Time
}

func newAgent(c *Coordinator, n groupName) *agent {
	a := &agent{
		c: c, name: n, wake: make(chan struct{}, 1),
		members: make(map[string]*Membership), swept: make(map[uint64]bool), away: make(map[string]noted),
	}
	a.asked.Store(true)
	return a
}

func (a *agent) log() *slog.Logger { return a.c.o.Logger }
func (a *agent) wakeUp()           { wake(a.wake) }

// replan has the plan asked for. It may be called under any lock.
func (a *agent) replan() {
	a.asked.Store(true)
	a.wakeUp()
}

// enter takes a membership in. Coordinator.mu must be held.
func (a *agent) enter(ms *Membership) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ms.agent = a
	if old := a.members[ms.id]; old != nil {
		a.end(old, ErrFenced, false)
	}
	a.members[ms.id] = ms
	a.wakeUp()
}

func (a *agent) memberships() []*Membership {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []*Membership
	for _, ms := range a.members {
		all = append(all, ms)
	}
	return all
}

// end ends a membership: it has nothing from here on. mu must be held.
func (a *agent) end(ms *Membership, cause error, failed bool) {
	if ms.over != nil {
		return
	}
	ms.over = cause
	if ms.forced || errors.Is(cause, ErrSwept) {
		a.swept[ms.session] = true
	}
	if a.members[ms.id] == ms {
		delete(a.members, ms.id)
	}
	for _, p := range ms.parts {
		p.lose(failed)
	}
	if f := ms.o.Fenced; f != nil && !errors.Is(cause, ErrLeft) {
		a.calls = append(a.calls, func() { f(cause) })
	}
	close(ms.gone)
}

// ended is called when a partition is let go of.
func (a *agent) ended(p *part, lost bool, err error) {
	a.mu.Lock()
	ms := p.ms
	if ms.parts[p.n] == p {
		delete(ms.parts, p.n)
	}
	switch {
	case lost || err == nil || p.ctx.Err() != nil:
	case errors.Is(err, group.ErrPlan):
		ms.notBefore[p.n] = time.Now().Add(planFirst)
		a.asked.Store(true)
	default:
		ms.refused[p.n] = true
		a.log().Error("take a partition", "topic", a.name.topic, "group", a.name.group, "partition", p.n, "member", ms.id, "err", err)
	}
	a.mu.Unlock()
	a.wakeUp()
}

const (
	planFirst  = 20 * time.Millisecond
	planMost   = time.Second
	againFirst = 50 * time.Millisecond
)

// loop makes rounds until there is nobody left to look after.
func (a *agent) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-a.c.ctx.Done():
			return
		case <-a.wake:
		case <-timer.C:
		}
		now := time.Now()
		a.next = now.Add(a.c.o.Refresh)
		a.sweep(now)
		r, err := a.round(now)
		switch {
		case a.c.ctx.Err() != nil:
			return
		case err != nil:
			a.log().Warn("look after a partitioned group", "topic", a.name.topic, "group", a.name.group, "err", err)
			a.again = min(max(2*a.again, againFirst), a.c.o.Refresh)
			a.due(now.Add(a.again))
		default:
			a.again = 0
			a.adopt(r, now)
			if a.leave(r) {
				return
			}
		}
		a.call()
		timer.Reset(time.Until(a.next))
	}
}

// due has a round made at a time at the latest.
func (a *agent) due(at time.Time) {
	if at.Before(a.next) {
		a.next = at
	}
}

// call tells members what they are to be told.
func (a *agent) call() {
	a.mu.Lock()
	calls := a.calls
	a.calls = nil
	a.mu.Unlock()
	for _, f := range calls {
		f()
	}
}

// leave ends the agent if there is nobody to look after: neither a member here
// nor one that may come back.
func (a *agent) leave(r *roster) bool {
	for _, m := range r.members {
		if m.Hub == a.c.o.Self {
			return false
		}
	}
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.members) > 0 || len(a.calls) > 0 {
		return false
	}
	delete(a.c.agents, a.name)
	return true
}

// sweep ends members that are silent.
func (a *agent) sweep(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ms := range a.members {
		end := ms.heard(now).Add(a.c.o.TTL)
		if now.Before(end) {
			a.due(end)
			continue
		}
		a.log().Warn("a member was not heard of for too long", "topic", a.name.topic, "group", a.name.group, "member", ms.id)
		a.end(ms, ErrSwept, true)
	}
}

// round brings the roster up to date and gives it.
func (a *agent) round(now time.Time) (*roster, error) {
	ctx, cancel := context.WithTimeout(a.c.ctx, max(a.c.o.Refresh, time.Second))
	defer cancel()
	full := now.Sub(a.full) >= a.c.o.Refresh
	for {
		doc, version, err := a.c.table.load(ctx, a.name.topic, a.name.group)
		if err != nil {
			return nil, err
		}
		r, err := decodeRoster(doc)
		if err != nil {
			return nil, err
		}
		// The plan is asked for after the roster was read: it is not older than
		// the one that the roster has.
		if err := a.plan(ctx, r, full); err != nil {
			return nil, err
		}
		for _, hub := range r.hubs() {
			if hub != a.c.o.Self && !a.c.alive(ctx, hub) {
				r.hubGone(hub, now, a.c.lim)
			}
		}
		a.shut = a.newcomers(r) && !a.present(ctx, now)
		refused := a.derive(r, now)
		r.sweep(now, a.c.lim, a.since(r, now))
		r.balance(now, a.c.lim)
		next := r.encode()
		matters := !bytes.Equal(next, doc)
		if a.refresh(r, now, matters) {
			next = r.encode()
		}
		if !bytes.Equal(next, doc) {
			err = a.c.table.store(ctx, a.name.topic, a.name.group, next, version)
			if errors.Is(err, errStale) {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		if full {
			a.full = now
		}
		a.told(refused)
		if matters && a.c.told != nil && slices.ContainsFunc(r.hubs(), func(h string) bool { return h != a.c.o.Self }) {
			a.c.work.Go(func() { a.c.told.tell(a.name) })
		}
		return r, nil
	}
}

// plan has the roster follow the plan of the group.
func (a *agent) plan(ctx context.Context, r *roster, full bool) error {
	if !a.asked.Swap(false) && !full && r.plan.ID != "" {
		return nil
	}
	p, err := a.c.hub.Engine().Plan(ctx, a.name.topic, a.name.group)
	if errors.Is(err, group.ErrNotFound) {
		a.dissolve(err)
		return nil
	}
	if err != nil {
		a.asked.Store(true)
		return fmt.Errorf("how it is divided: %w", err)
	}
	r.divide(p)
	if !a.waits(p) {
		a.planned = 0
		return nil
	}
	// Others are not through with it yet.
	a.planned = min(max(2*a.planned, planFirst), planMost)
	a.asked.Store(true)
	a.due(time.Now().Add(a.planned))
	return nil
}

// waits says whether a partition of this plan has ended here.
func (a *agent) waits(plan group.Plan) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ms := range a.members {
		for _, p := range ms.parts {
			if p.plan == plan && p.ended.Load() {
				return true
			}
		}
	}
	return false
}

// dissolve ends all memberships of a group that is no more.
func (a *agent) dissolve(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ms := range a.members {
		ms.forced = true
		a.end(ms, cause, false)
	}
}

// present says whether members of this hub may come in. One that was cut off
// counts as dead until it has its own lease again: whom it lets in before that,
// the others throw out.
func (a *agent) present(ctx context.Context, now time.Time) bool {
	if a.c.o.Hubs == nil {
		return true
	}
	alive, err := a.c.o.Hubs.Alive(ctx, a.c.o.Self)
	if err == nil && alive {
		return true
	}
	if !a.shut {
		a.log().Warn("this hub does not count as alive", "hub", a.c.o.Self, "err", err)
	}
	a.due(now.Add(againFirst))
	return false
}

// newcomers says whether members of this hub want to come in.
func (a *agent) newcomers(r *roster) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, ms := range a.members {
		if !ms.leaving && (!ms.joined || r.find(id) == nil) {
			return true
		}
	}
	return false
}

// derive writes into the roster what has happened here, and gives what members
// have refused.
func (a *agent) derive(r *roster, now time.Time) map[*Membership][]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.c.lim
	for _, m := range slices.Clone(r.members) {
		if m.Hub != a.c.o.Self || m.Away != 0 || a.members[m.ID] != nil {
			continue
		}
		// It was dropped, or is of a process before this one.
		if a.swept[m.Session] {
			r.remove(m.ID, now, l)
		} else {
			r.drop(m.ID, m.Session, now, l)
		}
	}
	refused := make(map[*Membership][]int)
	for id, ms := range a.members {
		m := r.find(id)
		switch {
		case ms.leaving && m != nil && m.Session == ms.session:
			r.leave(id, ms.session)
		case ms.leaving:
			continue
		case !ms.joined && a.shut:
			continue
		case !ms.joined:
			r.join(ms.member(a.c.o.Self), now, l)
		case m == nil:
			// Others took this hub for dead: it begins anew.
			for _, p := range ms.parts {
				p.lose(false)
			}
			if a.shut {
				continue
			}
			ms.session = newSession()
			r.join(ms.member(a.c.o.Self), now, l)
		case m.Session != ms.session:
			continue
		}
		if !ms.older(r.plan) {
			r.closed(id, ms.session)
		}
		for n := range ms.refused {
			if ms.parts[n] == nil {
				refused[ms] = append(refused[ms], n)
				r.refuse(id, ms.session, n, now)
			}
		}
	}
	for p, id := range r.holders {
		if ms := a.members[id]; ms != nil && ms.parts[p] == nil && r.owners[p] != id {
			r.release(id, ms.session, p)
		}
	}
	for _, p := range slices.Clone(r.last.Pending) {
		if ms := a.members[r.owners[p]]; ms != nil && ms.parts[p] != nil && ms.parts[p].running.Load() {
			r.runs(ms.id, ms.session, p, now)
		}
	}
	return refused
}

// older says whether there is something left of another plan.
func (ms *Membership) older(plan group.Plan) bool {
	for _, p := range ms.parts {
		if p.plan != plan {
			return true
		}
	}
	return false
}

// told forgets what is written down.
func (a *agent) told(refused map[*Membership][]int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ms, list := range refused {
		for _, n := range list {
			delete(ms.refused, n)
		}
	}
}

// since says when it was seen here that a member is away.
func (a *agent) since(r *roster, now time.Time) func(*member) time.Time {
	seen := make(map[string]noted)
	for i := range r.members {
		m := &r.members[i]
		if m.Away == 0 {
			continue
		}
		n, ok := a.away[m.ID]
		if !ok || n.session != m.Session {
			n = noted{m.Session, now}
		}
		seen[m.ID] = n
		a.due(n.at.Add(a.c.o.TTL))
	}
	a.away = seen
	return func(m *member) time.Time { return a.away[m.ID].at }
}

// refresh notes when members were heard of, if the roster is written anyway or
// that is long ago.
func (a *agent) refresh(r *roster, now time.Time, anyway bool) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := now.Add(-a.c.o.TTL).UnixMilli()
	for id, ms := range a.members {
		m := r.find(id)
		if m == nil || m.Session != ms.session {
			continue
		}
		if heard := ms.heard(now).UnixMilli(); heard != m.Seen && (anyway || m.Seen <= old) {
			m.Seen, changed = heard, true
		}
	}
	return changed
}

// adopt does here what the roster says.
func (a *agent) adopt(r *roster, now time.Time) {
	has := make(map[string][]int)
	a.mu.Lock()
	for session := range a.swept {
		if !slices.ContainsFunc(r.members, func(m member) bool { return m.Session == session }) {
			delete(a.swept, session)
		}
	}
	for p, id := range r.holders {
		ms := a.members[id]
		if ms == nil || !r.is(id, ms.session) {
			continue
		}
		if r.owners[p] == id {
			has[id] = append(has[id], p)
		} else if ms.parts[p] == nil {
			a.wakeUp() // it was never taken
		}
	}
	var begin []*part
	for id, ms := range a.members {
		m := r.find(id)
		switch {
		case m == nil && ms.leaving:
			a.end(ms, ErrLeft, false)
			continue
		case m == nil, m.Session != ms.session && !ms.joined:
			if !a.shut {
				a.wakeUp() // it came after the roster was written
			}
			continue
		case m.Session != ms.session:
			a.end(ms, ErrFenced, false)
			continue
		}
		if !ms.joined {
			ms.joined = true
			close(ms.ready)
		}
		for n, p := range ms.parts {
			switch {
			case p.plan != r.plan:
				p.letGo()
			case r.holders[n] != id:
				p.lose(false)
			case r.owners[n] != id:
				p.letGo()
			default:
				wake(p.hurry)
			}
		}
		list := has[id]
		if f := ms.o.Changed; f != nil && (!ms.told || !slices.Equal(ms.has, list)) {
			generation := r.generation
			a.calls = append(a.calls, func() { f(generation, slices.Clone(list)) })
		}
		ms.told, ms.has = true, list
		for _, n := range list {
			if p := a.take(ms, n, r, now); p != nil {
				begin = append(begin, p)
			}
		}
	}
	for i := range r.members {
		if m := &r.members[i]; m.Damped != 0 {
			a.due(time.UnixMilli(m.Damped))
		}
	}
	for _, b := range r.bars {
		if b.Until != 0 {
			a.due(time.UnixMilli(b.Until))
		}
	}
	a.mu.Unlock()
	a.call()
	for _, p := range begin {
		a.c.work.Go(p.run)
	}
}

// take begins with a partition, unless it is too early. mu must be held.
func (a *agent) take(ms *Membership, n int, r *roster, now time.Time) *part {
	if ms.parts[n] != nil || r.barred(ms.id, n) != 0 {
		return nil
	}
	if at, ok := ms.notBefore[n]; ok {
		if now.Before(at) {
			a.due(at)
			return nil
		}
		delete(ms.notBefore, n)
	}
	p := newPart(ms, n, r.plan)
	ms.parts[n] = p
	return p
}
