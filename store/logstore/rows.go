package logstore

import (
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"promethean/store/internal/guard"
)

// rows is the manifest's database, which shows only what is durable.
//
// Pebble shows a batch before it has synced it. If the sync fails it shows the
// batch all the same, at once or some time after the failure was told: whoever
// applies it to memory and whoever syncs it are two goroutines that do not wait
// for each other. A reader would see events go that come back after a restart,
// and two reads of a store that has failed would differ. So while a batch is
// written, and for good after one has failed, rows are read as they were before.
type rows struct {
	*guard.DB

	mu     sync.RWMutex
	before *pebble.Snapshot // nil while everything that Pebble shows is durable

	failed error // of Commit, whose caller it belongs to
}

func (r *rows) reader() pebble.Reader {
	if r.before != nil {
		return r.before
	}
	return r.DB
}

// Get gives the durable value of a key, until the closer is closed.
func (r *rows) Get(key []byte) ([]byte, io.Closer, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.reader().Get(key)
}

// NewIter iterates over what is durable now. It may outlive the snapshot that
// it is made of.
func (r *rows) NewIter(o *pebble.IterOptions) (*pebble.Iterator, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.reader().NewIter(o)
}

// Commit writes b durably, and then shows it. After an error b may be on the
// disk or not, is not shown before the database is opened again, and all later
// calls fail with that error. One call at a time may run.
func (r *rows) Commit(b *pebble.Batch) error {
	if r.failed != nil {
		return r.failed
	}
	r.failed = r.Call(func() error {
		// The call may have been given up by now, and the snapshot comes late:
		// but not later than b.
		s := r.NewSnapshot()
		r.mu.Lock()
		r.before = s
		r.mu.Unlock()
		return b.Commit(pebble.Sync)
	})
	if r.failed != nil {
		return r.failed
	}
	r.thaw()
	return nil
}

// thaw ends the reading of a snapshot.
func (r *rows) thaw() {
	r.mu.Lock()
	s := r.before
	r.before = nil
	r.mu.Unlock()
	if s != nil {
		_ = r.Call(s.Close) // fails only if the disk does: whoever writes next is told
	}
}

// Close closes the database.
func (r *rows) Close() error {
	r.thaw()
	return r.DB.Close()
}
