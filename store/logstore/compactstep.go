package logstore

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"

	"promethean/event"
	"promethean/store"
	"promethean/store/internal/superseded"
	"promethean/store/logstore/internal/chunk"
	"promethean/store/logstore/internal/run"
)

// scanBlocks is how many blocks are read at once.
const scanBlocks = 4

// blocks calls fn with the blocks of a section, some read at once.
func (s *Store) blocks(p *pacer, x section, fn func(b chunk.Block, data []byte)) (err error) {
	c, err := s.chunks.get(x.chunk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	sec, err := c.Section(x.entry)
	if err != nil {
		return err
	}
	for i := 0; i < len(sec.Blocks); i += scanBlocks {
		part := sec.Blocks[i:min(i+scanBlocks, len(sec.Blocks))]
		datas, err := c.Read(part)
		if err != nil {
			return err
		}
		for k, data := range datas {
			fn(part[k], data)
		}
		if err := p.rest(); err != nil {
			return err
		}
	}
	return nil
}

// scanSection calls fn with the records of a section from pos to hi, and says
// where to go on.
func (s *Store) scanSection(p *pacer, x section, pos, hi uint64, fn func(event.Record)) (uint64, error) {
	err := s.blocks(p, x, func(_ chunk.Block, data []byte) {
		for _, r := range chunk.Records(data) {
			if seq := r.Seq(); pos <= seq && seq <= hi {
				fn(r)
				pos = seq + 1
			}
		}
	})
	if errors.Is(err, fs.ErrNotExist) {
		return pos, nil // rewritten since we looked
	}
	return x.last + 1, err
}

// stepShare is how many chunks' worth of events one step reads at most.
const stepShare = 8

// rewriting is a step under way: sections that are written without what is
// dead.
type rewriting struct {
	old   []section
	w     *chunk.Writer
	size  int64
	tombs int64  // the largest TS of a tombstone that goes for good
	bytes int64  // what goes
	count uint64 // and how many events
}

// step removes what is dead of some sections from pos on, and says where to go
// on.
func (j *compaction) step(pos, last uint64) (next uint64, err error) {
	err = j.s.withFiles(func() error {
		list, joined, err := j.affected(pos, last)
		if err != nil || len(list) == 0 {
			next = last + 1
			return err
		}
		next, err = j.rewrite(list, joined)
		return err
	})
	return next, err
}

// affected lists sections from pos on that have something dead, in order, and
// says which of them follow the one before without another between them.
func (j *compaction) affected(pos, last uint64) (list []section, joined []bool, err error) {
	size, before := int64(0), false
	err = j.s.scanManifest(sectionKey(j.t.num, 0), sectionKey(j.t.num, last+1), func(k, v []byte) error {
		x, err := decodeSection(k, v)
		hit := x.last >= pos && j.dead.Any(max(x.first, pos), x.last)
		if err != nil || !hit || len(list) > 0 && size+x.bytes > stepShare*j.s.o.SegmentSize {
			before = false
			if hit {
				size = 1 << 62 // enough
			}
			return err
		}
		list, joined = append(list, x), append(joined, before)
		size += x.bytes
		before = true
		return nil
	})
	return list, joined, err
}

// rewrite writes sections anew. tidying must be held.
func (j *compaction) rewrite(list []section, joined []bool) (next uint64, err error) {
	s := j.s
	s.manifest.Lock()
	file := s.newFile()
	s.manifest.Unlock()
	w, err := chunk.NewWriter(s.fs, s.chunkPath(file))
	if err != nil {
		return 0, s.failing(err)
	}
	r := rewriting{w: w}
	for i, x := range list {
		if r.size > s.o.SegmentSize {
			break
		}
		if !joined[i] || i == 0 {
			w.Begin(j.t.num, j.t.name)
		}
		if err := s.blocks(&j.pace, x, func(b chunk.Block, data []byte) { j.filter(&r, b, data) }); err != nil {
			w.Abort()
			return 0, err
		}
		r.old = append(r.old, x)
	}
	sections, err := w.Finish()
	if err == nil {
		err = syncDir(s.fs, s.dir)
	}
	if err == nil {
		err = j.commit(&r, file, sections)
	}
	if err != nil {
		return 0, s.failing(err)
	}
	j.removed(r.count, r.bytes)
	j.done.MaxTS = max(j.done.MaxTS, r.tombs)
	return r.old[len(r.old)-1].last + 1, nil
}

// failing stops the store: a write that failed is final.
func (s *Store) failing(err error) error {
	s.fail(fmt.Errorf("compact: %w", err))
	return s.Err()
}

// filter copies what stays of a block.
func (j *compaction) filter(r *rewriting, b chunk.Block, data []byte) {
	if !j.dead.Any(b.First, b.Last) {
		r.w.Copy(b, data)
		r.size += int64(len(data))
		return
	}
	for at, rec := range chunk.Records(data) {
		seq, n := rec.Seq(), int64(len(rec)+chunk.RecordHead)
		if !j.dead.Has(seq) {
			r.w.Add(seq, at, rec.TS(), rec)
			r.size += n
			continue
		}
		if seq >= j.low { // what is below has been counted with the trim
			r.count++
			r.bytes += n
			if j.tombs.Has(seq) {
				r.tombs = max(r.tombs, rec.TS())
			}
		}
	}
}

// commit puts the new sections in the place of the old ones.
func (j *compaction) commit(r *rewriting, file uint64, sections []chunk.Section) error {
	s, t := j.s, j.t
	s.manifest.Lock()
	defer s.manifest.Unlock()
	b := s.db.NewBatch()
	dead := make(map[uint64]int64) // by chunk
	gone, bytes := uint64(0), int64(0)
	for _, x := range r.old {
		_ = b.Delete(sectionKey(x.topic, x.first), nil) // in memory: cannot fail
		dead[x.chunk] += x.bytes
		gone += x.count
		bytes += x.bytes
	}
	size := int64(0)
	for i := range sections {
		x := sectionOf(&sections[i], file)
		_ = b.Set(sectionKey(x.topic, x.first), x.value(), nil)
		size += x.bytes
		gone -= x.count
	}
	empty, err := s.accountDead(b, dead)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	if len(sections) > 0 {
		putChunk(b, file, chunkRow{size, size})
	} else {
		empty = append(empty, file)
	}
	s.mu.Lock()
	t.bytes -= bytes - size
	t.compacted = max(t.compacted, j.dead.Last()+1) // before any event goes, so that who follows an entry looks for its event
	t.holes += gone
	t.stale += gone
	putGaps(b, t)
	_ = b.Set(topicKey(t.num), t.row(t.sealed, t.bytes), nil)
	s.mu.Unlock()
	putNum(b, keyFile, s.nextFile)
	putNum(b, keyFormat, manifestVersion)
	if err := s.commitManifest(b); err != nil {
		s.mu.Lock() // readers see the old sections still
		t.bytes += bytes - size
		t.holes -= gone
		t.stale -= gone
		s.mu.Unlock()
		return err
	}
	return s.removeChunks(empty)
}

// cleanIndex drops the entries of events that compaction has removed, once
// they are many among all: rewriting large indexes for a few would cost more
// than these cost. tidying must be held.
func (s *Store) cleanIndex(p *pacer) error {
	stale, topics := uint64(0), make(map[uint32]superseded.Set)
	s.mu.RLock()
	for _, t := range s.byNum {
		if t.stale > 0 {
			stale += t.stale
			topics[t.num] = make(superseded.Set)
		}
	}
	s.mu.RUnlock()
	entries := uint64(0)
	for _, r := range s.index(idIndex) {
		entries += r.run.Count()
	}
	if stale == 0 || entries > cmp.Or(s.o.fewEntries, fewEntries) && stale < entries/staleShare {
		return nil
	}
	first, below := s.firstSeqs(), make(map[uint32]uint64)
	for num, live := range topics {
		t := s.topicNumber(num)
		below[num] = s.gapsBelow(t)
		if err := s.liveSeqs(p, t, below[num], live); err != nil {
			return ended(err)
		}
	}
	for _, kind := range []indexKind{idIndex, keyIndex} {
		keep := func(e []byte) bool {
			num, seq := entryTopicOf(kind, e), entrySeq(e)
			if int(num) <= len(first) && seq < first[num-1] {
				return false
			}
			return seq >= below[num] || topics[num].Has(seq)
		}
		for i := range s.index(kind) {
			if err := s.filterRun(p, kind, i, keep); err != nil {
				return ended(err)
			}
		}
	}
	b := s.db.NewBatch()
	s.manifest.Lock()
	defer s.manifest.Unlock()
	s.mu.Lock()
	for num := range topics {
		t := s.byNum[num-1]
		t.stale = 0
		putGaps(b, t)
	}
	s.mu.Unlock()
	return s.commitManifest(b)
}

const (
	// fewEntries is how many entries an index may have to be cleaned of any
	// that lead nowhere; of a larger one 1 in staleShare must.
	fewEntries = 1 << 16
	staleShare = 16
)

// ended makes light of an end that the caller has asked for: what is left is
// done the next time.
func ended(err error) error {
	if errors.Is(err, store.ErrClosed) {
		return nil
	}
	return err
}

func (s *Store) topicNumber(num uint32) *topic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byNum[num-1]
}

