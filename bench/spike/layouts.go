package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

func openPebble(dir string) *pebble.DB {
	o := &pebble.Options{MemTableSize: 32 << 20, MemTableStopWritesThreshold: 4, L0StopWritesThreshold: 1000, L0CompactionThreshold: 4, DisableWAL: true, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	o.CompactionConcurrencyRange = func() (int, int) { return 1, 2 }
	db, err := pebble.Open(filepath.Join(dir, "pebble"), o)
	must(err)
	return db
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(f string, a ...any) {
	panic(fmt.Sprintf(f, a...))
}

func settle(db *pebble.DB) {
	must(db.Flush())
	for quiet := 0; quiet < 10; time.Sleep(20 * time.Millisecond) {
		if quiet++; db.Metrics().Compact.NumInProgress > 0 {
			quiet = 0
		}
	}
}

func topicOf(r []byte) uint32 { return binary.LittleEndian.Uint32(r[offTopic:]) }
func seqOf(r []byte) uint64   { return binary.LittleEndian.Uint64(r[offSeq:]) }

func idEntry(dst []byte, r []byte) []byte { // id, topic, seq: 28 bytes
	dst = append(dst, r[offID:offID+16]...)
	dst = binary.BigEndian.AppendUint32(dst, topicOf(r))
	return binary.BigEndian.AppendUint64(dst, seqOf(r))
}

func keyEntry(dst []byte, r []byte) []byte { // topic, key hash, seq: 20 bytes
	dst = binary.BigEndian.AppendUint32(dst, topicOf(r))
	dst = append(dst, hashKey(binary.LittleEndian.Uint64(r[offKey:]))...)
	return binary.BigEndian.AppendUint64(dst, seqOf(r))
}

func hashKey(k uint64) []byte {
	k *= 0x9e3779b97f4a7c15
	k ^= k >> 32
	return binary.BigEndian.AppendUint64(nil, k)
}

// shared is layout (a).
type shared struct {
	dir   string
	db    *pebble.DB
	files int
}

func newShared(dir string) *shared     { return &shared{dir: dir, db: openPebble(dir)} }
func (s *shared) keepsSegments() bool  { return true }
func (s *shared) finish()              { must(s.db.Flush()) }
func (s *shared) segment(n int) string { return filepath.Join(s.dir, fmt.Sprintf("%06d.seg", n)) }
func posKey(t uint32, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32([]byte{'p'}, t), seq)
}

func (s *shared) absorb(seg int, buf []byte) {
	s.files = seg + 1
	b := s.db.NewBatchWithSize(4 << 20)
	var k, v []byte
	for off := 0; off < len(buf); off += recSize {
		r := buf[off : off+recSize]
		v = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(v[:0], uint32(seg)), uint32(off))
		must(b.Set(posKey(topicOf(r), seqOf(r)), v, nil))
		k = append(k[:0], 'i')
		k = idEntry(k, r)
		must(b.Set(k[:21], k[21:], nil))
		k = append(k[:0], 'k')
		must(b.Set(keyEntry(k, r), nil, nil))
		if b.Len() > 4<<20 {
			must(b.Commit(pebble.NoSync))
			b = s.db.NewBatchWithSize(4 << 20)
		}
	}
	must(b.Commit(pebble.NoSync))
}

func (s *shared) lookup(id []byte, topic uint32, key uint64) (bool, bool) {
	_, c, err := s.db.Get(binary.BigEndian.AppendUint32(append([]byte{'i'}, id...), topic))
	if err == nil {
		must(c.Close())
	}
	p := append(binary.BigEndian.AppendUint32([]byte{'k'}, topic), hashKey(key)...)
	it, err2 := s.db.NewIter(&pebble.IterOptions{LowerBound: p, UpperBound: append(slices.Clone(p), 0xff)})
	must(err2)
	defer func() { must(it.Close()) }()
	return err == nil, it.First()
}

func (s *shared) scan(topic uint32) (n int) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: posKey(topic, 0), UpperBound: posKey(topic+1, 0)})
	must(err)
	defer func() { must(it.Close()) }()
	var f *os.File
	cur, base, win := -1, 0, make([]byte, 0, 1<<20)
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		must(err)
		seg, off := int(binary.BigEndian.Uint32(v)), int(binary.BigEndian.Uint32(v[4:]))
		if seg != cur {
			if f != nil {
				must(f.Close())
			}
			f, err = os.Open(s.segment(seg))
			must(err)
			cur, win = seg, win[:0]
		}
		if off+recSize > base+len(win) || len(win) == 0 {
			m, _ := f.ReadAt(win[:cap(win)], int64(off))
			base, win = off, win[:m]
		}
		if r := win[off-base : off-base+recSize]; topicOf(r) == topic {
			n++
		}
	}
	return n
}

