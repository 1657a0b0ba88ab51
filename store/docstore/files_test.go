package docstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store"
)

// some is a store with some documents, all of whose rows are written.
func some(t *testing.T, fs vfs.FS) *Store {
	t.Helper()
	s, err := Open("views", Options{FS: fs})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	ctx := context.Background()
	must(t, s.Declare(ctx, store.Reader{Name: "r", Collections: []store.Collection{{Name: "c", Indexes: []store.Index{
		{Fields: []string{"a"}}, {Fields: []string{"u"}, Unique: true},
	}}}}))
	var ops []store.DocOp
	for i := range 10 {
		d := store.Doc{Key: fmt.Sprint("k", i), TS: int64(i), Seq: uint64(i + 1), Body: fmt.Appendf(nil, `{"a":1,"u":%d}`, i)}
		if i == 9 {
			d.Body = nil
		}
		ops = append(ops, store.DocOp{Collection: "c", Doc: d})
	}
	_, err = s.Commit(ctx, store.DocBatch{Reader: "r", To: 10, Ops: ops})
	must(t, err)
	must(t, s.Flush())
	return s
}

// tamper changes rows of a store that is not open.
func tamper(t *testing.T, fs vfs.FS, fn func(b *pebble.Batch)) {
	t.Helper()
	s := &Store{o: Options{FS: fs}.withDefaults()}
	opts := s.options()
	defer opts.Cache.Unref()
	opts.FS = fs
	db, err := pebble.Open("views", opts)
	must(t, err)
	b := db.NewIndexedBatch()
	fn(b)
	must(t, errors.Join(b.Commit(pebble.Sync), db.Close()))
}

func findings(t *testing.T, fs vfs.FS, dir string) (Summary, string) {
	t.Helper()
	var found []string
	sum, err := Check(context.Background(), dir, Options{FS: fs}, func(what string) { found = append(found, what) })
	must(t, err)
	return sum, strings.Join(found, "\n")
}

func TestCheckFinds(t *testing.T) {
	first := func(b *pebble.Batch, prefix string) []byte {
		it, err := b.NewIter(&pebble.IterOptions{LowerBound: []byte(prefix), UpperBound: after([]byte(prefix))})
		must(t, err)
		defer func() { must(t, it.Close()) }()
		if !it.First() {
			t.Fatalf("no row %q", prefix)
		}
		return append([]byte(nil), it.Key()...)
	}
	for name, c := range map[string]struct {
		do   func(b *pebble.Batch)
		want string
	}{
		"nothing":                   {func(*pebble.Batch) {}, ""},
		"a row of an index is gone": {func(b *pebble.Batch) { remove(b, first(b, "i\x00\x00\x00\x02\x00\x01")) }, `document "k8" is not in the row`},
		"an order row is gone":      {func(b *pebble.Batch) { remove(b, first(b, "i\x00\x00\x00\x02\x00\x00")) }, `document "k8" is not in the row`},
		"a unique row is gone":      {func(b *pebble.Batch) { remove(b, first(b, "u")) }, `is not in the row`},
		"a unique row of another":   {func(b *pebble.Batch) { put(b, first(b, "u"), []byte("k5")) }, `is that of no document`},
		"a row too many":            {func(b *pebble.Batch) { put(b, append(first(b, "i\x00\x00\x00\x02\x00\x01"), 'x'), nil) }, `is that of no document`},
		"a document is gone":        {func(b *pebble.Batch) { remove(b, first(b, "d")) }, "it has 8 documents, and counts 9"},
		"a deletion is gone":        {func(b *pebble.Batch) { remove(b, first(b, "x")) }, `document "k9" is not in the row`},
		"a document is no document": {func(b *pebble.Batch) { put(b, first(b, "d"), []byte("\xffx")) }, "does not decode"},
		"a body is no object":       {func(b *pebble.Batch) { put(b, first(b, "d"), []byte("\x00\x02\x02[]")) }, "must be a JSON object"},
		"a reader is no reader":     {func(b *pebble.Batch) { put(b, first(b, "r"), []byte("x")) }, "reader r: a row does not decode"},
		"a place is gone":           {func(b *pebble.Batch) { remove(b, first(b, "p")) }, "place of reader r"},
		"a commit is no commit":     {func(b *pebble.Batch) { put(b, logRow(1, 99), []byte("x")) }, "does not decode"},
		"rows of nothing":           {func(b *pebble.Batch) { put(b, indexPrefix(nil, rowIndex, 77, 1), nil) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			must(t, some(t, fs).Close())
			tamper(t, fs, c.do)
			sum, found := findings(t, fs, "views")
			if (sum.Problems > 0) != (c.want != "") || !strings.Contains(found, c.want) {
				t.Errorf("%d problems: %s\nwant: %s", sum.Problems, found, c.want)
			}
			if c.want == "" && (sum.Readers != 1 || sum.Collections != 1 || sum.Documents != 9 || sum.Deletions != 1) {
				t.Errorf("%+v", sum)
			}
		})
	}
}

