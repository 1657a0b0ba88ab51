package event

import (
	"math"

	"github.com/cespare/xxhash/v2"
)

// MaxPartitions is the largest number of partitions of a topic.
const MaxPartitions = 1 << 16

// Partition is the optional partition of an event. The zero value means that
// none is set; otherwise it is the number plus one.
type Partition uint32

// PartitionOf returns the Partition with number n. A number outside of
// 0 … MaxPartitions-1 gives a value that Event.Check refuses.
func PartitionOf(n int) Partition {
	if n < 0 || n >= MaxPartitions {
		return math.MaxUint32
	}
	return Partition(n) + 1
}

// Get returns the number of the partition and whether one is set.
func (p Partition) Get() (n int, ok bool) {
	return int(p) - 1, p != 0
}

// Jump maps a hash to one of n buckets, 0 … n-1, by the jump consistent hash
// of Lamping and Veach: when n grows, a hash either stays where it is or moves
// to a new bucket. A count below 1 counts as 1.
func Jump(hash uint64, buckets int) int {
	b, j := int64(0), int64(0)
	for j < int64(buckets) {
		b = j
		hash = hash*2862933555777941757 + 1
		j = int64(float64(b+1) * (float64(1<<31) / float64(hash>>33+1)))
	}
	return int(b)
}

// PartitionFor returns the partition, 0 … n-1, of an event with this key and
// id in a topic with n partitions: Jump over the 64-bit xxHash (XXH64, seed 0)
// of the bytes of the key, or, where the key is empty, of the id's canonical
// text of 36 characters in lower case. Clients in other languages agree with
// it through testdata/partition_vectors.json.
func PartitionFor(key string, id ID, n int) int {
	if n <= 1 {
		return 0
	}
	return Jump(partitionHash(key, id), n)
}

func partitionHash(key string, id ID) uint64 {
	if key != "" {
		return xxhash.Sum64String(key)
	}
	text := id.encode()
	return xxhash.Sum64(text[:])
}
