package sqliteoutbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"

	"promethean"
	"promethean/event"
	"promethean/outbox"
	"promethean/outbox/sqliteoutbox"
)

// A service writes an order and its event in one transaction. A drainer in the
// same process publishes it; the one that was rolled back is never published.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()

	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "orders.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	box, err := sqliteoutbox.New(db, sqliteoutbox.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.Setup(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY, total INTEGER)`); err != nil {
		log.Fatal(err)
	}

	place := func(id string, total int, sure bool) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // nothing, once it is committed
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?)`, id, total); err != nil {
			return err
		}
		row, err := outbox.NewRow("orders.placed", id, map[string]int{"total": total})
		if err != nil {
			return err
		}
		if err := box.Add(ctx, tx, row); err != nil {
			return err
		}
		if !sure {
			return nil
		}
		return tx.Commit()
	}
	for _, err := range []error{place("order-1", 5, true), place("order-2", 7, false), place("order-3", 9, true)} {
		if err != nil {
			log.Fatal(err)
		}
	}

	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	got := make(chan string)
	sub, err := hub.Subscribe(ctx, "orders.placed", "printer", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
		got <- fmt.Sprintf("%s %s", e.Key, e.Payload)
		return nil
	}, promethean.FromEarliest())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = sub.Stop(ctx) }()

	drainer, err := outbox.New(box, outbox.ToBus(hub.Publish), outbox.Options{Name: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = drainer.Run(ctx) })
	fmt.Println(<-got)
	fmt.Println(<-got)
	_ = drainer.Close()
	running.Wait()
	// Unordered output:
	// order-1 {"total":5}
	// order-3 {"total":9}
}
