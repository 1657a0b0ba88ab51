// Consume publishes events to a directory on its first run and handles them,
// saying what it does. It can be killed at any time and started again: what it
// said to be acked does not come back, and every event is handled in the end.
//
//	consume DIR COUNT
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"

	"promethean"
	"promethean/event"
	"promethean/store"
)

const topic = "work.todo"

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: consume DIR COUNT")
	}
	count, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = run(context.Background(), os.Args[1], count)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string, count int) (err error) {
	hub, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hub.Close()) }()
	if err := publish(ctx, hub, count); err != nil {
		return err
	}
	say := func(what string, e event.Event) { fmt.Printf("%s %d %s\n", what, e.Seq, e.Key) }
	finished := make(chan struct{})
	var once sync.Once
	_, err = hub.Subscribe(ctx, topic, "workers", func(ctx context.Context, e event.Event, d *promethean.Delivery) error {
		say("handled", e)
		if _, err := hub.Ack(ctx, topic, "workers", e.ID); err != nil {
			return err
		}
		say("acked", e)
		if p, err := hub.Cursor(ctx, topic, "workers"); err == nil && p.Seq == uint64(count) {
			once.Do(func() { close(finished) })
		}
		return nil
	}, promethean.FromEarliest(), promethean.ManualAck(), promethean.MaxAttempts(1000))
	if err != nil {
		return err
	}
	if l, err := hub.Lag(ctx, topic, "workers"); err != nil || l.Events == 0 {
		return err
	}
	<-finished
	return nil
}

// publish appends what is missing of count events. Its ids follow from the
// position, so that nothing is published twice.
func publish(ctx context.Context, hub *promethean.Hub, count int) error {
	var last uint64
	for e, err := range hub.Read(ctx, store.Query{Topic: topic, Reverse: true, Limit: 1}) {
		if err != nil {
			return err
		}
		last = e.Seq
	}
	for n := int(last); n < count; {
		var batch []event.Event
		for ; n < count && len(batch) < 1000; n++ {
			e := event.New(topic, fmt.Appendf(nil, `{"n":%d}`, n))
			e.Key = fmt.Sprint("k", n*7919%1000)
			batch = append(batch, e)
		}
		if _, err := hub.Publish(ctx, batch...); err != nil {
			return err
		}
	}
	return nil
}
