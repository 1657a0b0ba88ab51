package promethean

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"promethean/event"
	"promethean/group"
)

// Handler works on one event. Returning nil acks it; an error gives it back,
// to come again after a while. See [Retry] and [Dead] for errors that say more.
// Its context ends when the lease of the delivery does.
type Handler func(ctx context.Context, e event.Event, d *Delivery) error

// Delivery is what a handler knows beside the event.
type Delivery struct {
	// Group is the group that the event is delivered to.
	Group string
	// Attempt is 1 for the first delivery; after MaxAttempts the event goes to
	// the dead letters.
	Attempt, MaxAttempts int
	// Lease names this delivery.
	Lease uint64
	// Deadline is when the lease ends, unless it is extended by ModAck.
	Deadline time.Time
	// Cursor is how far the group was: this seq and everything below was
	// settled.
	Cursor uint64
	// Letter is the seq of the dead letter that the event is replayed from, to
	// this group alone: later events of its key may have been handled before
	// it. 0 if the event comes from the topic.
	Letter uint64
}

// Subscription is a handler at work.
type Subscription interface {
	// Stop ends the subscription: no more events are handed out, handlers at
	// work may finish until ctx ends, and what is not done then goes back at
	// once, uncounted.
	Stop(ctx context.Context) error
	// Pause stops handing out events to the group, Resume goes on.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// SubscribeOption changes a subscription.
type SubscribeOption func(*SubscribeOptions)

// SubscribeOptions are what subscribe options set. Decorators may look at
// them; use the functions to set them.
type SubscribeOptions struct {
	// Settings belong to the group: they make it on first use, and must not
	// contradict it later.
	Settings group.Settings
	// Start is where a new group begins. The default is the end of the topic.
	Start Place
	// MaxInFlight bounds how many events the handler has at a time. The
	// default is 1000.
	MaxInFlight int
	// BatchSize is how many events are read ahead. The default is 100.
	BatchSize int
	// Filter refuses events: they are settled without being handled. All
	// members of a group should have the same.
	Filter func(*event.Event) bool
	// Manual leaves acking to the handler's owner: a handler that returns nil
	// has only taken the event.
	Manual bool
	// Topics are further topics or patterns.
	Topics []string

	marks Marks
}

// FromEarliest lets a new group begin with the first event.
func FromEarliest() SubscribeOption { return from(Place{From: group.Earliest}) }

// FromLatest lets a new group begin with what is published from now on. It is
// the default.
func FromLatest() SubscribeOption { return from(Place{From: group.Latest}) }

// FromTime lets a new group begin with the first event at or after t.
func FromTime(t time.Time) SubscribeOption {
	return from(Place{From: group.FromTS, TS: t.UnixMilli()})
}

// AfterID lets a new group begin after an event.
func AfterID(id event.ID) SubscribeOption {
	return from(Place{From: group.AfterID, AfterID: id})
}

// AfterSeq lets a new group begin after a seq.
func AfterSeq(seq uint64) SubscribeOption {
	return from(Place{From: group.FromSeq, Seq: seq})
}

func from(p Place) SubscribeOption { return func(o *SubscribeOptions) { o.Start = p } }

// MaxInFlight bounds how many events the handler has at a time.
func MaxInFlight(n int) SubscribeOption { return func(o *SubscribeOptions) { o.MaxInFlight = n } }

// BatchSize sets how many events are read ahead.
func BatchSize(n int) SubscribeOption { return func(o *SubscribeOptions) { o.BatchSize = n } }

// AckTimeout sets how long a lease lasts.
func AckTimeout(d time.Duration) SubscribeOption {
	return func(o *SubscribeOptions) { o.Settings.AckTimeout = d }
}

// MaxAttempts sets after how many deliveries an event is dead.
func MaxAttempts(n int) SubscribeOption {
	return func(o *SubscribeOptions) { o.Settings.MaxAttempts = n }
}

// Ordered sets which events wait for each other; see [group.Ordering].
func Ordered(by group.Ordering) SubscribeOption {
	return func(o *SubscribeOptions) { o.Settings.Ordering = by }
}

// OnDead sets what becomes of an event that has failed for good; see
// [group.Policy].
func OnDead(p group.Policy) SubscribeOption {
	return func(o *SubscribeOptions) { o.Settings.DeadLetter = p }
}

// Where keeps the events for which a CEL expression is true.
func Where(cel string) SubscribeOption { return func(o *SubscribeOptions) { o.Settings.Filter = cel } }

// Filter keeps the events for which f is true.
func Filter(f func(*event.Event) bool) SubscribeOption {
	return func(o *SubscribeOptions) { o.Filter = f }
}

// ManualAck leaves acking to you: call Ack or Nack with the event's id.
func ManualAck() SubscribeOption { return func(o *SubscribeOptions) { o.Manual = true } }

// Topics adds topics, or patterns, to the one that is given.
func Topics(topics ...string) SubscribeOption {
	return func(o *SubscribeOptions) { o.Topics = append(o.Topics, topics...) }
}

// retry and dead are errors that say how a delivery has failed.
type retryError struct {
	err   error
	after time.Duration
}

func (e *retryError) Error() string { return e.err.Error() }
func (e *retryError) Unwrap() error { return e.err }

type deadError struct{ err error }

func (e *deadError) Error() string { return e.err.Error() }
func (e *deadError) Unwrap() error { return e.err }

// Retry is an error that brings the event back after exactly so long.
func Retry(after time.Duration, err error) error { return &retryError{err, max(after, 0)} }

// Dead is an error that sends the event to the dead letters at once: trying
// again would not help.
func Dead(err error) error { return &deadError{err} }

// IsDead says whether an error is one of [Dead].
func IsDead(err error) bool {
	var dead *deadError
	return errors.As(err, &dead)
}

// RetryAfter gives how long an error of [Retry] wants to wait.
func RetryAfter(err error) (after time.Duration, ok bool) {
	var retry *retryError
	if !errors.As(err, &retry) {
		return 0, false
	}
	return retry.after, true
}

// Handle makes a handler of one that takes payloads of one type. A payload
// that does not decode is dead at once.
func Handle[T any](f func(ctx context.Context, v T, e event.Event, d *Delivery) error) Handler {
	return func(ctx context.Context, e event.Event, d *Delivery) error {
		v, err := Payload[T](&e)
		if err != nil {
			return Dead(err)
		}
		return f(ctx, v, e, d)
	}
}

// Subscribe implements [Bus].
func (h *Hub) Subscribe(ctx context.Context, topic, name string, handler Handler, opts ...SubscribeOption) (Subscription, error) {
	if handler == nil {
		return nil, fmt.Errorf("subscribe to %s: %w: no handler", topic, group.ErrInvalid)
	}
	var o SubscribeOptions
	for _, opt := range opts {
		opt(&o)
	}
	if len(o.Topics) > 0 || isPattern(topic) {
		return h.fanOut(ctx, append([]string{topic}, o.Topics...), name, handler, &o)
	}
	return h.subscribe(ctx, topic, name, handler, &o)
}

func (h *Hub) subscribe(ctx context.Context, topic, name string, handler Handler, o *SubscribeOptions) (*subscription, error) {
	return h.serve(ctx, topic, name, handler, o, func(m group.MemberOptions) (*group.Member, error) {
		return h.groups.Join(ctx, topic, name, o.Settings, o.Start, m)
	})
}

// Serve has a handler called for what a member of a group gets, for
// capabilities that join groups in ways of their own: join is given what the
// member needs. Of the options those that belong to the group are join's
// affair.
func (h *Hub) Serve(ctx context.Context, topic, name string, handler Handler, o SubscribeOptions, join func(group.MemberOptions) (*group.Member, error)) (Subscription, error) {
	return h.serve(ctx, topic, name, handler, &o, join)
}

func (h *Hub) serve(ctx context.Context, topic, name string, handler Handler, o *SubscribeOptions, join func(group.MemberOptions) (*group.Member, error)) (*subscription, error) {
	s := &subscription{h: h, topic: topic, group: name, handler: handler, filter: o.Filter, manual: o.Manual, marks: o.marks}
	s.worker = s.work
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil, ErrClosed
	}
	h.subs[s] = struct{}{}
	h.mu.Unlock()
	m, err := join(group.MemberOptions{MaxInFlight: o.MaxInFlight, BatchSize: o.BatchSize, Notify: s.notify})
	if err != nil {
		s.cancel()
		h.forget(s)
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	s.mu.Lock()
	s.member = m
	s.mu.Unlock()
	close(s.begun())
	return s, nil
}

func (h *Hub) forget(s *subscription) {
	h.mu.Lock()
	delete(h.subs, s)
	h.mu.Unlock()
}

// subscription is one handler on one topic. It has as many workers as
// handlers take their time, none while there is nothing to do.
type subscription struct {
	h            *Hub
	topic, group string
	handler      Handler
	filter       func(*event.Event) bool
	manual       bool
	marks        Marks // nil: none are kept
	ctx          context.Context
	cancel       context.CancelFunc

	mu      sync.Mutex
	member  *group.Member
	started chan struct{}
	stopped bool
	workers sync.WaitGroup
	worker  func() // s.work, made once
}

// begun is closed once member is set: a notification may come before Join
// returns.
func (s *subscription) begun() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started == nil {
		s.started = make(chan struct{})
	}
	return s.started
}

