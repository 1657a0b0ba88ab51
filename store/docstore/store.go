package docstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store"
	"promethean/store/internal/guard"
)

// Options configure a store. The zero value is ready for use.
type Options struct {
	// FS is where the store keeps its files. Default: the operating system's.
	FS vfs.FS
	// Logger hears of what goes on in the background. Default: nobody does.
	Logger *slog.Logger
	// Cache is how many bytes of the files are kept in memory. Default 64 MiB.
	Cache int64
	// Pending is about how many bytes of documents may be in memory because
	// their rows are not written yet. Default 128 MiB.
	Pending int
	// Log is about how many bytes of commits a reader may have in the database
	// whose rows are not written yet. Default 256 MiB.
	Log int
	// Age is about how long rows are not written. Default 5 s.
	Age time.Duration
	// Reads is about how many bytes of documents that were read lately are kept,
	// those of all collections together. Default 16 MiB.
	Reads int
	// Memtable is the size of the database's own buffer. Default 32 MiB.
	Memtable uint64
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Cache <= 0 {
		o.Cache = 64 << 20
	}
	if o.Pending <= 0 {
		o.Pending = 128 << 20
	}
	if o.Log <= 0 {
		o.Log = 256 << 20
	}
	if o.Age <= 0 {
		o.Age = 5 * time.Second
	}
	if o.Reads <= 0 {
		o.Reads = 16 << 20
	}
	if o.Memtable == 0 {
		o.Memtable = 32 << 20
	}
	return o
}

// Store keeps documents. It implements [store.Docs] and [store.Transacts].
//
// Lock order: shape, a reader's commit, mu, a reader's mu, a session's.
type Store struct {
	o    Options
	dir  string
	fs   vfs.FS
	lock io.Closer
	db   *guard.DB

	// shape is held by whoever changes which readers and collections there are.
	shape sync.Mutex
	next  uint32 // the next id; under shape

	mu          sync.RWMutex
	readers     map[string]*reader
	collections map[string]*collection

	// life is held for reading by every use of the database; Close takes it.
	life     sync.RWMutex
	closed   bool
	closing  sync.Once
	closeErr error
	stop     chan struct{}
	working  sync.WaitGroup

	sessionsMu sync.Mutex
	sessions   map[*session]struct{}

	held     atomic.Int64  // bytes in overlays
	cached   atomic.Int64  // bytes of documents that were read
	unsynced atomic.Uint64 // commits so far
	synced   atomic.Uint64 // those that are durable
	failure  atomic.Pointer[failure]
}

type failure struct{ err error }

var (
	_ store.Docs      = (*Store)(nil)
	_ store.Transacts = (*Store)(nil)
)

// CommitsAsOne says that a batch is one step.
func (s *Store) CommitsAsOne() {}

// Open opens the documents in dir, and makes room for them if there are none.
// Another process that has them open is [store.ErrLocked].
func Open(dir string, o Options) (*Store, error) {
	o = o.withDefaults()
	s := &Store{
		o: o, dir: dir, fs: o.FS, next: 1,
		readers:     make(map[string]*reader),
		collections: make(map[string]*collection),
		sessions:    make(map[*session]struct{}),
		stop:        make(chan struct{}),
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open documents %s: %w", dir, err), s.release())
	}
	s.working.Add(1)
	go s.age()
	return s, nil
}

// OpenMemory opens an empty store on a file system in memory.
func OpenMemory(o Options) (*Store, error) {
	o.FS = vfs.NewMem()
	return Open("views", o)
}

