package logstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"sort"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore/internal/chunk"
)

const (
	readBytes = 256 << 10 // about what one step of an iteration copies
	readCount = 512
)

// Read implements [store.Log].
func (s *Store) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		if q.Limit < 0 {
			yield(event.Event{}, fmt.Errorf("read topic %s: %w: limit %d is negative", shorten(q.Topic), store.ErrInvalid, q.Limit))
			return
		}
		var err error
		if q.Key != "" {
			err = s.readKey(ctx, q, yield)
		} else {
			err = s.readRange(ctx, q, yield)
		}
		if err != nil {
			yield(event.Event{}, fmt.Errorf("read topic %s: %w", shorten(q.Topic), err))
		}
	}
}

// extent is the part of a topic that a query covers, at one moment.
func (s *Store) extent(q *store.Query) (t *topic, lo, hi uint64, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone.Load() {
		return nil, 0, 0, store.ErrClosed
	}
	t = s.topics[q.Topic]
	if t == nil || q.After == ^uint64(0) {
		return nil, 1, 0, nil
	}
	lo, hi = max(t.first, q.After+1), t.last
	if q.Until != 0 {
		hi = min(hi, q.Until)
	}
	return t, lo, hi, nil
}

// batch is some events of a topic, as records that no one else changes.
type batch struct {
	recs []event.Record
	// next is where to go on: the seq behind the batch in its direction; 0
	// if there is nothing more.
	next uint64
}

// readRange yields the events between two seqs.
func (s *Store) readRange(ctx context.Context, q store.Query, yield func(event.Event, error) bool) error {
	t, lo, hi, err := s.extent(&q)
	if err != nil || t == nil {
		return err
	}
	left := q.Limit
	want, filtered := q.Partition.Get()
	pos := lo
	if q.Reverse {
		pos = hi
	}
	for lo <= pos && pos <= hi {
		if err := ctx.Err(); err != nil {
			return err
		}
		most := readCount
		if q.Limit > 0 && !filtered {
			most = min(most, left)
		}
		b, err := s.fetch(t, pos, lo, hi, most, q.Reverse)
		if err != nil {
			return err
		}
		for _, r := range b.recs {
			if p, ok := r.Partition().Get(); filtered && (!ok || p != want) {
				continue
			}
			var e event.Event
			if err := event.DecodeBinary(r, &e, t.name); err != nil {
				return fmt.Errorf("seq %d: %w: %w", r.Seq(), store.ErrCorrupt, err)
			}
			if !yield(e, nil) {
				return nil
			}
			if left--; left == 0 {
				return nil
			}
		}
		if pos = b.next; pos == 0 {
			return nil
		}
	}
	return nil
}

// fetch gives up to most events from pos on, within [lo, hi], from memory or
// from a chunk. It may give none; next then leads on.
func (s *Store) fetch(t *topic, pos, lo, hi uint64, most int, reverse bool) (batch, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	s.mu.RLock()
	if s.gone.Load() {
		s.mu.RUnlock()
		return batch{}, store.ErrClosed
	}
	if first := t.first; pos < first {
		// Trimmed while we read.
		if reverse || first > hi {
			s.mu.RUnlock()
			return batch{}, nil
		}
		pos = first
	}
	lo = max(lo, t.first)
	if m := s.memWith(t.num, pos); m != nil {
		return s.fetchMem(t, m, pos, lo, hi, most, reverse), nil // unlocks
	}
	sealed := t.sealed
	s.mu.RUnlock()
	return s.fetchSealed(t, sealed, pos, lo, hi, most, reverse)
}

// memWith finds the mem that holds seq. mu must be held.
func (s *Store) memWith(topic uint32, seq uint64) *mem {
	for i := len(s.mems) - 1; i >= 0; i-- {
		if first, last, ok := s.mems[i].span(topic); ok && first <= seq {
			if seq <= last {
				return s.mems[i]
			}
			return nil
		}
	}
	return nil
}

