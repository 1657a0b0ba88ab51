package mongofake

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// statement does one write, again and again while a transaction is in its way.
func (c *call) statement(do func() error) error {
	deadline, err := c.deadline()
	if err != nil {
		return err
	}
	for {
		err := do()
		var held locked
		if !errors.As(err, &held) {
			return err
		}
		if c.s.expired(held.by) {
			c.s.abort(held.by)
			continue
		}
		until := held.by.began.Add(c.s.o.TransactionLifetime)
		if !deadline.IsZero() && deadline.Before(until) {
			until = deadline
		}
		if _, err := c.wait(until); err != nil {
			return err
		}
		if c.s.stepped != 0 {
			return c.s.notPrimary(false)
		}
		if !deadline.IsZero() && !time.Now().Before(deadline) {
			return failf(codeMaxTimeMSExpired, "operation exceeded time limit")
		}
	}
}

// made gives a collection, and makes it if need be.
func (s *Server) made(ns namespace) *collection {
	if s.colls[ns] == nil {
		s.colls[ns] = newCollection(ns)
	}
	return s.colls[ns]
}

// writes does the statements of a command and tells what became of them.
type writes struct {
	n, modified int
	upserted    bson.A
	errs        bson.A
}

// each does the statements in order. One that fails ends an ordered command.
func (c *call) each(list []bson.Raw, do func(i int, stmt bson.Raw) error) (*failure, bson.A) {
	ordered := !c.has("ordered") || truthy(c.body.Lookup("ordered"))
	var errs bson.A
	for i, stmt := range list {
		err := c.statement(func() error {
			if c.f != nil && c.f.Statement == i+1 {
				return c.f.failure()
			}
			return do(i, stmt)
		})
		if err == nil {
			continue
		}
		var f *failure
		if !errors.As(err, &f) {
			f = failf(8, "%v", err)
		}
		// What a client may try again is the error of the whole command.
		if slices.Contains(transientCodes(), f.code) {
			return f, errs
		}
		d := bson.D{{Key: "index", Value: int32(i)}, {Key: "code", Value: f.code}, {Key: "errmsg", Value: f.message}}
		errs = append(errs, append(d, f.more...))
		if ordered || c.txn != nil {
			break
		}
	}
	return nil, errs
}

func (w *writes) reply() bson.D {
	d := bson.D{{Key: "n", Value: int32(w.n)}}
	if w.upserted != nil {
		d = append(d, bson.E{Key: "upserted", Value: w.upserted})
	}
	if w.errs != nil {
		d = append(d, bson.E{Key: "writeErrors", Value: w.errs})
	}
	return d
}

func insert(c *call) (bson.D, error) {
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	docs, err := c.documents("documents")
	if err != nil {
		return nil, err
	}
	if len(docs) == 0 {
		return nil, failf(codeInvalidOptions, "Write batch sizes must be between 1 and 100000. Got 0 operations.")
	}
	coll := c.s.made(ns)
	var w writes
	f, errs := c.each(docs, func(_ int, doc bson.Raw) error {
		if err := c.s.insertDoc(coll, c.txn, withID(doc)); err != nil {
			return err
		}
		w.n++
		return nil
	})
	if f != nil {
		return nil, f
	}
	w.errs = errs
	return w.reply(), nil
}

// insertDoc adds a document whose _id is not there yet.
func (s *Server) insertDoc(coll *collection, t *txn, doc bson.Raw) error {
	id := doc.Lookup("_id")
	if id.Type == bson.TypeArray || id.Type == bson.TypeRegex || id.Type == bson.TypeUndefined {
		return failf(53, "The '_id' value cannot be of type %s", id.Type)
	}
	key := identity(id)
	if r := coll.byID[key]; r != nil {
		if err := r.mayWrite(t); err != nil {
			return err
		}
		if r.seen(t) != nil {
			return duplicate(coll.ns, coll.indexes[0], doc)
		}
	}
	return s.put(coll, t, key, entry{op: "insert", id: doc.Lookup("_id"), after: doc})
}

// only refuses fields of a statement that are not known.
func only(stmt bson.Raw, what string, known ...string) error {
	elements, err := stmt.Elements()
	if err != nil {
		return failf(codeFailedToParse, "%s: %v", what, err)
	}
	for _, e := range elements {
		if !slices.Contains(known, e.Key()) {
			return failf(codeUnknownField, "BSON field '%s.%s' is an unknown field (the fake does not know it)", what, e.Key())
		}
	}
	return nil
}