// notify is called by the engine when there is something to take.
func (s *subscription) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.workers.Add(1)
		if !s.h.workers.Go(s.worker) {
			s.workers.Done() // the hub is closed
		}
	}
}

func (s *subscription) work() {
	defer s.workers.Done()
	<-s.begun()
	for called := true; ; called = false {
		s.mu.Lock()
		m, stopped := s.member, s.stopped
		s.mu.Unlock()
		if stopped {
			return
		}
		d, ok := m.TakeOne(called)
		if !ok {
			return
		}
		s.deliver(m, &d)
	}
}

// deliver has one event handled and says what became of it.
func (s *subscription) deliver(m *group.Member, d *group.Delivery) {
	if s.filter != nil && !s.filter(&d.Event) {
		s.settle(m, d, group.Outcome{})
		return
	}
	var began time.Time
	if s.h.timed {
		began = time.Now()
	}
	ctx, tracer := s.ctx, s.h.o.Tracer
	ended := func(error) {}
	if tracer != nil {
		ctx, ended = tracer.Deliver(ctx, s.group, &d.Event, d.Attempt)
	}
	err := s.call(ctx, m, d)
	ended(err)
	if s.h.timed {
		s.h.o.Metrics.Handled(s.topic, s.group, time.Since(began))
	}
	if err == nil && s.manual {
		return
	}
	o, name := group.Outcome{}, "ack"
	switch {
	case err != nil:
		o.Nack, name = nackOf(err), "nack"
	case s.marks != nil:
		o.Beside = s.marks.Mark(s.topic, s.group, d.Event.ID)
	}
	if tracer != nil {
		o.Then = tracer.Settle(ctx, s.group, &d.Event, name)
	}
	s.settle(m, d, o)
}

