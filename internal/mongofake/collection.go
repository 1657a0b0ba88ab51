package mongofake

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// collection holds documents in the order in which they came.
type collection struct {
	ns      namespace
	uuid    bson.Binary
	images  bool // post images are kept for change streams
	byID    map[string]*record
	order   []*record
	dead    int // records in order that hold nothing any more
	indexes []*index
}

// namespace names a collection.
type namespace struct{ db, coll string }

func (n namespace) String() string { return n.db + "." + n.coll }

// record is the document with one _id, through time. A transaction that has
// written it owns it until its end.
type record struct {
	key      string
	versions []version // by time; the last is the one that counts
	owner    *txn
	pending  bson.Raw // what the owner wrote; nil if it deleted it
}

// version is a document from a cluster time on; nil if there is none.
type version struct {
	at  bson.Timestamp
	doc bson.Raw
}

// index is kept for uniqueness alone: reads look at every document.
type index struct {
	name    string
	keys    bson.Raw
	paths   [][]string
	unique  bool
	sparse  bool
	only    predicate // of a partial index
	partial bson.Raw
	held    map[string]*record // who has a key, of those that are unique
}

func newCollection(ns namespace) *collection {
	c := &collection{ns: ns, byID: make(map[string]*record), uuid: newUUID()}
	c.indexes = []*index{{name: "_id_", keys: encode(bson.D{{Key: "_id", Value: int32(1)}}), paths: [][]string{{"_id"}}}}
	return c
}

func newUUID() bson.Binary {
	a, b := bson.NewObjectID(), bson.NewObjectID()
	id := append(slices.Clone(a[:]), b[8:]...)
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id}
}

// latest is the document as it is for everybody.
func (r *record) latest() bson.Raw {
	if len(r.versions) == 0 {
		return nil
	}
	return r.versions[len(r.versions)-1].doc
}

// seen is the document as a transaction sees it, or everybody if there is none.
func (r *record) seen(t *txn) bson.Raw {
	if t == nil {
		return r.latest()
	}
	if r.owner == t {
		return r.pending
	}
	for _, v := range slices.Backward(r.versions) {
		if !v.at.After(t.snapshot) {
			return v.doc
		}
	}
	return nil
}

// scan gives the records that a filter means, with their documents.
func (c *collection) scan(t *txn, filter bson.Raw, visit func(*record, bson.Raw) bool) error {
	is, err := compileFilter(filter)
	if err != nil || c == nil {
		return err
	}
	if id, ok := pinned(filter); ok {
		if r := c.byID[identity(id)]; r != nil {
			if doc := r.seen(t); doc != nil && is(doc) {
				visit(r, doc)
			}
		}
		return nil
	}
	for _, r := range c.order {
		if doc := r.seen(t); doc != nil && is(doc) && !visit(r, doc) {
			return nil
		}
	}
	return nil
}

// find gives the documents that a filter means, in an order.
func (c *collection) find(t *txn, filter, order bson.Raw, limit int) ([]bson.Raw, error) {
	less, err := sorter(order)
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	err = c.scan(t, filter, func(_ *record, doc bson.Raw) bool {
		docs = append(docs, doc)
		return less != nil || limit == 0 || len(docs) < limit
	})
	if err != nil {
		return nil, err
	}
	if less != nil {
		slices.SortStableFunc(docs, less)
	}
	if limit > 0 && len(docs) > limit {
		docs = docs[:limit]
	}
	return docs, nil
}

// locked says that a write has to wait for the end of a transaction.
type locked struct{ by *txn }

// Error implements error.
func (locked) Error() string { return "a transaction holds the document" }

// mayWrite says whether a record is free for a writer. A transaction that comes
// second has a conflict, also if the first is over by now but came after its
// snapshot; who writes outside of one waits.
func (r *record) mayWrite(t *txn) error {
	if r.owner != nil && r.owner != t {
		if t == nil {
			return locked{by: r.owner}
		}
		return conflict()
	}
	if n := len(r.versions); t != nil && r.owner == nil && n > 0 && r.versions[n-1].at.After(t.snapshot) {
		return conflict()
	}
	return nil
}

func conflict() error {
	return failf(codeWriteConflict, "Caused by :: Write conflict during plan execution and yielding is disabled. :: Please retry your operation or multi-document transaction.")
}

// put writes a document, or removes it if there is none, as a transaction or at
// once. The record may be new.
func (s *Server) put(c *collection, t *txn, key string, e entry) error {
	r := c.byID[key]
	if r != nil {
		if err := r.mayWrite(t); err != nil {
			return err
		}
	}
	if e.after != nil {
		if len(e.after) > s.o.MaxDocument {
			return failf(codeTooLarge, "BSONObj size: %d is invalid. Size must be between 0 and %d", len(e.after), s.o.MaxDocument)
		}
		if err := c.admit(t, r, e.after); err != nil {
			return err
		}
	}
	if r == nil {
		r = &record{key: key}
		c.byID[key] = r
		c.order = append(c.order, r)
	}
	e.ns, e.images = c.ns, c.images
	c.claim(r, e.after)
	if t != nil {
		if r.owner == nil {
			r.owner = t
			t.touched = append(t.touched, touched{c: c, r: r})
		}
		r.pending = e.after
		t.entries = append(t.entries, e)
		return nil
	}
	e.at = s.tick()
	s.store(c, r, e.after, e.at)
	s.log(e)
	return nil
}

