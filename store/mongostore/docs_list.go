package mongostore

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/store"
)

const (
	// pageDocs is how many documents an answer has at most. The server cuts at
	// 16 MiB.
	pageDocs = 10_000
	// forgetStep is how many deletions are forgotten at a time.
	forgetStep = 2000
)

// alive selects documents that are not deleted.
var alive = bson.E{Key: "_deleted", Value: bson.D{{Key: "$exists", Value: false}}}

// steady has f read a collection. If it finds nothing while another collection
// is put in the place, it is asked again: some servers show none for a moment.
// A replacement that nobody ends is not waited for.
func (d *docs) steady(ctx context.Context, collection string, f func(ctx context.Context, c *collectionRow) (empty bool, err error)) error {
	const most = 6
	pause := backOff{}
	for tries := 1; ; tries++ {
		before, c, err := d.owner(ctx, collection)
		if err != nil {
			return err
		}
		if empty, err := f(ctx, c); err != nil || !empty {
			return err
		}
		after, _, err := d.owner(ctx, collection)
		if err != nil {
			return err
		}
		if tries == most || before.Name == after.Name && before.Rev == after.Rev && before.By == "" {
			return nil
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// Doc implements [store.Docs].
func (d *docs) Doc(ctx context.Context, collection, key string) (out store.Doc, err error) {
	found := false
	look := func(ctx context.Context) error {
		return d.s.do(ctx, func(ctx context.Context) error {
			raw, err := d.physical(collection).FindOne(ctx, bson.D{{Key: "_id", Value: nameID(key)}, alive}, options.FindOne().SetProjection(served)).Raw()
			if isNone(err) {
				return nil
			}
			if err == nil {
				found = true
				out, err = decodeStored(raw)
			}
			return err
		})
	}
	err = d.s.call(ctx, func(ctx context.Context) error {
		if err := look(ctx); err != nil || found {
			return err
		}
		err := d.steady(ctx, collection, func(ctx context.Context, _ *collectionRow) (bool, error) {
			err := look(ctx)
			return !found, err
		})
		if err == nil && !found {
			err = fmt.Errorf("%w: document %s of collection %s", store.ErrNotFound, shorten(key), shorten(collection))
		}
		return err
	})
	return out, err
}

// Count implements [store.Docs].
func (d *docs) Count(ctx context.Context, collection string) (n int64, err error) {
	err = d.s.call(ctx, func(ctx context.Context) error {
		return d.steady(ctx, collection, func(ctx context.Context, _ *collectionRow) (bool, error) {
			err := d.s.do(ctx, func(ctx context.Context) (err error) {
				n, err = d.physical(collection).CountDocuments(ctx, bson.D{alive})
				return err
			})
			return n == 0, err
		})
	})
	return n, err
}

// List implements [store.Docs]. Where the server has no snapshots, a document
// that changes during a list of more than one answer may be in it twice or not
// at all.
func (d *docs) List(ctx context.Context, collection string, q store.DocQuery) iter.Seq2[store.Doc, error] {
	return func(yield func(store.Doc, error) bool) {
		p := &docPages{d: d, collection: collection, order: bson.D{{Key: "_ts", Value: -1}, {Key: "_key", Value: 1}}, limit: q.Limit}
		p.judge = func(context.Context) error { return nil }
		p.begin = func(c *collectionRow) (err error) {
			if q.Offset < 0 || q.Limit < 0 {
				return fmt.Errorf("%w: offset %d, limit %d", store.ErrInvalid, q.Offset, q.Limit)
			}
			p.skip = q.Offset
			p.filter, err = filterOf(c, q.Filter)
			return err
		}
		p.yield(ctx, yield)
	}
}

// filterOf selects the documents that a query asks for.
func filterOf(c *collectionRow, fields map[string][]json.RawMessage) (bson.D, error) {
	filter := bson.D{alive}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.ContainsFunc(c.Indexes, func(x indexRow) bool { return slices.Contains(x.Fields, name) }) {
			return nil, fmt.Errorf("%w: collection %s has no index on the field %q", store.ErrInvalid, c.Name, shorten(name))
		}
		values := []string{}
		for _, v := range fields[name] {
			value, err := filterValue(v)
			if err != nil {
				return nil, fmt.Errorf("filter on field %q: %w", shorten(name), err)
			}
			values = append(values, value)
		}
		filter = append(filter, bson.E{Key: valuePath(name), Value: is("$in", values)})
	}
	return filter, nil
}

// Changes implements [store.Docs].
func (d *docs) Changes(ctx context.Context, collection string, after uint64) iter.Seq2[store.Doc, error] {
	return func(yield func(store.Doc, error) bool) {
		p := &docPages{d: d, collection: collection, order: up("_seq", "_key")}
		p.begin = func(*collectionRow) error {
			p.filter = is("_seq", is("$gt", clamp(after)))
			return nil
		}
		// Deletions are forgotten after the row says so. What a page lacks for
		// that is told by a row that is read after it.
		p.judge = func(ctx context.Context) error {
			_, c, err := d.owner(ctx, collection)
			if err == nil && c.Forgotten > clamp(after) {
				err = fmt.Errorf("%w: deletions of collection %s up to seq %d", store.ErrGone, collection, c.Forgotten)
			}
			return err
		}
		p.yield(ctx, yield)
	}
}

// docPages yields documents, an answer of the server at a time.
type docPages struct {
	d          *docs
	collection string
	filter     bson.D
	order      bson.D
	skip       int
	limit      int
	// begin is told what is declared, and makes the filter.
	begin func(c *collectionRow) error
	// judge is asked after each answer and before it is yielded.
	judge func(ctx context.Context) error

	found   *mongo.Cursor
	session *mongo.Session
}

func (p *docPages) yield(ctx context.Context, yield func(store.Doc, error) bool) {
	defer p.close()
	for more := true; more; {
		var page []store.Doc
		err := p.d.s.call(ctx, func(ctx context.Context) (err error) {
			page, more, err = p.next(ctx)
			return err
		})
		for i := range page {
			if err == nil {
				err = p.stopped(ctx)
			}
			if err != nil {
				break
			}
			if !yield(page[i], nil) {
				return
			}
		}
		if err != nil {
			yield(store.Doc{}, fmt.Errorf("collection %s: %w", shorten(p.collection), err))
			return
		}
	}
}

// stopped says whether nothing more is to be yielded.
func (p *docPages) stopped(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.d.s.isClosed() {
		return store.ErrClosed
	}
	return nil
}

// next gives what one answer of the server has.
func (p *docPages) next(ctx context.Context) (page []store.Doc, more bool, err error) {
	if p.found != nil {
		return p.read(ctx)
	}
	err = p.d.steady(ctx, p.collection, func(ctx context.Context, c *collectionRow) (bool, error) {
		p.close()
		if err := p.begin(c); err != nil || p.skip > math.MaxInt32 {
			return false, err
		}
		if err := p.open(ctx); err != nil {
			return false, err
		}
		page, more, err = p.read(ctx)
		return len(page) == 0, err
	})
	return page, more, err
}

// read gives what is left of the answer that the cursor is at, or the next one.
func (p *docPages) read(ctx context.Context) (page []store.Doc, more bool, err error) {
	bounded, cancel := context.WithTimeout(p.in(ctx), p.d.s.o.RetryFor)
	defer cancel()
	for p.found.Next(bounded) {
		x, err := decodeStored(p.found.Current)
		if err != nil {
			return nil, false, err
		}
		if page = append(page, x); p.found.RemainingBatchLength() == 0 {
			more = p.found.ID() != 0
			break
		}
	}
	if err := p.found.Err(); err != nil {
		if transient(err) && ctx.Err() == nil {
			err = unavailable(err)
		}
		return nil, false, err
	}
	return page, more, p.judge(ctx)
}

// open asks for the first answer.
func (p *docPages) open(ctx context.Context) (err error) {
	if p.d.asOne {
		o := options.Session().SetSnapshot(true).SetCausalConsistency(false)
		if p.session, err = p.d.s.client.StartSession(o); err != nil {
			return err
		}
	}
	size := pageDocs
	o := options.Find().SetProjection(served).SetSort(p.order)
	if p.skip > 0 {
		o.SetSkip(int64(p.skip))
	}
	if p.limit > 0 && p.limit <= math.MaxInt32 {
		o.SetLimit(int64(p.limit))
		size = min(size, p.limit+1) // the server closes what it has no more of
	}
	o.SetBatchSize(int32(size))
	return p.d.s.do(ctx, func(ctx context.Context) (err error) {
		p.found, err = p.d.physical(p.collection).Find(p.in(ctx), p.filter, o)
		return err
	})
}

// in gives the context of the snapshot that is read, if there is one.
func (p *docPages) in(ctx context.Context) context.Context {
	if p.session == nil {
		return ctx
	}
	return mongo.NewSessionContext(ctx, p.session)
}

func (p *docPages) close() {
	ctx, cancel := context.WithTimeout(context.Background(), p.d.s.o.Timeout)
	defer cancel()
	if p.found != nil && !p.d.s.isClosed() {
		_ = p.found.Close(p.in(ctx))
	}
	if p.session != nil {
		p.session.EndSession(ctx)
	}
	p.found, p.session = nil, nil
}

// Forget implements [store.Docs]. The row of the reader says first what is
// forgotten.
func (d *docs) Forget(ctx context.Context, collection string, upTo uint64) error {
	return d.s.call(ctx, func(ctx context.Context) error {
		for more := true; more; {
			err := d.again(ctx, func(ctx context.Context) (err error) {
				more, err = d.forget(ctx, collection, clamp(upTo))
				return err
			})
			if err != nil {
				return fmt.Errorf("forget deletions: %w", err)
			}
		}
		return nil
	})
}

func (d *docs) forget(ctx context.Context, collection string, upTo int64) (more bool, err error) {
	r, c, err := d.owner(ctx, collection)
	if err != nil {
		return false, err
	}
	if r.pending() {
		if err := d.finish(ctx, r); err != nil {
			return false, err
		}
		return false, errRaced
	}
	col := d.physical(collection)
	dead := func(upTo int64) bson.D {
		return bson.D{{Key: "_deleted", Value: true}, {Key: "_seq", Value: is("$lte", upTo)}}
	}
	var list []struct {
		Seq int64 `bson:"_seq"`
	}
	err = d.s.do(ctx, func(ctx context.Context) error {
		list = nil
		found, err := col.Find(ctx, dead(upTo), options.Find().SetProjection(up("_seq")).SetSort(up("_seq")).SetLimit(forgetStep))
		if err == nil {
			err = found.All(ctx, &list)
		}
		return err
	})
	if err != nil || len(list) == 0 {
		return false, err
	}
	last := list[len(list)-1].Seq
	if last > c.Forgotten {
		i := slices.IndexFunc(r.Cols, func(x collectionRow) bool { return x.Name == collection })
		if err := d.change(ctx, r, bson.D{{Key: fmt.Sprintf("cols.%d.forgotten", i), Value: last}}); err != nil {
			return false, err
		}
	}
	err = d.write(ctx, func(ctx context.Context) error {
		_, err := col.DeleteMany(ctx, dead(last))
		return err
	})
	return len(list) == forgetStep, err
}
