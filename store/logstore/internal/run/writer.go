package run

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	magic      = "PROMRUN\x01"
	footerSize = 88
	blockSize  = 16 << 10
	writeSize  = 256 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Spec is the shape of a run's entries.
type Spec struct {
	// Width is the size of an entry.
	Width int
	// Prefix is how many leading bytes the filter covers: what is searched for.
	Prefix int
}

// Writer writes one run. Entries must come in ascending order.
type Writer struct {
	fs       vfs.FS
	path     string
	spec     Spec
	file     vfs.File
	perBlock int
	buf      []byte // not yet written; the current block begins at block
	block    int
	off      int64
	count    uint64
	fences   []byte
	last     []byte
	filter   filter
	err      error
}

// NewWriter makes a file for about n entries.
func NewWriter(fs vfs.FS, path string, spec Spec, n int) (*Writer, error) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	var fl filter
	if n <= maxFiltered {
		fl = newFilter(n)
	}
	return &Writer{
		fs: fs, path: path, spec: spec,
		file:     vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: 1 << 20}),
		perBlock: blockSize / spec.Width,
		buf:      make([]byte, 0, writeSize+blockSize),
		last:     make([]byte, 0, spec.Width),
		filter:   fl,
	}, nil
}

// Add appends an entry.
func (w *Writer) Add(e []byte) {
	if w.count > 0 && bytes.Compare(w.last, e) > 0 {
		w.err = errors.Join(w.err, fmt.Errorf("run %s: entry %d is out of order", w.path, w.count))
	}
	if w.count%uint64(w.perBlock) == 0 {
		w.endBlock()
		w.fences = append(w.fences, e...)
	}
	// Neighbours often share the prefix: the same key many times.
	if p := e[:w.spec.Prefix]; w.filter != nil && (w.count == 0 || !bytes.Equal(p, w.last[:w.spec.Prefix])) {
		w.filter.add(hashPrefix(p))
	}
	w.buf = append(w.buf, e...)
	w.last = append(w.last[:0], e...)
	w.count++
}

func (w *Writer) endBlock() {
	if len(w.buf) == w.block {
		return
	}
	w.fences = binary.LittleEndian.AppendUint32(w.fences, crc32.Checksum(w.buf[w.block:], castagnoli))
	w.block = len(w.buf)
	if len(w.buf) >= writeSize {
		w.flush()
	}
}

func (w *Writer) flush() {
	if w.err == nil {
		_, w.err = w.file.Write(w.buf)
	}
	w.off += int64(len(w.buf))
	w.buf, w.block = w.buf[:0], 0
}

// Count is the number of entries so far.
func (w *Writer) Count() uint64 { return w.count }

// Finish completes and syncs the file. The caller syncs the directory.
func (w *Writer) Finish() error {
	w.endBlock()
	w.fences = append(w.fences, w.last...)
	w.flush()
	f := make([]byte, footerSize)
	copy(f, magic)
	le := binary.LittleEndian
	le.PutUint32(f[8:], uint32(w.spec.Width))
	le.PutUint32(f[12:], uint32(w.spec.Prefix))
	le.PutUint64(f[16:], w.count)
	le.PutUint32(f[24:], uint32(w.perBlock))
	le.PutUint64(f[32:], uint64(w.off))
	le.PutUint64(f[40:], uint64(len(w.fences)))
	le.PutUint32(f[48:], crc32.Checksum(w.fences, castagnoli))
	le.PutUint32(f[52:], crc32.Checksum(w.filter, castagnoli))
	le.PutUint64(f[56:], uint64(w.off)+uint64(len(w.fences)))
	le.PutUint64(f[64:], uint64(len(w.filter)))
	le.PutUint32(f[84:], crc32.Checksum(f[:84], castagnoli))
	for _, b := range [][]byte{w.fences, w.filter, f} {
		if w.err == nil {
			_, w.err = w.file.Write(b)
		}
	}
	if w.err == nil {
		w.err = w.file.Sync()
	}
	if err := w.file.Close(); w.err == nil {
		w.err = err
	}
	if w.err != nil {
		_ = w.fs.Remove(w.path) // half written; the error above is reported
		return fmt.Errorf("write run %s: %w", w.path, w.err)
	}
	return nil
}

// Abort gives up and removes the file.
func (w *Writer) Abort() {
	_ = w.file.Close()
	_ = w.fs.Remove(w.path)
}
