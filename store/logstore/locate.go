package logstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore/internal/chunk"
)

// Bounds implements [store.Log].
func (s *Store) Bounds(ctx context.Context, name string) (store.Bounds, error) {
	if err := ctx.Err(); err != nil {
		return store.Bounds{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone.Load() {
		return store.Bounds{}, store.ErrClosed
	}
	t := s.topics[name]
	if t == nil {
		return store.Bounds{First: 1}, nil
	}
	return t.bounds(), nil
}

// bounds is what readers are told. mu must be held.
func (t *topic) bounds() store.Bounds {
	b := store.Bounds{First: t.first, Last: t.last}
	if !b.Empty() {
		b.Bytes = live(t.bytes, t.first, t.low, t.sealed+1) + live(t.memBytes, t.first, t.sealed+1, t.last+1)
	}
	return b
}

// live is the share of bytes that the events from first on have, where bytes
// is what those from low to below end take: space below first is given back
// bit by bit, in the chunks and in memory each at its own time.
func live(bytes int64, first, low, end uint64) int64 {
	if first <= low || low >= end {
		return bytes
	}
	if first >= end {
		return 0
	}
	return int64(float64(bytes) * float64(end-first) / float64(end-low))
}

// Topics implements [store.Log].
func (s *Store) Topics(ctx context.Context) iter.Seq2[store.Topic, error] {
	return func(yield func(store.Topic, error) bool) {
		s.mu.RLock()
		if s.gone.Load() {
			s.mu.RUnlock()
			yield(store.Topic{}, store.ErrClosed)
			return
		}
		list := make([]store.Topic, 0, len(s.topics))
		for _, t := range s.topics {
			if t.known {
				set := t.settings
				set.Meta = slices.Clone(set.Meta)
				list = append(list, store.Topic{Name: t.name, Bounds: t.bounds(), Settings: set})
			}
		}
		s.mu.RUnlock()
		slices.SortFunc(list, func(a, b store.Topic) int { return strings.Compare(a.Name, b.Name) })
		for _, t := range list {
			if err := ctx.Err(); err != nil {
				yield(store.Topic{}, err)
				return
			}
			if !yield(t, nil) {
				return
			}
		}
	}
}

// LocateID implements [store.Log].
func (s *Store) LocateID(ctx context.Context, name string, id event.ID) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.RLock()
	if s.gone.Load() {
		s.mu.RUnlock()
		return 0, store.ErrClosed
	}
	t := s.topics[name]
	if t == nil {
		s.mu.RUnlock()
		return 0, fmt.Errorf("topic %s, id %s: %w", shorten(name), id, store.ErrNotFound)
	}
	v := s.viewLocked()
	seq, ok := v.memSeq(t.num, id, true)
	first, last := t.first, t.last
	s.mu.RUnlock()
	defer v.release()
	if !ok {
		var err error
		if seq, err = v.sealedSeq(t, id); err != nil {
			return 0, fmt.Errorf("topic %s, id %s: %w", name, id, err)
		}
	}
	if seq < first || seq > last {
		return 0, fmt.Errorf("topic %s, id %s: %w", name, id, store.ErrNotFound)
	}
	return seq, nil
}

// LocateTime implements [store.Log]. The directory and the chunks know the
// largest timestamp of each stretch of the log, so only the stretch that has
// the answer is read.
func (s *Store) LocateTime(ctx context.Context, name string, ts int64) (uint64, error) {
	t, lo, hi, err := s.extent(&store.Query{Topic: name})
	if err != nil {
		return 0, err
	}
	if t == nil {
		return 1, nil
	}
	for pos := lo; pos <= hi; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		found, next, err := s.timeStep(t, pos, ts)
		if err != nil {
			return 0, fmt.Errorf("topic %s, locate time %d: %w", name, ts, err)
		}
		if found != 0 {
			return found, nil
		}
		pos = next
	}
	return hi + 1, nil
}

// timeStep searches one mem or one section from pos on.
func (s *Store) timeStep(t *topic, pos uint64, ts int64) (found, next uint64, err error) {
	s.life.RLock()
	defer s.life.RUnlock()
	s.mu.RLock()
	if s.gone.Load() {
		s.mu.RUnlock()
		return 0, 0, store.ErrClosed
	}
	pos = max(pos, t.first)
	if m := s.memWith(t.num, pos); m != nil {
		defer s.mu.RUnlock()
		mt := m.topics[t.num]
		if mt.maxTS >= ts {
			for _, i := range mt.recs[pos-mt.first:] {
				if r := m.record(i); r.TS() >= ts {
					return r.Seq(), 0, nil
				}
			}
		}
		return 0, mt.first + uint64(len(mt.recs)), nil
	}
	sealed := t.sealed
	s.mu.RUnlock()
	for try := 0; ; try++ {
		x, ok, err := s.findSection(t.num, pos, false)
		if err != nil {
			return 0, 0, err
		}
		if !ok {
			return 0, s.beyond(t, sealed, pos, false).next, nil
		}
		if x.maxTS < ts {
			return 0, x.last + 1, nil
		}
		found, err := s.timeInSection(x, pos, ts)
		if errors.Is(err, fs.ErrNotExist) && try < 10 {
			continue // rewritten since we looked
		}
		return found, x.last + 1, err
	}
}

func (s *Store) timeInSection(x section, pos uint64, ts int64) (found uint64, err error) {
	c, err := s.chunks.get(x.chunk)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	sec, err := c.Section(x.entry)
	if err != nil {
		return 0, err
	}
	for _, b := range sec.Blocks {
		if b.Last < pos || b.MaxTS < ts {
			continue
		}
		data, err := s.chunks.block(x.chunk, c, b)
		if err != nil {
			return 0, err
		}
		for _, r := range chunk.Records(data) {
			if r.Seq() >= pos && r.TS() >= ts {
				return r.Seq(), nil
			}
		}
	}
	return 0, nil
}
