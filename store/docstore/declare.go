package docstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"promethean/store"
	"promethean/store/internal/document"
)

const maxFields = document.MaxFields

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", store.ErrInvalid, fmt.Sprintf(format, args...))
}

// Declare implements [store.Docs].
func (s *Store) Declare(ctx context.Context, d store.Reader) error {
	if err := document.CheckReader(&d); err != nil {
		return err
	}
	if err := s.enterWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	s.shape.Lock()
	defer s.shape.Unlock()
	for _, c := range d.Collections {
		if owner, err := s.find(c.Name); err == nil && owner.r.name != d.Name {
			return fmt.Errorf("%w: collection %s belongs to reader %s", store.ErrConflict, c.Name, owner.r.name)
		}
	}
	old, err := s.lockReader(d.Name)
	if err == nil {
		defer old.commit.Unlock()
		if err := old.flush(ctx); err != nil {
			return err
		}
	}
	return s.reshape(ctx, old, &d)
}

// reshape makes a reader as declared, in place of old if that is not nil, whose
// commit must be held then. shape must be held.
func (s *Store) reshape(ctx context.Context, old *reader, d *store.Reader) error {
	next := s.next
	row := &readerRow{ID: next, Meta: slices.Clone(d.Meta)}
	if old == nil {
		next++
	} else {
		row.ID = old.id
	}
	b, waste := s.db.NewBatch(), s.db.NewBatch()
	var kept []*collection // of old, by slot; nil where one is new
	for _, dc := range d.Collections {
		var was *collection
		if old != nil {
			was, _ = old.slot(dc.Name)
		}
		cr := collectionRow{Name: dc.Name, Indexes: cloneIndexes(dc.Indexes)}
		if was == nil {
			cr.ID = next
			next++
			put(b, rowKey(nil, rowState, cr.ID), encodeState(0, 0))
		} else {
			cr.ID, cr.Next = was.id, was.next
		}
		if err := cr.shape(was, waste); err != nil {
			return fmt.Errorf("collection %s: %w", dc.Name, err)
		}
		row.Collections = append(row.Collections, cr)
		kept = append(kept, was)
	}
	r, err := s.makeReader(d.Name, row)
	if err != nil {
		return err
	}
	for i, c := range r.cols {
		if was := kept[i]; was != nil {
			c.count, c.forgotten = was.count, was.forgotten
			if err := s.build(ctx, was, c); err != nil {
				return fmt.Errorf("collection %s: %w", c.name, err)
			}
		}
	}
	if old != nil {
		r.place = old.place
		for _, c := range old.cols {
			if !slices.Contains(kept, c) {
				removeCollection(waste, c.id)
			}
		}
	}
	put(b, keyNext, binary.BigEndian.AppendUint32(nil, next))
	s.next = next // also if it fails: ids are not used twice
	return s.swap(b, waste, r, old)
}

// shape decides which tuples have rows, and which are new.
func (cr *collectionRow) shape(was *collection, waste *pebble.Batch) error {
	var before, uniquesBefore []tuple
	if was != nil {
		before, uniquesBefore = was.tuples, was.uniques
	}
	ids := int(cr.Next)
	take := func(list []tuple, fields []string) tuple {
		for _, t := range list {
			if slices.Equal(t.Fields, fields) {
				return tuple{ID: t.ID, Fields: t.Fields}
			}
		}
		ids++
		return tuple{ID: uint16(ids - 1), Fields: slices.Clone(fields)}
	}
	// The order of listings, each field, and each list of several.
	cr.Tuples = append(cr.Tuples, take(before, nil))
	for _, f := range document.Fields(cr.Indexes) {
		cr.Tuples = append(cr.Tuples, take(before, []string{f}))
	}
	for _, x := range cr.Indexes {
		if len(x.Fields) > 1 {
			cr.Tuples = append(cr.Tuples, take(before, x.Fields))
		}
		if x.Unique {
			cr.Uniques = append(cr.Uniques, take(uniquesBefore, x.Fields))
		}
	}
	if ids > math.MaxUint16 {
		return errors.New("indexes were changed too often; build the collection anew")
	}
	cr.Next = uint16(ids)
	for _, t := range missing(before, cr.Tuples) {
		removeAll(waste, indexPrefix(nil, rowIndex, cr.ID, t.ID))
	}
	for _, t := range missing(uniquesBefore, cr.Uniques) {
		removeAll(waste, indexPrefix(nil, rowUnique, cr.ID, t.ID))
	}
	return nil
}

// missing gives the tuples of list that are not in of.
func missing(list, of []tuple) (out []tuple) {
	for _, t := range list {
		if !slices.ContainsFunc(of, func(o tuple) bool { return o.ID == t.ID }) {
			out = append(out, t)
		}
	}
	return out
}

// buildStep is how many bytes of rows are written at a time.
const buildStep = 1 << 20

