package crashfs

import (
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FS is a disk in memory. Make it with New.
type FS struct {
	mu     sync.RWMutex // guards everything, the nodes included
	root   *node
	queue  []*change // changes of names that are not synced, oldest first
	locked map[string]bool

	plan    Plan
	seen    int // operations that the plan is about
	fired   bool
	crashed bool
	frozen  *FS             // the disk when it lost its power, nil before
	copies  map[*node]*node // nodes of the disk and of the frozen one
	counts  map[Op]int
	total   int // of counts
}

var _ vfs.FS = (*FS)(nil)

// New gives an empty disk.
func New() *FS {
	return &FS{root: newDir(), locked: make(map[string]bool), counts: make(map[Op]int)}
}

func split(name string) []string {
	name = strings.Trim(path.Clean("/"+name), "/")
	if name == "" {
		return nil
	}
	return strings.Split(name, "/")
}

func pathError(op, name string, err error) error {
	return &os.PathError{Op: op, Path: name, Err: err}
}

// find gives the node of a name, or nil. fs.mu is held.
func (fs *FS) find(name string) *node {
	n := fs.root
	for _, part := range split(name) {
		if n = n.names[part]; n == nil {
			return nil
		}
	}
	return n
}

// place gives the directory that holds a name, and the name in it.
func (fs *FS) place(op, name string) (dir *node, base string, err error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", pathError(op, name, os.ErrInvalid)
	}
	base = parts[len(parts)-1]
	dir = fs.find(strings.Join(parts[:len(parts)-1], "/"))
	switch {
	case dir == nil:
		return nil, "", pathError(op, name, os.ErrNotExist)
	case !dir.isDir():
		return nil, "", pathError(op, name, syscall.ENOTDIR)
	}
	return dir, base, nil
}

// point makes a name lead to a node, or nowhere, and queues the change.
func (fs *FS) point(dir *node, base string, to *node) {
	c := &change{}
	c.parts[0].dir, c.parts[0].name, c.parts[0].to = dir, base, to
	fs.enqueue(c)
}

func (fs *FS) enqueue(c *change) {
	c.apply(func(dir *node) map[string]*node { return dir.names })
	fs.queue = append(fs.queue, c)
}

// syncDir makes the names in dir durable. fs.mu is held.
func (fs *FS) syncDir(dir *node) {
	fs.queue = slices.DeleteFunc(fs.queue, func(c *change) bool {
		if !c.touches(dir) {
			return false
		}
		c.apply(func(dir *node) map[string]*node { return dir.synced })
		return true
	})
}

// now is a time that goes on with each operation, the same in each run.
func (fs *FS) now() time.Time { return time.Unix(int64(fs.total), 0) }

// create makes a new file, in place of the one that has the name.
func (fs *FS) create(name string) (*node, error) {
	dir, base, err := fs.place("create", name)
	if err != nil {
		return nil, err
	}
	old := dir.names[base]
	if old != nil && old.isDir() {
		return nil, pathError("create", name, syscall.EISDIR)
	}
	if _, err := fs.judge(OpCreate, name); err != nil {
		return nil, pathError("create", name, err)
	}
	if old != nil {
		fs.point(dir, base, nil) // a step of its own: a crash may come between
	}
	n := newFile()
	n.modified = fs.now()
	fs.point(dir, base, n)
	return n, nil
}

// Create implements vfs.FS.
func (fs *FS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n, err := fs.create(name)
	if err != nil {
		return nil, err
	}
	return &file{fs: fs, n: n, name: name, writable: true}, nil
}

// Link implements vfs.FS.
func (fs *FS) Link(oldname, newname string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n := fs.find(oldname)
	if n == nil || n.isDir() {
		return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: os.ErrNotExist}
	}
	dir, base, err := fs.place("link", newname)
	if err != nil {
		return err
	}
	if dir.names[base] != nil {
		return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: os.ErrExist}
	}
	if _, err := fs.judge(OpLink, newname); err != nil {
		return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: err}
	}
	fs.point(dir, base, n)
	return nil
}

// open gives a handle of what is there.
func (fs *FS) open(name string, writable bool) (*file, error) {
	n := fs.find(name)
	switch {
	case n == nil:
		return nil, pathError("open", name, os.ErrNotExist)
	case writable && n.isDir():
		return nil, pathError("open", name, syscall.EISDIR)
	}
	return &file{fs: fs, n: n, name: name, writable: writable}, nil
}

// Open implements vfs.FS.
func (fs *FS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	fs.mu.RLock()
	f, err := fs.open(name, false)
	fs.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	for _, o := range opts {
		o.Apply(f)
	}
	return f, nil
}

// OpenReadWrite implements vfs.FS.
func (fs *FS) OpenReadWrite(name string, _ vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	fs.mu.Lock()
	if fs.find(name) == nil {
		if _, err := fs.create(name); err != nil {
			fs.mu.Unlock()
			return nil, err
		}
	}
	f, err := fs.open(name, true)
	fs.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for _, o := range opts {
		o.Apply(f)
	}
	return f, nil
}

