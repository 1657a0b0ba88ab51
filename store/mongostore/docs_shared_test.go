package mongostore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/internal/netfault"
	"promethean/store"
	"promethean/store/mongostore"
)

// bodyAt is the body that a counter's document has after an event.
func bodyAt(seq uint64) string { return fmt.Sprintf(`{"n":%d,"u":"%d"}`, seq, seq%7) }

// counting declares a reader whose k-th batch is about keys k mod 5 and 7.
func counting(t testing.TB, d store.Docs) {
	t.Helper()
	err := d.Declare(deadline(t), store.Reader{Name: "r", Collections: []store.Collection{{Name: "c", Indexes: []store.Index{{Fields: []string{"n"}}}}}})
	if err != nil {
		t.Fatal(err)
	}
}

// countOn commits the batch after a place.
func countOn(ctx context.Context, d store.Docs, from uint64) (stale int, err error) {
	to := from + 1
	ops := []store.DocOp{docOp("c", fmt.Sprint("k", to%5), 2*to, bodyAt(2*to)), docOp("c", fmt.Sprint("d", to%7), 2*to+1, "")}
	if to%3 == 0 {
		ops[1] = docOp("c", fmt.Sprint("d", to%7), 2*to+1, bodyAt(2*to+1))
	}
	return d.Commit(ctx, store.DocBatch{Reader: "r", From: from, To: to, Ops: ops})
}

