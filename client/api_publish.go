package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"promethean/event"
)

// Stored says where an event is in the log.
type Stored struct {
	ID    event.ID `json:"id"`
	Seq   uint64   `json:"seq"`
	Topic string   `json:"topic"`
	// Duplicate says that the id was known: nothing was stored, and Seq is
	// that of the stored event.
	Duplicate bool `json:"duplicate,omitempty"`
}

// PostBatch publishes events over HTTP, all or nothing, and returns once they
// are durable. An event without an id is given one, in the slice itself, so
// that calling again with the same slice after an error stores nothing twice.
// There are at most MaxBatch events of MaxBatchBytes.
func (c *Client) PostBatch(ctx context.Context, events []event.Event) ([]Stored, error) {
	var body []byte
	var err error
	for i := range events {
		e := &events[i]
		if e.ID.IsZero() {
			e.ID = event.NewID()
		}
		if body, err = e.AppendJSON(body); err != nil {
			return nil, fmt.Errorf("client: event %d: %w", i, err)
		}
		body = append(body, '\n')
	}
	return c.PostRows(ctx, body)
}

// PostRows is PostBatch for rows that are encoded already: NDJSON, in the form
// of event.Event.AppendJSON. Rows without an id are not safe to be sent again.
func (c *Client) PostRows(ctx context.Context, rows []byte) ([]Stored, error) {
	r, err := c.request(ctx, http.MethodPost, "/publish", nil, rows)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/x-ndjson")
	var got struct{ Events []Stored }
	if err := c.exchange(r, &got); err != nil {
		return nil, err
	}
	return got.Events, nil
}

// PostIf publishes one event over HTTP if last is the topic's last seq, 0 for
// an empty topic; otherwise the error has the code seq_conflict. An event
// without an id is given one. Of the headers only those can be sent that the
// hub takes from a request: names that begin with x- and that neither proxies
// nor browsers use.
func (c *Client) PostIf(ctx context.Context, e *event.Event, last uint64) (Stored, error) {
	if e.ID.IsZero() {
		e.ID = event.NewID()
	}
	q := url.Values{"id": {e.ID.String()}, "expect_seq": {strconv.FormatUint(last, 10)}, "tag": e.Tags, "caused_by": e.CausedBy}
	if e.Key != "" {
		q.Set("key", e.Key)
	}
	if e.SID != "" {
		q.Set("sid", e.SID)
	}
	if e.TS != 0 {
		q.Set("ts", strconv.FormatInt(e.TS, 10))
	}
	if n, ok := e.Partition.Get(); ok {
		q.Set("partition", strconv.Itoa(n))
	}
	r, err := c.request(ctx, http.MethodPost, "/publish/"+url.PathEscape(e.Topic), q, e.Payload)
	if err != nil {
		return Stored{}, err
	}
	for _, h := range e.Headers {
		if !carried(h.Name) {
			return Stored{}, fmt.Errorf("client: header %s: it cannot be sent together with an expected seq", h.Name)
		}
		r.Header.Set(h.Name, h.Value)
	}
	var got Stored
	err = c.exchange(r, &got)
	return got, err
}

// carried says whether the hub takes a header of a request for one of the
// event.
func carried(name string) bool {
	for _, taken := range []string{"x-forwarded-", "x-auth-", "x-csrf-"} {
		if strings.HasPrefix(name, taken) {
			return false
		}
	}
	switch name {
	case "x-real-ip", "x-request-id", "x-api-key", "x-requested-with":
		return false
	}
	return strings.HasPrefix(name, "x-")
}
