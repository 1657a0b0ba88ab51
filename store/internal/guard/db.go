package guard

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// DB is a Pebble database. Reads may call it as it is; whatever writes goes
// through Call.
type DB struct {
	*pebble.DB
	guard *guard
}

// Open opens the database in dir on fs with the options, of which it sets FS
// and Logger. tell is called once, when the disk fails first, also before Open
// has returned. The directory is not locked.
func Open(fs vfs.FS, dir string, opts *pebble.Options, log *slog.Logger, tell func(error)) (*DB, error) {
	db := &DB{guard: newGuard(fs, dir, tell)}
	opts.FS, opts.Logger = db.guard, logger{db.guard, log}
	opened := make(chan *pebble.DB, 1)
	err := db.Call(func() error {
		p, err := pebble.Open(dir, opts)
		opened <- p
		return err
	})
	if err != nil {
		return nil, err
	}
	db.DB = <-opened
	return db, nil
}

// OpenReadOnly opens the database in dir to read what is there. rotten is told
// of files that turn out to be damaged. The directory is not locked.
func OpenReadOnly(fs vfs.FS, dir string, opts *pebble.Options, rotten func(path string)) (db *DB, err error) {
	defer Caught(&err)
	opts.FS, opts.Logger, opts.ReadOnly = unlocked{fs}, deaf{}, true
	// Pebble's own listener ends the process. It may call from a goroutine of
	// its own; the error comes to whoever reads as well.
	opts.EventListener = &pebble.EventListener{DataCorruption: func(i pebble.DataCorruptionInfo) { rotten(i.Path) }}
	p, err := pebble.Open(dir, opts)
	if err != nil {
		return nil, err
	}
	return &DB{DB: p, guard: newGuard(fs, dir, func(error) {})}, nil
}

// unlocked is a file system on which nobody takes a lock: the engine has its
// own.
type unlocked struct{ vfs.FS }

func (unlocked) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func (u unlocked) Unwrap() vfs.FS { return u.FS }

// Call runs something of Pebble's, and gives up if the disk fails meanwhile: it
// may have been done then, or be done never.
func (db *DB) Call(fn func() error) error {
	done := make(chan error, 1)
	go guarded(fn, done)
	select {
	case err := <-done:
		return err
	case <-db.guard.broken:
		return db.guard.cause
	}
}

// Commit writes b, durably where sync is set. After an error it may be on the
// disk or not.
func (db *DB) Commit(b *pebble.Batch, sync bool) error {
	return db.Call(func() error { return b.Commit(&pebble.WriteOptions{Sync: sync}) })
}

// Close closes the database, unless it is broken: then that may never end.
func (db *DB) Close() error {
	select {
	case <-db.guard.broken:
		return nil
	default:
		return db.Call(db.DB.Close)
	}
}

// guarded is where calls into Pebble begin; see onOurStack.
func guarded(fn func() error, done chan<- error) {
	var err error
	defer func() { done <- err }()
	defer Caught(&err)
	err = fn()
}

// logger passes Pebble's complaints on.
type logger struct {
	g   *guard
	log *slog.Logger
}

// fatal is a call of Fatalf on its way to where it is caught.
type fatal struct{ err error }

func (l logger) Infof(string, ...any) {}

func (l logger) Errorf(format string, args ...any) {
	l.log.Warn("pebble", "msg", fmt.Sprintf(format, args...))
}

// Fatalf must not return. In a call of ours it is a panic that the call
// catches; in a goroutine of Pebble's it ends only that.
func (l logger) Fatalf(format string, args ...any) {
	err := fmt.Errorf(strings.ReplaceAll(format, "%w", "%v"), args...)
	l.g.fail(err)
	if cause := l.g.cause; cause != nil {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	if onOurStack() {
		panic(fatal{err})
	}
	select {}
}

// deaf hears nothing: what Pebble meets while it reads comes back as an error.
// Fatalf must not return; OpenReadOnly catches it.
type deaf struct{}

func (deaf) Infof(string, ...any)  {}
func (deaf) Errorf(string, ...any) {}

func (deaf) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }

// onOurStack says whether this goroutine is inside guarded.
func onOurStack() bool {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "store/internal/guard.guarded") {
			return true
		}
		if !more {
			return false
		}
	}
}

// Caught turns a panic of Pebble's into an error: it panics when the disk fails
// in some places. It is to be deferred.
func Caught(err *error) {
	switch p := recover().(type) {
	case nil:
	case fatal:
		*err = p.err
	case error:
		*err = p
	default:
		panic(p)
	}
}
