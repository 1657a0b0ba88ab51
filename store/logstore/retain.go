package logstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"promethean/store/logstore/internal/chunk"
)

// retain trims topics by age and size.
func (s *Store) retain(now time.Time) error {
	type job struct {
		t    *topic
		name string
	}
	var jobs []job
	s.mu.RLock()
	for _, t := range s.byNum {
		if t.last >= t.first && (t.settings.Retention > 0 || t.settings.MaxBytes > 0) {
			jobs = append(jobs, job{t: t, name: t.name})
		}
	}
	s.mu.RUnlock()
	for _, j := range jobs {
		before, err := s.expired(j.t, now)
		if err != nil {
			return fmt.Errorf("retention of topic %s: %w", j.name, err)
		}
		if before == 0 {
			continue
		}
		if err := s.Trim(context.Background(), j.name, before); err != nil {
			return err
		}
	}
	return nil
}

// expired says below which seq the topic's events have outlived its settings;
// 0 if none have.
func (s *Store) expired(t *topic, now time.Time) (uint64, error) {
	s.mu.RLock()
	set, first, last := t.settings, t.first, t.last
	s.mu.RUnlock()
	before := uint64(0)
	if set.Retention > 0 {
		cut := now.Add(-set.Retention).UnixMilli()
		seq, err := s.firstSince(t, first, last, cut)
		if err != nil {
			return 0, err
		}
		before = seq
	}
	if set.MaxBytes > 0 {
		seq, err := s.firstWithin(t, last, set.MaxBytes)
		if err != nil {
			return 0, err
		}
		before = max(before, seq)
	}
	if before <= first {
		return 0, nil
	}
	return before, nil
}

// stretch is a part of a topic: a block of a chunk, or one event of a mem.
type stretch struct {
	first, last uint64
	lastAt      int64
	bytes       int64
	// records gives the events of a block with their commit times.
	records func() ([]byte, error)
}

