package mongostore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/store"
)

// snapshotWire is the wire version of MongoDB 5.0, the first that reads
// snapshots outside of transactions.
const snapshotWire = 13

// docs are the documents of a store, on a server without transactions.
type docs struct {
	s       *Store
	readers *mongo.Collection
	// asOne: the server has transactions; begin does something in one.
	asOne bool
	begin func(ctx context.Context, f func(ctx context.Context) error) error
	// hook is called before every write; tests have it fail.
	hook func() error
}

// transactions are the documents on a server that has them.
type transactions struct{ *docs }

// CommitsAsOne is the ability [store.Transacts].
func (transactions) CommitsAsOne() {}

var (
	_ store.Docs      = (*docs)(nil)
	_ store.Docs      = (*transactions)(nil)
	_ store.Transacts = (*transactions)(nil)
)

// documents are made when they are first asked for.
type documents struct {
	mu   sync.Mutex
	docs store.Docs
}

// Docs implements [store.HasDocs]. They have the ability [store.Transacts]
// where the server is a replica set of MongoDB 5.0 or later.
func (s *Store) Docs(ctx context.Context) (store.Docs, error) {
	s.documents.mu.Lock()
	defer s.documents.mu.Unlock()
	if s.documents.docs != nil {
		return s.documents.docs, nil
	}
	d := &docs{s: s, readers: s.collection("readers"), asOne: s.asOne}
	d.begin = d.transaction
	err := s.call(ctx, func(ctx context.Context) error {
		owner := index{name: "owner", keys: up("cols.name"), unique: true, has: []string{"cols.name"}}
		_, err := d.makeIndexes(ctx, d.readers, []index{owner})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("documents: %w", err)
	}
	if s.documents.docs = d; s.asOne {
		s.documents.docs = &transactions{d}
	}
	return s.documents.docs, nil
}

// readerRow is the document of a reader. Rows are there before collections are
// made and leave after they are dropped, so that none is left behind.
type readerRow struct {
	Name string `bson:"_id"`
	// Rev counts changes of anything but the place.
	Rev   int64 `bson:"rev"`
	Place int64 `bson:"place"`
	// Token is a random number: whose the last change is.
	Token int64           `bson:"c"`
	Meta  []byte          `bson:"meta"`
	Cols  []collectionRow `bson:"cols"`

	// The rest says what was begun. Whoever is next to write ends it.

	// Fresh are collections of Cols that have to be made.
	Fresh []string `bson:"fresh,omitempty"`
	// Waste are collections that have to be dropped.
	Waste []string `bson:"waste,omitempty"`
	// Dropping: the reader is gone, its collections not yet.
	Dropping bool `bson:"dropping,omitempty"`
	// By has replaced this reader, and what is here is that of Next; the
	// collections are moved one after the other.
	By   string   `bson:"by,omitempty"`
	Next *nextRow `bson:"next,omitempty"`
}

type nextRow struct {
	Place int64           `bson:"place"`
	Meta  []byte          `bson:"meta"`
	Cols  []collectionRow `bson:"cols"`
}

type collectionRow struct {
	Name    string     `bson:"name"`
	Indexes []indexRow `bson:"indexes"`
	// Forgotten is the highest seq of a deletion that was forgotten.
	Forgotten int64 `bson:"forgotten"`
}

type indexRow struct {
	Fields []string `bson:"fields"`
	Unique bool     `bson:"unique"`
}

func (r *readerRow) pending() bool {
	return len(r.Fresh) > 0 || len(r.Waste) > 0 || r.Dropping || r.By != ""
}

// reader is what the row says, once everything that was begun is done.
func (r *readerRow) reader() store.Reader {
	out := store.Reader{Name: r.Name, Seq: uint64(r.Place), Meta: r.Meta}
	cols := r.Cols
	if r.Next != nil {
		out.Seq, out.Meta, cols = uint64(r.Next.Place), r.Next.Meta, r.moved()
	}
	for _, c := range cols {
		x := store.Collection{Name: c.Name}
		for _, i := range c.Indexes {
			x.Indexes = append(x.Indexes, store.Index{Fields: i.Fields, Unique: i.Unique})
		}
		out.Collections = append(out.Collections, x)
	}
	return out
}

// moved are the collections of Next under the names of those they replace.
func (r *readerRow) moved() []collectionRow {
	list := slices.Clone(r.Next.Cols)
	for i := range list {
		list[i].Name = r.Cols[i].Name
	}
	return list
}

func (r *readerRow) collection(name string) *collectionRow {
	for i := range r.Cols {
		if r.Cols[i].Name == name {
			return &r.Cols[i]
		}
	}
	return nil
}

func rowOf(c store.Collection) collectionRow {
	out := collectionRow{Name: c.Name, Indexes: []indexRow{}}
	for _, x := range c.Indexes {
		out.Indexes = append(out.Indexes, indexRow{Fields: x.Fields, Unique: x.Unique})
	}
	return out
}

// physical is the collection that keeps the documents of a declared one. A dot
// becomes a slash, which no declared name has: some servers cannot rename a
// collection with a dot.
func (d *docs) physical(name string) *mongo.Collection {
	return d.s.collection("view_" + strings.ReplaceAll(name, ".", "/"))
}

// errRaced: somebody else changed what a change was based on.
var errRaced = errors.New("changed by another process")

// again runs f until it is not overtaken, as the store's do does with servers
// that are away. Errors that f met at the server are tried again too.
func (d *docs) again(ctx context.Context, f func(ctx context.Context) error) error {
	deadline := time.Now().Add(d.s.o.RetryFor)
	for pause := (backOff{}); ; {
		err := f(ctx)
		raced := errors.Is(err, errRaced)
		if err == nil || ctx.Err() != nil || !raced && !transient(err) || errors.Is(err, store.ErrUnavailable) {
			return err
		}
		if time.Now().After(deadline) {
			return unavailable(err)
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// write makes a change that may be repeated.
func (d *docs) write(ctx context.Context, f func(ctx context.Context) error) error {
	if d.hook != nil {
		if err := d.hook(); err != nil {
			return err
		}
	}
	return d.s.do(ctx, f)
}

// rows reads the rows that a filter selects.
func (d *docs) rows(ctx context.Context, filter bson.D) (list []*readerRow, err error) {
	err = d.s.do(ctx, func(ctx context.Context) error {
		list = nil
		found, err := d.readers.Find(ctx, filter)
		if err == nil {
			err = found.All(ctx, &list)
		}
		return err
	})
	return list, err
}

func either(conditions ...bson.D) bson.D { return bson.D{{Key: "$or", Value: conditions}} }

func is(field string, value any) bson.D { return bson.D{{Key: field, Value: value}} }

func in(field string, values any) bson.D { return is(field, is("$in", values)) }

// load gives the row of a reader, nil if there is none, after everything that
// was begun about it is done.
func (d *docs) load(ctx context.Context, name string) (*readerRow, error) {
	for {
		list, err := d.rows(ctx, either(is("_id", name), is("by", name)))
		if err != nil {
			return nil, err
		}
		done, err := d.finishAll(ctx, list)
		if err != nil {
			return nil, err
		}
		if done {
			continue
		}
		if len(list) == 0 {
			return nil, nil
		}
		return list[0], nil
	}
}

// finishAll ends what was begun; done says that there was something.
func (d *docs) finishAll(ctx context.Context, list []*readerRow) (done bool, err error) {
	for _, r := range list {
		if !r.pending() {
			continue
		}
		if err := d.finish(ctx, r); err != nil {
			return true, err
		}
		done = true
	}
	return done, nil
}

// change changes a row, unless it has been changed since it was read.
func (d *docs) change(ctx context.Context, r *readerRow, set bson.D, unset ...string) error {
	token := rand.Int64()
	set = append(slices.Clone(set), bson.E{Key: "rev", Value: r.Rev + 1}, bson.E{Key: "c", Value: token})
	update := is("$set", set)
	if len(unset) > 0 {
		gone := bson.D{}
		for _, f := range unset {
			gone = append(gone, bson.E{Key: f, Value: ""})
		}
		update = append(update, bson.E{Key: "$unset", Value: gone})
	}
	return d.changed(ctx, r.Name, token, func(ctx context.Context) (*mongo.UpdateResult, error) {
		return d.readers.UpdateOne(ctx, append(is("_id", r.Name), bson.E{Key: "rev", Value: r.Rev}), update)
	})
}

// changed makes a guarded change of a row. One that matched nothing may have
// been made by a try before, whose answer was lost.
func (d *docs) changed(ctx context.Context, name string, token int64, f func(context.Context) (*mongo.UpdateResult, error)) error {
	matched := int64(0)
	err := d.write(ctx, func(ctx context.Context) error {
		result, err := f(ctx)
		if err == nil {
			matched = result.MatchedCount
		}
		return err
	})
	if err != nil || matched > 0 {
		return err
	}
	list, err := d.rows(ctx, is("_id", name))
	if err == nil && (len(list) == 0 || list[0].Token != token) {
		err = errRaced
	}
	return err
}

// owner gives the row of the reader that has a collection.
func (d *docs) owner(ctx context.Context, collection string) (*readerRow, *collectionRow, error) {
	list, err := d.rows(ctx, is("cols.name", collection))
	if err != nil {
		return nil, nil, err
	}
	for _, r := range list {
		if !r.Dropping {
			return r, r.collection(collection), nil
		}
	}
	return nil, nil, fmt.Errorf("%w: collection %s", store.ErrNotFound, shorten(collection))
}

// Reader implements [store.Docs].
func (d *docs) Reader(ctx context.Context, name string) (out store.Reader, err error) {
	err = d.s.call(ctx, func(ctx context.Context) error {
		list, err := d.rows(ctx, either(is("_id", name), is("by", name)))
		if err != nil {
			return err
		}
		if list = visible(list); len(list) == 0 || list[0].Name != name {
			return fmt.Errorf("%w: reader %s", store.ErrNotFound, shorten(name))
		}
		out = list[0].reader()
		return nil
	})
	return out, err
}

// visible leaves out the readers that are gone though their rows are not, and
// gives the rest by name.
func visible(list []*readerRow) []*readerRow {
	gone := make(map[string]bool)
	for _, r := range list {
		if r.By != "" {
			gone[r.By] = true
		}
	}
	list = slices.DeleteFunc(list, func(r *readerRow) bool { return r.Dropping || gone[r.Name] })
	slices.SortFunc(list, func(a, b *readerRow) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Readers implements [store.Docs].
func (d *docs) Readers(ctx context.Context) iter.Seq2[store.Reader, error] {
	return func(yield func(store.Reader, error) bool) {
		var list []*readerRow
		err := d.s.call(ctx, func(ctx context.Context) (err error) {
			list, err = d.rows(ctx, bson.D{})
			return err
		})
		if err != nil {
			yield(store.Reader{}, fmt.Errorf("readers: %w", err))
			return
		}
		for _, r := range visible(list) {
			if !yield(r.reader(), nil) {
				return
			}
		}
	}
}

// Sync implements [store.Docs]: every write has waited for the journal of a
// majority.
func (d *docs) Sync(ctx context.Context) error {
	return d.s.call(ctx, func(context.Context) error { return nil })
}

// seqOf makes a seq fit for the server, whose integers have a sign.
func seqOf(seq uint64) (int64, error) {
	if seq > math.MaxInt64 {
		return 0, fmt.Errorf("%w: seq %d, at most %d", store.ErrInvalid, seq, int64(math.MaxInt64))
	}
	return int64(seq), nil
}

// index is one of the server's.
type index struct {
	name   string
	keys   bson.D
	unique bool
	has    []string // documents that lack one of these are not in it
}

func up(names ...string) (keys bson.D) {
	for _, n := range names {
		keys = append(keys, bson.E{Key: n, Value: 1})
	}
	return keys
}

// makeIndexes makes those that are missing and gives their names. Building one
// may take as long as the collection is large.
func (d *docs) makeIndexes(ctx context.Context, c *mongo.Collection, list []index) (made []string, err error) {
	for _, x := range list {
		if d.s.hasIndex(ctx, c, x.name) {
			continue
		}
		o := options.Index().SetName(x.name)
		if x.unique {
			o.SetUnique(true)
		}
		if len(x.has) > 0 {
			filter := bson.D{}
			for _, f := range x.has {
				filter = append(filter, bson.E{Key: f, Value: is("$exists", true)})
			}
			o.SetPartialFilterExpression(filter)
		}
		if d.hook != nil {
			if err := d.hook(); err != nil {
				return made, err
			}
		}
		began := time.Now()
		if err := d.patiently(ctx, func(ctx context.Context) error {
			_, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: x.keys, Options: o})
			return err
		}); err != nil {
			if notUnique(err) {
				err = fmt.Errorf("%w: %w", store.ErrUnique, err)
			}
			return made, fmt.Errorf("index %s of collection %s: %w", x.name, c.Name(), err)
		}
		made = append(made, x.name)
		d.s.o.Logger.Debug("mongostore: made an index", "collection", c.Name(), "index", x.name, "unique", x.unique, "took", time.Since(began))
	}
	return made, nil
}

// notUnique says that an index was not built because values are equal. The
// compatible server has only words for it.
func notUnique(err error) bool {
	var server mongo.ServerError
	return duplicate(err) || errors.As(err, &server) && server.HasErrorMessage("could not create exclusion constraint")
}

// longest bounds one try to build an index.
const longest = time.Hour

// patiently is do for what takes long.
func (d *docs) patiently(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	return d.again(ctx, f)
}