func (s *shared) expire() (written int64) {
	out, pos := []byte(nil), s.files
	flush := func() {
		must(os.WriteFile(s.segment(pos), out, 0o644))
		written += int64(len(out))
		pos, out = pos+1, out[:0]
	}
	for i := range s.files {
		buf, err := os.ReadFile(s.segment(i))
		must(err)
		b := s.db.NewBatch()
		for off := 0; off+recSize <= len(buf) && binary.LittleEndian.Uint32(buf[off:]) == recSize; off += recSize {
			r := buf[off : off+recSize]
			if topicOf(r) == 0 {
				v := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(pos)), uint32(len(out)))
				must(b.Set(posKey(0, seqOf(r)), v, nil))
				out = append(out, r...)
			} else {
				must(b.Delete(append([]byte{'i'}, idEntry(nil, r)[:20]...), nil))
			}
		}
		must(b.Commit(pebble.NoSync))
		if len(out) > segSize {
			flush()
		}
	}
	flush()
	must(s.db.DeleteRange(posKey(1, 0), posKey(topics, 0), pebble.NoSync))
	must(s.db.DeleteRange(binary.BigEndian.AppendUint32([]byte{'k'}, 1), binary.BigEndian.AppendUint32([]byte{'k'}, topics), pebble.NoSync))
	settle(s.db)
	for i := range s.files {
		must(os.Remove(s.segment(i)))
	}
	return written
}

// index is what layout (b) needs beside its chunks.
type index interface {
	add(ids, keys []byte) // unsorted entries of 28 and 20 bytes
	finish()
	has(id []byte, key []byte) (bool, bool)
}

// chunked is layout (b).
type chunked struct {
	dir    string
	idx    index
	chunks []chunk
}

type chunk struct {
	n        int
	off, len [topics]int
}

func newChunked(dir string, idx index) *chunked { return &chunked{dir: dir, idx: idx} }
func (c *chunked) keepsSegments() bool          { return false }
func (c *chunked) finish()                      { c.idx.finish() }
func (c *chunked) path(n int) string            { return filepath.Join(c.dir, fmt.Sprintf("%06d.chunk", n)) }

func (c *chunked) absorb(seg int, buf []byte) {
	var parts [topics][]byte
	var ids, keys []byte
	for off := 0; off < len(buf); off += recSize {
		r := buf[off : off+recSize]
		parts[topicOf(r)] = append(parts[topicOf(r)], r...)
		ids = idEntry(ids, r)
		keys = keyEntry(keys, r)
	}
	c.idx.add(ids, keys)
	c.write(seg, parts)
}

func (c *chunked) write(n int, parts [topics][]byte) (written int64) {
	f, err := os.Create(c.path(n))
	must(err)
	ch := chunk{n: n}
	off := 0
	for t, p := range parts {
		ch.off[t], ch.len[t] = off, len(p)
		_, err = f.Write(p)
		must(err)
		off += len(p)
	}
	must(f.Sync())
	must(f.Close())
	c.chunks = append(c.chunks, ch)
	return int64(off)
}

func (c *chunked) lookup(id []byte, topic uint32, key uint64) (bool, bool) {
	return c.idx.has(binary.BigEndian.AppendUint32(slices.Clone(id), topic), append(binary.BigEndian.AppendUint32(nil, topic), hashKey(key)...))
}

func (c *chunked) scan(topic uint32) (n int) {
	win := make([]byte, recSize*3000)
	for _, ch := range c.chunks {
		f, err := os.Open(c.path(ch.n))
		must(err)
		for o := 0; o < ch.len[topic]; {
			m, _ := f.ReadAt(win[:min(len(win), ch.len[topic]-o)], int64(ch.off[topic]+o))
			for i := 0; i+recSize <= m; i += recSize {
				if topicOf(win[i:]) == topic {
					n++
				}
			}
			o += m
		}
		must(f.Close())
	}
	return n
}

func (c *chunked) expire() (written int64) {
	old := c.chunks
	c.chunks = nil
	next := old[len(old)-1].n + 1
	var parts [topics][]byte
	for i, ch := range old {
		f, err := os.Open(c.path(ch.n))
		must(err)
		buf := make([]byte, ch.len[0])
		_, err = f.ReadAt(buf, int64(ch.off[0]))
		must(err)
		must(f.Close())
		parts[0] = append(parts[0], buf...)
		if len(parts[0]) > segSize || i == len(old)-1 {
			written += c.write(next, parts)
			next++
			parts[0] = parts[0][:0]
		}
	}
	for _, ch := range old {
		must(os.Remove(c.path(ch.n)))
	}
	return written
}

// pebbleIndex ingests one sorted table for ids and one for keys a chunk.
type pebbleIndex struct {
	dir string
	db  *pebble.DB
	n   int
}

func newPebbleIndex(dir string) *pebbleIndex { return &pebbleIndex{dir: dir, db: openPebble(dir)} }
func (p *pebbleIndex) finish()               { must(p.db.Flush()) }

