package docstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"promethean/store"
)

// Doc implements [store.Docs].
func (s *Store) Doc(ctx context.Context, name, key string) (store.Doc, error) {
	if err := s.enter(ctx); err != nil {
		return store.Doc{}, err
	}
	defer s.life.RUnlock()
	for {
		c, err := s.find(name)
		if err != nil {
			return store.Doc{}, err
		}
		d, err := c.doc(key)
		// What was not found may have been in a collection that is gone.
		if !errors.Is(err, store.ErrNotFound) || c.current() {
			return d, err
		}
	}
}

// current says whether the collection has not been dropped or replaced.
func (c *collection) current() bool {
	c.r.mu.RLock()
	defer c.r.mu.RUnlock()
	return !c.r.gone
}

func (c *collection) doc(key string) (d store.Doc, err error) {
	e, clock := c.pending(key)
	if e == nil {
		e = c.read.get(key)
	}
	if e != nil && e.dead {
		return d, notFound("document %q of collection %s", key, c.name)
	}
	if e != nil {
		return e.doc(), nil
	}
	v, closer, err := c.r.s.db.Get(append(rowKey(make([]byte, 0, 5+len(key)), rowDoc, c.id), key...))
	if errors.Is(err, pebble.ErrNotFound) {
		return d, notFound("document %q of collection %s", key, c.name)
	}
	if err != nil {
		return d, err
	}
	stored := entry{key: key}
	if err = decodeDoc(v, &stored); err == nil && stored.dead {
		err = notFound("document %q of collection %s", key, c.name)
	}
	if err == nil {
		d = stored.doc()
		stored.body, stored.values = slices.Clone(d.Body), nil
		c.keep(&stored, clock)
	}
	return d, errors.Join(err, closer.Close())
}

// pending finds a document that was committed lately, and says which commit was
// the last.
func (c *collection) pending(key string) (e *entry, clock uint64) {
	c.r.mu.RLock()
	defer c.r.mu.RUnlock()
	if e = c.r.active.docs[c.slot][key]; e == nil && c.r.frozen != nil {
		e = c.r.frozen.docs[c.slot][key]
	}
	return e, c.r.clock
}

// moment is a collection as it is at one moment: what is in the database, and
// above it what is not there yet.
type moment struct {
	*session
	c      *collection
	clock  uint64
	active *overlay // nil if it had nothing of the collection
	frozen *overlay // nil if it is in the database
	// picked is what of the overlays was asked for.
	picked    []*entry
	forgotten uint64
}

// look takes a moment, with those documents of the overlays that want accepts.
func (s *Store) look(ctx context.Context, name string, want func(c *collection) (func(*entry) bool, error)) (*moment, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	for {
		c, err := s.find(name)
		if err != nil {
			return nil, err
		}
		accept, err := want(c)
		if err != nil {
			return nil, err
		}
		if m := c.look(accept); m != nil {
			return m, nil
		}
	}
}

// look gives nil if the collection is gone.
func (c *collection) look(accept func(*entry) bool) *moment {
	r := c.r
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.gone {
		return nil
	}
	m := &moment{c: c, clock: r.clock, forgotten: c.forgotten}
	newest := r.active.docs[c.slot]
	if len(newest) > 0 {
		m.active = r.active
	}
	if f := r.frozen; f != nil && !f.flushed && len(f.docs[c.slot]) > 0 {
		m.frozen = f
		for key, e := range f.docs[c.slot] {
			if newest[key] == nil && accept(e) {
				m.picked = append(m.picked, e)
			}
		}
	}
	for _, e := range newest {
		if accept(e) {
			m.picked = append(m.picked, e)
		}
	}
	m.session = r.s.newSession()
	return m
}

// covered says whether the overlays had something of the key at the moment, so
// that what the database has does not count.
func (m *moment) covered(key []byte) bool {
	if m.frozen != nil && m.frozen.docs[m.c.slot][string(key)] != nil {
		return true
	}
	if m.active == nil {
		return false
	}
	m.c.r.mu.RLock()
	e := m.active.docs[m.c.slot][string(key)]
	m.c.r.mu.RUnlock()
	return e != nil && e.since <= m.clock
}

// fetch reads a document from the database.
func (m *moment) fetch(key []byte) (d store.Doc, err error) {
	v, closer, err := m.snap.Get(append(rowKey(make([]byte, 0, 5+len(key)), rowDoc, m.c.id), key...))
	if err != nil {
		if errors.Is(err, pebble.ErrNotFound) {
			err = m.c.damaged(fmt.Sprintf("document %q is in an index and nowhere else", key))
		}
		return d, err
	}
	e := entry{key: string(key)}
	if err = decodeDoc(v, &e); err == nil {
		d = e.doc()
	}
	return d, errors.Join(err, closer.Close())
}

