package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"promethean/store"
)

// DocsEngine is what the suites about documents judge. The ability
// [store.Transacts] is found by assertion.
type DocsEngine interface {
	store.Docs
	Close() error
}

// DocsHarness tells the suites about documents how to get at an engine.
type DocsHarness struct {
	// Name is the engine's, for messages.
	Name string
	// Open opens an empty store of its own each time and registers a cleanup
	// that closes it. The suites may have closed it by then.
	Open func(t testing.TB) DocsEngine
	// Reopen closes e and opens the same data again, with a cleanup as in
	// Open. Default nil: the engine keeps nothing, and the cases that need it
	// are skipped.
	Reopen func(t testing.TB, e DocsEngine) DocsEngine
	// Flush writes out what the engine keeps in memory, if it keeps anything
	// there, so that cases meet documents in all places. Default nil: it does
	// not.
	Flush func(t testing.TB, e DocsEngine)
	// Skip declares cases that the engine does not meet, with the reason, by
	// their names or themes. Default: none.
	Skip map[string]string
	// Timeout bounds each case. Default 1 minute.
	Timeout time.Duration
}

// docsCase is one promise and the code that tries it.
type docsCase struct {
	name string
	// atomic is about what only engines that Transacts promise.
	atomic, reopens bool
	run             func(*docsTrial)
}

// RunDocs runs all conformance cases about documents as subtests of t.
func RunDocs(t *testing.T, h DocsHarness) {
	cases := slices.Concat(docsDeclareCases, docsCommitCases, docsUniqueCases, docsListCases, docsChangeCases, docsLifeCases)
	for name := range h.Skip {
		if !slices.ContainsFunc(cases, func(c docsCase) bool { return c.name == name || strings.HasPrefix(c.name, name+"/") }) {
			t.Errorf("storetest: Skip names %q, and there is no such case or theme", name)
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			theme, _, _ := strings.Cut(c.name, "/")
			for _, name := range []string{c.name, theme} {
				if reason, ok := h.Skip[name]; ok {
					t.Skipf("%s: declared: %s", h.Name, reason)
				}
			}
			if c.reopens && h.Reopen == nil {
				t.Skipf("%s: keeps nothing over Close", h.Name)
			}
			if h.Timeout == 0 {
				h.Timeout = time.Minute
			}
			ctx, cancel := context.WithTimeout(context.Background(), h.Timeout)
			defer cancel()
			x := &docsTrial{TB: t, h: h, ctx: ctx, d: h.Open(t)}
			if _, ok := x.d.(store.Transacts); !ok && c.atomic {
				t.Skipf("%s: lacks the ability Transacts", h.Name)
			}
			c.run(x)
		})
	}
}

// docsTrial is one run of a case.
type docsTrial struct {
	testing.TB
	h   DocsHarness
	ctx context.Context
	d   DocsEngine
}

func (t *docsTrial) ok(err error, what string, args ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", fmt.Sprintf(what, args...), err)
	}
}

// fails checks that err is kind.
func (t *docsTrial) fails(err, kind error, what string, args ...any) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%s: %v, want %q", fmt.Sprintf(what, args...), err, kind)
	}
}

// declare declares a reader with collections of the same indexes.
func (t *docsTrial) declare(reader string, indexes []store.Index, collections ...string) {
	t.Helper()
	t.ok(t.d.Declare(t.ctx, readerOf(reader, indexes, collections...)), "declare %s", reader)
}

func readerOf(reader string, indexes []store.Index, collections ...string) store.Reader {
	r := store.Reader{Name: reader}
	for _, c := range collections {
		r.Collections = append(r.Collections, store.Collection{Name: c, Indexes: indexes})
	}
	return r
}

// on makes an index over fields.
func on(fields ...string) store.Index { return store.Index{Fields: fields} }

// only makes a unique one.
func only(fields ...string) store.Index { return store.Index{Fields: fields, Unique: true} }

// putOp makes an operation; an empty body deletes.
func putOp(collection, key string, seq uint64, body string) store.DocOp {
	op := store.DocOp{Collection: collection, Doc: store.Doc{Key: key, TS: int64(seq), Seq: seq}}
	if body != "" {
		op.Body = json.RawMessage(body)
	}
	return op
}

// versioned gives an operation a version.
func versioned(op store.DocOp, v int64) store.DocOp {
	op.Version = &v
	return op
}

// atTime gives an operation another time.
func atTime(op store.DocOp, ts int64) store.DocOp {
	op.TS = ts
	return op
}

// place is where a reader is.
func (t *docsTrial) place(reader string) uint64 {
	t.Helper()
	r, err := t.d.Reader(t.ctx, reader)
	t.ok(err, "reader %s", reader)
	return r.Seq
}

// commit commits operations, one step further, and gives how many were stale.
func (t *docsTrial) commit(reader string, ops ...store.DocOp) int {
	t.Helper()
	stale, err := t.try(reader, ops...)
	t.ok(err, "commit")
	return stale
}

func (t *docsTrial) try(reader string, ops ...store.DocOp) (int, error) {
	t.Helper()
	from := t.place(reader)
	return t.d.Commit(t.ctx, store.DocBatch{Reader: reader, From: from, To: from + 1, Ops: ops})
}

