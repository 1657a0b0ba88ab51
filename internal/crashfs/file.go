package crashfs

import (
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// syncTurns is how often a sync lets other goroutines run.
const syncTurns = 20

// file is an open handle.
type file struct {
	fs       *FS
	n        *node
	name     string
	writable bool
	pos      int64
	closed   bool
}

var _ vfs.File = (*file)(nil)

// usable says why the handle cannot be used. fs.mu is held.
func (f *file) usable(op string) error {
	if f.closed {
		return pathError(op, f.name, os.ErrClosed)
	}
	return nil
}

func (f *file) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	err := f.usable("close")
	f.closed = true
	return err
}

func (f *file) Read(p []byte) (int, error) {
	f.fs.mu.Lock() // for pos
	defer f.fs.mu.Unlock()
	n, err := f.readAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	return f.readAt(p, off)
}

func (f *file) readAt(p []byte, off int64) (int, error) {
	switch err := f.usable("read"); {
	case err != nil:
		return 0, err
	case f.n.isDir():
		return 0, pathError("read", f.name, syscall.EISDIR)
	case off < 0:
		return 0, pathError("read", f.name, os.ErrInvalid)
	case off >= int64(len(f.n.data)):
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) Write(p []byte) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	n, err := f.write(OpWrite, p, f.pos)
	f.pos += int64(n)
	return n, err
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.write(OpWriteAt, p, off)
}

func (f *file) write(op Op, p []byte, off int64) (int, error) {
	switch err := f.usable("write"); {
	case err != nil:
		return 0, err
	case !f.writable:
		return 0, pathError("write", f.name, os.ErrPermission)
	case off < 0:
		return 0, pathError("write", f.name, os.ErrInvalid)
	}
	lost := f.fs.frozen != nil
	partly, err := f.fs.judge(op, f.name)
	if partly && err == nil && !lost { // only the write that meets the moment
		f.fs.writeFrozen(f.n, p[:f.fs.portion(len(p), off)], off)
	}
	if err != nil {
		n := 0
		if partly {
			n = f.fs.portion(len(p), off)
			f.n.write(p[:n], off)
		}
		if f.fs.crashed {
			n = 0 // nobody is left to be told
		}
		return n, pathError("write", f.name, err)
	}
	f.n.write(p, off)
	f.n.modified = f.fs.now()
	return len(p), nil
}

func (f *file) Sync() error { return f.sync(OpSync) }

func (f *file) SyncData() error { return f.sync(OpSyncData) }

func (f *file) sync(op Op) error {
	// On a real disk this takes long. Others get their turn, and a chance to
	// see what they should not see yet.
	for range syncTurns {
		runtime.Gosched()
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.usable("sync"); err != nil {
		return err
	}
	if f.n.isDir() {
		op = OpSyncDir
	}
	if _, err := f.fs.judge(op, f.name); err != nil {
		if !f.fs.crashed {
			f.n.failSync()
		}
		return pathError("sync", f.name, err)
	}
	if f.n.isDir() {
		f.fs.syncDir(f.n)
	} else {
		f.n.sync()
	}
	return nil
}

func (f *file) SyncTo(int64) (fullSync bool, err error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.usable("sync"); err != nil {
		return false, err
	}
	if f.n.isDir() {
		return false, nil
	}
	if _, err := f.fs.judge(OpSyncTo, f.name); err != nil {
		return false, pathError("sync", f.name, err)
	}
	return false, nil
}

func (f *file) Stat() (vfs.FileInfo, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if err := f.usable("stat"); err != nil {
		return nil, err
	}
	return f.n.info(f.fs.PathBase(f.name)), nil
}

func (f *file) Prefetch(int64, int64) error { return nil }

// Preallocate reserves space on a real disk and leaves the length as it is.
func (f *file) Preallocate(int64, int64) error { return nil }

func (f *file) Fd() uintptr { return vfs.InvalidFd }

// info is a snapshot of a node's description.
type info struct {
	name     string
	size     int64
	modified time.Time
	dir      bool
}

func (n *node) info(name string) info {
	return info{name: name, size: int64(len(n.data)), modified: n.modified, dir: n.isDir()}
}

func (i info) Name() string           { return i.name }
func (i info) Size() int64            { return i.size }
func (i info) ModTime() time.Time     { return i.modified }
func (i info) IsDir() bool            { return i.dir }
func (i info) Sys() any               { return nil }
func (i info) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

func (i info) Mode() os.FileMode {
	if i.dir {
		return os.ModeDir | 0o755
	}
	return 0o644
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
