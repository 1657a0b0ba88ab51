package journal

import (
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store"
)

// Open recovers what is in the directory, which must exist, and hands it to
// o.Replay. The journal is ready after the first Rotate.
func Open(o Options) (*Journal, error) {
	j := &Journal{o: o, next: o.Applied + 1}
	used, err := j.list()
	if err == nil {
		err = j.recover(used)
	}
	if err != nil {
		return nil, errors.Join(err, j.closeAll(used))
	}
	return j, nil
}

func (j *Journal) closeAll(used []*Segment) error {
	for _, s := range used {
		j.drop(s)
	}
	return j.Close()
}

// list opens all segment files: those in use, sorted by first LSN, are
// returned, the others go to the free list.
func (j *Journal) list() (used []*Segment, err error) {
	fs := j.o.FS
	names, err := fs.List(j.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("list journal %s: %w", j.o.Dir, err)
	}
	sort.Strings(names)
	for _, name := range names {
		slot, err := strconv.Atoi(strings.TrimSuffix(name, ".seg"))
		if err != nil || name != segmentName(slot) {
			continue // not ours
		}
		j.slots = max(j.slots, slot+1)
		s := &Segment{slot: slot, path: fs.PathJoin(j.o.Dir, name)}
		if j.o.ReadOnly {
			s.file, err = fs.Open(s.path)
		} else {
			s.file, err = fs.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified)
		}
		if err != nil {
			return used, err
		}
		inUse, err := s.readHeader()
		switch {
		case err != nil:
			return append(used, s), err
		case inUse:
			used = append(used, s)
		case !j.o.ReadOnly && s.size != j.o.SegmentSize:
			// Half made when the process died, or of another size.
			if err := errors.Join(s.file.Close(), fs.Remove(s.path)); err != nil {
				return used, err
			}
		default:
			j.free = append(j.free, s)
		}
	}
	sort.SliceStable(used, func(a, b int) bool { return used[a].first < used[b].first })
	return used, nil
}

// recover replays the segments in order and cuts the torn tail.
func (j *Journal) recover(used []*Segment) error {
	var last *Segment
	var stale []*Segment
	for i, s := range used {
		if s.first <= j.o.Applied {
			// Segments are applied as a whole: this one is free.
			stale = append(stale, s)
			continue
		}
		end := uint64(0) // the first LSN that is not this segment's; 0: unknown
		if i+1 < len(used) {
			end = used[i+1].first
		}
		if s.first != j.next {
			return &store.CorruptError{File: s.path, Offset: 0, Detail: fmt.Sprintf("segment begins at LSN %d, where LSN %d is due", s.first, j.next)}
		}
		image := j.o.Image(int(s.size))[:s.size]
		if _, err := io.ReadFull(io.NewSectionReader(s.file, 0, s.size), image); err != nil {
			return fmt.Errorf("read %s: %w", s.path, err)
		}
		frames, off := scan(image, s, end)
		lsn := s.first + uint64(len(frames))
		if err := j.judgeEnd(s, image, off, lsn, end); err != nil {
			return err
		}
		if len(frames) == 0 {
			stale = append(stale, s) // begun, but its first frame did not arrive
			continue
		}
		j.next = lsn
		last = s
		j.live = append(j.live, s)
		if err := j.o.Replay(s, image, frames); err != nil {
			return err
		}
	}
	if j.o.ReadOnly {
		for _, s := range stale {
			j.drop(s)
		}
		return nil
	}
	if last != nil {
		// See the package doc: what was read may be in the page cache only.
		if err := last.file.SyncData(); err != nil {
			return fmt.Errorf("sync %s: %w", last.path, err)
		}
	}
	for _, s := range stale {
		if err := s.erase(); err != nil {
			return fmt.Errorf("erase %s: %w", s.path, err)
		}
		if err := j.Free(s); err != nil {
			return err
		}
	}
	return nil
}

// scan gives the intact frames of s below LSN end, and where they stop.
func scan(image []byte, s *Segment, end uint64) (frames []Frame, off int) {
	off = dataStart
	for lsn := s.first; end == 0 || lsn < end; lsn++ {
		f, ok := parse(image, off, s.incarnation)
		if !ok || f.LSN != lsn {
			break
		}
		frames = append(frames, f)
		off += size(len(f.Body))
	}
	return frames, off
}

// judgeEnd decides whether frames may end before LSN lsn at off: by a torn
// tail, or only by damage.
func (j *Journal) judgeEnd(s *Segment, image []byte, off int, lsn, end uint64) error {
	damaged := func(why string) error {
		return &store.CorruptError{File: s.path, Offset: int64(off), Detail: fmt.Sprintf("frame with LSN %d is damaged: %s", lsn, why)}
	}
	if end != 0 {
		if lsn < end {
			return damaged(fmt.Sprintf("the next segment begins at LSN %d", end))
		}
		return nil
	}
	if lsn <= j.o.Durable {
		return damaged(fmt.Sprintf("it was durable, up to LSN %d", j.o.Durable))
	}
	if at, ok := markBeyond(image, off, s.incarnation, lsn); ok {
		return damaged(fmt.Sprintf("the frame at offset %d marks it as durable", at))
	}
	return nil
}

func (j *Journal) drop(s *Segment) {
	if s.file != nil {
		_ = s.file.Close() // read only, or on the way out with an error
		s.file = nil
	}
}
