package pgoutbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean/event"
	"promethean/outbox"
)

// Options are the settings of a [Outbox]. The zero value works.
type Options struct {
	// Table is where rows are, as table or schema.table. Default
	// [DefaultTable].
	Table string
	// Limits are those of Add. Default: those of events.
	Limits event.Limits
	// Unlocked has Add take no lock of its keys; see the package comment on
	// order. Default false: the order of a key is that of commits.
	Unlocked bool
	// Quiet has Add notify nobody, so that drainers find rows by looking.
	// Transactions that notify are committed one after the other by PostgreSQL,
	// and cannot be prepared for a two-phase commit. Default false.
	Quiet bool
	// Listen is how Wake connects, where the pool's way will not do, as with a
	// pooler in between that shares connections. Default: as the pool does.
	Listen *pgx.ConnConfig
	// Logger hears of listening that was interrupted. Default: slog.Default().
	Logger *slog.Logger
}

// Outbox is an outbox in a table. It is an [outbox.Store] and an [outbox.Waker].
// Its methods may be called by several goroutines at a time.
type Outbox struct {
	pool  *pgxpool.Pool
	owned bool // by Open
	o     Options
	table table
	sql   statements

	// silence is how long nothing may be heard before the connection of Wake is
	// tried: one whose other end is gone without a word looks like an idle one.
	// patience is how long a try may take.
	silence, patience time.Duration

	mu   sync.Mutex
	scan scan
}

var (
	_ outbox.Store = (*Outbox)(nil)
	_ outbox.Waker = (*Outbox)(nil)
)

var errNoPool = errors.New("the outbox was made without a pool and can only add")

// New makes a store over a pool, which stays the caller's. In a service that
// only adds rows the pool may be nil; methods that need it then fail.
func New(pool *pgxpool.Pool, o Options) (*Outbox, error) {
	t, err := parseTable(o.Table)
	if err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Outbox{pool: pool, o: o, table: t, sql: newStatements(t), silence: defaultSilence, patience: defaultPatience}, nil
}

// Open makes a store with a pool of its own, which Close closes. It connects when
// it is used first, so that a server that is away is no error yet.
func Open(ctx context.Context, uri string, o Options) (*Outbox, error) {
	config, err := pgxpool.ParseConfig(uri)
	if err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	s, err := New(pool, o)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// Close closes the pool of a store that was made by Open, when its connections
// are no longer in use. It does nothing to another one.
func (s *Outbox) Close() error {
	if s.owned {
		s.pool.Close()
	}
	return nil
}

// withTx runs f in a transaction.
func (s *Outbox) withTx(ctx context.Context, f func(pgx.Tx) error) error {
	if s.pool == nil {
		return errNoPool
	}
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, inOrder); err != nil {
			return err
		}
		return f(tx)
	})
}

// withConn runs f on a connection. If it fails with a transaction open, the pool
// throws the connection away.
func (s *Outbox) withConn(ctx context.Context, f func(*pgxpool.Conn) error) error {
	if s.pool == nil {
		return errNoPool
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return f(conn)
}

// change runs statements in a transaction, sent all at once, and says how many rows
// the first one changed. It begins with settings.
func (s *Outbox) change(ctx context.Context, what, settings string, statements ...statement) (n int, err error) {
	err = s.withConn(ctx, func(conn *pgxpool.Conn) (err error) {
		all := &pgx.Batch{}
		all.Queue(begin)
		all.Queue(settings)
		first := all.Len()
		for _, st := range statements {
			all.Queue(st.sql, st.args...)
		}
		all.Queue(`COMMIT`)
		results := conn.SendBatch(ctx, all)
		defer func() {
			if bad := results.Close(); err == nil {
				err = bad
			}
		}()
		for i := range all.Len() {
			tag, err := results.Exec()
			if err != nil {
				return err
			}
			if i == first {
				n = int(tag.RowsAffected())
			}
		}
		return nil
	})
	if err != nil {
		return 0, s.wrap(what, err)
	}
	return n, nil
}

// wrap says what was tried, if there is an error.
func (s *Outbox) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of outbox %s: %w", what, s.table, err)
}

type statement struct {
	sql  string
	args []any
}

func run(sql string, args ...any) statement { return statement{sql, args} }

// told adds to what makes rows due that drainers are told.
func (s *Outbox) told(st statement) []statement {
	if s.o.Quiet {
		return []statement{st}
	}
	return []statement{st, run(s.sql.notify)}
}

// array writes an array as PostgreSQL reads it. Texts are used rather than lists
// since every driver can send them.
func array[T any](list []T, text func(T) string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		for t := text(v); t != ""; {
			at := strings.IndexAny(t, `"\`)
			if at < 0 {
				b.WriteString(t)
				break
			}
			b.WriteString(t[:at])
			b.WriteByte('\\')
			b.WriteByte(t[at])
			t = t[at+1:]
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

func idArray(ids []event.ID) string { return array(ids, event.ID.String) }

func micros(d time.Duration) int64 { return d.Microseconds() }
