package logstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"promethean/store"
	"promethean/store/docstore"
)

// documents are the store's, opened when they are first asked for. They are a
// database of their own in a directory of their own, so that what happens to
// them does not stop the log: they can be made anew from it.
type documents struct {
	mu     sync.Mutex
	db     *docstore.Store
	closed bool
}

func (s *Store) docsDir() string { return s.fs.PathJoin(s.dir, "views") }

// Docs implements [store.HasDocs].
func (s *Store) Docs(ctx context.Context) (store.Docs, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d, err := s.openDocs()
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (s *Store) openDocs() (*docstore.Store, error) {
	s.docs.mu.Lock()
	defer s.docs.mu.Unlock()
	if s.docs.closed {
		return nil, store.ErrClosed
	}
	if s.docs.db != nil {
		return s.docs.db, nil
	}
	d, err := docstore.Open(s.docsDir(), docstore.Options{FS: s.fs, Logger: s.o.Logger})
	if err == nil {
		s.docs.db = d
	}
	return d, err
}

func (s *Store) closeDocs() error {
	s.docs.mu.Lock()
	defer s.docs.mu.Unlock()
	s.docs.closed = true
	if s.docs.db == nil {
		return nil
	}
	return s.docs.db.Close()
}

// backupDocs copies the documents, if there are any, to dir. Documents that
// cannot be used are left out: they can be made anew, and what is wrong with
// them must not keep the log from being saved.
func (s *Store) backupDocs(ctx context.Context, dir string) error {
	if _, err := s.fs.Stat(s.docsDir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	d, err := s.openDocs()
	if err == nil {
		if err = d.Checkpoint(ctx, dir); err == nil {
			return nil
		}
		if d.Err() == nil {
			return fmt.Errorf("documents: %w", err)
		}
	}
	if errors.Is(err, store.ErrClosed) {
		return err
	}
	s.o.Logger.Warn("the backup has no documents", "dir", s.dir, "cause", err)
	return s.fs.RemoveAll(dir)
}

// documents checks the documents, if there are any.
func (c *checker) documents() error {
	dir := c.docsDir()
	if _, err := c.fs.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	sum, err := docstore.Check(c.ctx, dir, docstore.Options{FS: c.fs}, func(what string) {
		c.problem(dir, -1, "%s", what)
	})
	c.sum.Views, c.sum.Documents = sum.Readers, sum.Documents
	return err
}
