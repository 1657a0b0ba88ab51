package mongofake

import (
	"slices"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

const (
	firstBatch = 101
	awaitTime  = time.Second // of a getMore that does not say
)

// cursor is what is left of an answer. It has documents, or records whose
// documents are read when they are given, or a change stream.
type cursor struct {
	id      int64
	ns      namespace
	docs    []bson.Raw
	records []*record
	is      predicate
	show    projection
	limit   int // how many records may still be given; less than 0: any number
	stream  *stream
	txn     *txn
	killed  bool
	busy    bool
}

// batch collects documents up to a number and what fits a message.
type batch struct {
	array []byte
	start int32
	count int
	most  int // 0: any number
	bytes int
}

func newBatch(most int) *batch {
	start, array := bsoncore.AppendArrayStart(nil)
	return &batch{array: array, start: start, most: most}
}

// full says whether a document has no room any more. One always has.
func (b *batch) full(doc bson.Raw) bool {
	return b.most > 0 && b.count >= b.most || b.count > 0 && b.bytes+len(doc) > maxDocument
}

func (b *batch) add(doc bson.Raw) {
	b.array = bsoncore.AppendDocumentElement(b.array, strconv.Itoa(b.count), bsoncore.Document(doc))
	b.count++
	b.bytes += len(doc)
}

func (b *batch) value() bson.RawValue {
	array, err := bsoncore.AppendArrayEnd(b.array, b.start)
	if err != nil {
		panic("mongofake: a batch cannot be ended: " + err.Error())
	}
	return bson.RawValue{Type: bson.TypeArray, Value: array}
}

// fill takes what the cursor has next. It says whether that was all.
func (x *cursor) fill(b *batch) (done bool, err error) {
	for len(x.docs) > 0 {
		if b.full(x.docs[0]) {
			return false, nil
		}
		b.add(x.docs[0])
		x.docs = x.docs[1:]
	}
	for len(x.records) > 0 && x.limit != 0 {
		doc := x.records[0].seen(x.txn)
		if doc != nil && x.is(doc) {
			if doc, err = x.show(doc); err != nil {
				return true, err
			}
			if b.full(doc) {
				return false, nil
			}
			b.add(doc)
			x.limit--
		}
		x.records = x.records[1:]
	}
	return true, nil
}

// begin answers with the first batch of a cursor, and keeps the rest.
func (c *call) begin(x *cursor, size int, single bool) (bson.D, error) {
	b := newBatch(size)
	done := false
	if size > 0 { // else the client wants a cursor only
		var err error
		if done, err = x.fill(b); err != nil {
			return nil, err
		}
	}
	if !done && !single {
		c.s.keep(x)
	}
	return x.reply("firstBatch", b, nil), nil
}

func (s *Server) keep(x *cursor) {
	s.lastID++
	x.id = s.lastID<<20 | 0x5a5a5 // not a number that a client would guess
	s.cursors[x.id] = x
}

func (x *cursor) reply(name string, b *batch, resume bson.Raw) bson.D {
	d := bson.D{
		{Key: name, Value: b.value()},
		{Key: "id", Value: x.id}, {Key: "ns", Value: x.ns.String()},
	}
	if resume != nil {
		d = append(d, bson.E{Key: "postBatchResumeToken", Value: resume})
	}
	return bson.D{{Key: "cursor", Value: d}}
}

func find(c *call) (bson.D, error) {
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	filter, err := c.document("filter")
	if err != nil {
		return nil, err
	}
	order, err := c.document("sort")
	if err != nil {
		return nil, err
	}
	fields, err := c.document("projection")
	if err != nil {
		return nil, err
	}
	limit, err := c.number("limit")
	if err != nil {
		return nil, err
	}
	skip, err := c.number("skip")
	if err != nil {
		return nil, err
	}
	size, err := c.number("batchSize")
	if err != nil {
		return nil, err
	}
	if !c.has("batchSize") {
		size = firstBatch
	}
	x := &cursor{ns: ns, txn: c.txn, limit: limit}
	if limit == 0 {
		x.limit = -1
	}
	if x.show, err = compileProjection(orEmpty(fields)); err != nil {
		return nil, err
	}
	if x.is, err = compileFilter(filter); err != nil {
		return nil, err
	}
	from, err := c.lowest()
	if err != nil {
		return nil, err
	}
	if c.s.views[ns] != nil {
		err = c.gatherView(x, filter, order, skip)
	} else {
		err = x.gather(c.s.colls[ns], filter, order, from, skip)
	}
	if err != nil {
		return nil, err
	}
	return c.begin(x, size, truthy(c.body.Lookup("singleBatch")))
}

// lowest reads where in the index over _id a find begins. Unlike $gte it goes
// across types.
func (c *call) lowest() (bson.RawValue, error) {
	doc, err := c.document("min")
	if err != nil || doc == nil {
		return bson.RawValue{}, err
	}
	hint, _ := c.body.Lookup("hint").DocumentOK()
	if !slices.Equal(hint, encode(bson.D{{Key: "_id", Value: int32(1)}})) {
		return bson.RawValue{}, failf(51173, "When using min()/max() a hint of which index to use must be provided (the fake knows that over _id)")
	}
	return doc.Lookup("_id"), only(doc, "find.min", "_id")
}

// gather finds what the cursor is to give. A read that is not sorted, or by _id,
// is no snapshot: as on a real server, what it gives later is as it is then.
func (x *cursor) gather(coll *collection, filter, order bson.Raw, from bson.RawValue, skip int) error {
	less, err := sorter(order)
	if err != nil {
		return err
	}
	type row struct {
		r   *record
		doc bson.Raw
	}
	var rows []row
	if err := coll.scan(x.txn, filter, func(r *record, doc bson.Raw) bool {
		if from.IsZero() || compare(doc.Lookup("_id"), from) >= 0 {
			rows = append(rows, row{r, doc})
		}
		return less != nil || x.limit < 0 || len(rows) < x.limit+skip
	}); err != nil {
		return err
	}
	if less != nil {
		slices.SortStableFunc(rows, func(a, b row) int { return less(a.doc, b.doc) })
	}
	rows = rows[min(skip, len(rows)):]
	elements, _ := order.Elements()
	late := len(elements) == 0 || len(elements) == 1 && elements[0].Key() == "_id"
	if !late && x.limit >= 0 && len(rows) > x.limit {
		rows = rows[:x.limit]
	}
	for _, r := range rows {
		if late {
			x.records = append(x.records, r.r)
			continue
		}
		doc, err := x.show(r.doc)
		if err != nil {
			return err
		}
		x.docs = append(x.docs, doc)
	}
	return nil
}

func getMore(c *call) (bson.D, error) {
	id, ok := whole(c.body.Lookup("getMore"))
	if !ok {
		return nil, failf(codeTypeMismatch, "getMore needs the number of a cursor")
	}
	x := c.s.cursors[id]
	if x == nil {
		return nil, failf(codeCursorNotFound, "cursor id %d not found", id)
	}
	if x.busy {
		return nil, failf(codeCursorInUse, "cursor id %d is already in use", id)
	}
	size, err := c.number("batchSize")
	if err != nil {
		return nil, err
	}
	if x.stream != nil {
		x.busy = true
		defer func() { x.busy = false }()
		return c.moreOfStream(x, size)
	}
	b := newBatch(size)
	done, err := x.fill(b)
	if done || err != nil {
		delete(c.s.cursors, x.id)
		x.id = 0
	}
	if err != nil {
		return nil, err
	}
	return x.reply("nextBatch", b, nil), nil
}

func killCursors(c *call) (bson.D, error) {
	array, ok := c.body.Lookup("cursors").ArrayOK()
	if !ok {
		return nil, failf(codeTypeMismatch, "killCursors needs an array of cursors")
	}
	ids, _ := array.Values()
	killed, missing := bson.A{}, bson.A{}
	for _, v := range ids {
		id, _ := whole(v)
		x := c.s.cursors[id]
		if x == nil {
			missing = append(missing, id)
			continue
		}
		x.killed = true
		delete(c.s.cursors, id)
		killed = append(killed, id)
	}
	c.s.wake()
	return bson.D{
		{Key: "cursorsKilled", Value: killed}, {Key: "cursorsNotFound", Value: missing},
		{Key: "cursorsAlive", Value: bson.A{}}, {Key: "cursorsUnknown", Value: bson.A{}},
	}, nil
}

func count(c *call) (bson.D, error) {
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	filter, err := c.document("query")
	if err != nil {
		return nil, err
	}
	limit, err := c.number("limit")
	if err != nil {
		return nil, err
	}
	skip, err := c.number("skip")
	if err != nil {
		return nil, err
	}
	n := 0
	if err := c.s.colls[ns].scan(c.txn, filter, func(*record, bson.Raw) bool { n++; return true }); err != nil {
		return nil, err
	}
	n = max(n-skip, 0)
	if limit > 0 {
		n = min(n, limit)
	}
	return bson.D{{Key: "n", Value: int32(n)}}, nil
}
