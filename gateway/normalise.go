package gateway

import (
	"context"
	"encoding/json"
	"errors"

	"promethean/event"
	"promethean/group"
	"promethean/schema"
	"promethean/wire"
)

// normaliser gives events in the latest version of their schema; nil gives them
// as they are.
type normaliser struct{ reg *schema.Registry }

var errNormalise = wire.Errorf(wire.Unsupported, "normalise: this hub has no schemas to bring events up to")

// normaliser gives one if it is wanted.
func (g *Gateway) normaliser(wanted bool) (*normaliser, error) {
	switch {
	case !wanted:
		return nil, nil
	case g.o.Schemas == nil:
		return nil, errNormalise
	}
	return &normaliser{g.o.Schemas}, nil
}

// queryNormaliser gives one if the query says so.
func (c *call) queryNormaliser() (*normaliser, error) {
	on, err := c.queryFlag("normalise", false)
	if err != nil {
		return nil, err
	}
	return c.g.normaliser(on)
}

// event normalises one that nobody holds.
func (n *normaliser) event(ctx context.Context, e event.Event) (event.Event, error) {
	if n == nil {
		return e, nil
	}
	return n.reg.Normalise(ctx, e)
}

// deliveries normalises what a member has taken. What cannot be is given back:
// to the dead letters as it was stored, or for another try. The rest is what is
// handed on.
func (n *normaliser) deliveries(ctx context.Context, m *group.Member, list []group.Delivery) []group.Delivery {
	if n == nil {
		return list
	}
	out := list[:0]
	for i := range list {
		d := &list[i]
		e, err := n.reg.Normalise(ctx, d.Event)
		if err != nil {
			nack := &group.Nack{Reason: err.Error(), Dead: !schema.Passing(ctx, err)}
			_ = m.Done(d, nack) // its lease may be over: it comes again then
			continue
		}
		d.Event = e
		out = append(out, *d)
	}
	clear(list[len(out):])
	return out
}

// broken ends a stream with what is wrong, in a form that the format of the
// stream has room for. What was written stands. Where nothing was, the error is
// the answer.
func (s *stream) broken(err error, before, after string) error {
	var u *schema.UpcastError
	if !s.sent || !errors.As(err, &u) {
		return err
	}
	text, bad := json.Marshal(problemOf(err))
	if bad != nil {
		return errors.Join(err, bad)
	}
	s.buf = append(append(append(s.buf, before...), text...), after...)
	if flush := s.flush(); flush != nil {
		return errors.Join(err, flush)
	}
	return err // cuts the connection, so that nobody takes a part for the whole
}

// needSchemas is a handler that needs a registry.
func needSchemas(h handler) handler {
	return func(c *call) error {
		if c.g.o.Schemas == nil {
			return wire.Errorf(wire.Unsupported, "this hub has no schemas")
		}
		return h(c)
	}
}
