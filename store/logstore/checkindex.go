package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore/internal/run"
)

// index verifies the runs of one index, all at once and in the order of their
// entries, so that an id that stands in two of them is seen, and compares
// what they hold with the events.
func (c *checker) index(kind indexKind) (err error) {
	var runs []*runReader
	defer func() {
		for _, r := range runs {
			err = errors.Join(err, r.close())
		}
	}()
	for _, row := range c.runRows[kind] {
		if r := c.openRun(c.runPath(row.file), kind); r != nil {
			runs = append(runs, r)
		}
	}
	var last []byte // the entry before, of those that count
	from := 0       // and its run
	err = merge(runs, func(i int) {
		r := runs[i]
		t, tt := c.topicOf(entryTopicOf(kind, r.entry))
		if t == nil {
			c.problem(r.path, r.off, "entry is of topic number %d, which is unknown", entryTopicOf(kind, r.entry))
			return
		}
		seq := entrySeq(r.entry)
		if seq < t.first || tt.lost.Contains(seq) {
			return
		}
		if tt.led(t, seq) {
			tt.stale[kind]++
			return
		}
		c.count(tt.digest(kind, entrySeq(r.entry)), r.entry, -1)
		if n := r.spec.Prefix; last != nil && bytes.Equal(last[:n], r.entry[:n]) {
			switch {
			case kind == idIndex:
				c.problem(r.path, r.off, "topic %s: id %s is that of seqs %d and %d", t.name, event.ID(r.entry[:16]), entrySeq(last), entrySeq(r.entry))
			case i < from:
				c.problem(r.path, r.off, "topic %s: seq %d of a key is in an older run than seq %d", t.name, entrySeq(r.entry), entrySeq(last))
			}
		}
		last, from = append(last[:0], r.entry...), i
	})
	if err != nil {
		return err
	}
	for i, t := range c.byNum {
		if n := c.tallies[i].stale[kind]; n > t.stale {
			c.manifestProblem("topic %s: %d entries of the %s index lead to no event, compaction has left %d", t.name, n, kind, t.stale)
		}
	}
	if c.differ(kind) {
		if err := c.unindexed(kind, runs); err != nil {
			return err
		}
	}
	if c.differ(kind) {
		if err := c.strays(kind, runs); err != nil {
			return err
		}
		if c.sum.Problems == 0 {
			c.manifestProblem("%s index and events differ", kind)
		}
	}
	return nil
}

// led says that an entry leads to an event that compaction has removed.
func (t *topicTally) led(x *topic, seq uint64) bool {
	return t.there != nil && seq < x.compacted && !t.there.Has(seq)
}

// differ says whether events and entries do not match.
func (c *checker) differ(kind indexKind) bool {
	return slices.ContainsFunc(c.tallies, func(tt topicTally) bool { return differ(tt.digests(kind)) })
}

func differ(list []digest) bool {
	return slices.ContainsFunc(list, func(d digest) bool { return d != digest{} })
}

// merge calls fn with the number of the run whose entry is next, until all
// are read.
func merge(runs []*runReader, fn func(i int)) error {
	more := make([]bool, len(runs))
	for i, r := range runs {
		more[i] = r.next()
	}
	for {
		best := -1
		for i, r := range runs {
			if r.err != nil {
				return r.err
			}
			if more[i] && (best < 0 || bytes.Compare(r.entry, runs[best].entry) < 0) {
				best = i
			}
		}
		if best < 0 {
			return nil
		}
		fn(best)
		more[best] = runs[best].next()
	}
}

// unindexed names the events that an index lacks, section by section, and
// takes them out of the digests. It looks where these do not add up.
func (c *checker) unindexed(kind indexKind, runs []*runReader) error {
	var failed error
	c.eachRow("d", func(k, v []byte) error {
		if x, err := decodeSection(k, v); err == nil && failed == nil {
			failed = c.unindexedIn(kind, runs, x)
		}
		return nil // rows that do not decode have been reported
	})
	return failed
}

