package partition

import (
	"context"
	"fmt"

	"promethean"
	"promethean/event"
	"promethean/group"
)

// Option changes a partitioned subscription.
type Option func(*options)

type options struct {
	join Join
	sub  promethean.SubscribeOptions
}

// Partitions divides the group into so many partitions of its own. Without it,
// or with 0, the group follows the partitions of its topic.
func Partitions(n int) Option {
	return func(o *options) {
		if o.join.Settings.Partitions = n; n == 0 {
			o.join.Settings.Partitions = group.FollowTopic
		}
	}
}

// KeyOf says what partition and order follow, in a group with partitions of its
// own. "" means the event's key, or its id if it has none. All members of a
// group must have the same.
func KeyOf(f func(*event.Event) string) Option { return func(o *options) { o.join.KeyOf = f } }

// MemberID gives the member an id. When the process starts again with the same,
// within the TTL, it has the partitions that it had. Whoever has it elsewhere
// is fenced, so it must not be given twice.
func MemberID(id string) Option { return func(o *options) { o.join.Member = id } }

// Meta is shown to people who look at the members.
func Meta(m map[string]string) Option { return func(o *options) { o.join.Meta = m } }

// OnAssigned has f called before the first event of a partition; see
// [Join.Assigned].
func OnAssigned(f func(ctx context.Context, n int) error) Option {
	return func(o *options) { o.join.Assigned = f }
}

// OnRevoked has f called after the last event of a partition; see
// [Join.Revoked].
func OnRevoked(f func(ctx context.Context, n int) error) Option {
	return func(o *options) { o.join.Revoked = f }
}

// OnChanged has f told which partitions the member has; see [Join.Changed].
func OnChanged(f func(generation uint64, partitions []int)) Option {
	return func(o *options) { o.join.Changed = f }
}

// OnFenced has f told if the subscription ends by itself; see [Join.Fenced].
func OnFenced(f func(error)) Option { return func(o *options) { o.join.Fenced = f } }

// Using sets what other subscriptions have too. MaxInFlight and BatchSize are
// for each partition. More topics, and patterns, are refused.
func Using(opts ...promethean.SubscribeOption) Option {
	return func(o *options) {
		for _, opt := range opts {
			opt(&o.sub)
		}
	}
}

// SubscribePartitioned has a handler called for the events of those partitions
// of a group that this member is given: all events of a key come to one member
// at a time, one after the other. Stop leaves: what is at work is done, and
// then others have the partitions.
//
// The member lives as long as the process, or the connection of its hub to the
// engine, does: it needs no heartbeats.
func SubscribePartitioned(ctx context.Context, c *Coordinator, topic, name string, handler promethean.Handler, opts ...Option) (promethean.Subscription, error) {
	var o options
	o.join.Settings.Partitions = group.FollowTopic
	for _, opt := range opts {
		opt(&o)
	}
	refuse := func(why string) error {
		return fmt.Errorf("subscribe to %s: %w: %s", topic, group.ErrInvalid, why)
	}
	switch {
	case handler == nil:
		return nil, refuse("no handler")
	case len(o.sub.Topics) > 0:
		return nil, refuse("a partitioned group has one topic")
	case o.sub.Settings.Partitions != 0:
		return nil, refuse("partitions are set by an option of their own")
	}
	o.sub.Settings.Partitions = o.join.Settings.Partitions
	o.join.Settings, o.join.Start = o.sub.Settings, o.sub.Start
	o.join.present = true
	o.join.Serve = func(_ int, join func(group.MemberOptions) (*group.Member, error)) (func(), error) {
		s, err := c.hub.Serve(context.WithoutCancel(ctx), topic, name, handler, o.sub, join)
		if err != nil {
			return nil, err
		}
		return func() {
			now, cancel := context.WithCancel(context.Background())
			cancel()
			_ = s.Stop(now) // who is still at work has lost it, and its context ends
		}, nil
	}
	ms, err := c.Join(ctx, topic, name, o.join)
	if err != nil {
		return nil, err
	}
	return &subscription{c: c, ms: ms}, nil
}

type subscription struct {
	c  *Coordinator
	ms *Membership
}

// Stop implements [promethean.Subscription].
func (s *subscription) Stop(ctx context.Context) error { return s.ms.Leave(ctx) }

// Pause implements [promethean.Subscription].
func (s *subscription) Pause(ctx context.Context) error {
	return s.c.hub.Engine().Pause(ctx, s.ms.agent.name.topic, s.ms.agent.name.group)
}

// Resume implements [promethean.Subscription].
func (s *subscription) Resume(ctx context.Context) error {
	return s.c.hub.Engine().Resume(ctx, s.ms.agent.name.topic, s.ms.agent.name.group)
}
