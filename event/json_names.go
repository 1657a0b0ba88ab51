package event

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// manyNames is the number of names in one object up to which each new name is
// compared with all others. Beyond it a hash table takes over, so that an object
// with a hundred thousand names costs no more than its length.
const manyNames = 32

// memberName is a name of an object that is still open. It holds no pointer, so
// that a stack of them costs little to clear.
type memberName struct {
	hash  uint64 // of the unescaped name, to tell most names apart at once
	start int    // the raw name is data[start:end]; in a mark, start is the mark before
	end   int
}

// nameTable finds the names of one object: slots holds places in the
// scanner's stack of names, or 0, by linear probing.
type nameTable struct {
	mark  int
	slots []int
}

// seed makes it impossible to choose names that collide in a nameTable.
var seed = maphash.MakeSeed()

func (s *scanner) openObject() {
	s.names = append(s.names, memberName{start: s.mark})
	s.mark = len(s.names) - 1
}

func (s *scanner) closeObject() {
	if n := len(s.large); n > 0 && s.large[n-1].mark == s.mark {
		s.large = s.large[:n-1]
	}
	mark := s.mark
	s.mark = s.names[mark].start
	s.names = s.names[:mark]
}

// repeated adds the name data[start:end] to the innermost object and tells
// whether it was there before.
func (s *scanner) repeated(start, end int, escaped bool) bool {
	plain := s.data[start:end]
	if escaped {
		plain = unescape(nil, plain)
	}
	known := s.names[s.mark+1:]
	if len(known) >= manyNames {
		return s.repeatedLarge(start, end, plain)
	}
	hash := nameHash(plain)
	for i := range known {
		if known[i].hash == hash && s.sameName(plain, &known[i]) {
			return true
		}
	}
	s.names = append(s.names, memberName{hash: hash, start: start, end: end})
	return false
}

// repeatedLarge is repeated for an object with many names.
func (s *scanner) repeatedLarge(start, end int, plain []byte) bool {
	n := len(s.large)
	if n == 0 || s.large[n-1].mark != s.mark {
		for i := s.mark + 1; i < len(s.names); i++ {
			k := &s.names[i]
			raw := s.data[k.start:k.end]
			if bytes.IndexByte(raw, '\\') >= 0 {
				raw = unescape(nil, raw)
			}
			k.hash = maphash.Bytes(seed, raw)
		}
		s.large = append(s.large, nameTable{mark: s.mark})
		n++
	}
	t := &s.large[n-1]
	// At most half of the slots are in use.
	if used := len(s.names) - s.mark - 1; 2*used >= len(t.slots) {
		t.slots = make([]int, 4*nextPower(used))
		for i := s.mark + 1; i < len(s.names); i++ {
			at := s.names[i].hash
			for t.slots[at&uint64(len(t.slots)-1)] != 0 {
				at++
			}
			t.slots[at&uint64(len(t.slots)-1)] = i
		}
	}
	hash := maphash.Bytes(seed, plain)
	at := hash
	for ; ; at++ {
		i := t.slots[at&uint64(len(t.slots)-1)]
		if i == 0 {
			break
		}
		if k := &s.names[i]; k.hash == hash && s.sameName(plain, k) {
			return true
		}
	}
	t.slots[at&uint64(len(t.slots)-1)] = len(s.names)
	s.names = append(s.names, memberName{hash: hash, start: start, end: end})
	return false
}

// nextPower returns the smallest power of two that is at least n.
func nextPower(n int) int { return 1 << bits.Len(uint(n-1)) }

// nameHash mixes the first and the last bytes with the length. Names that
// differ elsewhere collide, which costs one comparison.
func nameHash(b []byte) uint64 {
	n := len(b)
	var h uint64
	switch {
	case n >= 8:
		h = binary.LittleEndian.Uint64(b) ^ bits.RotateLeft64(binary.LittleEndian.Uint64(b[n-8:]), 29)
	case n >= 4:
		h = uint64(binary.LittleEndian.Uint32(b)) | uint64(binary.LittleEndian.Uint32(b[n-4:]))<<32
	case n > 0:
		h = uint64(b[0]) | uint64(b[n/2])<<8 | uint64(b[n-1])<<16
	}
	return h ^ uint64(n)<<57
}

// sameName tells whether the raw name of k reads as plain.
func (s *scanner) sameName(plain []byte, k *memberName) bool {
	raw := s.data[k.start:k.end]
	if bytes.IndexByte(raw, '\\') >= 0 {
		raw = unescape(nil, raw)
	}
	return bytes.Equal(plain, raw)
}
