package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store"
)

const (
	magic         = "PROMJRNL"
	formatVersion = 1
	sector        = 512
	headerSize    = 44
)

// Segment is one use of a journal file.
type Segment struct {
	slot        int
	incarnation uint64
	first       uint64
	size        int64
	path        string
	file        vfs.File
}

// First is the segment's first LSN.
func (s *Segment) First() uint64 { return s.first }

// Path is the segment's file.
func (s *Segment) Path() string { return s.path }

func segmentName(slot int) string { return fmt.Sprintf("%06d.seg", slot) }

func (s *Segment) header() []byte {
	b := make([]byte, 2*sector)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], formatVersion)
	binary.LittleEndian.PutUint64(b[16:], uint64(s.size))
	binary.LittleEndian.PutUint64(b[24:], s.incarnation)
	binary.LittleEndian.PutUint64(b[32:], s.first)
	binary.LittleEndian.PutUint32(b[40:], crc32.Checksum(b[:40], castagnoli))
	copy(b[sector:], b[:sector])
	return b
}

// readHeader fills s from its file. used is false for a file that holds
// nothing: never used, or its creation did not come to an end.
func (s *Segment) readHeader() (used bool, err error) {
	st, err := s.file.Stat()
	if err != nil {
		return false, err
	}
	s.size = st.Size()
	if s.size < dataStart {
		return false, nil
	}
	b := make([]byte, 2*sector)
	if _, err := io.ReadFull(io.NewSectionReader(s.file, 0, int64(len(b))), b); err != nil {
		return false, fmt.Errorf("read header of %s: %w", s.path, err)
	}
	blank := false
	for off := 0; off < len(b); off += sector {
		h := b[off : off+sector]
		if bytes.Equal(h, make([]byte, sector)) {
			blank = true
			continue
		}
		if crc32.Checksum(h[:40], castagnoli) != binary.LittleEndian.Uint32(h[40:]) || string(h[:8]) != magic {
			continue
		}
		if v := binary.LittleEndian.Uint32(h[8:]); v > formatVersion {
			return false, fmt.Errorf("%w: %s has journal version %d, this program knows up to %d", store.ErrFormat, s.path, v, formatVersion)
		}
		if size := int64(binary.LittleEndian.Uint64(h[16:])); size != s.size {
			return false, &store.CorruptError{File: s.path, Offset: int64(off), Detail: fmt.Sprintf("file has %d bytes, its header says %d", s.size, size)}
		}
		// Both copies are written at once; after a crash one of them may
		// still be of an earlier use, which had smaller LSNs.
		if first := binary.LittleEndian.Uint64(h[32:]); !used || first >= s.first {
			s.first, s.incarnation = first, binary.LittleEndian.Uint64(h[24:])
		}
		used = true
	}
	if !used && !blank {
		return false, &store.CorruptError{File: s.path, Offset: 0, Detail: "both copies of the segment header fail their checksum"}
	}
	return used, nil
}

// erase takes the header away, so that nothing in the file counts any more.
func (s *Segment) erase() error {
	if _, err := s.file.WriteAt(make([]byte, 2*sector), 0); err != nil {
		return err
	}
	return s.file.SyncData()
}

// create makes a zeroed file of the given size that is safe to use.
func create(fs vfs.FS, dir string, slot int, size, step int64) (*Segment, error) {
	s := &Segment{slot: slot, size: size, path: fs.PathJoin(dir, segmentName(slot))}
	f, err := fs.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	s.file = f
	zero := make([]byte, min(size, step))
	for off := int64(0); off < size && err == nil; off += int64(len(zero)) {
		_, err = f.WriteAt(zero[:min(int64(len(zero)), size-off)], off)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = syncDir(fs, dir)
	}
	if err != nil {
		_ = f.Close() // the error above is the one that matters
		_ = fs.Remove(s.path)
		return nil, fmt.Errorf("allocate journal segment %s: %w", s.path, err)
	}
	return s, nil
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
