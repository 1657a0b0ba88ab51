package pgoutbox_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver of database/sql
	"go.uber.org/goleak"

	"promethean/event"
	"promethean/internal/rapidtest"
	"promethean/outbox"
	"promethean/outbox/outboxtest"
	"promethean/outbox/pgoutbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serverURI is the address of the server of "make test-all".
func serverURI(t testing.TB) string {
	t.Helper()
	uri := os.Getenv("PROMETHEAN_TEST_POSTGRES_URI")
	if uri == "" {
		t.Skip("needs postgresql: PROMETHEAN_TEST_POSTGRES_URI is not set")
	}
	return uri
}

// bench is an outbox in a schema of its own.
type bench struct {
	*pgoutbox.Outbox
	pool  *pgxpool.Pool
	table string
	uri   string
}

func open(t testing.TB, o pgoutbox.Options, tune ...func(*pgxpool.Config)) *bench {
	t.Helper()
	b := &bench{uri: serverURI(t)}
	schema := "t_" + strings.ToLower(rand.Text()[:12])
	b.table = schema + ".outbox"
	b.pool = b.connect(t, tune...)
	b.exec(t, "CREATE SCHEMA "+schema)
	t.Cleanup(func() { // before the pool is closed
		_, _ = b.pool.Exec(context.Background(), "DROP SCHEMA "+schema+" CASCADE")
	})
	b.Outbox = b.again(t, b.pool, o)
	if err := b.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) connect(t testing.TB, tune ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(b.uri)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 20
	for _, f := range tune {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func (b *bench) again(t testing.TB, pool *pgxpool.Pool, o pgoutbox.Options) *pgoutbox.Outbox {
	t.Helper()
	o.Table = b.table
	s, err := pgoutbox.New(pool, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (b *bench) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := b.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (b *bench) harness(begin func(context.Context) (outboxtest.Tx, error)) outboxtest.Harness {
	return outboxtest.Harness{
		Store: b.Outbox,
		Again: func(t testing.TB) outbox.Store { return b.again(t, b.pool, pgoutbox.Options{}) },
		Begin: begin,
		Advance: func(t testing.TB, d time.Duration) {
			b.exec(t, `UPDATE `+b.table+` SET added = added - $1::bigint * interval '1 microsecond', since = since - $1::bigint * interval '1 microsecond',
				until = until - $1::bigint * interval '1 microsecond', error_at = error_at - $1::bigint * interval '1 microsecond'`, d.Microseconds())
		},
		Raw: func(t testing.TB, id event.ID, topic, key, payload string) {
			b.exec(t, `INSERT INTO `+b.table+` (id, topic, key, payload) VALUES ($1, $2, $3, $4)`, id.String(), topic, key, payload)
		},
	}
}

type pgxTx struct {
	pgx.Tx
	store *pgoutbox.Outbox
}

func (tx pgxTx) Add(ctx context.Context, rows ...outbox.Row) error {
	return tx.store.Add(ctx, tx.Tx, rows...)
}

type sqlTx struct {
	*sql.Tx
	store *pgoutbox.Outbox
}

func (tx sqlTx) Add(ctx context.Context, rows ...outbox.Row) error {
	return tx.store.AddSQL(ctx, tx.Tx, rows...)
}
func (tx sqlTx) Commit(context.Context) error   { return tx.Tx.Commit() }
func (tx sqlTx) Rollback(context.Context) error { return tx.Tx.Rollback() }

func (b *bench) begin(ctx context.Context) (outboxtest.Tx, error) {
	tx, err := b.pool.Begin(ctx)
	return pgxTx{tx, b.Outbox}, err
}

func TestConformance(t *testing.T) {
	t.Run("pgx", func(t *testing.T) {
		outboxtest.Run(t, func(t testing.TB) outboxtest.Harness {
			b := open(t, pgoutbox.Options{})
			return b.harness(b.begin)
		})
	})
	t.Run("database/sql", func(t *testing.T) {
		outboxtest.Run(t, func(t testing.TB) outboxtest.Harness {
			b := open(t, pgoutbox.Options{})
			db, err := sql.Open("pgx", b.uri)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			return b.harness(func(ctx context.Context) (outboxtest.Tx, error) {
				tx, err := db.BeginTx(ctx, nil)
				return sqlTx{tx, b.Outbox}, err
			})
		})
	})
	// A pooler in between may allow nothing but the simple protocol, and a
	// database may begin its transactions at another level.
	t.Run("simple protocol, serializable", func(t *testing.T) {
		outboxtest.Run(t, func(t testing.TB) outboxtest.Harness {
			b := open(t, pgoutbox.Options{}, func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
			})
			return b.harness(b.begin)
		})
	})
}

// TestModel draws fewer sequences than rapid would: each step asks a server.
func TestModel(t *testing.T) {
	serverURI(t)
	rapidtest.Checks(t, 20)
	outboxtest.Model(t, func(t testing.TB) outboxtest.Harness {
		b := open(t, pgoutbox.Options{})
		return b.harness(b.begin)
	})
}