func update(c *call) (bson.D, error) {
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	list, err := c.documents("updates")
	if err != nil {
		return nil, err
	}
	var w writes
	f, errs := c.each(list, func(i int, stmt bson.Raw) error {
		if err := only(stmt, "update.updates", "q", "u", "multi", "upsert", "hint"); err != nil {
			return err
		}
		filter, ok := stmt.Lookup("q").DocumentOK()
		if !ok {
			return failf(codeTypeMismatch, "BSON field 'update.updates.q' must be an object")
		}
		ch, err := compileUpdate(stmt.Lookup("u"))
		if err != nil {
			return err
		}
		u := updating{c: c, ns: ns, filter: filter, change: ch}
		if truthy(stmt.Lookup("multi")) {
			if ch.replaces() {
				return failf(codeFailedToParse, "multi update is not supported for replacement-style update")
			}
			err = u.all()
		} else {
			err = u.one(nil)
		}
		if err != nil {
			return err
		}
		if u.matched == 0 && truthy(stmt.Lookup("upsert")) {
			doc, err := u.upsert()
			if err != nil {
				return err
			}
			u.matched++
			w.upserted = append(w.upserted, bson.D{{Key: "index", Value: int32(i)}, {Key: "_id", Value: doc.Lookup("_id")}})
		}
		w.n += u.matched
		w.modified += u.modified
		return nil
	})
	if f != nil {
		return nil, f
	}
	w.errs = errs
	return append(w.reply(), bson.E{Key: "nModified", Value: int32(w.modified)}), nil
}

// updating is one update statement.
type updating struct {
	c                 *call
	ns                namespace
	filter            bson.Raw
	change            change
	matched, modified int
	before, after     bson.Raw // of the one that was updated
}

// one updates the first document in an order that the filter means.
func (u *updating) one(order bson.Raw) error {
	docs, err := u.c.s.colls[u.ns].find(u.c.txn, u.filter, order, 1)
	if err != nil || len(docs) == 0 {
		return err
	}
	return u.write(docs[0])
}

