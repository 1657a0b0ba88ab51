package superseded

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
)

// keys remembers the last seq of every key whose hash lies in a range. The
// range is halved when there are more keys than it may hold, so that a scan of
// a topic with very many keys is several scans with a bounded memory each.
//
// Keys are chosen by whoever publishes, and two that are taken for one would
// cost an event. So a key is known by 128 bits of SHA-256 over it and a secret
// that is drawn for each scan: nobody can look for a collision, and that one
// happens by itself among 2^32 keys has a chance of 1 in 2^65.
type keys struct {
	buf    []byte // the secret, then room for a key
	shards [64][]seenKey
	used   [64]int
	slots  int // of all shards
	most   int // bounds slots
	lo, hi uint64
}

// seenKey is a slot of a hash table. A seq of 0 is an empty one.
type seenKey struct {
	a, b uint64
	seq  uint64
	// The upper bit of seq says that the event is a tombstone.
}

const (
	secretSize = 16
	tombBit    = 1 << 63
	// mostSlots bounds what is remembered to 48 MiB, about 1.5 million keys.
	mostSlots = 2 << 20
	minSeen   = 64
)

func newKeys(most int) *keys {
	l := &keys{buf: make([]byte, secretSize, 512), most: max(most, 2*minSeen*len(keys{}.shards)), hi: ^uint64(0)}
	_, _ = rand.Read(l.buf) // never fails
	for i := range l.shards {
		l.shards[i] = make([]seenKey, minSeen)
		l.slots += minSeen
	}
	return l
}

func (l *keys) hash(key string) (a, b uint64) {
	l.buf = append(l.buf[:secretSize], key...)
	sum := sha256.Sum256(l.buf)
	return binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])
}

// see notes an event of a key, and gives the seq of the one before it, 0 if
// there is none or the key is not of the range.
func (l *keys) see(key string, seq uint64, tomb bool) uint64 {
	a, b := l.hash(key)
	if a < l.lo || a > l.hi {
		return 0
	}
	n := int(b % uint64(len(l.shards)))
	if 4*(l.used[n]+1) > 3*len(l.shards[n]) {
		l.grow(n)
		if a > l.hi {
			return 0
		}
	}
	if tomb {
		seq |= tombBit
	}
	x := l.slot(n, a, b)
	before := x.seq &^ tombBit
	if x.seq == 0 {
		l.used[n]++
	}
	*x = seenKey{a, b, seq}
	return before
}

// slot gives the place of a key.
func (l *keys) slot(n int, a, b uint64) *seenKey {
	s := l.shards[n]
	for i := b / uint64(len(l.shards)); ; i++ {
		if x := &s[i&uint64(len(s)-1)]; x.seq == 0 || x.a == a && x.b == b {
			return x
		}
	}
}

// grow makes room in a shard: it becomes larger, or the range smaller.
func (l *keys) grow(n int) {
	size := len(l.shards[n])
	if l.slots+size <= l.most {
		l.slots += size
		l.rebuild(n, 2*size)
		return
	}
	for 4*(l.used[n]+1) > 3*len(l.shards[n]) {
		l.hi = l.lo + (l.hi-l.lo)/2
		for i := range l.shards {
			l.rebuild(i, len(l.shards[i]))
		}
	}
}

// rebuild puts the keys of a shard that are of the range into a new one.
func (l *keys) rebuild(n, size int) {
	old := l.shards[n]
	l.shards[n], l.used[n] = make([]seenKey, size), 0
	for _, x := range old {
		if x.seq != 0 && x.a <= l.hi {
			*l.slot(n, x.a, x.b) = x
			l.used[n]++
		}
	}
}

// each calls fn with the last seq of every key, and whether it is a tombstone.
func (l *keys) each(fn func(seq uint64, tomb bool)) {
	for _, s := range l.shards {
		for _, x := range s {
			if x.seq != 0 {
				fn(x.seq&^tombBit, x.seq&tombBit != 0)
			}
		}
	}
}

// next goes on to the range behind, of the same width. It returns false if
// there is none.
func (l *keys) next() bool {
	if l.hi == ^uint64(0) {
		return false
	}
	width := l.hi - l.lo
	l.lo = l.hi + 1
	l.hi = l.lo + width
	if l.hi < l.lo {
		l.hi = ^uint64(0)
	}
	for i := range l.shards {
		clear(l.shards[i])
		l.used[i] = 0
	}
	return true
}
