package partition

import (
	"context"
	"fmt"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// Publish gives a bus that says which of n partitions an event is of, where the
// publisher does not: by what keyOf gives, or where that is nil or gives "" by
// the event's key, or by its id if it has none. The topics must have at least n
// partitions. A hub does the same by itself for the key and the number of
// partitions that its topic has; this is for another key.
func Publish(bus promethean.Bus, n int, keyOf func(*event.Event) string) promethean.Bus {
	return &publisher{bus, n, keyOf}
}

type publisher struct {
	promethean.Bus
	n     int
	keyOf func(*event.Event) string
}

// Publish implements [promethean.Bus].
func (b *publisher) Publish(ctx context.Context, events ...event.Event) ([]promethean.Receipt, error) {
	return b.PublishIf(ctx, nil, events...)
}

// PublishIf is Publish under conditions, where the bus below has it.
func (b *publisher) PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]promethean.Receipt, error) {
	if b.n < 1 || b.n > event.MaxPartitions {
		return nil, fmt.Errorf("publish: %w: partitions %d is not within 1 to %d", group.ErrInvalid, b.n, event.MaxPartitions)
	}
	list := make([]event.Event, len(events))
	copy(list, events)
	for i := range list {
		e := &list[i]
		if _, given := e.Partition.Get(); given {
			continue
		}
		if e.ID.IsZero() {
			e.ID = event.NewID()
		}
		key := ""
		if b.keyOf != nil {
			key = b.keyOf(e)
		}
		if key == "" {
			key = e.Key
		}
		e.Partition = event.PartitionOf(event.PartitionFor(key, e.ID, b.n))
	}
	return promethean.PublishIf(ctx, b.Bus, expect, list...)
}
