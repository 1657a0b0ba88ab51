package gateway

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/store"
	"promethean/wire"
)

const (
	// heartbeat is how often a stream without events says that it is there.
	heartbeat = 15 * time.Second
	// tailStep is how many events a tail reads at a time.
	tailStep = 1000
	// leaseStep is how many events a stream of a group takes at a time: they
	// are on their way before more are taken.
	leaseStep = 64
)

// subscribe serves GET /subscribe: Server-Sent Events. The connection ends with
// the token, and when the hub drains; the client comes again with
// Last-Event-ID.
func subscribe(c *call) error {
	topic, err := c.queryTopic()
	if err != nil {
		return err
	}
	o, err := c.queryOptions()
	if err != nil {
		return err
	}
	settings, err := o.settings()
	if err != nil {
		return err
	}
	start, err := o.start(group.Latest)
	if err != nil {
		return err
	}
	norm, err := c.g.normaliser(o.Normalise)
	if err != nil {
		return err
	}
	q := c.r.URL.Query()
	if q.Has("group") {
		if err := checkGroup(q.Get("group")); err != nil {
			return err
		}
		if err := c.g.unpartitioned(&o); err != nil {
			return err
		}
		return c.events(func(ctx context.Context, s *stream) error {
			return c.leased(ctx, s, topic, q.Get("group"), settings, start, o.member(), norm)
		})
	}
	if id := c.r.Header.Get("Last-Event-ID"); id != "" {
		seq, err := strconv.ParseUint(id, 10, 64)
		if err != nil {
			return wire.Errorf(wire.InvalidArgument, "Last-Event-ID: %q is no seq", clip(id))
		}
		start = group.Start{From: group.FromSeq, Seq: seq}
	}
	return c.events(func(ctx context.Context, s *stream) error { return c.tail(ctx, s, topic, start, norm) })
}

// lasting runs what answers for as long as the connection may last: until the
// caller goes, the token ends or the hub drains. That is no error once the answer
// has begun.
func (c *call) lasting(run func(context.Context) error) error {
	if !c.g.enter() {
		return errDraining
	}
	defer c.g.open.Done()
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	defer context.AfterFunc(c.g.ctx, cancel)()
	if c.who != nil && !c.who.Expires.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, c.who.Expires)
		defer cancel()
	}
	err := run(ctx)
	if ctx.Err() != nil && c.w.begun {
		return nil // it was to end
	}
	return err
}

// events runs a stream of events.
func (c *call) events(run func(context.Context, *stream) error) error {
	return c.lasting(func(ctx context.Context) error {
		s := c.stream("text/event-stream")
		defer s.free()
		c.w.Header().Set("X-Accel-Buffering", "no") // a proxy shall not wait for more
		return run(ctx, s)
	})
}

// tail streams what is published, from a place on. An event that cannot be
// normalised ends it with one called error.
func (c *call) tail(ctx context.Context, s *stream, topic string, start group.Start, norm *normaliser) error {
	w := c.g.hub.Log().Watch(topic)
	defer w.Stop()
	floor, err := c.g.hub.Engine().Floor(ctx, topic, start)
	if err != nil {
		return err
	}
	if done, err := c.opened(s); done || err != nil {
		return err
	}
	beat := time.NewTimer(heartbeat)
	defer beat.Stop()
	for {
		n := 0
		for e, err := range c.g.hub.Read(ctx, store.Query{Topic: topic, After: floor, Limit: tailStep}) {
			if err == nil {
				e, err = norm.event(ctx, e)
			}
			if err != nil {
				return s.broken(err, "event: error\ndata: ", "\n\n")
			}
			if s.buf, err = appendEvent(s.buf, &e); err == nil {
				err = s.room()
			}
			if err != nil {
				return err
			}
			n, floor = n+1, e.Seq
		}
		if n > 0 {
			if err := s.flush(); err != nil {
				return err
			}
			beat.Reset(heartbeat)
		}
		if n == tailStep {
			continue
		}
		if err := s.await(ctx, w.C, beat); err != nil {
			return err
		}
	}
}

