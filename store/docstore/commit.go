package docstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"promethean/event"
	"promethean/store"
	"promethean/store/internal/document"
)

func notFound(format string, args ...any) error {
	return fmt.Errorf("%w: %s", store.ErrNotFound, fmt.Sprintf(format, args...))
}

// stage is what a commit will do, before anybody sees it.
type stage struct {
	docs   []map[string]*entry // by slot
	order  []staged
	uniq   map[string]string
	counts []int64
	raw    [][]byte
	values []byte
	key    []byte
	row    []byte
}

type staged struct {
	slot int
	e    *entry
}

func (g *stage) reset(slots int) {
	for len(g.docs) < slots {
		g.docs = append(g.docs, make(map[string]*entry))
		g.counts = append(g.counts, 0)
	}
	for i := range g.docs {
		clear(g.docs[i])
		g.counts[i] = 0
	}
	clear(g.order)
	g.order = g.order[:0]
	if g.uniq == nil {
		g.uniq = make(map[string]string)
		g.raw = make([][]byte, 0, maxFields)
	}
	clear(g.uniq)
}

// Commit implements [store.Docs].
func (s *Store) Commit(ctx context.Context, b store.DocBatch) (stale int, err error) {
	if err := s.enterWrite(ctx); err != nil {
		return 0, err
	}
	defer s.life.RUnlock()
	r, err := s.lockReader(b.Reader)
	if err != nil {
		return 0, err
	}
	defer r.commit.Unlock()
	if r.place != b.From {
		return 0, fmt.Errorf("%w: reader %s is at %d, not at %d", store.ErrConflict, r.name, r.place, b.From)
	}
	// First, because what is judged depends on which overlay is the active one.
	if err := r.makeRoom(ctx); err != nil {
		return 0, err
	}
	r.stage.reset(len(r.cols))
	for i := range b.Ops {
		old, err := r.judge(&b.Ops[i], false)
		if err != nil {
			if errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrUnique) {
				err = &store.DocError{Op: i, Err: err}
			}
			return 0, err
		}
		if old {
			stale++
		}
	}
	if err := r.log(b.To); err != nil {
		return 0, err
	}
	r.apply(b.To)
	return stale, nil
}

// log writes what is staged to the database as one row, which is much less
// than all it changes there.
func (r *reader) log(to uint64) error {
	g := &r.stage
	size := 16
	for _, x := range g.order {
		size += len(x.e.key) + len(x.e.body) + 48
	}
	b := r.s.db.NewBatchWithSize(size + 64)
	g.row = binary.BigEndian.AppendUint64(g.row[:0], to)
	for _, x := range g.order {
		g.row = appendOp(g.row, x.slot, x.e)
	}
	put(b, logRow(r.id, r.logged+1), g.row)
	if err := r.s.db.Commit(b, false); err != nil {
		return r.s.broken(err)
	}
	r.s.unsynced.Add(1)
	r.logged++
	r.active.log += len(g.row)
	return nil
}

// replay applies the commits that are in the log.
func (r *reader) replay() error {
	prefix := rowKey(nil, rowLog, r.id)
	return r.s.scan(r.s.db, prefix, func(k, v []byte) error {
		if len(k) != len(prefix)+8 || len(v) < 8 {
			return errRow
		}
		r.stage.reset(len(r.cols))
		r.logged = binary.BigEndian.Uint64(k[len(prefix):])
		r.active.log += len(v)
		to := binary.BigEndian.Uint64(v)
		for v = v[8:]; len(v) > 0; {
			var e entry
			slot, rest, err := decodeOp(v, &e)
			if err != nil || slot >= len(r.cols) {
				return fmt.Errorf("commit %d of reader %s: %w", r.logged, r.name, errRow)
			}
			switch stale, err := r.judge(&store.DocOp{Collection: r.cols[slot].name, Doc: e.doc()}, true); {
			case err != nil:
				return fmt.Errorf("commit %d of reader %s: %w", r.logged, r.name, err)
			case stale:
				return r.cols[slot].damaged(fmt.Sprintf("commit %d has seq %d of document %q, which is not above the stored one", r.logged, e.seq, e.key))
			}
			v = rest
		}
		r.apply(to)
		return nil
	})
}

// slot finds a collection of the reader.
func (r *reader) slot(name string) (*collection, error) {
	for _, c := range r.cols {
		if c.name == name {
			return c, nil
		}
	}
	return nil, notFound("reader %s has no collection %s", r.name, name)
}

// judge stages one operation, unless it is stale. One that was judged before
// may have the version of the document that it deletes. commit must be held.
func (r *reader) judge(op *store.DocOp, again bool) (stale bool, err error) {
	c, err := r.slot(op.Collection)
	if err != nil {
		return false, err
	}
	if n := len(op.Key); n == 0 || n > event.MaxKey {
		return false, fmt.Errorf("%w: a key has 1 to %d bytes, this one has %d", store.ErrInvalid, event.MaxKey, n)
	}
	if op.Body != nil {
		if err := document.CheckBody(op.Body); err != nil {
			return false, err
		}
	}
	g := &r.stage
	e := &entry{key: op.Key, ts: op.TS, seq: op.Seq, dead: op.Body == nil}
	if op.Version != nil {
		e.version, e.hasVersion = *op.Version, true
	}
	cur, err := r.current(c, op.Key, e)
	if err != nil {
		return false, err
	}
	if cur != nil {
		if cur.seq >= e.seq || !again && cur.hasVersion && e.hasVersion && cur.version >= e.version {
			return true, nil
		}
		if e.dead && !e.hasVersion {
			e.version, e.hasVersion = cur.version, cur.hasVersion
		}
	}
	if !e.dead {
		g.values = appendValues(g.values[:0], op.Body, c.fields, g.raw)
		if cur != nil && bytes.Equal(cur.values, g.values) {
			e.values = cur.values
		} else {
			e.values = slices.Clone(g.values)
		}
	}
	if err := r.judgeUnique(c, cur, e); err != nil {
		return false, err
	}
	if !e.dead {
		e.body = slices.Clone(op.Body)
		g.counts[c.slot]++
	}
	if cur != nil && !cur.dead {
		g.counts[c.slot]--
	}
	g.docs[c.slot][e.key] = e
	g.order = append(g.order, staged{c.slot, e})
	return false, nil
}

