package pgoutbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean"
	"promethean/outbox"
	"promethean/outbox/pgoutbox"
)

// An order and its event are written in one transaction of pgx, and a drainer
// publishes the event.
func Example() {
	shop := func(ctx context.Context, pool *pgxpool.Pool, hub *promethean.Hub) error {
		box, err := pgoutbox.New(pool, pgoutbox.Options{Table: "shop.outbox"})
		if err != nil {
			return err
		}
		if err := box.Setup(ctx); err != nil {
			return err
		}
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO shop.orders (id, total) VALUES ($1, $2)`, "order-7", 5); err != nil {
				return err
			}
			return box.Add(ctx, tx, outbox.Row{Topic: "orders.placed", Key: "order-7", Payload: json.RawMessage(`{"total":5}`)})
		})
		if err != nil {
			return err
		}
		d, err := outbox.New(box, outbox.ToBus(hub.Publish), outbox.Options{Name: "shop"})
		if err != nil {
			return err
		}
		return d.Run(ctx) // until the context ends
	}
	_ = shop
}

// A service with database/sql adds rows in its own transactions, and needs no pool
// of pgx if the hub drains.
func ExampleOutbox_AddSQL() {
	box, err := pgoutbox.New(nil, pgoutbox.Options{})
	if err != nil {
		panic(err)
	}
	place := func(ctx context.Context, db *sql.DB) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, total) VALUES ($1, $2)`, "order-7", 5); err != nil {
			return err
		}
		if err := box.AddSQL(ctx, tx, outbox.Row{Topic: "orders.placed", Key: "order-7", Payload: json.RawMessage(`{"total":5}`)}); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = place
}

// The SQL for migrations.
func ExampleSchema() {
	text, err := pgoutbox.Schema("shop.outbox")
	if err != nil {
		panic(err)
	}
	fmt.Println(strings.SplitN(text, "\n", 2)[0])
	// Output: CREATE TABLE IF NOT EXISTS "shop"."outbox" (
}
