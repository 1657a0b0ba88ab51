package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"promethean/deadletter"
	"promethean/event"
	"promethean/group"
	"promethean/internal/jq"
	"promethean/wire"
)

// countLetters serves GET /dlq.
func countLetters(c *call) error {
	counts, err := deadletter.Counts(c.r.Context(), c.g.hub)
	if err != nil {
		return err
	}
	type count struct {
		Topic string `json:"topic"`
		Group string `json:"group"`
		Count int    `json:"count"`
	}
	out, sum := []count{}, 0
	for _, n := range counts {
		out = append(out, count{n.Topic, n.Group, n.Letters})
		sum += n.Letters
	}
	return c.answerJSON(http.StatusOK, map[string]any{"count": sum, "topics": out})
}

// listLetters serves GET /dlq/{topic}: what was not replayed, oldest first.
func listLetters(c *call) error {
	topic, err := c.pathTopic()
	if err != nil {
		return err
	}
	limit, err := c.queryNum("limit", defaultLimit, maxLimit)
	if err != nil {
		return err
	}
	s := c.stream("application/json")
	defer s.free()
	s.buf = append(s.buf, `{"topic":"`...)
	s.buf = append(append(s.buf, topic...), `","records":[`...)
	n := 0
	if limit > 0 && !c.isHead() {
		var failed error
		err := c.g.hub.Engine().Letters(c.r.Context(), topic, c.r.URL.Query().Get("group"), func(l group.LetterAt) bool {
			if n > 0 {
				s.buf = append(s.buf, ',')
			}
			n++
			if s.buf, failed = appendLetter(s.buf, &l); failed == nil {
				failed = s.room()
			}
			return failed == nil && n < int(limit)
		})
		if err := errors.Join(failed, err); err != nil {
			return err
		}
	}
	s.buf = append(s.buf, `],"count":`...)
	s.buf = strconv.AppendInt(s.buf, int64(n), 10)
	s.buf = append(s.buf, "}\n"...)
	return s.finish()
}

// appendLetter writes a record, with its own id and seq before it.
func appendLetter(b []byte, l *group.LetterAt) ([]byte, error) {
	b = append(b, `{"id":"`...)
	b, _ = l.ID.AppendText(b) // never fails
	b = append(b, `","seq":`...)
	b = strconv.AppendUint(b, l.Seq, 10)
	rest := len(b)
	b, err := l.AppendJSON(b)
	if err == nil {
		b[rest] = ',' // in the place of its brace
	}
	return b, err
}

// replayRequest is the body of POST /dlq/{topic}/replay.
type replayRequest struct {
	Limit     *number  `json:"limit,omitempty"`
	IDs       []string `json:"ids,omitempty"`
	Group     string   `json:"group,omitempty"`
	To        string   `json:"to,omitempty"`
	Transform *string  `json:"transform,omitempty"`
}

// replayLetters serves POST /dlq/{topic}/replay.
func replayLetters(c *call) error {
	topic, err := c.pathTopic()
	if err != nil {
		return err
	}
	var in replayRequest
	if err := c.decode(&in, true); err != nil {
		return err
	}
	o := deadletter.Options{Group: in.Group, To: deadletter.Target(in.To), Limit: int(in.Limit.or(deadletter.DefaultLimit, maxLimit))}
	if in.Transform != nil {
		if o.Transform, err = c.g.transform(c.r.Context(), *in.Transform); err != nil {
			return err
		}
	}
	switch {
	case in.Limit != nil && *in.Limit == 0:
		return wire.Errorf(wire.InvalidArgument, "limit must be at least 1")
	case in.IDs != nil && len(in.IDs) == 0:
		return wire.Errorf(wire.InvalidArgument, "ids: name at least one, or leave it out")
	case o.To == deadletter.ToGroup && c.g.isView(topic, in.Group):
		return wire.Errorf(wire.InvalidArgument, "to: group %s is that of a view, which nothing is handed out to: replay to the topic", clip(in.Group))
	case len(in.IDs) > maxIDs:
		return wire.Errorf(wire.BatchTooLarge, "ids: %d ids, the limit is %d", len(in.IDs), maxIDs)
	}
	for i, s := range in.IDs {
		id, err := event.ParseID(s)
		if err != nil {
			return wire.Errorf(wire.InvalidArgument, "ids[%d]: %w", i, err)
		}
		o.IDs = append(o.IDs, id)
	}
	r, err := deadletter.Replay(c.r.Context(), c.g.hub, topic, o)
	if errors.Is(err, group.ErrNotOwner) && c.g.peers.several() && !c.forwarded {
		r, err = c.replayByGroup(topic, &in, o, r)
	}
	var failed *transformError
	if errors.As(err, &failed) {
		return wire.Errorf(wire.InvalidArgument, "%w; %d were replayed before it, %d are left", err, r.Replayed, r.Remaining)
	}
	if err != nil {
		return err
	}
	return c.answerJSON(http.StatusOK, map[string]int{"replayed": r.Replayed, "remaining": r.Remaining})
}

// transformError says that a dead letter could not be changed.
type transformError struct{ err error }

func (e *transformError) Error() string { return e.err.Error() }
func (e *transformError) Unwrap() error { return e.err }

// transform makes a change of dead letters of a jq program, which sees the event
// and gives its payload. What it gives is held to the topic's schema.
func (g *Gateway) transform(ctx context.Context, text string) (func(event.Event) (event.Event, error), error) {
	program, err := jq.CompileWith(text, jq.Options{Output: g.payloadLimit()})
	if err != nil {
		return nil, wire.Errorf(wire.InvalidArgument, "transform: %w", err)
	}
	return func(e event.Event) (event.Event, error) {
		doc, err := e.AppendStoredJSON(nil)
		if err == nil {
			e.Payload, err = program.Run(ctx, doc)
		}
		if err == nil && g.o.Schemas != nil {
			err = g.o.Schemas.Admit(ctx, &e)
		}
		if err != nil {
			return e, &transformError{err}
		}
		return e, nil
	}, nil
}
