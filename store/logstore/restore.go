package logstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store"
)

// ErrNoStore says that a directory holds no store.
var ErrNoStore = errors.New("no store in this directory")

// Restore copies a backup, or any store that no process has open, to a
// directory that does not exist or is empty, syncs the copy, and opens and
// closes it to see that it can be used. The backup is not changed. If it
// fails, or ctx ends, nothing of the copy stays.
func Restore(ctx context.Context, from, to string) error {
	err := copyStore(ctx, vfs.Default, from, to, func() error {
		s, err := Open(to, Options{})
		if err != nil {
			return err
		}
		return s.Close()
	})
	if err != nil {
		return fmt.Errorf("restore %s to %s: %w", from, to, err)
	}
	return nil
}

// BackupDir backs up a store that no process has open to a directory that
// does not exist: by Store.Backup, which links what it can, or by copying if
// the directory is on another file system. A store that is in use is
// [store.ErrLocked]: only whoever has it open can back it up.
func BackupDir(ctx context.Context, dir, to string, o Options) error {
	o = o.withDefaults()
	if err := backupDir(ctx, dir, to, o); err != nil {
		return fmt.Errorf("back up store %s: %w", dir, err)
	}
	return nil
}

// errCrossDevice is what a link between two file systems fails with.
const errCrossDevice = syscall.EXDEV

func backupDir(ctx context.Context, dir, to string, o Options) error {
	if err := holdsStore(o.FS, dir); err != nil {
		return err
	}
	if err := apart(dir, to); err != nil {
		return err
	}
	s, err := Open(dir, o)
	if err != nil {
		return err
	}
	err = s.Backup(ctx, to)
	if cerr := s.Close(); err == nil || cerr != nil {
		return errors.Join(err, cerr)
	}
	if errors.Is(err, errCrossDevice) {
		return copyStore(ctx, o.FS, dir, to, func() error { return nil })
	}
	return err
}

// copyStore copies a store's files, syncs the copy and calls verify.
//
// Crash argument: a directory that is named LOCK stands in the copy until
// everything else is synced, so that nobody can open part of a copy and take
// what is missing for never stored. Removing it is one step.
func copyStore(ctx context.Context, fsys vfs.FS, from, to string, verify func() error) (err error) {
	if err := apart(from, to); err != nil {
		return err
	}
	lock, err := lockStore(still{fsys}, from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	names, err := fsys.List(to)
	existed := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(names) > 0 {
		return fmt.Errorf("%s: %w and is not empty", to, fs.ErrExist)
	}
	c := copier{ctx: ctx, fs: fsys, progress: progressOf(ctx), buf: make([]byte, 1<<20)}
	if err := c.measure(from); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeCopy(fsys, to, existed))
		}
	}()
	if err := c.copyAll(from, to); err != nil {
		return err
	}
	return verify()
}

func (c *copier) copyAll(from, to string) error {
	var above []string // of directories that are made
	for d := to; ; d = c.fs.PathDir(d) {
		if _, err := c.fs.Stat(d); err == nil || d == c.fs.PathDir(d) {
			break
		}
		above = append(above, c.fs.PathDir(d))
	}
	guard := c.fs.PathJoin(to, "LOCK")
	if err := c.fs.MkdirAll(guard, 0o755); err != nil {
		return err
	}
	for _, d := range append(above, to) {
		if err := syncDir(c.fs, d); err != nil {
			return err
		}
	}
	if err := c.copyDir(from, to); err != nil {
		return err
	}
	if err := c.fs.Remove(guard); err != nil {
		return err
	}
	return syncDir(c.fs, to)
}

// removeCopy removes what was copied, and the directory unless it was there.
func removeCopy(fsys vfs.FS, to string, existed bool) error {
	if !existed {
		return fsys.RemoveAll(to)
	}
	names, err := fsys.List(to)
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, fsys.RemoveAll(fsys.PathJoin(to, name)))
	}
	return errors.Join(errs...)
}

// apart refuses directories of which one lies in the other: a copy would grow
// into itself, or be removed with what it was made of.
func apart(a, b string) error {
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		rel, err := filepath.Rel(resolved(pair[0]), resolved(pair[1]))
		if err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(os.PathSeparator)) {
			return fmt.Errorf("%w: %s and %s must not contain each other", store.ErrInvalid, a, b)
		}
	}
	return nil
}

// resolved is an absolute path without links, as far as the path exists.
func resolved(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real
	}
	if parent := filepath.Dir(abs); parent != abs {
		return filepath.Join(resolved(parent), filepath.Base(abs))
	}
	return abs
}

// copier copies directories.
type copier struct {
	ctx      context.Context
	fs       vfs.FS
	progress progress
	buf      []byte
}

// walk calls dir or file with what is in a directory, by name; locks are left
// out.
func (c *copier) walk(from string, dir, file func(name string) error) error {
	names, err := c.fs.List(from)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if name == "LOCK" {
			continue
		}
		st, err := c.fs.Stat(c.fs.PathJoin(from, name))
		if err != nil {
			return err
		}
		fn := file
		if st.IsDir() {
			fn = dir
		}
		if err := fn(name); err != nil {
			return err
		}
	}
	return nil
}

// measure adds up how much there is to copy.
func (c *copier) measure(from string) error {
	return c.walk(from,
		func(name string) error { return c.measure(c.fs.PathJoin(from, name)) },
		func(name string) error {
			st, err := c.fs.Stat(c.fs.PathJoin(from, name))
			if err == nil {
				c.progress.total += st.Size()
			}
			return err
		})
}

