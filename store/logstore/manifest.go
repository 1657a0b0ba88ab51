package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"promethean/event"
	"promethean/store"
	"promethean/store/internal/guard"
	"promethean/store/logstore/internal/chunk"
	"promethean/store/logstore/internal/run"
)

// The manifest lives in Pebble: which files there are, what they hold, and
// the small state of topics and groups, all as of an LSN. Keys:
//
//	m format         version of the whole directory, u32
//	m applied        the LSN up to which the journal is not needed, u64
//	m file           the next file number, u64
//	t topic          name, sealed seq, first seq, lowest stored seq, bytes, settings
//	d topic first    section of a topic: chunk, last seq, bytes, place in the chunk's index, largest ts, last commit time
//	c chunk          a chunk's size, and how much of it is live
//	r kind age       a run of an index: file, tier
//	g topic group    a group's state
//	p topic          what compaction has left: the seq below which events may be missing, how many are, and how many index entries lead nowhere
//
// A directory is of version 1 until its first compaction: a program that knows
// no gaps must not open it after that.
const (
	manifestVersion = 2
	versionNoGaps   = 1
)

var (
	keyFormat  = []byte("mformat")
	keyApplied = []byte("mapplied")
	keyFile    = []byte("mfile")
)

func topicKey(num uint32) []byte { return binary.BigEndian.AppendUint32([]byte("t"), num) }

func gapsKey(num uint32) []byte { return binary.BigEndian.AppendUint32([]byte("p"), num) }

func sectionKey(num uint32, first uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32([]byte("d"), num), first)
}

func chunkKey(file uint64) []byte { return binary.BigEndian.AppendUint64([]byte("c"), file) }

func runKey(kind indexKind, age uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{'r', byte(kind)}, age)
}

func groupKey(k cursorKey) []byte {
	return append(binary.BigEndian.AppendUint32([]byte("g"), k.topic), k.group...)
}

// section is a row of the directory.
type section struct {
	topic       uint32
	first, last uint64
	chunk       uint64
	bytes       int64
	maxTS       int64
	lastAt      int64
	count       uint64 // of events
	entry       chunk.Entry
}

func (x *section) value() []byte {
	var e encoder
	e.num(x.chunk)
	e.num(x.last - x.first)
	e.num(uint64(x.bytes))
	e.num(x.entry.Off)
	e.num(uint64(x.entry.Len))
	e.num(uint64(x.entry.CRC))
	e = binary.AppendVarint(e, x.maxTS)
	e = binary.AppendVarint(e, x.lastAt)
	if x.count != x.last-x.first+1 {
		e.num(x.count)
	}
	return e
}

func decodeSection(k, v []byte) (x section, err error) {
	if len(k) != 13 {
		return x, fmt.Errorf("directory key %x has the wrong length", k)
	}
	x.topic, x.first = binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint64(k[5:])
	d := decoder{b: v}
	x.chunk, x.last, x.bytes = d.num(), x.first+d.num(), int64(d.num())
	x.entry = chunk.Entry{Off: d.num(), Len: uint32(d.num()), CRC: uint32(d.num())}
	for _, p := range []*int64{&x.maxTS, &x.lastAt} {
		n, w := binary.Varint(d.b)
		if w <= 0 {
			return x, fmt.Errorf("directory row %x does not decode", k)
		}
		*p, d.b = n, d.b[w:]
	}
	x.count = x.last - x.first + 1
	if len(d.b) > 0 {
		x.count = d.num()
	}
	return x, d.end("directory row")
}

// row is the topic's row with the given sealed seq and bytes. mu must be held.
func (t *topic) row(sealed uint64, bytes int64) []byte {
	var e encoder
	e.text(t.name)
	e.num(sealed)
	e.num(t.first)
	e.num(t.low)
	e.num(uint64(bytes))
	return append(e, encodeSettings(&t.settings)...)
}

// openManifest opens Pebble and loads what stays in memory.
func (s *Store) openManifest() (applied uint64, err error) {
	cache := pebble.NewCache(8 << 20)
	defer cache.Unref()
	opts := &pebble.Options{Cache: cache, MemTableSize: 4 << 20, FormatMajorVersion: pebble.FormatNewest}
	db, err := guard.Open(s.fs, s.fs.PathJoin(s.dir, "state"), opts, s.o.Logger, s.fail)
	if err != nil {
		return 0, fmt.Errorf("open manifest: %w", err)
	}
	s.db = &rows{DB: db}
	version, err := s.manifestNum(keyFormat)
	if err != nil {
		return 0, err
	}
	switch {
	case version == 0:
		b := s.db.NewBatch()
		putNum(b, keyFormat, versionNoGaps)
		if err := s.commitManifest(b); err != nil {
			return 0, err
		}
	case version > manifestVersion:
		return 0, fmt.Errorf("%w: directory has version %d, this program knows up to %d", store.ErrFormat, version, manifestVersion)
	}
	if applied, err = s.manifestNum(keyApplied); err != nil {
		return 0, err
	}
	if s.nextFile, err = s.manifestNum(keyFile); err != nil {
		return 0, err
	}
	return applied, errors.Join(s.loadTopics(), s.loadGaps(), s.loadGroups(), s.loadRuns())
}

// commitManifest writes b durably; readers see it after that. After an error
// it may be on the disk or not, no reader sees it, and the store has failed.
// manifest must be held, or the store not yet be open.
func (s *Store) commitManifest(b *pebble.Batch) error {
	err := s.db.Commit(b)
	if err != nil {
		s.fail(fmt.Errorf("write manifest: %w", err))
	}
	return err
}

func putNum(b *pebble.Batch, key []byte, v uint64) {
	// A batch in memory cannot fail; its commit can.
	_ = b.Set(key, binary.BigEndian.AppendUint64(nil, v), nil)
}