// refused checks that a commit is refused because of one operation, and that it
// changed nothing.
func (t *docsTrial) refused(reader string, op int, kind error, ops ...store.DocOp) {
	t.Helper()
	before := digestReader(t.ctx, t.d, reader)
	_, err := t.try(reader, ops...)
	var de *store.DocError
	if !errors.As(err, &de) || de.Op != op || !errors.Is(err, kind) {
		t.Fatalf("commit: %v, want a DocError about operation %d: %q", err, op, kind)
	}
	t.same(reader, before)
}

// same checks that a reader has not changed.
func (t *docsTrial) same(reader, before string) {
	t.Helper()
	if now := digestReader(t.ctx, t.d, reader); now != before {
		t.Fatalf("something has changed: it was\n%s\nand is\n%s", before, now)
	}
}

// flush writes out what the engine has in memory.
func (t *docsTrial) flush() {
	t.Helper()
	if t.h.Flush != nil {
		t.h.Flush(t, t.d)
	}
}

// inAllPlaces tries something with all documents in memory, and with all
// written out.
func (t *docsTrial) inAllPlaces(fn func()) {
	t.Helper()
	fn()
	t.flush()
	fn()
}

// list gives the keys that a query selects.
func (t *docsTrial) list(collection string, q store.DocQuery) []string {
	t.Helper()
	docs, err := collect2(t.d.List(t.ctx, collection, q))
	t.ok(err, "list %s %v", collection, q)
	return keysOf(docs)
}

func keysOf(docs []store.Doc) []string {
	out := []string{}
	for _, d := range docs {
		out = append(out, d.Key)
	}
	return out
}

// collect2 collects what a sequence yields up to the first error.
func collect2[T any](seq iter.Seq2[T, error]) (out []T, err error) {
	for x, err := range seq {
		if err != nil {
			return out, err
		}
		out = append(out, x)
	}
	return out, nil
}

// wantList checks the keys that a filter selects.
func (t *docsTrial) wantList(collection string, q store.DocQuery, want ...string) {
	t.Helper()
	if got := t.list(collection, q); !slices.Equal(got, want) && len(got)+len(want) > 0 {
		t.Fatalf("list %s %s: %q, want %q", collection, describeQuery(q), got, want)
	}
}

func describeQuery(q store.DocQuery) string {
	text, _ := json.Marshal(q)
	return string(text)
}

// where makes a filter of pairs of a field and a JSON value; a field that comes
// again has several.
func where(pairs ...string) map[string][]json.RawMessage {
	out := make(map[string][]json.RawMessage)
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = append(out[pairs[i]], json.RawMessage(pairs[i+1]))
	}
	return out
}

// wantDoc checks a document.
func (t *docsTrial) wantDoc(collection string, op store.DocOp) {
	t.Helper()
	d, err := t.d.Doc(t.ctx, collection, op.Key)
	t.ok(err, "document %q", op.Key)
	if got, want := describeDoc(d), describeDoc(op.Doc); got != want {
		t.Fatalf("document: %s, want %s", got, want)
	}
}

// noDoc checks that there is none.
func (t *docsTrial) noDoc(collection, key string) {
	t.Helper()
	_, err := t.d.Doc(t.ctx, collection, key)
	t.fails(err, store.ErrNotFound, "document %q of %s", key, collection)
}

func describeDoc(d store.Doc) string {
	version := "none"
	if d.Version != nil {
		version = fmt.Sprint(*d.Version)
	}
	body := string(d.Body)
	if d.Body == nil {
		body = "deleted"
	}
	return fmt.Sprintf("%q ts %d seq %d version %s %s", d.Key, d.TS, d.Seq, version, body)
}

// remembered finds the smallest seq after which all changes are remembered.
func remembered(ctx context.Context, d store.Docs, collection string) uint64 {
	least, most := uint64(0), uint64(1<<14) // no workload goes further
	if _, err := collect2(d.Changes(ctx, collection, 0)); !errors.Is(err, store.ErrGone) {
		return 0
	}
	for least < most {
		mid := least + (most-least)/2
		if _, err := collect2(d.Changes(ctx, collection, mid)); errors.Is(err, store.ErrGone) {
			least = mid + 1
		} else {
			most = mid
		}
	}
	return least
}

// digestReader tells all there is to know of a reader, in words; "" if there is
// none.
func digestReader(ctx context.Context, d store.Docs, name string) string {
	r, err := d.Reader(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s at %d meta %s %v\n", r.Name, r.Seq, r.Meta, err)
	for _, c := range r.Collections {
		n, err := d.Count(ctx, c.Name)
		fmt.Fprintf(&b, "collection %s indexes %v count %d %v\n", c.Name, c.Indexes, n, err)
		docs, err := collect2(d.List(ctx, c.Name, store.DocQuery{}))
		fmt.Fprintf(&b, "list %v\n", err)
		for _, x := range docs {
			fmt.Fprintln(&b, describeDoc(x))
		}
		after := remembered(ctx, d, c.Name)
		docs, err = collect2(d.Changes(ctx, c.Name, after))
		fmt.Fprintf(&b, "changes after %d %v\n", after, err)
		for _, x := range docs {
			fmt.Fprintln(&b, describeDoc(x))
		}
	}
	return b.String()
}
