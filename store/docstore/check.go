package docstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"promethean/store"
	"promethean/store/internal/document"
	"promethean/store/internal/guard"
)

// Summary is what Check has looked at.
type Summary struct {
	Readers     int
	Collections int
	Documents   int64
	// Deletions counts those that are remembered.
	Deletions int64
	// Commits counts those whose rows are not written yet.
	Commits int
	// Problems counts damage.
	Problems int
}

// Check verifies all documents in dir: every row, that documents and the rows
// of indexes fit each other in both directions, and the counts. It calls report
// with each finding; the error says only that the check itself could not be
// done. Nothing on disk is changed. Documents that are open are
// [store.ErrLocked]; a directory without a lock file, such as a backup, is read
// without a lock.
//
// Documents and rows are compared by sums of hashes under a random seed; where
// they differ, both sides are searched for what it is.
func Check(ctx context.Context, dir string, o Options, report func(what string)) (sum Summary, err error) {
	o = o.withDefaults()
	c := &checker{
		ctx: ctx, report: report, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		Store: &Store{o: o, dir: dir, fs: o.FS, next: 1, readers: make(map[string]*reader), collections: make(map[string]*collection)},
	}
	lock, err := c.takeLock()
	if err == nil {
		err = errors.Join(c.check(), lock.Close())
	}
	if err != nil {
		err = fmt.Errorf("check documents %s: %w", dir, err)
	}
	return c.sum, err
}

type checker struct {
	*Store
	ctx    context.Context
	report func(string)
	sum    Summary
	seeds  [2]maphash.Seed
	rotten atomic.Pointer[string]
}

// digest sums a set up: it is zero when all that was added was taken away.
type digest struct {
	n    int64
	a, b uint64
}

func (c *checker) count(d *digest, n int64, parts ...[]byte) {
	var h maphash.Hash
	for i, sum := range []*uint64{&d.a, &d.b} {
		h.SetSeed(c.seeds[i])
		for _, p := range parts {
			_, _ = h.Write(p) // cannot fail
		}
		*sum += uint64(n) * h.Sum64()
		h.Reset()
	}
	d.n += n
}

func (c *checker) problem(format string, args ...any) {
	c.sum.Problems++
	if c.report != nil {
		c.report(fmt.Sprintf(format, args...))
	}
}

func (c *checker) takeLock() (io.Closer, error) {
	path := c.fs.PathJoin(c.dir, "LOCK")
	if _, err := c.fs.Stat(path); err != nil {
		return io.NopCloser(nil), nil
	}
	lock, err := c.fs.Lock(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrLocked, err)
	}
	return lock, nil
}

func (c *checker) check() (err error) {
	opts := c.options()
	defer opts.Cache.Unref()
	c.db, err = guard.OpenReadOnly(c.fs, c.dir, opts, func(path string) { c.rotten.Store(&path) })
	if err != nil {
		c.problem("the database cannot be opened: %v", err)
		return nil
	}
	defer func() {
		if p := c.rotten.Load(); p != nil {
			c.problem("file %s is damaged", *p)
		}
		err = errors.Join(err, c.db.Close())
	}()
	version, there, err := c.num(keyFormat)
	if err == nil && (there || !c.empty()) {
		err = c.load()
	}
	if errors.Is(err, store.ErrFormat) {
		return err
	}
	if err != nil || version == 0 {
		if err != nil {
			c.problem("%v", err)
		}
		return nil
	}
	c.sum.Readers, c.sum.Collections = len(c.readers), len(c.collections)
	for _, name := range slices.Sorted(maps.Keys(c.readers)) {
		if err := c.reader(c.readers[name]); err != nil {
			return err
		}
	}
	return nil
}

// empty says whether the database has no row: its making was cut short.
func (c *checker) empty() bool {
	it, err := c.db.NewIter(nil)
	if err != nil {
		return false
	}
	defer func() { _ = it.Close() }()
	return !it.First()
}

// reader checks all that belongs to a reader. The error is that of the context.
func (c *checker) reader(r *reader) error {
	last := uint64(0)
	err := c.rows(rowKey(nil, rowLog, r.id), func(k, v []byte) error {
		c.sum.Commits++
		if len(k) != 13 || len(v) < 8 || binary.BigEndian.Uint64(k[5:]) <= last {
			return errRow
		}
		last = binary.BigEndian.Uint64(k[5:])
		for v = v[8:]; len(v) > 0; {
			var e entry
			slot, rest, err := decodeOp(v, &e)
			if err != nil || slot >= len(r.cols) {
				return errRow
			}
			v = rest
		}
		return nil
	})
	if err == nil {
		for _, col := range r.cols {
			if err = c.collection(col); err != nil {
				break
			}
		}
	}
	return err
}