func (s *Store) open() error {
	if err := s.fs.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	// A directory is there after a crash once the one above it is synced.
	if err := syncDir(s.fs, s.fs.PathDir(s.dir)); err != nil {
		return err
	}
	lock, err := s.fs.Lock(s.fs.PathJoin(s.dir, "LOCK"))
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrLocked, err)
	}
	s.lock = lock
	opts := s.options()
	defer opts.Cache.Unref()
	if s.db, err = guard.Open(s.fs, s.dir, opts, s.o.Logger, s.fail); err != nil {
		return err
	}
	if _, there, err := s.num(keyFormat); err == nil && !there {
		b := s.db.NewBatch()
		put(b, keyFormat, binary.BigEndian.AppendUint32(nil, version))
		err = s.db.Commit(b, true)
		if err != nil {
			return err
		}
	}
	if err := s.load(); err != nil {
		return err
	}
	if err := s.sweep(); err != nil {
		return err
	}
	for _, r := range s.readers {
		if err := r.replay(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) options() *pebble.Options {
	opts := &pebble.Options{
		Cache:                       pebble.NewCache(s.o.Cache),
		MemTableSize:                s.o.Memtable,
		MemTableStopWritesThreshold: 4,
		FormatMajorVersion:          pebble.FormatNewest,
	}
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		opts.Levels[i].BlockSize = 8 << 10
		// One level of index blocks: a look at a document reads one less.
		opts.Levels[i].IndexBlockSize = 1 << 20
	}
	opts.Levels[0].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	return opts
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// load reads the format and all readers.
func (s *Store) load() error {
	format, _, err := s.num(keyFormat)
	if err != nil {
		return err
	}
	if format > version {
		return fmt.Errorf("%w: documents have version %d, this program knows up to %d", store.ErrFormat, format, version)
	}
	if next, ok, err := s.num(keyNext); err != nil || ok {
		if err != nil {
			return err
		}
		s.next = next
	}
	return s.scan(s.db, []byte{rowReader}, func(k, v []byte) error {
		row, err := decodeReader(string(k[1:]), v)
		if err != nil {
			return err
		}
		r, err := s.makeReader(string(k[1:]), row)
		if err != nil {
			return err
		}
		s.enterReader(r)
		return s.loadState(r)
	})
}

// loadState reads what has rows of its own.
func (s *Store) loadState(r *reader) error {
	v, err := s.get(s.db, rowKey(nil, rowPlace, r.id))
	if err == nil && len(v) != 8 {
		err = errRow
	}
	if err != nil {
		return fmt.Errorf("place of reader %s: %w", r.name, err)
	}
	r.place = binary.BigEndian.Uint64(v)
	for _, c := range r.cols {
		v, err := s.get(s.db, rowKey(nil, rowState, c.id))
		if err == nil {
			c.count, c.forgotten, err = decodeState(v)
		}
		if err != nil {
			return fmt.Errorf("state of collection %s: %w", c.name, err)
		}
	}
	return nil
}

func (s *Store) num(key []byte) (n uint32, ok bool, err error) {
	v, err := s.get(s.db, key)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, false, nil
	}
	if err == nil && len(v) != 4 {
		err = fmt.Errorf("%s: %w", key, errRow)
	}
	if err != nil {
		return 0, false, err
	}
	return binary.BigEndian.Uint32(v), true, nil
}

// get copies a value.
func (s *Store) get(from pebble.Reader, key []byte) ([]byte, error) {
	v, c, err := from.Get(key)
	if err != nil {
		return nil, err
	}
	v = append([]byte(nil), v...)
	return v, c.Close()
}

