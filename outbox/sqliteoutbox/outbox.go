package sqliteoutbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"promethean/event"
	"promethean/outbox"
)

// DefaultTable is the name of the table where Options names none.
const DefaultTable = "promethean_outbox"

// Options of an outbox. The zero value works.
type Options struct {
	// Table is the name of the table: letters, digits and _. Default
	// [DefaultTable].
	Table string
	// Limits are those of the hub, for rows that are added. Default: the hub's
	// own defaults, payloads of 1 MiB.
	Limits event.Limits
	// Look is how often [Outbox.Wake] looks at the file. Default 250 ms.
	Look time.Duration
	// Logger hears of what goes on in the background. Default: nobody does.
	Logger *slog.Logger
}

// Outbox is an outbox in a table. It is an [outbox.Store] and an [outbox.Waker].
type Outbox struct {
	db    *sql.DB
	o     Options
	owned bool // db is ours to close
	q     queries
}

var (
	_ outbox.Store = (*Outbox)(nil)
	_ outbox.Waker = (*Outbox)(nil)
)

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// New makes an outbox of a database that the caller has opened, and closes. Make
// its table with [Outbox.Setup] or by [Schema].
func New(db *sql.DB, o Options) (*Outbox, error) {
	if db == nil {
		return nil, errors.New("outbox: no database is given")
	}
	if o.Table == "" {
		o.Table = DefaultTable
	}
	if !tableName.MatchString(o.Table) {
		return nil, fmt.Errorf("outbox: table %q must be letters, digits and _, up to 63", o.Table)
	}
	if o.Look < 0 {
		return nil, fmt.Errorf("outbox %s: Look %s is negative", o.Table, o.Look)
	}
	if o.Look == 0 {
		o.Look = 250 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Outbox{db: db, o: o, q: queriesOn(o.Table)}, nil
}

// Open opens a database file to drain it, and makes the table if it is missing.
// The file must exist: that of a service that has not begun, or a name mistaken,
// is an error.
//
// The connections are not for the service's own data: what they commit may be
// lost with power (synchronous=NORMAL), which is harmless for what a drainer
// writes. The hub knows what was sent.
func Open(ctx context.Context, path string, o Options) (*Outbox, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open outbox %s: %w", path, err)
	}
	name := url.URL{Scheme: "file", Path: abs, RawQuery: "mode=rw&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, fmt.Errorf("open outbox %s: %w", path, err)
	}
	b, err := New(db, o)
	if err == nil {
		b.owned = true
		err = b.Setup(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open outbox %s: %w", path, err), db.Close())
	}
	return b, nil
}

// Close closes what [Open] opened. It leaves a database that was given to [New]
// as it is.
func (b *Outbox) Close() error {
	if !b.owned {
		return nil
	}
	if err := b.db.Close(); err != nil {
		return fmt.Errorf("close outbox: %w", err)
	}
	return nil
}

// Execer is what rows are added through: a *[sql.Tx], or a *[sql.Conn] on which
// a transaction was begun.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

const (
	addColumns = 6
	addChunk   = 100 // rows in one statement
)

// Add adds rows in the caller's transaction. A row that breaks the rules of
// events, or whose id is there already, is refused, and nothing is added; a row
// that breaks a rule leaves the transaction as it was.
func (b *Outbox) Add(ctx context.Context, tx Execer, rows ...outbox.Row) error {
	checked, err := outbox.CheckRows(rows, b.o.Limits)
	if err != nil {
		return fmt.Errorf("add to outbox: %w", err)
	}
	args := make([]any, 0, addColumns*min(len(checked), addChunk))
	for at := 0; at < len(checked); at += addChunk {
		part := checked[at:min(at+addChunk, len(checked))]
		args = args[:0]
		for i := range part {
			r := &part[i]
			meta, err := r.Meta()
			if err != nil {
				return fmt.Errorf("add to outbox: %w", &outbox.RowError{Index: at + i, Err: err})
			}
			var metaText any
			if meta != nil {
				metaText = string(meta)
			}
			args = append(args, r.ID[:], r.TS, r.Topic, r.Key, string(r.Payload), metaText)
		}
		query := b.q.add + strings.Repeat(", (?,?,?,?,?,?)", len(part)-1)
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return fmt.Errorf("add to outbox: %w", err)
		}
	}
	return nil
}
