package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"promethean/event"
	"promethean/gateway/auth"
	"promethean/group"
	"promethean/wire"
)

// maxBody is the largest body of a call that is no publish.
const maxBody = 1 << 20

// decode reads the body as JSON into v. Names that v does not have are refused:
// what is misspelt shall not be ignored. An empty body is that of no fields
// where optional says so.
func (c *call) decode(v any, optional bool) error {
	data, err := c.body(maxBody, wire.PayloadTooLarge)
	if err != nil {
		return err
	}
	c.sent = data
	if optional && len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	return decodeJSON(data, v)
}

// decodeJSON is strict where the JSON comes from outside.
func decodeJSON(data []byte, v any) error {
	if err := event.CheckJSON(data); err != nil {
		return err
	}
	err := json.Unmarshal(data, v, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	var own *wire.Error
	if errors.As(err, &own) {
		err = own
	}
	var bad *json.SemanticError
	where := "the body"
	if !errors.As(err, &bad) {
		return wire.Errorf(wire.InvalidArgument, "%s: %w", where, err)
	}
	if p := string(bad.JSONPointer); p != "" {
		where = clip(strings.ReplaceAll(strings.TrimPrefix(p, "/"), "/", "."))
	}
	switch {
	case errors.Is(bad.Err, json.ErrUnknownName):
		return wire.Errorf(wire.InvalidArgument, "%s: there is no such field", where)
	case bad.Err != nil && !errors.Is(bad.Err, strconv.ErrRange) && !errors.Is(bad.Err, strconv.ErrSyntax):
		return wire.Errorf(wire.InvalidArgument, "%s: %w", where, bad.Err)
	}
	return wire.Errorf(wire.InvalidArgument, "%s: a JSON %s is of the wrong kind", where, kindName(bad))
}

func kindName(e *json.SemanticError) string {
	switch e.JSONKind {
	case '"':
		return "string"
	case '0':
		return "number"
	case '{':
		return "object"
	case '[':
		return "array"
	case 'n':
		return "null"
	case 't', 'f':
		return "truth value"
	}
	return "value"
}

// number is one from 0 on. What is too large to be kept is the largest there
// is: it is clamped later.
type number uint64

// UnmarshalJSON takes digits alone.
func (n *number) UnmarshalJSON(data []byte) error {
	v, err := strconv.ParseUint(string(data), 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		v, err = math.MaxUint64, nil
	}
	if err != nil {
		return fmt.Errorf("%s is no number from 0 on", clip(string(data)))
	}
	*n = number(v)
	return nil
}

// or gives the number, at most so large, or def if it was left out.
func (n *number) or(def, most uint64) uint64 {
	if n == nil {
		return def
	}
	return min(uint64(*n), most)
}

// duration reads milliseconds.
func (n *number) duration(most time.Duration) time.Duration {
	return time.Duration(n.or(0, uint64(most.Milliseconds()))) * time.Millisecond
}

// instant is a time: epoch milliseconds or RFC 3339.
type instant int64

// UnmarshalJSON takes a number or a text.
func (t *instant) UnmarshalJSON(data []byte) error {
	ms, err := parseTime("the time", strings.Trim(string(data), `"`))
	if err != nil {
		return err
	}
	*t = instant(ms)
	return nil
}

// lease names a delivery. It is a text, since a number as large does not
// survive everywhere; a number is taken too.
type lease uint64

// UnmarshalJSON takes digits, in quotes or without.
func (l *lease) UnmarshalJSON(data []byte) error {
	v, err := strconv.ParseUint(strings.Trim(string(data), `"`), 10, 64)
	if err != nil {
		return fmt.Errorf("%s is no lease", clip(string(data)))
	}
	*l = lease(v)
	return nil
}

// place is a place in a topic, as callers name it.
type place struct {
	From    string   `json:"from,omitempty"`
	TS      *instant `json:"ts,omitempty"`
	AfterID string   `json:"afterId,omitempty"`
	Seq     *number  `json:"seq,omitempty"`
}

// start says what the place is. One that names only ts, afterId or seq means
// that; one that names nothing is def.
func (p *place) start(def group.From) (group.Start, error) {
	s := group.Start{From: group.From(p.From)}
	if p.From == "" {
		switch {
		case p.Seq != nil:
			s.From = group.FromSeq
		case p.AfterID != "":
			s.From = group.AfterID
		case p.TS != nil:
			s.From = group.FromTS
		default:
			s.From = def
		}
	}
	switch s.From {
	case group.Latest, group.Earliest:
	case group.FromTS:
		if p.TS == nil {
			return s, wire.Errorf(wire.InvalidArgument, "from ts needs a time in ts")
		}
		s.TS = int64(*p.TS)
	case group.AfterID:
		id, err := event.ParseID(p.AfterID)
		if err != nil {
			return s, wire.Errorf(wire.InvalidArgument, "afterId: %w", err)
		}
		s.AfterID = id
	case group.FromSeq:
		if p.Seq == nil {
			return s, wire.Errorf(wire.InvalidArgument, "from seq needs a number in seq")
		}
		s.Seq = uint64(*p.Seq)
	default:
		return s, wire.Errorf(wire.InvalidArgument, "from: %q is none of latest, earliest, ts, afterId, seq", clip(p.From))
	}
	return s, nil
}

// queryPlace reads a place from the query.
func (c *call) queryPlace() (p place, err error) {
	q := c.r.URL.Query()
	p.From, p.AfterID = q.Get("from"), q.Get("afterId")
	if s := q.Get("ts"); s != "" {
		ms, err := parseTime("ts", s)
		if err != nil {
			return p, err
		}
		p.TS = (*instant)(&ms)
	}
	if q.Get("seq") != "" {
		n, err := c.queryNum("seq", 0, math.MaxUint64)
		if err != nil {
			return p, err
		}
		p.Seq = (*number)(&n)
	}
	return p, nil
}

// options are those of a subscription: settings of the group, and of the
// member.
type options struct {
	place
	Ordering    string  `json:"ordering,omitempty"`
	DeadLetter  string  `json:"deadLetter,omitempty"`
	MaxAttempts *number `json:"maxAttempts,omitempty"`
	AckTimeout  *number `json:"ackTimeoutMs,omitempty"`
	Filter      string  `json:"filter,omitempty"`
	Partitioned bool    `json:"partitioned,omitempty"`

	BatchSize   *number `json:"batchSize,omitempty"`
	MaxInFlight *number `json:"maxInFlight,omitempty"`
	Batch       *number `json:"batch,omitempty"`
	Member      string  `json:"member,omitempty"`
	Normalise   bool    `json:"normalise,omitempty"`
}

// Bounds of what a member may ask for.
const (
	maxInFlight  = 100_000
	maxBatchSize = 10_000
)

// settings are those of the group. What is left out contradicts nothing.
func (o *options) settings() (group.Settings, error) {
	s := group.Settings{Ordering: group.Ordering(o.Ordering), DeadLetter: group.Policy(o.DeadLetter), Filter: o.Filter}
	if o.Partitioned {
		s.Partitions = group.FollowTopic
	}
	switch {
	case o.MaxAttempts != nil && *o.MaxAttempts == 0:
		return s, wire.Errorf(wire.InvalidArgument, "maxAttempts must be at least 1")
	case o.AckTimeout != nil && *o.AckTimeout == 0:
		return s, wire.Errorf(wire.InvalidArgument, "ackTimeoutMs must be at least 1")
	}
	s.MaxAttempts = int(o.MaxAttempts.or(0, 1_000_000))
	s.AckTimeout = o.AckTimeout.duration(wire.MaxExtend)
	return s, nil
}

// member are the options of the member.
func (o *options) member() group.MemberOptions {
	return group.MemberOptions{
		MaxInFlight: int(o.MaxInFlight.or(0, maxInFlight)),
		BatchSize:   int(o.BatchSize.or(0, maxBatchSize)),
	}
}

// queryOptions reads the options of a subscription from the query.
func (c *call) queryOptions() (o options, err error) {
	q := c.r.URL.Query()
	if o.place, err = c.queryPlace(); err != nil {
		return o, err
	}
	o.Ordering, o.DeadLetter, o.Filter = q.Get("ordering"), q.Get("deadLetter"), q.Get("filter")
	for name, to := range map[string]**number{
		"maxAttempts": &o.MaxAttempts, "ackTimeoutMs": &o.AckTimeout,
		"batchSize": &o.BatchSize, "maxInFlight": &o.MaxInFlight,
	} {
		if q.Get(name) == "" {
			continue
		}
		n, err := c.queryNum(name, 0, math.MaxUint64)
		if err != nil {
			return o, err
		}
		*to = (*number)(&n)
	}
	if o.Partitioned, err = c.queryFlag("partitioned", false); err != nil {
		return o, err
	}
	o.Normalise, err = c.queryFlag("normalise", false)
	return o, err
}

// queryFlag reads 1 or true, 0 or false.
func (c *call) queryFlag(name string, def bool) (bool, error) {
	switch s := c.r.URL.Query().Get(name); s {
	case "":
		return def, nil
	case "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	default:
		return false, wire.Errorf(wire.InvalidArgument, "%s: %q is neither 1 nor 0", name, clip(s))
	}
}

// topic checks the topic that a body names: that the caller may do so, its
// name, and that it exists where topics must.
func (c *call) topic(a auth.Action, topic string) error {
	if err := c.allow(a, topic); err != nil {
		return err
	}
	if err := event.CheckTopic(topic); err != nil {
		return err
	}
	return c.g.exists(c.r.Context(), topic)
}

// exists refuses a topic that nobody has made, where publishing does not make
// it.
func (g *Gateway) exists(ctx context.Context, topic string) error {
	if !g.o.NoAutoCreate {
		return nil
	}
	if _, known := g.known.Load(topic); known {
		return nil
	}
	found := false
	for t, err := range g.hub.Topics(ctx) {
		if err != nil {
			return err
		}
		g.known.Store(t.Name, true) // no topic is ever removed
		found = found || t.Name == topic
	}
	if !found {
		return wire.Errorf(wire.NotFound, "there is no topic %s, and auto_create is off: make it with PUT /topics/%s", clip(topic), clip(topic))
	}
	return nil
}

// isHead says that only the head of the answer is wanted.
func (c *call) isHead() bool { return c.r.Method == http.MethodHead }
