package logstore

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store/logstore/internal/chunk"
	"promethean/store/logstore/internal/run"
)

// runSealer turns frozen mems into chunks and runs, oldest first.
func (s *Store) runSealer() {
	for {
		m := s.oldestFrozen()
		if m == nil {
			select {
			case <-s.sealWake:
				continue
			case <-s.stop:
				if s.oldestFrozen() == nil || s.Err() != nil {
					return
				}
				continue
			}
		}
		if s.Err() != nil {
			<-s.stop // the journal keeps what is not sealed
			return
		}
		began := time.Now()
		if err := s.seal(m); err != nil {
			s.fail(fmt.Errorf("seal %s: %w", m.seg.Path(), err))
			continue
		}
		s.o.Logger.Debug("sealed a journal segment", "took", time.Since(began))
		poke(s.room)
		poke(s.tidyWake)
	}
}

func (s *Store) oldestFrozen() *mem {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, m := range s.mems[:len(s.mems)-1] {
		if !m.sealed {
			return m
		}
	}
	return nil
}

// sealing collects what a change to the manifest consists of.
type sealing struct {
	batch    *pebble.Batch
	sections []section
	runs     map[indexKind]tierRun
}

// seal writes what m holds into files of its own, records them in the
// manifest, and frees the journal segment.
//
// Crash argument: the files are synced, and so is their directory, before
// the manifest names them; until then they are orphans, and the segment has
// everything. The segment is freed after the manifest is synced; until then
// opening replays it, which finds its events sealed and skips them.
func (s *Store) seal(m *mem) error {
	s.manifest.Lock()
	defer s.manifest.Unlock()
	sg := sealing{batch: s.db.NewBatch(), runs: make(map[indexKind]tierRun)}
	undo := func(err error) error {
		for _, r := range sg.runs {
			r.run.Doom()
			err = errors.Join(err, r.run.Release())
		}
		return errors.Join(err, sg.batch.Close())
	}
	if len(m.recs) > 0 {
		if err := s.writeChunk(m, &sg); err != nil {
			return undo(err)
		}
		if err := s.writeRuns(m, &sg); err != nil {
			return undo(err)
		}
		if err := syncDir(s.fs, s.dir); err != nil {
			return undo(err)
		}
	}
	s.mu.Lock()
	s.stateRows(m, &sg)
	s.mu.Unlock()
	putNum(sg.batch, keyApplied, m.lastLSN)
	putNum(sg.batch, keyFile, s.nextFile)
	if err := s.commitManifest(sg.batch); err != nil {
		// It may have come to the disk all the same: the files stay.
		for _, r := range sg.runs {
			err = errors.Join(err, r.run.Release())
		}
		return err
	}
	seg := m.seg
	s.publish(m, &sg)
	return s.w.j.Free(seg)
}

// newFile gives a file number. manifest must be held.
func (s *Store) newFile() uint64 {
	s.nextFile++
	return s.nextFile
}

func (s *Store) writeChunk(m *mem, sg *sealing) error {
	nums := make([]uint32, 0, len(m.topics))
	for n := range m.topics {
		nums = append(nums, n)
	}
	slices.Sort(nums)
	file := s.newFile()
	w, err := chunk.NewWriter(s.fs, s.chunkPath(file))
	if err != nil {
		return err
	}
	for _, n := range nums {
		s.mu.RLock()
		t := s.byNum[n-1]
		first := t.first
		s.mu.RUnlock()
		w.Begin(n, t.name)
		for _, i := range m.topics[n].recs {
			r := m.record(i)
			if seq := r.Seq(); seq >= first {
				w.Add(seq, m.recs[i].at, r.TS(), r)
			}
		}
	}
	sections, err := w.Finish()
	if err != nil {
		return err
	}
	if len(sections) == 0 {
		return s.fs.Remove(s.chunkPath(file)) // all of it is trimmed
	}
	size := int64(0)
	for i := range sections {
		x := sectionOf(&sections[i], file)
		sg.sections = append(sg.sections, x)
		size += x.bytes
		_ = sg.batch.Set(sectionKey(x.topic, x.first), x.value(), nil) // in memory: cannot fail
	}
	putChunk(sg.batch, file, chunkRow{size, size})
	return nil
}

func sectionOf(x *chunk.Section, file uint64) section {
	return section{topic: x.Topic, first: x.First(), last: x.Last(), chunk: file, bytes: x.Bytes(), maxTS: x.MaxTS(), lastAt: x.LastAt(), count: x.Count(), entry: x.Entry}
}

func (s *Store) writeRun(m *mem, sg *sealing, kind indexKind, n int, fill func(*run.Writer)) error {
	file := s.newFile()
	w, err := run.NewWriter(s.fs, s.runPath(file), kind.spec(), n)
	if err != nil {
		return err
	}
	fill(w)
	if err := w.Finish(); err != nil {
		return err
	}
	r, err := run.Open(s.fs, s.runPath(file))
	if err != nil {
		return err
	}
	tr := tierRun{run: r, age: m.lastLSN, file: file}
	sg.runs[kind] = tr
	putRun(sg.batch, kind, tr)
	return nil
}

func putRun(b *pebble.Batch, kind indexKind, tr tierRun) {
	var v encoder
	v.num(tr.file)
	v.num(uint64(tr.tier))
	_ = b.Set(runKey(kind, tr.age), v, nil) // in memory: cannot fail
}

// stateRows adds the rows of topics and groups that have changed. mu must be
// held. They may be ahead of m; see applyEntry for why that is right.
func (s *Store) stateRows(m *mem, sg *sealing) {
	sizes := make(map[uint32]int64)
	for i := range sg.sections {
		sizes[sg.sections[i].topic] += sg.sections[i].bytes
	}
	for _, t := range s.byNum {
		_, last, held := m.span(t.num)
		if !t.known || !held && !t.changed {
			continue
		}
		if !held {
			last = t.sealed
		}
		_ = sg.batch.Set(topicKey(t.num), t.row(last, t.bytes+sizes[t.num]), nil) // in memory: cannot fail
		t.changed, t.saved = false, true
	}
	for k := range s.dirty {
		if c := s.cursors[k]; c != nil {
			_ = sg.batch.Set(groupKey(k), encodeCursor(c), nil)
		} else {
			_ = sg.batch.Delete(groupKey(k), nil)
		}
	}
	clear(s.dirty)
}

// publish switches readers from m to the files, and lets old mems go.
func (s *Store) publish(m *mem, sg *sealing) {
	s.mu.Lock()
	for n, mt := range m.topics {
		t := s.byNum[n-1]
		_, t.sealed, _ = m.span(n)
		t.memBytes -= mt.bytes
	}
	for i := range sg.sections {
		x := &sg.sections[i]
		t := s.byNum[x.topic-1]
		if t.bytes == 0 {
			t.low = max(t.low, x.first) // what was trimmed in memory was not written
			t.holes = 0
		}
		t.bytes += x.bytes
	}
	if r, ok := sg.runs[idIndex]; ok {
		s.ids = append(slices.Clone(s.ids), r)
	}
	if r, ok := sg.runs[keyIndex]; ok {
		s.keys = append(slices.Clone(s.keys), r)
	}
	m.sealed = true
	close(s.sealNews)
	s.sealNews = make(chan struct{})
	sealed := sort.Search(len(s.mems), func(i int) bool { return !s.mems[i].sealed })
	drop := s.mems[:max(sealed-s.o.Tail, 0)]
	s.mems = slices.Clone(s.mems[len(drop):])
	s.mu.Unlock()
	for _, m := range drop {
		s.pool.release(m)
	}
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