// nackOf says how a delivery has failed by its error.
func nackOf(err error) *group.Nack {
	n := &group.Nack{Reason: err.Error()}
	var r *retryError
	if errors.As(err, &r) {
		n.Delay, n.HasDelay = r.after, true
	}
	var dead *deadError
	n.Dead = errors.As(err, &dead)
	return n
}

func (s *subscription) settle(m *group.Member, d *group.Delivery, o group.Outcome) {
	if err := m.Settle(d, o); err != nil && !errors.Is(err, group.ErrFenced) {
		s.h.o.Logger.Warn("settle a delivery", "topic", s.topic, "group", s.group, "id", d.Event.ID, "err", err)
	}
}

// errExited says that a handler ended its goroutine.
var errExited = errors.New("the handler ended its goroutine")

// call runs the handler. A panic, and a handler that ends its goroutine, are
// errors.
func (s *subscription) call(parent context.Context, m *group.Member, d *group.Delivery) (err error) {
	// One allocation for what the handler gets.
	c := &struct {
		leaseContext
		Delivery
	}{
		leaseContext{Context: parent, m: m, d: d},
		Delivery{
			Group: s.group, Attempt: d.Attempt, MaxAttempts: d.MaxAttempts,
			Lease: d.Lease, Deadline: d.Deadline, Cursor: d.Cursor, Letter: d.Letter,
		},
	}
	ctx := &c.leaseContext
	returned := false
	defer func() {
		ctx.end()
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		} else if !returned {
			// runtime.Goexit: nothing after this function runs, so say it here.
			s.settle(m, d, group.Outcome{Nack: nackOf(errExited)})
			s.notify() // somebody in the place of this one
		}
	}()
	err = s.handler(ctx, d.Event, &c.Delivery)
	returned = true
	return err
}

// Stop implements [Subscription].
func (s *subscription) Stop(ctx context.Context) error {
	defer s.h.forget(s)
	s.mu.Lock()
	s.stopped = true
	m := s.member
	s.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		s.workers.Wait()
		close(idle)
	}()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = fmt.Errorf("topic %s, group %s: handlers are still at work: %w", s.topic, s.group, ctx.Err())
	}
	s.cancel()
	if m != nil {
		m.Leave()
	}
	return err
}

// Pause implements [Subscription].
func (s *subscription) Pause(ctx context.Context) error {
	return s.h.groups.Pause(ctx, s.topic, s.group)
}

// Resume implements [Subscription].
func (s *subscription) Resume(ctx context.Context) error {
	return s.h.groups.Resume(ctx, s.topic, s.group)
}
