package compact

import (
	"context"
	"errors"
	"fmt"

	"promethean"
	"promethean/event"
	"promethean/store"
)

// ErrReserved says that only the compactor writes to a topic.
var ErrReserved = errors.New("only the hub itself writes to a snapshot topic")

// Guard gives a bus that refuses events without a key to topics that are
// compacted, and all events to topics of snapshots. If one event of a batch is
// refused nothing is published, and the error is a [*store.EventError].
func Guard(bus promethean.Bus, c *Compactor) promethean.Bus { return &guarded{bus, c} }

type guarded struct {
	promethean.Bus
	c *Compactor
}

// Publish implements [promethean.Bus].
func (b *guarded) Publish(ctx context.Context, events ...event.Event) ([]promethean.Receipt, error) {
	return b.PublishIf(ctx, nil, events...)
}

// PublishIf is Publish under conditions, where the bus below has it.
func (b *guarded) PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]promethean.Receipt, error) {
	if t := b.c.topics.Load(); len(t.settings) > 0 {
		for i := range events {
			if err := t.admit(&events[i]); err != nil {
				return nil, fmt.Errorf("publish topic %s: %w", events[i].Topic, &store.EventError{Index: i, Err: err})
			}
		}
	}
	return promethean.PublishIf(ctx, b.Bus, expect, events...)
}

func (t *topics) admit(e *event.Event) error {
	if source, ok := t.source[e.Topic]; ok {
		return fmt.Errorf("%w: %s holds those of %s", ErrReserved, e.Topic, source)
	}
	if _, ok := t.settings[e.Topic]; ok && e.Key == "" {
		return fmt.Errorf("%w: topic %s is compacted, so that every event needs a key", event.ErrInvalidArgument, e.Topic)
	}
	return nil
}
