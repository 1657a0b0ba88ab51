package logstore

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble takes a failing disk badly: it repeats a failed flush at once, for
// ever, also inside Open; it panics or ends the process when its own manifest
// or directory cannot be written; and when Open fails it closes things under
// its own background work. The guard stands between it and the disk. The first
// operation that fails never returns: the database is marked as broken, whoever
// waits for it is told, the store stops accepting, and all further attempts to
// write wait for ever too. What stays behind are a few goroutines that never
// touch the disk again. Reads go on.

// guard is the file system that Pebble works on.
type guard struct {
	vfs.FS
	dir  string // the database's; what lies elsewhere is not guarded
	once sync.Once
	// broken is closed after the first failure, whose error is in cause.
	broken chan struct{}
	cause  error
	tell   func(error)
}

func newGuard(fs vfs.FS, dir string, tell func(error)) *guard {
	return &guard{FS: fs, dir: dir, broken: make(chan struct{}), tell: tell}
}

// ours says whether the operation is about the database itself; a checkpoint
// is written elsewhere, and its failure is only the backup's.
func (g *guard) ours(name string) bool {
	rest, ok := strings.CutPrefix(name, g.dir)
	return ok && (rest == "" || rest[0] == '/' || rest[0] == '\\')
}

// enter keeps Pebble from writing once something has failed.
func (g *guard) enter(name string) {
	select {
	case <-g.broken:
		if g.ours(name) {
			select {} // see above
		}
	default:
	}
}

// leave notes a failure, and does not come back from it.
func (g *guard) leave(name string, err error) error {
	if err != nil && g.ours(name) {
		g.fail(err)
		select {} // see above
	}
	return err
}

func (g *guard) fail(err error) {
	g.once.Do(func() {
		g.cause = err
		close(g.broken)
		g.tell(err)
	})
}

func (g *guard) file(name string, f vfs.File, err error) (vfs.File, error) {
	if g.leave(name, err) != nil {
		return nil, err
	}
	return &guardedFile{File: f, g: g, name: name}, nil
}

// Lock takes no lock: the store's own serves the whole directory, and is given
// back even if Pebble cannot be closed.
func (g *guard) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func (g *guard) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	g.enter(name)
	f, err := g.FS.Create(name, c)
	return g.file(name, f, err)
}

func (g *guard) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	g.enter(name)
	f, err := g.FS.OpenReadWrite(name, c, opts...)
	return g.file(name, f, err)
}

func (g *guard) OpenDir(name string) (vfs.File, error) {
	f, err := g.FS.OpenDir(name)
	return g.file(name, f, err)
}

func (g *guard) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	g.enter(to)
	f, err := g.FS.ReuseForWrite(from, to, c)
	return g.file(to, f, err)
}

func (g *guard) Link(from, to string) error {
	g.enter(to)
	return g.leave(to, g.FS.Link(from, to))
}

func (g *guard) Rename(from, to string) error {
	g.enter(to)
	return g.leave(to, g.FS.Rename(from, to))
}

// guardedFile is an open file of a guard.
type guardedFile struct {
	vfs.File
	g    *guard
	name string
}

func (f *guardedFile) Write(p []byte) (int, error) {
	f.g.enter(f.name)
	n, err := f.File.Write(p)
	return n, f.g.leave(f.name, err)
}

func (f *guardedFile) WriteAt(p []byte, off int64) (int, error) {
	f.g.enter(f.name)
	n, err := f.File.WriteAt(p, off)
	return n, f.g.leave(f.name, err)
}

func (f *guardedFile) Sync() error {
	f.g.enter(f.name)
	return f.g.leave(f.name, f.File.Sync())
}

func (f *guardedFile) SyncData() error {
	f.g.enter(f.name)
	return f.g.leave(f.name, f.File.SyncData())
}

func (f *guardedFile) SyncTo(n int64) (bool, error) {
	f.g.enter(f.name)
	full, err := f.File.SyncTo(n)
	return full, f.g.leave(f.name, err)
}

// pebbleLog passes Pebble's complaints on.
type pebbleLog struct{ s *Store }

// pebbleFatal is a call of Fatalf on its way to where it is caught.
type pebbleFatal struct{ err error }

func (l pebbleLog) Infof(string, ...any) {}

func (l pebbleLog) Errorf(format string, args ...any) {
	l.s.o.Logger.Warn("pebble", "msg", fmt.Sprintf(format, args...))
}

// Fatalf must not return. In a call of ours it is a panic that the call
// catches; in a goroutine of Pebble's it ends only that.
func (l pebbleLog) Fatalf(format string, args ...any) {
	err := fmt.Errorf(strings.ReplaceAll(format, "%w", "%v"), args...)
	l.s.guard.fail(err)
	if cause := l.s.guard.cause; cause != nil {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	if onOurStack() {
		panic(pebbleFatal{err})
	}
	select {}
}

// onOurStack says whether this goroutine is inside guarded.
func onOurStack() bool {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "logstore.(*Store).guarded") {
			return true
		}
		if !more {
			return false
		}
	}
}

// caught turns a panic of Pebble's into an error: it panics when the disk
// fails in some places.
func caught(err *error) {
	switch p := recover().(type) {
	case nil:
	case pebbleFatal:
		*err = p.err
	case error:
		*err = p
	default:
		panic(p)
	}
}

// call runs something of Pebble's, and gives up if the disk fails meanwhile.
func (s *Store) call(fn func() error) error {
	done := make(chan error, 1)
	go s.guarded(fn, done)
	select {
	case err := <-done:
		return err
	case <-s.guard.broken:
		return s.guard.cause
	}
}

// guarded is where calls of ours into Pebble begin; see onOurStack.
func (s *Store) guarded(fn func() error, done chan<- error) {
	var err error
	defer func() { done <- err }()
	defer caught(&err)
	err = fn()
}

// openDB opens Pebble.
func (s *Store) openDB(opts *pebble.Options) error {
	dir := s.fs.PathJoin(s.dir, "state")
	s.guard = newGuard(s.fs, dir, s.fail)
	opts.FS = s.guard
	opened := make(chan *pebble.DB, 1)
	err := s.call(func() error {
		db, err := pebble.Open(dir, opts)
		opened <- db
		return err
	})
	if err == nil {
		s.db = <-opened
	}
	return err
}

// commitManifest writes b durably. After an error it may be on the disk or
// not.
func (s *Store) commitManifest(b *pebble.Batch) error {
	return s.call(func() error { return b.Commit(pebble.Sync) })
}

// closeDB closes Pebble, unless it is broken: then that may never end.
func (s *Store) closeDB() error {
	if s.db == nil {
		return nil
	}
	select {
	case <-s.guard.broken:
		return nil
	default:
		return s.call(s.db.Close)
	}
}
