package mongostore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"promethean/store"
)

const (
	// One request has at most so many operations, and about so many bytes.
	bulkOps   = 500
	bulkBytes = 4 << 20
	// askKeys is how many keys one query asks for.
	askKeys = 500
)

// Commit implements [store.Docs].
//
// What the operations will do is first found out, in order, from the documents
// as they are: a batch that is refused has written nothing. Then each is
// written, if the document is still the one that was seen, and the place last.
func (d *docs) Commit(ctx context.Context, b store.DocBatch) (stale int, err error) {
	c := &docCommit{d: d, b: b, token: rand.Int64(), stale: -1}
	err = d.s.call(ctx, func(ctx context.Context) error {
		return d.again(ctx, func(ctx context.Context) error {
			if d.asOne {
				return c.asOne(ctx)
			}
			return c.try(ctx, d.s.do, d.write)
		})
	})
	if err != nil {
		return 0, fmt.Errorf("commit of reader %s: %w", shorten(b.Reader), err)
	}
	return max(c.stale, 0), nil
}

// docCommit is one call of Commit.
type docCommit struct {
	d     *docs
	b     store.DocBatch
	token int64
	// stale is what the first try to write has found: a later one finds those
	// stale that the first has written.
	stale int
}

// runner makes one request, again if need be.
type runner = func(ctx context.Context, f func(ctx context.Context) error) error

// once is the runner within a transaction, which is repeated as a whole.
func once(ctx context.Context, f func(ctx context.Context) error) error { return f(ctx) }

// asOne commits in one transaction.
func (c *docCommit) asOne(ctx context.Context) error {
	// What was begun is ended before: it changes collections.
	if _, err := c.d.load(ctx, c.b.Reader); err != nil {
		return err
	}
	return c.d.begin(ctx, func(ctx context.Context) error { return c.try(ctx, once, once) })
}

// transaction does something in one transaction. The driver repeats it where
// the server says that this helps.
func (d *docs) transaction(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.s.o.RetryFor+d.s.o.Timeout)
	defer cancel()
	session, err := d.s.client.StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, f(ctx) },
		options.Transaction().SetReadConcern(readconcern.Snapshot()))
	return err
}

// try commits, from the beginning.
func (c *docCommit) try(ctx context.Context, read, write runner) error {
	row, err := c.row(ctx, read)
	if err != nil || row == nil {
		return err
	}
	p := &docPlan{d: c.d, row: row, ops: c.b.Ops, read: read, cols: make(map[string]*planned)}
	stale, err := p.make(ctx)
	if err != nil {
		return err
	}
	if c.stale < 0 {
		c.stale = stale
	}
	if err := p.write(ctx, write); err != nil {
		return err
	}
	return c.move(ctx, row, write)
}

// row gives the reader's row, if it is where the batch begins; nil if a try
// before has ended the commit.
func (c *docCommit) row(ctx context.Context, read runner) (*readerRow, error) {
	if _, err := seqOf(c.b.To); err != nil {
		return nil, err
	}
	var row *readerRow
	var err error
	if c.d.asOne {
		row = new(readerRow)
		err = read(ctx, func(ctx context.Context) error { return c.d.readers.FindOne(ctx, is("_id", c.b.Reader)).Decode(row) })
		if isNone(err) {
			row, err = nil, nil
		}
	} else {
		row, err = c.d.load(ctx, c.b.Reader)
	}
	switch {
	case err != nil:
		return nil, err
	case row == nil:
		return nil, fmt.Errorf("%w: reader %s", store.ErrNotFound, shorten(c.b.Reader))
	case row.pending():
		return nil, errRaced
	case row.Token == c.token:
		return nil, nil
	case uint64(row.Place) != c.b.From:
		return nil, fmt.Errorf("%w: it is at %d, not at %d", store.ErrConflict, row.Place, c.b.From)
	}
	return row, nil
}

// move moves the reader's place.
func (c *docCommit) move(ctx context.Context, row *readerRow, write runner) error {
	filter := bson.D{{Key: "_id", Value: row.Name}, {Key: "place", Value: row.Place}, {Key: "rev", Value: row.Rev}}
	matched := int64(0)
	err := write(ctx, func(ctx context.Context) error {
		result, err := c.d.readers.UpdateOne(ctx, filter, is("$set", bson.D{{Key: "place", Value: int64(c.b.To)}, {Key: "c", Value: c.token}}))
		if err == nil {
			matched = result.MatchedCount
		}
		return err
	})
	if err == nil && matched == 0 {
		// Perhaps by a try whose answer was lost: the next one sees it.
		err = errRaced
	}
	return err
}

// docPlan is what a batch will do.
type docPlan struct {
	d    *docs
	row  *readerRow
	ops  []store.DocOp
	read runner
	cols map[string]*planned
	live []*liveOp // those that are not stale
}

// planned is what is known of a collection.
type planned struct {
	row    *collectionRow
	unique []indexRow
	docs   map[string]*seen
	// owners are the keys of the documents that have certain values in a
	// unique index.
	owners map[string]string
}

