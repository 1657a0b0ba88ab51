package client

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"promethean/event"
)

// workKey names an event of a subscription.
type workKey struct {
	topic string
	id    event.ID
}

// state is what becomes of an event in the client:
//
//	queued → running → settling → gone
//	            └→ taken → settling          by hand
//
// A lease that is lost takes queued and taken to gone at once. A handler that
// runs is told by its context, and may still ack: an ack settles the event
// whoever holds it.
type state int

const (
	queued   state = iota
	running        // in a handler
	taken          // its handler has returned, and somebody else will settle it
	settling       // the hub was told, and has not answered
	gone
)

// work is one event in the hands of the client.
type work struct {
	s       *Subscription
	key     workKey
	d       delivered
	session *session // that the lease belongs to

	// Under Subscription.mu.
	state    state
	lost     bool
	settled  bool                    // by an ack or a nack that the hub has taken
	cancel   context.CancelCauseFunc // of the handler's context
	lease    time.Duration           // for how long it is renewed
	deadline time.Time               // by our clock
	renewAt  time.Time

	// A delivery of the same event that has come while this one was running or
	// settling, after its lease was lost. It is not handled beside it: if this
	// one succeeds that is enough, and if it fails that one's turn comes.
	next   *delivered
	nextOn *session
}

// accept takes one event that has come. mu must be held.
func (s *Subscription) accept(on *session, topic string, d *delivered) {
	if s.session != on || s.ended || s.stopping {
		return // it is not ours any more, and goes back
	}
	key := workKey{topic, d.event.ID}
	if old := s.works[key]; old != nil {
		if old.state == running || old.state == settling {
			old.next, old.nextOn = d, on
			return
		}
		s.forget(old)
	}
	w := &work{s: s, key: key, d: *d, session: on}
	s.works[key] = w
	s.bytes += w.d.size
	s.queue = append(s.queue, w)
	w.leased(time.Now())
}

// leased notes when the lease has to be renewed. The hub says by its own clock
// when it ends; where the clocks differ by more than the lease lasts, the lease
// is renewed at once and from then on by ours.
func (w *work) leased(now time.Time) {
	const usual = 30 * time.Second
	left := w.s.o.AckTimeout
	if left == 0 {
		left = w.d.deadline.Sub(now)
	}
	switch {
	case left <= 0:
		w.lease, w.renewAt = usual, now
	default:
		w.lease = min(max(left, time.Second), time.Minute)
		if w.s.o.AckTimeout > 0 {
			w.lease = left
		}
		w.renewAt = now.Add(min(left/2, 10*time.Second))
	}
	w.deadline = now.Add(max(left, w.lease))
	w.s.schedule(w.renewAt)
}

// lose is told that the lease of a work is over. mu must be held.
func (s *Subscription) lose(w *work) {
	w.lost = true
	switch w.state {
	case queued, taken:
		s.forget(w)
	case running:
		w.cancel(ErrLeaseLost)
	}
}

// forget ends a work. mu must be held.
func (s *Subscription) forget(w *work) {
	if w.state == gone {
		return
	}
	if w.state == running || w.state == settling {
		s.rest()
	}
	w.state = gone
	if s.works[w.key] == w {
		delete(s.works, w.key)
	}
	s.release(w)
}

// release lets go of the memory of an event. Those that wait for the answer to
// their settlement have none: the answer may stand behind more events, which
// are not read while there are too many. mu must be held.
func (s *Subscription) release(w *work) {
	s.bytes -= w.d.size
	w.d.size, w.d.event.Payload = 0, nil
	s.flow()
}

// settle begins to settle a work. mu must be held.
func (s *Subscription) settle(w *work) {
	w.state = settling
	s.release(w)
}

// rest counts one active work less. mu must be held.
func (s *Subscription) rest() {
	if s.active--; s.active == 0 {
		select {
		case s.still <- struct{}{}:
		default:
		}
	}
}

// conclude ends a work whose settlement was answered, or cannot be. If it was
// not settled and has come again, that delivery's turn comes. mu must be held.
func (s *Subscription) conclude(w *work, settled bool) {
	w.settled = w.settled || settled
	next, on := w.next, w.nextOn
	w.next, w.nextOn = nil, nil
	s.forget(w)
	if next != nil && !settled {
		s.accept(on, w.key.topic, next)
		s.spawn()
	}
}

// spawn starts workers for what is queued. They end when there is nothing to
// do. mu must be held.
func (s *Subscription) spawn() {
	for s.workers < s.o.Workers && s.starting < len(s.queue) {
		s.workers++
		s.starting++
		go s.work()
	}
}

// work runs handlers, one after the other.
func (s *Subscription) work() {
	for first := true; ; first = false {
		s.mu.Lock()
		if first {
			s.starting--
		}
		w := s.pop()
		if w == nil {
			s.workers--
			s.mu.Unlock()
			return
		}
		var ctx context.Context
		ctx, w.cancel = context.WithCancelCause(s.ctx)
		w.state = running
		s.active++
		s.mu.Unlock()
		s.verdict(w, s.call(ctx, w))
	}
}

// pop takes the next work that is not gone. mu must be held.
func (s *Subscription) pop() *work {
	for len(s.queue) > 0 {
		w := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		if w.state == queued {
			return w
		}
	}
	s.queue = nil
	return nil
}

// errExited says that a handler ended its goroutine.
var errExited = errors.New("the handler ended its goroutine")

// call runs the handler. A panic, and a handler that ends its goroutine, are
// errors.
func (s *Subscription) call(ctx context.Context, w *work) (err error) {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		} else if !returned {
			// runtime.Goexit: nothing after this function runs, so say it here.
			s.verdict(w, errExited)
			s.mu.Lock()
			s.workers--
			s.spawn()
			s.mu.Unlock()
		}
	}()
	err = s.handler(ctx, w.d.event, &Delivery{
		Group: s.group, Attempt: w.d.attempt, MaxAttempts: w.d.maxAttempts,
		Lease: w.d.lease, Deadline: w.d.deadline, Cursor: w.d.cursor, w: w,
	})
	returned = true
	return err
}

// verdict takes what a handler has returned.
func (s *Subscription) verdict(w *work, err error) {
	w.cancel(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case w.state != running:
		// It was settled by hand meanwhile.
	case err == nil && s.o.Manual && !w.lost:
		w.state = taken
		s.rest()
	case err == nil && !s.o.Manual:
		s.settle(w)
		s.ack(w, nil)
	case err == nil || w.lost:
		// Whoever has it now decides. An ack would help, a nack would not.
		s.conclude(w, false)
	default:
		s.settle(w)
		s.nack(w, nackOf(err), 0, nil)
	}
}
