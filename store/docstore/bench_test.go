package docstore

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"promethean/store"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func benchReader(name string) store.Reader {
	return store.Reader{Name: name, Collections: []store.Collection{{Name: name, Indexes: []store.Index{
		{Fields: []string{"host"}}, {Fields: []string{"status"}}, {Fields: []string{"host", "status"}},
	}}}}
}

func benchBody(rng *rand.Rand, k int) []byte {
	pad := "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
	return fmt.Appendf(nil, `{"host":"host-%d","pid":%d,"kind":%d,"status":"%s","cpu":%d.%d,"name":"process-%d","command":"%s","memory":{"rss":%d,"vms":%d},"tags":["a","b","c"],"note":"%s"}`,
		k%1000, k, k%7, []string{"alive", "dead", "zombie"}[rng.IntN(3)], rng.IntN(100), rng.IntN(100), k, pad[:60], rng.IntN(1<<30), rng.IntN(1<<30), pad[:50])
}

// cpuTime is what the process has used of all cores: on a busy machine it says
// more than the time that has passed.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkCommit(b *testing.B) {
	for _, keys := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			s, err := Open(b.TempDir(), Options{})
			must(b, err)
			ctx := context.Background()
			must(b, s.Declare(ctx, benchReader("bench")))
			rng := rand.New(rand.NewPCG(1, 2))
			bodies := make([][]byte, 10000)
			for i := range bodies {
				bodies[i] = benchBody(rng, i)
			}
			b.SetBytes(int64(len(bodies[0])))
			ops := make([]store.DocOp, 500)
			b.ResetTimer()
			b.ReportAllocs()
			last, cpu := time.Now(), cpuTime()
			seq := uint64(0)
			for n := 0; n < b.N; n += len(ops) {
				from := seq
				for i := range ops {
					seq++
					k := rng.IntN(keys)
					body := bodies[k%10000]
					if rng.IntN(3) == 0 {
						body = bodies[rng.IntN(10)*1000+k%1000]
					}
					ops[i] = store.DocOp{Collection: "bench", Doc: store.Doc{Key: fmt.Sprintf("key-%08d", k), TS: int64(1700000000000 + seq/3), Seq: seq, Body: body}}
				}
				_, err := s.Commit(ctx, store.DocBatch{Reader: "bench", From: from, To: seq, Ops: ops})
				must(b, err)
				if time.Since(last) > time.Second {
					last = time.Now()
					must(b, s.Sync(ctx))
				}
			}
			must(b, s.Sync(ctx))
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
			b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
			b.StopTimer()
			must(b, s.Close())
		})
	}
}

// filled is a store with a million documents.
func filled(b *testing.B) *Store {
	b.Helper()
	s, err := Open(b.TempDir(), Options{})
	must(b, err)
	b.Cleanup(func() { must(b, s.Close()) })
	ctx := context.Background()
	r := benchReader("bench")
	r.Collections[0].Indexes = append(r.Collections[0].Indexes, store.Index{Fields: []string{"kind"}})
	must(b, s.Declare(ctx, r))
	rng := rand.New(rand.NewPCG(1, 2))
	ops := make([]store.DocOp, 2000)
	for n := uint64(0); n < 1_000_000; n += uint64(len(ops)) {
		for i := range ops {
			k := int(n) + i
			ops[i] = store.DocOp{Collection: "bench", Doc: store.Doc{Key: fmt.Sprintf("key-%08d", k), TS: int64(rng.IntN(1 << 30)), Seq: n + uint64(i) + 1, Body: benchBody(rng, k)}}
		}
		_, err := s.Commit(ctx, store.DocBatch{Reader: "bench", From: n, To: n + uint64(len(ops)), Ops: ops})
		must(b, err)
	}
	must(b, s.Flush())
	must(b, s.Sync(ctx))
	return s
}

func BenchmarkReads(b *testing.B) {
	s := filled(b)
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(3, 4))
	host := func() json.RawMessage { return fmt.Appendf(nil, `"host-%d"`, rng.IntN(1000)) }
	list := func(q func() store.DocQuery) func(b *testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				for _, err := range s.List(ctx, "bench", q()) {
					must(b, err)
					n++
				}
				if n == 0 {
					b.Fatal("nothing was found")
				}
			}
		}
	}
	b.Run("Doc", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := s.Doc(ctx, "bench", fmt.Sprintf("key-%08d", rng.IntN(1_000_000)))
			must(b, err)
		}
	})
	b.Run("Doc/hot", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := s.Doc(ctx, "bench", fmt.Sprintf("key-%08d", rng.IntN(1000)))
			must(b, err)
		}
	})
	b.Run("List", list(func() store.DocQuery { return store.DocQuery{Limit: 100} }))
	b.Run("List/one", list(func() store.DocQuery {
		return store.DocQuery{Limit: 100, Filter: map[string][]json.RawMessage{"host": {host()}}}
	}))
	b.Run("List/large", list(func() store.DocQuery {
		return store.DocQuery{Limit: 100, Filter: map[string][]json.RawMessage{"status": {[]byte(`"dead"`)}}}
	}))
	b.Run("List/compound", list(func() store.DocQuery {
		return store.DocQuery{Limit: 100, Filter: map[string][]json.RawMessage{"host": {host()}, "status": {[]byte(`"dead"`)}}}
	}))
	b.Run("List/intersection", list(func() store.DocQuery {
		return store.DocQuery{Limit: 100, Filter: map[string][]json.RawMessage{"kind": {[]byte(`3`)}, "status": {[]byte(`"dead"`)}}}
	}))
	b.Run("List/offset", list(func() store.DocQuery {
		return store.DocQuery{Limit: 100, Offset: 1000, Filter: map[string][]json.RawMessage{"status": {[]byte(`"dead"`), []byte(`"alive"`)}}}
	}))
}
