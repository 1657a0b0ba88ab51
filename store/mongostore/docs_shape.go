package mongostore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"promethean/store"
	"promethean/store/internal/document"
)

const (
	// The server has 64 indexes for a collection, of which four are ours, and
	// 32 fields for one, of which two are.
	mostIndexes = 60
	mostFields  = 30

	codeNoNamespace = 26
	codeNamespace   = 48 // it exists
)

func checkDeclaration(r *store.Reader) error {
	if err := document.CheckReader(r); err != nil {
		return err
	}
	for _, c := range r.Collections {
		if n := len(c.Indexes); n > mostIndexes {
			return fmt.Errorf("%w: collection %s: %d indexes, at most %d on MongoDB", store.ErrInvalid, c.Name, n, mostIndexes)
		}
		for i, x := range c.Indexes {
			if n := len(x.Fields); n > mostFields {
				return fmt.Errorf("%w: collection %s: index %d has %d fields, at most %d on MongoDB", store.ErrInvalid, c.Name, i, n, mostFields)
			}
		}
	}
	return nil
}

// indexesOf are those that the server has for a collection, the first of which
// every collection has.
func indexesOf(c *collectionRow) []index {
	newest := bson.D{{Key: "_ts", Value: -1}, {Key: "_key", Value: 1}}
	list := []index{
		{name: "newest", keys: newest},
		{name: "changes", keys: up("_seq", "_key")},
		{name: "deletions", keys: up("_deleted", "_seq"), has: []string{"_deleted"}},
	}
	for _, x := range c.Indexes {
		i := index{name: indexName(x), unique: x.Unique}
		for _, f := range x.Fields {
			i.has = append(i.has, valuePath(f))
		}
		i.keys = up(i.has...)
		if !x.Unique {
			// With these a list is read in its order. Who lacks a field is in
			// the index too: a filter on the others is to find it.
			i.keys = append(i.keys, newest...)
			i.has = nil
		}
		list = append(list, i)
	}
	return list
}

// indexName is another one for every declaration, so that an index that has the
// name is as declared.
func indexName(x indexRow) string {
	text, _ := json.Marshal(x) // strings and a bool: it cannot fail
	sum := sha256.Sum256(text)
	name := "by"
	if x.Unique {
		name = "only"
	}
	return name + "_" + hex.EncodeToString(sum[:10])
}

// Declare implements [store.Docs].
func (d *docs) Declare(ctx context.Context, r store.Reader) error {
	if err := checkDeclaration(&r); err != nil {
		return err
	}
	return d.s.call(ctx, func(ctx context.Context) error {
		err := d.again(ctx, func(ctx context.Context) error { return d.declare(ctx, &r) })
		if err != nil {
			return fmt.Errorf("declare reader %s: %w", r.Name, err)
		}
		return nil
	})
}

func (d *docs) declare(ctx context.Context, r *store.Reader) error {
	row, err := d.standing(ctx, r)
	if err != nil {
		return err
	}
	next, fresh := []collectionRow{}, []string{}
	var kept []*collectionRow
	for _, c := range r.Collections {
		made := rowOf(c)
		if was := row.find(c.Name); was != nil {
			made.Forgotten = was.Forgotten
			kept = append(kept, &made)
		} else {
			fresh = append(fresh, c.Name)
		}
		next = append(next, made)
	}
	if row == nil {
		err = d.insert(ctx, &readerRow{Name: r.Name, Meta: notNil(r.Meta), Cols: next, Fresh: fresh, Token: rand.Int64()})
	} else {
		err = d.reshape(ctx, row, kept, next, fresh, notNil(r.Meta))
	}
	if err != nil {
		return err
	}
	// What is new is made, and what is not named any more is dropped.
	if row, err = d.load(ctx, r.Name); err != nil || row == nil {
		return errors.Join(err, missing(err))
	}
	for i := range row.Cols {
		if err := d.dropIndexes(ctx, &row.Cols[i]); err != nil {
			return err
		}
	}
	return nil
}

