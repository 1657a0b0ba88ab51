package sqliteoutbox_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"promethean/event"
	"promethean/internal/rapidtest"
	"promethean/outbox"
	"promethean/outbox/outboxtest"
	"promethean/outbox/sqliteoutbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openDB opens a database as a service would.
func openDB(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

type tx struct {
	*sql.Tx
	box *sqliteoutbox.Outbox
}

func (x tx) Add(ctx context.Context, rows ...outbox.Row) error { return x.box.Add(ctx, x.Tx, rows...) }
func (x tx) Commit(context.Context) error                      { return x.Tx.Commit() }
func (x tx) Rollback(context.Context) error                    { return x.Tx.Rollback() }

func newBox(t testing.TB, db *sql.DB) *sqliteoutbox.Outbox {
	t.Helper()
	box, err := sqliteoutbox.New(db, sqliteoutbox.Options{Look: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return box
}

func exec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func harness(t testing.TB) outboxtest.Harness {
	path := filepath.Join(t.TempDir(), "service.db")
	db := openDB(t, path)
	box := newBox(t, db)
	return outboxtest.Harness{
		Store: box,
		Again: func(t testing.TB) outbox.Store { return newBox(t, openDB(t, path)) },
		Begin: func(ctx context.Context) (outboxtest.Tx, error) {
			x, err := db.BeginTx(ctx, nil)
			return tx{x, box}, err
		},
		Advance: func(t testing.TB, d time.Duration) {
			exec(t, db, `UPDATE promethean_outbox SET since = since - ?1, until = iif(until > 0, until - ?1, 0), added = added - ?1, error_at = error_at - ?1`, d.Milliseconds())
		},
		Raw: func(t testing.TB, id event.ID, topic, key, payload string) {
			exec(t, db, `INSERT INTO promethean_outbox (id, topic, key, payload) VALUES (?, ?, ?, ?)`, id[:], topic, key, payload)
		},
	}
}

func TestConformance(t *testing.T) { outboxtest.Run(t, harness) }

// TestModel draws fewer sequences than rapid would: each has a file of its own.
func TestModel(t *testing.T) {
	rapidtest.Checks(t, 20)
	outboxtest.Model(t, harness)
}
