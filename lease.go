package promethean

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"promethean/event"
	"promethean/group"
)

// leaseContext is the context of a handler: it ends when the lease does, when
// the subscription is stopped, or when the handler has returned. It costs a
// timer only for handlers that look at it.
type leaseContext struct {
	context.Context // the subscription's
	m               *group.Member
	d               *group.Delivery

	mu    sync.Mutex
	done  chan struct{}
	err   error
	timer *time.Timer
	undo  func() bool
}

// leaseLook is how soon a handler at work learns that its lease has ended before
// its deadline: the cursor was moved, somebody else has given the event back, or
// the deadline was made an earlier one. The group tells nobody.
const leaseLook = time.Second

// Deadline implements [context.Context].
func (c *leaseContext) Deadline() (time.Time, bool) {
	at, _ := c.m.Alive(c.d)
	return at, true
}

// Done implements [context.Context].
func (c *leaseContext) Done() <-chan struct{} {
	at, alive := c.m.Alive(c.d)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		switch {
		case c.err != nil:
			close(c.done)
		case !alive:
			c.close(context.DeadlineExceeded)
		default:
			c.timer = time.AfterFunc(min(time.Until(at), leaseLook), c.check)
			c.undo = context.AfterFunc(c.Context, func() { c.finish(c.Context.Err()) })
		}
	}
	return c.done
}

// check ends the context if the lease is over, and looks again later if it was
// extended.
func (c *leaseContext) check() {
	at, alive := c.m.Alive(c.d)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	if left := time.Until(at); alive && left > 0 {
		c.timer.Reset(min(left, leaseLook))
		return
	}
	c.close(context.DeadlineExceeded)
}

// Err implements [context.Context].
func (c *leaseContext) Err() error {
	at, alive := c.m.Alive(c.d)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case c.Context.Err() != nil:
		return c.Context.Err()
	case !alive || time.Until(at) <= 0:
		return context.DeadlineExceeded
	}
	return nil
}

func (c *leaseContext) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.close(err)
}

// close must be called with mu held.
func (c *leaseContext) close(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
}

// end is called when the handler has returned.
func (c *leaseContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.undo()
	}
	c.close(context.Canceled)
}

// Payload decodes an event's payload.
func Payload[T any](e *event.Event) (v T, err error) {
	if err := json.Unmarshal(e.Payload, &v); err != nil {
		return v, fmt.Errorf("topic %s, seq %d: payload: %w", e.Topic, e.Seq, err)
	}
	return v, nil
}
