package timetravel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"promethean"
	"promethean/event"
	"promethean/internal/patch"
	"promethean/store"
)

// Query says of what, and when.
type Query struct {
	Topic, Key string
	// TS is the moment in epoch ms: events with a later TS do not count.
	// Default nil: all do.
	TS *int64
	// AsOf is how far the log had come: events with a higher seq do not count.
	// Default nil: all do.
	AsOf *uint64
}

// check says what is wrong with a query.
func (q *Query) check() error {
	if err := event.CheckTopic(q.Topic); err != nil {
		return err
	}
	if q.Key == "" || len(q.Key) > event.MaxKey {
		return fmt.Errorf("%w: a key has 1 to %d bytes, not %d", event.ErrInvalidArgument, event.MaxKey, len(q.Key))
	}
	if q.TS != nil && (*q.TS < 0 || *q.TS > event.MaxTS) {
		return fmt.Errorf("%w: %d is no time in epoch milliseconds", event.ErrInvalidArgument, *q.TS)
	}
	return nil
}

// counts says whether an event is early enough.
func (q *Query) counts(ts int64) bool { return q.TS == nil || ts <= *q.TS }

// none says that no event can count.
func (q *Query) none() bool { return q.AsOf != nil && *q.AsOf == 0 }

// events selects the key's events.
func (q *Query) events() store.Query {
	out := store.Query{Topic: q.Topic, Key: q.Key}
	if q.AsOf != nil {
		out.Until = *q.AsOf
	}
	return out
}

// Reducer is one of those that are built in.
type Reducer string

// Reducers. A tombstone makes the state null under both, see [store.Tombstone].
const (
	// Replace takes the payload of the last event as the state.
	Replace Reducer = "replace"
	// Merge applies every payload as a merge patch (RFC 7386) to the state.
	Merge Reducer = "merge"
)

// ParseReducer reads the name of a reducer; "" is Replace.
func ParseReducer(s string) (Reducer, error) {
	switch r := Reducer(s); r {
	case "":
		return Replace, nil
	case Replace, Merge:
		return r, nil
	}
	return "", fmt.Errorf("%w: reduce: %q is neither replace nor merge", event.ErrInvalidArgument, s)
}

// Options change how a state is found. The zero value works.
type Options struct {
	// Reduce is how events become a state. Default Replace.
	Reduce Reducer
	// SnapshotTopic is where snapshots are, see [compact.Record]: states that
	// were made by the same reducer. Default: for Replace those of the
	// compactor, if the topic has any; otherwise none.
	SnapshotTopic string
	// FetchSnapshot finds a snapshot that serves the query, in place of
	// SnapshotTopic; nil if there is none.
	FetchSnapshot func(ctx context.Context, q Query) (*Snapshot, error)
}

// Snapshot is what a key was after one of its events.
type Snapshot struct {
	State json.RawMessage
	// Seq and TS are those of the event; MaxTS is the largest TS of all events
	// of the key up to it.
	Seq       uint64
	TS, MaxTS int64
}

// State is what a key was.
type State struct {
	Topic string `json:"topic"`
	Key   string `json:"key"`
	// State is null if there was nothing, or it was deleted.
	State json.RawMessage `json:"state"`
	// TS and Seq are those of the last event that was applied, or of the
	// snapshot's; 0 if there is none.
	TS  int64  `json:"ts"`
	Seq uint64 `json:"seq"`
	// Events is how many were applied: those of the key that count, since the
	// snapshot that served, if one did.
	Events int `json:"events"`
}

// ErrGone is what a [GoneError] is.
var ErrGone = errors.New("the history that is needed is gone")

// GoneError says that events were removed that may have to do with the answer.
type GoneError struct {
	Topic, Key string
	// Oldest is the oldest TS for which there is an answer about this key, if
	// it is Known.
	Oldest int64
	Known  bool
	// OldestSeq is, where the query had an AsOf, the smallest one for which
	// there is an answer; 0 if that is not known.
	OldestSeq uint64
}

func (e *GoneError) Error() string {
	text := fmt.Sprintf("topic %s, key %q: %v", e.Topic, e.Key, ErrGone)
	switch {
	case e.Known:
		text += fmt.Sprintf("; the oldest moment that can be answered is %d", e.Oldest)
	case e.OldestSeq > 0:
		text += fmt.Sprintf("; the smallest seq that can be answered is %d", e.OldestSeq)
	}
	return text
}

// Is makes it [ErrGone].
func (e *GoneError) Is(target error) bool { return target == ErrGone }

