package logstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"promethean/store"
	"promethean/store/logstore/internal/run"
)

// runTidy does what can wait: retention, giving space back, merging runs.
func (s *Store) runTidy() {
	tick := time.NewTicker(s.o.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		case <-s.tidyWake:
		}
		if s.Err() != nil {
			continue
		}
		if err := s.tidy(); err != nil && !errors.Is(err, store.ErrClosed) {
			s.fail(fmt.Errorf("tidy: %w", err))
		}
	}
}

// tidy does all that there is to do now. Only it removes runs and chunks.
func (s *Store) tidy() error {
	s.tidying.Lock()
	defer s.tidying.Unlock()
	if err := s.retain(time.Now()); err != nil {
		return err
	}
	if err := s.reclaim(); err != nil {
		return err
	}
	if err := s.cleanIndex(&pacer{s: s, ctx: context.Background()}); err != nil {
		return err
	}
	for _, kind := range []indexKind{idIndex, keyIndex} {
		for {
			more, err := s.mergeRuns(kind)
			if err != nil {
				return err
			}
			if !more {
				break
			}
			select {
			case <-s.stop:
				return nil
			default:
			}
		}
	}
	return nil
}

// index gives the runs of one kind.
func (s *Store) index(kind indexKind) tiers {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if kind == idIndex {
		return s.ids
	}
	return s.keys
}

// pickMerge chooses neighbours to merge: fanout runs of one tier, or all runs
// if most of what they hold is gone.
func (s *Store) pickMerge(kind indexKind, list tiers) (from, to, tier int) {
	entries, live := uint64(0), uint64(0)
	for _, r := range list {
		entries += r.run.Count()
	}
	s.mu.RLock()
	for _, t := range s.byNum {
		if t.sealed >= t.first {
			n := t.sealed - t.first + 1
			live += n - min(t.holes, n)
		}
	}
	s.mu.RUnlock()
	// How many are live is an estimate: what a merge of all could not drop
	// is not tried again.
	if len(list) > 0 && entries > 2*live+uint64(s.o.SegmentSize)/256 && entries > s.merged[kind]+s.merged[kind]/4 {
		return 0, len(list), list[0].tier
	}
	for i := len(list); i >= fanout; i-- {
		if j := i - fanout; list[j].tier == list[i-1].tier {
			return j, i, list[j].tier + 1
		}
	}
	return 0, 0, 0
}

// mergeRuns merges some runs of an index into one.
//
// Crash argument: as for seal. The new run is synced before the manifest
// names it in place of the old ones, which are removed after that.
func (s *Store) mergeRuns(kind indexKind) (bool, error) {
	list := s.index(kind)
	from, to, tier := s.pickMerge(kind, list)
	if from == to {
		return false, nil
	}
	old := list[from:to]
	first := s.firstSeqs()
	keep := func(e []byte) bool {
		t := entryTopicOf(kind, e)
		return int(t) > len(first) || entrySeq(e) >= first[t-1]
	}
	s.manifest.Lock()
	file := s.newFile()
	s.manifest.Unlock()
	n := 0
	runs := make([]*run.Run, len(old))
	for i, r := range old {
		runs[i] = r.run
		n += int(r.run.Count())
	}
	w, err := run.NewWriter(s.fs, s.runPath(file), kind.spec(), n)
	if err != nil {
		return false, err
	}
	if err := run.Merge(w, runs, keep); err != nil {
		w.Abort()
		return false, err
	}
	if err := w.Finish(); err != nil {
		return false, err
	}
	if err := syncDir(s.fs, s.dir); err != nil {
		return false, err
	}
	merged, err := run.Open(s.fs, s.runPath(file))
	if err != nil {
		return false, err
	}
	if len(old) == len(list) {
		s.merged[kind] = merged.Count()
	}
	tr := tierRun{run: merged, tier: tier, age: old[0].age, file: file}
	return true, s.swapRuns(kind, from, to, tr)
}

// firstSeqs lists the first seq of each topic, by number.
func (s *Store) firstSeqs() []uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	first := make([]uint64, len(s.byNum))
	for i, t := range s.byNum {
		first[i] = t.first
	}
	return first
}

// swapRuns puts a merged run in the place of its parts. Only tidy removes
// runs, and a seal only adds at the end, so positions still hold.
func (s *Store) swapRuns(kind indexKind, from, to int, tr tierRun) error {
	s.manifest.Lock()
	defer s.manifest.Unlock()
	b := s.db.NewBatch()
	old := s.index(kind)[from:to]
	for _, r := range old {
		_ = b.Delete(runKey(kind, r.age), nil) // in memory: cannot fail
	}
	putRun(b, kind, tr)
	putNum(b, keyFile, s.nextFile)
	if err := s.commitManifest(b); err != nil {
		return errors.Join(err, tr.run.Release())
	}
	s.mu.Lock()
	list := &s.ids
	if kind == keyIndex {
		list = &s.keys
	}
	*list = slices.Replace(slices.Clone(*list), from, to, tr)
	s.mu.Unlock()
	var errs []error
	for _, r := range old {
		r.run.Doom()
		errs = append(errs, r.run.Release())
	}
	return errors.Join(errs...)
}

// chunkRow is a chunk's size, and how much of it is live.
type chunkRow struct{ size, live int64 }

func putChunk(b *pebble.Batch, file uint64, row chunkRow) {
	v := binary.BigEndian.AppendUint64(nil, uint64(row.size))
	_ = b.Set(chunkKey(file), binary.BigEndian.AppendUint64(v, uint64(row.live)), nil) // in memory: cannot fail
}

func decodeChunk(k, v []byte) (file uint64, row chunkRow, err error) {
	if len(k) != 9 || len(v) != 16 {
		return 0, row, fmt.Errorf("manifest: chunk row %x does not decode", k)
	}
	return binary.BigEndian.Uint64(k[1:]), chunkRow{int64(binary.BigEndian.Uint64(v)), int64(binary.BigEndian.Uint64(v[8:]))}, nil
}
