package schema

import (
	"context"
	"fmt"

	"promethean"
	"promethean/event"
	"promethean/store"
)

// DualWrite gives a bus that writes events of a topic to topic.vN too, where N
// is the latest version, while that is on for the topic ([Settings.DualWrite]).
// Both go in one append: both are stored or none. The copy has the same id, so
// that publishing again leaves one in each topic, and its payload is upcast. If
// that cannot be done, nothing is published.
//
// Where the engine takes one topic at a time, the copies follow by an intent;
// see docs/engines.md.
func DualWrite(bus promethean.Bus, reg *Registry) promethean.Bus { return &dual{bus, reg} }

type dual struct {
	promethean.Bus
	reg *Registry
}

// DualWriteTo says where events of a topic are written to as well at the moment;
// "" if nowhere.
func (r *Registry) DualWriteTo(topic string) string {
	e := r.entry(topic)
	if !e.settings.DualWrite.On || len(e.versions) == 0 || !e.settings.DualWrite.Open(r.now()) {
		return ""
	}
	return VersionTopic(topic, e.latest().Version)
}

// Publish implements [promethean.Bus].
func (b *dual) Publish(ctx context.Context, events ...event.Event) ([]promethean.Receipt, error) {
	return b.PublishIf(ctx, nil, events...)
}

// PublishIf is Publish under conditions, where the bus below has it. They are
// about the topics that are named, not about those of the copies.
func (b *dual) PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]promethean.Receipt, error) {
	defer b.reg.gate.enter().RUnlock()
	var list []event.Event
	for i := range events {
		if b.reg.DualWriteTo(events[i].Topic) == "" {
			continue
		}
		if list == nil {
			list = make([]event.Event, len(events), 2*len(events))
			copy(list, events)
		}
		e, err := b.reg.second(ctx, &list[i])
		if err != nil {
			return nil, fmt.Errorf("publish topic %s: %w", events[i].Topic, &store.EventError{Index: i, Err: err})
		}
		list = append(list, e)
	}
	if list == nil {
		return promethean.PublishIf(ctx, b.Bus, expect, events...)
	}
	got, err := promethean.PublishIf(ctx, b.Bus, expect, list...)
	if err != nil {
		return nil, err
	}
	return got[:len(events)], nil
}

// second makes the copy of an event for topic.vN. The event gets what both must
// have in common.
func (r *Registry) second(ctx context.Context, e *event.Event) (event.Event, error) {
	if e.ID.IsZero() {
		e.ID = event.NewID()
	}
	if e.TS == 0 {
		e.TS = r.now().UnixMilli()
	}
	k := r.rules(e.Topic)
	if _, ok := e.Headers.Get(VersionHeader); !ok {
		// What is published without a stamp is of the latest version.
		e.Headers = e.Headers.Set(VersionHeader, k.latest().stamp)
	}
	c, err := r.raise(ctx, k, *e)
	if err != nil {
		return event.Event{}, fmt.Errorf("dual write: %w", err)
	}
	version, err := stamp(&c)
	if err != nil {
		return event.Event{}, err
	}
	c.Topic = VersionTopic(e.Topic, version)
	c.Partition = event.Partition(0) // that topic may have another number of them
	return c, nil
}
