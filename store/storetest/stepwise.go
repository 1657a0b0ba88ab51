package storetest

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"

	"promethean/event"
	"promethean/store"
)

// Stepwise is a [Reference] that compacts one event at a time, so that what is
// built on compaction can be tried in the middle of one: with reads between two
// removals, and with ends before the last. What was removed while a read was
// under way is left out by it from there on.
type Stepwise struct {
	*Reference

	// Removing is called before each removal; an error ends the compaction.
	Removing Hook[func(topic string, seq uint64) error]
	// Reading is called before each event that a read looks at.
	Reading Hook[func(q store.Query, seq uint64)]
	// Ahead has a read look at all its events before it yields the first, in the
	// order of their seqs, as an engine may that reads whole blocks.
	Ahead atomic.Bool

	holes sync.Mutex
	gone  map[string]map[uint64]bool
}

// Hook is a function that can be set while it is used. The zero value has none.
type Hook[F any] struct{ f atomic.Pointer[F] }

// Set sets the function.
func (h *Hook[F]) Set(f F) { h.f.Store(&f) }

// Unset takes it away.
func (h *Hook[F]) Unset() { h.f.Store(nil) }

var _ store.Compacts = (*Stepwise)(nil)

// NewStepwise gives an empty store.
func NewStepwise(limits event.Limits) *Stepwise {
	return &Stepwise{Reference: NewReference(limits), gone: make(map[string]map[uint64]bool)}
}

// Reopen closes s and gives a store with the same data.
func (s *Stepwise) Reopen() *Stepwise {
	return &Stepwise{Reference: s.Reference.Reopen(), gone: s.gone}
}

func (s *Stepwise) hole(topic string, seq uint64) bool {
	s.holes.Lock()
	defer s.holes.Unlock()
	return s.gone[topic][seq]
}

// Read implements [store.Log].
func (s *Stepwise) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		limit, n := q.Limit, 0
		q.Limit = 0
		seen := make(map[uint64]bool)
		ahead := s.Ahead.Load()
		if ahead {
			forwards := q
			forwards.Reverse = false
			for e, err := range s.Reference.Read(ctx, forwards) {
				seen[e.Seq] = err == nil && s.look(q, e.Seq)
			}
		}
		for e, err := range s.Reference.Read(ctx, q) {
			if err != nil {
				yield(e, err)
				return
			}
			if ahead && !seen[e.Seq] || !ahead && !s.look(q, e.Seq) {
				continue
			}
			n++
			if !yield(e, nil) || n == limit {
				return
			}
		}
	}
}

// look says whether an event that a read comes to is there.
func (s *Stepwise) look(q store.Query, seq uint64) bool {
	if f := s.Reading.f.Load(); f != nil {
		(*f)(q, seq)
	}
	return !s.hole(q.Topic, seq)
}

// Bounds implements [store.Log].
func (s *Stepwise) Bounds(ctx context.Context, topic string) (store.Bounds, error) {
	b, err := s.Reference.Bounds(ctx, topic)
	for err == nil && !b.Empty() && s.hole(topic, b.First) {
		b.First++
	}
	return b, err
}

// LocateID implements [store.Log].
func (s *Stepwise) LocateID(ctx context.Context, topic string, id event.ID) (uint64, error) {
	seq, err := s.Reference.LocateID(ctx, topic, id)
	if err == nil && s.hole(topic, seq) {
		return 0, store.ErrNotFound
	}
	return seq, err
}

// LocateTime implements [store.Log].
func (s *Stepwise) LocateTime(ctx context.Context, topic string, ts int64) (uint64, error) {
	for e, err := range s.Reference.Read(ctx, store.Query{Topic: topic}) {
		if err != nil {
			return 0, err
		}
		if e.TS >= ts && !s.hole(topic, e.Seq) {
			return e.Seq, nil
		}
	}
	b, err := s.Reference.Bounds(ctx, topic)
	return b.Last + 1, err
}

// Topics implements [store.Log].
func (s *Stepwise) Topics(ctx context.Context) iter.Seq2[store.Topic, error] {
	return func(yield func(store.Topic, error) bool) {
		for t, err := range s.Reference.Topics(ctx) {
			if err == nil {
				t.Bounds, err = s.Bounds(ctx, t.Name)
			}
			if !yield(t, err) || err != nil {
				return
			}
		}
	}
}

// Compact implements [store.Compacts].
func (s *Stepwise) Compact(ctx context.Context, topic string, c store.Compaction) (out store.Compacted, err error) {
	last := make(map[string]event.Event)
	var list []event.Event
	for e, err := range s.Reference.Read(ctx, store.Query{Topic: topic}) {
		if err != nil {
			return out, err
		}
		if e.Seq >= c.Before {
			break
		}
		if s.hole(topic, e.Seq) {
			continue
		}
		if list = append(list, e); e.Key != "" {
			last[e.Key] = e
		}
	}
	for _, e := range list {
		final := e.Key == "" || c.Key != "" && c.Key != e.Key || last[e.Key].Seq == e.Seq
		dead := e.Key != "" && (c.Key == "" || c.Key == e.Key) && final && e.Seq < c.Tombstones && store.Tombstone(e.Payload)
		if final && !dead {
			out.Kept++
			continue
		}
		if f := s.Removing.f.Load(); f != nil {
			if err := (*f)(topic, e.Seq); err != nil {
				return out, err
			}
		}
		if dead {
			out.MaxTS = max(out.MaxTS, e.TS)
		}
		s.holes.Lock()
		if s.gone[topic] == nil {
			s.gone[topic] = make(map[uint64]bool)
		}
		s.gone[topic][e.Seq] = true
		s.holes.Unlock()
		out.Removed++
		out.Bytes += int64(e.Size())
	}
	return out, ctx.Err()
}
