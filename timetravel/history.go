package timetravel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"promethean"
	"promethean/event"
	"promethean/internal/patch"
	"promethean/store"
)

// HistoryQuery says whose history.
type HistoryQuery struct {
	Topic, Key string
	// After excludes events up to and including this seq.
	After uint64
	// Limit is how many steps there are at most. 0 means no limit.
	Limit int
}

// Step is one event of a key and what it did.
type Step struct {
	Event event.Event
	// State is what the key was after the event; nil if that is not known,
	// since events that came before are gone.
	State json.RawMessage
	// Known says that the state before is known, and Changes what differs.
	Known   bool
	Changes []Change
}

// History yields the events of a key that are there in the order of the log,
// whatever their TS, with what each changed.
func History(ctx context.Context, hub *promethean.Hub, q HistoryQuery, o Options) iter.Seq2[Step, error] {
	return func(yield func(Step, error) bool) {
		f, err := newFold(o.Reduce)
		if err == nil {
			err = (&Query{Topic: q.Topic, Key: q.Key}).check()
		}
		if err != nil {
			yield(Step{}, fmt.Errorf("history: %w", err))
			return
		}
		var state json.RawMessage // nil: not known
		first := true
		for e, err := range hub.Read(ctx, store.Query{Topic: q.Topic, Key: q.Key, After: q.After, Limit: q.Limit}) {
			if err == nil && first {
				first = false
				state, err = before(ctx, hub, &e, o, f)
			}
			var s Step
			if err == nil {
				s, err = next(f, &e, state)
			}
			if err != nil {
				yield(Step{}, fmt.Errorf("history: %w", err))
				return
			}
			if !yield(s, nil) {
				return
			}
			state = s.State
		}
	}
}

func newFold(r Reducer) (fold[json.RawMessage], error) {
	switch r {
	case "", Replace:
		return newReplace(), nil
	case Merge:
		return newMerge(), nil
	}
	_, err := ParseReducer(string(r))
	return nil, err
}

// before gives the state before an event; nil if it is not known. The fold goes
// on from it.
func before(ctx context.Context, hub *promethean.Hub, e *event.Event, o Options, f fold[json.RawMessage]) (json.RawMessage, error) {
	at, err := At(ctx, hub, Query{Topic: e.Topic, Key: e.Key, AsOf: new(e.Seq - 1)}, o)
	switch {
	case errors.Is(err, ErrGone):
		return nil, nil
	case err != nil:
		return nil, err
	case at.Seq == 0:
		return at.State, nil // as the fold is
	}
	return at.State, f.base(at.State)
}

// next makes the step of an event.
func next(f fold[json.RawMessage], e *event.Event, was json.RawMessage) (Step, error) {
	s := Step{Event: *e, Known: was != nil}
	if err := step(f, e); err != nil {
		return s, err
	}
	if s.Known || f.last() || store.Tombstone(e.Payload) {
		s.State = json.RawMessage("null")
		if now := f.state(); now != nil {
			s.State = *now
		}
	}
	if !s.Known {
		return s, nil
	}
	var err error
	if s.Changes, err = patch.Diff(was, s.State); err != nil {
		return s, fmt.Errorf("topic %s, seq %d: %w", e.Topic, e.Seq, err)
	}
	return s, nil
}
