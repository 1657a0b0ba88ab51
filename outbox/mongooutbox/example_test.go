package mongooutbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean"
	"promethean/event"
	"promethean/internal/mongofake"
	"promethean/outbox"
	"promethean/outbox/mongooutbox"
)

// A service writes an order and its event in one transaction. A drainer in the
// same process publishes it; the one that was rolled back is never published.
func Example() {
	ctx := context.Background()
	fake, err := mongofake.Open(mongofake.Options{}) // in place of a deployment
	if err != nil {
		log.Fatal(err)
	}
	defer fake.Close()

	client, err := mongo.Connect(options.Client().ApplyURI(fake.URI()).SetServerMonitoringMode("poll"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Disconnect(ctx) }()
	db := client.Database("shop")
	box, err := mongooutbox.New(db, mongooutbox.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.Setup(ctx); err != nil {
		log.Fatal(err)
	}

	errUnsure := errors.New("the customer has changed his mind")
	place := func(id string, total int, sure bool) error {
		return mongooutbox.Transact(ctx, client, func(ctx context.Context) error {
			if _, err := db.Collection("orders").InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "total", Value: total}}); err != nil {
				return err
			}
			row, err := outbox.NewRow("orders.placed", id, map[string]int{"total": total})
			if err != nil {
				return err
			}
			if err := box.Add(ctx, row); err != nil { // with the context of the transaction
				return err
			}
			if !sure {
				return errUnsure
			}
			return nil
		})
	}
	for _, err := range []error{place("order-1", 5, true), place("order-2", 7, false), place("order-3", 9, true)} {
		if err != nil && !errors.Is(err, errUnsure) {
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
