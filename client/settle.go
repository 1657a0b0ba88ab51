package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"promethean/event"
	"promethean/wire"
)

// Delivery is what a handler knows beside the event.
type Delivery struct {
	// Group is the group that the event is delivered to.
	Group string
	// Attempt is 1 for the first delivery; after MaxAttempts the event goes to
	// the dead letters.
	Attempt, MaxAttempts int
	// Lease names this delivery.
	Lease uint64
	// Deadline is when the lease ends by the hub's clock, unless it is renewed.
	Deadline time.Time
	// Cursor is how far the group was: this seq and everything below was
	// settled.
	Cursor uint64

	w *work
}

// Ack settles the event, and returns once that is durable. With [ManualAck] it
// may be called at any time; in a handler it comes before what the handler
// returns, which then changes nothing.
func (d *Delivery) Ack(ctx context.Context) error {
	return d.settle(ctx, func(s *Subscription, said func(error)) { s.ack(d.w, said) })
}

// Nack gives the event back. [Retry] and [Dead] are understood. A lease that is
// lost is not an error: the event comes again in any case.
func (d *Delivery) Nack(ctx context.Context, why error) error {
	if why == nil {
		why = errors.New("nacked")
	}
	err := d.settle(ctx, func(s *Subscription, said func(error)) { s.nack(d.w, nackOf(why), 0, said) })
	if errors.Is(err, &Error{Code: string(wire.Fenced)}) || errors.Is(err, errLost) {
		return nil
	}
	return err
}

var errSettled = errors.New("the delivery was acked or nacked before")

// settle has a work settled and waits for the answer.
func (d *Delivery) settle(ctx context.Context, begin func(*Subscription, func(error))) error {
	s := d.w.s
	said := make(chan error, 1)
	s.mu.Lock()
	switch {
	case d.w.state == taken:
		s.active++
	case d.w.state == running:
	case d.w.state == settling || d.w.settled:
		s.mu.Unlock()
		return errSettled
	default:
		s.mu.Unlock()
		return fmt.Errorf("%w: the event comes again, or Client.Ack settles it all the same", ErrLeaseLost)
	}
	s.settle(d.w)
	begin(s, func(err error) { said <- err })
	s.mu.Unlock()
	select {
	case err := <-said:
		return err
	case <-ctx.Done():
		return s.l.late(ctx)
	}
}

// Extend lets the lease last until so long from now. While a handler runs that
// is not needed. An [*Error] with the code fenced says that the lease is lost.
func (d *Delivery) Extend(ctx context.Context, by time.Duration) error {
	w := d.w
	w.s.mu.Lock()
	on, sent := w.session, time.Now()
	w.s.mu.Unlock()
	body := appendModAck(w.key.topic, w.s.group, []event.ID{w.key.id}, []uint64{w.d.lease}, by)
	a, err := w.s.l.exchange(ctx, body, on)
	if errors.Is(err, errLost) {
		return ErrLeaseLost
	}
	if err != nil {
		return err
	}
	if code := codeAt(a, 0); code != "" {
		return &Error{Code: code, Message: "the lease was not extended"}
	}
	w.s.mu.Lock()
	w.deadline, w.renewAt = sent.Add(by), sent.Add(by/2)
	w.s.schedule(w.renewAt)
	w.s.mu.Unlock()
	return nil
}

// codeAt is what the hub said about the nth id, "" if all is well.
func codeAt(a *answer, n int) string {
	if n >= len(a.results) {
		return string(wire.Internal)
	}
	return a.results[n].code
}

// ackBatch is acks for one topic that go in one frame: all that come until the
// frame is written.
type ackBatch struct {
	list   []acking
	ids    []event.ID
	leases []uint64 // of a partitioned group
	try    int
}

type acking struct {
	w    *work
	said func(error) // may be nil
}

// ack settles a work. mu must be held.
func (s *Subscription) ack(w *work, said func(error)) { s.gather(acking{w, said}, 0) }

// gather adds an ack to the next frame for its topic. mu must be held.
func (s *Subscription) gather(a acking, try int) {
	topic := a.w.key.topic
	b := s.acks[topic]
	if b == nil {
		b = &ackBatch{try: try}
		s.acks[topic] = b
		shut := func() { // nothing more comes to it
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.acks[topic] == b {
				delete(s.acks, topic)
			}
		}
		s.l.send(&request{
			prepare: func() []byte {
				shut()
				for _, a := range b.list {
					b.ids = append(b.ids, a.w.key.id)
					if s.o.Partitioned {
						// Once the partition is somebody else's, the ack must not
						// count, whichever connection it goes over.
						b.leases = append(b.leases, a.w.d.lease)
					}
				}
				return appendSelected(appendGroup(nil, wire.OpAck, topic, s.group), b.ids, b.leases)
			},
			done: func(a *answer, err error) {
				shut()
				s.acked(b, a, err)
			},
		})
	}
	if b.list = append(b.list, a); len(b.list) == wire.MaxBatch {
		delete(s.acks, topic)
	}
}

