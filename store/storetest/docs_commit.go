package storetest

import (
	"encoding/json"
	"fmt"
	"strings"

	"promethean/event"
	"promethean/store"
)

var docsCommitCases = []docsCase{
	{name: "commit/place is compared and set", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		batch := func(from, to uint64, body string) error {
			_, err := t.d.Commit(t.ctx, store.DocBatch{Reader: "r", From: from, To: to, Ops: []store.DocOp{putOp("c", "k", to, body)}})
			return err
		}
		t.ok(batch(0, 10, `{"n":1}`), "commit")
		before := digestReader(t.ctx, t.d, "r")
		t.fails(batch(0, 20, `{"n":2}`), store.ErrConflict, "from a place before")
		t.fails(batch(11, 20, `{"n":2}`), store.ErrConflict, "from a place after")
		t.same("r", before)
		t.flush()
		t.fails(batch(0, 20, `{"n":2}`), store.ErrConflict, "from a place before")
		t.ok(batch(10, 12, `{"n":3}`), "commit")
		t.wantDoc("c", putOp("c", "k", 12, `{"n":3}`))
		_, err := t.d.Commit(t.ctx, store.DocBatch{Reader: "r", From: 12, To: 15})
		t.ok(err, "commit without operations")
		if p := t.place("r"); p != 15 {
			t.Fatalf("place %d after a commit without operations, want 15", p)
		}
	}},
	{name: "commit/what is unknown is not found", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		_, err := t.d.Commit(t.ctx, store.DocBatch{Reader: "none"})
		t.fails(err, store.ErrNotFound, "unknown reader")
		before := digestReader(t.ctx, t.d, "r")
		_, err = t.try("r", putOp("none", "k", 1, `{}`))
		t.fails(err, store.ErrNotFound, "unknown collection")
		t.same("r", before)
		_, err = t.d.Doc(t.ctx, "none", "k")
		t.fails(err, store.ErrNotFound, "document of an unknown collection")
		_, err = t.d.Count(t.ctx, "none")
		t.fails(err, store.ErrNotFound, "count of an unknown collection")
		_, err = collect2(t.d.List(t.ctx, "none", store.DocQuery{}))
		t.fails(err, store.ErrNotFound, "list of an unknown collection")
		_, err = collect2(t.d.Changes(t.ctx, "none", 0))
		t.fails(err, store.ErrNotFound, "changes of an unknown collection")
		t.fails(t.d.Forget(t.ctx, "none", 0), store.ErrNotFound, "forget of an unknown collection")
		t.noDoc("c", "k")
	}},
	{name: "commit/a body is a JSON object", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("a")}, "c")
		for _, body := range []string{`[]`, `1`, `"x"`, `null`, `true`, `{`, `{"a"}`, `{}{}`, `{"a":01}`, `{"a":1,}`, "{\"a\":\"\xff\"}", ` `} {
			t.refused("r", 0, store.ErrInvalid, putOp("c", "k", 1, body))
		}
		op := putOp("c", "k", 1, "x")
		op.Body = json.RawMessage{}
		t.refused("r", 0, store.ErrInvalid, op)
	}},
	{name: "commit/a key has 1 to MaxKey bytes", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		t.refused("r", 0, store.ErrInvalid, putOp("c", "", 1, `{}`))
		t.refused("r", 0, store.ErrInvalid, putOp("c", strings.Repeat("k", event.MaxKey+1), 1, `{}`))
		for _, key := range []string{strings.Repeat("k", event.MaxKey), "a/b", "ä€𝄞", " ", "\x00", "a\x00b", "$x.y"} {
			op := putOp("c", key, 1, `{}`)
			t.commit("r", op)
			t.inAllPlaces(func() { t.wantDoc("c", op) })
		}
	}},
	{name: "commit/one refused operation refuses all", atomic: true, run: func(t *docsTrial) {
		t.declare("r", []store.Index{only("u")}, "c", "d")
		t.commit("r", putOp("c", "a", 1, `{"u":1}`), putOp("d", "a", 1, `{"u":1}`))
		t.inAllPlaces(func() {
			t.refused("r", 2, store.ErrInvalid, putOp("c", "a", 2, `{"u":2}`), putOp("d", "x", 2, `{}`), putOp("c", "b", 2, `[]`))
			t.refused("r", 3, store.ErrUnique, putOp("c", "a", 2, ""), putOp("c", "b", 2, `{"u":3}`), putOp("c", "e", 2, `{"u":1}`), putOp("c", "f", 2, `{"u":3}`))
			before := digestReader(t.ctx, t.d, "r")
			_, err := t.try("r", putOp("c", "a", 2, `{"u":2}`), putOp("none", "x", 2, `{}`))
			t.fails(err, store.ErrNotFound, "commit")
			t.same("r", before)
		})
		t.commit("r", putOp("c", "b", 2, `{"u":3}`)) // nothing of it was kept
	}},
	{name: "commit/an old operation is stale", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("n")}, "c")
		t.commit("r", putOp("c", "k", 5, `{"n":5}`))
		t.inAllPlaces(func() {
			if n := t.commit("r", putOp("c", "k", 5, `{"n":6}`), putOp("c", "k", 4, `{"n":7}`), putOp("c", "k", 3, "")); n != 3 {
				t.Fatalf("%d stale, want 3", n)
			}
			t.wantDoc("c", putOp("c", "k", 5, `{"n":5}`))
			t.wantList("c", store.DocQuery{Filter: where("n", "5")}, "k")
		})
		if n := t.commit("r", atTime(putOp("c", "k", 6, `{"n":6}`), -1)); n != 0 {
			t.Fatal("a later seq with an earlier time is not stale")
		}
	}},
	{name: "commit/versions guard where both have one", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		stale := func(want int, op store.DocOp) {
			t.Helper()
			t.flush()
			if n := t.commit("r", op); n != want {
				t.Fatalf("%s: %d stale, want %d", describeDoc(op.Doc), n, want)
			}
		}
		stale(0, versioned(putOp("c", "k", 1, `{"v":7}`), 7))
		stale(1, versioned(putOp("c", "k", 2, `{"v":7}`), 7))
		stale(1, versioned(putOp("c", "k", 3, `{"v":6}`), 6))
		t.wantDoc("c", versioned(putOp("c", "k", 1, `{"v":7}`), 7))
		stale(0, versioned(putOp("c", "k", 4, `{"v":8}`), 8))
		stale(0, putOp("c", "k", 5, `{"v":"none"}`))
		t.wantDoc("c", putOp("c", "k", 5, `{"v":"none"}`))
		stale(0, versioned(putOp("c", "k", 6, `{"v":-3}`), -3))
		stale(1, versioned(putOp("c", "k", 5, `{"v":9}`), 9)) // the seq is old
		stale(1, versioned(putOp("c", "k", 7, ""), -3))
		t.wantDoc("c", versioned(putOp("c", "k", 6, `{"v":-3}`), -3))
	}},
	{name: "commit/deletions are remembered", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("n")}, "c")
		t.commit("r", versioned(putOp("c", "k", 1, `{"n":1}`), 10), putOp("c", "never", 5, ""))
		t.flush()
		t.commit("r", putOp("c", "k", 4, ""))
		t.inAllPlaces(func() {
			t.noDoc("c", "k")
			t.noDoc("c", "never")
			t.wantList("c", store.DocQuery{})
			t.wantList("c", store.DocQuery{Filter: where("n", "1")})
			if n := t.commit("r", putOp("c", "k", 4, `{}`), putOp("c", "k", 3, `{}`), putOp("c", "never", 5, `{}`)); n != 3 {
				t.Fatalf("%d stale, want 3", n)
			}
			// A deletion without a version remembers that of the document.
			if n := t.commit("r", versioned(putOp("c", "k", 6, `{}`), 10)); n != 1 {
				t.Fatal("the version of a deleted document was forgotten")
			}
		})
		if n := t.commit("r", versioned(putOp("c", "k", 6, `{"n":1}`), 11), putOp("c", "never", 6, `{"n":1}`)); n != 0 {
			t.Fatal("newer ones are not stale")
		}
		t.inAllPlaces(func() { t.wantList("c", store.DocQuery{Filter: where("n", "1")}, "k", "never") })
	}},
	{name: "commit/operations on one key are judged in order", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("n")}, "c")
		t.inAllPlaces(func() {
			s := t.place("r") * 10
			n := t.commit("r",
				putOp("c", "k", s+1, `{"n":1}`), putOp("c", "k", s+1, `{"n":2}`), putOp("c", "k", s+3, ""), putOp("c", "k", s+2, `{"n":3}`),
				putOp("c", "k", s+4, `{"n":4}`), putOp("c", "k", s+5, `{"n":5}`), putOp("c", "l", s+1, `{"n":5}`), putOp("c", "l", s+2, ""),
			)
			if n != 2 {
				t.Fatalf("%d stale, want 2", n)
			}
			t.wantDoc("c", putOp("c", "k", s+5, `{"n":5}`))
			for _, v := range []string{"1", "2", "3", "4"} {
				t.wantList("c", store.DocQuery{Filter: where("n", v)})
			}
			t.wantList("c", store.DocQuery{Filter: where("n", "5")}, "k")
			if n, err := t.d.Count(t.ctx, "c"); err != nil || n != 1 {
				t.Fatalf("count %d, %v; want 1", n, err)
			}
		})
	}},
	{name: "commit/bodies keep their bytes and are the caller's", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("n")}, "c")
		for i, body := range []string{
			`{}`, " {\t\"n\" : 1.50 ,\n\"b\":[ ] } ", `{"n":123456789012345678901234567890.000100e-5}`,
			`{"n":"\u00e4\/\ud834\udd1e","z":"ä"}`, `{"_deleted":true}`, `{"$set":{"a.b":1},"_id":4}`, `{"b":1,"a":2}`,
		} {
			op := putOp("c", fmt.Sprint("k", i), uint64(i+1), body)
			op.Body = json.RawMessage(body)
			t.commit("r", op)
			for j := range op.Body {
				op.Body[j] = 'X'
			}
			t.inAllPlaces(func() {
				d, err := t.d.Doc(t.ctx, "c", op.Key)
				t.ok(err, "document")
				if string(d.Body) != body {
					t.Fatalf("body %s, want %s", d.Body, body)
				}
				for j := range d.Body {
					d.Body[j] = 'Y'
				}
			})
			for d, err := range t.d.List(t.ctx, "c", store.DocQuery{Limit: 1}) {
				t.ok(err, "list")
				if string(d.Body) != body {
					t.Fatalf("body in a list %s, want %s", d.Body, body)
				}
			}
		}
	}},
	{name: "commit/several collections at once", atomic: true, run: func(t *docsTrial) {
		t.declare("r", nil, "a", "b")
		t.commit("r", putOp("a", "k", 1, `{"in":"a"}`), putOp("b", "k", 1, `{"in":"b"}`), putOp("a", "l", 1, `{}`))
		t.inAllPlaces(func() {
			t.wantDoc("a", putOp("a", "k", 1, `{"in":"a"}`))
			t.wantDoc("b", putOp("b", "k", 1, `{"in":"b"}`))
			for name, want := range map[string]int64{"a": 2, "b": 1} {
				if n, err := t.d.Count(t.ctx, name); err != nil || n != want {
					t.Fatalf("count of %s: %d, %v; want %d", name, n, err, want)
				}
			}
		})
	}},
}