func (p *pebbleIndex) add(ids, keys []byte) {
	sortFixed(ids, 28)
	sortFixed(keys, 20)
	var paths []string
	for i, e := range [][]byte{ids, keys} {
		w, kl, prefix := 28, 20, byte('i')
		if i == 1 {
			w, kl, prefix = 20, 20, 'k'
		}
		path := filepath.Join(p.dir, fmt.Sprintf("%06d-%c.sst", p.n, prefix))
		f, err := vfs.Default.Create(path, vfs.WriteCategoryUnspecified)
		must(err)
		sw := sstable.NewWriter(objstorageprovider.NewFileWritable(f), sstable.WriterOptions{TableFormat: sstable.TableFormatMax, FilterPolicy: bloom.FilterPolicy(10)})
		k := []byte{prefix}
		for o := 0; o < len(e); o += w {
			k = append(k[:1], e[o:o+kl]...)
			must(sw.Set(k, e[o+kl:o+w]))
		}
		must(sw.Close())
		paths = append(paths, path)
	}
	p.n++
	must(p.db.Ingest(ctx, paths))
}

func (p *pebbleIndex) has(id, key []byte) (bool, bool) {
	_, c, err := p.db.Get(append([]byte{'i'}, id...))
	if err == nil {
		must(c.Close())
	}
	pre := append([]byte{'k'}, key...)
	it, e := p.db.NewIter(&pebble.IterOptions{LowerBound: pre, UpperBound: append(slices.Clone(pre), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)})
	must(e)
	defer func() { must(it.Close()) }()
	return err == nil, it.First()
}

// runIndex keeps sorted runs of fixed-width entries and merges eight of a
// tier into one of the next.
type runIndex struct {
	dir  string
	n    int
	tier [2][8][]string
}

func newRunIndex(dir string) *runIndex { return &runIndex{dir: dir} }
func (r *runIndex) finish()            {}

func sortFixed(b []byte, w int) {
	n := len(b) / w
	perm := make([]int32, n)
	for i := range perm {
		perm[i] = int32(i)
	}
	slices.SortFunc(perm, func(x, y int32) int {
		return bytes.Compare(b[int(x)*w:int(x)*w+w], b[int(y)*w:int(y)*w+w])
	})
	out := make([]byte, 0, len(b))
	for _, i := range perm {
		out = append(out, b[int(i)*w:int(i)*w+w]...)
	}
	copy(b, out)
}

func (r *runIndex) add(ids, keys []byte) {
	sortFixed(ids, 28)
	sortFixed(keys, 20)
	r.put(0, 0, ids, 28)
	r.put(1, 0, keys, 20)
}

func (r *runIndex) put(kind, tier int, b []byte, w int) {
	path := filepath.Join(r.dir, fmt.Sprintf("%d-%d-%06d.run", kind, tier, r.n))
	r.n++
	f, err := os.Create(path)
	must(err)
	_, err = f.Write(b)
	must(err)
	must(f.Sync())
	must(f.Close())
	r.tier[kind][tier] = append(r.tier[kind][tier], path)
	if len(r.tier[kind][tier]) < 8 {
		return
	}
	var in [][]byte
	total := 0
	for _, p := range r.tier[kind][tier] {
		b, err := os.ReadFile(p)
		must(err)
		in = append(in, b)
		total += len(b)
	}
	out := make([]byte, 0, total)
	for len(in) > 0 {
		m := 0
		for i := 1; i < len(in); i++ {
			if bytes.Compare(in[i][:w], in[m][:w]) < 0 {
				m = i
			}
		}
		out = append(out, in[m][:w]...)
		if in[m] = in[m][w:]; len(in[m]) == 0 {
			in = slices.Delete(in, m, m+1)
		}
	}
	for _, p := range r.tier[kind][tier] {
		must(os.Remove(p))
	}
	r.tier[kind][tier] = nil
	r.put(kind, tier+1, out, w)
}

func (r *runIndex) has(id, key []byte) (bool, bool) {
	return r.find(0, 28, id), r.find(1, 20, key)
}

func (r *runIndex) find(kind, w int, want []byte) bool {
	for _, t := range r.tier[kind] {
		for _, p := range t {
			f, err := os.Open(p)
			must(err)
			st, err := f.Stat()
			must(err)
			e := make([]byte, w)
			lo, hi := 0, int(st.Size())/w
			for lo < hi {
				m := (lo + hi) / 2
				_, err = f.ReadAt(e, int64(m*w))
				must(err)
				if bytes.Compare(e[:len(want)], want) < 0 {
					lo = m + 1
				} else {
					hi = m
				}
			}
			_, err = f.ReadAt(e, int64(lo*w))
			must(f.Close())
			if err == nil && bytes.Equal(e[:len(want)], want) {
				return true
			}
		}
	}
	return false
}

var ctx = context.Background()
