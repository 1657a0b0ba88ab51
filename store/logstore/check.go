package logstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"promethean/event"
	"promethean/store"
	"promethean/store/internal/superseded"
	"promethean/store/logstore/internal/chunk"
	"promethean/store/logstore/internal/journal"
)

// Problem is one finding of Check or Dump.
type Problem struct {
	// File is where it was found.
	File string
	// Offset is the place in the file, -1 where it has none.
	Offset int64
	// What says what is wrong.
	What string
	// Note marks what is worth knowing but is no damage.
	Note bool
}

func (p Problem) String() string {
	if p.Offset < 0 {
		return fmt.Sprintf("%s: %s", p.File, p.What)
	}
	return fmt.Sprintf("%s, offset %d: %s", p.File, p.Offset, p.What)
}

// problemOf is the problem that an error from reading file stands for.
func problemOf(file string, err error) Problem {
	var c *store.CorruptError
	if errors.As(err, &c) {
		return Problem{File: c.File, Offset: c.Offset, What: c.Detail}
	}
	return Problem{File: file, Offset: -1, What: err.Error()}
}

// Summary is what Check has looked at.
type Summary struct {
	Topics int
	Groups int
	// Events counts the retained events that were found intact.
	Events uint64
	// Frames counts the journal's frames that are not sealed yet.
	Frames int
	Chunks int
	Runs   int
	// Views and Documents are those beside the log.
	Views     int
	Documents int64
	// Files and Bytes count everything in the directory.
	Files int
	Bytes int64
	// Problems counts damage, Notes what is none.
	Problems int
	Notes    int
}