var docsUniqueCases = []docsCase{
	{name: "unique/equal values are refused", run: func(t *docsTrial) {
		t.declare("r", []store.Index{only("a", "b"), only("c")}, "c", "d")
		t.commit("r", putOp("c", "k", 1, `{"a":1,"b":"x"}`), putOp("c", "l", 2, `{"a":1,"b":"y","c":null}`), putOp("d", "k", 1, `{"a":1,"b":"x"}`))
		t.inAllPlaces(func() {
			t.refused("r", 0, store.ErrUnique, putOp("c", "m", 3, `{"b":"x","a":1.0}`))
			t.refused("r", 0, store.ErrUnique, putOp("c", "m", 3, `{"c":null}`))
			t.refused("r", 0, store.ErrUnique, putOp("c", "k", 3, `{"a":1,"b":"y"}`))
		})
		s := t.place("r")
		t.commit("r", putOp("c", "k", s+10, `{"a":1,"b":"x","more":1}`)) // its own values
	}},
	{name: "unique/documents that lack a field are not in it", run: func(t *docsTrial) {
		t.declare("r", []store.Index{only("a", "b")}, "c")
		t.inAllPlaces(func() {
			s := t.place("r") + 10
			for i, body := range []string{`{}`, `{"a":1}`, `{"a":1,"b":{}}`, `{"a":1,"b":[1]}`, `{"a":1,"b":{}}`} {
				t.commit("r", putOp("c", fmt.Sprint(i), s, body))
			}
		})
		t.wantList("c", store.DocQuery{Filter: where("a", "1")}, "1", "2", "3", "4")
	}},
	{name: "unique/values become free", run: func(t *docsTrial) {
		t.declare("r", []store.Index{only("a")}, "c")
		seq := uint64(0)
		next := func(key, body string) store.DocOp {
			seq++
			return putOp("c", key, seq, body)
		}
		t.commit("r", next("k", `{"a":1}`))
		t.inAllPlaces(func() {
			t.commit("r", next("k", `{"a":2}`), next("l", `{"a":1}`))
			t.commit("r", next("l", ""), next("m", `{"a":1}`))
			t.flush()
			t.commit("r", next("m", `{}`), next("l", `{"a":1}`))
			// In the order of the batch: a value is taken until it is given back.
			t.refused("r", 1, store.ErrUnique, next("l", `{"a":3}`), next("m", `{"a":2}`), next("k", `{"a":1}`))
			t.commit("r", next("l", `{"a":3}`), next("k", `{"a":1}`), next("l", `{"a":2}`))
			t.refused("r", 0, store.ErrUnique, next("m", `{"a":1}`))
			t.refused("r", 0, store.ErrUnique, next("m", `{"a":2}`))
			t.commit("r", next("k", ""), next("l", ""), next("m", `{"a":2}`), next("m", `{"a":5}`), next("k", `{"a":1}`), next("m", ""))
		})
		t.wantList("c", store.DocQuery{}, "k")
	}},
}
