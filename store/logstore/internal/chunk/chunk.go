package chunk

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/store"
)

// Chunk is an open chunk. Its methods may be called concurrently. It is
// counted: it closes when the last holder releases it.
type Chunk struct {
	path  string
	file  vfs.File
	index Entry // of the whole index
	refs  atomic.Int32

	// sections are those that were read, by their place in the index: together
	// they are as large as the index at most, some 64 bytes for a block.
	mu       sync.Mutex
	sections map[uint64]*Section
}

// Open opens a chunk and verifies header and footer. The caller holds one
// reference.
func Open(fs vfs.FS, path string) (*Chunk, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	c := &Chunk{path: path, file: f}
	c.refs.Store(1)
	if err := c.load(); err != nil {
		_ = f.Close() // the damage is what matters
		return nil, err
	}
	return c, nil
}

// Acquire takes another reference.
func (c *Chunk) Acquire() { c.refs.Add(1) }

// Release gives a reference back; the last one closes the file.
func (c *Chunk) Release() error {
	if c.refs.Add(-1) > 0 {
		return nil
	}
	return c.file.Close()
}

func (c *Chunk) corrupt(off int64, format string, args ...any) error {
	return &store.CorruptError{File: c.path, Offset: off, Detail: fmt.Sprintf(format, args...)}
}

func (c *Chunk) read(off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(c.file, off, int64(n)), b); err != nil {
		return nil, fmt.Errorf("read %s at %d: %w", c.path, off, err)
	}
	return b, nil
}

func (c *Chunk) load() error {
	st, err := c.file.Stat()
	if err != nil {
		return err
	}
	size := st.Size()
	if size < headerSize+footerSize {
		return c.corrupt(0, "chunk of %d bytes is too short", size)
	}
	le := binary.LittleEndian
	head, err := c.read(0, headerSize)
	if err != nil {
		return err
	}
	at := size - footerSize
	foot, err := c.read(at, footerSize)
	if err != nil {
		return err
	}
	if string(foot[24:]) != magic || crc32.Checksum(foot[:20], castagnoli) != le.Uint32(foot[20:]) {
		return c.corrupt(at, "chunk footer fails its checksum")
	}
	if v := le.Uint32(foot[16:]); v > formatVersion {
		return fmt.Errorf("%w: %s has chunk version %d, this program knows up to %d", store.ErrFormat, c.path, v, formatVersion)
	}
	if string(head[:8]) != magic || le.Uint32(head[8:]) != le.Uint32(foot[16:]) || le.Uint32(head[12:]) != 0 {
		return c.corrupt(0, "chunk header does not match its footer")
	}
	off, n := int64(le.Uint64(foot)), int(le.Uint32(foot[8:]))
	if off+int64(n) != at {
		return c.corrupt(at, "chunk index of %d bytes at %d does not end at the footer", n, off)
	}
	c.index = Entry{Off: uint64(off), Len: uint32(n), CRC: le.Uint32(foot[12:])}
	return nil
}

// Sections reads the whole index.
func (c *Chunk) Sections() ([]Section, error) {
	ix, err := c.readIndex(c.index)
	if err != nil {
		return nil, err
	}
	var all []Section
	for at := c.index.Off; len(ix) > 0; {
		s, n := parseSection(ix)
		s.Entry = Entry{Off: at, Len: uint32(n), CRC: crc32.Checksum(ix[:n], castagnoli)}
		all = append(all, s)
		at += uint64(n)
		ix = ix[n:]
	}
	return all, nil
}

// Section reads one section's part of the index. It is shared: nobody changes it.
func (c *Chunk) Section(e Entry) (*Section, error) {
	c.mu.Lock()
	known := c.sections[e.Off]
	c.mu.Unlock()
	if known != nil && known.Entry == e {
		return known, nil
	}
	ix, err := c.readIndex(e)
	if err != nil {
		return nil, err
	}
	s, _ := parseSection(ix)
	s.Entry = e
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sections == nil {
		c.sections = make(map[uint64]*Section)
	}
	c.sections[e.Off] = &s
	return &s, nil
}

