// Command outbox is a small shop that tells of its orders through an outbox: an
// order and its event are written in one transaction of the shop's own database,
// so that there are both or neither, whoever is killed when.
//
//	go run ./examples/outbox -db sqlite:shop.db write
//	go run ./examples/outbox -db sqlite:shop.db drain
//	go run ./examples/outbox -db sqlite:shop.db check
//
// The roles are processes of their own. "write" places orders, and takes some of
// them back before they are committed. "drain" publishes the events to a hub, as
// often as need be. "check" compares the database with what the hub has: every
// order once, nothing else, each customer's orders in order.
//
// The database may be an SQLite file or a PostgreSQL server, by
// -db postgres://….
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"promethean/client"
	"promethean/outbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "outbox:", err)
		os.Exit(1)
	}
}

// roles are what a process can be.
var roles = map[string]func(context.Context, *shop, settings) error{
	"write": write,
	"drain": drain,
	"check": check,
}

type settings struct {
	hub       string
	orders    int
	customers int
	writers   int
	refused   float64
	lease     time.Duration
}

func run(ctx context.Context, args []string) error {
	var (
		s     settings
		db    string
		flags = flag.NewFlagSet("outbox", flag.ContinueOnError)
	)
	flags.StringVar(&db, "db", "sqlite:shop.db", "the shop's database: sqlite:FILE or postgres://…")
	flags.StringVar(&s.hub, "hub", "127.0.0.1:7070", "drain, check: where the hub is")
	flags.IntVar(&s.orders, "orders", 1000, "write: how many orders there are to be in the end")
	flags.IntVar(&s.customers, "customers", 50, "write: how many customers place them")
	flags.IntVar(&s.writers, "writers", 4, "write: how many orders are placed at a time")
	flags.Float64Var(&s.refused, "refused", 0.1, "write: which part of the orders is taken back")
	flags.DurationVar(&s.lease, "lease", 10*time.Second, "drain: how long rows are kept by a drainer that was killed")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: outbox [flags] write | drain | check")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	role, known := roles[flags.Arg(0)]
	if !known || flags.NArg() != 1 {
		return fmt.Errorf("roles %q: must be one of write, drain, check", flags.Args())
	}
	if s.orders < 0 || s.customers < 1 || s.writers < 1 || s.refused < 0 || s.refused >= 1 {
		return errors.New("-orders must not be negative, -customers and -writers at least 1, -refused at least 0 and below 1")
	}
	shop, err := open(ctx, db)
	if err != nil {
		return err
	}
	return errors.Join(role(ctx, shop, s), shop.close())
}

// drain publishes orders until it is asked to end.
func drain(ctx context.Context, shop *shop, s settings) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	hub, err := client.New(s.hub, client.Options{Logger: logger})
	if err != nil {
		return err
	}
	d, err := outbox.New(shop.outbox, outbox.ToClient(hub.PublishEvents), outbox.Options{
		Name: fmt.Sprint("drainer-", os.Getpid()), Lease: s.lease, Logger: logger,
	})
	if err == nil {
		fmt.Println("draining into", s.hub)
		err = d.Run(ctx)
		fmt.Println("sent", d.Status().SentTotal)
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(err, hub.Close(ending))
}