func (c *copier) copyDir(from, to string) error {
	if err := c.fs.MkdirAll(to, 0o755); err != nil {
		return err
	}
	err := c.walk(from,
		func(name string) error { return c.copyDir(c.fs.PathJoin(from, name), c.fs.PathJoin(to, name)) },
		func(name string) error { return c.copyFile(c.fs.PathJoin(from, name), c.fs.PathJoin(to, name)) })
	return errors.Join(err, syncDir(c.fs, to))
}

func (c *copier) copyFile(from, to string) (err error) {
	in, err := c.fs.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := c.fs.Create(to, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for {
		n, err := in.Read(c.buf)
		if n > 0 {
			if _, err := out.Write(c.buf[:n]); err != nil {
				return err
			}
			c.progress.add(int64(n))
		}
		if errors.Is(err, io.EOF) {
			return out.Sync()
		}
		if err = errors.Join(err, c.ctx.Err()); err != nil {
			return err
		}
	}
}

// holdsStore says whether there is a store in dir. One whose first opening
// did not come to its end holds nothing, and counts as none.
func holdsStore(fsys vfs.FS, dir string) error {
	st, err := fsys.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", ErrNoStore, err)
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%w: it is a file", ErrNoStore)
	}
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	state := fsys.PathJoin(dir, "state")
	if st, err := fsys.Stat(state); err == nil && st.IsDir() {
		if db, err := pebble.Peek(state, fsys); err != nil || db.Exists {
			return nil
		}
	}
	if slices.Contains(names, "journal") {
		segments, err := fsys.List(fsys.PathJoin(dir, "journal"))
		if err != nil {
			return err
		}
		names = append(names, segments...)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".seg") || strings.HasSuffix(name, ".chunk") {
			return nil
		}
	}
	return ErrNoStore
}

// Exists says whether a directory of the operating system holds a store: nil,
// [ErrNoStore], or why that cannot be said.
func Exists(dir string) error {
	if err := holdsStore(vfs.Default, dir); err != nil {
		return fmt.Errorf("store %s: %w", dir, err)
	}
	return nil
}

// lockStore makes sure that there is a store in dir that nobody has open, and
// keeps others out until the lock is closed.
func lockStore(fsys vfs.FS, dir string) (io.Closer, error) {
	if err := holdsStore(fsys, dir); err != nil {
		return nil, err
	}
	name := fsys.PathJoin(dir, "LOCK")
	if st, err := fsys.Stat(name); err == nil && st.IsDir() {
		return nil, fmt.Errorf("%w: a copy to it did not come to its end", ErrNoStore)
	}
	lock, err := fsys.Lock(name)
	var opening *fs.PathError
	switch {
	case err == nil:
		return lock, nil
	case errors.Is(err, syscall.EROFS):
		return io.NopCloser(nil), nil // nobody can have it open
	case errors.As(err, &opening) && !errors.Is(err, syscall.EAGAIN):
		return nil, err // the lock file cannot be used at all
	}
	return nil, fmt.Errorf("%w: %w", store.ErrLocked, err)
}

// still is a file system on which nothing can be changed.
type still struct{ vfs.FS }

var errStill = fmt.Errorf("opened for reading: %w", fs.ErrPermission)

// Create implements vfs.FS, as do the other methods that fail.
func (still) Create(string, vfs.DiskWriteCategory) (vfs.File, error) { return nil, errStill }

// Link fails.
func (still) Link(string, string) error { return errStill }

// OpenReadWrite fails.
func (still) OpenReadWrite(string, vfs.DiskWriteCategory, ...vfs.OpenOption) (vfs.File, error) {
	return nil, errStill
}

// Remove fails.
func (still) Remove(string) error { return errStill }

// RemoveAll fails.
func (still) RemoveAll(string) error { return errStill }

// Rename fails.
func (still) Rename(string, string) error { return errStill }

// ReuseForWrite fails.
func (still) ReuseForWrite(string, string, vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, errStill
}

// MkdirAll fails.
func (still) MkdirAll(string, os.FileMode) error { return errStill }

// Lock takes a lock that exists. One that does not was never taken, and making
// it would be a change: then there is nothing to hold.
func (s still) Lock(name string) (io.Closer, error) {
	if _, err := s.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	return s.FS.Lock(name)
}

// Unwrap gives the file system below.
func (s still) Unwrap() vfs.FS { return s.FS }

type progressKey struct{}

// WithProgress has [Check], [Dump] and [Restore] tell fn from time to time,
// in the caller's goroutine, how many of how many bytes they have been
// through.
func WithProgress(ctx context.Context, fn func(done, total int64)) context.Context {
	return context.WithValue(ctx, progressKey{}, fn)
}

// progress counts bytes and tells whoever wants to know, at most once in a
// MiB.
type progress struct {
	fn                func(done, total int64)
	done, total, told int64
}

func progressOf(ctx context.Context) progress {
	fn, _ := ctx.Value(progressKey{}).(func(done, total int64))
	return progress{fn: fn}
}

func (p *progress) add(n int64) {
	p.done += n
	if p.fn != nil && p.done-p.told >= 1<<20 {
		p.told = p.done
		p.fn(min(p.done, p.total), p.total)
	}
}

// step counts bytes that were read, and says whether to go on.
func (r *reader) step(n int64) error {
	r.progress.add(n)
	return r.ctx.Err()
}
