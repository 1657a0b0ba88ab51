// Package superseded finds out what a compaction removes: which events of a
// topic have a later one of their key, or are tombstones that have had their
// time. Engines that scan their topics for that use it, so that it is decided
// in one place.
//
// # Guarantees
//
// Exact: no event is found to be superseded that is not. Keys that are chosen
// to collide do not.
//
// Bounded: it takes 48 MiB at most for keys, and one bit for each seq of
// stretches of 65,536 that have something to remove. A topic with more than
// some 1.5 million keys is scanned several times.
package superseded

import "promethean/store"

// Finder finds what a compaction removes.
//
//	for f.Next() {
//		scan(func(seq uint64, key string, payload []byte) { f.See(seq, key, payload) })
//	}
type Finder struct {
	// Dead has what is to be removed; Tombs those of them that are tombstones
	// and the last of their key.
	Dead, Tombs Set
	// Low is the smallest seq that stays, Before if none does.
	Low uint64
	// Count says how many events there are below Before.
	Count uint64

	c    store.Compaction
	most int
	keys *keys
}

// New gives a finder. Most bounds how many slots it keeps keys in; 0 is the
// default.
func New(c store.Compaction, most int) *Finder {
	if most == 0 {
		most = mostSlots
	}
	return &Finder{Dead: make(Set), Tombs: make(Set), Low: c.Before, c: c, most: most}
}

// Next says whether the topic is to be scanned, once more perhaps.
func (f *Finder) Next() bool {
	if f.keys == nil {
		f.keys = newKeys(f.most)
		return true
	}
	f.keys.each(func(seq uint64, tomb bool) {
		if tomb {
			f.Dead.Add(seq)
			f.Tombs.Add(seq)
		} else {
			f.Low = min(f.Low, seq)
		}
	})
	return f.keys.next()
}

// See takes in an event. A scan shows those below Before, in the order of
// their seqs.
func (f *Finder) See(seq uint64, key string, payload []byte) {
	if seq >= f.c.Before {
		return
	}
	if f.keys.lo == 0 {
		f.Count++ // the first scan sees them all
	}
	if key == "" || f.c.Key != "" && f.c.Key != key {
		f.Low = min(f.Low, seq)
		return
	}
	tomb := seq < f.c.Tombstones && store.Tombstone(payload)
	if before := f.keys.see(key, seq, tomb); before != 0 {
		f.Dead.Add(before)
	}
}