func (c *collection) damaged(detail string) error {
	return &store.CorruptError{File: c.r.s.dir, Detail: "collection " + c.name + ": " + detail}
}

// List implements [store.Docs].
func (s *Store) List(ctx context.Context, name string, q store.DocQuery) iter.Seq2[store.Doc, error] {
	return func(yield func(store.Doc, error) bool) {
		l, err := s.openList(ctx, name, q)
		if err != nil {
			yield(store.Doc{}, err)
			return
		}
		defer func() { _ = l.m.end() }()
		drain(ctx, l.m.session, l.fill, yield)
	}
}

// drain yields what fill gives, chunk by chunk.
func drain(ctx context.Context, x *session, fill func(ctx context.Context) ([]store.Doc, bool, error), yield func(store.Doc, error) bool) {
	for more := true; more; {
		var docs []store.Doc
		err := ctx.Err()
		if err == nil {
			err = x.step(func() (err error) {
				docs, more, err = fill(ctx)
				return err
			})
		}
		for _, d := range docs {
			if !yield(d, nil) {
				return
			}
		}
		if err != nil {
			yield(store.Doc{}, err)
			return
		}
	}
}

// list is a list under way.
type list struct {
	m       *moment
	query   *query
	rows    stream
	begun   bool
	there   bool // rows stands on a document
	pending []*entry
	skip    int
	left    int // -1: no limit
	docs    []store.Doc
}

func (s *Store) openList(ctx context.Context, name string, q store.DocQuery) (*list, error) {
	if q.Offset < 0 || q.Limit < 0 {
		return nil, invalid("offset %d, limit %d", q.Offset, q.Limit)
	}
	l := &list{skip: q.Offset, left: q.Limit}
	if q.Limit == 0 {
		l.left = -1
	}
	var err error
	l.m, err = s.look(ctx, name, func(c *collection) (func(*entry) bool, error) {
		var err error
		l.query, err = c.plan(q.Filter)
		return func(e *entry) bool { return !e.dead && l.query.matches(e) }, err
	})
	if err != nil {
		return nil, err
	}
	if l.pending = l.m.picked; q.Limit > 0 {
		l.pending = least(l.pending, q.Offset+q.Limit, compareRank)
	}
	slices.SortFunc(l.pending, compareRank)
	err = l.m.step(func() (err error) {
		l.rows, err = l.query.open(l.m.session)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, l.m.end())
	}
	return l, nil
}

// compareRank orders entries as listings do.
func compareRank(a, b *entry) int {
	return cmp.Or(cmp.Compare(b.ts, a.ts), cmp.Compare(a.key, b.key))
}

// least gives the n least of a list, in some order.
func least[T any](list []T, n int, compare func(a, b T) int) []T {
	if n < 0 || len(list) <= n { // the sum of offset and limit may be too large for an int
		return list
	}
	kept := list[:0]
	for _, x := range list {
		if len(kept) >= 2*n+64 {
			slices.SortFunc(kept, compare)
			kept = kept[:min(n, len(kept))]
		}
		kept = append(kept, x)
	}
	slices.SortFunc(kept, compare)
	return kept[:min(n, len(kept))]
}

const (
	chunkDocs  = 256
	chunkBytes = 256 << 10
)

// fill gives the next documents.
func (l *list) fill(ctx context.Context) (docs []store.Doc, more bool, err error) {
	if !l.begun && l.rows != nil {
		l.there = l.rows.seek(nil)
		l.begun = true
	}
	docs = l.docs[:0]
	for size, n := 0, 0; len(docs) < chunkDocs && size < chunkBytes; n++ {
		if n%1024 == 1023 && ctx.Err() != nil {
			return docs, false, ctx.Err()
		}
		if l.left == 0 {
			return docs, false, nil
		}
		if l.there && l.m.covered(l.rows.rank()[8:]) {
			l.there = l.rows.next()
			continue
		}
		if !l.there {
			if l.rows != nil && l.rows.err() != nil {
				return docs, false, l.rows.err()
			}
			if len(l.pending) == 0 {
				return docs, false, nil
			}
		}
		d, got, err := l.take()
		if err != nil {
			return docs, false, err
		}
		if !got {
			continue
		}
		docs = append(docs, d)
		size += len(d.Body)
		l.left-- // from -1 on it never comes to 0
	}
	l.docs = docs
	return docs, true, nil
}