// store makes a document that which counts, from a time on.
func (s *Server) store(c *collection, r *record, doc bson.Raw, at bson.Timestamp) {
	was := r.latest()
	if oldest, any := s.oldestSnapshot(); !any {
		r.versions = r.versions[:0]
	} else {
		// What the oldest snapshot sees, and all after it, is still needed.
		keep := 0
		for i, v := range r.versions {
			if !v.at.After(oldest) {
				keep = i
			}
		}
		r.versions = slices.Delete(r.versions, 0, keep)
	}
	r.versions = append(r.versions, version{at: at, doc: doc})
	c.release(r, was)
	if doc == nil {
		c.dead++
		c.sweep(s)
	}
}

// sweep forgets deleted records once they are many and nobody can see them.
func (c *collection) sweep(s *Server) {
	if _, any := s.oldestSnapshot(); any || c.dead < 64 || c.dead < len(c.order)/2 {
		return
	}
	c.order = slices.DeleteFunc(c.order, func(r *record) bool {
		gone := r.owner == nil && r.latest() == nil
		if gone {
			delete(c.byID, r.key)
		}
		return gone
	})
	c.dead = 0
}

// undefined is how an index holds an array without elements.
const undefined = "undefined"

// keysOf gives the texts under which an index holds a document: one, or one for
// each element of an array.
func (x *index) keysOf(doc bson.Raw) ([]string, error) {
	if doc == nil || x.only != nil && !x.only(doc) {
		return nil, nil
	}
	keys := []string{""}
	present, several := false, false
	for _, path := range x.paths {
		values, some := indexed(doc, path)
		present = present || some
		if len(values) > 1 && several {
			return nil, failf(codeBadValue, "the fake does not know unique indexes over several arrays (%s)", x.name)
		}
		several = several || len(values) > 1
		made := make([]string, 0, len(keys)*len(values))
		for _, key := range keys {
			for _, v := range values {
				made = append(made, string(appendPart([]byte(key), v)))
			}
		}
		keys = made
	}
	if !present && x.sparse {
		return nil, nil
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// indexed gives what an index sees at a path, and whether anything stands there.
func indexed(doc bson.Raw, path []string) (values []string, some bool) {
	f := lookup(doc, path)
	for _, v := range f.values {
		array, ok := v.ArrayOK()
		if !ok {
			values = append(values, identity(v))
			continue
		}
		list, _ := array.Values()
		for _, x := range list {
			values = append(values, identity(x))
		}
		if len(list) == 0 {
			values = append(values, undefined)
		}
	}
	if len(values) == 0 {
		if around := lookup(doc, path[:1]); len(path) > 1 && len(around.values) == 1 && around.values[0].Type == bson.TypeArray && !f.missing {
			return []string{undefined}, false // an array without elements on the way
		}
		return []string{identity(null)}, false
	}
	if f.missing {
		values = append(values, identity(null))
	}
	return values, true
}

// admit refuses a document that a unique index has already.
func (c *collection) admit(t *txn, r *record, doc bson.Raw) error {
	for _, x := range c.indexes {
		if !x.unique {
			continue
		}
		keys, err := x.keysOf(doc)
		if err != nil {
			return err
		}
		for _, key := range keys {
			other := x.held[key]
			if other == nil || other == r {
				continue
			}
			if other.owner != nil && other.owner != t {
				if t == nil {
					return locked{by: other.owner}
				}
				return conflict()
			}
			has := other.latest()
			if other.owner != nil {
				has = other.pending
			}
			if taken, _ := x.keysOf(has); slices.Contains(taken, key) {
				return duplicate(c.ns, x, doc)
			}
		}
	}
	return nil
}

// claim notes that a record has the keys of a document.
func (c *collection) claim(r *record, doc bson.Raw) {
	for _, x := range c.indexes {
		if x.unique {
			x.claim(r, doc)
		}
	}
}

func (x *index) claim(r *record, doc bson.Raw) {
	keys, _ := x.keysOf(doc) // it was admitted
	for _, key := range keys {
		x.held[key] = r
	}
}

// release gives up the keys that a record no longer has.
func (c *collection) release(r *record, was bson.Raw) {
	for _, x := range c.indexes {
		if !x.unique {
			continue
		}
		old, _ := x.keysOf(was)
		now, _ := x.keysOf(r.latest())
		for _, key := range old {
			if !slices.Contains(now, key) && x.held[key] == r {
				delete(x.held, key)
			}
		}
	}
}

// rebuild finds out again who holds the keys, after a transaction was aborted.
func (c *collection) rebuild() {
	for _, x := range c.indexes {
		if !x.unique {
			continue
		}
		clear(x.held)
		for _, r := range c.order {
			doc := r.latest()
			if r.owner != nil {
				doc = r.pending
			}
			x.claim(r, doc)
		}
	}
}

// duplicate is the error of a key that is taken.
func duplicate(ns namespace, x *index, doc bson.Raw) error {
	var values bson.D
	for _, path := range x.paths {
		v := bson.RawValue{Type: bson.TypeNull}
		if f := lookup(doc, path); len(f.values) > 0 {
			v = f.values[0]
		}
		values = append(values, bson.E{Key: strings.Join(path, "."), Value: v})
	}
	shown := encode(values)
	f := failf(codeDuplicateKey, "E11000 duplicate key error collection: %s index: %s dup key: %s", ns, x.name, shown)
	f.more = bson.D{{Key: "keyPattern", Value: x.keys}, {Key: "keyValue", Value: shown}}
	return f
}