// seen is a document as it is, or will be at some moment of the batch.
type seen struct {
	there   bool
	seq     int64
	version *int64
	tuples  []string // its values in unique indexes
}

// liveOp is an operation that will change something.
type liveOp struct {
	at     int
	col    *planned
	doc    store.Doc
	parsed parsed
	was    seen // what it replaces
	raw    bson.Raw
}

// make finds out what every operation will do. The error is about the first
// that is refused.
func (p *docPlan) make(ctx context.Context) (stale int, err error) {
	n, refused := p.check()
	if err := p.look(ctx, p.ops[:n]); err != nil {
		return 0, err
	}
	if stale, err = p.judge(p.ops[:n]); err != nil {
		return 0, err
	}
	if err := p.lookOwners(ctx); err != nil {
		return 0, err
	}
	for _, op := range p.live {
		if err := op.take(); err != nil {
			return 0, &store.DocError{Op: op.at, Err: err}
		}
	}
	return stale, refused
}

// check gives how many operations come before the first that can be refused
// without a look at documents, and why that is.
func (p *docPlan) check() (int, error) {
	for i := range p.ops {
		op := &p.ops[i]
		if p.cols[op.Collection] == nil {
			row := p.row.collection(op.Collection)
			if row == nil {
				return i, fmt.Errorf("%w: collection %s of reader %s", store.ErrNotFound, shorten(op.Collection), p.row.Name)
			}
			c := &planned{row: row, docs: make(map[string]*seen), owners: make(map[string]string)}
			for _, x := range row.Indexes {
				if x.Unique {
					c.unique = append(c.unique, x)
				}
			}
			p.cols[op.Collection] = c
		}
		if err := checkDoc(&op.Doc); err != nil {
			return i, &store.DocError{Op: i, Err: err}
		}
	}
	return len(p.ops), nil
}

