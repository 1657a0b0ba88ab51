package partition

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"promethean/group"
)

// part is one partition in the hands of a member, from the moment at which the
// member may have it until it has let go of it. It has a goroutine of its own.
type part struct {
	ms     *Membership
	n      int
	plan   group.Plan
	ctx    context.Context // ends when the partition is lost
	cancel context.CancelFunc
	revoke chan struct{} // closed when the partition is to be let go of
	hurry  chan struct{} // somebody else may have let go of it

	// The engine tells by these, under its locks.
	epoch  atomic.Uint64
	signal chan struct{} // the epoch has changed
	ended  atomic.Bool   // the plan has nothing more for it

	running atomic.Bool

	mu       sync.Mutex // before the engine's
	member   *group.Member
	lost     bool
	failed   bool // what it holds counts as failed
	revoking bool
}

// errLost says that a partition was lost before it was taken.
var errLost = errors.New("the partition was lost")

func newPart(ms *Membership, n int, plan group.Plan) *part {
	p := &part{ms: ms, n: n, plan: plan, revoke: make(chan struct{}), hurry: make(chan struct{}, 1), signal: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(ms.agent.c.ctx)
	return p
}

// letGo has the partition drained and given back.
func (p *part) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.revoking {
		p.revoking = true
		close(p.revoke)
	}
}

// lose takes the partition away at once. What the member holds goes back, as
// failed or not.
func (p *part) lose(failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		return
	}
	p.lost, p.failed = true, failed
	p.cancel()
	if p.member != nil {
		p.away()
	}
}

// away ends the membership in the engine. mu must be held.
func (p *part) away() {
	if p.failed {
		p.member.Drop()
	} else {
		p.member.Leave()
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// join makes the member of the partition. It rests until the partition is
// ready.
func (p *part) join(o group.MemberOptions) (*group.Member, error) {
	a := p.ms.agent
	o.Resting = true
	m, err := a.c.hub.Engine().JoinPart(p.ctx, a.name.topic, a.name.group, p.plan, p.n, group.PartOptions{
		MemberOptions: o,
		KeyOf:         p.ms.o.KeyOf,
		Owned: func(epoch uint64) {
			p.epoch.Store(epoch)
			wake(p.signal)
		},
		Ended: func() {
			p.ended.Store(true)
			a.replan()
		},
	})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.member != nil {
		m.Leave()
		return nil, fmt.Errorf("partition %d was joined twice", p.n)
	}
	p.member = m
	if p.lost {
		p.away()
		return nil, errLost
	}
	return m, nil
}

// run is the life of the partition.
func (p *part) run() {
	a := p.ms.agent
	defer p.cancel()
	stop, err := p.serve()
	if err == nil {
		err = p.live(stop)
	}
	p.mu.Lock()
	if p.member != nil {
		p.away()
	}
	lost := p.lost
	p.mu.Unlock()
	a.ended(p, lost, err)
}

// serve has the member's owner take over.
func (p *part) serve() (stop func(), err error) {
	defer func() {
		if x := recover(); x != nil {
			stop, err = nil, fmt.Errorf("panic: %v\n%s", x, debug.Stack())
		}
	}()
	if p.ctx.Err() != nil {
		return nil, errLost
	}
	stop, err = p.ms.o.Serve(p.n, p.join)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	joined := p.member != nil
	p.mu.Unlock()
	if !joined {
		if stop != nil {
			stop()
		}
		return nil, errors.New("the partition was not joined")
	}
	if stop == nil {
		stop = func() {}
	}
	return stop, nil
}

// live serves the partition until it is let go of or lost. The error says why
// it could not be taken.
func (p *part) live(stop func()) error {
	a, m := p.ms.agent, p.member
	defer func() { stop() }()
	for p.owned() {
		epoch := p.epoch.Load()
		if err := p.hook("Assigned", p.ms.o.Assigned, true); err != nil {
			select {
			case <-p.revoke:
				return nil
			case <-p.ctx.Done():
				return nil
			default:
				return err
			}
		}
		if p.epoch.Load() == epoch {
			m.Rest(false)
			p.running.Store(true)
			a.wakeUp()
			p.serving(epoch)
			p.running.Store(false)
		}
		// It is over, for good or until it is owned again.
		m.Rest(true)
		select {
		case <-p.revoke:
			if !p.drained() {
				stop()
				stop = func() {}
			}
		case <-p.ctx.Done():
			stop()
			stop = func() {}
		default:
		}
		if err := p.hook("Revoked", p.ms.o.Revoked, false); err != nil {
			a.log().Error("let go of a partition", "topic", a.name.topic, "group", a.name.group, "partition", p.n, "member", p.ms.id, "err", err)
		}
	}
	return nil
}

// serving waits until the partition is to be let go of, or is lost.
func (p *part) serving(epoch uint64) {
	for {
		select {
		case <-p.revoke:
			return
		case <-p.ctx.Done():
			return
		case <-p.signal:
			if p.epoch.Load() != epoch {
				p.ms.agent.replan() // the cursor may have been moved
				return
			}
		}
	}
}

const (
	hurryFirst = 2 * time.Millisecond
	hurryMost  = 500 * time.Millisecond
	hurryTimes = 64
)

// owned waits until the engine says that the partition is the member's. It is
// false if it is not to be any more, or if somebody else was late with taking it:
// then it is taken anew.
func (p *part) owned() bool {
	wait, times := hurryFirst, 0
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-p.revoke:
			return false
		case <-p.ctx.Done():
			return false
		default:
		}
		if p.epoch.Load() != 0 {
			return true
		}
		if p.member.Gone() {
			return false
		}
		select {
		case <-p.revoke:
		case <-p.ctx.Done():
		case <-p.signal:
		case <-p.hurry:
			p.member.Seek()
			wait, times = hurryFirst, 0
			timer.Reset(wait)
		case <-timer.C:
			// Whoever had it has let go of it, and the engine at his hub does so
			// a moment later.
			p.member.Seek()
			if times++; times < hurryTimes {
				wait = min(2*wait, hurryMost)
				timer.Reset(wait)
			}
		}
	}
}

