package crashfs

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Flip changes the bits of one byte of a file that mask has, durably. It works
// on every vfs.FS.
func Flip(fs vfs.FS, name string, offset int64, mask byte) (err error) {
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var b [1]byte
	if _, err := f.ReadAt(b[:], offset); err != nil {
		return fmt.Errorf("flip a byte of %s at %d: %w", name, offset, err)
	}
	b[0] ^= mask
	if _, err := f.WriteAt(b[:], offset); err != nil {
		return err
	}
	return f.Sync()
}

// Files lists all files below a directory by their whole names, sorted.
func Files(fs vfs.FS, dir string) ([]string, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	var all []string
	found := make(map[string]bool, len(names))
	for _, name := range names {
		found[name] = true
	}
	for _, name := range sorted(found) {
		name = fs.PathJoin(dir, name)
		info, err := fs.Stat(name)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			all = append(all, name)
			continue
		}
		below, err := Files(fs, name)
		if err != nil {
			return nil, err
		}
		all = append(all, below...)
	}
	return all, nil
}

// Paths lists all files of the disk, sorted.
func (fs *FS) Paths() []string {
	all, err := Files(fs, "/")
	if err != nil {
		return nil // a directory went away while it was listed
	}
	return all
}

// Size gives the length of a file, 0 if there is none.
func (fs *FS) Size(name string) int64 {
	info, err := fs.Stat(name)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Flip changes the bits of one byte of a file that mask has, durably.
func (fs *FS) Flip(name string, offset int64, mask byte) error {
	return Flip(fs, name, offset, mask)
}
