package logstore

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore/internal/journal"
)

// Store is the embedded engine. It implements [store.Log], [store.Cursors]
// and the abilities AtomicTopics, Settles, Compacts, Begins, BacksUp and HasDocs.
//
// Lock order: life, backups, tidying, manifest, mu, queueMu. Nothing waits while it
// holds one of the latter two.
type Store struct {
	o    Options
	dir  string
	fs   vfs.FS
	lock io.Closer
	db   *rows
	pool *memPool

	// mu guards all that readers see.
	mu      sync.RWMutex
	topics  map[string]*topic
	byNum   []*topic // by topic number - 1
	mems    []*mem   // by age; the last is active
	ids     tiers
	keys    tiers
	idHigh  event.ID // no id outside the active mem is higher
	cursors map[cursorKey]*store.Cursor
	dirty   map[cursorKey]bool        // cursors to be written at the next seal
	allTops []*store.Watch            // watches on every topic
	early   map[string][]*store.Watch // watches on topics that do not exist yet

	tidying sync.Mutex           // held by whoever removes files or rows of the directory
	merged  map[indexKind]uint64 // entries after all runs were merged; under tidying
	// manifest is held by whoever changes which files there are.
	manifest sync.Mutex
	nextFile uint64
	chunks   *chunkCache

	docs    documents
	backups sync.Mutex

	w        writer
	requests sync.Pool // of *request

	queueMu  sync.Mutex
	queue    []*request
	wake     chan struct{} // to the writer, one token
	room     chan struct{} // to a writer that waits for the sealer
	sealWake chan struct{}
	sealNews chan struct{} // closed and replaced, under mu, when a mem is sealed
	// compacting has a token while a topic is compacted.
	compacting chan struct{}
	tidyWake   chan struct{}
	stop       chan struct{} // closed when background work must end
	closed     bool          // under queueMu
	closing    sync.Once
	closeErr   error
	writing    sync.WaitGroup
	working    sync.WaitGroup
	gone       atomic.Bool
	failure    atomic.Pointer[failure]
	failed     chan struct{} // closed with the first failure
	// life is held for reading by whoever uses files, step by step; Close
	// takes it before it closes them.
	life sync.RWMutex
}

type failure struct{ err error }

// topic is one topic's state. Fields are under Store.mu unless they say
// otherwise.
type topic struct {
	num      uint32
	name     string
	next     uint64 // the judge's: the seq of the next event
	cut      uint64 // the judge's: first, trims that are not visible yet included
	last     uint64
	first    uint64
	sealed   uint64 // the last seq that is in a chunk
	low      uint64 // the smallest seq that still takes space
	bytes    int64  // in chunks
	memBytes int64  // in mems that are not sealed
	// Compaction leaves gaps, all of them below compacted, where everything is
	// sealed; holes is about how many seqs from low on have no event. Up to
	// stale entries of each index lead to events that are gone.
	compacted, holes, stale uint64
	clean                   cleanMark
	settings                store.Settings
	known                   bool // durable: it shows in listings
	changed                 bool // since it was last written to the manifest
	saved                   bool // it has a row in the manifest; a seal gives rows to all
	watches                 []*store.Watch
}

type cursorKey struct {
	topic uint32
	group string
}

var (
	_ store.Log          = (*Store)(nil)
	_ store.Cursors      = (*Store)(nil)
	_ store.AtomicTopics = (*Store)(nil)
	_ store.Settles      = (*Store)(nil)
	_ store.Leases       = (*Store)(nil)
	_ store.Holds        = (*Store)(nil)
	_ store.BacksUp      = (*Store)(nil)
	_ store.Compacts     = (*Store)(nil)
	_ store.Begins       = (*Store)(nil)
	_ store.HasDocs      = (*Store)(nil)
)

// AppendsAcrossTopics says that a batch may span topics.
func (s *Store) AppendsAcrossTopics() {}

// SettlesInAppend says that a batch may carry settlements.
func (s *Store) SettlesInAppend() {}

// Open opens the store in dir, and makes it if there is none. It returns once
// everything that was acknowledged can be read. Another process that has it
// open is [store.ErrLocked]; damage is [store.ErrCorrupt] and names the place.
func Open(dir string, o Options) (*Store, error) {
	o = o.withDefaults()
	s := &Store{
		o: o, dir: dir, fs: o.FS,
		pool:     newMemPool(o.SegmentSize),
		topics:   make(map[string]*topic),
		cursors:  make(map[cursorKey]*store.Cursor),
		dirty:    make(map[cursorKey]bool),
		early:    make(map[string][]*store.Watch),
		wake:     make(chan struct{}, 1),
		room:     make(chan struct{}, 1),
		sealWake: make(chan struct{}, 1),
		tidyWake: make(chan struct{}, 1),
		sealNews: make(chan struct{}),
		failed:   make(chan struct{}),

		compacting: make(chan struct{}, 1),
		merged:     make(map[indexKind]uint64),
		stop:       make(chan struct{}),
	}
	s.chunks = newChunkCache(s.fs, dir)
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", dir, err), s.release())
	}
	s.writing.Go(s.w.runJudge)
	s.writing.Go(s.w.runPilot)
	s.working.Go(s.runSealer)
	s.working.Go(s.runTidy)
	return s, nil
}

