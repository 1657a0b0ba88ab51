package gateway

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"promethean/gateway/auth"
	"promethean/group"
)

const (
	// maxPullWait is how long a pull waits at most.
	maxPullWait = 30 * time.Second
	// pullIdle is how long the member of a group stays after the last pull, if
	// it holds nothing.
	pullIdle = time.Minute
	// pullBytes is where a pull stops taking more.
	pullBytes = 8 << 20
	// pullGrace is how long a pull that may not wait does so all the same, if
	// the group is about to read what is there; it looks again every pullLook.
	pullGrace = time.Second
	pullLook  = 2 * time.Millisecond
	// pullStep is how many events a pull takes at a time.
	pullStep = 64
)

// pullers keep one member for all pulls of a group. Their leases outlive the
// request, so the member must too; while nobody pulls it rests, so that it
// takes nothing away from others.
type pullers struct {
	engine *group.Engine

	mu     sync.Mutex
	all    map[groupName]*puller
	closed bool
}

type groupName struct{ topic, group string }

// puller is the member of one group.
type puller struct {
	name   groupName
	signal chan struct{} // there is something to take
	// foreign says that another hub owns the group, as far as we know.
	foreign atomic.Bool

	joined chan struct{} // closed once member or err is set
	member *group.Member
	err    error

	active int // pulls under way; under pullers.mu
	idle   *time.Timer
}

// acquire gives the puller of a group, and has it take events. Release it.
func (p *pullers) acquire(ctx context.Context, name groupName, set group.Settings, start group.Start, o group.MemberOptions) (*puller, error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, errDraining
		}
		x := p.all[name]
		if x == nil {
			x = &puller{name: name, signal: make(chan struct{}, 1), joined: make(chan struct{}), active: 1}
			p.all[name] = x
			p.mu.Unlock()
			return x, p.join(ctx, x, set, start, o)
		}
		if x.active++; x.active == 1 && x.member != nil {
			x.idle.Stop()
			x.member.Rest(false)
		}
		p.mu.Unlock()
		select {
		case <-x.joined:
		case <-ctx.Done():
			p.release(x)
			return nil, ctx.Err()
		}
		if x.err != nil {
			continue // somebody else failed to join, for reasons of his own
		}
		// The settings must not contradict those of the group.
		if err := p.engine.Make(ctx, name.topic, name.group, set, start); err != nil {
			p.release(x)
			return nil, err
		}
		return x, nil
	}
}

// join makes the member of a new puller.
func (p *pullers) join(ctx context.Context, x *puller, set group.Settings, start group.Start, o group.MemberOptions) error {
	o.Notify = x.notify
	o.Owned = func(is bool) {
		if x.foreign.Store(!is); !is {
			x.notify()
		}
	}
	m, err := p.engine.Join(ctx, x.name.topic, x.name.group, set, start, o)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.closed {
		m.Leave()
		err = errDraining
	}
	x.member, x.err = m, err
	if err != nil {
		delete(p.all, x.name)
	}
	close(x.joined)
	return err
}

func (x *puller) notify() {
	select {
	case x.signal <- struct{}{}:
	default:
	}
}

// release ends one pull. Without any the member rests, and leaves after a
// while if it holds nothing.
func (p *pullers) release(x *puller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x.active--; x.active > 0 || x.member == nil || p.closed {
		return
	}
	x.member.Rest(true)
	if x.idle == nil {
		x.idle = time.AfterFunc(pullIdle, func() { p.sweep(x) })
		return
	}
	x.idle.Reset(pullIdle)
}

// sweep has an idle member leave.
func (p *pullers) sweep(x *puller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case x.active > 0 || p.closed || p.all[x.name] != x:
	case x.member.Held() > 0:
		x.idle.Reset(pullIdle)
	default:
		delete(p.all, x.name)
		x.member.Leave()
	}
}

// drop has the member of a group leave, unless somebody pulls.
func (p *pullers) drop(name groupName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.all[name]; x != nil && x.active == 0 {
		x.idle.Stop()
		delete(p.all, name)
		x.member.Leave()
	}
}

// close has all members leave: what they hold goes back.
func (p *pullers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, x := range p.all {
		if x.idle != nil {
			x.idle.Stop()
		}
		if x.member != nil {
			x.member.Leave()
		}
	}
}

// pullRequest is the body of POST /pull.
type pullRequest struct {
	Topic string  `json:"topic"`
	Group string  `json:"group"`
	Max   *number `json:"max,omitempty"`
	Wait  *number `json:"wait_ms,omitempty"`
	Opts  options `json:"opts,omitzero"`
}

