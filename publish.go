package promethean

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// Receipt says where a published event is.
type Receipt struct {
	ID        event.ID
	Topic     string
	Seq       uint64
	TS        int64
	Partition event.Partition
	// Duplicate says that the id was known: nothing was stored, and the rest
	// is of the stored event.
	Duplicate bool
}

// Publish implements [Bus]. An event without id, time or partition gets one:
// those that are given let a retry be safe.
func (h *Hub) Publish(ctx context.Context, events ...event.Event) ([]Receipt, error) {
	return h.PublishIf(ctx, nil, events...)
}

// PublishIf is Publish under conditions: each names the last seq of a topic,
// or of a key in it. If one fails, nothing is stored, and the error is a
// [*store.SeqConflictError].
func (h *Hub) PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
	began := time.Now()
	batch := make([]event.Event, len(events))
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil, ErrClosed
	}
	for i, e := range events {
		if err := reserved(e.Topic); err != nil {
			h.mu.Unlock()
			return nil, fmt.Errorf("publish topic %s: %w", e.Topic, &store.EventError{Index: i, Err: err})
		}
		if e.ID.IsZero() {
			e.ID = event.NewID()
		}
		if e.TS == 0 {
			e.TS = began.UnixMilli()
		}
		n := 1
		if t := h.topics[e.Topic]; t != nil {
			n = t.partitions
		}
		if p, given := e.Partition.Get(); !given {
			e.Partition = event.PartitionOf(event.PartitionFor(e.Key, e.ID, n))
		} else if p >= n {
			h.mu.Unlock()
			return nil, fmt.Errorf("publish topic %s: %w", e.Topic, &store.EventError{Index: i, Err: fmt.Errorf("%w: partition %d, the topic has %d", group.ErrInvalid, p, n)})
		}
		batch[i] = e
	}
	h.mu.Unlock()
	ended := func(error) {}
	if h.o.Tracer != nil {
		ctx, ended = h.o.Tracer.Publish(ctx, batch)
	}
	answers, err := h.log.Append(ctx, store.Batch{Events: batch, Expect: expect})
	ended(err)
	if err != nil {
		return nil, err
	}
	out := make([]Receipt, len(batch))
	took := time.Since(began)
	for i := range batch {
		e := &batch[i]
		if o := answers[i].Original; o != nil {
			e = o
		}
		out[i] = Receipt{ID: e.ID, Topic: e.Topic, Seq: answers[i].Seq, TS: e.TS, Partition: e.Partition, Duplicate: answers[i].Duplicate}
		if !answers[i].Duplicate {
			h.o.Metrics.Published(e.Topic, took)
		}
	}
	h.mu.Lock()
	for i := range batch {
		if topic := batch[i].Topic; h.topics[topic] == nil {
			h.known(topic)
			if h.notices != nil && !h.closed {
				h.notices.appeared(topic)
			}
		}
	}
	h.mu.Unlock()
	return out, nil
}

// PublishIf is [Hub.PublishIf] for a bus that may be decorated. Without
// conditions any bus will do; with them it must have a method PublishIf too, as
// [Hub] and the decorators of this module have.
func PublishIf(ctx context.Context, bus Bus, expect []store.Expect, events ...event.Event) ([]Receipt, error) {
	if len(expect) == 0 {
		return bus.Publish(ctx, events...)
	}
	b, ok := bus.(interface {
		PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]Receipt, error)
	})
	if !ok {
		return nil, fmt.Errorf("publish under conditions: %w: the bus is a %T, which has no PublishIf", group.ErrInvalid, bus)
	}
	return b.PublishIf(ctx, expect, events...)
}

// reserved says whether only the hub writes to a topic.
func reserved(topic string) error {
	for _, p := range []string{"dlq.", "system."} {
		if strings.HasPrefix(topic, p) {
			return fmt.Errorf("%w: only the hub itself writes under %s", event.ErrInvalidTopic, p)
		}
	}
	return nil
}

// PublishOption sets a field of an event.
type PublishOption func(*event.Event)

// Key sets the key, which order, compaction and partition follow.
func Key(key string) PublishOption { return func(e *event.Event) { e.Key = key } }

// ID sets the id. Publishing a known one stores nothing.
func ID(id event.ID) PublishOption { return func(e *event.Event) { e.ID = id } }

// At sets the time.
func At(t time.Time) PublishOption { return func(e *event.Event) { e.TS = t.UnixMilli() } }

// Header adds a header.
func Header(name, value string) PublishOption {
	return func(e *event.Event) { e.Headers = e.Headers.Set(name, value) }
}

// Tags adds tags.
func Tags(tags ...string) PublishOption {
	return func(e *event.Event) { e.Tags = append(e.Tags, tags...) }
}

// CausedBy adds ids of events that led to this one.
func CausedBy(ids ...event.ID) PublishOption {
	return func(e *event.Event) {
		for _, id := range ids {
			e.CausedBy = append(e.CausedBy, id.String())
		}
	}
}

// SID sets the publisher's session.
func SID(sid string) PublishOption { return func(e *event.Event) { e.SID = sid } }

// Emit publishes one event whose payload is v as JSON.
func (h *Hub) Emit(ctx context.Context, topic string, v any, opts ...PublishOption) (Receipt, error) {
	return PublishAs(ctx, h, topic, v, opts...)
}

// PublishAs publishes one event whose payload is v as JSON.
func PublishAs[T any](ctx context.Context, bus Bus, topic string, v T, opts ...PublishOption) (Receipt, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return Receipt{}, fmt.Errorf("publish topic %s: payload: %w", topic, err)
	}
	e := event.New(topic, payload)
	for _, o := range opts {
		o(&e)
	}
	got, err := bus.Publish(ctx, e)
	if err != nil {
		return Receipt{}, err
	}
	return got[0], nil
}