// counted checks that documents are those after a number of batches.
func counted(t testing.TB, d store.Docs, n uint64) {
	t.Helper()
	want := make(map[string]string)
	for to := uint64(1); to <= n; to++ {
		want[fmt.Sprint("k", to%5)] = fmt.Sprint(2*to, bodyAt(2*to))
		want[fmt.Sprint("d", to%7)] = fmt.Sprint(2*to + 1)
		if to%3 == 0 {
			want[fmt.Sprint("d", to%7)] = fmt.Sprint(2*to+1, bodyAt(2*to+1))
		}
	}
	for x, err := range d.Changes(deadline(t), "c", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(x.Seq, string(x.Body)); strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want[x.Key], " ", "") {
			t.Errorf("document %s: %s, want %s", x.Key, got, want[x.Key])
		}
		delete(want, x.Key)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// TestDocsShared has two processes commit the same batches: each is committed
// by one of them, once.
func TestDocsShared(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		const last = 60
		name := newDatabase(t, uri)
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := make(map[uint64]int)
		for range 2 {
			d := openDocs(t, uri, mongostore.Options{Database: name})
			counting(t, d)
			for range 2 {
				wg.Go(func() {
					for {
						r, err := d.Reader(deadline(t), "r")
						if err != nil || r.Seq >= last {
							if err != nil {
								t.Error(err)
							}
							return
						}
						switch _, err := countOn(deadline(t), d, r.Seq); {
						case err == nil:
							mu.Lock()
							won[r.Seq]++
							mu.Unlock()
						case !errors.Is(err, store.ErrConflict):
							t.Error(err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
		for from := range uint64(last) {
			if won[from] != 1 {
				t.Errorf("the batch from %d was committed %d times", from, won[from])
			}
		}
		counted(t, openDocs(t, uri, mongostore.Options{Database: name}), last)
	})
}

// TestDocsLostAnswers loses requests and answers of writes.
func TestDocsLostAnswers(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		p := newProxy(t, uri)
		d := openDocs(t, p.uri(), mongostore.Options{Database: newDatabase(t, uri)})
		n, lost := 0, 0
		p.Judge(func(chunk []byte) netfault.Fate {
			if !bytes.Contains(chunk, []byte("_view_")) && !bytes.Contains(chunk, []byte("_readers")) {
				return netfault.Pass
			}
			for _, command := range []string{"\x02insert\x00", "\x02update\x00", "\x02create\x00", "\x02createIndexes\x00", "\x02renameCollection\x00", "\x02drop\x00", "\x02delete\x00"} {
				if bytes.Contains(chunk, []byte(command)) {
					if n++; n%6 == 2 {
						lost++
						return netfault.LoseRequest
					} else if n%6 == 5 {
						lost++
						return netfault.LoseResponse
					}
				}
			}
			return netfault.Pass
		})
		counting(t, d)
		const last = 12
		for from := range uint64(last) {
			stale, err := countOn(deadline(t), d, from)
			if err != nil || stale != 0 {
				t.Fatalf("batch from %d: %d stale, %v", from, stale, err)
			}
		}
		next := store.Reader{Name: "r~next", Collections: []store.Collection{{Name: "c~next"}}}
		for range 2 {
			if err := d.Declare(deadline(t), next); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Commit(deadline(t), store.DocBatch{Reader: "r~next", To: 3, Ops: []store.DocOp{docOp("c~next", "k", 1, `{}`)}}); err != nil {
				t.Fatal(err)
			}
			if err := d.Drop(deadline(t), "r~next"); err != nil {
				t.Fatal(err)
			}
		}
		counted(t, d, last)
		if err := d.Declare(deadline(t), next); err != nil {
			t.Fatal(err)
		}
		if err := d.Replace(deadline(t), "r", "r~next"); err != nil {
			t.Fatal(err)
		}
		p.Judge(nil)
		if n, err := d.Count(deadline(t), "c"); err != nil || n != 0 {
			t.Fatalf("%d documents, %v, after all were replaced by none", n, err)
		}
		if lost < 5 {
			t.Fatalf("only %d were lost", lost)
		}
	})
}

// TestDocsAway takes the server away.
func TestDocsAway(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		p := newProxy(t, uri)
		d := openDocs(t, p.uri(), mongostore.Options{Database: newDatabase(t, uri), RetryFor: 2 * time.Second, Timeout: 2 * time.Second})
		counting(t, d)
		p.Down(true)
		if _, err := countOn(deadline(t), d, 0); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("commit: %v", err)
		}
		for _, err := range d.List(deadline(t), "c", store.DocQuery{}) {
			if !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("list: %v", err)
			}
		}
		p.Down(false)
		for {
			if _, err := countOn(deadline(t), d, 0); err == nil {
				break
			} else if !errors.Is(err, store.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		counted(t, d, 1)
	})
}

// TestDocsRefused: also where the server has no transactions, a batch that is
// refused has written nothing, and a value that moves within a batch may move.
func TestDocsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		d := openDocs(t, uri, mongostore.Options{Database: newDatabase(t, uri)})
		err := d.Declare(deadline(t), store.Reader{Name: "r", Collections: []store.Collection{{Name: "c", Indexes: []store.Index{{Fields: []string{"u"}, Unique: true}}}}})
		if err != nil {
			t.Fatal(err)
		}
		commit := func(from uint64, ops ...store.DocOp) error {
			_, err := d.Commit(deadline(t), store.DocBatch{Reader: "r", From: from, To: from + 1, Ops: ops})
			return err
		}
		if err := commit(0, docOp("c", "a", 1, `{"u":1}`), docOp("c", "b", 2, `{"u":2}`)); err != nil {
			t.Fatal(err)
		}
		before, err := digestDocs(deadline(t), d)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []store.DocOp{docOp("c", "z", 9, `[]`), docOp("c", "z", 9, `{"u":2.0}`), docOp("none", "z", 9, `{}`), docOp("c", "z", 1<<63, `{}`), docOp("c", "\xff", 9, `{}`)} {
			if err := commit(1, docOp("c", "a", 3, `{"u":5}`), docOp("c", "y", 4, `{}`), bad); err == nil {
				t.Fatalf("%v was taken", bad)
			}
			if now, err := digestDocs(deadline(t), d); err != nil || now != before {
				t.Fatalf("%v; it was\n%s\nand is\n%s", err, before, now)
			}
		}
		if err := commit(1, docOp("c", "a", 3, `{"u":3}`), docOp("c", "b", 4, `{"u":1}`), docOp("c", "a", 5, `{"u":2}`)); err != nil {
			t.Fatal(err)
		}
	})
}

