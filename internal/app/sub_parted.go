package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"promethean/client"
	"promethean/event"
)

const (
	// partedWait is how long sub waits for a hub to take it as a member.
	partedWait = 15 * time.Second
	// partedEnd is how long what was handled may take to be settled at the end.
	partedEnd = 5 * time.Second
	// partedAhead is how many events wait for a command.
	partedAhead = 16
)

// partedConsumer handles events as a member of a partitioned group, one at a time.
type partedConsumer struct {
	a    *app
	o    *subOptions
	out  *eventWriter
	over chan struct{} // closed when there is no more to do

	mu     sync.Mutex
	done   int
	err    error
	closed bool
}

// errNotBegun gives an event back that comes after the last one that was wanted.
var errNotBegun = errors.New("not begun")

// handle is the handler.
func (p *partedConsumer) handle(_ context.Context, e event.Event, d *client.Delivery) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return client.Retry(0, errNotBegun)
	}
	reason, err := p.one(e, d)
	if err != nil {
		p.err = err
		p.end()
		return client.Retry(0, errNotBegun)
	}
	if p.done++; p.done == p.o.count {
		p.end()
	}
	if reason != "" {
		return errors.New(reason)
	}
	return nil
}

// one writes an event, or runs the command for it. It gives the reason of a
// failure, "" for none.
func (p *partedConsumer) one(e event.Event, d *client.Delivery) (reason string, err error) {
	if p.o.command != "" {
		return p.a.execute(p.o.command, &client.Pulled{Event: e, Attempt: d.Attempt})
	}
	if err := p.out.put(&e); err != nil {
		return "", err
	}
	return "", p.out.flush()
}

// end says that there is no more to do. mu must be held.
func (p *partedConsumer) end() {
	if !p.closed {
		p.closed = true
		close(p.over)
	}
}

// consumeParted consumes as a member of a partitioned group, over a WebSocket.
func (a *app) consumeParted(ctx context.Context, c *client.Client, topic string, o subOptions) error {
	p := &partedConsumer{a: a, o: &o, out: a.events(), over: make(chan struct{})}
	ahead := o.batch
	switch {
	case ahead == 0 && o.command != "":
		ahead = partedAhead
	case ahead == 0:
		ahead = 100
	}
	opts := []client.SubscribeOption{
		client.Partitioned(), client.Member(o.member), client.OnAssign(a.assigned), client.Workers(1), client.MaxInFlight(ahead),
		client.Ordered(client.Ordering(o.settings.Ordering)), client.OnDead(client.Policy(o.settings.DeadLetter)),
		client.MaxAttempts(o.settings.MaxAttempts), client.AckTimeout(o.timeout), client.Where(o.settings.Filter), beginning(o.from.Place),
	}
	if o.normalise {
		opts = append(opts, client.Normalise())
	}
	within, cancel := context.WithTimeout(ctx, partedWait)
	sub, err := c.Subscribe(within, topic, o.group, p.handle, opts...)
	cancel()
	if err != nil {
		return err
	}
	select {
	case <-p.over:
	case <-sub.Done():
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), partedEnd)
	defer cancel()
	err = sub.Stop(end)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err = errors.Join(p.err, sub.Err(), err); err == nil && ctx.Err() != nil {
		return a.stopped(o.count, p.done)
	}
	return err
}

// beginning is where a new group begins.
func beginning(p client.Place) client.SubscribeOption {
	switch p.From {
	case client.Earliest:
		return client.FromEarliest()
	case client.ByTime:
		return client.FromTime(p.Time)
	case client.ByID:
		return client.AfterID(p.ID)
	case client.BySeq:
		return client.AfterSeq(p.Seq)
	}
	return client.FromLatest()
}

// assigned says which partitions the member has.
func (a *app) assigned(generation uint64, partitions []int) {
	fmt.Fprintf(a.stderr, "promethean: partitions: %s (generation %d)\n", ranges(partitions), generation)
}
