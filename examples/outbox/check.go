package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"promethean/client"
	"promethean/event"
	"promethean/outbox"
)

// check compares the database with the hub, once all is sent.
func check(ctx context.Context, shop *shop, s settings) error {
	hub, err := client.New(s.hub, client.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = hub.Close(context.WithoutCancel(ctx)) }()
	if err := shop.drained(ctx); err != nil {
		return err
	}
	n, err := shop.compare(ctx, hub)
	if err != nil {
		return err
	}
	fmt.Println("all", n, "orders are in the log once, and in order")
	return nil
}

// drained waits until no row of the outbox waits.
func (s *shop) drained(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		stats, err := s.outbox.Stats(ctx)
		switch {
		case err != nil:
			return err
		case stats == outbox.Stats{}:
			return nil
		case stats.Failed > 0:
			return fmt.Errorf("%d rows have failed", stats.Failed)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not all is sent, %+v: %w", stats, ctx.Err())
		}
	}
}

// compare reads all orders and all events. It tells of up to ten differences.
func (s *shop) compare(ctx context.Context, hub *client.Client) (orders int, err error) {
	committed, err := s.orders(ctx)
	if err != nil {
		return 0, err
	}
	orders = len(committed)
	var wrong []error
	differ := func(format string, args ...any) {
		if len(wrong) < 10 {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	last := make(map[string]int64)
	events := make(map[event.ID]bool)
	for e, err := range hub.Export(ctx, topic, client.ExportOptions{}) {
		if err != nil {
			return orders, err
		}
		var o Order
		if err := json.Unmarshal(e.Payload, &o); err != nil {
			return orders, fmt.Errorf("event %d: %w", e.Seq, err)
		}
		if events[e.ID] {
			differ("event %s is there twice, again as %d", e.ID, e.Seq)
		}
		events[e.ID] = true
		if want, ok := committed[o.ID]; !ok {
			differ("event %d is of order %s, which is there twice or was never committed", e.Seq, o.ID)
		} else if o != want || e.Key != o.Customer {
			differ("event %d of key %s is %+v, the order is %+v", e.Seq, e.Key, o, want)
		}
		delete(committed, o.ID)
		if o.N != last[o.Customer]+1 {
			differ("event %d is order %d of %s, after order %d", e.Seq, o.N, o.Customer, last[o.Customer])
		}
		last[o.Customer] = o.N
	}
	for id := range committed {
		differ("order %s has no event", id)
	}
	return orders, errors.Join(wrong...)
}

// orders gives the orders of the database by their ids.
func (s *shop) orders(ctx context.Context) (map[string]Order, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id, customer, n, cents FROM orders`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	list := make(map[string]Order)
	for rows.Next() {
		var o Order
		if err := rows.Scan(&o.ID, &o.Customer, &o.N, &o.Cents); err != nil {
			return nil, err
		}
		list[o.ID] = o
	}
	return list, rows.Err()
}