// OpenDir implements vfs.FS.
func (fs *FS) OpenDir(name string) (vfs.File, error) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	f, err := fs.open(name, false)
	if err != nil {
		return nil, err
	}
	if !f.n.isDir() {
		return nil, pathError("open", name, syscall.ENOTDIR)
	}
	return f, nil
}

// Remove implements vfs.FS.
func (fs *FS) Remove(name string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.remove(name)
}

func (fs *FS) remove(name string) error {
	dir, base, err := fs.place("remove", name)
	if err != nil {
		return err
	}
	switch n := dir.names[base]; {
	case n == nil:
		return pathError("remove", name, os.ErrNotExist)
	case len(n.names) > 0:
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	if _, err := fs.judge(OpRemove, name); err != nil {
		return pathError("remove", name, err)
	}
	fs.point(dir, base, nil)
	return nil
}

// RemoveAll implements vfs.FS.
func (fs *FS) RemoveAll(name string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.removeAll(name)
}

func (fs *FS) removeAll(name string) error {
	n := fs.find(name)
	if n == nil {
		return nil
	}
	for _, base := range sorted(n.names) {
		if err := fs.removeAll(path.Join(name, base)); err != nil {
			return err
		}
	}
	return fs.remove(name)
}

// Rename implements vfs.FS.
func (fs *FS) Rename(oldname, newname string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.rename(oldname, newname)
}

func (fs *FS) rename(oldname, newname string) error {
	from, oldBase, err := fs.place("rename", oldname)
	if err != nil {
		return err
	}
	to, newBase, err := fs.place("rename", newname)
	if err != nil {
		return err
	}
	n := from.names[oldBase]
	if n == nil {
		return pathError("rename", oldname, os.ErrNotExist)
	}
	if _, err := fs.judge(OpRename, newname); err != nil {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: err}
	}
	if to.names[newBase] == n {
		return nil // two names of one file: POSIX leaves both
	}
	c := &change{}
	c.parts[0].dir, c.parts[0].name = from, oldBase
	c.parts[1].dir, c.parts[1].name, c.parts[1].to = to, newBase, n
	fs.enqueue(c)
	return nil
}

// ReuseForWrite implements vfs.FS.
func (fs *FS) ReuseForWrite(oldname, newname string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if err := fs.rename(oldname, newname); err != nil {
		return nil, err
	}
	f, err := fs.open(newname, true)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// MkdirAll implements vfs.FS.
func (fs *FS) MkdirAll(name string, _ os.FileMode) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	dir := fs.root
	for _, part := range split(name) {
		next := dir.names[part]
		if next == nil {
			if _, err := fs.judge(OpMkdir, name); err != nil {
				return pathError("mkdir", name, err)
			}
			next = newDir()
			fs.point(dir, part, next)
		}
		if !next.isDir() {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		dir = next
	}
	return nil
}

// Lock implements vfs.FS. A lock is the disk's, not a process's: who opens a
// disk a second time without closing it meets it.
func (fs *FS) Lock(name string) (io.Closer, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	key := path.Clean("/" + name)
	if fs.locked[key] {
		return nil, pathError("lock", name, syscall.EAGAIN)
	}
	if fs.find(name) == nil {
		if _, err := fs.create(name); err != nil {
			return nil, err
		}
	}
	fs.locked[key] = true
	return &lock{fs: fs, key: key}, nil
}

type lock struct {
	fs  *FS
	key string
}

func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	delete(l.fs.locked, l.key)
	return nil
}

// List implements vfs.FS. The names are sorted.
func (fs *FS) List(name string) ([]string, error) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	n := fs.find(name)
	switch {
	case n == nil:
		return nil, pathError("list", name, os.ErrNotExist)
	case !n.isDir():
		return nil, pathError("list", name, syscall.ENOTDIR)
	}
	return sorted(n.names), nil
}

// Stat implements vfs.FS.
func (fs *FS) Stat(name string) (vfs.FileInfo, error) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	n := fs.find(name)
	if n == nil {
		return nil, pathError("stat", name, os.ErrNotExist)
	}
	return n.info(path.Base(name)), nil
}

// PathBase implements vfs.FS.
func (fs *FS) PathBase(name string) string { return path.Base(name) }

// PathJoin implements vfs.FS.
func (fs *FS) PathJoin(elem ...string) string { return path.Join(elem...) }

// PathDir implements vfs.FS.
func (fs *FS) PathDir(name string) string { return path.Dir(name) }

// GetDiskUsage implements vfs.FS.
func (fs *FS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{}, vfs.ErrUnsupported
}

// Unwrap implements vfs.FS.
func (fs *FS) Unwrap() vfs.FS { return nil }
