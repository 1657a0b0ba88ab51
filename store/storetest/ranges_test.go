package storetest

import (
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"promethean/store"
)

// normal says what is wrong with the form of a set: ranges ascend, are not
// empty, and neither overlap nor touch.
func normal(rs store.Ranges) string {
	for i, r := range rs {
		switch {
		case r.First > r.Last:
			return "an empty range"
		case i > 0 && r.First <= rs[i-1].Last:
			return "ranges overlap or descend"
		case i > 0 && r.First-1 == rs[i-1].Last:
			return "ranges touch"
		}
	}
	return ""
}

// seqsOf lists a set of few seqs.
func seqsOf(rs store.Ranges) (out []uint64) {
	for _, r := range rs {
		for seq := r.First; ; seq++ {
			out = append(out, seq)
			if seq == r.Last {
				break
			}
		}
	}
	return out
}

// aRange draws ranges that meet often, at both ends of what a seq can be.
func aRange(low uint64) *rapid.Generator[store.Range] {
	return rapid.Custom(func(t *rapid.T) store.Range {
		first := low + rapid.Uint64Range(0, 40).Draw(t, "first")
		last := first + rapid.Uint64Range(0, 6).Draw(t, "length")
		if last < first { // beyond the largest
			last = math.MaxUint64
		}
		if rapid.IntRange(0, 15).Draw(t, "empty") == 0 && first > 0 {
			last = first - 1
		}
		return store.Range{First: first, Last: last}
	})
}

func TestRanges(t *testing.T) {
	for _, low := range []uint64{0, 1, math.MaxUint64 - 40} {
		rapid.Check(t, func(t *rapid.T) {
			var rs store.Ranges
			want := make(map[uint64]bool)
			for _, r := range rapid.SliceOfN(aRange(low), 0, 25).Draw(t, "ranges") {
				rs.Add(r)
				for _, seq := range seqsWithin(r) {
					want[seq] = true
				}
				if fault := normal(rs); fault != "" {
					t.Fatalf("after adding %v: %s: %v", r, fault, rs)
				}
			}
			if got := seqsOf(rs); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
				t.Fatalf("%v holds %v, want %v", rs, got, slices.Sorted(maps.Keys(want)))
			}
			if rs.Len() != uint64(len(want)) {
				t.Fatalf("%v has length %d, want %d", rs, rs.Len(), len(want))
			}
			for i := range uint64(50) {
				if seq := low + i; rs.Contains(seq) != want[seq] {
					t.Fatalf("%v contains %d: %v", rs, seq, rs.Contains(seq))
				}
			}
		})
	}
}

// seqsWithin lists the seqs of a range that may be empty.
func seqsWithin(r store.Range) []uint64 {
	if r.First > r.Last {
		return nil
	}
	return seqsOf(store.Ranges{r})
}

// TestCursorSettle compares Cursor.Settle with a plain set of settled seqs and
// a plain map of attempts.
func TestCursorSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c store.Cursor
		settled, attempts, handed := make(map[uint64]bool), make(map[uint64]uint32), uint64(0)
		for range rapid.IntRange(1, 20).Draw(t, "settlements") {
			s := store.Settlement{Done: rapid.SliceOfN(aRange(1), 0, 4).Draw(t, "done"), Handed: rapid.Uint64Range(0, 50).Draw(t, "handed")}
			for range rapid.IntRange(0, 3).Draw(t, "attempts") {
				s.Attempts = append(s.Attempts, store.Attempt{Seq: rapid.Uint64Range(1, 45).Draw(t, "seq"), Count: rapid.Uint32Range(1, 5).Draw(t, "count")})
			}
			for _, r := range s.Done {
				for _, seq := range seqsWithin(r) {
					settled[seq] = true
				}
			}
			for _, a := range s.Attempts {
				attempts[a.Seq] = a.Count
			}
			maps.DeleteFunc(attempts, func(seq uint64, _ uint32) bool { return settled[seq] })
			handed = max(handed, s.Handed)
			for range rapid.IntRange(1, 2).Draw(t, "times") { // twice is once
				c.Settle(&s)
				compareCursor(t, &c, settled, attempts, handed)
			}
		}
	})
}

func compareCursor(t *rapid.T, c *store.Cursor, settled map[uint64]bool, attempts map[uint64]uint32, handed uint64) {
	floor := uint64(0)
	for settled[floor+1] {
		floor++
	}
	var above []uint64
	for seq := range settled {
		if seq > floor {
			above = append(above, seq)
		}
	}
	slices.Sort(above)
	if fault := normal(c.Settled); fault != "" {
		t.Fatalf("%s: %v", fault, c.Settled)
	}
	if c.Floor != floor || !slices.Equal(seqsOf(c.Settled), above) {
		t.Fatalf("floor %d and above it %v, want %d and %v", c.Floor, c.Settled, floor, above)
	}
	if !maps.Equal(c.Attempts, attempts) {
		t.Fatalf("attempts %v, want %v", c.Attempts, attempts)
	}
	if c.Handed != handed {
		t.Fatalf("handed %d, want %d", c.Handed, handed)
	}
}

// TestCursorSettleFromFloor begins with a cursor that was moved, as a group
// engine does.
func TestCursorSettleFromFloor(t *testing.T) {
	for _, c := range []struct {
		floor uint64
		done  store.Range
		want  uint64
		above store.Ranges
	}{
		{10, store.Range{First: 11, Last: 11}, 11, nil},
		{10, store.Range{First: 12, Last: 12}, 10, store.Ranges{{First: 12, Last: 12}}},
		{10, store.Range{First: 1, Last: 5}, 10, nil},
		{10, store.Range{First: 5, Last: 15}, 15, nil},
		{10, store.Range{First: 10, Last: 10}, 10, nil},
		{0, store.Range{First: 1, Last: math.MaxUint64}, math.MaxUint64, nil},
	} {
		got := store.Cursor{Floor: c.floor}
		got.Settle(&store.Settlement{Done: []store.Range{c.done}})
		if got.Floor != c.want || !slices.Equal(got.Settled, c.above) {
			t.Errorf("floor %d, done %v: floor %d and %v, want %d and %v", c.floor, c.done, got.Floor, got.Settled, c.want, c.above)
		}
	}
}

func TestCursorClone(t *testing.T) {
	c := store.Cursor{Settled: store.Ranges{{First: 3, Last: 4}}, Attempts: map[uint64]uint32{1: 1}, Meta: []byte("m")}
	d := c.Clone()
	d.Settle(&store.Settlement{Done: []store.Range{{First: 1, Last: 9}}})
	d.Meta[0] = 'n'
	if c.Floor != 0 || c.Settled[0] != (store.Range{First: 3, Last: 4}) || c.Attempts[1] != 1 || c.Meta[0] != 'm' {
		t.Errorf("a clone shares memory with its origin: %+v", c)
	}
}