// fetchMem copies records out of a mem. It is called with mu held for reading
// and gives it back before it copies.
func (s *Store) fetchMem(t *topic, m *mem, pos, lo, hi uint64, most int, reverse bool) batch {
	type place struct{ off, n uint32 }
	mt := m.topics[t.num]
	var places [readCount]place
	n, size := 0, 0
	for ; n < most && lo <= pos && pos <= hi && pos >= mt.first && pos-mt.first < uint64(len(mt.recs)) && size < readBytes; n++ {
		r := &m.recs[mt.recs[pos-mt.first]]
		places[n] = place{r.off, r.n}
		size += int(r.n)
		if reverse {
			pos--
		} else {
			pos++
		}
	}
	m.refs.Add(1)
	s.mu.RUnlock()
	buf := make([]byte, 0, size)
	b := batch{recs: make([]event.Record, n), next: pos}
	for i, p := range places[:n] {
		at := len(buf)
		buf = append(buf, m.image[p.off:p.off+p.n]...)
		b.recs[i] = event.Record(buf[at:len(buf):len(buf)])
	}
	s.pool.release(m)
	return b
}

// fetchSealed reads records of one chunk. Up to sealed everything was in
// chunks when pos was in no mem.
func (s *Store) fetchSealed(t *topic, sealed, pos, lo, hi uint64, most int, reverse bool) (batch, error) {
	for try := 0; ; try++ {
		x, ok, err := s.findSection(t.num, pos, reverse)
		if err != nil {
			return batch{}, err
		}
		if !ok {
			return s.beyond(t, sealed, pos, reverse), nil
		}
		if !reverse && x.first > hi {
			return batch{next: x.first}, nil
		}
		b, err := s.readSection(x, pos, lo, hi, most, reverse)
		if errors.Is(err, fs.ErrNotExist) && try < 10 {
			continue // rewritten since we looked
		}
		return b, err
	}
}

