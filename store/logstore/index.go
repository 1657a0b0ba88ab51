package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"promethean/event"
	"promethean/store/logstore/internal/run"
)

// The indexes of sealed events are sorted runs. An entry of the id index is
// id, topic number, seq; one of the key index is hash of topic and key, topic
// number, seq; all big endian, so that bytes compare as the values do. Time
// ordered ids make runs that hardly overlap, which lets a search skip most.
var (
	idSpec  = run.Spec{Width: 28, Prefix: 20}
	keySpec = run.Spec{Width: 20, Prefix: 12}
)

type indexKind byte

const (
	idIndex  indexKind = 'i'
	keyIndex indexKind = 'k'
)

func (k indexKind) spec() run.Spec {
	if k == idIndex {
		return idSpec
	}
	return keySpec
}

// tierRun is one run of an index. Eight of a tier are merged into one of the
// next, so that a search visits few, whatever the history.
type tierRun struct {
	run  *run.Run
	tier int
	age  uint64 // orders runs; that of a merged run is its oldest part's
	file uint64
}

// tiers is an index, oldest run first. It is never changed in place.
type tiers []tierRun

const fanout = 8

func idPrefix(topic uint32, id event.ID) []byte {
	b := make([]byte, 20, 28)
	copy(b, id[:])
	binary.BigEndian.PutUint32(b[16:], topic)
	return b
}

func keyPrefix(topic uint32, hash uint64) []byte {
	b := make([]byte, 12, 20)
	binary.BigEndian.PutUint64(b, hash)
	binary.BigEndian.PutUint32(b[8:], topic)
	return b
}

// entrySeq is the seq of an entry of either index; entryTopicOf its topic.
func entrySeq(e []byte) uint64 { return binary.BigEndian.Uint64(e[len(e)-8:]) }

func entryTopicOf(kind indexKind, e []byte) uint32 {
	return binary.BigEndian.Uint32(e[kind.spec().Prefix-4:])
}

// view is a consistent set of the indexes and of the mems that they do not
// cover yet. Its holder may search the runs without any lock.
type view struct {
	s        *Store
	mems     []*mem // not sealed, by age; the last is active
	ids      tiers
	keys     tiers
	released bool
}

// viewLocked takes a view. mu must be held.
func (s *Store) viewLocked() *view {
	v := &view{s: s, ids: s.ids, keys: s.keys}
	for i, m := range s.mems {
		if !m.sealed {
			v.mems = s.mems[i:]
			break
		}
	}
	for _, m := range v.mems {
		m.refs.Add(1)
	}
	for _, r := range v.ids {
		r.run.Acquire()
	}
	for _, r := range v.keys {
		r.run.Acquire()
	}
	return v
}

func (v *view) release() {
	if v.released {
		return
	}
	v.released = true
	for _, m := range v.mems {
		v.s.pool.release(m)
	}
	var errs []error
	for _, t := range []tiers{v.ids, v.keys} {
		for _, r := range t {
			errs = append(errs, r.run.Release())
		}
	}
	if err := errors.Join(errs...); err != nil {
		v.s.o.Logger.Warn("close index run", "err", err)
	}
}

// memSeq looks an id up in the mems. mu must be held.
func (v *view) memSeq(topic uint32, id event.ID, active bool) (uint64, bool) {
	n := len(v.mems)
	if !active {
		n--
	}
	for i := n - 1; i >= 0; i-- {
		if seq, ok := v.mems[i].seqOf(topic, id); ok {
			return seq, true
		}
	}
	return 0, false
}

// sealedSeq looks an id up in the runs; 0 if it is not there. Entries may be
// left of events that compaction has removed.
func (v *view) sealedSeq(t *topic, id event.ID) (seq uint64, err error) {
	p := idPrefix(t.num, id)
	for i := len(v.ids) - 1; i >= 0 && seq == 0 && err == nil; i-- {
		r := v.ids[i].run
		if !r.MayContain(p) {
			continue
		}
		var inner error
		err = r.Find(p, true, func(e []byte) bool {
			n, there := entrySeq(e), true
			if n < v.s.gapsBelow(t) {
				_, there, inner = v.s.record(t, n)
			}
			if there {
				seq = n
			}
			return !there && inner == nil
		})
		err = errors.Join(err, inner)
	}
	return seq, err
}

// gapsBelow is the seq below which events may be missing.
func (s *Store) gapsBelow(t *topic) uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return t.compacted
}

// lastOfKey is the seq of a key's last visible event, 0 if there is none.
func (s *Store) lastOfKey(t *topic, key string) (uint64, error) {
	s.mu.RLock()
	v := s.viewLocked()
	first, seq := t.first, uint64(0)
	for i := len(v.mems) - 1; i >= 0 && seq == 0; i-- {
		if k, ok := v.mems[i].lastOf(t.num, key); ok {
			seq = v.mems[i].record(k).Seq()
		}
	}
	s.mu.RUnlock()
	defer v.release()
	if seq != 0 {
		if seq < first {
			seq = 0
		}
		return seq, nil
	}
	p := keyPrefix(t.num, hashKey(t.num, key))
	for i := len(v.keys) - 1; i >= 0; i-- {
		r := v.keys[i].run
		if !r.MayContain(p) {
			continue
		}
		var inner error
		skip := ^uint64(0) // nothing is retained from here to what came before
		err := r.Find(p, true, func(e []byte) bool {
			n := entrySeq(e)
			if n < first {
				return false
			}
			if n > skip {
				return true
			}
			var rec event.Record
			if rec, skip, inner = s.nearest(t, n, first, n, true); inner != nil {
				return false
			}
			if skip == n && rec.Key() == key {
				seq = n
			}
			return seq == 0
		})
		if err = errors.Join(err, inner); err != nil {
			return 0, fmt.Errorf("look up key %s: %w", shorten(key), err)
		}
		if seq != 0 {
			return seq, nil
		}
	}
	return 0, nil
}
