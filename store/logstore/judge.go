package logstore

import (
	"fmt"

	"promethean/event"
	"promethean/store"
)

// judge decides whether r is granted, against all that was granted before. It
// changes nothing if it refuses.
func (w *writer) judge(r *request) error {
	switch {
	case r.trim != nil:
		w.judgeTrim(r.trim)
		return nil
	case r.settings != nil:
		r.settings.t = w.topic(r.settings.topic)
		return nil
	case r.cursor != nil:
		return w.judgeCursor(r.cursor)
	case r.begin != nil:
		return w.judgeBegin(r.begin)
	}
	fresh, err := w.judgeIDs(r)
	if err != nil {
		return err
	}
	if fresh {
		for i := range r.batch.Expect {
			if err := w.judgeExpect(r, i); err != nil {
				return fmt.Errorf("append: %w", err)
			}
		}
	}
	for i := range r.batch.Settle {
		if err := w.judgeSettle(&r.batch.Settle[i]); err != nil {
			return fmt.Errorf("append: settlement %d: %w", i, err)
		}
	}
	w.grant(r)
	return nil
}

// judgeIDs marks the events of r whose id is known, and says whether any is
// new.
func (w *writer) judgeIDs(r *request) (fresh bool, err error) {
	if r.gen < w.act.number && len(r.items) > 0 {
		if err := w.catchUp(r); err != nil {
			return false, err
		}
	}
	for i := range r.items {
		it := &r.items[i]
		if it.t == nil {
			it.t = w.s.topics[r.batch.Events[i].Topic] // perhaps made in the meantime
		}
		if it.t == nil {
			fresh = true
			continue
		}
		id := r.record(it).ID()
		// Newest first: an older event with the id may be trimmed.
		seq := w.pendingSeq(it.t, id)
		if seq == 0 {
			seq, _ = w.act.seqOf(it.t.num, id)
		}
		if seq == 0 {
			seq = it.old
		}
		// What is trimmed is forgotten: its id is free again.
		it.dup = seq >= it.t.cut && seq != 0
		it.seq = seq
		fresh = fresh || !it.dup
	}
	return fresh, nil
}

// catchUp looks the ids of r up in the mems that were frozen since the caller
// looked.
func (w *writer) catchUp(r *request) error {
	s := w.s
	s.mu.RLock()
	if r.gen < s.mems[0].number {
		// So long ago that the mem which was active then is gone.
		s.mu.RUnlock()
		return s.lookUp(r)
	}
	defer s.mu.RUnlock()
	for _, m := range s.mems {
		if m.number < r.gen || m == w.act {
			continue
		}
		for i := range r.items {
			it := &r.items[i]
			if it.t == nil {
				it.t = s.topics[r.batch.Events[i].Topic]
			}
			if it.t == nil {
				continue
			}
			if seq, ok := m.seqOf(it.t.num, r.record(it).ID()); ok {
				it.old = seq
			}
		}
	}
	return nil
}

// groups yields those whose effects are not visible yet, newest first.
func (w *writer) groups(yield func(*group) bool) {
	if yield(w.open) && w.flying != nil {
		yield(w.flying)
	}
}

func (w *writer) pendingSeq(t *topic, id event.ID) uint64 {
	for g := range w.groups {
		i, ok := g.ids.find(hashID(t.num, id), func(i uint32) bool {
			return g.pend[i].t == t && g.pend[i].rec.ID() == id
		})
		if ok {
			return g.pend[i].seq
		}
	}
	return 0
}

func (w *writer) judgeExpect(r *request, i int) error {
	x := &r.batch.Expect[i]
	actual := uint64(0)
	if t := w.s.topics[x.Topic]; t != nil {
		if x.Key == "" {
			actual = t.next - 1
		} else if actual = w.lastOfKey(t, x.Key, r.gen, r.last[i]); actual < t.cut {
			actual = 0
		}
	}
	if actual != x.Seq {
		return &store.SeqConflictError{Topic: x.Topic, Key: x.Key, Expected: x.Seq, Actual: actual}
	}
	return nil
}

// lastOfKey is the seq of a key's last event, granted ones included. It was
// found to be known when the mem with the number gen was active.
func (w *writer) lastOfKey(t *topic, key string, gen, known uint64) uint64 {
	for g := range w.groups {
		for i := len(g.pend) - 1; i >= 0; i-- {
			if p := &g.pend[i]; p.t == t && p.rec.Key() == key {
				return p.seq
			}
		}
	}
	s := w.s
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i := len(s.mems) - 1; i >= 0 && s.mems[i].number >= gen; i-- {
		if k, ok := s.mems[i].lastOf(t.num, key); ok {
			return s.mems[i].record(k).Seq()
		}
	}
	return known
}

