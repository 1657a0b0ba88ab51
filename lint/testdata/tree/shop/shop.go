// Package shop has one of everything that is wrong in Go.
package shop

import (
	"context"

	"promethean"
	"promethean/client"
	"promethean/event"
	"promethean/lint/testdata/tree/shop/bus"
)

const prefix = "orders."

// Order is not what the schema of orders.placed wants.
type Order struct {
	Item   string `json:"item,omitempty"`
	Count  string `json:"count"`
	Colour string `json:"colour"`
}

// Customer is a part of a right one.
type Customer struct {
	ID string `json:"id"`
}

// Good is what it wants.
type Good struct {
	Item     string    `json:"item"`
	Count    int       `json:"count"`
	Customer *Customer `json:"customer"`
}

// Seen is what a reader looks at: it may leave things out.
type Seen struct {
	Item string
	Shop string `json:"shop"`
}

// Run does everything wrong.
func Run(ctx context.Context, hub *promethean.Hub, c *client.Client, b *bus.Bus) {
	_, _ = hub.Emit(ctx, prefix+"placed", Good{}, promethean.Header("x-source", "shop"))
	_, _ = hub.Emit(ctx, prefix+"placed", &Order{})
	_, _ = hub.Emit(ctx, "orders.placed", map[string]any{"item": "é", "count": 1, "customer": map[string]any{}})
	_, _ = hub.Emit(ctx, "Orders.Placed", Good{})
	_, _ = hub.Emit(ctx, "dlq.orders.placed", Good{})
	_, _ = hub.Emit(ctx, "orders.lost", Good{})
	_, _ = hub.Emit(ctx, "orders.lost.v1", Good{})
	_, _ = hub.Emit(ctx, "orders.old", Good{}) //promethean:allow it goes away with the old shop
	_, _ = c.Publish(ctx, "orders.sent", 1, client.Header("Source", "é"), client.Header("x-é", "shop"))
	_ = b.Send(ctx, "orders.wrapped", Good{}, "shop")
	_ = b.Send(ctx, "orders.placed", Order{}, "shop")
	_, _ = hub.Publish(ctx, event.Event{Topic: "orders..placed"}, event.New("orders.new", nil))
	_, _ = hub.Subscribe(ctx, "orders.placed", "shop", promethean.Handle(func(context.Context, Seen, event.Event, *promethean.Delivery) error {
		return nil
	}), promethean.Topics("orders.*", "orders.**x"))
	//promethean:allow
	_, _ = hub.Emit(ctx, "orders.unreasoned", Good{})
	//promethean:allow nothing is wrong here
	_, _ = hub.Emit(ctx, "orders.placed", Good{})
}
