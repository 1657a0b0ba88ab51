package logstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"promethean/event"
	"promethean/store"
	"promethean/store/internal/guard"
	"promethean/store/logstore/internal/chunk"
	"promethean/store/logstore/internal/journal"
)

// reader is a store's directory opened for reading alone: the manifest and,
// after walk, the state that the journal leads to. It has no goroutines and
// goes on where it meets damage.
type reader struct {
	*Store // without a writer, mems or runs
	ctx    context.Context
	// report gets each finding.
	report  func(Problem)
	applied uint64
	tail    []tailSegment
	// gaps says that frames are lost, so that seqs may jump.
	gaps bool
	// rotten is the file of the manifest in which Pebble last met damage.
	rotten   atomic.Pointer[string]
	progress progress
}

// tailSegment is a segment of the journal whose events are kept.
type tailSegment struct {
	path string
	m    *mem
}

// openReader opens dir for reading. If the manifest cannot be read, that is
// reported and db is nil.
func openReader(ctx context.Context, dir string, o Options, report func(Problem)) (*reader, error) {
	o = o.withDefaults()
	o.FS = still{o.FS}
	r := &reader{ctx: ctx, report: report, progress: progressOf(ctx), Store: &Store{
		o: o, dir: dir, fs: o.FS,
		topics:  make(map[string]*topic),
		cursors: make(map[cursorKey]*store.Cursor),
		dirty:   make(map[cursorKey]bool),
		chunks:  newChunkCache(o.FS, dir),
	}}
	var err error
	if r.lock, err = lockStore(o.FS, dir); err != nil {
		return nil, err
	}
	if err := r.openState(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *reader) statePath() string { return r.fs.PathJoin(r.dir, "state") }

func (r *reader) openState() error {
	cache := pebble.NewCache(8 << 20)
	defer cache.Unref()
	db, err := guard.OpenReadOnly(r.fs, r.statePath(), &pebble.Options{Cache: cache, FormatMajorVersion: pebble.FormatNewest},
		func(path string) { r.rotten.Store(&path) })
	if err != nil {
		r.damage(r.statePath(), fmt.Errorf("the manifest cannot be opened: %w", err))
		return nil
	}
	r.db = &rows{DB: db}
	version, err := r.manifestNum(keyFormat)
	if err == nil && version > manifestVersion {
		return fmt.Errorf("%w: directory has version %d, this program knows up to %d", store.ErrFormat, version, manifestVersion)
	}
	if err == nil {
		r.applied, err = r.manifestNum(keyApplied)
	}
	if err = errors.Join(err, r.loadTopics(), r.loadGaps(), r.loadGroups()); err != nil {
		r.damage(r.statePath(), err)
	}
	return nil
}

// close is Store.release without what a reader does not have.
func (r *reader) close() error {
	err := r.chunks.close()
	if r.db != nil {
		err = errors.Join(err, r.db.Close())
	}
	return errors.Join(err, r.lock.Close())
}

func (r *reader) problem(file string, off int64, format string, args ...any) {
	r.report(Problem{File: file, Offset: off, What: fmt.Sprintf(format, args...)})
}

func (r *reader) note(file string, what string) {
	r.report(Problem{File: file, Offset: -1, What: what, Note: true})
}

func (r *reader) damage(file string, err error) {
	if p := r.rotten.Load(); p != nil && file == r.statePath() {
		file = *p
	}
	r.report(problemOf(file, err))
}

func (r *reader) manifestProblem(format string, args ...any) {
	r.problem(r.statePath(), -1, format, args...)
}

// missing says in plain words that a file is not there.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("the file is missing")
	}
	return err
}

// eachRow calls fn with each row of the manifest of one kind. An error is
// reported, and ends nothing but the row.
func (r *reader) eachRow(kind string, fn func(k, v []byte) error) {
	err := r.scanManifest([]byte(kind), []byte{kind[0] + 1}, func(k, v []byte) error {
		if err := fn(k, v); err != nil {
			r.damage(r.statePath(), err)
		}
		return nil
	})
	if err != nil {
		r.damage(r.statePath(), err)
	}
}