// At says what a key was.
func At(ctx context.Context, hub *promethean.Hub, q Query, o Options) (State, error) {
	if err := q.check(); err != nil {
		return State{}, fmt.Errorf("time travel: %w", err)
	}
	var r *result[json.RawMessage]
	var err error
	switch o.Reduce {
	case "", Replace:
		r, err = travel(ctx, hub, q, o, newReplace)
	case Merge:
		r, err = travel(ctx, hub, q, o, newMerge)
	default:
		_, err = ParseReducer(string(o.Reduce))
	}
	if err != nil {
		return State{}, fmt.Errorf("time travel: %w", err)
	}
	out := State{Topic: q.Topic, Key: q.Key, State: json.RawMessage("null"), TS: r.ts, Seq: r.seq, Events: r.events}
	if r.state != nil {
		out.State = *r.state
	}
	return out, nil
}

// AtFunc is At with a reducer of your own: apply gives the state after an event,
// and nil for nothing. It is given nil where there is nothing. A tombstone makes
// the state nil, and apply is not called for it. The snapshots that Options name
// hold the JSON of a T.
func AtFunc[T any](ctx context.Context, hub *promethean.Hub, q Query, o Options, apply func(prev *T, e event.Event) (*T, error)) (*T, State, error) {
	if err := q.check(); err != nil {
		return nil, State{}, fmt.Errorf("time travel: %w", err)
	}
	r, err := travel(ctx, hub, q, o, func() fold[T] { return &custom[T]{f: apply} })
	if err != nil {
		return nil, State{}, fmt.Errorf("time travel: %w", err)
	}
	text, err := json.Marshal(r.state)
	if err != nil {
		return nil, State{}, fmt.Errorf("time travel: topic %s, key %q: %w", q.Topic, q.Key, err)
	}
	return r.state, State{Topic: q.Topic, Key: q.Key, State: text, TS: r.ts, Seq: r.seq, Events: r.events}, nil
}

// Change is a difference between two states.
type Change = patch.Change

// Diff says what changed from one state of a key to another. Both queries may be
// about different keys, too.
func Diff(ctx context.Context, hub *promethean.Hub, from, to Query, o Options) ([]Change, error) {
	a, err := At(ctx, hub, from, o)
	if err != nil {
		return nil, err
	}
	b, err := At(ctx, hub, to, o)
	if err != nil {
		return nil, err
	}
	return patch.Diff(a.State, b.State)
}

// fold makes a state of events.
type fold[T any] interface {
	// base begins with a snapshot.
	base(state json.RawMessage) error
	// apply takes an event that is no tombstone.
	apply(e event.Event) error
	reset()
	state() *T
	// last says that the state depends on the last event alone.
	last() bool
}

type replaced struct{ now *json.RawMessage }

func newReplace() fold[json.RawMessage] { return &replaced{} }

func (r *replaced) base(state json.RawMessage) error {
	if r.now = &state; string(state) == "null" {
		r.now = nil
	}
	return nil
}
func (r *replaced) apply(e event.Event) error { r.now = &e.Payload; return nil }
func (r *replaced) reset()                    { r.now = nil }
func (r *replaced) state() *json.RawMessage   { return r.now }
func (r *replaced) last() bool                { return true }

type merged struct {
	now patch.Value
	has bool
}

func newMerge() fold[json.RawMessage] { return &merged{} }

func (m *merged) base(state json.RawMessage) (err error) {
	m.now, err = patch.Parse(state)
	m.has = true
	return err
}

func (m *merged) apply(e event.Event) error {
	p, err := patch.Parse(e.Payload)
	if err != nil {
		return err
	}
	m.now.Merge(p)
	m.has = true
	return nil
}
func (m *merged) reset() { *m = merged{} }
func (m *merged) state() *json.RawMessage {
	if !m.has {
		return nil
	}
	text := json.RawMessage(m.now.Bytes())
	return &text
}
func (m *merged) last() bool { return false }

type custom[T any] struct {
	now *T
	f   func(prev *T, e event.Event) (*T, error)
}

func (c *custom[T]) base(state json.RawMessage) error {
	return json.Unmarshal(state, &c.now) // null is nil
}

func (c *custom[T]) apply(e event.Event) (err error) {
	c.now, err = c.f(c.now, e)
	return err
}
func (c *custom[T]) reset()     { c.now = nil }
func (c *custom[T]) state() *T  { return c.now }
func (c *custom[T]) last() bool { return false }
