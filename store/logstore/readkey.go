package logstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"promethean/event"
	"promethean/store"
)

// readKey yields the events of one key: sealed ones by the key index, run by
// run, then those of the mems. Runs are ordered by age and mems are younger,
// so seqs ascend from one to the next.
func (s *Store) readKey(ctx context.Context, q store.Query, yield func(event.Event, error) bool) error {
	t, lo, hi, err := s.extent(&q)
	if err != nil || t == nil || lo > hi {
		return err
	}
	s.mu.RLock()
	v := s.viewLocked()
	young := v.keySeqs(t.num, q.Key, lo, hi)
	s.mu.RUnlock()
	defer v.release()

	left := q.Limit
	want, filtered := q.Partition.Get()
	// What is nearest to a seq that is gone says how far the entries lead to
	// nothing.
	near := lo
	if q.Reverse {
		near = hi
	}
	// give reads one event and yields it. It returns false when done.
	give := func(seq uint64) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if !q.Reverse && seq < near || q.Reverse && seq > near {
			return true, nil
		}
		var r event.Record
		var err error
		if r, near, err = s.nearest(t, seq, lo, hi, q.Reverse); err != nil {
			return false, err
		}
		if near != seq || r.Key() != q.Key {
			return true, nil // gone, or a key with the same hash
		}
		var e event.Event
		if err := event.DecodeBinary(r, &e, t.name); err != nil {
			return false, fmt.Errorf("seq %d: %w: %w", seq, store.ErrCorrupt, err)
		}
		if p, ok := e.Partition.Get(); filtered && (!ok || p != want) {
			return true, nil
		}
		left--
		return yield(e, nil) && left != 0, nil
	}
	fromMems := func() (bool, error) {
		if q.Reverse {
			slices.Reverse(young)
		}
		for _, seq := range young {
			if more, err := give(seq); !more || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	fromRuns := func() (bool, error) {
		p := keyPrefix(t.num, hashKey(t.num, q.Key))
		for i := range v.keys {
			if q.Reverse {
				i = len(v.keys) - 1 - i
			}
			r := v.keys[i].run
			if !r.MayContain(p) {
				continue
			}
			more := true
			var inner error
			err := r.Find(p, q.Reverse, func(e []byte) bool {
				if seq := entrySeq(e); seq >= lo && seq <= hi {
					more, inner = give(seq)
				}
				return more && inner == nil
			})
			if err = errors.Join(err, inner); err != nil || !more {
				return false, err
			}
		}
		return true, nil
	}
	steps := []func() (bool, error){fromRuns, fromMems}
	if q.Reverse {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if more, err := step(); err != nil || !more {
			return err
		}
	}
	return nil
}

// keySeqs lists the seqs of a key that are in mems, ascending. mu must be
// held.
func (v *view) keySeqs(topic uint32, key string, lo, hi uint64) (seqs []uint64) {
	for i := len(v.mems) - 1; i >= 0; i-- {
		m := v.mems[i]
		k, ok := m.lastOf(topic, key)
		for ; ok; k, ok = m.before(k) {
			if seq := m.record(k).Seq(); seq >= lo && seq <= hi && m.isKey(k, topic, key) {
				seqs = append(seqs, seq)
			}
		}
	}
	slices.Reverse(seqs)
	return seqs
}