func (c *checker) unindexedIn(kind indexKind, runs []*runReader, x section) error {
	t, tt := c.topicOf(x.topic)
	if t == nil || x.last < t.first {
		return nil
	}
	if !differ(tt.digests(kind)[tt.stretch(max(x.first, t.first)) : tt.stretch(x.last)+1]) {
		return nil
	}
	count, first, last, at := 0, uint64(0), uint64(0), int64(0)
	err := c.sectionEvents(x, func(Problem) {}, func(off, _ int64, r event.Record) {
		seq := r.Seq()
		if seq < t.first || kind == keyIndex && r.Key() == "" || *tt.digest(kind, seq) == (digest{}) {
			return
		}
		e := idPrefix(t.num, r.ID())
		if kind == keyIndex {
			e = keyPrefix(t.num, hashKey(t.num, r.Key()))
		}
		e = binary.BigEndian.AppendUint64(e, seq)
		found, damaged := findEntry(runs, e)
		if found {
			return
		}
		c.count(tt.digest(kind, seq), e, -1)
		if damaged {
			return // it may have been in a block that has been reported
		}
		if count++; count == 1 {
			first, at = seq, off
		}
		last = seq
	})
	if err != nil {
		return err
	}
	if count > 0 {
		c.problem(c.chunkPath(x.chunk), at, "topic %s: of the events from seq %d to %d, %d are not in the %s index", t.name, first, last, count, kind)
	}
	return nil
}

// findEntry searches the runs as a lookup does. Where it meets a block that
// cannot be read, it says so.
func findEntry(runs []*runReader, entry []byte) (found, damaged bool) {
	for _, r := range runs {
		if found || !r.run.MayContain(entry[:r.spec.Prefix]) {
			continue
		}
		err := r.run.Find(entry, false, func([]byte) bool { found = true; return false })
		damaged = damaged || err != nil
	}
	return found, damaged
}

