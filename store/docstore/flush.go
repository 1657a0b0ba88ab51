package docstore

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// makeRoom has the overlay written in the background when it is large, and
// waits where writing does not keep up. commit must be held.
func (r *reader) makeRoom(ctx context.Context) error {
	s := r.s
	limit, held := int64(s.o.Pending/2), s.held.Load()
	full := held >= limit && int64(r.active.bytes) >= held/4
	if !full && r.active.log < s.o.Log {
		return nil
	}
	if f := r.frozen; f != nil {
		select {
		case <-f.done:
		default:
			if held < 2*limit && r.active.log < 2*s.o.Log {
				return nil // later
			}
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if f.err != nil {
			return f.err
		}
	}
	f := r.freeze()
	s.working.Go(func() { r.write(f) })
	return nil
}

// age writes overlays that are old, so that lists need not look at many
// documents in memory and an open has little to catch up with, and lets go of
// caches that are not in use.
func (s *Store) age() {
	defer s.working.Done()
	tick := time.NewTicker(s.o.Age)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case now := <-tick.C:
			s.mu.RLock()
			list := slices.Collect(maps.Values(s.readers))
			s.mu.RUnlock()
			for _, r := range list {
				r.age(now.Add(-s.o.Age))
			}
		}
	}
}

func (r *reader) age(before time.Time) {
	r.tireReads()
	if !r.commit.TryLock() {
		return // it is at work
	}
	defer r.commit.Unlock()
	if f := r.frozen; f != nil {
		select {
		case <-f.done:
		default:
			return
		}
		if f.err != nil {
			return
		}
		if !r.active.dirty {
			r.mu.Lock()
			r.frozen = nil
			r.mu.Unlock()
		}
	}
	if r.active.dirty && !r.gone && r.active.began.Before(before) && r.s.Err() == nil {
		f := r.freeze()
		r.s.working.Go(func() { r.write(f) })
	}
}

// flush writes what was committed to the rows of documents and indexes, which
// does not make it durable. commit must be held.
func (r *reader) flush(ctx context.Context) error {
	f, err := r.freezeAfter(ctx)
	if err != nil || f == nil {
		return err
	}
	r.write(f)
	return f.err
}

// freezeAfter waits for the overlay before, and freezes the active one unless
// it is empty. commit must be held.
func (r *reader) freezeAfter(ctx context.Context) (*overlay, error) {
	if f := r.frozen; f != nil {
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if f.err != nil {
			return nil, f.err
		}
	}
	if !r.active.dirty || r.gone {
		return nil, nil
	}
	return r.freeze(), nil
}

// freeze puts an empty overlay in place of the active one. The one before must
// be in the database.
func (r *reader) freeze() *overlay {
	f := r.active
	f.place, f.logged = r.place, r.logged
	for _, c := range r.cols {
		f.counts = append(f.counts, c.count)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen, r.active = f, newOverlay(len(r.cols))
	return f
}

// write puts a frozen overlay into the database, as one step.
func (r *reader) write(f *overlay) {
	defer close(f.done)
	b := r.s.db.NewBatchWithSize(f.bytes)
	w := rowWriter{b: b}
	for slot, docs := range f.docs {
		c := r.cols[slot]
		for _, e := range docs {
			w.entry(c, e)
		}
		if len(docs) > 0 {
			put(b, rowKey(w.key[:0], rowState, c.id), encodeState(f.counts[slot], c.forgotten))
		}
	}
	for row, key := range f.uniq {
		if key == "" {
			remove(b, []byte(row))
		} else {
			put(b, []byte(row), []byte(key))
		}
	}
	put(b, rowKey(w.key[:0], rowPlace, r.id), binary.BigEndian.AppendUint64(nil, f.place))
	_ = b.DeleteRange(logRow(r.id, 0), logRow(r.id, f.logged+1), nil)
	if err := r.s.db.Commit(b, false); err != nil {
		f.err = r.s.broken(err)
		return
	}
	r.s.unsynced.Add(1)
	r.s.held.Add(-int64(f.bytes))
	r.mu.Lock()
	defer r.mu.Unlock()
	f.flushed = true
}

// rowWriter makes the rows of entries.
type rowWriter struct {
	b          *pebble.Batch
	key, other []byte
	value      []byte
}

// entry writes what is different from what the database has.
func (w *rowWriter) entry(c *collection, e *entry) {
	w.key = append(rowKey(w.key[:0], rowDoc, c.id), e.key...)
	w.value = appendDoc(w.value[:0], e)
	put(w.b, w.key, w.value)
	was, is := e.base.there && !e.base.dead, !e.dead
	var wasAt, isAt [maxFields]int
	if was {
		offsets(e.base.values, &wasAt)
	}
	if is {
		offsets(e.values, &isAt)
	}
	for i := range c.tuples {
		t := &c.tuples[i]
		had, has := was, is
		w.key = indexPrefix(w.key[:0], rowIndex, c.id, t.ID)
		w.other = append(w.other[:0], w.key...)
		if had {
			w.other, had = appendTuple(w.other, t, e.base.values, &wasAt)
			w.other = appendRank(w.other, e.base.ts, e.key)
		}
		if has {
			w.key, has = appendTuple(w.key, t, e.values, &isAt)
			w.key = appendRank(w.key, e.ts, e.key)
		}
		if had && has && string(w.key) == string(w.other) {
			continue
		}
		if had {
			// Each row is written once before it is removed.
			_ = w.b.SingleDelete(w.other, nil)
		}
		if has {
			put(w.b, w.key, nil)
		}
	}
	if e.base.there && e.base.dead {
		remove(w.b, deletionRow(w.key[:0], c.id, e.base.seq, e.key))
	}
	if e.dead {
		put(w.b, deletionRow(w.key[:0], c.id, e.seq, e.key), nil)
	}
}

func deletionRow(dst []byte, c uint32, seq uint64, key string) []byte {
	return append(binary.BigEndian.AppendUint64(rowKey(dst, rowDeletion, c), seq), key...)
}
