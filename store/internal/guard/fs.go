// Package guard keeps an engine alive when the disk under its Pebble database
// fails.
//
// Pebble takes a failing disk badly: it repeats a failed flush at once, for
// ever, also inside Open; it panics or ends the process when its own manifest
// or directory cannot be written; and when Open fails it closes things under
// its own background work. The guard stands between it and the disk. The first
// operation that fails never returns: the database is marked as broken, whoever
// waits for it is told, and all further attempts to write wait for ever too.
// What stays behind are a few goroutines that never touch the disk again. Reads
// go on.
package guard

import (
	"io"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

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

func (g *guard) opened(name string, f vfs.File, err error) (vfs.File, error) {
	if g.leave(name, err) != nil {
		return nil, err
	}
	return &file{File: f, g: g, name: name}, nil
}

// Lock takes no lock: the engine's own serves the whole directory, and is given
// back even if Pebble cannot be closed.
func (g *guard) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func (g *guard) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	g.enter(name)
	f, err := g.FS.Create(name, c)
	return g.opened(name, f, err)
}

func (g *guard) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	g.enter(name)
	f, err := g.FS.OpenReadWrite(name, c, opts...)
	return g.opened(name, f, err)
}

func (g *guard) OpenDir(name string) (vfs.File, error) {
	f, err := g.FS.OpenDir(name)
	return g.opened(name, f, err)
}

func (g *guard) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	g.enter(to)
	f, err := g.FS.ReuseForWrite(from, to, c)
	return g.opened(to, f, err)
}

func (g *guard) Link(from, to string) error {
	g.enter(to)
	return g.leave(to, g.FS.Link(from, to))
}

func (g *guard) Rename(from, to string) error {
	g.enter(to)
	return g.leave(to, g.FS.Rename(from, to))
}

// file is an open file of a guard.
type file struct {
	vfs.File
	g    *guard
	name string
}

func (f *file) Write(p []byte) (int, error) {
	f.g.enter(f.name)
	n, err := f.File.Write(p)
	return n, f.g.leave(f.name, err)
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.g.enter(f.name)
	n, err := f.File.WriteAt(p, off)
	return n, f.g.leave(f.name, err)
}

func (f *file) Sync() error {
	f.g.enter(f.name)
	return f.g.leave(f.name, f.File.Sync())
}

func (f *file) SyncData() error {
	f.g.enter(f.name)
	return f.g.leave(f.name, f.File.SyncData())
}

func (f *file) SyncTo(n int64) (bool, error) {
	f.g.enter(f.name)
	full, err := f.File.SyncTo(n)
	return full, f.g.leave(f.name, err)
}
