package sqliteoutbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Wake implements [outbox.Waker] by looking at the files of the database. One in
// memory has none, and cannot wake.
func (b *Outbox) Wake(ctx context.Context) (<-chan struct{}, error) {
	var path string
	err := b.retry(ctx, func() error {
		return b.db.QueryRowContext(ctx, `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&path)
	})
	if err != nil {
		return nil, fmt.Errorf("find the file of outbox %s: %w", b.o.Table, err)
	}
	if path == "" {
		return nil, fmt.Errorf("outbox %s is in memory: there is no file to look at", b.o.Table)
	}
	seen, err := lookAt(path)
	if err != nil {
		return nil, fmt.Errorf("look at outbox %s: %w", b.o.Table, err)
	}
	woken := make(chan struct{}, 1)
	go b.watch(ctx, path, seen, woken)
	return woken, nil
}

// watch tells of changes until the context ends or the file is gone.
func (b *Outbox) watch(ctx context.Context, path string, seen look, woken chan<- struct{}) {
	defer close(woken)
	tick := time.NewTicker(b.o.Look)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now, err := lookAt(path)
		if err != nil {
			b.o.Logger.Warn("outbox: cannot look at the database", "path", path, "error", err)
			return
		}
		if now.same(seen) {
			continue
		}
		seen = now
		select {
		case woken <- struct{}{}:
		default:
		}
	}
}

// look is what the files of a database are like at a moment.
type look struct {
	file, wal mark
	fresh     bool // one of them was just being changed
}

type mark struct {
	size int64
	at   time.Time
}

// granule is more than the steps in which file systems count time: a file that
// changed so shortly ago may change again without showing it.
const granule = 50 * time.Millisecond

func lookAt(path string) (l look, err error) {
	if l.file, err = markOf(path); err != nil {
		return l, err
	}
	if l.wal, err = markOf(path + "-wal"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	l.fresh = time.Since(l.file.at) < granule || time.Since(l.wal.at) < granule
	return l, nil
}

func markOf(path string) (mark, error) {
	info, err := os.Stat(path)
	if err != nil {
		return mark{}, err
	}
	return mark{info.Size(), info.ModTime()}, nil
}

// same says that nothing has changed since before, for sure.
func (l look) same(before look) bool {
	return !before.fresh && l.file == before.file && l.wal == before.wal
}