// acked takes the answer to an ACK.
func (s *Subscription) acked(b *ackBatch, a *answer, err error) {
	if err == nil && a.refusal != nil && wire.Code(a.refusal.Code).Entry().Retry {
		time.AfterFunc(s.l.backoff(b.try), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, x := range b.list {
				s.gather(x, b.try+1)
			}
		})
		return
	}
	if err == nil && a.refusal != nil {
		err = a.refusal
	}
	failed := 0
	said := make([]error, len(b.list))
	s.mu.Lock()
	for i, x := range b.list {
		why := err
		if why == nil {
			if code := codeAt(a, i); code != "" {
				why = &Error{Code: code, Message: "the event was not acked"}
			}
		}
		if said[i] = why; why != nil {
			failed++
		}
		s.conclude(x.w, why == nil)
	}
	s.mu.Unlock()
	for i, x := range b.list {
		if x.said != nil {
			x.said(said[i])
		}
	}
	if failed > 0 && !errors.Is(err, ErrClosed) {
		s.c.o.Logger.Warn("events were handled and not acked: they come again", "topic", b.list[0].w.key.topic, "group", s.group, "events", failed, "err", errors.Join(said...))
	}
}

// nacking says how a delivery has failed.
type nacking struct {
	reason string
	delay  time.Duration
	exact  bool // delay counts
	dead   bool
}

// maxReason bounds the reason of a nack, which is kept with a dead letter.
const maxReason = 8 << 10

func cutReason(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxReason)], "\uFFFD")
}

func nackOf(err error) nacking {
	n := nacking{reason: cutReason(err.Error())}
	var r *retryError
	if errors.As(err, &r) {
		n.delay, n.exact = r.after, true
	}
	var dead *deadError
	n.dead = errors.As(err, &dead)
	return n
}

// appendTo adds it to a NACK.
func (n nacking) appendTo(dst []byte) []byte {
	w := textWriter{buf: dst}
	if n.reason != "" {
		w.field("reason", n.reason)
	}
	if n.exact {
		w.number("delay_ms", n.delay.Milliseconds())
	}
	if n.dead {
		w.buf = append(w.buf, `,"dead":true`...)
	}
	return w.buf
}

// nack gives a work back. mu must be held.
func (s *Subscription) nack(w *work, n nacking, try int, said func(error)) {
	body := appendGroup(nil, wire.OpNack, w.key.topic, s.group)
	body = n.appendTo(appendSelected(body, []event.ID{w.key.id}, []uint64{w.d.lease}))
	s.l.send(&request{body: body, on: w.session, done: func(a *answer, err error) {
		switch {
		case err != nil:
		case a.refusal != nil && wire.Code(a.refusal.Code).Entry().Retry:
			time.AfterFunc(s.l.backoff(try), func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.nack(w, n, try+1, said)
			})
			return
		case a.refusal != nil:
			err = a.refusal
		case codeAt(a, 0) != "":
			err = &Error{Code: codeAt(a, 0), Message: "the event was not nacked"}
		}
		s.mu.Lock()
		w.settled = err == nil
		s.conclude(w, false)
		s.mu.Unlock()
		if said != nil {
			said(err)
		} else if err != nil && !errors.Is(err, errLost) && !errors.Is(err, ErrClosed) && !errors.Is(err, &Error{Code: string(wire.Fenced)}) {
			s.c.o.Logger.Warn("an event was not nacked: it comes again when its lease ends", "topic", w.key.topic, "group", s.group, "id", w.key.id, "err", err)
		}
	}})
}

func appendModAck(topic, group string, ids []event.ID, leases []uint64, by time.Duration) []byte {
	body := appendSelected(appendGroup(nil, wire.OpModAck, topic, group), ids, leases)
	return strconv.AppendInt(append(body, `,"extend_ms":`...), max(by.Milliseconds(), 0), 10)
}

// Result is what became of one id.
type Result struct {
	ID event.ID
	// Err is nil or an [*Error]: unknown_id for an event that was never
	// delivered to the group, fenced for a lease that is over.
	Err error
}

// Ack settles events of a group by id, whoever holds them, and returns once
// that is durable. There is one result for each.
func (c *Client) Ack(ctx context.Context, topic, group string, ids ...event.ID) ([]Result, error) {
	return c.settleIDs(ctx, wire.OpAck, topic, group, ids, nil)
}

// Nack gives events of a group back, whoever holds them.
func (c *Client) Nack(ctx context.Context, topic, group, reason string, ids ...event.ID) ([]Result, error) {
	return c.settleIDs(ctx, wire.OpNack, topic, group, ids, nacking{reason: cutReason(reason)}.appendTo)
}

// ModAck lets the leases of events of a group last until so long from now.
func (c *Client) ModAck(ctx context.Context, topic, group string, by time.Duration, ids ...event.ID) ([]Result, error) {
	return c.settleIDs(ctx, wire.OpModAck, topic, group, ids, func(dst []byte) []byte {
		return strconv.AppendInt(append(dst, `,"extend_ms":`...), max(by.Milliseconds(), 0), 10)
	})
}

func (c *Client) settleIDs(ctx context.Context, op wire.Op, topic, group string, ids []event.ID, more func([]byte) []byte) ([]Result, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	body := appendSelected(appendGroup(nil, op, topic, group), ids, nil)
	if more != nil {
		body = more(body)
	}
	a, err := c.link.persist(ctx, body)
	if err != nil {
		return nil, fmt.Errorf("%s %d events of %s as %s: %w", strings.ToLower(op.String()), len(ids), topic, group, err)
	}
	sub := c.link.find(topic, group)
	out := make([]Result, len(ids))
	for i, id := range ids {
		out[i].ID = id
		if code := codeAt(a, i); code != "" {
			out[i].Err = &Error{Code: code}
		} else if sub != nil && op != wire.OpModAck {
			sub.settled(workKey{topic, id})
		}
	}
	return out, nil
}

// settled is told that an event was settled by its id.
func (s *Subscription) settled(key workKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.works[key]; w != nil && w.state == taken {
		w.settled = true
		s.forget(w)
	}
}
