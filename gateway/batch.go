package gateway

import (
	"errors"
	"net/http"
	"strconv"

	"promethean"
	"promethean/event"
	"promethean/gateway/auth"
	"promethean/store"
	"promethean/wire"
)

// Bounds of a batch.
const (
	maxBatch      = 10_000
	maxBatchBytes = 8 << 20
)

// publishMany serves POST /publish.
func publishMany(c *call) error { return c.publishBatch(readRows) }

// publishBatch publishes what read makes of the body.
func (c *call) publishBatch(read func([]byte) ([]event.Event, error)) error {
	data, err := c.body(maxBatchBytes, wire.BatchTooLarge)
	if err != nil {
		return err
	}
	events, err := read(data)
	if err != nil {
		return err
	}
	got, err := c.publish(events)
	if err != nil {
		return err
	}
	return c.answer(http.StatusCreated, appendReceipts(nil, got))
}

// readRows reads a batch: NDJSON, or an array. An error names the row.
func readRows(data []byte) ([]event.Event, error) {
	rows := event.NewRows(data)
	defer rows.Close()
	// Small events have about this many bytes: mostly it is allocated once.
	events := make([]event.Event, 0, min(len(data)/256+1, maxBatch))
	for {
		events = append(events, event.Event{})
		n := len(events) - 1
		ok, err := rows.Next(&events[n])
		switch {
		case err != nil:
			return nil, &store.EventError{Index: n, Err: err}
		case ok && n == maxBatch:
			return nil, wire.Errorf(wire.BatchTooLarge, "the batch has more than %d events", maxBatch)
		case ok:
			continue
		case n == 0:
			return nil, wire.Errorf(wire.InvalidArgument, "the batch holds no event")
		}
		return events[:n], nil
	}
}

// publish stores a batch, if the caller may publish to all topics in it.
func (c *call) publish(events []event.Event) ([]promethean.Receipt, error) {
	last := ""
	for i := range events {
		if t := events[i].Topic; t != last || i == 0 {
			if err := c.allow(auth.Publish, t); err != nil {
				return nil, &store.EventError{Index: i, Err: err}
			}
			last = t
		}
	}
	for i := range events {
		if err := event.CheckTopic(events[i].Topic); err != nil {
			return nil, &store.EventError{Index: i, Err: err}
		}
	}
	got, err := c.g.publish(c.r.Context(), nil, events)
	var row *store.EventError
	if errors.As(err, &row) {
		return nil, row // who sent the rows knows the rest
	}
	return got, err
}

// appendReceipts writes where the events of a batch are.
func appendReceipts(b []byte, list []promethean.Receipt) []byte {
	b = append(b, `{"count":`...)
	b = strconv.AppendInt(b, int64(len(list)), 10)
	b = append(b, `,"events":[`...)
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendReceipt(b, &list[i], false)
	}
	return append(b, "]}\n"...)
}
