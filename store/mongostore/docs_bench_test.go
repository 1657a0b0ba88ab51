package mongostore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"promethean/internal/mongotest"
	"promethean/store"
	"promethean/store/mongostore"
)

// BenchmarkDocs commits batches of 500 documents of some 200 bytes with three
// indexes, and reads among 20,000 of them.
func BenchmarkDocs(b *testing.B) {
	uri := mongotest.Any(b)
	const size, many = 500, 20_000
	ctx := context.Background()
	for _, kind := range []string{"plain", "unique"} {
		indexes := []store.Index{{Fields: []string{"a"}}, {Fields: []string{"b"}}, {Fields: []string{"u"}, Unique: kind == "unique"}}
		d := openDocs(b, uri, mongostore.Options{Database: newDatabase(b, uri)})
		if err := d.Declare(ctx, store.Reader{Name: "r", Collections: []store.Collection{{Name: "c", Indexes: indexes}}}); err != nil {
			b.Fatal(err)
		}
		seq, place := uint64(0), uint64(0)
		commit := func(b *testing.B) {
			ops := make([]store.DocOp, size)
			for i := range ops {
				seq++
				n := seq % many
				ops[i] = docOp("c", fmt.Sprint("key-", n), seq, fmt.Sprintf(`{"a":%d,"b":"%d","u":"%d","pad":"%0130d"}`, n%100, n%7, n, seq))
			}
			if _, err := d.Commit(ctx, store.DocBatch{Reader: "r", From: place, To: place + 1, Ops: ops}); err != nil {
				b.Fatal(err)
			}
			place++
		}
		for seq < many {
			commit(b)
		}
		b.Run(kind+"/commit of 500", func(b *testing.B) {
			for b.Loop() {
				commit(b)
			}
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "docs/s")
		})
		b.Run(kind+"/doc", func(b *testing.B) {
			for b.Loop() {
				if _, err := d.Doc(ctx, "c", "key-77"); err != nil {
					b.Fatal(err)
				}
			}
		})
		for name, filter := range map[string]map[string][]json.RawMessage{"all": nil, "filtered": {"a": {json.RawMessage("7")}}} {
			b.Run(kind+"/list of 100, "+name, func(b *testing.B) {
				for b.Loop() {
					n := 0
					for _, err := range d.List(ctx, "c", store.DocQuery{Filter: filter, Limit: 100}) {
						if err != nil {
							b.Fatal(err)
						}
						n++
					}
					if n != 100 {
						b.Fatalf("%d documents", n)
					}
				}
			})
		}
	}
}