// rows calls fn with the rows of a prefix. What is wrong with one is a problem,
// and the rest is looked at; the error is that of the context.
func (c *checker) rows(prefix []byte, fn func(k, v []byte) error) error {
	n := 0
	err := c.scan(c.db, prefix, func(k, v []byte) error {
		if n++; n%1024 == 0 && c.ctx.Err() != nil {
			return c.ctx.Err()
		}
		if err := fn(k, v); err != nil {
			c.problem("row %q: %v", k, err)
		}
		return nil
	})
	if err != nil && c.ctx.Err() == nil {
		c.problem("rows of %q: %v", prefix, err)
		return nil
	}
	return err
}

// collection checks a collection.
func (c *checker) collection(col *collection) error {
	var sum digest
	live := int64(0)
	err := c.rows(rowKey(nil, rowDoc, col.id), func(k, v []byte) error {
		e, err := col.decode(k, v)
		if err != nil {
			return err
		}
		if e.dead {
			c.sum.Deletions++
		} else {
			live++
		}
		col.rowsOf(e, func(k, v []byte) { c.count(&sum, 1, k, v) })
		return nil
	})
	c.sum.Documents += live
	if err != nil {
		return err
	}
	if live != col.count {
		c.problem("collection %s: it has %d documents, and counts %d", col.name, live, col.count)
	}
	err = c.derived(col, func(k, v []byte) error {
		c.count(&sum, -1, k, v)
		return nil
	})
	if err == nil && sum != (digest{}) {
		err = c.search(col)
	}
	return err
}

// derived calls fn with all rows that are made of documents.
func (c *checker) derived(col *collection, fn func(k, v []byte) error) error {
	prefixes := [][]byte{rowKey(nil, rowDeletion, col.id)}
	for _, t := range col.tuples {
		prefixes = append(prefixes, indexPrefix(nil, rowIndex, col.id, t.ID))
	}
	for _, t := range col.uniques {
		prefixes = append(prefixes, indexPrefix(nil, rowUnique, col.id, t.ID))
	}
	for _, p := range prefixes {
		if err := c.rows(p, fn); err != nil {
			return err
		}
	}
	return nil
}

// decode reads a document's row in full.
func (c *collection) decode(k, v []byte) (*entry, error) {
	e := &entry{key: string(k[5:])}
	if err := decodeDoc(v, e); err != nil {
		return nil, err
	}
	if !e.dead {
		if err := document.CheckBody(e.body); err != nil {
			return nil, err
		}
		e.values = appendValues(nil, e.body, c.fields, nil)
	}
	return e, nil
}

// rowsOf calls fn with the rows that an entry has beside its own.
func (c *collection) rowsOf(e *entry, fn func(k, v []byte)) {
	if e.dead {
		fn(deletionRow(nil, c.id, e.seq, e.key), nil)
		return
	}
	var at [maxFields]int
	offsets(e.values, &at)
	for i := range c.tuples {
		t := &c.tuples[i]
		if k, ok := appendTuple(indexPrefix(nil, rowIndex, c.id, t.ID), t, e.values, &at); ok {
			fn(appendRank(k, e.ts, e.key), nil)
		}
	}
	for i := range c.uniques {
		if k := c.uniqueRow(&c.uniques[i], e.values); k != nil {
			fn(k, []byte(e.key))
		}
	}
}

// search finds what differs between documents and their rows.
func (c *checker) search(col *collection) error {
	err := c.rows(rowKey(nil, rowDoc, col.id), func(k, v []byte) error {
		e, err := col.decode(k, v)
		if err != nil {
			return nil // which has been reported
		}
		col.rowsOf(e, func(k, v []byte) {
			if have, err := c.get(c.db, k); err != nil || !bytes.Equal(have, v) {
				c.problem("collection %s: document %q is not in the row %q", col.name, e.key, k)
			}
		})
		return nil
	})
	if err != nil {
		return err
	}
	return c.derived(col, func(k, v []byte) error {
		key := v
		switch {
		case k[0] == rowDeletion && len(k) >= 13:
			key = k[13:]
		case k[0] == rowIndex:
			key = col.rankOf(k)
		}
		if !c.has(col, key, k, v) {
			c.problem("collection %s: the row %q is that of no document", col.name, k)
		}
		return nil
	})
}

// rankOf finds the document's key in the row of an index.
func (c *collection) rankOf(k []byte) []byte {
	i := slices.IndexFunc(c.tuples, func(t tuple) bool { return t.ID == binary.BigEndian.Uint16(k[5:]) })
	rest := k[7:]
	for range c.tuples[i].Fields {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			return nil
		}
		rest = rest[1+int(rest[0]):]
	}
	if len(rest) < 8 {
		return nil
	}
	return rest[8:]
}

// has says whether the document with a key has a row.
func (c *checker) has(col *collection, key, k, v []byte) (found bool) {
	doc := append(rowKey(nil, rowDoc, col.id), key...)
	stored, err := c.get(c.db, doc)
	if errors.Is(err, pebble.ErrNotFound) {
		return false
	}
	e, err := col.decode(doc, stored)
	if err != nil {
		return true // it is the document that is damaged
	}
	col.rowsOf(e, func(have, value []byte) {
		found = found || bytes.Equal(have, k) && bytes.Equal(value, v)
	})
	return found
}