// TestDocsStepsOfTransactions takes commits the way that they go on a server
// with transactions. What the server makes of a transaction is not tried here.
func TestDocsStepsOfTransactions(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		d := openDocs(t, uri, mongostore.Options{Database: newDatabase(t, uri)})
		counting(t, d)
		mongostore.CommitUnbound(docsOf(t, d))
		for from := range uint64(20) {
			if _, err := countOn(deadline(t), d, from); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := countOn(deadline(t), d, 3); !errors.Is(err, store.ErrConflict) {
			t.Fatalf("a commit from a place that was left: %v", err)
		}
		if _, err := d.Commit(deadline(t), store.DocBatch{Reader: "none"}); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("a commit of nobody: %v", err)
		}
		r, err := d.Reader(deadline(t), "r")
		if err != nil || r.Seq != 20 {
			t.Fatalf("reader at %d, %v", r.Seq, err)
		}
	})
}

// TestDocsArePlain looks at a collection as people do.
func TestDocsArePlain(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		ctx := deadline(t)
		name := newDatabase(t, uri)
		d := openDocs(t, uri, mongostore.Options{Database: name})
		if err := d.Declare(ctx, store.Reader{Name: "r", Collections: []store.Collection{{Name: "orders.open"}}}); err != nil {
			t.Fatal(err)
		}
		deep := strings.Repeat(`[`, 200) + strings.Repeat(`]`, 200)
		op := docOp("orders.open", "k1", 7, `{"n":1,"price":0.10,"exact":0.10000000000000001,"huge":9007199254740993,"more":12345678901234567890,
			"most":1e7000,"none":null,"ok":true,"text":"\u00e4","in":{"a":[1,{"b":"c"}],"$x":1,"d.e":2},"_id":5,"_body":6,"$set":7,"a.b":8,"":9,"deep":`+deep+`}`)
		v := int64(3)
		op.Version = &v
		_, err := d.Commit(ctx, store.DocBatch{Reader: "r", To: 7, Ops: []store.DocOp{op, docOp("orders.open", "k2", 8, "")}})
		if err != nil {
			t.Fatal(err)
		}
		client := connect(t, uri)
		defer func() { _ = client.Disconnect(ctx) }()
		c := client.Database(name).Collection("promethean_view_orders/open")
		var got bson.M
		if err := c.FindOne(ctx, bson.D{{Key: "in.a.b", Value: "c"}, {Key: "price", Value: bson.D{{Key: "$lt", Value: 1}}}}).Decode(&got); err != nil {
			t.Fatal(err)
		}
		dec := func(s string) bson.Decimal128 {
			d, err := bson.ParseDecimal128(s)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		want := map[string]any{
			"_id": "k1", "_key": "k1", "_seq": int64(7), "_ts": int64(7), "_v": int64(3), "_body": string(op.Body),
			"n": int64(1), "price": 0.1, "exact": dec("0.10000000000000001"), "huge": int64(9007199254740993), "more": dec("12345678901234567890"),
			"most": "1e7000", "none": nil, "ok": true, "text": "ä",
		}
		for f, v := range want {
			if x, there := got[f]; !there || x != v {
				t.Errorf("field %s: %T %v, want %T %v", f, x, x, v, v)
			}
		}
		in := fmt.Sprint(got["in"])
		if strings.Contains(in, "$x") || strings.Contains(in, "d.e") || len(got) != len(want)+3 { // in, deep, _x
			t.Errorf("the document is %v", got)
		}
		n, err := c.CountDocuments(ctx, bson.D{{Key: "_deleted", Value: true}})
		if err != nil || n != 1 {
			t.Errorf("%d deletions, %v", n, err)
		}
		x, err := d.Doc(ctx, "orders.open", "k1")
		if err != nil || !bytes.Equal(x.Body, op.Body) {
			t.Errorf("body %s, %v", x.Body, err)
		}
	})
}
