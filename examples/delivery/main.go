// Delivery shows a group at work: an order is handled after a retry, a poison
// one ends in the dead letters, is mended and replayed.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"promethean"
	"promethean/deadletter"
	"promethean/event"
	"promethean/group"
)

type order struct {
	Item  string `json:"item"`
	Count int    `json:"count"`
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hub.Close()) }()
	done := make(chan string, 10)
	handle := func(_ context.Context, o order, e event.Event, d *promethean.Delivery) error {
		switch {
		case o.Count < 1:
			return promethean.Dead(fmt.Errorf("%d pieces of %s", o.Count, o.Item))
		case d.Attempt == 1:
			return promethean.Retry(10*time.Millisecond, errors.New("the shop is closed"))
		}
		done <- fmt.Sprintf("%d × %s, attempt %d", o.Count, o.Item, d.Attempt)
		return nil
	}
	if _, err := hub.Subscribe(ctx, "orders.placed", "shop", promethean.Handle(handle)); err != nil {
		return err
	}
	for _, o := range []order{{"bread", 2}, {"cake", 0}} {
		if _, err := hub.Emit(ctx, "orders.placed", o, promethean.Key(o.Item)); err != nil {
			return err
		}
	}
	fmt.Println(<-done)
	// The poison one is among the dead letters of the topic.
	if _, err := hub.Subscribe(ctx, "dlq.orders.placed", "watch", promethean.Handle(func(_ context.Context, l group.Letter, _ event.Event, _ *promethean.Delivery) error {
		done <- fmt.Sprintf("dead: %s: %s", l.Original.Payload, l.Err)
		return nil
	}), promethean.FromEarliest()); err != nil {
		return err
	}
	fmt.Println(<-done)
	if _, err := deadletter.Replay(ctx, hub, "orders.placed", deadletter.Options{
		Transform: func(e event.Event) (event.Event, error) {
			e.Payload = []byte(`{"item":"cake","count":1}`)
			return e, nil
		},
	}); err != nil {
		return err
	}
	fmt.Println(<-done)
	return nil
}
