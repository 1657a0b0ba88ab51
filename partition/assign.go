package partition

import (
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Assign says which member gets which partition: there are as many partitions
// as previous has entries, and previous[p] is who had p, or "". The answer has
// as many entries; all are "" if there is no member.
//
// It is even: no member has two partitions more than another. Of all that are
// even it moves the fewest: everybody keeps what he had as long as he may. What
// is free goes by rendezvous hashing, so that the same members get the same
// partitions wherever that is computed, and in whatever order they are named.
func Assign(members, previous []string) []string { return assign(members, previous, nil) }

// assign is Assign that does not give a partition to a member for which barred
// says so, if another one can have it. Who had it loses it too. The answer is
// as even as that allows.
func assign(members, previous []string, barred func(member string, p int) bool) []string {
	out := make([]string, len(previous))
	ids := slices.Clone(members)
	slices.Sort(ids)
	ids = slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return id == "" })
	if len(ids) == 0 || len(previous) == 0 {
		return out
	}
	s := share{
		ids: ids, hashes: make([]uint64, len(ids)), load: make([]int, len(ids)), keep: make([]int, len(ids)),
		least: len(previous) / len(ids), larger: len(previous) % len(ids), barred: barred,
	}
	index := make(map[string]int, len(ids))
	for i, id := range ids {
		index[id] = i
		s.hashes[i] = xxhash.Sum64String(id)
	}
	had := make([][]int, len(ids))
	for p, id := range previous {
		if i, ok := index[id]; ok && !s.bars(i, p) {
			had[i] = append(had[i], p)
		}
	}
	s.bound(had)
	for i, list := range had {
		// Those go that the member is the least fit for.
		slices.SortFunc(list, func(a, b int) int { return compare(s.score(i, b), s.score(i, a), a, b) })
		for _, p := range list[:min(len(list), s.keep[i])] {
			out[p] = ids[i]
			s.take(i)
		}
	}
	for p := range out {
		if out[p] == "" {
			i := s.best(p)
			out[p] = ids[i]
			s.take(i)
		}
	}
	return out
}

// share is an assignment being made. Members go by their index.
type share struct {
	ids    []string
	hashes []uint64
	load   []int
	keep   []int // how many of his a member may keep
	least  int   // what everybody gets
	larger int   // how many get one more; those that have it already are taken off
	barred func(member string, p int) bool
}

// bound says how many everybody may keep. Who has more than the least keeps one
// more while there is somebody who gets one more.
func (s *share) bound(had [][]int) {
	var above []int
	for i := range had {
		s.keep[i] = s.least
		if len(had[i]) > s.least {
			above = append(above, i)
		}
	}
	slices.SortFunc(above, func(a, b int) int { return compare(s.hashes[a], s.hashes[b], a, b) })
	for _, i := range above[:min(len(above), s.larger)] {
		s.keep[i]++
	}
}

func (s *share) take(i int) {
	if s.load[i]++; s.load[i] == s.least+1 {
		s.larger--
	}
}

func (s *share) bars(i, p int) bool { return s.barred != nil && s.barred(s.ids[i], p) }

// best gives the member for a free partition: the one with the highest score of
// those that may have one more.
func (s *share) best(p int) int {
	best, top := -1, uint64(0)
	seed := spread(uint64(p) + 1)
	for i, h := range s.hashes {
		if s.load[i] > s.least || s.load[i] == s.least && s.larger <= 0 {
			continue
		}
		if x := spread(h ^ seed); (best < 0 || x > top) && !s.bars(i, p) {
			best, top = i, x
		}
	}
	if best >= 0 {
		return best
	}
	// Only those have room that are not to have it: rather one of the others,
	// the one with the least to do.
	for _, strict := range []bool{true, false} {
		for i := range s.ids {
			if (best < 0 || s.load[i] < s.load[best]) && !(strict && s.bars(i, p)) {
				best = i
			}
		}
		if best >= 0 {
			break
		}
	}
	return best
}

func (s *share) score(i, p int) uint64 { return spread(s.hashes[i] ^ spread(uint64(p)+1)) }

// spread makes every bit depend on all others: the finaliser of a hash.
func spread(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}

// compare orders by x and y, and where they are equal by a and b.
func compare(x, y uint64, a, b int) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return a - b
}