// Check verifies everything in a store's directory: every frame of the
// journal, every block, record and index of the chunks, every entry of the
// runs, that the manifest fits the files, and that events and index entries
// fit each other in both directions; and the documents beside the log, if there
// are any. It calls report with each finding, as it
// is met; the error says only that the check itself could not be done.
//
// Nothing on disk is changed. The directory must not be in use
// ([store.ErrLocked]) and must hold a store ([ErrNoStore]). A directory
// without a lock file, such as a backup that was never opened, is read
// without a lock.
//
// Memory is bounded by the largest segment, the filters of the runs, a little
// for each file, topic and group, and one byte for about 85 events, up to
// 3 MiB for a topic; and one bit for each seq of a compacted topic while its
// index entries are not cleaned up. Events and index entries are
// compared by sums of hashes under a random seed, so a difference goes unseen
// with a chance of about 1 in 2^100; where there is one, both sides are
// searched for what it is.
func Check(ctx context.Context, dir string, o Options, report func(Problem)) (sum Summary, err error) {
	c := &checker{chunkRows: make(map[uint64]*chunkTally), seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	c.reader, err = openReader(ctx, dir, o, func(p Problem) {
		if p.Note {
			c.sum.Notes++
		} else {
			c.sum.Problems++
		}
		if report != nil {
			report(p)
		}
	})
	if err != nil {
		return sum, fmt.Errorf("check store %s: %w", dir, err)
	}
	err = errors.Join(c.check(), c.documents(), c.close())
	if err != nil {
		err = fmt.Errorf("check store %s: %w", dir, err)
	}
	return c.sum, err
}

// checker is one run of Check.
type checker struct {
	*reader
	sum       Summary
	chunkRows map[uint64]*chunkTally
	runRows   map[indexKind][]runRow
	tallies   []topicTally // by topic number - 1
	seeds     [2]maphash.Seed
}

// chunkTally is a chunk's row, and what the directory says about the chunk.
type chunkTally struct {
	row      chunkRow
	sections int // rows of the directory that name it
	matched  int // of these, found in its index
	bytes    int64
}

// topicTally gathers what was found of a topic.
type topicTally struct {
	last  uint64 // of its sections so far
	bytes int64  // of its sections
	// lost are seqs whose block cannot be read: their entries count for
	// nothing.
	lost store.Ranges
	// Events count for a digest, entries of runs against it. There is one for
	// each stretch of seqs, so that a difference can be found without looking
	// at the whole topic again.
	ids, keys []digest
	first     uint64 // of the first stretch
	shift     int    // log2 of the length of a stretch
	// Where index entries may lead nowhere, the seqs that are there.
	there superseded.Set
	stale map[indexKind]uint64
}

// digest sums a set up: it is zero when all that was added was taken away.
type digest struct {
	n    int64
	a, b uint64
}

const (
	stretchShift = 12
	maxStretches = 1 << 16
)

func newTally(t *topic) topicTally {
	tt := topicTally{first: t.first, shift: stretchShift, stale: make(map[indexKind]uint64)}
	if t.stale > 0 {
		tt.there = make(superseded.Set)
	}
	seqs := uint64(0)
	if t.sealed > t.first {
		seqs = t.sealed - t.first
	}
	for seqs>>tt.shift >= maxStretches {
		tt.shift++
	}
	n := seqs>>tt.shift + 1
	tt.ids, tt.keys = make([]digest, n), make([]digest, n)
	return tt
}

func (c *checker) count(d *digest, entry []byte, n int64) {
	d.n += n
	d.a += uint64(n) * maphash.Bytes(c.seeds[0], entry)
	d.b += uint64(n) * maphash.Bytes(c.seeds[1], entry)
}

func (t *topicTally) digests(kind indexKind) []digest {
	if kind == idIndex {
		return t.ids
	}
	return t.keys
}

// stretch is the number of the stretch that has seq, or is next to it.
func (t *topicTally) stretch(seq uint64) uint64 {
	return min((seq-t.first)>>t.shift, uint64(len(t.ids)-1))
}

func (t *topicTally) digest(kind indexKind, seq uint64) *digest {
	return &t.digests(kind)[t.stretch(seq)]
}

// topicOf gives a topic and its tally, nil if there is no such topic.
func (c *checker) topicOf(num uint32) (*topic, *topicTally) {
	if num == 0 || int(num) > len(c.tallies) {
		return nil, nil
	}
	return c.byNum[num-1], &c.tallies[num-1]
}

func (c *checker) check() error {
	if err := c.census(); err != nil {
		return err
	}
	if !c.readable() {
		c.note(c.statePath(), "without the manifest, chunks and runs are verified each by itself, and the journal is not")
		return errors.Join(c.looseFiles(nil), c.ctx.Err())
	}
	if err := c.walk(false, func(string, journal.Frame) error { c.sum.Frames++; return nil }); err != nil {
		return err
	}
	for _, t := range c.byNum {
		c.tallies = append(c.tallies, newTally(t))
	}
	c.sum.Topics, c.sum.Groups = len(c.byNum), len(c.cursors)
	c.rows()
	c.state()
	for _, file := range slices.Sorted(maps.Keys(c.chunkRows)) {
		if err := c.chunk(c.chunkPath(file), file, c.chunkRows[file]); err != nil {
			return err
		}
	}
	for _, kind := range []indexKind{idIndex, keyIndex} {
		if err := c.index(kind); err != nil {
			return err
		}
	}
	named := make(map[string]bool)
	for file := range c.chunkRows {
		named[c.chunkPath(file)] = true
	}
	for _, list := range c.runRows {
		for _, r := range list {
			named[c.runPath(r.file)] = true
		}
	}
	return c.looseFiles(named)
}

// readable says whether every row of the manifest can be read, of whatever
// kind it is: Pebble verifies what it reads.
func (c *checker) readable() bool {
	if c.db == nil {
		return false // which has been reported
	}
	err := c.scanManifest(nil, nil, func(_, _ []byte) error { return nil })
	if err != nil {
		c.damage(c.statePath(), err)
	}
	return err == nil
}

// census counts the files.
func (c *checker) census() error {
	for _, dir := range []string{c.dir, c.journalDir(), c.statePath(), c.docsDir()} {
		names, err := c.fs.List(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, name := range names {
			st, err := c.fs.Stat(c.fs.PathJoin(dir, name))
			if err != nil {
				return err
			}
			if st.IsDir() {
				continue
			}
			c.sum.Files++
			c.sum.Bytes += st.Size()
			if strings.HasSuffix(name, ".chunk") || strings.HasSuffix(name, ".run") {
				c.progress.total += st.Size()
			}
		}
	}
	return nil
}

// looseFiles names the files that no row of the manifest names, and verifies
// them if nothing is named because the manifest cannot be read.
func (c *checker) looseFiles(named map[string]bool) error {
	names, err := c.fs.List(c.dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		path := c.fs.PathJoin(c.dir, name)
		isChunk, isRun := strings.HasSuffix(name, ".chunk"), strings.HasSuffix(name, ".run")
		switch {
		case name == "LOCK" || name == "journal" || name == "state" || name == "views" || named[path]:
		case !isChunk && !isRun:
			c.note(path, "is no file of the store")
		case named != nil:
			c.note(path, "belongs to nothing: left by a crash, removed by the next start")
		case isChunk:
			c.sum.Chunks++
			err = c.chunk(path, 0, nil)
		case isRun:
			c.sum.Runs++
			if r := c.openRun(path, 0); r != nil {
				for r.next() {
				}
				err = errors.Join(r.err, r.close())
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rows reads the rows of chunks, runs and sections, and holds the sections of
// each topic against its extent.
func (c *checker) rows() {
	next, err := c.manifestNum(keyFile)
	if err != nil {
		c.damage(c.statePath(), err)
	}
	beyond := func(path string, file uint64) {
		if file > next {
			c.manifestProblem("%s is in use, but the next file gets number %d", path, next+1)
		}
	}
	c.eachRow("c", func(k, v []byte) error {
		file, row, err := decodeChunk(k, v)
		if err == nil {
			c.chunkRows[file] = &chunkTally{row: row}
			beyond(c.chunkPath(file), file)
		}
		return err
	})
	c.runRows = make(map[indexKind][]runRow)
	c.eachRow("r", func(k, v []byte) error {
		r, err := decodeRun(k, v)
		if err == nil {
			c.runRows[r.kind] = append(c.runRows[r.kind], r)
			beyond(c.runPath(r.file), r.file)
		}
		return err
	})
	c.sum.Chunks, c.sum.Runs = len(c.chunkRows), len(c.runRows[idIndex])+len(c.runRows[keyIndex])
	c.eachRow("d", func(k, v []byte) error {
		x, err := decodeSection(k, v)
		if err == nil {
			c.directoryRow(x)
		}
		return err
	})
}

func (c *checker) directoryRow(x section) {
	ct := c.chunkRows[x.chunk]
	if ct == nil {
		c.manifestProblem("topic number %d, seqs %d to %d: %s has no row", x.topic, x.first, x.last, c.chunkPath(x.chunk))
	} else {
		ct.sections++
		ct.bytes += x.bytes
	}
	t, tt := c.topicOf(x.topic)
	if t == nil {
		c.manifestProblem("seqs %d to %d are of topic number %d, which is unknown", x.first, x.last, x.topic)
		return
	}
	if x.first <= tt.last {
		c.manifestProblem("topic %s: seqs %d to %d overlap those up to %d", t.name, x.first, x.last, tt.last)
	}
	if x.first < t.low {
		c.manifestProblem("topic %s: seqs %d to %d lie below the lowest stored seq %d", t.name, x.first, x.last, t.low)
	}
	if from := max(tt.last+1, t.first, t.compacted); x.first > from {
		c.manifestProblem("topic %s: seqs %d to %d are missing", t.name, from, x.first-1)
	}
	tt.last = x.last
	tt.bytes += x.bytes
}

// state verifies topics and groups, as the manifest and the journal make them.
func (c *checker) state() {
	for i, t := range c.byNum {
		tt := &c.tallies[i]
		if err := event.CheckTopic(t.name); err != nil {
			c.manifestProblem("topic number %d: %v", t.num, err)
		}
		if from := max(tt.last+1, t.first, t.compacted); from <= t.sealed {
			c.manifestProblem("topic %s: seqs %d to %d are missing", t.name, from, t.sealed)
		}
		if t.compacted > t.sealed+1 {
			c.manifestProblem("topic %s: compacted below seq %d, but %d is the last that is known to be sealed", t.name, t.compacted, t.sealed)
		}
		if tt.last > t.sealed {
			c.manifestProblem("topic %s: stored up to seq %d, but %d is the last that is known to be sealed", t.name, tt.last, t.sealed)
		}
		if t.first == 0 || t.low == 0 || t.low > t.first || t.first > t.last+1 {
			c.manifestProblem("topic %s: stored from seq %d, retained from %d to %d", t.name, t.low, t.first, t.last)
		}
		if tt.bytes != t.bytes {
			c.manifestProblem("topic %s: has %d bytes in chunks, its row says %d", t.name, tt.bytes, t.bytes)
		}
		if t.last >= max(t.first, t.sealed+1) {
			c.sum.Events += t.last - max(t.sealed, t.first-1) // those of the journal
		}
	}
	for k, cur := range c.cursors {
		t := c.byNum[k.topic-1]
		top := cur.Floor
		for i, r := range cur.Settled {
			if r.First > r.Last || i > 0 && r.First <= cur.Settled[i-1].Last+1 {
				c.manifestProblem("topic %s, group %s: settled range %d to %d is out of order", t.name, k.group, r.First, r.Last)
			}
			top = max(top, r.Last)
		}
		if top > t.last {
			c.manifestProblem("topic %s, group %s: settled up to seq %d, but the last is %d", t.name, k.group, top, t.last)
		}
	}
}

// chunk verifies one chunk file. Without ct, because the manifest cannot be
// read, it looks at the file alone.
func (c *checker) chunk(path string, file uint64, ct *chunkTally) (err error) {
	ch, err := chunk.Open(c.fs, path)
	if err != nil {
		c.damage(path, missing(err))
		c.lose(file)
		return c.ctx.Err()
	}
	defer func() { err = errors.Join(err, ch.Release()) }()
	sections, err := ch.Sections()
	if err != nil {
		c.damage(path, err)
		c.lose(file)
		return c.ctx.Err()
	}
	at, size := uint64(chunkHead), int64(0)
	for i := range sections {
		x := &sections[i]
		if len(x.Blocks) == 0 {
			c.problem(path, int64(x.Entry.Off), "section of topic %s is empty", x.Name)
			continue
		}
		size += x.Bytes()
		live := ct != nil && c.sectionRow(path, file, x, ct)
		for k := range x.Blocks {
			b := &x.Blocks[k]
			if b.Off != at || k > 0 && c.outOfPlace(x.Topic, x.Blocks[k-1].Last, b.First) {
				c.problem(path, int64(b.Off), "block with seqs %d to %d is out of place", b.First, b.Last)
			}
			at = b.Off + uint64(b.Len)
			if err := c.block(ch, path, x, b, live); err != nil {
				return err
			}
		}
	}
	if n := len(sections); n > 0 && at != sections[0].Entry.Off {
		c.problem(path, int64(at), "blocks end here, the index begins at %d", sections[0].Entry.Off)
	}
	if ct == nil {
		return nil
	}
	if size != ct.row.size || ct.bytes != ct.row.live {
		c.problem(path, -1, "has %d bytes of events, %d live; its row says %d and %d", size, ct.bytes, ct.row.size, ct.row.live)
	}
	if ct.matched < ct.sections {
		c.problem(path, -1, "lacks %d of the %d sections that the directory says it has", ct.sections-ct.matched, ct.sections)
	}
	return nil
}

// outOfPlace says that seq must not follow the one before it: it is not above
// that, or seqs are missing between them where there are no gaps.
func (c *checker) outOfPlace(topic uint32, before, seq uint64) bool {
	gaps := ^uint64(0) // without the manifest any may be there
	if t, _ := c.topicOf(topic); t != nil {
		gaps = t.compacted
	}
	return seq <= before || seq > max(before+1, gaps)
}

// lose notes that nothing of a chunk can be read.
func (c *checker) lose(file uint64) {
	if c.tallies == nil {
		return
	}
	c.eachRow("d", func(k, v []byte) error {
		x, err := decodeSection(k, v)
		if _, tt := c.topicOf(x.topic); err == nil && tt != nil && x.chunk == file {
			tt.lost.Add(store.Range{First: x.first, Last: x.last})
		}
		return nil // rows that do not decode have been reported
	})
}

// sectionRow holds a section against its row of the directory, and says
// whether it is in use.
func (c *checker) sectionRow(path string, file uint64, x *chunk.Section, ct *chunkTally) bool {
	off := int64(x.Entry.Off)
	t, _ := c.topicOf(x.Topic)
	if t == nil || t.name != x.Name {
		c.problem(path, off, "section is of topic %s with number %d, which the manifest does not know", x.Name, x.Topic)
		return false
	}
	key := sectionKey(x.Topic, x.First())
	v, closer, err := c.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		// One that compaction has written anew stays behind in its chunk.
		if x.Last() >= t.first && x.First() >= t.compacted {
			c.problem(path, off, "topic %s, seqs %d to %d: the directory has no row for them", x.Name, x.First(), x.Last())
		}
		return false
	}
	if err != nil {
		c.damage(c.statePath(), err)
		return false
	}
	row, err := decodeSection(key, v)
	if err = errors.Join(err, closer.Close()); err != nil || row.chunk != file {
		return false // the row has been reported, or it counts for another chunk
	}
	ct.matched++
	if want := sectionOf(x, file); row != want {
		c.problem(path, off, "topic %s: the directory has the section as %+v, it is %+v", x.Name, row, want)
	}
	return true
}

// block verifies one block: its checksum, its records, and what the index