// sectionEvents calls fn with the offset, commit time and record of each
// event of a section that can be read. Damage goes to damaged.
func (r *reader) sectionEvents(x section, damaged func(Problem), fn func(off, at int64, rec event.Record)) (err error) {
	path := r.chunkPath(x.chunk)
	c, err := r.chunks.get(x.chunk)
	if err != nil {
		damaged(problemOf(path, missing(err)))
		return r.ctx.Err()
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	sec, err := c.Section(x.entry)
	if err != nil {
		damaged(problemOf(path, err))
		return r.ctx.Err()
	}
	for _, b := range sec.Blocks {
		if err := r.step(int64(b.Len)); err != nil {
			return err
		}
		data, err := c.Read([]chunk.Block{b})
		if err == nil {
			err = eachRecord(data[0], func(off int, at int64, rec event.Record) { fn(int64(b.Off)+int64(off), at, rec) })
		}
		if err != nil {
			damaged(problemOf(path, err))
		}
	}
	return nil
}

// walk gives fn every intact frame of the journal that the manifest does not
// cover, in order, after its entries have become part of the state. fn may be
// nil. With keep the events stay in tail.
func (r *reader) walk(keep bool, fn func(path string, f journal.Frame) error) error {
	next := r.applied + 1
	torn := Problem{}
	var stop error // what fn or the context says, in contrast to damage
	enter := func(path string, image []byte, frames []journal.Frame) error {
		m := newMem(uint64(len(r.tail))+1, image)
		for _, f := range frames {
			if f.LSN < next {
				continue
			}
			next = f.LSN + 1
			stop = errors.Join(r.apply(m, path, f), r.ctx.Err())
			if stop == nil && fn != nil {
				stop = fn(path, f)
			}
			if stop != nil {
				return stop
			}
		}
		if keep {
			r.tail = append(r.tail, tailSegment{path, m})
		}
		torn = tornTail(path, image, frames)
		r.headCopies(path, image)
		return nil
	}
	var buf []byte
	image := func(n int) []byte {
		if keep || cap(buf) < n {
			buf = make([]byte, n)
		}
		return buf[:n]
	}
	j, err := journal.Open(journal.Options{
		FS: r.fs, Dir: r.journalDir(), Applied: r.applied, ReadOnly: true, Image: image,
		Replay: func(s *journal.Segment, image []byte, frames []journal.Frame) error {
			return enter(s.Path(), image, frames)
		},
	})
	switch {
	case err == nil:
		if torn.What != "" {
			r.report(torn)
		}
		return j.Close()
	case stop != nil:
		return stop
	case errors.Is(err, store.ErrFormat):
		return err
	}
	p := problemOf(r.journalDir(), missing(err))
	r.report(p)
	r.gaps = true
	return r.salvage(p, image, enter)
}

// apply makes a frame part of the state. An entry that does not fit is
// reported.
func (r *reader) apply(m *mem, path string, f journal.Frame) error {
	var unknown error
	err := eachEntry(f.Body, f.Off, func(e entry) error {
		var err error
		if rec := event.Record(e.data); e.kind == entryEvent {
			if err = rec.Valid(); err == nil && r.gaps && e.topic > 0 && int(e.topic) <= len(r.byNum) {
				t := r.byNum[e.topic-1]
				t.last = max(t.last, rec.Seq()-1)
			}
		}
		if err == nil {
			err = r.applyEntry(m, e, f.At)
		}
		if errors.Is(err, store.ErrFormat) {
			unknown = err
		} else if err != nil {
			r.problem(path, int64(e.off-entryHead), "%v", err)
		}
		return nil
	})
	if err != nil {
		r.problem(path, int64(f.Off), "%v", err)
	}
	return unknown
}

// What the journal's package doc says about the layout of a segment. The
// journal itself stops at the first damage; what follows goes on behind it.
const (
	segmentStart  = 4096
	segmentSector = 512
	segmentMagic  = "PROMJRNL"
)

func frameEnd(f journal.Frame) int {
	return (f.Off + len(f.Body) + journal.Align - 1) &^ (journal.Align - 1)
}

// tornTail says whether a frame was begun behind the last intact one.
func tornTail(path string, image []byte, frames []journal.Frame) (p Problem) {
	if len(frames) == 0 {
		return p
	}
	f := frames[len(frames)-1]
	off := frameEnd(f)
	if off+journal.HeadSize <= len(image) && binary.LittleEndian.Uint64(image[off+8:]) == f.LSN+1 {
		p = Problem{File: path, Offset: int64(off), Note: true, What: fmt.Sprintf("frame with LSN %d is torn: it was never acknowledged, and is cut by the next start", f.LSN+1)}
	}
	return p
}

// headCopies notes a damaged copy of a segment's header. The other one is
// intact: the journal took it.
func (r *reader) headCopies(path string, image []byte) {
	for off := 0; off < 2*segmentSector; off += segmentSector {
		h := image[off : off+segmentSector]
		if !intactHead(h) && !blank(h) {
			r.report(Problem{File: path, Offset: int64(off), What: "one of the two copies of the segment header is damaged", Note: true})
		}
	}
}

func blank(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}

func intactHead(h []byte) bool {
	return string(h[:8]) == segmentMagic && crc32.Checksum(h[:40], castagnoli) == binary.LittleEndian.Uint32(h[40:])
}

// segmentHead reads a segment's header; ok is false if there is no intact one.
func segmentHead(image []byte) (first, incarnation uint64, ok bool) {
	for off := 0; off < 2*segmentSector && off+segmentSector <= len(image); off += segmentSector {
		h := image[off:]
		if !intactHead(h) {
			continue
		}
		if n := binary.LittleEndian.Uint64(h[32:]); !ok || n >= first {
			first, incarnation, ok = n, binary.LittleEndian.Uint64(h[24:]), true
		}
	}
	return first, incarnation, ok
}

// parseFrame reads the frame at off; ok is false if there is no intact one.
func parseFrame(image []byte, off int, incarnation uint64) (f journal.Frame, ok bool) {
	if off+journal.HeadSize > len(image) {
		return f, false
	}
	b := image[off:]
	n := int64(binary.LittleEndian.Uint32(b[4:]))
	if n > int64(len(b)-journal.HeadSize) {
		return f, false
	}
	end := journal.HeadSize + int(n)
	seed := binary.LittleEndian.AppendUint64(nil, incarnation)
	if crc32.Update(crc32.Checksum(seed, castagnoli), castagnoli, b[4:end]) != binary.LittleEndian.Uint32(b) {
		return f, false
	}
	f = journal.Frame{
		LSN: binary.LittleEndian.Uint64(b[8:]), Durable: binary.LittleEndian.Uint64(b[16:]), At: int64(binary.LittleEndian.Uint64(b[24:])),
		Off: off + journal.HeadSize, Body: b[journal.HeadSize:end:end],
	}
	return f, f.LSN != 0
}

// segmentFile is a journal file that is in use.
type segmentFile struct {
	path               string
	first, incarnation uint64
}

// readFile reads a file, at most so many bytes of it, into what image gives.
func (r *reader) readFile(path string, most int64, image func(int) []byte) (b []byte, err error) {
	f, err := r.fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b = image(int(min(st.Size(), most)))
	_, err = io.ReadFull(f, b)
	return b, err
}

// salvage gives enter what can be read of a damaged journal. What known says
// is not reported again.
func (r *reader) salvage(known Problem, image func(int) []byte, enter func(string, []byte, []journal.Frame) error) error {
	segments := r.segments(known)
	for i, s := range segments {
		b, err := r.readFile(s.path, math.MaxInt64, image)
		if err != nil {
			r.damage(s.path, err)
			continue
		}
		end := uint64(0) // the first LSN of the next segment, 0 in the last
		if i+1 < len(segments) {
			end = segments[i+1].first
		}
		var frames []journal.Frame
		off, lsn := segmentStart, s.first
		for end == 0 || lsn < end {
			f, ok := parseFrame(b, off, s.incarnation)
			if !ok || f.LSN != lsn {
				damage := Problem{File: s.path, Offset: int64(off), What: "frames from here on are damaged"}
				if f, ok = resume(b, off, s.incarnation, lsn, end); ok {
					damage.What = fmt.Sprintf("frames with LSN %d to %d are damaged", lsn, f.LSN-1)
				}
				if (ok || end != 0) && (damage.File != known.File || damage.Offset != known.Offset) {
					r.report(damage)
				}
				if !ok {
					break // the torn tail, or nothing intact before the next segment
				}
			}
			frames = append(frames, f)
			off, lsn = frameEnd(f), f.LSN+1
		}
		if err := enter(s.path, b, frames); err != nil {
			return err
		}
	}
	return nil
}

// resume looks behind a broken frame for the next intact one. In the last
// segment one that does not say that lsn was durable belongs to the torn tail.
func resume(image []byte, off int, incarnation, lsn, end uint64) (f journal.Frame, ok bool) {
	for off += journal.Align; off+journal.HeadSize <= len(image); off += journal.Align {
		// Cheap tests first: most of a segment is zero or of another time.
		if n := binary.LittleEndian.Uint64(image[off+8:]); n <= lsn || n-lsn > 1<<32 || end != 0 && n >= end {
			continue
		}
		if f, ok = parseFrame(image, off, incarnation); ok && (end != 0 || f.Durable >= lsn) {
			return f, true
		}
	}
	return f, false
}

// segments lists the journal files that hold what the manifest does not.
func (r *reader) segments(known Problem) (list []segmentFile) {
	names, err := r.fs.List(r.journalDir())
	if err != nil {
		return nil // reported as known
	}
	slices.Sort(names)
	for _, name := range names {
		if !strings.HasSuffix(name, ".seg") {
			continue
		}
		path := r.fs.PathJoin(r.journalDir(), name)
		head, err := r.readFile(path, 2*segmentSector, func(n int) []byte { return make([]byte, n) })
		if err != nil {
			r.damage(path, err)
			continue
		}
		first, incarnation, ok := segmentHead(head)
		switch {
		case ok && first > r.applied:
			list = append(list, segmentFile{path: path, first: first, incarnation: incarnation})
		case !ok && path != known.File && !blank(head):
			r.problem(path, 0, "segment header fails its checksum")
		}
	}
	slices.SortStableFunc(list, func(a, b segmentFile) int { return cmp.Compare(a.first, b.first) })
	return list
}
