package superseded

import (
	"math/bits"
	"slices"
)

// Set is a set of seqs: a bit for each, in blocks that are there only where
// the set has something.
type Set map[uint64]*[seqWords]uint64

const (
	seqShift = 16
	seqWords = 1 << seqShift / 64
)

// Add puts a seq into the set.
func (x Set) Add(seq uint64) {
	b := x[seq>>seqShift]
	if b == nil {
		b = new([seqWords]uint64)
		x[seq>>seqShift] = b
	}
	b[seq%(1<<seqShift)/64] |= 1 << (seq % 64)
}

// Has says whether a seq is in the set.
func (x Set) Has(seq uint64) bool {
	b := x[seq>>seqShift]
	return b != nil && b[seq%(1<<seqShift)/64]&(1<<(seq%64)) != 0
}

// Count says how many seqs from lo to hi are in the set.
func (x Set) Count(lo, hi uint64) (n uint64) {
	x.words(lo, hi, func(_, word uint64) bool {
		n += uint64(bits.OnesCount64(word))
		return true
	})
	return n
}

// Any says whether a seq from lo to hi is in the set.
func (x Set) Any(lo, hi uint64) (found bool) {
	x.words(lo, hi, func(_, word uint64) bool {
		found = word != 0
		return !found
	})
	return found
}

// Last is the largest seq in the set, 0 if it is empty.
func (x Set) Last() (seq uint64) {
	for at, b := range x {
		if at<<seqShift+(1<<seqShift) <= seq {
			continue
		}
		for i, word := range slices.Backward(b[:]) {
			if word != 0 {
				seq = max(seq, at<<seqShift+uint64(i)*64+63-uint64(bits.LeadingZeros64(word)))
				break
			}
		}
	}
	return seq
}

// words calls fn with each word of the blocks between lo and hi, and the seq
// of its lowest bit; bits outside are cleared. It goes through the blocks that
// there are, or through those of the stretch, whichever are fewer.
func (x Set) words(lo, hi uint64, fn func(seq, word uint64) bool) {
	if lo > hi {
		return
	}
	visit := func(at uint64) bool {
		b := x[at]
		if b == nil {
			return true
		}
		for i, word := range b {
			seq := at<<seqShift + uint64(i)*64
			if word == 0 || seq+63 < lo || seq > hi {
				continue
			}
			if seq < lo {
				word &= ^uint64(0) << (lo - seq)
			}
			if hi < seq+63 {
				word &= ^uint64(0) >> (63 - (hi - seq))
			}
			if !fn(seq, word) {
				return false
			}
		}
		return true
	}
	from, to := lo>>seqShift, hi>>seqShift
	if to-from < uint64(len(x)) {
		for at := from; at <= to && visit(at); at++ {
		}
		return
	}
	for at := range x {
		if from <= at && at <= to && !visit(at) {
			return
		}
	}
}
