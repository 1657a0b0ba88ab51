package superseded

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// The table of what was seen halves its range when it is full, and comes to
// every key all the same.
func TestKeys(t *testing.T) {
	const keys = 40_000
	l := newKeys(1)
	seen := make(map[uint64]bool)
	passes := 0
	for ok := true; ok; ok = l.next() {
		passes++
		for n := range 2 * keys {
			before := l.see(fmt.Sprint("k", n%keys), uint64(n+1), n%3 == 0)
			if n < keys && before != 0 || n >= keys && before != 0 && before != uint64(n+1-keys) {
				t.Fatalf("seq %d is behind %d", n+1, before)
			}
		}
		l.each(func(seq uint64, tomb bool) {
			if seen[seq] || seq <= keys || tomb != ((seq-1)%3 == 0) {
				t.Fatalf("seq %d, tombstone %v, seen before: %v", seq, tomb, seen[seq])
			}
			seen[seq] = true
		})
	}
	if len(seen) != keys || passes < 5 || l.slots > l.most {
		t.Errorf("%d keys in %d passes with %d slots, at most %d", len(seen), passes, l.slots, l.most)
	}
}

func TestSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	x, want := make(Set), make(map[uint64]bool)
	for range 500 {
		seq := rng.Uint64N(300_000)
		x.Add(seq)
		want[seq] = true
	}
	for range 2000 {
		lo, hi := rng.Uint64N(310_000), rng.Uint64N(310_000)
		n, top := uint64(0), uint64(0)
		for seq := range want {
			top = max(top, seq)
			if lo <= seq && seq <= hi {
				n++
			}
		}
		if x.Count(lo, hi) != n || x.Any(lo, hi) != (n > 0) || x.Has(lo) != want[lo] || x.Last() != top {
			t.Fatalf("from %d to %d: %d, %v; want %d; the last is %d, want %d", lo, hi, x.Count(lo, hi), x.Any(lo, hi), n, x.Last(), top)
		}
	}
}
