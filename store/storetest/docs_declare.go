package storetest

import (
	"strings"

	"promethean/store"
)

var docsDeclareCases = []docsCase{
	{name: "declare/names are checked", run: func(t *docsTrial) {
		for _, name := range []string{"", strings.Repeat("n", 129), "a b", "a/b", "ä", "a\x00", "a$"} {
			t.fails(t.d.Declare(t.ctx, store.Reader{Name: name}), store.ErrInvalid, "reader %q", name)
			t.fails(t.d.Declare(t.ctx, readerOf("r", nil, name)), store.ErrInvalid, "collection %q", name)
		}
		t.fails(t.d.Declare(t.ctx, readerOf("r", nil, "a", "a")), store.ErrInvalid, "one name twice")
		if got := readersOf(t); len(got) != 0 {
			t.Fatalf("readers %q after declarations that were refused", got)
		}
		for _, name := range []string{"a", strings.Repeat("n", 128), "azAZ09._-~:", "changelog:x", "x~next"} {
			t.declare(name, nil, name)
			t.commit(name, putOp(name, "k", 1, `{}`))
			t.wantDoc(name, putOp(name, "k", 1, `{}`))
		}
	}},
	{name: "declare/indexes are checked", run: func(t *docsTrial) {
		for _, x := range []store.Index{on(), on(""), on("a", "a")} {
			t.fails(t.d.Declare(t.ctx, readerOf("r", []store.Index{x}, "c")), store.ErrInvalid, "index %q", x.Fields)
		}
	}},
	{name: "declare/a new reader is at 0", run: func(t *docsTrial) {
		r := readerOf("r", []store.Index{on("a"), only("b", "c")}, "c", "d")
		r.Seq, r.Meta = 7, []byte("\x00meta\xff")
		t.ok(t.d.Declare(t.ctx, r), "declare")
		got, err := t.d.Reader(t.ctx, "r")
		t.ok(err, "reader")
		if got.Seq != 0 || string(got.Meta) != string(r.Meta) || len(got.Collections) != 2 ||
			got.Collections[0].Name != "c" || got.Collections[1].Name != "d" || len(got.Collections[1].Indexes) != 2 ||
			!got.Collections[1].Indexes[1].Unique || strings.Join(got.Collections[1].Indexes[1].Fields, ",") != "b,c" {
			t.Fatalf("reader: %+v", got)
		}
	}},
	{name: "declare/again keeps place and documents, and replaces meta", run: func(t *docsTrial) {
		r := readerOf("r", nil, "c")
		r.Meta = []byte("one")
		t.ok(t.d.Declare(t.ctx, r), "declare")
		op := putOp("c", "k", 1, `{"a":1}`)
		t.inAllPlaces(func() {
			t.commit("r", op)
			place := t.place("r")
			r.Meta = append(r.Meta, '+')
			t.ok(t.d.Declare(t.ctx, r), "declare again")
			got, err := t.d.Reader(t.ctx, "r")
			t.ok(err, "reader")
			if got.Seq != place || string(got.Meta) != string(r.Meta) {
				t.Fatalf("reader at %d with meta %q, want %d and %q", got.Seq, got.Meta, place, r.Meta)
			}
			t.wantDoc("c", op)
		})
	}},
	{name: "declare/an index is built over what is there", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		t.commit("r", putOp("c", "a", 1, `{"x":1,"y":"u"}`), putOp("c", "b", 2, `{"x":2,"y":"u"}`), putOp("c", "gone", 3, `{"x":1}`))
		t.commit("r", putOp("c", "gone", 4, ""), putOp("c", "plain", 5, `{}`))
		t.declare("r", []store.Index{on("x"), on("y", "x")}, "c")
		t.inAllPlaces(func() {
			t.wantList("c", store.DocQuery{Filter: where("x", "1")}, "a")
			t.wantList("c", store.DocQuery{Filter: where("y", `"u"`)}, "b", "a")
			t.wantList("c", store.DocQuery{Filter: where("y", `"u"`, "x", "2")}, "b")
		})
		t.commit("r", putOp("c", "a", 6, `{"x":2}`))
		t.wantList("c", store.DocQuery{Filter: where("x", "2")}, "a", "b")
		t.declare("r", []store.Index{on("y")}, "c")
		_, err := collect2(t.d.List(t.ctx, "c", store.DocQuery{Filter: where("x", "2")}))
		t.fails(err, store.ErrInvalid, "filter on an index that was dropped")
		t.commit("r", putOp("c", "a", 7, `{"x":3,"y":"v"}`))
		t.declare("r", []store.Index{on("x"), on("y")}, "c")
		t.inAllPlaces(func() {
			t.wantList("c", store.DocQuery{Filter: where("x", "2")}, "b")
			t.wantList("c", store.DocQuery{Filter: where("x", "3")}, "a")
		})
	}},
	{name: "declare/a unique index is not built over equal values", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("x")}, "c")
		t.commit("r", putOp("c", "a", 1, `{"x":1}`), putOp("c", "b", 2, `{"x":1.0}`), putOp("c", "c", 3, `{}`), putOp("c", "d", 4, `{}`))
		before := digestReader(t.ctx, t.d, "r")
		t.fails(t.d.Declare(t.ctx, readerOf("r", []store.Index{only("x")}, "c")), store.ErrUnique, "declare")
		t.same("r", before)
		t.commit("r", putOp("c", "b", 5, `{"x":2}`))
		t.declare("r", []store.Index{only("x")}, "c")
		t.refused("r", 0, store.ErrUnique, putOp("c", "e", 6, `{"x":2}`))
	}},
	{name: "declare/a collection that is not named is dropped", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("x")}, "a", "b")
		t.commit("r", putOp("a", "k", 1, `{"x":1}`), putOp("b", "k", 1, `{"x":1}`))
		t.declare("r", []store.Index{on("x")}, "b", "c")
		t.noDoc("a", "k")
		t.wantDoc("b", putOp("b", "k", 1, `{"x":1}`))
		_, err := t.d.Count(t.ctx, "a")
		t.fails(err, store.ErrNotFound, "count of a dropped collection")
		t.declare("r", []store.Index{on("x")}, "b", "a")
		t.noDoc("a", "k")
		t.wantList("a", store.DocQuery{})
		t.commit("r", putOp("a", "k", 1, `{"x":2}`)) // not stale: what was dropped is not remembered
		t.wantList("a", store.DocQuery{Filter: where("x", "2")}, "k")
	}},
	{name: "declare/a collection has one reader", run: func(t *docsTrial) {
		t.declare("r", nil, "a")
		t.declare("other", nil, "b")
		before := digestReader(t.ctx, t.d, "other")
		t.fails(t.d.Declare(t.ctx, readerOf("other", nil, "c", "a")), store.ErrConflict, "another's collection")
		t.fails(t.d.Declare(t.ctx, readerOf("third", nil, "a")), store.ErrConflict, "another's collection")
		t.same("other", before)
		_, err := t.d.Reader(t.ctx, "third")
		t.fails(err, store.ErrNotFound, "a reader that was refused")
		_, err = t.try("other", putOp("a", "k", 1, `{}`))
		t.fails(err, store.ErrNotFound, "commit to another's collection")
	}},
	{name: "declare/readers come by name", run: func(t *docsTrial) {
		for _, name := range []string{"b", "a", "c", "B", "a~next"} {
			t.declare(name, nil, "of."+name)
		}
		if got := strings.Join(readersOf(t), " "); got != "B a a~next b c" {
			t.Fatalf("readers: %s", got)
		}
		for range t.d.Readers(t.ctx) {
			break
		}
		_, err := t.d.Reader(t.ctx, "none")
		t.fails(err, store.ErrNotFound, "reader")
	}},
	{name: "replace/documents, place, meta and indexes change hands", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("x")}, "a", "b")
		t.commit("r", putOp("a", "old", 1, `{"x":1}`), putOp("b", "old", 1, `{"x":1}`))
		next := readerOf("r~next", []store.Index{on("y")}, "n1", "n2")
		next.Meta = []byte("new")
		t.ok(t.d.Declare(t.ctx, next), "declare")
		t.commit("r~next", putOp("n1", "k1", 4, `{"y":1}`), putOp("n1", "dead", 4, ""), putOp("n2", "k2", 5, `{"y":2}`))
		t.flush()
		t.commit("r~next", putOp("n1", "k3", 6, `{"y":1}`))
		t.ok(t.d.Replace(t.ctx, "r", "r~next"), "replace")
		t.inAllPlaces(func() {
			r, err := t.d.Reader(t.ctx, "r")
			t.ok(err, "reader")
			if r.Seq != 2 || string(r.Meta) != "new" || r.Collections[0].Name != "a" || r.Collections[1].Name != "b" || r.Collections[0].Indexes[0].Fields[0] != "y" {
				t.Fatalf("reader after replace: %+v", r)
			}
			t.wantList("a", store.DocQuery{Filter: where("y", "1")}, "k3", "k1")
			t.wantList("b", store.DocQuery{}, "k2")
			t.noDoc("a", "old")
			n, err := t.d.Count(t.ctx, "a")
			if err != nil || n != 2 {
				t.Fatalf("count %d, %v; want 2", n, err)
			}
			_, err = t.d.Reader(t.ctx, "r~next")
			t.fails(err, store.ErrNotFound, "the reader that replaced")
			t.noDoc("n1", "k1")
		})
		if n := t.commit("r", putOp("a", "dead", 3, `{}`)); n != 1 {
			t.Fatal("a deletion was not remembered over Replace")
		}
		t.declare("r~next", nil, "n1", "n2")
		t.wantList("n1", store.DocQuery{})
		if p := t.place("r~next"); p != 0 {
			t.Fatalf("a new reader is at %d", p)
		}
	}},
	{name: "replace/what does not fit is refused", run: func(t *docsTrial) {
		t.declare("r", nil, "a")
		t.declare("two", nil, "b", "c")
		before := digestReader(t.ctx, t.d, "r")
		t.fails(t.d.Replace(t.ctx, "r", "none"), store.ErrNotFound, "by none")
		t.fails(t.d.Replace(t.ctx, "none", "r"), store.ErrNotFound, "of none")
		t.fails(t.d.Replace(t.ctx, "r", "two"), store.ErrInvalid, "one collection by two")
		t.fails(t.d.Replace(t.ctx, "r", "r"), store.ErrInvalid, "by itself")
		t.same("r", before)
	}},
	{name: "drop/a reader and its collections go", run: func(t *docsTrial) {
		t.ok(t.d.Drop(t.ctx, "none"), "drop of none")
		t.declare("r", []store.Index{only("x")}, "a")
		t.declare("other", []store.Index{only("x")}, "b")
		t.inAllPlaces(func() {
			t.declare("r", []store.Index{only("x")}, "a")
			t.commit("r", putOp("a", "k", 9, `{"x":1}`), putOp("a", "dead", 9, ""))
			t.commit("other", putOp("b", "k", 9, `{"x":1}`))
			t.flush()
			t.commit("r", putOp("a", "l", 10, `{"x":2}`))
			t.ok(t.d.Drop(t.ctx, "r"), "drop")
			_, err := t.d.Reader(t.ctx, "r")
			t.fails(err, store.ErrNotFound, "reader")
			_, err = t.d.Commit(t.ctx, store.DocBatch{Reader: "r"})
			t.fails(err, store.ErrNotFound, "commit")
			t.noDoc("a", "k")
			t.wantDoc("b", putOp("b", "k", 9, `{"x":1}`))
			t.declare("r", []store.Index{only("x")}, "a")
			if t.place("r") != 0 {
				t.Fatal("a reader that was dropped kept its place")
			}
			if n := t.commit("r", putOp("a", "m", 1, `{"x":1}`), putOp("a", "dead", 1, `{}`)); n != 0 {
				t.Fatal("something of a dropped reader is remembered")
			}
			t.wantList("a", store.DocQuery{}, "dead", "m")
			t.ok(t.d.Drop(t.ctx, "r"), "drop")
		})
	}},
}

func readersOf(t *docsTrial) (names []string) {
	t.Helper()
	list, err := collect2(t.d.Readers(t.ctx))
	t.ok(err, "readers")
	for _, r := range list {
		names = append(names, r.Name)
	}
	return names
}