// missing is the error if a row that was written is gone, and nothing else is
// wrong.
func missing(err error) error {
	if err != nil {
		return nil
	}
	return errRaced
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func (r *readerRow) find(collection string) *collectionRow {
	if r == nil {
		return nil
	}
	return r.collection(collection)
}

// standing gives the row of a reader that is to be declared, nil if there is
// none, with nothing pending that its collections have to do with.
func (d *docs) standing(ctx context.Context, r *store.Reader) (*readerRow, error) {
	names := []string{}
	for _, c := range r.Collections {
		names = append(names, c.Name)
	}
	for {
		list, err := d.rows(ctx, either(is("_id", r.Name), is("by", r.Name),
			in("cols.name", names), in("waste", names), in("next.cols.name", names)))
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
		var row *readerRow
		for _, x := range list {
			if x.Name == r.Name {
				row = x
				continue
			}
			i := slices.IndexFunc(x.Cols, func(c collectionRow) bool { return slices.Contains(names, c.Name) })
			return nil, fmt.Errorf("%w: collection %s belongs to reader %s", store.ErrConflict, x.Cols[i].Name, x.Name)
		}
		return row, nil
	}
}

// insert makes a row. Another one that has a collection is met by the index
// over their names, and found when everything is looked at again.
func (d *docs) insert(ctx context.Context, row *readerRow) error {
	err := d.write(ctx, func(ctx context.Context) error {
		_, err := d.readers.InsertOne(ctx, row)
		return err
	})
	if !duplicate(err) {
		return err
	}
	list, err := d.rows(ctx, is("_id", row.Name))
	if err == nil && (len(list) == 0 || list[0].Token != row.Token) {
		err = errRaced
	}
	return err
}

// reshape changes what is declared of a reader. The indexes of collections that
// stay are built before the row says that they are there; if one cannot be, all
// is as before.
func (d *docs) reshape(ctx context.Context, row *readerRow, kept []*collectionRow, next []collectionRow, fresh []string, meta []byte) error {
	waste := []string{}
	for _, c := range row.Cols {
		if !slices.ContainsFunc(next, func(n collectionRow) bool { return n.Name == c.Name }) {
			waste = append(waste, c.Name)
		}
	}
	built := make(map[string][]string)
	undo := func() error {
		var errs []error
		for name, indexes := range built {
			errs = append(errs, d.removeIndexes(context.WithoutCancel(ctx), d.physical(name), indexes))
		}
		return errors.Join(errs...)
	}
	for _, c := range kept {
		made, err := d.makeIndexes(ctx, d.physical(c.Name), indexesOf(c))
		built[c.Name] = made
		if err != nil {
			return errors.Join(err, undo())
		}
	}
	set := bson.D{{Key: "cols", Value: next}, {Key: "meta", Value: meta}}
	if len(fresh) > 0 {
		set = append(set, bson.E{Key: "fresh", Value: fresh})
	}
	if len(waste) > 0 {
		set = append(set, bson.E{Key: "waste", Value: waste})
	}
	return d.change(ctx, row, set)
}

// dropIndexes drops those that a collection does not declare.
func (d *docs) dropIndexes(ctx context.Context, c *collectionRow) error {
	col := d.physical(c.Name)
	var have []mongo.IndexSpecification
	err := d.s.do(ctx, func(ctx context.Context) (err error) {
		have, err = col.Indexes().ListSpecifications(ctx)
		return err
	})
	if err != nil {
		return err
	}
	var waste []string
	for _, x := range have {
		declared := slices.ContainsFunc(indexesOf(c), func(i index) bool { return i.name == x.Name })
		if !declared && x.Name != "_id_" && ours(x.Name) {
			waste = append(waste, x.Name)
		}
	}
	return d.removeIndexes(ctx, col, waste)
}

// ours says whether an index is one that was declared: people may have made
// others.
func ours(name string) bool {
	for _, x := range []indexRow{{}, {Unique: true}} {
		form := indexName(x)
		cut := len(form) - 20
		if len(name) == len(form) && name[:cut] == form[:cut] {
			return true
		}
	}
	return false
}

func (d *docs) removeIndexes(ctx context.Context, c *mongo.Collection, names []string) error {
	for _, name := range names {
		err := d.write(ctx, func(ctx context.Context) error {
			err := c.Indexes().DropOne(ctx, name)
			if hasCode(err, 27, codeNoNamespace) { // it is gone
				return nil
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("drop index %s of collection %s: %w", name, c.Name(), err)
		}
	}
	return nil
}

func hasCode(err error, codes ...int) bool {
	var server mongo.ServerError
	return errors.As(err, &server) && slices.ContainsFunc(codes, server.HasErrorCode)
}

// finish ends what a row says was begun. All steps may be repeated.
func (d *docs) finish(ctx context.Context, r *readerRow) error {
	switch {
	case r.Dropping:
		for _, c := range r.Cols {
			r.Waste = append(r.Waste, c.Name)
		}
		if err := d.dropAll(ctx, r.Waste); err != nil {
			return err
		}
		return d.write(ctx, func(ctx context.Context) error {
			_, err := d.readers.DeleteOne(ctx, append(is("_id", r.Name), bson.E{Key: "rev", Value: r.Rev}))
			return err
		})
	case r.By != "":
		return d.move(ctx, r)
	}
	if err := d.dropAll(ctx, r.Waste); err != nil {
		return err
	}
	// A writer that slept may have put something under the name.
	if err := d.dropAll(ctx, r.Fresh); err != nil {
		return err
	}
	for _, name := range r.Fresh {
		if err := d.make(ctx, r.collection(name)); err != nil {
			return err
		}
	}
	return d.change(ctx, r, nil, "waste", "fresh")
}

func (d *docs) dropAll(ctx context.Context, names []string) error {
	for _, name := range names {
		err := d.write(ctx, func(ctx context.Context) error { return d.physical(name).Drop(ctx) })
		if err != nil && !hasCode(err, codeNoNamespace) {
			return fmt.Errorf("drop collection %s: %w", name, err)
		}
	}
	return nil
}

// make makes a collection with its indexes.
func (d *docs) make(ctx context.Context, c *collectionRow) error {
	col := d.physical(c.Name)
	err := d.write(ctx, func(ctx context.Context) error { return d.s.db.CreateCollection(ctx, col.Name()) })
	if err != nil && !hasCode(err, codeNamespace) {
		return fmt.Errorf("make collection %s: %w", c.Name, err)
	}
	_, err = d.makeIndexes(ctx, col, indexesOf(c))
	return err
}

// move puts the collections of the reader that has replaced r in their places.
func (d *docs) move(ctx context.Context, r *readerRow) error {
	for i, c := range r.Next.Cols {
		from, to := d.physical(c.Name).Name(), d.physical(r.Cols[i].Name).Name()
		err := d.write(ctx, func(ctx context.Context) error {
			return d.s.client.Database("admin").RunCommand(ctx, bson.D{
				{Key: "renameCollection", Value: d.s.o.Database + "." + from},
				{Key: "to", Value: d.s.o.Database + "." + to}, {Key: "dropTarget", Value: true},
				{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
			}).Err()
		})
		if err != nil && !hasCode(err, codeNoNamespace) { // it has been moved
			return fmt.Errorf("rename collection %s to %s: %w", from, to, err)
		}
	}
	err := d.write(ctx, func(ctx context.Context) error {
		_, err := d.readers.DeleteOne(ctx, is("_id", r.By))
		return err
	})
	if err != nil {
		return err
	}
	return d.change(ctx, r, bson.D{
		{Key: "place", Value: r.Next.Place}, {Key: "meta", Value: r.Next.Meta}, {Key: "cols", Value: r.moved()},
	}, "by", "next")
}

// Replace implements [store.Docs]. The row of the reader is changed in one
// step, which decides; the collections follow one after the other, each in one
// step.
func (d *docs) Replace(ctx context.Context, name, by string) error {
	if name == by {
		return fmt.Errorf("%w: reader %s cannot replace itself", store.ErrInvalid, shorten(name))
	}
	return d.s.call(ctx, func(ctx context.Context) error {
		begun := false
		return d.again(ctx, func(ctx context.Context) error {
			old, err := d.load(ctx, name)
			if err != nil {
				return err
			}
			next, err := d.load(ctx, by)
			switch {
			case err != nil:
				return err
			case begun && next == nil: // a try before, or somebody for us, has done it
				return nil
			case old == nil:
				return fmt.Errorf("%w: reader %s", store.ErrNotFound, shorten(name))
			case next == nil:
				return fmt.Errorf("%w: reader %s", store.ErrNotFound, shorten(by))
			case len(old.Cols) != len(next.Cols):
				return fmt.Errorf("%w: reader %s has %d collections, %s has %d", store.ErrInvalid, name, len(old.Cols), by, len(next.Cols))
			}
			begun = true
			err = d.change(ctx, old, bson.D{
				{Key: "by", Value: by}, {Key: "next", Value: nextRow{Place: next.Place, Meta: next.Meta, Cols: next.Cols}},
			})
			if err != nil {
				return err
			}
			_, err = d.load(ctx, name)
			return err
		})
	})
}

// Drop implements [store.Docs].
func (d *docs) Drop(ctx context.Context, reader string) error {
	return d.s.call(ctx, func(ctx context.Context) error {
		return d.again(ctx, func(ctx context.Context) error {
			r, err := d.load(ctx, reader)
			if err != nil || r == nil {
				return err
			}
			if err := d.change(ctx, r, bson.D{{Key: "dropping", Value: true}}); err != nil {
				return err
			}
			_, err = d.load(ctx, reader)
			return err
		})
	})
}
