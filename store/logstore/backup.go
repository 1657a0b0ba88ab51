package logstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store"
)

// Backup implements [store.BacksUp]: links to chunks and runs, a checkpoint of
// the manifest, a copy of the journal's live segments, and documents that are
// not ahead of them. Appends go on meanwhile; only sealing waits. dir must be on
// the same file system.
func (s *Store) Backup(ctx context.Context, dir string) (err error) {
	if err := errors.Join(ctx.Err(), s.usable()); err != nil {
		return err
	}
	if _, err := s.fs.Stat(dir); err == nil {
		return fmt.Errorf("backup to %s: %w", dir, fs.ErrExist)
	}
	s.life.RLock()
	defer s.life.RUnlock()
	if s.gone.Load() {
		return store.ErrClosed
	}
	s.backups.Lock() // two to one directory must not meet in what is not whole
	defer s.backups.Unlock()
	// It gets its name when it is whole, so that one which was cut short is
	// never taken for a backup.
	whole := dir
	dir += ".partial"
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("backup to %s: %w", whole, err), s.fs.RemoveAll(dir))
		}
	}()
	if err := errors.Join(s.fs.RemoveAll(dir), s.fs.MkdirAll(s.fs.PathJoin(dir, "journal"), 0o755)); err != nil {
		return err
	}
	// The documents come first, so that they are never ahead of the log that
	// they are made of.
	if err := s.backupDocs(ctx, s.fs.PathJoin(dir, "views")); err != nil {
		return err
	}
	// With the manifest held nothing is sealed, merged or removed: the files
	// it names stay, and no journal segment is recycled.
	s.manifest.Lock()
	defer s.manifest.Unlock()
	err = s.db.Call(func() error {
		return s.db.Checkpoint(s.fs.PathJoin(dir, "state"), pebble.WithFlushedWAL())
	})
	if err != nil {
		return err
	}
	paths, err := s.namedFiles()
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := s.fs.Link(path, s.fs.PathJoin(dir, s.fs.PathBase(path))); err != nil {
			return err
		}
	}
	for _, sg := range s.liveSegments() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := copySegment(s.fs, sg, s.fs.PathJoin(dir, "journal", s.fs.PathBase(sg.path))); err != nil {
			return err
		}
	}
	if err := errors.Join(syncDir(s.fs, s.fs.PathJoin(dir, "journal")), syncDir(s.fs, dir)); err != nil {
		return err
	}
	if err := s.fs.Rename(dir, whole); err != nil {
		return err
	}
	return syncDir(s.fs, s.fs.PathDir(whole))
}

// liveSegment is a journal file and how much of it counts.
type liveSegment struct {
	path      string
	end, size int
}

// liveSegments lists the journal files that hold what is not sealed.
func (s *Store) liveSegments() (list []liveSegment) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, m := range s.mems {
		if !m.sealed {
			list = append(list, liveSegment{m.seg.Path(), m.end, len(m.image)})
		}
	}
	return list
}

// copySegment copies a segment up to its end and fills the rest with zeros.
// Frames beyond the end are being written: a copy of them could show a later
// one without an earlier one, which opening would take for damage.
func copySegment(fsys vfs.FS, sg liveSegment, to string) (err error) {
	in, err := fsys.Open(sg.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := fsys.Create(to, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buf := make([]byte, 1<<20)
	for off := 0; off < sg.size; off += len(buf) {
		buf = buf[:min(len(buf), sg.size-off)]
		clear(buf)
		if n := min(len(buf), sg.end-off); n > 0 {
			if _, err := io.ReadFull(io.NewSectionReader(in, int64(off), int64(n)), buf[:n]); err != nil {
				return fmt.Errorf("read %s: %w", sg.path, err)
			}
		}
		if _, err := out.Write(buf); err != nil {
			return err
		}
	}
	return out.Sync()
}