// opened tells the client that the stream is there. It says whether that was
// all he wanted.
func (c *call) opened(s *stream) (bool, error) {
	s.buf = append(s.buf, ": open\n\n"...)
	return c.isHead(), s.flush()
}

// await waits for a signal, and keeps the connection alive meanwhile.
func (s *stream) await(ctx context.Context, signal <-chan struct{}, beat *time.Timer) error {
	for {
		select {
		case <-signal:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-beat.C:
			s.buf = append(s.buf, ":\n\n"...)
			if err := s.flush(); err != nil {
				return err
			}
			beat.Reset(heartbeat)
		}
	}
}

// appendEvent writes an event of a stream. Its JSON has no line feeds.
func appendEvent(b []byte, e *event.Event) ([]byte, error) {
	b = append(b, "id: "...)
	b = strconv.AppendUint(b, e.Seq, 10)
	b = append(b, "\nevent: event\ndata: "...)
	b, err := e.AppendStoredJSON(b)
	return append(b, "\n\n"...), err
}

// leased streams what a member of a group gets. If the client goes, what he
// holds has failed; if we end the stream, it goes back uncounted.
func (c *call) leased(ctx context.Context, s *stream, topic, name string, set group.Settings, start group.Start, o group.MemberOptions, norm *normaliser) error {
	if c.isHead() {
		_, err := c.opened(s)
		return err
	}
	signal := make(chan struct{}, 1)
	o.Notify = func() {
		select {
		case signal <- struct{}{}:
		default:
		}
	}
	var foreign atomic.Bool
	if c.g.peers.several() {
		o.Owned = func(is bool) {
			foreign.Store(!is)
			o.Notify()
		}
	}
	m, err := c.g.hub.Engine().Join(ctx, topic, name, set, start, o)
	if err != nil {
		return c.g.unfit(ctx, topic, name, err)
	}
	if _, err = c.opened(s); err == nil {
		err = c.serveMember(ctx, s, m, signal, norm, &foreign)
	}
	for errors.Is(err, group.ErrNotOwner) && !c.forwarded {
		if err = c.relayEvents(ctx, s, topic, name, signal, &foreign); err == nil {
			m.Seek() // the owner may be gone
			err = c.serveMember(ctx, s, m, signal, norm, &foreign)
		}
	}
	if ctx.Err() != nil && c.r.Context().Err() == nil {
		m.Leave()
	} else {
		m.Drop()
	}
	return err
}

// serveMember streams what the engine of this hub hands to a member. It is
// group.ErrNotOwner if another hub owns the group.
func (c *call) serveMember(ctx context.Context, s *stream, m *group.Member, signal <-chan struct{}, norm *normaliser, foreign *atomic.Bool) error {
	beat := time.NewTimer(heartbeat)
	defer beat.Stop()
	for ctx.Err() == nil {
		list := m.Take(leaseStep)
		if len(list) == 0 && foreign.Load() {
			return group.ErrNotOwner
		}
		if len(list) == 0 {
			if err := s.await(ctx, signal, beat); err != nil {
				return err
			}
			continue
		}
		list = norm.deliveries(ctx, m, list)
		for i := range list {
			// What the delivery is stands in a comment: the data is the event.
			s.buf = append(s.buf, ": attempt "...)
			s.buf = strconv.AppendInt(s.buf, int64(list[i].Attempt), 10)
			s.buf = append(s.buf, ", lease "...)
			s.buf = strconv.AppendUint(s.buf, list[i].Lease, 10)
			s.buf = append(s.buf, ", deadline "...)
			s.buf = strconv.AppendInt(s.buf, list[i].Deadline.UnixMilli(), 10)
			s.buf = append(s.buf, '\n')
			var err error
			if s.buf, err = appendEvent(s.buf, &list[i].Event); err != nil {
				return err
			}
			if err := s.room(); err != nil {
				return err
			}
		}
		if err := s.flush(); err != nil {
			return err
		}
		beat.Reset(heartbeat)
	}
	return ctx.Err()
}
