package chunk

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	magic         = "PROMCHNK"
	formatVersion = 1
	headerSize    = 16
	footerSize    = 32
	blockTarget   = 16 << 10
	writeSize     = 512 << 10
	// RecordHead is what precedes each event record in a block.
	RecordHead = 12
	blockEntry = 60
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Block is where some consecutive events of a section are. Their seqs ascend,
// and may have gaps.
type Block struct {
	Off             uint64
	Len             uint32
	CRC             uint32
	First, Last     uint64
	Count           uint32
	MaxTS           int64
	FirstAt, LastAt int64
}

// Section is a run of events of one topic.
type Section struct {
	Topic  uint32
	Name   string
	Blocks []Block
	// Entry is where the index has this section.
	Entry Entry
}

// Entry locates one section's part of the index. Whoever keeps it can read
// the section without the rest of the index, however many topics there are.
type Entry struct {
	Off uint64
	Len uint32
	CRC uint32
}

// First is the section's smallest seq.
func (s *Section) First() uint64 { return s.Blocks[0].First }

// Last is the section's largest seq.
func (s *Section) Last() uint64 { return s.Blocks[len(s.Blocks)-1].Last }

// Bytes is the size of the section's blocks.
func (s *Section) Bytes() (n int64) {
	for i := range s.Blocks {
		n += int64(s.Blocks[i].Len)
	}
	return n
}

// Count is how many events the section has.
func (s *Section) Count() (n uint64) {
	for i := range s.Blocks {
		n += uint64(s.Blocks[i].Count)
	}
	return n
}

// MaxTS is the section's largest timestamp.
func (s *Section) MaxTS() int64 {
	m := s.Blocks[0].MaxTS
	for i := range s.Blocks {
		m = max(m, s.Blocks[i].MaxTS)
	}
	return m
}

// LastAt is the commit time of the section's last event.
func (s *Section) LastAt() int64 { return s.Blocks[len(s.Blocks)-1].LastAt }

// Writer writes one chunk.
type Writer struct {
	fs       vfs.FS
	path     string
	file     vfs.File
	buf      []byte
	start    int // of the current block in buf
	off      uint64
	sections []Section
	block    Block
	err      error
}

// NewWriter makes a chunk file.
func NewWriter(fs vfs.FS, path string) (*Writer, error) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	w := &Writer{fs: fs, path: path, file: vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: 1 << 20})}
	w.buf = make([]byte, 0, writeSize+2*blockTarget)
	w.buf = append(w.buf, magic...)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, formatVersion)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, 0)
	w.start = headerSize
	return w, nil
}

// Begin starts a section. One that gets no event is left out.
func (w *Writer) Begin(topic uint32, name string) {
	w.endBlock()
	if n := len(w.sections); n > 0 && len(w.sections[n-1].Blocks) == 0 {
		w.sections = w.sections[:n-1]
	}
	w.sections = append(w.sections, Section{Topic: topic, Name: name})
}

// Add appends an event record to the section; seqs must ascend.
func (w *Writer) Add(seq uint64, at, ts int64, rec []byte) {
	b := &w.block
	if b.Count == 0 {
		*b = Block{First: seq, MaxTS: ts, FirstAt: at}
	}
	b.Last, b.LastAt, b.MaxTS = seq, at, max(b.MaxTS, ts)
	b.Count++
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(rec)))
	w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(at))
	w.buf = append(w.buf, rec...)
	if len(w.buf)-w.start >= blockTarget {
		w.endBlock()
	}
}

// Copy appends a verified block of another chunk to the section as it is.
func (w *Writer) Copy(b Block, data []byte) {
	w.endBlock()
	w.block = b
	w.buf = append(w.buf, data...)
	w.endBlock()
}

func (w *Writer) endBlock() {
	if w.block.Count > 0 {
		data := w.buf[w.start:]
		w.block.Off = w.off + uint64(w.start)
		w.block.Len = uint32(len(data))
		w.block.CRC = crc32.Checksum(data, castagnoli)
		s := &w.sections[len(w.sections)-1]
		s.Blocks = append(s.Blocks, w.block)
		w.block = Block{}
	}
	w.start = len(w.buf)
	if len(w.buf) >= writeSize {
		w.flush()
	}
}

func (w *Writer) flush() {
	if w.err == nil {
		_, w.err = w.file.Write(w.buf)
	}
	w.off += uint64(len(w.buf))
	w.buf, w.start = w.buf[:0], 0
}

// Finish completes and syncs the file and gives its sections. The caller
// syncs the directory.
func (w *Writer) Finish() ([]Section, error) {
	w.Begin(0, "") // ends the last section and drops an empty one
	w.sections = w.sections[:len(w.sections)-1]
	w.flush()
	le := binary.LittleEndian
	at := w.off
	var ix []byte
	for i := range w.sections {
		s := &w.sections[i]
		start := len(ix)
		ix = s.append(ix)
		s.Entry = Entry{Off: at + uint64(start), Len: uint32(len(ix) - start), CRC: crc32.Checksum(ix[start:], castagnoli)}
	}
	foot := le.AppendUint64(nil, at)
	foot = le.AppendUint32(foot, uint32(len(ix)))
	foot = le.AppendUint32(foot, crc32.Checksum(ix, castagnoli))
	foot = le.AppendUint32(foot, formatVersion)
	foot = le.AppendUint32(foot, crc32.Checksum(foot, castagnoli))
	foot = append(foot, magic...)
	w.buf = append(append(w.buf, ix...), foot...)
	w.flush()
	if w.err == nil {
		w.err = w.file.Sync()
	}
	if err := w.file.Close(); w.err == nil {
		w.err = err
	}
	if w.err != nil {
		_ = w.fs.Remove(w.path) // half written; the error above is reported
		return nil, fmt.Errorf("write chunk %s: %w", w.path, w.err)
	}
	return w.sections, nil
}

func (s *Section) append(ix []byte) []byte {
	le := binary.LittleEndian
	ix = le.AppendUint32(ix, s.Topic)
	ix = le.AppendUint16(ix, uint16(len(s.Name)))
	ix = append(ix, s.Name...)
	ix = le.AppendUint32(ix, uint32(len(s.Blocks)))
	for _, b := range s.Blocks {
		ix = le.AppendUint64(ix, b.Off)
		ix = le.AppendUint32(ix, b.Len)
		ix = le.AppendUint32(ix, b.CRC)
		ix = le.AppendUint64(ix, b.First)
		ix = le.AppendUint64(ix, b.Last)
		ix = le.AppendUint32(ix, b.Count)
		ix = le.AppendUint64(ix, uint64(b.MaxTS))
		ix = le.AppendUint64(ix, uint64(b.FirstAt))
		ix = le.AppendUint64(ix, uint64(b.LastAt))
	}
	return ix
}

// Abort gives up and removes the file.
func (w *Writer) Abort() {
	_ = w.file.Close()
	_ = w.fs.Remove(w.path)
}
