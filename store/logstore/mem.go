package logstore

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"promethean/event"
	"promethean/store/logstore/internal/journal"
)

// mem holds what one journal segment holds, ready to be read and searched:
// the segment's image and indexes over it. The last mem of a store is active
// and grows with the segment; the others are frozen and wait to be sealed, or
// linger after it as the tail that readers get from memory.
//
// Everything here changes only under Store.mu, by the writer, or at recovery.
// Bytes of the image that hold visible records never change, so a reader that
// holds a reference may read them without the lock.
type mem struct {
	number  uint64 // counts mems since the store was opened
	seg     *journal.Segment
	image   []byte
	lastLSN uint64
	end     int // where the visible frames end in the image
	recs    []rec
	topics  map[uint32]*memTopic
	ids     table
	keys    table
	maxID   event.ID
	// touched says that a frame changed something beside events.
	touched bool
	sealed  bool
	refs    atomic.Int32
}

// rec is one event of a mem.
type rec struct {
	off, n uint32
	topic  uint32
	prev   uint32 // the index+1 of the key's previous event in this mem
	at     int64
	hash   uint64 // of topic and key; 0 where there is no key
}

// memTopic lists the events of one topic; seqs are consecutive.
type memTopic struct {
	first uint64
	recs  []uint32
	bytes int64
	maxTS int64
}

func newMem(number uint64, image []byte) *mem {
	m := &mem{number: number, image: image, topics: make(map[uint32]*memTopic)}
	m.refs.Store(1)
	return m
}

func (m *mem) record(i uint32) event.Record {
	r := &m.recs[i]
	return event.Record(m.image[r.off : r.off+r.n : r.off+r.n])
}

// add enters the record at off into all indexes. Events of the topic below
// first are trimmed.
func (m *mem) add(topic uint32, off, n int, at int64, first uint64) {
	i := uint32(len(m.recs))
	m.recs = append(m.recs, rec{off: uint32(off), n: uint32(n), topic: topic, at: at})
	r := m.record(i)
	t := m.topics[topic]
	if t == nil {
		t = &memTopic{first: r.Seq(), maxTS: r.TS()}
		m.topics[topic] = t
	}
	t.recs = append(t.recs, i)
	t.bytes += int64(n)
	t.maxTS = max(t.maxTS, r.TS())
	id := r.ID()
	if compareID(id, m.maxID) > 0 {
		m.maxID = id
	}
	h := hashID(topic, id)
	again := false
	if first > t.first {
		// An event of this mem is trimmed, and its id may come back.
		var p uint32
		if p, again = m.ids.find(h, func(p uint32) bool { return m.recs[p].topic == topic && m.record(p).ID() == id }); again {
			m.ids.replace(h, p, i)
		}
	}
	if !again {
		m.ids.put(h, i, m.idHash)
	}
	if key := r.Key(); key != "" {
		h := hashKey(topic, key)
		m.recs[i].hash = h
		if p, ok := m.keys.find(h, func(p uint32) bool { return m.recs[p].hash == h }); ok {
			m.recs[i].prev = p + 1
			m.keys.replace(h, p, i)
		} else {
			m.keys.put(h, i, m.keyHash)
		}
	}
}

func (m *mem) idHash(i uint32) uint64  { return hashID(m.recs[i].topic, m.record(i).ID()) }
func (m *mem) keyHash(i uint32) uint64 { return m.recs[i].hash }

// seqOf finds an event by its id.
func (m *mem) seqOf(topic uint32, id event.ID) (uint64, bool) {
	i, ok := m.ids.find(hashID(topic, id), func(i uint32) bool {
		return m.recs[i].topic == topic && m.record(i).ID() == id
	})
	if !ok {
		return 0, false
	}
	return m.record(i).Seq(), true
}

// lastOf finds the last event of a key.
func (m *mem) lastOf(topic uint32, key string) (i uint32, ok bool) {
	h := hashKey(topic, key)
	i, ok = m.keys.find(h, func(i uint32) bool { return m.recs[i].hash == h })
	for ok && !m.isKey(i, topic, key) {
		i, ok = m.before(i)
	}
	return i, ok
}

// isKey tells a key from another with the same hash.
func (m *mem) isKey(i, topic uint32, key string) bool {
	return m.recs[i].topic == topic && m.record(i).Key() == key
}

