package main

import (
	"math/bits"
	"slices"
	"time"
)

// spread is the median of some values with their range.
type spread struct{ Median, Min, Max float64 }

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	v := slices.Sorted(slices.Values(values))
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (v[len(v)/2-1] + mid) / 2
	}
	return spread{Median: mid, Min: v[0], Max: v[len(v)-1]}
}

// pairwise divides a by b round by round. Both were measured one right after
// the other in each round, so what the machine did to both cancels out.
func pairwise(a, b []float64) []float64 {
	var q []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			q = append(q, a[i]/b[i])
		}
	}
	return q
}

// Buckets of a histogram: values below 64 ns have one each, and every further
// power of two has 64, which keeps the error under 2%.
const (
	subBits    = 6
	subBuckets = 1 << subBits
	buckets    = (64 - subBits + 1) * subBuckets
)

// histogram counts latencies in fixed memory, whatever their number.
type histogram struct {
	counts [buckets]uint32
	total  uint64
}

func bucketOf(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)*subBuckets + int(v>>shift) - subBuckets
}

// bucketTop is the largest value that falls into bucket i.
func bucketTop(i int) uint64 {
	if i < subBuckets {
		return uint64(i)
	}
	shift := i/subBuckets - 1
	return (uint64(i%subBuckets)+subBuckets+1)<<shift - 1
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucketOf(uint64(max(d, 0)))]++
	h.total++
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.total += o.total
}

// percentile gives the latency that a share p of all does not exceed.
func (h *histogram) percentile(p float64) time.Duration {
	want := max(uint64(p*float64(h.total)+0.5), 1)
	var seen uint64
	for i, n := range h.counts {
		if seen += uint64(n); seen >= want {
			return time.Duration(bucketTop(i))
		}
	}
	return 0
}
