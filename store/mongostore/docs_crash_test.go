package mongostore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"promethean/store"
	"promethean/store/mongostore"
	"promethean/store/storetest"
)

var errCrash = errors.New("the process has ended")

// docStep is something that a process does to documents.
type docStep struct {
	what string
	do   func(ctx context.Context, d store.Docs) error
}

func declareStep(reader string, indexes []store.Index, collections ...string) docStep {
	r := store.Reader{Name: reader, Meta: []byte("meta of " + reader)}
	for _, c := range collections {
		r.Collections = append(r.Collections, store.Collection{Name: c, Indexes: indexes})
	}
	return docStep{"declare " + reader, func(ctx context.Context, d store.Docs) error { return d.Declare(ctx, r) }}
}

// commitStep commits, unless it has been done.
func commitStep(reader string, from uint64, ops ...store.DocOp) docStep {
	return docStep{fmt.Sprintf("commit to %s from %d", reader, from), func(ctx context.Context, d store.Docs) error {
		_, err := d.Commit(ctx, store.DocBatch{Reader: reader, From: from, To: from + 10, Ops: ops})
		if r, broken := d.Reader(ctx, reader); errors.Is(err, store.ErrConflict) && broken == nil && r.Seq == from+10 {
			return nil
		}
		return err
	}}
}

func docOp(collection, key string, seq uint64, body string) store.DocOp {
	op := store.DocOp{Collection: collection, Doc: store.Doc{Key: key, TS: int64(seq), Seq: seq}}
	if body != "" {
		op.Body = json.RawMessage(body)
	}
	return op
}

// docSteps take documents through everything that has more than one write.
func docSteps() []docStep {
	x, y := store.Index{Fields: []string{"x"}}, store.Index{Fields: []string{"y"}, Unique: true}
	return []docStep{
		declareStep("r", []store.Index{x}, "a", "b"),
		commitStep("r", 0, docOp("a", "k", 1, `{"x":1,"y":1}`), docOp("b", "k", 2, `{"x":1}`), docOp("a", "l", 3, `{"x":2,"y":2}`), docOp("a", "gone", 4, "")),
		declareStep("r", []store.Index{x, y}, "a", "c"),
		commitStep("r", 10, docOp("a", "k", 11, `{"x":1,"y":3}`), docOp("c", "k", 12, `{"y":1}`), docOp("a", "l", 13, `{"x":3,"y":1}`)),
		{"forget", func(ctx context.Context, d store.Docs) error { return d.Forget(ctx, "a", 5) }},
		declareStep("r~next", []store.Index{x}, "a~next", "c~next"),
		commitStep("r~next", 0, docOp("a~next", "new", 5, `{"x":7}`), docOp("c~next", "new", 6, `{"x":8}`), docOp("a~next", "dead", 7, "")),
		{"replace", func(ctx context.Context, d store.Docs) error {
			err := d.Replace(ctx, "r", "r~next")
			if r, broken := d.Reader(ctx, "r"); errors.Is(err, store.ErrNotFound) && broken == nil && string(r.Meta) == "meta of r~next" {
				return nil // it was done
			}
			return err
		}},
		commitStep("r", 10, docOp("a", "new", 15, `{"x":9}`), docOp("c", "k", 16, `{"x":9}`)),
		declareStep("r~next", []store.Index{y}, "a~next"),
		{"drop", func(ctx context.Context, d store.Docs) error { return d.Drop(ctx, "r~next") }},
		declareStep("other", nil, "a~next"),
	}
}

// digestDocs tells all there is to know of documents.
func digestDocs(ctx context.Context, d store.Docs) (string, error) {
	var b strings.Builder
	each := func(what string, list func(func(store.Doc, error) bool)) error {
		fmt.Fprintf(&b, "  %s\n", what)
		for x, err := range list {
			if errors.Is(err, store.ErrGone) {
				b.WriteString("    gone\n")
				break
			}
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			fmt.Fprintf(&b, "    %s at %d: %s\n", x.Key, x.Seq, x.Body)
		}
		return nil
	}
	for r, err := range d.Readers(ctx) {
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "reader %s at %d, %s\n", r.Name, r.Seq, r.Meta)
		for _, c := range r.Collections {
			n, err := d.Count(ctx, c.Name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, " collection %s, %d documents, indexes %v\n", c.Name, n, c.Indexes)
			err = errors.Join(each("list", d.List(ctx, c.Name, store.DocQuery{})), each("changes", d.Changes(ctx, c.Name, 0)),
				each("later changes", d.Changes(ctx, c.Name, 4)))
			for _, x := range c.Indexes {
				for _, v := range []string{"1", "3", "7", "9"} {
					q := store.DocQuery{Filter: map[string][]json.RawMessage{x.Fields[0]: {json.RawMessage(v)}}}
					err = errors.Join(err, each(x.Fields[0]+" is "+v, d.List(ctx, c.Name, q)))
				}
			}
			if err != nil {
				return "", err
			}
		}
	}
	return b.String(), nil
}

