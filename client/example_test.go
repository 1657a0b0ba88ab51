package client_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"time"

	"promethean"
	"promethean/client"
	"promethean/event"
	"promethean/gateway"
	"promethean/partition"
)

// hubForExample is a hub in memory; yours is "promethean serve".
func hubForExample() (addr string, stop func()) {
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		panic(err)
	}
	parts, err := partition.New(hub, partition.Options{})
	if err != nil {
		panic(err)
	}
	g := gateway.New(hub, gateway.Options{Partitions: parts})
	server := httptest.NewServer(g)
	return server.URL, func() {
		_ = g.Close(context.Background())
		server.Close()
		_ = parts.Close(context.Background())
		_ = hub.Close()
	}
}

func ExampleClient_Publish() {
	addr, stop := hubForExample()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	c, err := client.New(addr, client.Options{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = c.Close(ctx) }()

	// The id makes it safe to publish again, also in another process.
	id := event.NewID()
	for range 2 {
		r, err := c.Publish(ctx, "orders.placed", map[string]any{"order": 17}, client.Key("customer-1"), client.ID(id))
		if err != nil {
			panic(err)
		}
		fmt.Println(r.Seq, r.Duplicate)
	}
	// Output:
	// 1 false
	// 1 true
}

func ExampleClient_Subscribe() {
	addr, stop := hubForExample()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	c, err := client.New(addr, client.Options{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = c.Close(ctx) }()
	for n := range 3 {
		if _, err := c.Publish(ctx, "orders.placed", n, client.Key("customer-1")); err != nil {
			panic(err)
		}
	}

	handled := make(chan string)
	sub, err := c.Subscribe(ctx, "orders.*", "billing", func(_ context.Context, e event.Event, d *client.Delivery) error {
		if string(e.Payload) == "1" && d.Attempt == 1 {
			return client.Retry(0, fmt.Errorf("the till is closed"))
		}
		handled <- fmt.Sprintf("order %s, attempt %d", e.Payload, d.Attempt)
		return nil
	}, client.FromEarliest())
	if err != nil {
		panic(err)
	}
	for range 3 {
		fmt.Println(<-handled)
	}
	if err := sub.Stop(ctx); err != nil {
		panic(err)
	}
	// Output:
	// order 0, attempt 1
	// order 1, attempt 2
	// order 2, attempt 1
}