func (w *writer) judgeSettle(st *store.Settlement) error {
	t := w.s.topics[st.Topic]
	if t == nil {
		return fmt.Errorf("topic %s, group %s: %w", shorten(st.Topic), shorten(st.Group), store.ErrNotFound)
	}
	h := w.cursorHead(cursorKey{t.num, st.Group})
	switch {
	case !h.exists:
		return fmt.Errorf("topic %s, group %s: %w", t.name, shorten(st.Group), store.ErrNotFound)
	case st.Epoch != h.epoch:
		return fmt.Errorf("topic %s, group %s: epoch %d, the owner's is %d: %w", t.name, st.Group, st.Epoch, h.epoch, store.ErrFenced)
	}
	last := t.next - 1
	for _, d := range st.Done {
		if d.First <= d.Last && (d.First == 0 || d.Last > last) {
			return fmt.Errorf("topic %s, group %s: range %d to %d is not within 1 to %d: %w", t.name, st.Group, d.First, d.Last, last, store.ErrInvalid)
		}
	}
	for _, a := range st.Attempts {
		if a.Seq == 0 || a.Seq > last {
			return fmt.Errorf("topic %s, group %s: attempt on seq %d is not within 1 to %d: %w", t.name, st.Group, a.Seq, last, store.ErrInvalid)
		}
	}
	return nil
}

func (w *writer) cursorHead(k cursorKey) cursorHead {
	for g := range w.groups {
		if h, ok := g.heads[k]; ok {
			return h
		}
	}
	if c := w.s.cursors[k]; c != nil {
		return cursorHead{exists: true, version: c.Version, epoch: c.Epoch}
	}
	return cursorHead{}
}

func (w *writer) judgeCursor(op *cursorOp) error {
	c := &op.cursor
	op.t = w.s.topics[c.Topic]
	var h cursorHead
	if op.t != nil {
		h = w.cursorHead(cursorKey{op.t.num, c.Group})
	}
	switch {
	case op.drop && !h.exists:
		return store.ErrNotFound
	case h.version != c.Version:
		return fmt.Errorf("version %d, stored is %d: %w", c.Version, h.version, store.ErrConflict)
	case !op.drop && c.Epoch < h.epoch:
		return fmt.Errorf("epoch %d, stored is %d: %w", c.Epoch, h.epoch, store.ErrFenced)
	}
	if op.t == nil {
		op.t = w.topic(c.Topic)
	}
	if op.drop {
		w.open.heads[cursorKey{op.t.num, c.Group}] = cursorHead{}
		return nil
	}
	c.Version++
	w.open.heads[cursorKey{op.t.num, c.Group}] = cursorHead{exists: true, version: c.Version, epoch: c.Epoch}
	return nil
}

func (w *writer) judgeTrim(op *trimOp) {
	op.t = w.s.topics[op.topic]
	if op.t == nil {
		return
	}
	op.before = min(op.before, op.t.next)
	if op.before <= op.t.cut {
		op.t = nil // nothing to do
		return
	}
	op.t.cut = op.before
}

// grant gives seqs to the new events of r.
func (w *writer) grant(r *request) {
	for i := range r.items {
		it := &r.items[i]
		if it.dup {
			continue
		}
		rec := r.record(it)
		if it.t == nil {
			it.t = w.topic(r.batch.Events[i].Topic)
		}
		id := rec.ID()
		if len(r.items) > 1 {
			// The batch may hold the id twice.
			if seq := w.pendingSeq(it.t, id); seq != 0 {
				it.seq, it.dup = seq, true
				continue
			}
		}
		it.seq = it.t.next
		it.t.next++
		rec.SetSeq(it.seq)
		g := w.open
		g.pend = append(g.pend, pending{t: it.t, rec: rec, seq: it.seq})
		g.ids.put(hashID(it.t.num, id), uint32(len(g.pend)-1), func(k uint32) uint64 {
			return hashID(g.pend[k].t.num, g.pend[k].rec.ID())
		})
	}
}

// topic gives the topic with that name, made if need be. Readers do not see
// it before the frame that makes it is durable.
func (w *writer) topic(name string) *topic {
	s := w.s
	if t := s.topics[name]; t != nil {
		return t
	}
	t := &topic{num: uint32(len(s.byNum)) + 1, name: name, next: 1, cut: 1, first: 1, low: 1}
	s.mu.Lock()
	s.topics[name] = t
	s.byNum = append(s.byNum, t)
	t.watches = s.adopt(name)
	s.mu.Unlock()
	w.open.body = appendEntry(w.open.body, entryTopic, t.num, []byte(name))
	w.open.entries++
	return t
}