// drained waits until the member holds nothing. It is false if that takes too
// long, or if the partition is lost.
func (p *part) drained() bool {
	a := p.ms.agent
	late := time.NewTimer(a.c.o.DrainTimeout)
	defer late.Stop()
	wait := time.Millisecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for p.member.Held() > 0 {
		select {
		case <-p.ctx.Done():
			return false
		case <-late.C:
			a.log().Warn("a partition moves before all is done", "topic", a.name.topic, "group", a.name.group, "partition", p.n, "member", p.ms.id, "held", p.member.Held())
			return false
		case <-timer.C:
			wait = min(2*wait, 16*time.Millisecond)
			timer.Reset(wait)
		}
	}
	return p.ctx.Err() == nil
}

// hook calls one. It may take so long, then its context ends; if it does not
// return then either, it is left behind. early is for one before the first
// event: a few run at a time, and its context ends as soon as the partition is
// to be let go of.
func (p *part) hook(name string, f func(context.Context, int) error, early bool) error {
	if f == nil {
		return nil
	}
	c := p.ms.agent.c
	if early {
		select {
		case p.ms.hooks <- struct{}{}: // every hook ends in time, or is left behind
			defer func() { <-p.ms.hooks }()
		case <-p.revoke:
			return errLost
		case <-p.ctx.Done():
			return errLost
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), c.o.HookTimeout)
	defer cancel()
	ends := make(chan error, 1)
	go func() {
		returned := false
		defer func() {
			if x := recover(); x != nil {
				ends <- fmt.Errorf("panic: %v\n%s", x, debug.Stack())
			} else if !returned {
				ends <- errors.New("it ended its goroutine")
			}
		}()
		err := f(ctx, p.n)
		returned = true
		ends <- err
	}()
	var revoke, lost <-chan struct{}
	if early {
		revoke, lost = p.revoke, p.ctx.Done()
	}
	late := time.NewTimer(c.o.HookTimeout + c.o.HookTimeout/10)
	defer late.Stop()
	for {
		select {
		case err := <-ends:
			if err != nil {
				return fmt.Errorf("hook %s of partition %d: %w", name, p.n, err)
			}
			return nil
		case <-revoke:
			revoke = nil
			cancel()
		case <-lost:
			lost = nil
			cancel()
		case <-late.C:
			return fmt.Errorf("hook %s of partition %d does not end: %w", name, p.n, context.DeadlineExceeded)
		}
	}
}
