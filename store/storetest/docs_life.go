package storetest

import (
	"context"
	"fmt"
	"math"
	"slices"

	"promethean/store"
)

// wantChanges checks what changed after a seq.
func (t *docsTrial) wantChanges(collection string, after uint64, want ...store.DocOp) {
	t.Helper()
	docs, err := collect2(t.d.Changes(t.ctx, collection, after))
	t.ok(err, "changes after %d", after)
	got, expected := []string{}, []string{}
	for _, d := range docs {
		got = append(got, describeDoc(d))
	}
	for _, op := range want {
		expected = append(expected, describeDoc(op.Doc))
	}
	if !slices.Equal(got, expected) {
		t.Fatalf("changes after %d: %q, want %q", after, got, expected)
	}
}

var docsChangeCases = []docsCase{
	{name: "changes/come in the order of seq, as they still are", run: func(t *docsTrial) {
		t.declare("r", nil, "c", "other")
		a, b, c := putOp("c", "a", 6, `{"n":6}`), putOp("c", "b", 2, `{"n":2}`), versioned(putOp("c", "c", 5, ""), 9)
		t.commit("r", putOp("c", "a", 1, `{"n":1}`), b, versioned(putOp("c", "c", 3, `{"n":3}`), 9), putOp("other", "o", 1, `{}`))
		t.flush()
		t.commit("r", atTime(a, -5), putOp("c", "c", 5, ""))
		t.commit("r", putOp("c", "d", 4, `{"n":4}`))
		a.TS = -5
		d := putOp("c", "d", 4, `{"n":4}`)
		t.inAllPlaces(func() {
			t.wantChanges("c", 0, b, d, c, a)
			t.wantChanges("c", 2, d, c, a)
			t.wantChanges("c", 5, a)
			t.wantChanges("c", 6)
			t.wantChanges("c", math.MaxUint64)
		})
	}},
	{name: "changes/of many documents", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		const n = 3000
		for from := uint64(0); from < n; from += 500 {
			var ops []store.DocOp
			for i := from; i < from+500; i++ {
				ops = append(ops, putOp("c", fmt.Sprint(i*7919%n), i+1, `{}`))
			}
			t.commit("r", ops...)
			if from == n/2 {
				t.flush()
			}
		}
		t.inAllPlaces(func() {
			for _, after := range []uint64{0, 1000, n - 1} {
				want := after
				for d, err := range t.d.Changes(t.ctx, "c", after) {
					t.ok(err, "changes")
					if want++; d.Seq != want {
						t.Fatalf("seq %d, want %d", d.Seq, want)
					}
				}
				if want != n {
					t.Fatalf("the last one has seq %d, want %d", want, n)
				}
			}
		})
	}},
	{name: "forget/deletions up to a seq", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		t.commit("r", putOp("c", "a", 1, `{}`), putOp("c", "b", 2, ""), putOp("c", "c", 5, ""), putOp("c", "d", 9, ""))
		t.ok(t.d.Forget(t.ctx, "c", 1), "forget what there is not")
		t.wantChanges("c", 0, putOp("c", "a", 1, `{}`), putOp("c", "b", 2, ""), putOp("c", "c", 5, ""), putOp("c", "d", 9, ""))
		t.ok(t.d.Forget(t.ctx, "c", 7), "forget")
		t.inAllPlaces(func() {
			for _, after := range []uint64{0, 4} {
				docs, err := collect2(t.d.Changes(t.ctx, "c", after))
				t.fails(err, store.ErrGone, "changes after %d", after)
				if len(docs) > 0 {
					t.Fatal("some changes came before the error")
				}
			}
			t.wantChanges("c", 5, putOp("c", "d", 9, "")) // nothing between 5 and 7 was forgotten
			t.wantDoc("c", putOp("c", "a", 1, `{}`))
			if n, err := t.d.Count(t.ctx, "c"); err != nil || n != 1 {
				t.Fatalf("count %d, %v; want 1", n, err)
			}
		})
		if n := t.commit("r", putOp("c", "b", 1, `{}`), putOp("c", "d", 8, `{}`)); n != 1 {
			t.Fatalf("%d stale, want the one that is remembered", n)
		}
		t.ok(t.d.Forget(t.ctx, "c", math.MaxUint64), "forget all")
		t.wantChanges("c", 9)
		if n := t.commit("r", putOp("c", "d", 8, `{}`)); n != 0 {
			t.Fatal("a forgotten deletion guards")
		}
		t.wantList("c", store.DocQuery{}, "d", "a", "b")
	}},
	{name: "count/follows documents", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		want := func(n int64) {
			t.Helper()
			t.inAllPlaces(func() {
				if got, err := t.d.Count(t.ctx, "c"); err != nil || got != n {
					t.Fatalf("count %d, %v; want %d", got, err, n)
				}
			})
		}
		want(0)
		t.commit("r", putOp("c", "a", 1, `{}`), putOp("c", "b", 1, `{}`), putOp("c", "a", 2, `{}`))
		want(2)
		t.commit("r", putOp("c", "a", 3, ""), putOp("c", "a", 4, ""), putOp("c", "none", 4, ""), putOp("c", "b", 1, ""))
		want(1)
		t.commit("r", putOp("c", "a", 5, `{}`))
		want(2)
	}},
}

