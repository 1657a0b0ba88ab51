package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"promethean"
	"promethean/event"
	"promethean/store"
	"promethean/wire"
)

var (
	errDraining = wire.Errorf(wire.Draining, "the hub is shutting down")
	errMethod   = errors.New("method not allowed")
)

// body reads the whole body, which has at most so many bytes and must come in
// time.
func (c *call) body(most int, tooLarge wire.Code) ([]byte, error) {
	if coding := c.r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return nil, wire.Errorf(wire.InvalidArgument, "Content-Encoding: %q is not understood: send the body as it is", clip(coding))
	}
	if c.r.ContentLength > int64(most) {
		return nil, wire.Errorf(tooLarge, "the body has %d bytes, the limit is %d", c.r.ContentLength, most)
	}
	data, err := readAll(http.MaxBytesReader(c.w.ResponseWriter, c.r.Body, int64(most)), c.r.ContentLength)
	if err == nil {
		c.w.came()
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, wire.Errorf(tooLarge, "the body has more than %d bytes", most)
	case err != nil:
		return nil, wire.Errorf(wire.InvalidArgument, "the body did not come whole: %w", err)
	}
	return data, nil
}

// readAll reads a body, whose length is often known: then it is read into
// memory of that size.
func readAll(body io.Reader, length int64) ([]byte, error) {
	if length < 0 {
		return io.ReadAll(body)
	}
	// Who says more than he sends shall not have it held for him.
	const trusted = 1 << 20
	b := bytes.NewBuffer(make([]byte, 0, min(length, trusted)+bytes.MinRead))
	_, err := b.ReadFrom(body)
	return b.Bytes(), err
}

// publish stores events for a caller: every way in ends here. Access is checked
// before; rates and the making of topics are checked here.
func (g *Gateway) publish(ctx context.Context, expect []store.Expect, events []event.Event) ([]promethean.Receipt, error) {
	if g.o.NoAutoCreate {
		for i := range events {
			if i > 0 && events[i].Topic == events[i-1].Topic {
				continue
			}
			if err := g.exists(ctx, events[i].Topic); err != nil {
				return nil, &store.EventError{Index: i, Err: err}
			}
		}
	}
	if err := g.rates().batch(events); err != nil {
		return nil, err
	}
	return promethean.PublishIf(ctx, g.bus, expect, events...)
}

// publishOne serves POST /publish/{topic}.
func publishOne(c *call) error {
	topic := c.r.PathValue("topic")
	if err := event.CheckTopic(topic); err != nil {
		return err
	}
	payload, err := c.body(c.g.payloadLimit(), wire.PayloadTooLarge)
	if err != nil {
		return err
	}
	e := event.Event{Topic: topic, Payload: json.RawMessage(payload)}
	expect, err := c.fill(&e)
	if err != nil {
		return err
	}
	got, err := c.g.publish(c.r.Context(), expect, []event.Event{e})
	if err != nil {
		return alone(err)
	}
	return c.answer(statusOf(&got[0]), append(appendReceipt(nil, &got[0], true), '\n'))
}

// alone is an error about the only event that there was: which one it was is
// nothing to tell.
func alone(err error) error {
	var row *store.EventError
	if errors.As(err, &row) {
		return row.Err
	}
	return err
}

// fill fills an event from the query and the headers of the request.
func (c *call) fill(e *event.Event) (expect []store.Expect, err error) {
	q := c.r.URL.Query()
	e.Key, e.SID, e.Tags, e.CausedBy = q.Get("key"), q.Get("sid"), q["tag"], q["caused_by"]
	id := q.Get("id")
	if id == "" {
		id = c.r.Header.Get("Idempotency-Key")
	}
	if id != "" {
		if e.ID, err = event.ParseID(id); err != nil {
			return nil, wire.Errorf(wire.InvalidArgument, "id: %w", err)
		}
	}
	if ts := q.Get("ts"); ts != "" {
		if e.TS, err = parseTime("ts", ts); err != nil {
			return nil, err
		}
	}
	if p := q.Get("partition"); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return nil, wire.Errorf(wire.InvalidArgument, "partition: %q is no number from 0 to 65535", clip(p))
		}
		e.Partition = event.PartitionOf(int(n))
	}
	if s := q.Get("expect_seq"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return nil, wire.Errorf(wire.InvalidArgument, "expect_seq: %q is no seq", clip(s))
		}
		expect = []store.Expect{{Topic: e.Topic, Seq: n}}
	}
	for name, values := range c.r.Header {
		name = strings.ToLower(name)
		if strings.HasPrefix(name, "x-") && !ofProxies(name) {
			e.Headers = e.Headers.Set(name, strings.Join(values, ", "))
		}
	}
	return expect, nil
}

// ofProxies says whether a header belongs to whatever stands between the caller
// and us, or to his browser, and not to the event.
func ofProxies(name string) bool {
	switch name {
	case "x-real-ip", "x-request-id", "x-api-key", "x-requested-with":
		return true
	}
	for _, p := range []string{"x-forwarded-", "x-auth-", "x-csrf-"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// statusOf is 201 for what is new.
func statusOf(r *promethean.Receipt) int {
	if r.Duplicate {
		return http.StatusOK
	}
	return http.StatusCreated
}

// appendReceipt writes where an event is, with all of it or the short form of
// batches.
func appendReceipt(b []byte, r *promethean.Receipt, whole bool) []byte {
	b = append(b, `{"id":"`...)
	b, _ = r.ID.AppendText(b) // never fails
	b = append(b, `","seq":`...)
	b = strconv.AppendUint(b, r.Seq, 10)
	if whole {
		b = append(b, `,"ts":`...)
		b = strconv.AppendInt(b, r.TS, 10)
	}
	b = append(b, `,"topic":"`...)
	b = append(b, r.Topic...) // checked: nothing to escape
	b = append(b, '"')
	if p, ok := r.Partition.Get(); ok && whole {
		b = append(b, `,"partition":`...)
		b = strconv.AppendInt(b, int64(p), 10)
	}
	if r.Duplicate {
		b = append(b, `,"duplicate":true`...)
	}
	return append(b, '}')
}

// payloadLimit is the largest payload in bytes.
func (g *Gateway) payloadLimit() int { return g.hub.Limits().Payload }