// look reads what is there under the keys of operations.
func (p *docPlan) look(ctx context.Context, ops []store.DocOp) error {
	for _, c := range p.cols {
		var keys []string
		for i := range ops {
			if op := &ops[i]; op.Collection == c.row.Name && c.docs[op.Key] == nil {
				c.docs[op.Key] = new(seen)
				keys = append(keys, op.Key)
			}
		}
		fields := bson.D{{Key: "_seq", Value: 1}, {Key: "_v", Value: 1}}
		if len(c.unique) > 0 {
			fields = append(fields, bson.E{Key: "_x", Value: 1})
		}
		for chunk := range slices.Chunk(keys, askKeys) {
			err := p.find(ctx, c, in("_id", chunk), fields, func(key string, raw bson.Raw) error {
				x := seen{there: true, tuples: c.tuplesOf(raw)}
				var ok bool
				if x.seq, ok = raw.Lookup("_seq").AsInt64OK(); !ok {
					return fmt.Errorf("%w: document %q of collection %s has no _seq", store.ErrCorrupt, shorten(key), c.row.Name)
				}
				if v, ok := raw.Lookup("_v").AsInt64OK(); ok {
					x.version = &v
				}
				*c.docs[key] = x
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// find calls fn with the documents that a filter selects.
func (p *docPlan) find(ctx context.Context, c *planned, filter, fields bson.D, fn func(key string, raw bson.Raw) error) error {
	return p.read(ctx, func(ctx context.Context) error {
		found, err := p.d.physical(c.row.Name).Find(ctx, filter, options.Find().SetProjection(fields).SetBatchSize(askKeys+1))
		if err != nil {
			return err
		}
		defer func() { _ = found.Close(context.WithoutCancel(ctx)) }()
		for found.Next(ctx) {
			key, ok := found.Current.Lookup("_id").StringValueOK()
			if !ok {
				return fmt.Errorf("%w: a document of collection %s whose _id is no text", store.ErrCorrupt, c.row.Name)
			}
			if err := fn(key, found.Current); err != nil {
				return err
			}
		}
		return found.Err()
	})
}

// judge finds the operations that are stale, and parses the others.
func (p *docPlan) judge(ops []store.DocOp) (stale int, err error) {
	for i := range ops {
		op := &liveOp{at: i, col: p.cols[ops[i].Collection], doc: ops[i].Doc}
		now := op.col.docs[op.doc.Key]
		if now.there {
			if now.seq >= int64(op.doc.Seq) || now.version != nil && op.doc.Version != nil && *now.version >= *op.doc.Version {
				stale++
				continue
			}
			if op.doc.Body == nil && op.doc.Version == nil {
				op.doc.Version = now.version
			}
		}
		if op.doc.Body != nil {
			if op.parsed, err = parse(op.doc.Body); err != nil {
				return 0, &store.DocError{Op: i, Err: unexpected(err)}
			}
		}
		op.was = *now
		*now = seen{there: true, seq: int64(op.doc.Seq), version: op.doc.Version, tuples: op.col.tuples(&op.parsed)}
		p.live = append(p.live, op)
	}
	return stale, nil
}

// tuples are the values that a body has in unique indexes, those in which it
// is: the number of the index, and the values.
func (c *planned) tuples(p *parsed) []string { return c.collect(p.value) }

// tuplesOf are those of a stored document.
func (c *planned) tuplesOf(raw bson.Raw) []string {
	return c.collect(func(field string) (string, bool) { return raw.Lookup("_x", escapeField(field)).StringValueOK() })
}

func (c *planned) collect(value func(field string) (string, bool)) (list []string) {
next:
	for i, x := range c.unique {
		parts := []string{fmt.Sprint(i)}
		for _, f := range x.Fields {
			v, ok := value(f)
			if !ok {
				continue next
			}
			parts = append(parts, v)
		}
		list = append(list, strings.Join(parts, "\x00"))
	}
	return list
}

// lookOwners finds out who has the values that operations want.
func (p *docPlan) lookOwners(ctx context.Context) error {
	for _, c := range p.cols {
		if len(c.unique) == 0 {
			continue
		}
		var wanted []bson.D
		for _, op := range p.live {
			if op.col != c {
				continue
			}
			for _, t := range c.tuples(&op.parsed) {
				wanted = append(wanted, c.condition(t))
			}
		}
		for chunk := range slices.Chunk(wanted, askKeys/2) {
			err := p.find(ctx, c, either(chunk...), is("_x", 1), func(key string, raw bson.Raw) error {
				for _, t := range c.tuplesOf(raw) {
					c.owners[t] = key
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// condition selects the document that has a tuple.
func (c *planned) condition(tuple string) (filter bson.D) {
	parts := strings.Split(tuple, "\x00")
	for i := range c.unique {
		if parts[0] == fmt.Sprint(i) {
			for k, f := range c.unique[i].Fields {
				filter = append(filter, bson.E{Key: valuePath(f), Value: parts[k+1]})
			}
		}
	}
	return filter
}

// take gives back the values that the document had, and takes those that it
// will have.
func (op *liveOp) take() error {
	mine := op.col.tuples(&op.parsed)
	for _, t := range mine {
		if owner, taken := op.col.owners[t]; taken && owner != op.doc.Key {
			return fmt.Errorf("%w: document %q", store.ErrUnique, shorten(owner))
		}
	}
	for _, t := range op.was.tuples {
		if op.col.owners[t] == op.doc.Key {
			delete(op.col.owners, t)
		}
	}
	for _, t := range mine {
		op.col.owners[t] = op.doc.Key
	}
	return nil
}

// merge leaves out what a later operation replaces. Where values are unique
// each has to be written: a state in between may have made room for another
// document.
func (p *docPlan) merge() []*liveOp {
	last := make(map[*planned]map[string]*liveOp)
	var list []*liveOp
	for _, op := range slices.Backward(p.live) {
		if len(op.col.unique) > 0 {
			list = append(list, op)
			continue
		}
		if last[op.col] == nil {
			last[op.col] = make(map[string]*liveOp)
		}
		if later := last[op.col][op.doc.Key]; later != nil {
			later.was = op.was
			continue
		}
		last[op.col][op.doc.Key] = op
		list = append(list, op)
	}
	slices.Reverse(list)
	return list
}

// write writes, in order.
func (p *docPlan) write(ctx context.Context, write runner) error {
	var models []mongo.WriteModel
	var col *planned
	size := 0
	flush := func() error {
		if len(models) == 0 {
			return nil
		}
		err := p.bulk(ctx, col, models, write)
		models, size = nil, 0
		return err
	}
	list := p.merge()
	for _, op := range list { // before any is written
		var err error
		if op.raw, err = encodeDoc(&op.doc, &op.parsed); err != nil {
			return &store.DocError{Op: op.at, Err: err}
		}
	}
	for _, op := range list {
		if op.col != col || len(models) == bulkOps || size > 0 && size+len(op.raw) > bulkBytes {
			if err := flush(); err != nil {
				return err
			}
			col = op.col
		}
		m := mongo.NewReplaceOneModel().SetReplacement(op.raw)
		if op.was.there {
			m.SetFilter(bson.D{{Key: "_id", Value: op.doc.Key}, {Key: "_seq", Value: op.was.seq}})
		} else {
			// One that has come meanwhile is not matched, and refuses another.
			m.SetFilter(bson.D{{Key: "_id", Value: op.doc.Key}, {Key: "_seq", Value: is("$lt", int64(op.doc.Seq))}}).SetUpsert(true)
		}
		models = append(models, m)
		size += len(op.raw)
	}
	return flush()
}

// bulk makes one request. It is not repeated by itself: what came of it is seen
// when all is looked at again.
func (p *docPlan) bulk(ctx context.Context, col *planned, models []mongo.WriteModel, write runner) error {
	var result *mongo.BulkWriteResult
	var met error
	err := write(ctx, func(ctx context.Context) error {
		result, met = p.d.physical(col.row.Name).BulkWrite(ctx, models)
		return nil
	})
	switch {
	case err != nil:
		return err
	case isFull(met):
		return unavailable(fmt.Errorf("the disk of the server is full: %w", met))
	case duplicate(met):
		return fmt.Errorf("%w: %w", errRaced, met)
	case met != nil:
		return met
	case result.MatchedCount+result.UpsertedCount < int64(len(models)):
		return errRaced
	}
	return nil
}
