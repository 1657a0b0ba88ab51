package docstore

import (
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"promethean/store"
)

// session is a look at the database as of one moment, which may last as long as
// whoever reads likes. Close ends it between two steps.
type session struct {
	s     *Store
	mu    sync.Mutex
	snap  *pebble.Snapshot
	its   []*pebble.Iterator
	ended bool
}

// newSession begins one. life must be held for reading.
func (s *Store) newSession() *session {
	x := &session{s: s, snap: s.db.NewSnapshot()}
	s.sessionsMu.Lock()
	defer s.sessionsMu.Unlock()
	s.sessions[x] = struct{}{}
	return x
}

// iter makes an iterator that ends with the session. mu must be held, or
// nobody else know the session.
func (x *session) iter(o *pebble.IterOptions) (*pebble.Iterator, error) {
	it, err := x.snap.NewIter(o)
	if err == nil {
		x.its = append(x.its, it)
	}
	return it, err
}

// step runs fn, unless the session has ended.
func (x *session) step(fn func() error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return store.ErrClosed
	}
	return fn()
}

// end closes what the session has open.
func (x *session) end() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return nil
	}
	x.ended = true
	var errs []error
	for _, it := range x.its {
		errs = append(errs, it.Close())
	}
	errs = append(errs, x.snap.Close())
	x.s.sessionsMu.Lock()
	defer x.s.sessionsMu.Unlock()
	delete(x.s.sessions, x)
	return errors.Join(errs...)
}

// endSessions ends all of them. No new ones may begin.
func (s *Store) endSessions() {
	s.sessionsMu.Lock()
	list := make([]*session, 0, len(s.sessions))
	for x := range s.sessions {
		list = append(list, x)
	}
	s.sessionsMu.Unlock()
	for _, x := range list {
		_ = x.end() // whoever reads meets the error in a step
	}
}