// scan calls fn with each row whose key begins with prefix.
func (s *Store) scan(from pebble.Reader, prefix []byte, fn func(k, v []byte) error) (err error) {
	it, err := from.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return err
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

// put and remove change a batch in memory, which cannot fail; its commit can.
func put(b *pebble.Batch, key, value []byte) { _ = b.Set(key, value, nil) }
func remove(b *pebble.Batch, key []byte)     { _ = b.Delete(key, nil) }

// removeAll removes all rows whose keys begin with prefix.
func removeAll(b *pebble.Batch, prefix []byte) { _ = b.DeleteRange(prefix, after(prefix), nil) }

// prefixes are the lengths of the parts of keys that name what a row is of.
var prefixes = map[byte]int{
	rowDoc: 5, rowDeletion: 5, rowState: 5, rowIndex: 7, rowUnique: 7, rowPlace: 5, rowLog: 5,
}

// known gives the prefixes of rows that belong to something.
func (s *Store) known() map[string]bool {
	known := make(map[string]bool)
	for _, r := range s.readers {
		for _, kind := range []byte{rowPlace, rowLog} {
			known[string(rowKey(nil, kind, r.id))] = true
		}
	}
	for _, c := range s.collections {
		for _, kind := range []byte{rowDoc, rowDeletion, rowState} {
			known[string(rowKey(nil, kind, c.id))] = true
		}
		for _, t := range c.tuples {
			known[string(indexPrefix(nil, rowIndex, c.id, t.ID))] = true
		}
		for _, t := range c.uniques {
			known[string(indexPrefix(nil, rowUnique, c.id, t.ID))] = true
		}
	}
	return known
}

// sweep removes rows that belong to nothing: of indexes that were being built
// when the process ended, and of what had just been dropped.
func (s *Store) sweep() error {
	known, b := s.known(), s.db.NewBatch()
	for kind, n := range prefixes {
		err := s.eachPrefix(kind, n, func(prefix []byte) {
			if !known[string(prefix)] {
				removeAll(b, prefix)
			}
		})
		if err != nil {
			return err
		}
	}
	if b.Empty() {
		return nil
	}
	return s.db.Commit(b, true)
}

// eachPrefix calls fn with the first n bytes of the rows of a kind, once each.
func (s *Store) eachPrefix(kind byte, n int, fn func(prefix []byte)) (err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kind}, UpperBound: []byte{kind + 1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; {
		if len(it.Key()) < n {
			return errRow
		}
		prefix := append([]byte(nil), it.Key()[:n]...)
		fn(prefix)
		ok = it.SeekGE(after(prefix))
	}
	return it.Error()
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
		s.o.Logger.Error("documents stop accepting", "dir", s.dir, "cause", err)
	}
}

// enter begins a use of the database, which ends with s.life.RUnlock.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return store.ErrClosed
	}
	return nil
}

// enterWrite is enter for what changes something.
func (s *Store) enterWrite(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.enter(ctx)
}

// Sync implements [store.Docs].
func (s *Store) Sync(ctx context.Context) error {
	if err := s.enterWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	return s.sync()
}

func (s *Store) sync() error {
	n := s.unsynced.Load()
	if s.synced.Load() >= n {
		return nil
	}
	if err := s.db.Call(func() error { return s.db.LogData(nil, pebble.Sync) }); err != nil {
		return s.broken(err)
	}
	for {
		old := s.synced.Load()
		if old >= n || s.synced.CompareAndSwap(old, n) {
			return nil
		}
	}
}

// broken is the answer after an attempt to write has failed.
func (s *Store) broken(err error) error {
	s.fail(err)
	return s.Err()
}

// Checkpoint makes what was committed durable and writes a copy of it to dir,
// which must not exist and must be on the same file system.
func (s *Store) Checkpoint(ctx context.Context, dir string) error {
	if err := s.enterWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	if err := s.sync(); err != nil {
		return err
	}
	return s.db.Call(func() error { return s.db.Checkpoint(dir, pebble.WithFlushedWAL()) })
}

// Close makes durable what was committed, ends lists that are under way, and
// releases the directory.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.life.Lock()
		s.closed = true
		s.life.Unlock()
		close(s.stop)
		s.working.Wait()
		var err error
		if s.Err() == nil {
			err = s.sync()
		}
		s.endSessions()
		s.closeErr = errors.Join(err, s.release())
	})
	return s.closeErr
}

// release closes whatever is open, in the reverse order of open.
func (s *Store) release() error {
	var errs []error
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}
