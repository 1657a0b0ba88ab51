package store

import "sort"

// Range is an inclusive range of seqs.
type Range struct{ First, Last uint64 }

// Ranges is a set of seqs as ascending ranges that neither overlap nor touch.
type Ranges []Range

// Contains says whether seq is in the set.
func (rs Ranges) Contains(seq uint64) bool {
	i := sort.Search(len(rs), func(i int) bool { return rs[i].Last >= seq })
	return i < len(rs) && rs[i].First <= seq
}

// Len counts the seqs in the set.
func (rs Ranges) Len() (n uint64) {
	for _, r := range rs {
		n += r.Last - r.First + 1
	}
	return n
}

// Add puts r into the set. A range that ends before it begins is empty.
func (rs *Ranges) Add(r Range) {
	if r.Last < r.First {
		return
	}
	s := *rs
	// s[lo:hi] are the ranges that r overlaps or touches. Written with
	// differences, because First-1 and Last+1 may overflow.
	lo := sort.Search(len(s), func(i int) bool { return s[i].Last >= r.First || r.First-s[i].Last == 1 })
	hi := lo
	for hi < len(s) && (s[hi].First <= r.Last || s[hi].First-r.Last == 1) {
		r.First, r.Last = min(r.First, s[hi].First), max(r.Last, s[hi].Last)
		hi++
	}
	if lo == hi {
		s = append(s, Range{})
		copy(s[lo+1:], s[lo:])
		s[lo] = r
	} else {
		s[lo] = r
		s = append(s[:lo+1], s[hi:]...)
	}
	*rs = s
}