// build writes the rows of indexes that c has and was has not. Nobody reads
// them before the reader's row names them; if that never happens, sweep removes
// them.
func (s *Store) build(ctx context.Context, was, c *collection) error {
	tuples, uniques := missing(c.tuples, was.tuples), missing(c.uniques, was.uniques)
	if len(tuples)+len(uniques) == 0 {
		return nil
	}
	b := s.db.NewIndexedBatch()
	clean := func() {
		for _, t := range tuples {
			removeAll(b, indexPrefix(nil, rowIndex, c.id, t.ID))
		}
		for _, t := range uniques {
			removeAll(b, indexPrefix(nil, rowUnique, c.id, t.ID))
		}
	}
	flush := func() error {
		defer func() { b = s.db.NewIndexedBatch() }()
		if err := s.db.Commit(b, false); err != nil {
			return s.broken(err)
		}
		return nil
	}
	clean()
	raw := make([][]byte, 0, maxFields)
	var values, key []byte
	var at [maxFields]int
	snap := s.db.NewSnapshot()
	defer func() { _ = snap.Close() }()
	err := s.scan(snap, rowKey(nil, rowDoc, c.id), func(k, v []byte) error {
		var e entry
		if err := decodeDoc(v, &e); err != nil || e.dead {
			return err
		}
		e.key = string(k[5:])
		values = appendValues(values[:0], e.body, c.fields, raw)
		offsets(values, &at)
		for i := range tuples {
			key = indexPrefix(key[:0], rowIndex, c.id, tuples[i].ID)
			var ok bool
			if key, ok = appendTuple(key, &tuples[i], values, &at); ok {
				put(b, appendRank(key, e.ts, e.key), nil)
			}
		}
		for i := range uniques {
			row := c.uniqueRow(&uniques[i], values)
			if row == nil {
				continue
			}
			switch owner, err := s.get(b, row); {
			case err == nil:
				return fmt.Errorf("%w: %s and %s have the same %q", store.ErrUnique, owner, e.key, uniques[i].Fields)
			case !errors.Is(err, pebble.ErrNotFound):
				return err
			}
			put(b, row, []byte(e.key))
		}
		if b.Len() < buildStep {
			return nil
		}
		return errors.Join(flush(), ctx.Err())
	})
	if err != nil {
		_ = b.Close()
		b = s.db.NewIndexedBatch()
		clean()
		return errors.Join(err, flush())
	}
	return flush()
}

// swap writes b with the row of r, and puts r in place of the others, whose
// commit must be held. A reader that is nil is none. Rows that nobody looks at
// any more are wasted after that: until then they are what reads see, and if
// the process ends in between, sweep removes them. shape must be held.
func (s *Store) swap(b, waste *pebble.Batch, r *reader, others ...*reader) error {
	for _, o := range others {
		if o == nil {
			continue
		}
		remove(b, append([]byte{rowReader}, o.name...))
		remove(b, rowKey(nil, rowPlace, o.id))
		if r == nil || o.id != r.id {
			removeAll(waste, rowKey(nil, rowLog, o.id))
		}
	}
	if r != nil {
		row, err := r.row().encode()
		if err != nil {
			return err
		}
		put(b, append([]byte{rowReader}, r.name...), row)
		put(b, rowKey(nil, rowPlace, r.id), binary.BigEndian.AppendUint64(nil, r.place))
	}
	if err := s.db.Commit(b, true); err != nil {
		return s.broken(err)
	}
	s.exchange(r, others)
	if waste.Empty() {
		return nil
	}
	if err := s.db.Commit(waste, false); err != nil {
		s.fail(err) // what was asked for is done
	}
	return nil
}

// exchange puts r in place of the others for all to see.
func (s *Store) exchange(r *reader, others []*reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range others {
		if o != nil {
			s.leaveReader(o)
		}
	}
	if r != nil {
		s.enterReader(r)
	}
}

func removeCollection(b *pebble.Batch, c uint32) {
	for _, kind := range []byte{rowDoc, rowIndex, rowUnique, rowDeletion} {
		removeAll(b, rowKey(nil, kind, c))
	}
	remove(b, rowKey(nil, rowState, c))
}

// settle waits until nothing of the reader is being written, so that what is
// removed next stays so. commit must be held.
func (r *reader) settle(ctx context.Context) error {
	if r.frozen == nil {
		return nil
	}
	select {
	case <-r.frozen.done:
		return r.frozen.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Replace implements [store.Docs].
func (s *Store) Replace(ctx context.Context, name, by string) error {
	if name == by {
		return invalid("reader %s cannot replace itself", name)
	}
	if err := s.enterWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	s.shape.Lock()
	defer s.shape.Unlock()
	old, err := s.lockReader(name)
	if err != nil {
		return err
	}
	defer old.commit.Unlock()
	source, err := s.lockReader(by)
	if err != nil {
		return err
	}
	defer source.commit.Unlock()
	if a, b := len(old.cols), len(source.cols); a != b {
		return invalid("reader %s has %d collections, %s has %d", name, a, by, b)
	}
	if err := errors.Join(source.flush(ctx), old.settle(ctx)); err != nil {
		return err
	}
	row := source.row()
	b, waste := s.db.NewBatch(), s.db.NewBatch()
	for i, c := range old.cols {
		row.Collections[i].Name = c.name
		removeCollection(waste, c.id)
	}
	r, err := s.makeReader(name, row)
	if err != nil {
		return err
	}
	r.place = source.place
	for i, c := range source.cols {
		r.cols[i].count, r.cols[i].forgotten = c.count, c.forgotten
	}
	return s.swap(b, waste, r, old, source)
}

// Drop implements [store.Docs].
func (s *Store) Drop(ctx context.Context, name string) error {
	if err := s.enterWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	s.shape.Lock()
	defer s.shape.Unlock()
	old, err := s.lockReader(name)
	if err != nil {
		return nil // there is none
	}
	defer old.commit.Unlock()
	if err := old.settle(ctx); err != nil {
		return err
	}
	b, waste := s.db.NewBatch(), s.db.NewBatch()
	for _, c := range old.cols {
		removeCollection(waste, c.id)
	}
	return s.swap(b, waste, nil, old)
}
