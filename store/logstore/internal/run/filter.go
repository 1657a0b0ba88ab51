package run

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

const (
	lineSize    = 64
	bitsPerItem = 10
	probes      = 6
	// maxFiltered is the size of run up to which there is a filter. Filters
	// stay in memory, so larger runs, of which there are few, go without: a
	// search in them costs one block read instead, and memory does not grow
	// with history.
	maxFiltered = 16 << 20
)

// filter is a Bloom filter in which all bits of one item lie in one cache
// line: a negative answer costs one miss.
type filter []byte

func newFilter(items int) filter {
	lines := (items*bitsPerItem + lineSize*8 - 1) / (lineSize * 8)
	return make(filter, max(lines, 1)*lineSize)
}

func hashPrefix(prefix []byte) uint64 { return xxhash.Sum64(prefix) }

func (f filter) line(h uint64) []byte {
	n := uint64(len(f) / lineSize)
	at := (h >> 32) * n >> 32 * lineSize
	return f[at : at+lineSize]
}

func (f filter) add(h uint64) {
	l := f.line(h)
	for range probes {
		h = h*0x9e3779b97f4a7c15 + 1
		bit := h >> 55 // 9 bits: 512 in a line
		l[bit/8] |= 1 << (bit % 8)
	}
}

func (f filter) has(h uint64) bool {
	l := f.line(h)
	for range probes {
		h = h*0x9e3779b97f4a7c15 + 1
		bit := h >> 55
		if l[bit/8]&(1<<(bit%8)) == 0 {
			return false
		}
	}
	return true
}

func u32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