func TestRowsOfNothingAreSwept(t *testing.T) {
	fs := vfs.NewMem()
	must(t, some(t, fs).Close())
	left := [][]byte{
		indexPrefix(nil, rowIndex, 77, 1), indexPrefix(nil, rowIndex, 2, 99), indexPrefix(nil, rowUnique, 2, 99),
		rowKey(nil, rowDoc, 77), rowKey(nil, rowDeletion, 77), rowKey(nil, rowState, 77), rowKey(nil, rowPlace, 77), logRow(77, 1),
	}
	tamper(t, fs, func(b *pebble.Batch) {
		for _, k := range left {
			put(b, append(k, 0), nil)
		}
	})
	s, err := Open("views", Options{FS: fs})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	for _, k := range left {
		if _, err := s.get(s.db, append(k, 0)); !errors.Is(err, pebble.ErrNotFound) {
			t.Errorf("row %q: %v", k, err)
		}
	}
	if n, err := s.Count(context.Background(), "c"); n != 9 || err != nil {
		t.Errorf("%d documents are left, %v", n, err)
	}
}

func TestNewerFormat(t *testing.T) {
	fs := vfs.NewMem()
	must(t, some(t, fs).Close())
	tamper(t, fs, func(b *pebble.Batch) { put(b, keyFormat, binary.BigEndian.AppendUint32(nil, version+1)) })
	if _, err := Open("views", Options{FS: fs}); !errors.Is(err, store.ErrFormat) {
		t.Errorf("open: %v", err)
	}
	if _, err := Check(context.Background(), "views", Options{FS: fs}, nil); !errors.Is(err, store.ErrFormat) {
		t.Errorf("check: %v", err)
	}
}

func TestLocked(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	must(t, err)
	if _, err := Open(dir, Options{}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("open: %v", err)
	}
	if _, err := Check(context.Background(), dir, Options{}, nil); !errors.Is(err, store.ErrLocked) {
		t.Errorf("check: %v", err)
	}
	must(t, s.Close())
	s, err = Open(dir, Options{})
	must(t, err)
	must(t, s.Close())
}

func TestCheckpoint(t *testing.T) {
	ctx, fs := context.Background(), vfs.NewMem()
	s := some(t, fs)
	_, err := s.Commit(ctx, store.DocBatch{Reader: "r", From: 10, To: 11, Ops: []store.DocOp{{Collection: "c", Doc: store.Doc{Key: "late", Seq: 11, Body: []byte(`{"a":2}`)}}}})
	must(t, err)
	must(t, s.Checkpoint(ctx, "copy"))
	_, err = s.Commit(ctx, store.DocBatch{Reader: "r", From: 11, To: 12})
	must(t, err)
	if sum, found := findings(t, fs, "copy"); sum.Problems > 0 || sum.Commits != 1 {
		t.Errorf("%+v %s", sum, found)
	}
	c, err := Open("copy", Options{FS: fs})
	must(t, err)
	defer func() { must(t, c.Close()) }()
	r, err := c.Reader(ctx, "r")
	must(t, err)
	if _, err := c.Doc(ctx, "c", "late"); err != nil || r.Seq != 11 {
		t.Errorf("the copy is at %d, %v", r.Seq, err)
	}
}

func TestRowsAreWrittenAfterAWhile(t *testing.T) {
	ctx := context.Background()
	s, err := OpenMemory(Options{Age: time.Millisecond})
	must(t, err)
	must(t, s.Declare(ctx, benchReader("bench")))
	_, err = s.Commit(ctx, store.DocBatch{Reader: "bench", To: 1, Ops: []store.DocOp{{Collection: "bench", Doc: store.Doc{Key: "k", Seq: 1, Body: []byte(`{"host":1}`)}}}})
	must(t, err)
	r := s.readers["bench"]
	idle := func() bool {
		r.mu.RLock()
		defer r.mu.RUnlock()
		return len(r.active.docs[0]) == 0 && r.frozen == nil
	}
	for !idle() {
		runtime.Gosched()
	}
	if _, err := s.get(s.db, append(rowKey(nil, rowDoc, r.cols[0].id), 'k')); err != nil {
		t.Errorf("the row of the document: %v", err)
	}
	if _, err := s.Doc(ctx, "bench", "k"); err != nil {
		t.Error(err)
	}
	must(t, s.Close())
	if s.held.Load() != 0 {
		t.Errorf("%d bytes are held", s.held.Load())
	}
}