// before gives the event before i of keys with the same hash.
func (m *mem) before(i uint32) (uint32, bool) {
	p := m.recs[i].prev
	return p - 1, p != 0
}

// span says which seqs of a topic the mem holds.
func (m *mem) span(topic uint32) (first, last uint64, ok bool) {
	t := m.topics[topic]
	if t == nil {
		return 0, 0, false
	}
	return t.first, t.first + uint64(len(t.recs)) - 1, true
}

func hashKey(topic uint32, key string) uint64 {
	// Never 0, which means that there is no key.
	return (xxhash.Sum64String(key)^uint64(topic)*0x9e3779b97f4a7c15)*0xff51afd7ed558ccd | 1
}

func hashID(topic uint32, id event.ID) uint64 {
	h := binary.LittleEndian.Uint64(id[8:])*0x9e3779b97f4a7c15 ^ binary.LittleEndian.Uint64(id[:])
	return (h ^ h>>29 ^ uint64(topic)) * 0xff51afd7ed558ccd
}

// table is a hash table from a 64-bit hash to the indexes of records, by
// linear probing. The upper bits of the hash say where to begin; a slot holds
// its lower half and the index+1.
type table struct {
	slots []uint64
	shift int // 64 - log2 of the size
	used  int
}

const minSlots = 1 << 10

func (t *table) next(p uint64) uint64 { return (p + 1) & uint64(len(t.slots)-1) }

func slot(h uint64, i uint32) uint64 { return h<<32 | uint64(i+1) }

// find gives the first index with this hash that match accepts.
func (t *table) find(h uint64, match func(uint32) bool) (uint32, bool) {
	if len(t.slots) == 0 {
		return 0, false
	}
	for p := h >> t.shift; t.slots[p] != 0; p = t.next(p) {
		if s := t.slots[p]; s>>32 == h&0xffffffff && match(uint32(s)-1) {
			return uint32(s) - 1, true
		}
	}
	return 0, false
}

// put adds i; hash gives the hash of an index that is already there.
func (t *table) put(h uint64, i uint32, hash func(uint32) uint64) {
	if 2*(t.used+1) > len(t.slots) {
		old := t.slots
		t.slots = make([]uint64, max(minSlots, 2*len(old)))
		t.shift = 64 - bits.TrailingZeros(uint(len(t.slots)))
		for _, s := range old {
			if s != 0 {
				t.place(hash(uint32(s)-1), uint32(s)-1)
			}
		}
	}
	t.place(h, i)
	t.used++
}

func (t *table) place(h uint64, i uint32) {
	p := h >> t.shift
	for t.slots[p] != 0 {
		p = t.next(p)
	}
	t.slots[p] = slot(h, i)
}

// replace puts i where old is.
func (t *table) replace(h uint64, old, i uint32) {
	p := h >> t.shift
	for uint32(t.slots[p]) != old+1 {
		p = t.next(p)
	}
	t.slots[p] = slot(h, i)
}

// reset empties the table and keeps its memory.
func (t *table) reset() {
	clear(t.slots)
	t.used = 0
}

// memPool reuses images and indexes of mems that nobody reads any more.
type memPool struct {
	size int
	free chan *mem
}

func newMemPool(size int64) *memPool {
	return &memPool{size: int(size), free: make(chan *mem, 2)}
}

func (p *memPool) get(number uint64) *mem {
	select {
	case m := <-p.free:
		m.number = number
		return m
	default:
		return newMem(number, make([]byte, p.size))
	}
}

// release gives a reference back and reuses the mem if it was the last.
func (p *memPool) release(m *mem) {
	if m.refs.Add(-1) > 0 {
		return
	}
	if len(m.image) != p.size {
		return // a recovered segment of another size
	}
	image, recs, ids, keys := m.image, m.recs[:0], m.ids, m.keys
	ids.reset()
	keys.reset()
	topics := m.topics
	clear(topics)
	*m = mem{image: image, recs: recs, ids: ids, keys: keys, topics: topics}
	m.refs.Store(1)
	select {
	case p.free <- m:
	default:
	}
}

func compareID(a, b event.ID) int { return bytes.Compare(a[:], b[:]) }