var docsLifeCases = []docsCase{
	{name: "life/what was synced is there again", reopens: true, run: func(t *docsTrial) {
		r := readerOf("r", []store.Index{on("n"), only("u")}, "c", "d")
		r.Meta = []byte("meta")
		t.ok(t.d.Declare(t.ctx, r), "declare")
		t.declare("gone", nil, "gone")
		t.commit("r", putOp("c", "a", 1, `{"n":1,"u":1}`), putOp("d", "a", 1, `{"n":1}`), putOp("c", "b", 2, ""))
		t.flush()
		t.commit("r", versioned(putOp("c", "a", 3, `{"n":2,"u":2}`), 4), putOp("c", "c", 3, `{"n":2,"u":1}`), putOp("c", "d", 4, ""))
		t.ok(t.d.Forget(t.ctx, "c", 2), "forget")
		t.ok(t.d.Drop(t.ctx, "gone"), "drop")
		t.commit("r", putOp("d", "b", 4, `{"n":3}`))
		before := digestReader(t.ctx, t.d, "r")
		t.ok(t.d.Sync(t.ctx), "sync")
		for range 3 {
			t.d = t.h.Reopen(t, t.d)
			t.same("r", before)
			t.wantList("c", store.DocQuery{Filter: where("n", "2")}, "a", "c")
			t.refused("r", 0, store.ErrUnique, putOp("c", "x", 9, `{"u":2}`))
			if got := readersOf(t); len(got) != 1 {
				t.Fatalf("readers %q", got)
			}
			t.flush()
		}
		t.declare("new", nil, "new")
		t.wantList("new", store.DocQuery{})
	}},
	{name: "life/after Close all calls fail", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		t.commit("r", putOp("c", "k", 1, `{}`))
		t.ok(t.d.Close(), "close")
		t.ok(t.d.Close(), "close again")
		for name, err := range docsCalls(t.ctx, t.d) {
			t.fails(err, store.ErrClosed, "%s after Close", name)
		}
	}},
	{name: "life/Close ends what is under way", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		var ops []store.DocOp
		for i := range 2000 {
			ops = append(ops, putOp("c", fmt.Sprint(i), 1, `{}`))
		}
		t.commit("r", ops...)
		var last error
		n := 0
		for _, err := range t.d.List(t.ctx, "c", store.DocQuery{}) {
			if last = err; err != nil {
				break
			}
			if n++; n == 1 {
				t.ok(t.d.Close(), "close during a list")
			}
		}
		t.fails(last, store.ErrClosed, "list over Close")
	}},
	{name: "life/a cancelled context ends calls", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		before := digestReader(t.ctx, t.d, "r")
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		for name, err := range docsCalls(ctx, t.d) {
			t.fails(err, context.Canceled, "%s with a cancelled context", name)
		}
		t.same("r", before)
	}},
}

// docsCalls makes every call and gives their errors.
func docsCalls(ctx context.Context, d store.Docs) map[string]error {
	out := make(map[string]error)
	out["Declare"] = d.Declare(ctx, readerOf("other", nil, "d"))
	_, out["Reader"] = d.Reader(ctx, "r")
	_, out["Readers"] = collect2(d.Readers(ctx))
	_, out["Commit"] = d.Commit(ctx, store.DocBatch{Reader: "r", From: 1, To: 2, Ops: []store.DocOp{putOp("c", "k", 2, `{}`)}})
	out["Sync"] = d.Sync(ctx)
	_, out["Doc"] = d.Doc(ctx, "c", "k")
	_, out["List"] = collect2(d.List(ctx, "c", store.DocQuery{}))
	_, out["Changes"] = collect2(d.Changes(ctx, "c", 0))
	out["Forget"] = d.Forget(ctx, "c", 1)
	_, out["Count"] = d.Count(ctx, "c")
	out["Replace"] = d.Replace(ctx, "r", "other")
	out["Drop"] = d.Drop(ctx, "r")
	return out
}
