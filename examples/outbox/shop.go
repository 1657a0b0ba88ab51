package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"promethean/event"
	"promethean/outbox"
	"promethean/outbox/pgoutbox"
	"promethean/outbox/sqliteoutbox"
)

// topic is where orders are published; the key is the customer.
const topic = "orders.placed"

// Order is a row of the shop's table, and the payload of its event.
type Order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	// N counts the orders of the customer.
	N     int64 `json:"n"`
	Cents int64 `json:"cents"`
}

// tables are the shop's own.
const tables = `
CREATE TABLE IF NOT EXISTS customers (name text PRIMARY KEY, orders bigint NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, customer text NOT NULL, n bigint NOT NULL, cents bigint NOT NULL);
`

// shop is its database.
type shop struct {
	db     *sql.DB
	outbox outbox.Store
	add    func(ctx context.Context, tx *sql.Tx, rows ...outbox.Row) error
	closer func()
}

// open opens the database that a name leads to, and makes what is missing in it.
func open(ctx context.Context, name string) (*shop, error) {
	var (
		s   *shop
		err error
	)
	switch file, sqlite := strings.CutPrefix(name, "sqlite:"); {
	case sqlite && file != "":
		s, err = openSQLite(file)
	case strings.HasPrefix(name, "postgres://"), strings.HasPrefix(name, "postgresql://"):
		s, err = openPostgres(ctx, name)
	default:
		err = fmt.Errorf("-db %q: must be sqlite:FILE or postgres://…", name)
	}
	if err != nil {
		return nil, err
	}
	if err := s.setup(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func openSQLite(file string) (*shop, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	// Orders wait for each other, and not for the disk: what is committed is safe
	// from a crash of the shop, and the last ones not from one of the machine.
	address := url.URL{Scheme: "file", Path: file, RawQuery: "_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate"}
	db, err := sql.Open("sqlite", address.String())
	if err != nil {
		return nil, err
	}
	box, err := sqliteoutbox.New(db, sqliteoutbox.Options{})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &shop{db: db, outbox: box, closer: func() {}, add: func(ctx context.Context, tx *sql.Tx, rows ...outbox.Row) error {
		return box.Add(ctx, tx, rows...)
	}}, nil
}

func openPostgres(ctx context.Context, uri string) (*shop, error) {
	pool, err := pgxpool.New(ctx, uri)
	if err != nil {
		return nil, err
	}
	box, err := pgoutbox.New(pool, pgoutbox.Options{})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &shop{db: stdlib.OpenDBFromPool(pool), outbox: box, closer: pool.Close, add: func(ctx context.Context, tx *sql.Tx, rows ...outbox.Row) error {
		return box.AddSQL(ctx, tx, rows...)
	}}, nil
}

func (s *shop) close() error {
	err := s.db.Close()
	s.closer()
	return err
}

// setup makes tables. Two processes that do so at a time may disturb each other,
// so it tries again.
func (s *shop) setup(ctx context.Context) (err error) {
	for range 5 {
		if _, err = s.db.ExecContext(ctx, tables); err == nil {
			return s.outbox.Setup(ctx)
		}
	}
	return fmt.Errorf("make tables: %w", err)
}

// count says how many orders there are.
func (s *shop) count(ctx context.Context) (n int, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT count(*) FROM orders`).Scan(&n)
	return n, err
}

// errRefused takes an order back.
var errRefused = errors.New("the customer's bank says no")

// place places an order in one transaction: it is counted, kept and told of, or
// none of that.
func (s *shop) place(ctx context.Context, customer string, cents int64, refuse bool) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	o := Order{ID: event.NewID().String(), Customer: customer, Cents: cents}
	err = tx.QueryRowContext(ctx, `INSERT INTO customers (name, orders) VALUES ($1, 1)
		ON CONFLICT (name) DO UPDATE SET orders = customers.orders + 1 RETURNING orders`, o.Customer).Scan(&o.N)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, customer, n, cents) VALUES ($1, $2, $3, $4)`, o.ID, o.Customer, o.N, o.Cents); err != nil {
		return err
	}
	row, err := outbox.NewRow(topic, o.Customer, o)
	if err != nil {
		return err
	}
	if err := s.add(ctx, tx, row); err != nil {
		return err
	}
	if refuse {
		return errRefused
	}
	return tx.Commit()
}

// write places orders until there are enough.
func write(ctx context.Context, shop *shop, s settings) error {
	have, err := shop.count(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		all             sync.WaitGroup
		placed, refused atomic.Int64
	)
	left := atomic.Int64{}
	left.Store(int64(s.orders - have))
	for range s.writers {
		all.Go(func() {
			for ctx.Err() == nil && left.Add(-1) >= 0 {
				n, err := shop.order(ctx, s)
				refused.Add(n)
				if err != nil {
					cancel(fmt.Errorf("place an order: %w", err))
					return
				}
				placed.Add(1)
			}
		})
	}
	all.Wait()
	fmt.Println("placed", placed.Load(), "orders,", refused.Load(), "were taken back")
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// order places one order of somebody, and says how many were taken back before.
func (s *shop) order(ctx context.Context, o settings) (refused int64, err error) {
	for {
		customer := fmt.Sprintf("customer-%03d", rand.IntN(o.customers))
		err = s.place(ctx, customer, 100+rand.Int64N(10_000), rand.Float64() < o.refused)
		if !errors.Is(err, errRefused) {
			return refused, err
		}
		refused++
	}
}