// take takes the next document from where it is, or skips it.
func (l *list) take() (d store.Doc, got bool, err error) {
	if len(l.pending) > 0 {
		e := l.pending[0]
		first := !l.there
		if l.there {
			ts, key := splitRank(l.rows.rank())
			first = cmp.Or(cmp.Compare(ts, e.ts), cmp.Compare(e.key, string(key))) < 0
		}
		if first {
			l.pending = l.pending[1:]
			if l.skip > 0 {
				l.skip--
				return d, false, nil
			}
			return e.doc(), true, nil
		}
	}
	if l.skip > 0 {
		l.skip--
	} else if d, err = l.m.fetch(l.rows.rank()[8:]); err != nil {
		return d, false, err
	} else {
		got = true
	}
	l.there = l.rows.next()
	return d, got, nil
}

// query is a filter, planned.
type query struct {
	c      *collection
	none   bool // nothing can match
	fields []fieldFilter
}

type fieldFilter struct {
	at     int // of the field
	values [][]byte
}

// maxCombined is how many combinations of values are looked up in an index of
// several fields; beyond that the fields are looked up one by one.
const maxCombined = 32

// plan reads a filter.
func (c *collection) plan(filter map[string][]jsonValue) (*query, error) {
	q := &query{c: c}
	for name, values := range filter {
		f := fieldFilter{at: slices.Index(c.fields, name)}
		if f.at < 0 {
			return nil, invalid("collection %s has no index on the field %q; those it has are on %q", c.name, name, c.fields)
		}
		for _, v := range values {
			enc, err := encodeFilter(v)
			if err != nil {
				return nil, fmt.Errorf("value of the field %q: %w", name, err)
			}
			if !slices.ContainsFunc(f.values, func(o []byte) bool { return bytes.Equal(o, enc) }) {
				f.values = append(f.values, enc)
			}
		}
		q.none = q.none || len(f.values) == 0
		q.fields = append(q.fields, f)
	}
	slices.SortFunc(q.fields, func(a, b fieldFilter) int { return cmp.Compare(a.at, b.at) })
	return q, nil
}

// matches says whether an entry in memory is one of those that are looked for.
func (q *query) matches(e *entry) bool {
	if q.none {
		return false
	}
	if len(q.fields) == 0 {
		return true
	}
	var at [maxFields]int
	offsets(e.values, &at)
	for _, f := range q.fields {
		i := at[f.at]
		v := e.values[i : i+1+int(e.values[i])]
		if !slices.ContainsFunc(f.values, func(o []byte) bool { return bytes.Equal(o, v) }) {
			return false
		}
	}
	return true
}

// open gives the rows that match; nil if there can be none.
func (q *query) open(x *session) (stream, error) {
	if q.none {
		return nil, nil
	}
	left := slices.Clone(q.fields)
	var parts []stream
	// Those over most fields come first: they are the most selective.
	tuples := slices.Clone(q.c.tuples)
	slices.SortStableFunc(tuples, func(a, b tuple) int { return cmp.Compare(len(b.at), len(a.at)) })
	for i := range tuples {
		t := &tuples[i]
		used := q.use(t, left)
		if used == nil && (len(t.at) > 0 || len(parts) > 0) {
			continue
		}
		s, err := q.streamOf(x, t, used)
		if err != nil {
			return nil, err
		}
		parts = append(parts, s)
		left = slices.DeleteFunc(left, func(f fieldFilter) bool { return slices.Contains(t.at, f.at) })
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return &both{parts: parts}, nil
}

// use gives the filters on the fields of a tuple, in its order, nil if one of
// them is missing.
func (q *query) use(t *tuple, left []fieldFilter) (used []fieldFilter) {
	n := 1
	for _, at := range t.at {
		i := slices.IndexFunc(left, func(f fieldFilter) bool { return f.at == at })
		if i < 0 {
			return nil
		}
		used = append(used, left[i])
		n *= len(left[i].values)
		if n > maxCombined && len(t.at) > 1 {
			return nil
		}
	}
	return used
}

// streamOf opens the rows of a tuple with the values looked for.
func (q *query) streamOf(x *session, t *tuple, used []fieldFilter) (stream, error) {
	prefixes := [][]byte{indexPrefix(nil, rowIndex, q.c.id, t.ID)}
	for _, f := range used {
		var longer [][]byte
		for _, p := range prefixes {
			for _, v := range f.values {
				longer = append(longer, append(slices.Clip(p), v...))
			}
		}
		prefixes = longer
	}
	var parts []stream
	for _, p := range prefixes {
		l, err := newLeaf(x, p)
		if err != nil {
			return nil, err
		}
		parts = append(parts, l)
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return &union{parts: parts}, nil
}
