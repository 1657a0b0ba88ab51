package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// maxFree is how many recycled segments are kept; more are deleted.
const maxFree = 8

// Options configure a journal.
type Options struct {
	FS  vfs.FS
	Dir string
	// SegmentSize is the size of new segments; a multiple of 4096.
	SegmentSize int64
	// Applied is the LSN up to which the caller needs no frames.
	Applied uint64
	// Durable is an LSN that the caller knows to be durable.
	Durable uint64
	// Image gives a buffer of at least n bytes for a segment's image.
	Image func(n int) []byte
	// Replay gets each segment that holds frames after Applied, in order,
	// with its image and its intact frames. It owns the image.
	Replay func(s *Segment, image []byte, frames []Frame) error
	// Memory says that FS is in memory: nothing is gained by making segments
	// ahead of their use.
	Memory bool
	// ReadOnly recovers without changing anything; the journal cannot be
	// written.
	ReadOnly bool
}

// Journal appends frames. Its methods are for one caller at a time, but for
// Free, which may be called at any time.
type Journal struct {
	o     Options
	cur   *Segment
	image []byte
	off   int
	next  uint64 // the LSN of the next frame

	mu    sync.Mutex
	free  []*Segment
	live  []*Segment // older than cur, not yet freed
	slots int
	stock sync.WaitGroup
}

// Room says whether a frame with a body of n bytes fits the current segment.
func (j *Journal) Room(n int) bool {
	return j.cur != nil && j.off+size(n) <= len(j.image)
}

// MaxBody is the largest body a segment can hold.
func (j *Journal) MaxBody() int { return int(j.o.SegmentSize) - dataStart - HeadSize - Align }

// Begin gives the space for the next frame's body in the current segment's
// image, and where it begins. The caller appends to it, as far as Room says,
// and calls End.
func (j *Journal) Begin() (body []byte, off int) {
	off = j.off + HeadSize
	return j.image[off:off:len(j.image)], off
}

// Pending is a frame that has its place and LSN, and is to be written.
type Pending struct {
	LSN uint64
	seg *Segment
	buf []byte
	off int
	n   int
}

// End ends the frame whose body, begun with Begin, is n bytes long. The next
// one may begin before this one is written.
func (j *Journal) End(n int) Pending {
	p := Pending{LSN: j.next, seg: j.cur, buf: j.image[j.off : j.off+size(n)], off: j.off, n: n}
	j.next++
	j.off += size(n)
	return p
}

// End is where the frame ends in the segment.
func (p Pending) End() int { return p.off + len(p.buf) }

// Write writes a frame that carries the given durable mark. Frames must be
// written in order.
func (p Pending) Write(durable uint64, at int64) error {
	putHead(p.buf, p.n, p.seg.incarnation, p.LSN, durable, at)
	if _, err := p.seg.file.WriteAt(p.buf, int64(p.off)); err != nil {
		return fmt.Errorf("write %s at %d: %w", p.seg.path, p.off, err)
	}
	return nil
}

// Sync makes the frame durable, with all that were written before it.
func (p Pending) Sync() error {
	if err := p.seg.file.SyncData(); err != nil {
		return fmt.Errorf("sync %s: %w", p.seg.path, err)
	}
	return nil
}

// Next is the LSN that the next frame gets.
func (j *Journal) Next() uint64 { return j.next }

// Rotate goes on in another segment, whose image is given. All frames must
// have been synced.
func (j *Journal) Rotate(image []byte) error {
	s, err := j.take()
	if err != nil {
		return err
	}
	var r [8]byte
	if _, err := rand.Read(r[:]); err != nil {
		return err
	}
	s.incarnation = binary.LittleEndian.Uint64(r[:])
	s.first = j.next
	if _, err := s.file.WriteAt(s.header(), 0); err != nil {
		return fmt.Errorf("write header of %s: %w", s.path, err)
	}
	if j.cur != nil {
		j.mu.Lock()
		j.live = append(j.live, j.cur)
		j.mu.Unlock()
	}
	j.cur, j.image, j.off = s, image[:s.size], dataStart
	return nil
}

// take gives a segment ready for use, and sees to it that another will be
// there next time.
func (j *Journal) take() (*Segment, error) {
	j.mu.Lock()
	var s *Segment
	if n := len(j.free); n > 0 {
		s, j.free = j.free[n-1], j.free[:n-1]
	}
	restock := len(j.free) == 0 && !j.o.Memory
	j.mu.Unlock()
	if s == nil {
		var err error
		if s, err = j.create(); err != nil {
			return nil, err
		}
	}
	if restock {
		j.stock.Go(func() {
			// An error here, a full disk say, shows when the segment is needed.
			if s, err := j.create(); err == nil {
				j.mu.Lock()
				j.free = append(j.free, s)
				j.mu.Unlock()
			}
		})
	}
	return s, nil
}

func (j *Journal) create() (*Segment, error) {
	j.mu.Lock()
	slot := j.slots
	j.slots++
	j.mu.Unlock()
	step := int64(1 << 20)
	if j.o.Memory {
		step = j.o.SegmentSize // it copies a file each time that it grows
	}
	return create(j.o.FS, j.o.Dir, slot, j.o.SegmentSize, step)
}

// Free says that the caller needs nothing of s any more: it may be recycled.
func (j *Journal) Free(s *Segment) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, l := range j.live {
		if l == s {
			j.live = append(j.live[:i], j.live[i+1:]...)
			break
		}
	}
	if s.size == j.o.SegmentSize && len(j.free) < maxFree {
		j.free = append(j.free, s)
		return nil
	}
	return errors.Join(s.file.Close(), j.o.FS.Remove(s.path))
}

// Current is the segment that is written to.
func (j *Journal) Current() *Segment { return j.cur }

// Offset is where the current segment's next frame goes.
func (j *Journal) Offset() int { return j.off }

// Close closes the files. It does not sync.
func (j *Journal) Close() error {
	j.stock.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	var errs []error
	for _, s := range append(append(j.live, j.free...), j.cur) {
		if s != nil && s.file != nil {
			errs = append(errs, s.file.Close())
		}
	}
	j.live, j.free, j.cur = nil, nil, nil
	return errors.Join(errs...)
}
