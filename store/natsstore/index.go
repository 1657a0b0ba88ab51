package natsstore

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"sync"

	"promethean/event"
	"promethean/store/internal/superseded"
)

// index knows the seq of every retained id of a topic, and about when events
// happened. It is made from the stream, by the tail and by acknowledgements,
// and can always be made again.
//
// An id takes 24 bytes in a table that is 55 to 80 per cent full: 30 to 44 bytes
// an event, about 400 MB for ten million.
type index struct {
	seed   maphash.Seed
	mu     sync.RWMutex
	first  uint64 // what is below is gone, and dropped when a table grows
	tables [tables]table
	blocks map[uint64]int64 // seq/blockSize → highest TS
}

const (
	// tables are grown one by one, so that none takes long.
	tables = 64
	// blockSize is how many seqs share one entry for LocateTime.
	blockSize = 64
	// gone marks an id whose event was deleted from within the stream.
	gone = math.MaxUint64
)

// table is open addressing over flat slots; a slot with seq 0 is free.
type table struct {
	slots []slot
	used  int
}

type slot struct{ hi, lo, seq uint64 }

func newIndex() *index {
	return &index{seed: maphash.MakeSeed(), first: 1, blocks: make(map[uint64]int64)}
}

// reset forgets everything.
func (x *index) reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.first, x.tables, x.blocks = 1, [tables]table{}, make(map[uint64]int64)
}

func (x *index) place(id event.ID) (t *table, h uint64) {
	h = maphash.Bytes(x.seed, id[:])
	return &x.tables[h%tables], h / tables
}

// find gives the slot of an id or the free one where it belongs.
func (t *table) find(hi, lo, h uint64) *slot {
	for i := h % uint64(len(t.slots)); ; {
		s := &t.slots[i]
		if s.seq == 0 || s.hi == hi && s.lo == lo {
			return s
		}
		if i++; i == uint64(len(t.slots)) {
			i = 0
		}
	}
}

// get gives the seq of an id, 0 if it is unknown or known to be trimmed.
func (x *index) get(id event.ID) uint64 {
	hi, lo := binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:])
	x.mu.RLock()
	defer x.mu.RUnlock()
	t, h := x.place(id)
	if len(t.slots) == 0 {
		return 0
	}
	if seq := t.find(hi, lo, h).seq; seq >= x.first && seq != gone {
		return seq
	}
	return 0
}

// put notes an event. Of two lives of one id the later counts.
func (x *index) put(id event.ID, seq uint64, ts int64) {
	hi, lo := binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:])
	x.mu.Lock()
	defer x.mu.Unlock()
	if seq < x.first {
		return
	}
	if old, ok := x.blocks[seq/blockSize]; !ok || ts > old {
		x.blocks[seq/blockSize] = ts
	}
	t, h := x.place(id)
	if t.used*5 >= len(t.slots)*4 {
		x.grow(t)
	}
	s := t.find(hi, lo, h)
	if s.seq == 0 {
		t.used++
		s.hi, s.lo = hi, lo
	}
	if s.seq == gone || s.seq < seq {
		s.seq = seq
	}
}

// grow makes room, and leaves out what is gone.
func (x *index) grow(t *table) {
	live := 0
	for i := range t.slots {
		if seq := t.slots[i].seq; seq >= x.first && seq != gone {
			live++
		}
	}
	old := t.slots
	t.slots, t.used = make([]slot, max(16, live*9/5)), live
	for i := range old {
		if s := &old[i]; s.seq >= x.first && s.seq != gone {
			var id event.ID
			binary.BigEndian.PutUint64(id[:8], s.hi)
			binary.BigEndian.PutUint64(id[8:], s.lo)
			_, h := x.place(id)
			*t.find(s.hi, s.lo, h) = *s
		}
	}
}

// forget says that the id of seq is gone: whoever read it found nothing.
func (x *index) forget(id event.ID, seq uint64) {
	hi, lo := binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:])
	x.mu.Lock()
	defer x.mu.Unlock()
	t, h := x.place(id)
	if len(t.slots) == 0 {
		return
	}
	// The slot stays taken, because others may lie behind it.
	if s := t.find(hi, lo, h); s.seq == seq {
		s.seq = gone
	}
}

// forgetAll says that the ids of some seqs are gone.
func (x *index) forgetAll(dead superseded.Set) {
	for i := range x.tables {
		x.forgetIn(i, dead)
	}
}

func (x *index) forgetIn(i int, dead superseded.Set) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k := range x.tables[i].slots {
		if s := &x.tables[i].slots[k]; s.seq != gone && dead.Has(s.seq) {
			s.seq = gone
		}
	}
}

// trim says that everything below first is gone.
func (x *index) trim(first uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if first <= x.first {
		return
	}
	if len(x.blocks) > 0 {
		from, to := x.first/blockSize, first/blockSize
		if to-from > uint64(len(x.blocks)) {
			for b := range x.blocks {
				if b < to {
					delete(x.blocks, b)
				}
			}
		} else {
			for b := from; b < to; b++ {
				delete(x.blocks, b)
			}
		}
	}
	x.first = first
}

// blockAfter gives the first block at or behind seq that may hold an event with
// a time at or after ts: its first and last seq, and whether there is one.
func (x *index) blockAfter(seq uint64, ts int64, last uint64) (from, to uint64, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for b := seq / blockSize; b <= last/blockSize; b++ {
		if high, ok := x.blocks[b]; ok && high >= ts {
			return max(seq, b*blockSize), b*blockSize + blockSize - 1, true
		}
	}
	return math.MaxUint64, 0, false
}
