package docstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"promethean/store"
)

type jsonValue = json.RawMessage

// Changes implements [store.Docs].
func (s *Store) Changes(ctx context.Context, name string, seq uint64) iter.Seq2[store.Doc, error] {
	return func(yield func(store.Doc, error) bool) {
		m, err := s.look(ctx, name, func(*collection) (func(*entry) bool, error) {
			return func(e *entry) bool { return e.seq > seq }, nil
		})
		if err != nil {
			yield(store.Doc{}, err)
			return
		}
		defer func() { _ = m.end() }()
		if m.forgotten > seq {
			yield(store.Doc{}, fmt.Errorf("%w: deletions of collection %s up to seq %d", store.ErrGone, name, m.forgotten))
			return
		}
		w := &changes{m: m, after: change{seq: seq}, begun: seq}
		drain(ctx, m.session, w.fill, yield)
	}
}

// changes are read in passes: each looks at all documents and keeps those that
// come next, so that memory does not grow with the collection.
type changes struct {
	m     *moment
	begun uint64
	after change // what was kept last
	kept  []change
	more  bool // there are some after the kept ones
	once  bool
}

// change is where a document stands in the order of changes.
type change struct {
	seq uint64
	key string
	e   *entry // if it is in memory
}

func compareChange(a, b change) int {
	return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.key, b.key))
}

// passSize is how many changes a pass keeps.
const passSize = 64 << 10

func (w *changes) fill(ctx context.Context) (docs []store.Doc, more bool, err error) {
	if len(w.kept) == 0 {
		if w.once && !w.more {
			return nil, false, nil
		}
		if err := w.pass(ctx); err != nil {
			return nil, false, err
		}
		w.once = true
	}
	for size := 0; len(w.kept) > 0 && len(docs) < chunkDocs && size < chunkBytes; w.kept = w.kept[1:] {
		x := w.kept[0]
		var d store.Doc
		if x.e != nil {
			d = x.e.doc()
		} else if d, err = w.m.fetch([]byte(x.key)); err != nil {
			return docs, false, err
		}
		docs = append(docs, d)
		size += len(d.Body)
		w.after = x
	}
	return docs, len(w.kept) > 0 || w.more, nil
}

// pass looks for what comes after w.after.
func (w *changes) pass(ctx context.Context) error {
	kept, n := make([]change, 0, 1024), 0
	w.more = false
	keep := func(x change) {
		if x.seq <= w.begun || w.once && compareChange(x, w.after) <= 0 {
			return
		}
		if len(kept) >= 2*passSize {
			kept = least(kept, passSize, compareChange)
			w.more = true
		}
		kept = append(kept, x)
	}
	for _, e := range w.m.picked {
		keep(change{e.seq, e.key, e})
	}
	var e entry
	err := w.m.s.scan(w.m.snap, rowKey(nil, rowDoc, w.m.c.id), func(k, v []byte) error {
		if n++; n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := decodeDoc(v, &e); err != nil {
			return err
		}
		if e.seq > w.begun && !w.m.covered(k[5:]) {
			keep(change{seq: e.seq, key: string(k[5:])})
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(kept) > passSize {
		w.more = true
	}
	w.kept = least(kept, passSize, compareChange)
	slices.SortFunc(w.kept, compareChange)
	return nil
}

// forgetStep is how many deletions are forgotten at a time.
const forgetStep = 4096

// Forget implements [store.Docs].
func (s *Store) Forget(ctx context.Context, name string, upTo uint64) error {
	if err := s.enterWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	for {
		c, err := s.find(name)
		if err != nil {
			return err
		}
		c.r.commit.Lock()
		if c.r.gone {
			c.r.commit.Unlock()
			continue
		}
		err = c.forget(ctx, upTo)
		c.r.commit.Unlock()
		return err
	}
}

// forget removes deletions. commit must be held.
func (c *collection) forget(ctx context.Context, upTo uint64) error {
	if err := c.r.flush(ctx); err != nil {
		return err
	}
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := c.r.s.db.NewBatch()
		last, n, err := c.collect(b, upTo)
		if err != nil || n == 0 {
			return err
		}
		more = n == forgetStep
		last = max(last, c.forgotten)
		put(b, rowKey(nil, rowState, c.id), encodeState(c.count, last))
		// Whoever reads Changes must not miss a deletion without being told.
		c.r.mu.Lock()
		c.forgotten = last
		c.r.frozen = nil // it may have the deletions
		c.r.mu.Unlock()
		if err := c.r.s.db.Commit(b, false); err != nil {
			return c.r.s.broken(err)
		}
		c.r.s.unsynced.Add(1)
	}
	return nil
}

// collect puts into b the removal of the next deletions.
func (c *collection) collect(b *pebble.Batch, upTo uint64) (last uint64, n int, err error) {
	prefix := rowKey(nil, rowDeletion, c.id)
	end := after(prefix)
	if upTo < math.MaxUint64 {
		end = binary.BigEndian.AppendUint64(prefix, upTo+1)
	}
	it, err := c.r.s.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: end})
	if err != nil {
		return 0, 0, err
	}
	for ok := it.First(); ok && n < forgetStep; ok = it.Next() {
		k := it.Key()
		last = binary.BigEndian.Uint64(k[5:])
		remove(b, k)
		remove(b, append(rowKey(nil, rowDoc, c.id), k[13:]...))
		n++
	}
	return last, n, errors.Join(it.Error(), it.Close())
}