func (c *Chunk) readIndex(e Entry) ([]byte, error) {
	ix, err := c.read(int64(e.Off), int(e.Len))
	if err != nil {
		return nil, err
	}
	if crc32.Checksum(ix, castagnoli) != e.CRC {
		return nil, c.corrupt(int64(e.Off), "chunk index fails its checksum")
	}
	return ix, nil
}

// parseSection reads a section's entry. Its checksum is right, so its lengths
// are too.
func parseSection(ix []byte) (s Section, size int) {
	le := binary.LittleEndian
	all := len(ix)
	n := int(le.Uint16(ix[4:]))
	s.Topic, s.Name = le.Uint32(ix), string(ix[6:6+n])
	ix = ix[6+n:]
	s.Blocks = make([]Block, le.Uint32(ix))
	ix = ix[4:]
	for i := range s.Blocks {
		s.Blocks[i] = Block{
			Off: le.Uint64(ix), Len: le.Uint32(ix[8:]), CRC: le.Uint32(ix[12:]),
			First: le.Uint64(ix[16:]), Last: le.Uint64(ix[24:]), Count: le.Uint32(ix[32:]),
			MaxTS: int64(le.Uint64(ix[36:])), FirstAt: int64(le.Uint64(ix[44:])), LastAt: int64(le.Uint64(ix[52:])),
		}
		ix = ix[blockEntry:]
	}
	return s, all - len(ix)
}

// Read reads consecutive blocks of a section with one call, verifies them and
// gives each block's bytes.
func (c *Chunk) Read(blocks []Block) ([][]byte, error) {
	from := blocks[0].Off
	end := blocks[len(blocks)-1]
	buf, err := c.read(int64(from), int(end.Off+uint64(end.Len)-from))
	if err != nil {
		return nil, err
	}
	out := make([][]byte, len(blocks))
	for i := range blocks {
		b := &blocks[i]
		out[i] = buf[b.Off-from:][:b.Len:b.Len]
		if crc32.Checksum(out[i], castagnoli) != b.CRC {
			return nil, c.corrupt(int64(b.Off), "chunk block with seqs %d to %d fails its checksum", b.First, b.Last)
		}
	}
	return out, nil
}

// ReadInto reads one block into a buffer, which it gives back grown if need be,
// and verifies it.
func (c *Chunk) ReadInto(buf []byte, b Block) ([]byte, error) {
	if cap(buf) < int(b.Len) {
		buf = make([]byte, b.Len)
	}
	buf = buf[:b.Len]
	if _, err := c.file.ReadAt(buf, int64(b.Off)); err != nil {
		return buf, fmt.Errorf("read %s at %d: %w", c.path, b.Off, err)
	}
	if crc32.Checksum(buf, castagnoli) != b.CRC {
		return buf, c.corrupt(int64(b.Off), "chunk block with seqs %d to %d fails its checksum", b.First, b.Last)
	}
	return buf, nil
}

// Prefetch asks the system to read the section ahead.
func (c *Chunk) Prefetch(s *Section) {
	end := s.Blocks[len(s.Blocks)-1]
	// Advice only: a failure costs speed, and the read itself will report it.
	_ = c.file.Prefetch(int64(s.Blocks[0].Off), int64(end.Off+uint64(end.Len)-s.Blocks[0].Off))
}

// Records yields the records of a verified block with their commit times.
func Records(block []byte) iter.Seq2[int64, event.Record] {
	return func(yield func(int64, event.Record) bool) {
		for len(block) >= RecordHead {
			n := int(binary.LittleEndian.Uint32(block))
			at := int64(binary.LittleEndian.Uint64(block[4:]))
			if !yield(at, event.Record(block[RecordHead:RecordHead+n:RecordHead+n])) {
				return
			}
			block = block[RecordHead+n:]
		}
	}
}