// beyond says where to go on when no chunk has pos or anything behind it. What
// has been sealed since we looked is behind sealed.
func (s *Store) beyond(t *topic, sealed, pos uint64, reverse bool) batch {
	if reverse {
		return batch{}
	}
	if pos > sealed {
		return batch{next: pos} // sealed a moment ago: look again
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return batch{next: max(t.first, sealed+1)}
}

// findSection finds the section that holds pos, else the nearest one behind it
// in the direction of reading.
func (s *Store) findSection(topic uint32, pos uint64, reverse bool) (x section, ok bool, err error) {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return x, false, fmt.Errorf("read directory: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	is := func(found bool) (section, bool, error) {
		if !found || len(it.Key()) != 13 || it.Key()[0] != 'd' {
			return x, false, it.Error()
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return x, false, err
		}
		got, err := decodeSection(it.Key(), v)
		return got, err == nil && got.topic == topic, err
	}
	x, ok, err = is(it.SeekLT(sectionKey(topic, pos+1)))
	if err != nil || ok && (reverse || x.last >= pos) || reverse {
		return x, ok, err
	}
	return is(it.SeekGE(sectionKey(topic, pos)))
}

// readSection reads from pos on, as many blocks of a section as make a batch.
func (s *Store) readSection(x section, pos, lo, hi uint64, most int, reverse bool) (b batch, err error) {
	c, err := s.chunks.get(x.chunk)
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	sec, err := c.Section(x.entry)
	if err != nil {
		return b, err
	}
	if reverse {
		return s.readBack(x, c, sec, min(pos, x.last), lo, most)
	}
	pos = max(pos, x.first)
	i := sort.Search(len(sec.Blocks), func(i int) bool { return sec.Blocks[i].Last >= pos })
	if most == 1 {
		return s.readOne(x, c, sec.Blocks[i], max(pos, lo), hi, false)
	}
	if pos == x.first {
		c.Prefetch(sec)
	}
	k, size, count := i, 0, 0
	for k < len(sec.Blocks) && (k == i || size < readBytes && count < most && sec.Blocks[k].First <= hi) {
		size += int(sec.Blocks[k].Len)
		count += int(sec.Blocks[k].Count)
		k++
	}
	var datas [][]byte
	if k == i+1 && count > most {
		data, err := s.chunks.block(x.chunk, c, sec.Blocks[i])
		if err != nil {
			return b, err
		}
		datas = [][]byte{data}
	} else if datas, err = c.Read(sec.Blocks[i:k]); err != nil {
		return b, err
	}
	b.recs = make([]event.Record, 0, min(count, most))
	for _, data := range datas {
		for _, r := range chunk.Records(data) {
			seq := r.Seq()
			if seq < pos || seq < lo {
				continue
			}
			if seq > hi || len(b.recs) == most {
				b.next = seq
				return b, nil
			}
			b.recs = append(b.recs, r)
		}
	}
	b.next = sec.Blocks[k-1].Last + 1
	return b, nil
}

// readBack reads one block downwards.
func (s *Store) readBack(x section, c *chunk.Chunk, sec *chunk.Section, pos, lo uint64, most int) (b batch, err error) {
	i := sort.Search(len(sec.Blocks), func(i int) bool { return sec.Blocks[i].First > pos }) - 1
	if i < 0 {
		return batch{next: x.first - 1}, nil
	}
	if most == 1 {
		return s.readOne(x, c, sec.Blocks[i], lo, pos, true)
	}
	data, err := s.chunks.block(x.chunk, c, sec.Blocks[i])
	if err != nil {
		return b, err
	}
	// The last ones are wanted, and one more says where to go on.
	var all []event.Record
	for _, r := range chunk.Records(data) {
		seq := r.Seq()
		if seq > pos {
			break
		}
		if seq < lo {
			continue
		}
		if len(all) > most && len(all) == cap(all) {
			all = all[:copy(all, all[len(all)-most:])]
		}
		all = append(all, r)
	}
	for k := len(all) - 1; k >= 0; k-- {
		if len(b.recs) == most {
			b.next = all[k].Seq()
			return b, nil
		}
		b.recs = append(b.recs, all[k])
	}
	b.next = sec.Blocks[i].First - 1
	return b, nil
}

// readOne reads, of one block, the first record from lo on or, in reverse, the
// last up to hi.
func (s *Store) readOne(x section, c *chunk.Chunk, block chunk.Block, lo, hi uint64, reverse bool) (b batch, err error) {
	b.next = block.Last + 1
	if reverse {
		b.next = block.First - 1
	}
	err = s.chunks.peek(x.chunk, c, block, func(data []byte) {
		var found event.Record
		for _, r := range chunk.Records(data) {
			seq := r.Seq()
			if seq > hi {
				if !reverse {
					b.next = seq
				}
				break
			}
			if seq < lo {
				continue
			}
			if found = r; !reverse {
				break
			}
		}
		if found == nil {
			return
		}
		b.recs = []event.Record{slices.Clone(found)}
		if b.next = found.Seq() + 1; reverse {
			b.next = found.Seq() - 1
		}
	})
	return b, err
}

// record gives the record of one event; ok is false if it is not there.
func (s *Store) record(t *topic, seq uint64) (r event.Record, ok bool, err error) {
	b, err := s.fetch(t, seq, seq, seq, 1, false)
	if err != nil || len(b.recs) == 0 {
		return nil, false, err
	}
	return b.recs[0], true, nil
}

// event gives one event; ok is false if it is not there.
func (s *Store) event(t *topic, seq uint64) (e event.Event, ok bool, err error) {
	r, ok, err := s.record(t, seq)
	if err != nil || !ok {
		return e, false, err
	}
	if err := event.DecodeBinary(r, &e, t.name); err != nil {
		return e, false, fmt.Errorf("seq %d: %w: %w", seq, store.ErrCorrupt, err)
	}
	return e, true, nil
}

// nearest gives the event at seq or, if there is none, the next one in the
// direction of reading, within [lo, hi], and its seq. If there is none at all,
// the seq is one beyond the bounds.
func (s *Store) nearest(t *topic, seq, lo, hi uint64, reverse bool) (event.Record, uint64, error) {
	for pos := seq; lo <= pos && pos <= hi; {
		b, err := s.fetch(t, pos, lo, hi, 1, reverse)
		if err != nil {
			return nil, 0, err
		}
		if len(b.recs) > 0 {
			return b.recs[0], b.recs[0].Seq(), nil
		}
		if b.next == 0 {
			break
		}
		pos = b.next
	}
	if reverse {
		return nil, lo - 1, nil
	}
	return nil, hi + 1, nil
}