// pull serves POST /pull.
func pull(c *call) error {
	var in pullRequest
	if err := c.decode(&in, false); err != nil {
		return err
	}
	if err := c.topic(auth.Subscribe, in.Topic); err != nil {
		return err
	}
	set, err := in.Opts.settings()
	if err != nil {
		return err
	}
	start, err := in.Opts.start(group.Latest)
	if err != nil {
		return err
	}
	norm, err := c.g.normaliser(in.Opts.Normalise)
	if err != nil {
		return err
	}
	if err := checkGroup(in.Group); err != nil {
		return err
	}
	if err := c.g.unpartitioned(&in.Opts); err != nil {
		return err
	}
	if !c.g.enter() {
		return errDraining
	}
	defer c.g.open.Done()
	ctx := c.r.Context()
	c.waits = in.Wait.duration(maxPullWait)
	if err := c.owned(in.Topic, in.Group); err != nil {
		return err
	}
	x, err := c.g.pulls.acquire(ctx, groupName{in.Topic, in.Group}, set, start, in.Opts.member())
	if err != nil {
		return c.g.unfit(ctx, in.Topic, in.Group, err)
	}
	defer c.g.pulls.release(x)
	b, err := c.g.hub.Log().Bounds(ctx, in.Topic)
	if err != nil {
		return err
	}
	most, began := int(in.Max.or(group.DefaultBatchSize, maxBatchSize)), time.Now()
	list, foreign := x.wait(ctx, c.g.ctx, b.Last, most, c.waits, norm, c.g.peers.several())
	if foreign {
		if err := c.owned(in.Topic, in.Group); err != nil {
			return err
		}
		x.member.Seek() // it may be free by now
		list, _ = x.wait(ctx, c.g.ctx, b.Last, most, max(c.waits-time.Since(began), 0), norm, false)
	}
	body, err := appendDeliveries(nil, list)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = c.answer(http.StatusOK, body)
	}
	if err != nil || ctx.Err() != nil {
		// Nobody got them: they come back at once.
		for i := range list {
			_ = x.member.Done(&list[i], &group.Nack{Reason: "the consumer is gone", HasDelay: true}) // its lease may be over, which is the same
		}
	}
	return err
}

// wait takes up to n events, and waits for the first of them. What stands in
// the topic now, which ends at tail, is waited for in any case. With several
// hubs it ends when another one is found to own the group.
func (x *puller) wait(ctx, drain context.Context, tail uint64, n int, most time.Duration, norm *normaliser, several bool) (list []group.Delivery, foreign bool) {
	began := time.Now()
	over := time.NewTimer(most)
	defer over.Stop()
	for {
		for bytes := 0; len(list) < n && bytes < pullBytes; {
			some := x.member.Take(min(n-len(list), pullStep))
			if len(some) == 0 {
				break
			}
			for i := range some {
				bytes += some[i].Event.Size()
			}
			list = append(list, norm.deliveries(ctx, x.member, some)...)
		}
		if len(list) > 0 || n == 0 {
			return list, false
		}
		if several && x.foreign.Load() {
			return nil, true
		}
		select {
		case <-x.signal:
		case <-over.C:
			if time.Since(began) > pullGrace || !x.member.Behind(tail) {
				return nil, false
			}
			over.Reset(pullLook)
		case <-ctx.Done():
			return nil, false
		case <-drain.Done():
			return nil, false
		}
	}
}

// appendDeliveries writes what a pull gives.
func appendDeliveries(b []byte, list []group.Delivery) (_ []byte, err error) {
	b = append(b, `{"events":[`...)
	for i := range list {
		d := &list[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"event":`...)
		if b, err = d.Event.AppendStoredJSON(b); err != nil {
			return nil, err
		}
		b = append(b, `,"attempt":`...)
		b = strconv.AppendInt(b, int64(d.Attempt), 10)
		b = append(b, `,"maxAttempts":`...)
		b = strconv.AppendInt(b, int64(d.MaxAttempts), 10)
		b = append(b, `,"lease":"`...)
		b = strconv.AppendUint(b, d.Lease, 10)
		b = append(b, `","ack_deadline_ms":`...)
		b = strconv.AppendInt(b, d.Deadline.UnixMilli(), 10)
		b = append(b, '}')
	}
	return append(b, "]}\n"...), nil
}