// OpenMemory opens an empty store on a file system in memory: the same
// engine, for tests and for data that need not outlive the process. Its
// default for SegmentSize is 16 MiB.
func OpenMemory(o Options) (*Store, error) {
	o.FS, o.memory = vfs.NewMem(), true
	if o.SegmentSize == 0 {
		o.SegmentSize = 16 << 20
	}
	return Open("mem", o)
}

func (s *Store) open() error {
	for _, dir := range []string{s.dir, s.journalDir()} {
		// A directory is there after a crash once the one above it is synced.
		if err := s.fs.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := syncDir(s.fs, s.fs.PathDir(dir)); err != nil {
			return err
		}
	}
	lock, err := s.fs.Lock(s.fs.PathJoin(s.dir, "LOCK"))
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrLocked, err)
	}
	s.lock = lock
	applied, err := s.openManifest()
	if err != nil {
		return err
	}
	j, err := journal.Open(journal.Options{
		FS: s.fs, Dir: s.journalDir(), SegmentSize: s.o.SegmentSize,
		Applied: applied, Image: func(n int) []byte { return make([]byte, n) },
		Replay: s.replay, Memory: s.o.memory,
	})
	if err != nil {
		return err
	}
	s.w.init(s, j)
	if err := s.removeOrphans(); err != nil {
		return err
	}
	if err := syncDir(s.fs, s.dir); err != nil {
		return err
	}
	return s.w.rotate()
}

func (s *Store) journalDir() string { return s.fs.PathJoin(s.dir, "journal") }

// replay enters a recovered segment: it becomes a frozen mem.
func (s *Store) replay(seg *journal.Segment, image []byte, frames []journal.Frame) error {
	m := newMem(s.nextMem(), image)
	m.seg, m.end = seg, len(image)
	for _, f := range frames {
		err := eachEntry(f.Body, f.Off, func(e entry) error { return s.applyEntry(m, e, f.At) })
		if errors.Is(err, store.ErrFormat) {
			return fmt.Errorf("%s: %w", seg.Path(), err)
		}
		if err != nil {
			// The frame passed its checksum, so this is no damage of the disk.
			return &store.CorruptError{File: seg.Path(), Offset: int64(f.Off), Detail: err.Error()}
		}
		m.lastLSN = f.LSN
		s.w.lastAt = max(s.w.lastAt, f.At)
	}
	s.mems = append(s.mems, m)
	if compareID(m.maxID, s.idHigh) > 0 {
		s.idHigh = m.maxID
	}
	return nil
}

func (s *Store) nextMem() uint64 {
	if n := len(s.mems); n > 0 {
		return s.mems[n-1].number + 1
	}
	return 1
}

// Err says why the store has stopped accepting, nil while it has not.
func (s *Store) Err() error {
	if f := s.failure.Load(); f != nil {
		return fmt.Errorf("%w: %w", store.ErrFailed, f.err)
	}
	return nil
}

// fail stops the store from accepting anything more. The first cause stays.
func (s *Store) fail(err error) {
	if s.failure.CompareAndSwap(nil, &failure{err}) {
		close(s.failed)
		s.o.Logger.Error("store stops accepting", "dir", s.dir, "cause", err)
	}
	poke(s.wake)
	poke(s.room)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Close answers what waits, finishes sealing and releases the directory.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.queueMu.Lock()
		s.closed = true
		s.queueMu.Unlock()
		poke(s.wake)
		s.writing.Wait()
		s.gone.Store(true)
		close(s.stop)
		s.working.Wait()
		docsErr := s.closeDocs()
		s.life.Lock()
		defer s.life.Unlock()
		s.closeErr = errors.Join(docsErr, s.release())
	})
	return s.closeErr
}

// release closes whatever is open, in the reverse order of open.
func (s *Store) release() error {
	var errs []error
	if s.w.j != nil {
		errs = append(errs, s.w.j.Close())
	}
	s.mu.Lock()
	for _, t := range []tiers{s.ids, s.keys} {
		for _, r := range t {
			errs = append(errs, r.run.Release())
		}
	}
	s.ids, s.keys = nil, nil
	s.mu.Unlock()
	errs = append(errs, s.chunks.close())
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}