func (s *Store) manifestNum(key []byte) (uint64, error) {
	v, c, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read manifest: %w", err)
	}
	n := uint64(math.MaxUint64)
	if len(v) == 8 {
		n = binary.BigEndian.Uint64(v)
	}
	return n, c.Close()
}

// scanManifest calls fn with each row whose key lies in [from, to).
func (s *Store) scanManifest(from, to []byte, fn func(k, v []byte) error) (err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil {
			err = fn(it.Key(), v)
		}
		if err != nil {
			return err
		}
	}
	return it.Error()
}

func (s *Store) loadTopics() error {
	return s.scanManifest([]byte("t"), []byte("u"), func(k, v []byte) error {
		d := decoder{b: v}
		t := &topic{num: binary.BigEndian.Uint32(k[1:]), known: true, saved: true}
		t.name, t.sealed, t.first, t.low, t.bytes = d.text(), d.num(), d.num(), d.num(), int64(d.num())
		t.last = t.sealed
		var err error
		if t.settings, err = decodeSettings(d.b); err != nil || d.bad {
			return fmt.Errorf("manifest: topic number %d does not decode", t.num)
		}
		if int(t.num) != len(s.byNum)+1 {
			return fmt.Errorf("manifest: topic %s has number %d, %d is due", t.name, t.num, len(s.byNum)+1)
		}
		s.topics[t.name] = t
		s.byNum = append(s.byNum, t)
		return nil
	})
}

// putGaps adds the row of what compaction has left of a topic. mu must be held.
func putGaps(b *pebble.Batch, t *topic) {
	var e encoder
	e.num(t.compacted)
	e.num(t.holes)
	e.num(t.stale)
	_ = b.Set(gapsKey(t.num), e, nil) // in memory: cannot fail
}

func (s *Store) loadGaps() error {
	return s.scanManifest([]byte("p"), []byte("q"), func(k, v []byte) error {
		d := decoder{b: v}
		compacted, holes, stale := d.num(), d.num(), d.num()
		if err := d.end("manifest: compaction"); err != nil {
			return err
		}
		num := binary.BigEndian.Uint32(k[1:])
		if num == 0 || int(num) > len(s.byNum) {
			return fmt.Errorf("manifest: compaction is of unknown topic number %d", num)
		}
		t := s.byNum[num-1]
		t.compacted, t.holes, t.stale = compacted, holes, stale
		return nil
	})
}

func (s *Store) loadGroups() error {
	return s.scanManifest([]byte("g"), []byte("h"), func(k, v []byte) error {
		num := binary.BigEndian.Uint32(k[1:])
		if num == 0 || int(num) > len(s.byNum) {
			return fmt.Errorf("manifest: group %s is on unknown topic number %d", k[5:], num)
		}
		c, err := decodeCursor(s.byNum[num-1].name, v)
		if err != nil {
			return fmt.Errorf("manifest: group %s: %w", k[5:], err)
		}
		s.cursors[cursorKey{num, c.Group}] = &c
		return nil
	})
}

func (s *Store) loadRuns() error {
	for _, kind := range []indexKind{idIndex, keyIndex} {
		list := &s.ids
		if kind == keyIndex {
			list = &s.keys
		}
		err := s.scanManifest([]byte{'r', byte(kind)}, []byte{'r', byte(kind) + 1}, func(k, v []byte) error {
			d := decoder{b: v}
			tr := tierRun{age: binary.BigEndian.Uint64(k[2:]), file: d.num(), tier: int(d.num())}
			if err := d.end("manifest: run"); err != nil {
				return err
			}
			var err error
			tr.run, err = run.Open(s.fs, s.runPath(tr.file))
			if errors.Is(err, fs.ErrNotExist) {
				return &store.CorruptError{File: s.runPath(tr.file), Detail: "the file is missing"}
			}
			if err == nil {
				*list = append(*list, tr)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, r := range s.ids {
		var id event.ID
		copy(id[:], r.run.Last())
		if compareID(id, s.idHigh) > 0 {
			s.idHigh = id
		}
	}
	return nil
}

func (s *Store) runPath(file uint64) string {
	return s.fs.PathJoin(s.dir, fmt.Sprintf("%08d.run", file))
}

func (s *Store) chunkPath(file uint64) string {
	return s.fs.PathJoin(s.dir, fmt.Sprintf("%08d.chunk", file))
}

// namedFiles lists the chunks and runs that the manifest names. manifest must
// be held, or the store not yet be open.
func (s *Store) namedFiles() ([]string, error) {
	var paths []string
	for _, kind := range []indexKind{idIndex, keyIndex} {
		for _, r := range s.index(kind) {
			paths = append(paths, s.runPath(r.file))
		}
	}
	err := s.scanManifest([]byte("c"), []byte("d"), func(k, _ []byte) error {
		paths = append(paths, s.chunkPath(binary.BigEndian.Uint64(k[1:])))
		return nil
	})
	return paths, err
}

// removeOrphans deletes files that no row names: a seal or a merge that did
// not come to its end.
func (s *Store) removeOrphans() error {
	paths, err := s.namedFiles()
	if err != nil {
		return err
	}
	wanted := make(map[string]bool)
	for _, p := range paths {
		wanted[p] = true
	}
	names, err := s.fs.List(s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := s.fs.PathJoin(s.dir, name)
		if (strings.HasSuffix(name, ".run") || strings.HasSuffix(name, ".chunk")) && !wanted[path] {
			if err := s.fs.Remove(path); err != nil {
				return err
			}
		}
		delete(wanted, path)
	}
	for path := range wanted {
		return &store.CorruptError{File: path, Detail: "the file is missing"}
	}
	return nil
}
