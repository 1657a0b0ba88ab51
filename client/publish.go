package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"promethean/event"
)

// Receipt says where a published event is.
type Receipt struct {
	ID    event.ID
	Topic string
	Seq   uint64
	// Duplicate says that the id was known: nothing was stored, and Seq is of
	// the stored event. It is also the answer to a publish that was repeated
	// because its first answer was lost.
	Duplicate bool
}

// publishing is an event on its way.
type publishing struct {
	event.Event
	expect    uint64
	hasExpect bool
}

// PublishOption sets a field of an event.
type PublishOption func(*publishing)

// Key sets the key, which order, compaction and partition follow.
func Key(key string) PublishOption { return func(p *publishing) { p.Event.Key = key } }

// ID sets the id. Publishing a known one stores nothing.
func ID(id event.ID) PublishOption { return func(p *publishing) { p.Event.ID = id } }

// At sets the time. The default is the time of the hub.
func At(t time.Time) PublishOption { return func(p *publishing) { p.TS = t.UnixMilli() } }

// Header adds a header.
func Header(name, value string) PublishOption {
	return func(p *publishing) { p.Headers = p.Headers.Set(name, value) }
}

// Tags adds tags.
func Tags(tags ...string) PublishOption {
	return func(p *publishing) { p.Event.Tags = append(p.Event.Tags, tags...) }
}

// CausedBy adds ids of events that led to this one.
func CausedBy(ids ...event.ID) PublishOption {
	return func(p *publishing) {
		for _, id := range ids {
			p.Event.CausedBy = append(p.Event.CausedBy, id.String())
		}
	}
}

// SID sets the publisher's session.
func SID(sid string) PublishOption { return func(p *publishing) { p.Event.SID = sid } }

// Partition sets the partition. The default follows the key.
func Partition(n int) PublishOption {
	return func(p *publishing) { p.Event.Partition = event.PartitionOf(n) }
}

// ExpectSeq stores the event only if that is the last seq of the topic, 0 for
// an empty one. Otherwise the error is an [*Error] with the code seq_conflict.
func ExpectSeq(seq uint64) PublishOption {
	return func(p *publishing) { p.expect, p.hasExpect = seq, true }
}

// Publish publishes one event whose payload is v as JSON; a [json.RawMessage]
// is taken as it is. It returns once the event is durable.
//
// A lost connection, and a hub that is overloaded or shuts down, are waited
// for until ctx ends; the event has the same id each time, so that it is stored
// once. If ctx ends first, the event may have been stored or not: publish it
// again with the same [ID] to find out. A refusal is an [*Error].
//
// Calls at the same time share the connection and a write; no call waits for
// the one before.
func (c *Client) Publish(ctx context.Context, topic string, v any, opts ...PublishOption) (Receipt, error) {
	fail := func(err error) (Receipt, error) {
		return Receipt{}, fmt.Errorf("publish topic %s: %w", topic, err)
	}
	payload, ok := v.(json.RawMessage)
	if !ok {
		var err error
		if payload, err = json.Marshal(v); err != nil {
			return fail(fmt.Errorf("payload: %w", err))
		}
	}
	p := publishing{Event: event.Event{Topic: topic, Payload: payload}}
	for _, o := range opts {
		o(&p)
	}
	if p.Event.ID.IsZero() {
		p.Event.ID = event.NewID()
	}
	body, err := appendPublish(make([]byte, 0, 256+p.Size()), &p)
	if err != nil {
		return fail(err)
	}
	a, err := c.publish(ctx, body)
	if err != nil {
		return fail(err)
	}
	return Receipt{ID: a.id, Topic: topic, Seq: a.seq, Duplicate: a.duplicate}, nil
}

// PublishEvents publishes events as a whole, in order: all are stored or none.
// An event without id gets one. Receipts come in the order of the events. The
// rest is as with [Client.Publish]; who wants to repeat the call sets the ids.
func (c *Client) PublishEvents(ctx context.Context, events []event.Event) ([]Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
	size := 64
	batch := make([]event.Event, len(events))
	for i, e := range events {
		if e.ID.IsZero() {
			e.ID = event.NewID()
		}
		batch[i] = e
		size += 64 + e.Size()
	}
	fail := func(err error) ([]Receipt, error) {
		return nil, fmt.Errorf("publish %d events: %w", len(events), err)
	}
	body, err := appendBatch(make([]byte, 0, size), batch)
	if err != nil {
		return fail(err)
	}
	a, err := c.publish(ctx, body)
	if err != nil {
		return fail(err)
	}
	if len(a.ids) != len(batch) || len(a.seqs) != len(batch) {
		return fail(errors.New("the hub's answer does not name every event"))
	}
	out := make([]Receipt, len(batch))
	for i := range batch {
		out[i] = Receipt{ID: a.ids[i], Topic: batch[i].Topic, Seq: a.seqs[i]}
	}
	for _, i := range a.duplicates {
		if i < len(out) {
			out[i].Duplicate = true
		}
	}
	return out, nil
}

// publish sends a PUBLISH and waits until it is durable.
func (c *Client) publish(ctx context.Context, body []byte) (*answer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case c.room <- struct{}{}:
	case <-ctx.Done():
		return nil, c.link.late(ctx)
	}
	defer func() { <-c.room }()
	c.link.mu.Lock()
	closing := c.link.closing
	c.link.mu.Unlock()
	if closing {
		return nil, ErrClosed
	}
	return c.link.persist(ctx, body)
}
