package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"promethean/event"
)

// Handler works on one event. Returning nil acks it; an error gives it back,
// to come again after a while. See [Retry] and [Dead] for errors that say more.
// Its context ends when the lease of the delivery is lost, with [ErrLeaseLost]
// as its cause: somebody else may then have the event.
type Handler func(ctx context.Context, e event.Event, d *Delivery) error

// ErrLeaseLost is why the context of a handler ends before its subscription:
// the connection was lost, or the lease could not be renewed in time.
var ErrLeaseLost = errors.New("the lease is lost")

// retryError and deadError are errors that say how a delivery has failed.
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

// Ordering says which events of a group wait for each other.
type Ordering string

// The orderings.
const (
	ByKey     Ordering = "key"   // those of one key; the default of the hub
	ByTopic   Ordering = "topic" // all of a topic
	Unordered Ordering = "none"
)

// Policy says what becomes of an event that has failed for good.
type Policy string

// The policies.
const (
	DeadEvent Policy = "event" // the one event is a dead letter; the default of the hub
	DeadKey   Policy = "key"   // later events of its key follow, until they are replayed
	DeadBlock Policy = "block" // the key waits for ever
)

// SubscribeOption changes a subscription.
type SubscribeOption func(*SubscribeOptions)

// SubscribeOptions are what subscribe options set; use the functions to set
// them.
type SubscribeOptions struct {
	// Ordering, DeadLetter, MaxAttempts, AckTimeout and Filter belong to the
	// group: they make it on first use, and must not contradict it later. The
	// default is to take the group as it is, or as the hub makes it.
	Ordering    Ordering
	DeadLetter  Policy
	MaxAttempts int
	AckTimeout  time.Duration
	Filter      string

	// MaxInFlight bounds how many events the client holds at a time, those
	// that wait for a handler included. The default is 1000; with Workers it
	// is four for each of them, and at least 16.
	MaxInFlight int
	// Workers bounds how many handlers run at a time. The default is
	// MaxInFlight.
	Workers int
	// MaxBytes bounds how many bytes of events wait or are handled: at that
	// many the hub is told to pause. What it has sent before it hears of that
	// comes on top, up to 32 MiB, beyond which nothing more is read. The
	// default is 16 MiB.
	MaxBytes int
	// BatchSize is how many events the hub reads ahead. The default is the
	// hub's.
	BatchSize int
	// Partitioned has every partition of the topic, and so every key, at one
	// member of the group at a time. It belongs to the group as well. There can
	// be one topic then, and no pattern.
	Partitioned bool
	// Member is a name for this member. In a partitioned group one that comes
	// back under its name after a lost connection has its partitions again, if
	// that does not take too long; a member without a name leaves when its
	// connection is lost. The default is none.
	Member string
	// OnAssign is told which partitions this member has, see [OnAssign]. The
	// default is to tell nobody.
	OnAssign func(generation uint64, partitions []int)
	// Manual leaves acking to the handler's owner: a handler that returns nil
	// has only taken the event.
	Manual bool
	// Normalise gives events in the latest version of their schema. Those that
	// cannot be brought up to it go to the dead letters, as they were stored.
	// The default is to give them as they were stored.
	Normalise bool
	// Topics are further topics or patterns.
	Topics []string

	start start
}

// start is where a new group begins.
type start struct {
	from string
	ts   int64
	id   event.ID
	seq  uint64
}

// FromEarliest lets a new group begin with the first event.
func FromEarliest() SubscribeOption { return from(start{from: "earliest"}) }

// FromLatest lets a new group begin with what is published from now on. It is
// the default.
func FromLatest() SubscribeOption { return from(start{from: "latest"}) }

// FromTime lets a new group begin with the first event at or after t.
func FromTime(t time.Time) SubscribeOption { return from(start{from: "ts", ts: t.UnixMilli()}) }

// AfterID lets a new group begin after an event.
func AfterID(id event.ID) SubscribeOption { return from(start{from: "afterId", id: id}) }

// AfterSeq lets a new group begin after a seq.
func AfterSeq(seq uint64) SubscribeOption { return from(start{from: "seq", seq: seq}) }

func from(p start) SubscribeOption { return func(o *SubscribeOptions) { o.start = p } }

// MaxInFlight bounds how many events the client holds at a time.
func MaxInFlight(n int) SubscribeOption { return func(o *SubscribeOptions) { o.MaxInFlight = n } }

// Workers bounds how many handlers run at a time.
func Workers(n int) SubscribeOption { return func(o *SubscribeOptions) { o.Workers = n } }

// MaxBytes bounds how many bytes of events the client holds at a time.
func MaxBytes(n int) SubscribeOption { return func(o *SubscribeOptions) { o.MaxBytes = n } }

// BatchSize sets how many events the hub reads ahead.
func BatchSize(n int) SubscribeOption { return func(o *SubscribeOptions) { o.BatchSize = n } }

// Member names this member. In a partitioned group no other one may have the
// name: of two the older is told so, and its subscription ends with an [*Error]
// whose code is fenced.
func Member(name string) SubscribeOption { return func(o *SubscribeOptions) { o.Member = name } }

// Partitioned has every partition of the topic, and so every key, at one member
// of the group at a time. A group is partitioned or not from its first use on.
func Partitioned() SubscribeOption { return func(o *SubscribeOptions) { o.Partitioned = true } }

