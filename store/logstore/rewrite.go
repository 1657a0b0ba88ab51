package logstore

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"promethean/store/logstore/internal/chunk"
)

// foldAt is how many small chunks are folded into one.
const foldAt = 8

// accountDead takes dead bytes off the chunks' rows, and gives the chunks in
// which nothing is live any more, whose rows it deletes.
func (s *Store) accountDead(b *pebble.Batch, dead map[uint64]int64) (empty []uint64, err error) {
	for file, n := range dead {
		v, c, err := s.db.Get(chunkKey(file))
		if err != nil {
			return nil, fmt.Errorf("manifest: chunk %d: %w", file, err)
		}
		_, row, err := decodeChunk(chunkKey(file), v)
		if err = errors.Join(err, c.Close()); err != nil {
			return nil, err
		}
		if row.live -= n; row.live > 0 {
			putChunk(b, file, row)
			continue
		}
		_ = b.Delete(chunkKey(file), nil) // in memory: cannot fail
		empty = append(empty, file)
	}
	return empty, nil
}

// pickRewrite chooses chunks to be written together. Chunks that are mostly
// dead come first; small ones only when there are several.
func (s *Store) pickRewrite() (group []uint64, err error) {
	var thin, small []uint64
	thinLive, smallLive := int64(0), int64(0)
	most := s.o.SegmentSize
	err = s.scanManifest([]byte("c"), []byte("d"), func(k, v []byte) error {
		file, row, err := decodeChunk(k, v)
		switch {
		case err != nil:
		case row.live*2 < row.size && thinLive+row.live <= most:
			thin = append(thin, file)
			thinLive += row.live
		case row.size <= most/foldAt && smallLive+row.live <= most:
			small = append(small, file)
			smallLive += row.live
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(thin) > 0 {
		return thin, nil
	}
	if len(small) >= foldAt {
		return small, nil
	}
	return nil, nil
}

// rewrite copies the live sections of some chunks into a new one. tidying must
// be held.
//
// Crash argument: the new chunk and its directory entry are synced before the
// manifest, in one step, points the sections at it and forgets the old
// chunks; their files are removed after that, or as orphans by the next open.
// Readers that found a section in an old chunk look again if its file is gone.
func (s *Store) rewrite(files []uint64) error {
	from := make(map[uint64]bool)
	for _, f := range files {
		from[f] = true
	}
	// Neighbours become one section: fewer rows, longer reads. Gaps may lie
	// between them, but no other section.
	var rows []section
	var joined []bool
	before := section{} // the row before
	err := s.scanManifest([]byte("d"), []byte("e"), func(k, v []byte) error {
		x, err := decodeSection(k, v)
		if from[x.chunk] {
			rows = append(rows, x)
			joined = append(joined, before.topic == x.topic && from[before.chunk])
		}
		before = x
		return err
	})
	if err != nil {
		return err
	}
	s.manifest.Lock()
	file := s.newFile()
	s.manifest.Unlock()
	w, err := chunk.NewWriter(s.fs, s.chunkPath(file))
	if err != nil {
		return err
	}
	for i, x := range rows {
		if err := s.copySection(w, x, joined[i]); err != nil {
			w.Abort()
			return err
		}
	}
	sections, err := w.Finish()
	if err != nil {
		return err
	}
	if err := syncDir(s.fs, s.dir); err != nil {
		return err
	}
	s.manifest.Lock()
	defer s.manifest.Unlock()
	b := s.db.NewBatch()
	for _, x := range rows {
		_ = b.Delete(sectionKey(x.topic, x.first), nil) // in memory: cannot fail
	}
	size := int64(0)
	for i := range sections {
		x := sectionOf(&sections[i], file)
		size += x.bytes
		_ = b.Set(sectionKey(x.topic, x.first), x.value(), nil)
	}
	for _, f := range files {
		_ = b.Delete(chunkKey(f), nil)
	}
	if len(sections) > 0 {
		putChunk(b, file, chunkRow{size, size})
	}
	putNum(b, keyFile, s.nextFile)
	if err := s.commitManifest(b); err != nil {
		return err
	}
	if len(sections) == 0 {
		files = append(files, file)
	}
	return s.removeChunks(files)
}

// copySection copies the blocks of a section, verified, as they are.
func (s *Store) copySection(w *chunk.Writer, x section, joined bool) (err error) {
	c, err := s.chunks.get(x.chunk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	sec, err := c.Section(x.entry)
	if err != nil {
		return err
	}
	if !joined {
		w.Begin(sec.Topic, sec.Name)
	}
	for _, b := range sec.Blocks {
		data, err := c.Read([]chunk.Block{b})
		if err != nil {
			return err
		}
		w.Copy(b, data[0])
	}
	return nil
}
