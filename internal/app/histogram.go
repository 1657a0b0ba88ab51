package app

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets that grow with them, so that its size
// does not depend on how many there are, and a percentile is at most 1.6 % off.
// It is not safe for concurrent use: who counts in several places adds them up.
type histogram struct {
	buckets [64 * subBuckets]uint64
	count   uint64
	sum     time.Duration
	most    time.Duration
}

const (
	subBits    = 6
	subBuckets = 1 << subBits
)

// bucket is where a duration is counted. Up to 64 ns every one has its own;
// each power of two above is split into 64.
func bucket(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < subBuckets {
		return int(n)
	}
	shift := bits.Len64(n) - 1 - subBits
	return (shift+1)<<subBits + int(n>>shift) - subBuckets
}

// ceiling is the largest duration of a bucket.
func ceiling(i int) time.Duration {
	if i < subBuckets {
		return time.Duration(i)
	}
	shift := i>>subBits - 1
	return time.Duration((uint64(i&(subBuckets-1))+subBuckets+1)<<shift - 1)
}

// add counts a duration so many times.
func (h *histogram) add(d time.Duration, times int) {
	h.buckets[bucket(d)] += uint64(times)
	h.count += uint64(times)
	h.sum += d * time.Duration(times)
	h.most = max(h.most, d)
}

// merge adds the counts of another one.
func (h *histogram) merge(o *histogram) {
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.count += o.count
	h.sum += o.sum
	h.most = max(h.most, o.most)
}

// percentile is the duration that so many percent are not above.
func (h *histogram) percentile(p float64) time.Duration {
	want := uint64(p / 100 * float64(h.count))
	if float64(want) < p/100*float64(h.count) {
		want++
	}
	seen := uint64(0)
	for i, n := range h.buckets {
		if seen += n; n > 0 && seen >= want {
			return min(ceiling(i), h.most)
		}
	}
	return h.most
}
