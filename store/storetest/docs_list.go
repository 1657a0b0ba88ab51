package storetest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"promethean/store"
)

var docsListCases = []docsCase{
	{name: "list/newest first, then by key", run: func(t *docsTrial) {
		t.declare("r", nil, "c")
		times := map[string]int64{"b": 5, "a": 5, "ä": 5, "z": -1, "y": -2, "old": math.MinInt64, "new": math.MaxInt64, "zero": 0, "ab": 5}
		seq := uint64(0)
		for key, ts := range times {
			seq++
			t.commit("r", atTime(putOp("c", key, seq, `{}`), ts))
			if seq == 4 {
				t.flush()
			}
		}
		want := []string{"new", "a", "ab", "b", "ä", "zero", "z", "y", "old"}
		t.inAllPlaces(func() {
			t.wantList("c", store.DocQuery{}, want...)
			for offset := range len(want) + 2 {
				for limit := 1; limit < len(want)+2; limit++ {
					from := min(offset, len(want))
					t.wantList("c", store.DocQuery{Offset: offset, Limit: limit}, want[from:min(from+limit, len(want))]...)
				}
				t.wantList("c", store.DocQuery{Offset: offset}, want[min(offset, len(want)):]...)
			}
			t.wantList("c", store.DocQuery{Offset: math.MaxInt, Limit: math.MaxInt})
		})
		t.commit("r", atTime(putOp("c", "old", 100, `{}`), 6), atTime(putOp("c", "new", 100, `{}`), -7))
		t.inAllPlaces(func() { t.wantList("c", store.DocQuery{}, "old", "a", "ab", "b", "ä", "zero", "z", "y", "new") })
	}},
	{name: "list/a filter needs an index", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("a"), on("b", "c")}, "c")
		for _, field := range []string{"x", "", "_key", "a.b", "$where", "A"} {
			_, err := collect2(t.d.List(t.ctx, "c", store.DocQuery{Filter: where("a", "1", field, "1")}))
			t.fails(err, store.ErrInvalid, "filter on %q", field)
		}
		for _, value := range []string{"", "x", `{}`, `[]`, `{"$ne":1}`, `1 2`, `"`} {
			_, err := collect2(t.d.List(t.ctx, "c", store.DocQuery{Filter: where("a", value)}))
			t.fails(err, store.ErrInvalid, "value %q", value)
		}
		_, err := collect2(t.d.List(t.ctx, "c", store.DocQuery{Offset: -1}))
		t.fails(err, store.ErrInvalid, "offset -1")
		_, err = collect2(t.d.List(t.ctx, "c", store.DocQuery{Limit: -1}))
		t.fails(err, store.ErrInvalid, "limit -1")
	}},
	{name: "list/values are equal by type and value", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("v")}, "c")
		long := strings.Repeat("ä", 5000)
		huge := strings.Repeat("9", 300)
		classes := [][]string{
			{`1`, `1.0`, `1e0`, `10e-1`, `0.1E1`, `1.000`, `100e-2`, `0.01e+2`}, {`-1`, `-1.0`}, {`0`, `-0`, `0.0`, `0e9`, `0e-99999999999999999999`},
			{`9007199254740992`, `9007199254740992.0`}, {`9007199254740993`}, {`0.1`, `1e-1`, `0.10`}, {`0.10000000000000001`},
			{`1e400`, `10e399`, `0.1e401`}, {`1e401`}, {`1e-400`}, {`1e` + huge, `10e` + huge[:299] + "8"}, {`1e-` + huge},
			{huge, huge + ".0"}, {huge + "1"}, {`0.` + huge}, {`1e1000000000000000000`, `10e999999999999999999`}, {`1e999999999999999999`},
			{`"1"`}, {`"a"`, `"\u0061"`}, {`"A"`}, {`""`}, {`"a\u0000b"`}, {`"ä"`, `"\u00e4"`}, {`"𝄞"`, `"\ud834\udd1e"`}, {`"/"`, `"\/"`},
			{`"` + long + `"`}, {`"` + long + `x"`}, {`true`}, {`false`}, {`null`}, {`"true"`}, {`"null"`},
		}
		seq, want := uint64(0), make([][]string, len(classes))
		for i, class := range classes {
			for _, v := range class {
				seq++
				key := fmt.Sprintf("%04d", 9999-seq)
				t.commit("r", putOp("c", key, seq, `{"x":{"v":7},"v":`+v+`,"y":[1]}`))
				want[i] = slices.Insert(want[i], 0, key)
			}
		}
		for i, v := range []string{`{"v":{}}`, `{"v":[1]}`, `{}`, `{"w":1}`, `{"x":{"v":1}}`} {
			t.commit("r", putOp("c", fmt.Sprint("out", i), 1, v))
		}
		t.inAllPlaces(func() {
			for i, class := range classes {
				for _, v := range class {
					t.wantList("c", store.DocQuery{Filter: where("v", " "+v+"\n")}, want[i]...)
				}
			}
			t.wantList("c", store.DocQuery{Filter: where("v", "1", "v", "true", "v", "1.0", "v", `"none"`)}, slices.Concat(want[27], want[0])...)
			t.wantList("c", store.DocQuery{Filter: where("v", "2")})
		})
	}},
	{name: "list/names of fields are compared unescaped", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("a b"), on("ä"), on(`q"`)}, "c")
		t.commit("r", putOp("c", "k", 1, `{"a\u0020b":1,"\u00e4":2,"q\"":3,"a":4}`))
		t.inAllPlaces(func() { t.wantList("c", store.DocQuery{Filter: where("a b", "1", "ä", "2", `q"`, "3")}, "k") })
	}},
	{name: "list/filters combine", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("a"), on("b"), on("b", "c"), on("c", "a", "d")}, "c")
		ref := NewDocsReference()
		t.ok(ref.Declare(t.ctx, readerOf("r", []store.Index{on("a"), on("b"), on("b", "c"), on("c", "a", "d")}, "c")), "reference")
		var ops []store.DocOp
		for i := range 300 {
			body := fmt.Sprintf(`{"a":%d,"b":%d,"c":%d`, i%2, i%3, i%5)
			if i%4 > 0 {
				body += fmt.Sprintf(`,"d":%d`, i%4)
			}
			ops = append(ops, atTime(putOp("c", fmt.Sprint(i), uint64(i+1), body+"}"), int64(i*7919%100)))
		}
		for chunk := range slices.Chunk(ops, 60) {
			t.commit("r", chunk...)
			t.flush()
		}
		rewritten := ops[40:80]
		for i := range rewritten {
			rewritten[i].Seq += 1000
			rewritten[i].TS += 50
		}
		t.commit("r", rewritten...)
		_, err := ref.Commit(t.ctx, store.DocBatch{Reader: "r", To: 1, Ops: ops})
		t.ok(err, "reference")
		t.inAllPlaces(func() {
			for _, f := range [][]string{
				{"a", "1"}, {"d", "2"}, {"a", "1", "b", "2"}, {"b", "0", "c", "4"}, {"c", "1", "a", "0", "d", "1"}, {"c", "1", "a", "1", "d", "1"},
				{"a", "0", "a", "1", "b", "1", "c", "3"}, {"a", "1", "b", "0", "b", "2", "c", "0", "c", "1", "c", "2", "d", "1", "d", "3"}, {"a", "5", "b", "1"},
				{"d", "1", "d", "2", "d", "3"},
			} {
				for _, q := range []store.DocQuery{{}, {Limit: 7}, {Offset: 5}, {Offset: 11, Limit: 3}} {
					q.Filter = where(f...)
					docs, err := collect2(ref.List(t.ctx, "c", q))
					t.ok(err, "reference")
					t.wantList("c", q, keysOf(docs)...)
				}
			}
			q := store.DocQuery{Filter: where("a", "1")}
			q.Filter["b"] = nil
			t.wantList("c", q) // no value, so none is equal
		})
	}},
	{name: "list/is of one moment", atomic: true, run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("n")}, "c")
		write := func(n int) {
			t.Helper()
			var ops []store.DocOp
			for i := range 700 {
				ops = append(ops, putOp("c", fmt.Sprintf("%03d", i), uint64(n), fmt.Sprintf(`{"n":1,"v":%d}`, n)))
			}
			t.commit("r", ops...)
		}
		write(1)
		t.flush()
		write(2)
		for _, q := range []store.DocQuery{{}, {Filter: where("n", "1")}} {
			n, now := 0, t.place("r")
			for d, err := range t.d.List(t.ctx, "c", q) {
				t.ok(err, "list")
				if n++; n%300 == 1 {
					write(int(t.place("r")) + 1)
					t.flush()
				}
				if d.Seq != now {
					t.Fatalf("document %d of the list has seq %d, at its beginning all had %d", n, d.Seq, now)
				}
			}
			if n != 700 {
				t.Fatalf("%d documents, want 700", n)
			}
		}
	}},
	{name: "list/outlives what it reads from", run: func(t *docsTrial) {
		for _, end := range []func() error{
			func() error { return t.d.Drop(t.ctx, "r") },
			func() error { return t.d.Replace(t.ctx, "r", "by") },
			func() error { return t.d.Declare(t.ctx, readerOf("r", nil, "other")) },
		} {
			t.declare("r", []store.Index{on("n")}, "c")
			t.declare("by", nil, "by")
			var ops []store.DocOp
			for i := range 1000 {
				ops = append(ops, putOp("c", fmt.Sprintf("%03d", i), 1, `{"n":1}`))
			}
			t.commit("r", ops...)
			n := 0
			for _, err := range t.d.List(t.ctx, "c", store.DocQuery{Filter: where("n", "1")}) {
				t.ok(err, "list")
				if n++; n == 3 {
					t.ok(end(), "end")
				}
			}
			if n != 1000 {
				t.Fatalf("%d documents, want 1000", n)
			}
			t.ok(t.d.Drop(t.ctx, "r"), "drop")
			t.ok(t.d.Drop(t.ctx, "by"), "drop")
		}
	}},
	{name: "list/readers meet whole commits", atomic: true, run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("n")}, "c", "d")
		const keys, rounds = 20, 150
		round := func(n int) (ops []store.DocOp) {
			for i := range keys {
				ops = append(ops, putOp("c", fmt.Sprint(i), uint64(n), fmt.Sprintf(`{"n":%d}`, n)))
			}
			return append(ops, putOp("d", "k", uint64(n), fmt.Sprintf(`{"n":%d}`, n)))
		}
		t.commit("r", round(1)...)
		done := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					before, err := t.d.Doc(t.ctx, "d", "k")
					if err != nil {
						t.Errorf("document: %v", err)
						return
					}
					docs, err := collect2(t.d.List(t.ctx, "c", store.DocQuery{}))
					if err != nil || len(docs) != keys {
						t.Errorf("list: %d documents, %v", len(docs), err)
						return
					}
					for _, d := range docs {
						if d.Seq != docs[0].Seq || d.Seq < before.Seq {
							t.Errorf("a list has seqs %d and %d, after one saw %d", docs[0].Seq, d.Seq, before.Seq)
							return
						}
					}
				}
			})
		}
		for n := range rounds {
			t.commit("r", round(n+2)...)
			if n%20 == 10 {
				t.flush()
			}
		}
		close(done)
		wg.Wait()
	}},
	{name: "replace/readers see the old ones or the new ones", run: func(t *docsTrial) {
		t.declare("r", []store.Index{on("n")}, "c")
		fill := func(reader, collection string) {
			var ops []store.DocOp
			for i := range 50 {
				ops = append(ops, putOp(collection, fmt.Sprint(i), 1, `{"n":1}`))
			}
			t.commit(reader, ops...)
		}
		fill("r", "c")
		done := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					docs, err := collect2(t.d.List(t.ctx, "c", store.DocQuery{Filter: where("n", "1")}))
					if err != nil || len(docs) != 50 {
						t.Errorf("list: %d documents, %v", len(docs), err)
						return
					}
					if _, err := t.d.Doc(t.ctx, "c", "7"); err != nil {
						t.Errorf("document: %v", err)
						return
					}
				}
			})
		}
		for i := range 15 {
			t.declare("by", []store.Index{on("n")}, "by")
			fill("by", "by")
			if i%2 == 0 {
				t.flush()
			}
			t.ok(t.d.Replace(t.ctx, "r", "by"), "replace")
		}
		close(done)
		wg.Wait()
	}},
}