// TestDocsCrash ends the process before every single write. The next one begins
// with the step in which that happened, and comes to the same documents.
func TestDocsCrash(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		ctx := deadline(t)
		ref := storetest.NewDocsReference()
		for _, step := range docSteps() {
			if err := step.do(ctx, ref); err != nil {
				t.Fatalf("reference: %s: %v", step.what, err)
			}
		}
		want, err := digestDocs(ctx, ref)
		if err != nil {
			t.Fatal(err)
		}
		crashes := 0
		for k := 1; crashAt(t, uri, k, want); k++ {
			crashes = k
		}
		if crashes < 30 {
			t.Fatalf("only %d writes", crashes)
		}
		t.Logf("%d crashes", crashes)
	})
}

// crashAt plays all steps with a crash at the k-th write, and says whether
// there was such a write.
func crashAt(t *testing.T, uri string, k int, want string) (crashed bool) {
	t.Helper()
	name := newDatabase(t, uri)
	d := openDocs(t, uri, mongostore.Options{Database: name})
	n := 0
	mongostore.HookDocs(docsOf(t, d), func() error {
		if n++; n >= k {
			return errCrash
		}
		return nil
	})
	for _, step := range docSteps() {
		err := step.do(deadline(t), d)
		if errors.Is(err, errCrash) && !crashed {
			crashed = true
			_ = d.Close()
			d = openDocs(t, uri, mongostore.Options{Database: name})
			if _, err := digestDocs(deadline(t), d); err != nil {
				t.Fatalf("crash at write %d, in %s: reading afterwards: %v", k, step.what, err)
			}
			err = step.do(deadline(t), d)
		}
		if err != nil {
			t.Fatalf("crash at write %d: %s: %v", k, step.what, err)
		}
	}
	got, err := digestDocs(deadline(t), d)
	if err != nil || got != want {
		t.Fatalf("crash at write %d: %v; got\n%s\nwant\n%s", k, err, got, want)
	}
	leftOver(t, uri, name)
	_ = d.Close()
	return crashed
}

// docsOf gives the documents that the suites' engine wraps.
func docsOf(t testing.TB, e storetest.DocsEngine) store.Docs {
	t.Helper()
	switch e := e.(type) {
	case *keptDocs:
		return e.Docs
	case *transactDocs:
		return e.Docs
	}
	t.Fatalf("a %T", e)
	return nil
}

// leftOver checks that no collections are there but those of readers.
func leftOver(t *testing.T, uri, name string) {
	t.Helper()
	client := connect(t, uri)
	defer func() { _ = client.Disconnect(context.Background()) }()
	names, err := client.Database(name).ListCollectionNames(deadline(t), map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		switch view, ok := strings.CutPrefix(n, "promethean_view_"); {
		case !ok, view == "a", view == "c", view == "a~next":
		default:
			t.Fatalf("collection %s is left over", n)
		}
	}
}

// TestDocsReplaceIsDecided ends the process at every write of a Replace. The
// next one does not look at the reader that was to be replaced, and declares
// the other one anew: it is either still as it was, or new and empty, and then
// nothing of it is mistaken for what has been moved.
func TestDocsReplaceIsDecided(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		ctx := deadline(t)
		outcomes := make(map[bool]int)
		for k := 1; ; k++ {
			name := newDatabase(t, uri)
			d := openDocs(t, uri, mongostore.Options{Database: name})
			for _, step := range docSteps()[:7] {
				if err := step.do(ctx, d); err != nil {
					t.Fatal(err)
				}
			}
			n := 0
			mongostore.HookDocs(docsOf(t, d), func() error {
				if n++; n >= k {
					return errCrash
				}
				return nil
			})
			err := d.Replace(ctx, "r", "r~next")
			_ = d.Close()
			d = openDocs(t, uri, mongostore.Options{Database: name})
			if err := declareStep("r~next", nil, "a~next", "c~next").do(ctx, d); err != nil {
				t.Fatal(err)
			}
			old, oldErr := d.Reader(ctx, "r")
			next, nextErr := d.Reader(ctx, "r~next")
			if err := errors.Join(oldErr, nextErr); err != nil {
				t.Fatal(err)
			}
			replaced := string(old.Meta) == "meta of r~next"
			outcomes[replaced]++
			holder, other, place := "a~next", "a", uint64(10)
			if replaced {
				holder, other, place = "a", "a~next", 0
			}
			_, errHolder := d.Doc(ctx, holder, "new")
			_, errOther := d.Doc(ctx, other, "new")
			if errHolder != nil || !errors.Is(errOther, store.ErrNotFound) || next.Seq != place {
				t.Fatalf("crash at write %d: replaced %v, r~next at %d, document in %s: %v, in %s: %v", k, replaced, next.Seq, holder, errHolder, other, errOther)
			}
			if err == nil {
				break
			}
			if !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
		}
		if outcomes[true] < 3 || outcomes[false] < 1 {
			t.Fatalf("outcomes %v", outcomes)
		}
	})
}