// OnAssign has f told all partitions that this member of a partitioned group has,
// in ascending order, and a number that grows whenever partitions are given to
// others. It is called when the subscription is made, on each connection, before
// the first event of a partition that is new, and as soon as one is to be given
// to somebody else: what is handled of it then may be finished and acked for a
// while. Calls come one after the other. Nothing is read from the hub before f
// returns, so it should be quick. After a lost connection f hears nothing until
// there is another one; what the member had may be somebody else's by then.
func OnAssign(f func(generation uint64, partitions []int)) SubscribeOption {
	return func(o *SubscribeOptions) { o.OnAssign = f }
}

// AckTimeout sets how long a lease lasts.
func AckTimeout(d time.Duration) SubscribeOption {
	return func(o *SubscribeOptions) { o.AckTimeout = d }
}

// MaxAttempts sets after how many deliveries an event is dead.
func MaxAttempts(n int) SubscribeOption { return func(o *SubscribeOptions) { o.MaxAttempts = n } }

// Ordered sets which events wait for each other.
func Ordered(by Ordering) SubscribeOption { return func(o *SubscribeOptions) { o.Ordering = by } }

// OnDead sets what becomes of an event that has failed for good.
func OnDead(p Policy) SubscribeOption { return func(o *SubscribeOptions) { o.DeadLetter = p } }

// Where keeps the events for which a CEL expression is true.
func Where(cel string) SubscribeOption { return func(o *SubscribeOptions) { o.Filter = cel } }

// ManualAck leaves acking to you: call [Delivery.Ack] or [Delivery.Nack], or
// [Client.Ack] with the event's id. The lease is renewed while the handler
// runs; after that it is yours to extend.
func ManualAck() SubscribeOption { return func(o *SubscribeOptions) { o.Manual = true } }

// Normalise gives the handler events in the latest version of their topic's
// schema: the hub upcasts those of older ones.
func Normalise() SubscribeOption { return func(o *SubscribeOptions) { o.Normalise = true } }

// Topics adds topics, or patterns, to the one that is given.
func Topics(topics ...string) SubscribeOption {
	return func(o *SubscribeOptions) { o.Topics = append(o.Topics, topics...) }
}

// withDefaults fills in what was left out.
func (o SubscribeOptions) withDefaults() (SubscribeOptions, error) {
	for _, x := range []struct {
		name  string
		value int
	}{
		{"MaxInFlight", o.MaxInFlight}, {"Workers", o.Workers}, {"MaxBytes", o.MaxBytes}, {"BatchSize", o.BatchSize},
		{"MaxAttempts", o.MaxAttempts}, {"AckTimeout", int(o.AckTimeout)},
	} {
		if x.value < 0 {
			return o, fmt.Errorf("%w: %s is %d, it must not be negative", event.ErrInvalidArgument, x.name, x.value)
		}
	}
	if o.OnAssign != nil && !o.Partitioned {
		return o, fmt.Errorf("%w: OnAssign is for members of a partitioned group: say Partitioned too", event.ErrInvalidArgument)
	}
	if o.MaxInFlight == 0 {
		if o.MaxInFlight = 1000; o.Workers > 0 {
			o.MaxInFlight = max(4*o.Workers, 16)
		}
	}
	if o.Workers == 0 {
		o.Workers = o.MaxInFlight
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 16 << 20
	}
	return o, nil
}

// Subscribe has a handler called for the events of a topic, or of all topics
// that fit a pattern ("*" is one segment, "**" any number), as a member of a
// durable group. It returns once the hub has accepted the subscription, or
// refused it, or ctx has ended; after that ctx only gives its values to the
// handlers.
//
// Handlers run in parallel, up to [Workers]. A lost connection is made again
// and the subscription with it. If the hub refuses it then for good, the
// subscription ends; see [Subscription.Done].
//
// Subscriptions of one client as the same group should not overlap: an event
// that fits two of them goes to either.
func (c *Client) Subscribe(ctx context.Context, topic, group string, h Handler, opts ...SubscribeOption) (*Subscription, error) {
	var o SubscribeOptions
	for _, opt := range opts {
		opt(&o)
	}
	fail := func(err error) (*Subscription, error) {
		return nil, fmt.Errorf("subscribe to %s as %s: %w", topic, group, err)
	}
	o, err := o.withDefaults()
	if err == nil && h == nil {
		err = fmt.Errorf("%w: there is no handler", event.ErrInvalidArgument)
	}
	if err != nil {
		return fail(err)
	}
	topics := slices.Concat([]string{topic}, o.Topics)
	body, err := appendSubscribe(nil, topics, group, &o)
	if err != nil {
		return fail(err)
	}
	s := &Subscription{
		c: c, l: c.link, topics: topics, group: group, handler: h, o: o, body: body,
		begun: make(chan struct{}), done: make(chan struct{}), still: make(chan struct{}, 1),
		works: make(map[workKey]*work), acks: make(map[string]*ackBatch),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := c.link.add(s); err != nil {
		s.cancel(err)
		return fail(err)
	}
	s.attach()
	select {
	case <-s.begun:
		return s, nil
	case <-s.done:
		return fail(s.Err())
	case <-ctx.Done():
		err := c.link.late(ctx)
		s.fail(err)
		return fail(err)
	}
}
