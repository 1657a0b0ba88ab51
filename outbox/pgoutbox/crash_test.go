//go:build unix

package pgoutbox_test

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean/internal/pgtest"
	"promethean/outbox"
	"promethean/outbox/pgoutbox"
)

// The server crashes again and again, and forgets claims and marks that it had not
// written yet, while rows are added and drained: the log has every row that was
// committed once, and in order.
func TestCrashServer(t *testing.T) {
	server := pgtest.Start(t)
	crashes, most := 3, 1500
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		crashes, most = 15, 7500
	}
	box, err := pgoutbox.Open(t.Context(), server.URI(), pgoutbox.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = box.Close() })
	if err := box.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	hub := openHub(t)
	for range 2 {
		drain(t, box, outbox.ToBus(hub.Publish), outbox.Options{Every: 5 * time.Millisecond, Lease: time.Second})
	}
	pool, err := pgxpool.New(t.Context(), server.URI())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE orders (n int PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var adder sync.WaitGroup
	var added atomic.Int64
	adder.Go(func() {
		// One key, and the numbers of the orders that are there: what the server
		// says of a commit is not always known.
		for ctx.Err() == nil && added.Load() < int64(most) {
			_ = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				var n int
				if err := tx.QueryRow(ctx, `INSERT INTO orders SELECT count(*) FROM orders RETURNING n`).Scan(&n); err != nil {
					return err
				}
				added.Store(int64(n + 1))
				return box.Add(ctx, tx, numbered("crash", "k", n))
			})
		}
	})
	for i := range crashes {
		until(t, func() bool { return added.Load() >= int64((i+1)*most/(crashes+1)) })
		server.Stop(t)
		server.Restart(t)
	}
	adder.Wait()
	var committed int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM orders`).Scan(&committed); err != nil {
		t.Fatal(err)
	}
	wantLog(t, hub, "crash", committed)
	until(t, func() bool { st, err := box.Stats(t.Context()); return err == nil && st == outbox.Stats{} })
	wantLog(t, hub, "crash", committed)
	t.Logf("%d rows over %d crashes", committed, crashes)
}