// liveSeqs adds the seqs below one that a topic has in its sections.
func (s *Store) liveSeqs(p *pacer, t *topic, below uint64, live superseded.Set) error {
	var rows []section
	err := s.scanManifest(sectionKey(t.num, 0), sectionKey(t.num, below), func(k, v []byte) error {
		x, err := decodeSection(k, v)
		rows = append(rows, x)
		return err
	})
	if err != nil {
		return err
	}
	for _, x := range rows {
		if _, err := s.scanSection(p, x, x.first, below-1, func(r event.Record) { live.Add(r.Seq()) }); err != nil {
			return err
		}
	}
	return nil
}

// filterRun writes a run anew without the entries that keep refuses, if there
// are any.
func (s *Store) filterRun(p *pacer, kind indexKind, i int, keep func([]byte) bool) error {
	old := s.index(kind)[i]
	var stop error
	n, kept := 0, 0
	watched := func(e []byte) bool {
		if n++; n%4096 == 0 && stop == nil {
			stop = p.rest()
		}
		return stop == nil && keep(e)
	}
	err := old.run.All(func(e []byte) bool {
		if watched(e) {
			kept++
		}
		return stop == nil
	})
	if err = errors.Join(err, stop); err != nil || uint64(kept) == old.run.Count() {
		return err
	}
	s.manifest.Lock()
	file := s.newFile()
	s.manifest.Unlock()
	w, err := run.NewWriter(s.fs, s.runPath(file), kind.spec(), kept)
	if err != nil {
		return s.failing(err)
	}
	if err := errors.Join(run.Merge(w, []*run.Run{old.run}, watched), stop); err != nil {
		w.Abort()
		return err
	}
	if err := w.Finish(); err != nil {
		return s.failing(err)
	}
	if err := syncDir(s.fs, s.dir); err != nil {
		return s.failing(err)
	}
	filtered, err := run.Open(s.fs, s.runPath(file))
	if err != nil {
		return s.failing(err)
	}
	err = s.swapRuns(kind, i, i+1, tierRun{run: filtered, tier: old.tier, age: old.age, file: file})
	if err != nil {
		return s.failing(err)
	}
	return nil
}
