package docstore

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"promethean/store"
	"promethean/store/internal/document"
)

// reader is who writes some collections. What it has committed and is not in
// the database yet is in its overlays. Its shape does not change: whatever
// changes it makes another reader.
type reader struct {
	s    *Store
	name string
	id   uint32
	meta []byte
	cols []*collection

	// commit is held by whoever changes documents or the overlays.
	commit sync.Mutex
	stage  stage  // of the commit that is under way
	logged uint64 // number of the last commit

	// mu guards what follows; what changes it holds commit too.
	mu     sync.RWMutex
	gone   bool // another one is in its place, or none
	place  uint64
	clock  uint64 // counts commits
	active *overlay
	// frozen is the one before. It stays when it is in the database too, as a
	// cache of what was written last.
	frozen *overlay
}

// collection is one collection of a reader.
type collection struct {
	r       *reader
	name    string
	id      uint32
	slot    int // among those of the reader
	next    uint16
	indexes []store.Index
	fields  []string // that some index names
	tuples  []tuple
	uniques []tuple

	read      cache
	count     int64  // under r.mu
	forgotten uint64 // under r.mu
}

// entry is a document or a deletion in memory. It is never changed once others
// see it.
type entry struct {
	key        string
	ts         int64
	seq        uint64
	version    int64
	hasVersion bool
	dead       bool
	body       []byte
	values     []byte // of the collection's fields, encoded
	since      uint64 // the commit that first touched the key in this overlay

	// What the database has once the overlay before is in it.
	base base
}

// base is what has to be known of a row to remove what belongs to it.
type base struct {
	there, dead bool
	ts          int64
	seq         uint64
	values      []byte
}

func (e *entry) asBase() base {
	return base{there: true, dead: e.dead, ts: e.ts, seq: e.seq, values: e.values}
}

// doc gives the document to a caller.
func (e *entry) doc() store.Doc {
	d := store.Doc{Key: e.key, TS: e.ts, Seq: e.seq}
	if e.hasVersion {
		v := e.version
		d.Version = &v
	}
	if !e.dead {
		d.Body = slices.Clone(e.body)
	}
	return d
}

// overlay is what was committed since the last flush.
type overlay struct {
	docs  []map[string]*entry // by slot
	uniq  map[string]string   // row of a unique index → key; "" if it is free
	bytes int
	log   int       // bytes of its commits in the database
	dirty bool      // the place has moved
	began time.Time // the first commit

	// Set when it is frozen.
	place  uint64
	logged uint64
	counts []int64

	done    chan struct{} // closed once it is in the database, or err is set
	err     error
	flushed bool // under the reader's mu
}

func newOverlay(slots int) *overlay {
	o := &overlay{uniq: make(map[string]string), done: make(chan struct{})}
	for range slots {
		o.docs = append(o.docs, make(map[string]*entry))
	}
	return o
}

// makeReader makes a reader of its row.
func (s *Store) makeReader(name string, row *readerRow) (*reader, error) {
	r := &reader{s: s, name: name, id: row.ID, meta: row.Meta}
	for i := range row.Collections {
		c := &row.Collections[i]
		r.cols = append(r.cols, &collection{
			r: r, name: c.Name, id: c.ID, slot: i, next: c.Next, indexes: c.Indexes,
			fields: document.Fields(c.Indexes), tuples: slices.Clone(c.Tuples), uniques: slices.Clone(c.Uniques),
		})
		if err := r.cols[i].locate(); err != nil {
			return nil, err
		}
	}
	r.active = newOverlay(len(r.cols))
	return r, nil
}

// enterReader makes a reader known by its names. mu must be held, or the store
// not be open yet.
func (s *Store) enterReader(r *reader) {
	s.readers[r.name] = r
	for _, c := range r.cols {
		s.collections[c.name] = c
	}
}

// leaveReader is the opposite.
func (s *Store) leaveReader(r *reader) {
	delete(s.readers, r.name)
	for _, c := range r.cols {
		delete(s.collections, c.name)
	}
	r.mu.Lock()
	r.gone = true
	r.mu.Unlock()
	r.unkeepAll()
}

// locate finds the fields of tuples among those of the collection.
func (c *collection) locate() error {
	for _, list := range [][]tuple{c.tuples, c.uniques} {
		for i := range list {
			list[i].at = make([]int, 0, len(list[i].Fields))
			for _, f := range list[i].Fields {
				at := slices.Index(c.fields, f)
				if at < 0 {
					return errRow
				}
				list[i].at = append(list[i].at, at)
			}
		}
	}
	return nil
}

func (r *reader) row() *readerRow {
	row := &readerRow{ID: r.id, Meta: r.meta}
	for _, c := range r.cols {
		row.Collections = append(row.Collections, collectionRow{
			Name: c.name, ID: c.id, Next: c.next, Indexes: c.indexes, Tuples: c.tuples, Uniques: c.uniques,
		})
	}
	return row
}

// find gives a collection by name.
func (s *Store) find(name string) (*collection, error) {
	s.mu.RLock()
	c := s.collections[name]
	s.mu.RUnlock()
	if c == nil {
		return nil, notFound("collection %s", name)
	}
	return c, nil
}

// lockReader gives a reader by name with commit held.
func (s *Store) lockReader(name string) (*reader, error) {
	for {
		s.mu.RLock()
		r := s.readers[name]
		s.mu.RUnlock()
		if r == nil {
			return nil, notFound("reader %s", name)
		}
		r.commit.Lock()
		if !r.gone {
			return r, nil
		}
		r.commit.Unlock()
	}
}

// Reader implements [store.Docs].
func (s *Store) Reader(ctx context.Context, name string) (store.Reader, error) {
	if err := s.enter(ctx); err != nil {
		return store.Reader{}, err
	}
	defer s.life.RUnlock()
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.readers[name]
	if r == nil {
		return store.Reader{}, notFound("reader %s", name)
	}
	return r.describe(), nil
}

// describe gives a reader to a caller.
func (r *reader) describe() store.Reader {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := store.Reader{Name: r.name, Seq: r.place, Meta: slices.Clone(r.meta)}
	for _, c := range r.cols {
		out.Collections = append(out.Collections, store.Collection{Name: c.name, Indexes: cloneIndexes(c.indexes)})
	}
	return out
}

func cloneIndexes(list []store.Index) (out []store.Index) {
	for _, x := range list {
		out = append(out, store.Index{Fields: slices.Clone(x.Fields), Unique: x.Unique})
	}
	return out
}

// Count implements [store.Docs].
func (s *Store) Count(ctx context.Context, name string) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.life.RUnlock()
	c, err := s.find(name)
	if err != nil {
		return 0, err
	}
	c.r.mu.RLock()
	defer c.r.mu.RUnlock()
	return c.count, nil
}

// names gives all readers in order.
func (s *Store) names() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.readers))
}

// Readers implements [store.Docs].
func (s *Store) Readers(ctx context.Context) iter.Seq2[store.Reader, error] {
	return func(yield func(store.Reader, error) bool) {
		if err := s.enter(ctx); err != nil {
			yield(store.Reader{}, err)
			return
		}
		names := s.names()
		s.life.RUnlock()
		for _, name := range names {
			r, err := s.Reader(ctx, name)
			if errors.Is(err, store.ErrNotFound) {
				continue // dropped meanwhile
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}