// current finds what is stored under a key, and gives next its base.
func (r *reader) current(c *collection, key string, next *entry) (*entry, error) {
	if len(r.stage.docs[c.slot]) > 0 {
		if e := r.stage.docs[c.slot][key]; e != nil {
			next.since, next.base = e.since, e.base
			return e, nil
		}
	}
	if e := r.active.docs[c.slot][key]; e != nil {
		next.since, next.base = e.since, e.base
		return e, nil
	}
	next.since = r.clock + 1
	if r.frozen != nil {
		if e := r.frozen.docs[c.slot][key]; e != nil {
			next.base = e.asBase()
			return e, nil
		}
	}
	r.stage.key = append(rowKey(r.stage.key[:0], rowDoc, c.id), key...)
	v, closer, err := r.s.db.Get(r.stage.key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e := &entry{key: key}
	if err = decodeDoc(v, e); err == nil && !e.dead {
		e.values = appendValues(nil, e.body, c.fields, r.stage.raw)
	}
	e.body = nil // it is the database's
	next.base = e.asBase()
	return e, errors.Join(err, closer.Close())
}

// judgeUnique checks the unique indexes of c, and stages their rows.
func (r *reader) judgeUnique(c *collection, cur, e *entry) error {
	for i := range c.uniques {
		t := &c.uniques[i]
		var row, old []byte
		if !e.dead {
			row = c.uniqueRow(t, e.values)
		}
		if cur != nil && !cur.dead {
			old = c.uniqueRow(t, cur.values)
		}
		if bytes.Equal(row, old) {
			continue
		}
		if row != nil {
			owner, err := r.owner(row)
			if err != nil {
				return err
			}
			if owner != "" && owner != e.key {
				return fmt.Errorf("%w: %s has the same %q", store.ErrUnique, owner, t.Fields)
			}
		}
	}
	// Only now: an operation that is refused stages nothing.
	for i := range c.uniques {
		t := &c.uniques[i]
		if cur != nil && !cur.dead {
			if old := c.uniqueRow(t, cur.values); old != nil {
				r.stage.uniq[string(old)] = ""
			}
		}
		if !e.dead {
			if row := c.uniqueRow(t, e.values); row != nil {
				r.stage.uniq[string(row)] = e.key
			}
		}
	}
	return nil
}

// owner says who has the values of a row, "" if nobody does.
func (r *reader) owner(row []byte) (string, error) {
	if k, ok := r.stage.uniq[string(row)]; ok {
		return k, nil
	}
	if k, ok := r.active.uniq[string(row)]; ok {
		return k, nil
	}
	if r.frozen != nil {
		if k, ok := r.frozen.uniq[string(row)]; ok {
			return k, nil
		}
	}
	v, err := r.s.get(r.s.db, row)
	if errors.Is(err, pebble.ErrNotFound) {
		return "", nil
	}
	return string(v), err
}

// uniqueRow gives the key of the row of a unique index, nil if the document is
// not in it.
func (c *collection) uniqueRow(t *tuple, values []byte) []byte {
	var at [maxFields]int
	row := indexPrefix(make([]byte, 0, 7+len(values)), rowUnique, c.id, t.ID)
	row, ok := appendTuple(row, t, values, offsets(values, &at))
	if !ok {
		return nil
	}
	return row
}

// offsets finds where each encoded value begins.
func offsets(values []byte, at *[maxFields]int) *[maxFields]int {
	for i, k := 0, 0; i < len(values); k++ {
		at[k] = i
		i += 1 + int(values[i])
	}
	return at
}

// appendTuple appends the values of a tuple; ok is false if one is missing.
func appendTuple(dst []byte, t *tuple, values []byte, at *[maxFields]int) (_ []byte, ok bool) {
	for _, k := range t.at {
		i := at[k]
		n := int(values[i])
		if n == 0 {
			return dst, false
		}
		dst = append(dst, values[i:i+1+n]...)
	}
	return dst, true
}

// entrySize is about what an entry takes in memory beside its bytes.
const entrySize = 256

func (e *entry) size() int { return len(e.key) + len(e.body) + len(e.values) + entrySize }

// apply makes visible what is staged.
func (r *reader) apply(to uint64) {
	g := &r.stage
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock++
	r.unkeep(g.order)
	o := r.active
	held := o.bytes
	if !o.dirty {
		o.began = time.Now()
	}
	for _, x := range g.order {
		if before := o.docs[x.slot][x.e.key]; before != nil {
			o.bytes -= before.size()
		}
		o.docs[x.slot][x.e.key] = x.e
		o.bytes += x.e.size()
	}
	for row, key := range g.uniq {
		o.uniq[row] = key
	}
	for i, c := range r.cols {
		c.count += g.counts[i]
	}
	r.place = to
	o.dirty = true
	r.s.held.Add(int64(o.bytes - held))
}
