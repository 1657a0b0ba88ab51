package run

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sort"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store"
)

// Run is an open run. Its methods may be called concurrently. It is counted:
// it closes when the last holder releases it.
type Run struct {
	fs       vfs.FS
	path     string
	file     vfs.File
	spec     Spec
	count    uint64
	perBlock int
	fences   []byte // of blocks, width+4 bytes each
	last     []byte
	filter   filter
	refs     atomic.Int32
	doomed   atomic.Bool
}

// Open opens a run and verifies everything but the blocks, which are verified
// as they are read. The caller holds one reference.
func Open(fs vfs.FS, path string) (*Run, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	r := &Run{fs: fs, path: path, file: f}
	r.refs.Store(1)
	if err := r.load(); err != nil {
		_ = f.Close() // the damage is what matters
		return nil, err
	}
	return r, nil
}

func (r *Run) corrupt(off int64, format string, args ...any) error {
	return &store.CorruptError{File: r.path, Offset: off, Detail: fmt.Sprintf(format, args...)}
}

func (r *Run) load() error {
	st, err := r.file.Stat()
	if err != nil {
		return err
	}
	at := st.Size() - footerSize
	if at < 0 {
		return r.corrupt(0, "run of %d bytes has no footer", st.Size())
	}
	f, err := r.read(at, footerSize)
	if err != nil {
		return err
	}
	if crc32.Checksum(f[:84], castagnoli) != u32(f[84:]) {
		return r.corrupt(at, "run footer fails its checksum")
	}
	if string(f[:7]) != magic[:7] || f[7] != magic[7] {
		return fmt.Errorf("%w: %s is no run that this program knows", store.ErrFormat, r.path)
	}
	r.spec = Spec{Width: int(u32(f[8:])), Prefix: int(u32(f[12:]))}
	r.count, r.perBlock = u64(f[16:]), int(u32(f[24:]))
	fencesAt, filterAt := int64(u64(f[32:])), int64(u64(f[56:]))
	fences, err := r.read(fencesAt, int(u64(f[40:])))
	if err != nil {
		return err
	}
	if crc32.Checksum(fences, castagnoli) != u32(f[48:]) {
		return r.corrupt(fencesAt, "run fences fail their checksum")
	}
	if r.filter, err = r.read(filterAt, int(u64(f[64:]))); err != nil {
		return err
	}
	if crc32.Checksum(r.filter, castagnoli) != u32(f[52:]) {
		return r.corrupt(filterAt, "run filter fails its checksum")
	}
	n := len(fences) - r.spec.Width
	if r.count == 0 {
		n = 0
	}
	r.fences, r.last = fences[:n], fences[n:]
	return nil
}

func (r *Run) read(off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(r.file, off, int64(n)), b); err != nil {
		return nil, fmt.Errorf("read %s at %d: %w", r.path, off, err)
	}
	return b, nil
}

// Count is the number of entries.
func (r *Run) Count() uint64 { return r.count }

// Path is the run's file.
func (r *Run) Path() string { return r.path }

// Last is the largest entry, empty for an empty run.
func (r *Run) Last() []byte { return r.last }

// Acquire takes another reference.
func (r *Run) Acquire() { r.refs.Add(1) }

// Release gives a reference back. The last one closes the file, and removes
// it if the run was doomed.
func (r *Run) Release() error {
	if r.refs.Add(-1) > 0 {
		return nil
	}
	err := r.file.Close()
	if r.doomed.Load() {
		if rerr := r.fs.Remove(r.path); err == nil {
			err = rerr
		}
	}
	return err
}

// Doom has the file removed once nobody holds the run.
func (r *Run) Doom() { r.doomed.Store(true) }

// MayContain says whether an entry with this prefix, of the length that the
// filter covers, can be there.
func (r *Run) MayContain(prefix []byte) bool {
	if r.count == 0 || bytes.Compare(prefix, r.last) > 0 || bytes.Compare(r.fences[:len(prefix)], prefix) > 0 {
		return false
	}
	return len(r.filter) == 0 || r.filter.has(hashPrefix(prefix))
}

func (r *Run) blocks() int { return len(r.fences) / (r.spec.Width + 4) }

func (r *Run) fence(i int) []byte {
	at := i * (r.spec.Width + 4)
	return r.fences[at : at+r.spec.Width]
}

// block reads and verifies block i into buf.
func (r *Run) block(i int, buf []byte) ([]byte, error) {
	n := r.perBlock
	if rest := r.count - uint64(i)*uint64(n); rest < uint64(n) {
		n = int(rest)
	}
	off := int64(i) * int64(r.perBlock) * int64(r.spec.Width)
	buf = append(buf[:0], make([]byte, n*r.spec.Width)...)
	if _, err := r.file.ReadAt(buf, off); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %s at %d: %w", r.path, off, err)
	}
	at := i*(r.spec.Width+4) + r.spec.Width
	if crc32.Checksum(buf, castagnoli) != u32(r.fences[at:]) {
		return nil, r.corrupt(off, "run block %d fails its checksum", i)
	}
	return buf, nil
}

// Find calls yield with each entry that begins with prefix, ascending, or
// descending if reverse is set, until yield returns false.
func (r *Run) Find(prefix []byte, reverse bool, yield func(entry []byte) bool) error {
	w := r.spec.Width
	// The first block whose first entry is not below prefix; what we look for
	// may begin in the block before.
	lo := max(sort.Search(r.blocks(), func(i int) bool { return bytes.Compare(r.fence(i), prefix) >= 0 })-1, 0)
	hi := lo + 1
	for hi < r.blocks() && bytes.HasPrefix(r.fence(hi), prefix) {
		hi++
	}
	if r.count == 0 {
		return nil
	}
	var buf []byte
	for n := range hi - lo {
		i := lo + n
		if reverse {
			i = hi - 1 - n
		}
		b, err := r.block(i, buf)
		if err != nil {
			return err
		}
		buf = b
		m := len(b) / w
		from := sort.Search(m, func(k int) bool { return bytes.Compare(b[k*w:k*w+w], prefix) >= 0 })
		to := from + sort.Search(m-from, func(k int) bool { return !bytes.HasPrefix(b[(from+k)*w:(from+k)*w+w], prefix) })
		for k := range to - from {
			e := from + k
			if reverse {
				e = to - 1 - k
			}
			if !yield(b[e*w : e*w+w]) {
				return nil
			}
		}
	}
	return nil
}

// All calls yield with each entry, ascending.
func (r *Run) All(yield func(entry []byte) bool) error {
	w := r.spec.Width
	var buf []byte
	for i := range r.blocks() {
		b, err := r.block(i, buf)
		if err != nil {
			return err
		}
		buf = b
		for off := 0; off < len(b); off += w {
			if !yield(b[off : off+w]) {
				return nil
			}
		}
	}
	return nil
}