// strays names the entries that lead to no event, or to another one. It looks
// where the digests do not add up.
func (c *checker) strays(kind indexKind, runs []*runReader) error {
	for _, r := range runs {
		r.rewind()
		for r.next() {
			t, tt := c.topicOf(entryTopicOf(kind, r.entry))
			seq := entrySeq(r.entry)
			if t == nil || seq < t.first || *tt.digest(kind, seq) == (digest{}) || tt.lost.Contains(seq) || tt.led(t, seq) {
				continue
			}
			e, ok, err := c.event(t, seq)
			if err != nil {
				c.damage(c.statePath(), err)
				continue
			}
			var is []byte
			if ok && kind == idIndex {
				is = idPrefix(t.num, e.ID)
			} else if ok && e.Key != "" {
				is = keyPrefix(t.num, hashKey(t.num, e.Key))
			}
			if !bytes.Equal(is, r.entry[:r.spec.Prefix]) {
				c.problem(r.path, r.off, "entry of the %s index leads to seq %d of topic %s, which is not its event", kind, seq, t.name)
			}
		}
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

func (k indexKind) String() string {
	if k == idIndex {
		return "id"
	}
	return "key"
}

// runRow is a row of the manifest that names a run.
type runRow struct {
	kind indexKind
	file uint64
}

func decodeRun(k, v []byte) (r runRow, err error) {
	if len(k) != 10 || k[1] != byte(idIndex) && k[1] != byte(keyIndex) {
		return r, fmt.Errorf("manifest: run row %x does not decode", k)
	}
	d := decoder{b: v}
	r.kind, r.file = indexKind(k[1]), d.num()
	d.num() // its tier
	return r, d.end("manifest: run")
}

// runReader reads a run entry by entry and verifies it on the way: checksums,
// order, fences, count, and that the filter knows every entry. Unlike package
// run it goes on behind a damaged block.
type runReader struct {
	c        *checker
	path     string
	run      *run.Run
	file     vfs.File
	spec     run.Spec
	count    uint64
	perBlock uint64
	fences   []byte // of blocks: first entry and checksum
	quiet    bool   // it was read before, and its damage is known
	block    uint64 // the next one
	buf      []byte
	rest     []byte // of buf
	prev     []byte
	entry    []byte
	off      int64 // of entry
	err      error // that ends the check
}

const runFooter = 88

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openRun opens a run whose entries must be of the given kind, 0 for any. It
// returns nil if nothing in it can be read, which it has reported.
func (c *checker) openRun(path string, kind indexKind) *runReader {
	opened, err := run.Open(c.fs, path) // verifies all but the blocks
	if err != nil {
		c.damage(path, missing(err))
		return nil
	}
	r := &runReader{c: c, path: path, run: opened}
	if err := r.layout(kind); err != nil {
		c.damage(path, errors.Join(err, r.close()))
		return nil
	}
	return r
}

// layout reads the footer and the fences, and verifies that the parts of the
// file lie where the package doc says.
func (r *runReader) layout(kind indexKind) (err error) {
	if r.file, err = r.c.fs.Open(r.path); err != nil {
		return err
	}
	st, err := r.file.Stat()
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	at := st.Size() - runFooter
	foot := make([]byte, runFooter)
	if err := r.read(foot, at); err != nil {
		return err
	}
	r.spec = run.Spec{Width: int(le.Uint32(foot[8:])), Prefix: int(le.Uint32(foot[12:]))}
	r.count, r.perBlock = le.Uint64(foot[16:]), uint64(le.Uint32(foot[24:]))
	bad := func(format string, args ...any) error {
		return &store.CorruptError{File: r.path, Offset: at, Detail: fmt.Sprintf(format, args...)}
	}
	if known := r.spec == idSpec || r.spec == keySpec; !known || kind != 0 && r.spec != kind.spec() || r.perBlock == 0 {
		return bad("entries of %d bytes, of which %d are searched, are not those of this index", r.spec.Width, r.spec.Prefix)
	}
	w := uint64(r.spec.Width)
	blocks := (r.count + r.perBlock - 1) / r.perBlock
	fences, filter := le.Uint64(foot[32:]), le.Uint64(foot[56:])
	end := fences + blocks*(w+4)
	if r.count > 0 {
		end += w
	}
	if fences != r.count*w || filter != fences+le.Uint64(foot[40:]) || filter != end || filter+le.Uint64(foot[64:]) != uint64(at) {
		return bad("%d entries, fences at %d and filter at %d do not make up the file", r.count, fences, filter)
	}
	r.fences = make([]byte, blocks*(w+4))
	return r.read(r.fences, int64(fences))
}

func (r *runReader) read(b []byte, off int64) error {
	if _, err := io.ReadFull(io.NewSectionReader(r.file, off, int64(len(b))), b); err != nil {
		return &store.CorruptError{File: r.path, Offset: off, Detail: err.Error()}
	}
	return nil
}

func (r *runReader) problem(off int64, format string, args ...any) {
	if !r.quiet {
		r.c.problem(r.path, off, format, args...)
	}
}

// next goes to the next entry that can be read.
func (r *runReader) next() bool {
	r.prev = append(r.prev[:0], r.entry...)
	w, p := r.spec.Width, r.spec.Prefix
	for len(r.rest) == 0 {
		if r.block*r.perBlock >= r.count || r.err != nil {
			return false
		}
		r.load()
	}
	r.entry, r.rest = r.rest[:w], r.rest[w:]
	r.off += int64(w)
	if r.quiet {
		return true
	}
	if len(r.prev) > 0 && bytes.Compare(r.prev, r.entry) >= 0 {
		r.problem(r.off, "entry is not above the one before it")
	}
	if (len(r.prev) == 0 || !bytes.Equal(r.prev[:p], r.entry[:p])) && !r.run.MayContain(r.entry[:p]) {
		r.problem(r.off, "entry is denied by the run's filter")
	}
	return true
}

// load reads the next block; rest stays empty if it is damaged.
func (r *runReader) load() {
	i, w := r.block, uint64(r.spec.Width)
	r.block++
	n := min(r.perBlock, r.count-i*r.perBlock)
	off := int64(i * r.perBlock * w)
	r.buf = append(r.buf[:0], make([]byte, n*w)...)
	if r.err = r.c.step(int64(len(r.buf))); r.err != nil {
		return
	}
	fence := r.fences[i*(w+4):][:w+4]
	if err := r.read(r.buf, off); err != nil {
		r.problem(off, "block %d: %v", i, err)
		return
	}
	if crc32.Checksum(r.buf, castagnoli) != binary.LittleEndian.Uint32(fence[w:]) {
		r.problem(off, "run block %d fails its checksum", i)
		return
	}
	if !bytes.Equal(r.buf[:w], fence[:w]) {
		r.problem(off, "run block %d does not begin with its fence", i)
	}
	if r.block*r.perBlock >= r.count && !bytes.Equal(r.buf[(n-1)*w:], r.run.Last()) {
		r.problem(off, "run does not end with the entry that its fences say")
	}
	r.rest, r.off = r.buf, off-int64(w)
}

// rewind begins again, quietly.
func (r *runReader) rewind() {
	r.quiet, r.block, r.rest, r.prev, r.entry = true, 0, nil, nil, nil
}

func (r *runReader) close() error {
	err := r.run.Release()
	if r.file != nil {
		err = errors.Join(err, r.file.Close())
	}
	return err
}