// stretches calls fn with the topic's parts, oldest first, until it returns
// false. Commit times ascend.
func (s *Store) stretches(t *topic, fn func(stretch) bool) error {
	from, to := sectionKey(t.num, 0), sectionKey(t.num+1, 0)
	var rows []section
	err := s.scanManifest(from, to, func(k, v []byte) error {
		x, err := decodeSection(k, v)
		rows = append(rows, x)
		return err
	})
	if err != nil {
		return err
	}
	seen := uint64(0)
	for _, x := range rows {
		sec, err := s.sectionIndex(x)
		if errors.Is(err, fs.ErrNotExist) {
			continue // rewritten since we looked; the next sweep sees it
		}
		if err != nil {
			return err
		}
		for _, b := range sec.Blocks {
			seen = b.Last
			records := func() ([]byte, error) { return s.readBlock(x.chunk, b) }
			if !fn(stretch{b.First, b.Last, b.LastAt, int64(b.Len), records}) {
				return nil
			}
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, m := range s.mems {
		mt := m.topics[t.num]
		if mt == nil {
			continue
		}
		for k, i := range mt.recs {
			if seq := mt.first + uint64(k); seq > seen && !fn(stretch{seq, seq, m.recs[i].at, int64(m.recs[i].n), nil}) {
				return nil
			}
		}
	}
	return nil
}

func (s *Store) sectionIndex(x section) (sec *chunk.Section, err error) {
	c, err := s.chunks.get(x.chunk)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	return c.Section(x.entry)
}

func (s *Store) readBlock(file uint64, b chunk.Block) (data []byte, err error) {
	c, err := s.chunks.get(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	return s.chunks.block(file, c, b)
}

// firstSince is the seq of the first event that was committed at cut or later.
func (s *Store) firstSince(t *topic, first, last uint64, cut int64) (uint64, error) {
	before := last + 1
	var inner error
	err := s.stretches(t, func(x stretch) bool {
		if x.lastAt < cut {
			return true
		}
		before = max(x.first, first)
		if x.records == nil {
			return false
		}
		var block []byte
		if block, inner = x.records(); inner != nil {
			return false
		}
		for at, r := range chunk.Records(block) {
			if at >= cut {
				before = max(r.Seq(), first)
				break
			}
		}
		return false
	})
	if errors.Is(inner, fs.ErrNotExist) {
		return first, nil // rewritten since we looked; the next sweep sees it
	}
	return before, errors.Join(err, inner)
}

// firstWithin is the seq from which on the topic takes at most limit bytes.
func (s *Store) firstWithin(t *topic, last uint64, limit int64) (uint64, error) {
	var all []stretch
	if err := s.stretches(t, func(x stretch) bool { all = append(all, x); return true }); err != nil {
		return 0, err
	}
	before := last + 1
	for _, x := range slices.Backward(all) {
		if limit -= x.bytes; limit < 0 {
			break
		}
		before = x.first
	}
	return before, nil
}

// reclaim gives back the space of trimmed events: sections that are wholly
// trimmed leave the directory, chunks without live sections are removed, and
// chunks of which less than half is live, or that are small, are written
// together into new ones.
//
// tidying must be held. The files are written without manifest, so that seals
// go on meanwhile; they only add rows.
func (s *Store) reclaim() error {
	if err := s.dropSections(); err != nil {
		return err
	}
	for {
		group, err := s.pickRewrite()
		if err != nil || len(group) == 0 {
			return err
		}
		if err := s.rewrite(group); err != nil {
			return err
		}
	}
}

// dropSections removes the rows of sections that are wholly trimmed.
func (s *Store) dropSections() error {
	type job struct {
		t     *topic
		first uint64
	}
	var jobs []job
	s.mu.RLock()
	for _, t := range s.byNum {
		if t.low < t.first {
			jobs = append(jobs, job{t, t.first})
		}
	}
	s.mu.RUnlock()
	if len(jobs) == 0 {
		return nil
	}
	s.manifest.Lock()
	defer s.manifest.Unlock()
	b := s.db.NewBatch()
	dead := make(map[uint64]int64) // by chunk
	type gain struct {
		low   uint64
		bytes int64
		count uint64
	}
	gains := make(map[*topic]gain)
	for _, j := range jobs {
		g := gain{low: j.first}
		err := s.scanManifest(sectionKey(j.t.num, 0), sectionKey(j.t.num, j.first), func(k, v []byte) error {
			x, err := decodeSection(k, v)
			if err != nil {
				return err
			}
			if x.last >= j.first {
				g.low = min(g.low, x.first)
				return nil
			}
			dead[x.chunk] += x.bytes
			g.bytes += x.bytes
			g.count += x.count
			return b.Delete(slices.Clone(k), nil)
		})
		if err != nil {
			return err
		}
		gains[j.t] = g
	}
	s.mu.Lock()
	for t, g := range gains {
		if t.compacted > 0 {
			t.closeGaps(g.low, g.count)
			putGaps(b, t)
		}
		t.low = g.low
		t.bytes -= g.bytes
		t.changed = true
		if t.saved {
			_ = b.Set(topicKey(t.num), t.row(t.sealed, t.bytes), nil) // in memory: cannot fail
		}
	}
	s.mu.Unlock()
	empty, err := s.accountDead(b, dead)
	if err != nil {
		return err
	}
	if err := s.commitManifest(b); err != nil {
		return err
	}
	return s.removeChunks(empty)
}

// closeGaps takes the gaps out of account that leave with count events when
// low moves. mu must be held.
func (t *topic) closeGaps(low, count uint64) {
	if low >= t.compacted {
		t.holes, t.stale = 0, 0 // merges drop the entries of what is trimmed
	} else if seqs := low - min(low, t.low); seqs > count {
		t.holes -= min(t.holes, seqs-count)
	}
}

// removeChunks deletes chunk files that the manifest does not name any more.
func (s *Store) removeChunks(files []uint64) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, s.chunks.forget(f), s.fs.Remove(s.chunkPath(f)))
	}
	return errors.Join(errs...)
}