// all updates every document. It gives up the lock when it has to wait for a
// transaction, and looks again whether the document is still meant.
func (u *updating) all() error {
	is, err := compileFilter(u.filter)
	if err != nil {
		return err
	}
	coll := u.c.s.colls[u.ns]
	var list []*record
	if err := coll.scan(u.c.txn, u.filter, func(r *record, _ bson.Raw) bool {
		list = append(list, r)
		return true
	}); err != nil {
		return err
	}
	for _, r := range list {
		if err := u.c.statement(func() error {
			doc := r.seen(u.c.txn)
			if doc == nil || !is(doc) {
				return nil
			}
			return u.write(doc)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (u *updating) write(doc bson.Raw) error {
	next, err := u.change.apply(doc, false, time.Now())
	if err != nil {
		return err
	}
	u.before, u.after = doc, next
	if bytes.Equal(doc, next) {
		u.matched++
		return nil
	}
	op := "update"
	if u.change.replaces() {
		op = "replace"
	}
	id := doc.Lookup("_id")
	if err := u.c.s.put(u.c.s.made(u.ns), u.c.txn, identity(id), entry{op: op, id: id, before: doc, after: next}); err != nil {
		return err
	}
	u.matched++
	u.modified++
	return nil
}

// upsert inserts the document that the filter and the update describe.
func (u *updating) upsert() (bson.Raw, error) {
	d, err := seed(u.filter, nil)
	if err != nil {
		return nil, err
	}
	base := encode(d)
	if u.change.replaces() { // only the _id of the filter counts
		base = encode(nil)
		if id, ok := pinned(u.filter); ok {
			base = encode(bson.D{{Key: "_id", Value: id}})
		}
	}
	doc, err := u.change.apply(base, true, time.Now())
	if err != nil {
		return nil, err
	}
	doc = withID(doc)
	return doc, u.c.s.insertDoc(u.c.s.made(u.ns), u.c.txn, doc)
}

func remove(c *call) (bson.D, error) {
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	list, err := c.documents("deletes")
	if err != nil {
		return nil, err
	}
	var w writes
	f, errs := c.each(list, func(_ int, stmt bson.Raw) error {
		if err := only(stmt, "delete.deletes", "q", "limit", "hint"); err != nil {
			return err
		}
		filter, ok := stmt.Lookup("q").DocumentOK()
		if !ok {
			return failf(codeTypeMismatch, "BSON field 'delete.deletes.q' must be an object")
		}
		n, err := c.removeAll(ns, filter, truthy(stmt.Lookup("limit")))
		w.n += n
		return err
	})
	if f != nil {
		return nil, f
	}
	w.errs = errs
	return w.reply(), nil
}

func (c *call) removeAll(ns namespace, filter bson.Raw, one bool) (n int, err error) {
	is, err := compileFilter(filter)
	if err != nil {
		return 0, err
	}
	coll := c.s.colls[ns]
	var list []*record
	if err := coll.scan(c.txn, filter, func(r *record, _ bson.Raw) bool {
		list = append(list, r)
		return !one
	}); err != nil {
		return 0, err
	}
	for _, r := range list {
		gone := false
		do := func() error {
			doc := r.seen(c.txn)
			if doc == nil || !is(doc) {
				return nil
			}
			gone = true
			return c.removeDoc(coll, doc)
		}
		if one { // the caller tries again, and may then mean another one
			err = do()
		} else {
			err = c.statement(do)
		}
		if err != nil {
			return n, err
		}
		if gone {
			n++
		}
	}
	return n, nil
}

func (c *call) removeDoc(coll *collection, doc bson.Raw) error {
	id := doc.Lookup("_id")
	return c.s.put(coll, c.txn, identity(id), entry{op: "delete", id: id, before: doc})
}

func findAndModify(c *call) (d bson.D, err error) {
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	filter, err := c.document("query")
	if err != nil {
		return nil, err
	}
	if filter == nil {
		filter = encode(nil)
	}
	order, err := c.document("sort")
	if err != nil {
		return nil, err
	}
	fields, err := c.document("fields")
	if err != nil {
		return nil, err
	}
	show, err := compileProjection(orEmpty(fields))
	if err != nil {
		return nil, err
	}
	drop := truthy(c.body.Lookup("remove"))
	if drop == c.has("update") {
		return nil, failf(codeFailedToParse, "Either an update or remove=true must be specified")
	}
	var result bson.Raw
	err = c.statement(func() error {
		if drop {
			d, result, err = c.findAndRemove(ns, filter, order)
		} else {
			d, result, err = c.findAndUpdate(ns, filter, order)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if result == nil {
		return append(d, bson.E{Key: "value", Value: nil}), nil
	}
	if result, err = show(result); err != nil {
		return nil, err
	}
	return append(d, bson.E{Key: "value", Value: result}), nil
}

func orEmpty(doc bson.Raw) bson.Raw {
	if doc == nil {
		return encode(nil)
	}
	return doc
}

func (c *call) findAndRemove(ns namespace, filter, order bson.Raw) (bson.D, bson.Raw, error) {
	coll := c.s.colls[ns]
	docs, err := coll.find(c.txn, filter, order, 1)
	if err != nil {
		return nil, nil, err
	}
	if len(docs) == 0 {
		return bson.D{{Key: "lastErrorObject", Value: bson.D{{Key: "n", Value: int32(0)}}}}, nil, nil
	}
	d := bson.D{{Key: "lastErrorObject", Value: bson.D{{Key: "n", Value: int32(1)}}}}
	return d, docs[0], c.removeDoc(coll, docs[0])
}

func (c *call) findAndUpdate(ns namespace, filter, order bson.Raw) (bson.D, bson.Raw, error) {
	ch, err := compileUpdate(c.body.Lookup("update"))
	if err != nil {
		return nil, nil, err
	}
	u := updating{c: c, ns: ns, filter: filter, change: ch}
	if err := u.one(order); err != nil {
		return nil, nil, err
	}
	last := bson.D{{Key: "n", Value: int32(u.matched)}, {Key: "updatedExisting", Value: u.matched > 0}}
	result := u.before
	if u.matched == 0 && truthy(c.body.Lookup("upsert")) {
		if u.after, err = u.upsert(); err != nil {
			return nil, nil, err
		}
		last = bson.D{{Key: "n", Value: int32(1)}, {Key: "updatedExisting", Value: false}, {Key: "upserted", Value: u.after.Lookup("_id")}}
	}
	if truthy(c.body.Lookup("new")) {
		result = u.after
	}
	return bson.D{{Key: "lastErrorObject", Value: last}}, result, nil
}
