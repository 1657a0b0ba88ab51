package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"promethean/event"
)

// ChangefeedInfo is how a change feed of a hub is doing. Times are epoch ms.
type ChangefeedInfo struct {
	Name  string `json:"name"`
	Topic string `json:"topic"`
	// State is starting, snapshot, streaming, waiting, gone, failed, stopped or
	// elsewhere, where another hub runs the feed and did not tell more.
	State       string `json:"state"`
	Hub         string `json:"hub,omitempty"` // which runs it
	Since       int64  `json:"since"`
	Published   uint64 `json:"published"`
	Duplicates  uint64 `json:"duplicates"` // known to the hub already
	Filtered    uint64 `json:"filtered"`
	Oversized   uint64 `json:"oversized"` // replaced by a marker
	Refused     uint64 `json:"refused"`   // left out
	Failures    uint64 `json:"failures"`
	HistoryLost uint64 `json:"history_lost"`
	Position    string `json:"position,omitempty"`
	LastChange  int64  `json:"last_change,omitempty"`
	LagMs       int64  `json:"lag_ms"`              // of the last change that was published, or the age of one that cannot be
	LagBytes    *int64 `json:"lag_bytes,omitempty"` // what the server keeps for the feed
	Server      string `json:"server,omitempty"`
	Warning     string `json:"warning,omitempty"` // to look after at the source
	Error       string `json:"error,omitempty"`
	ErrorAt     int64  `json:"error_at,omitempty"`
}

// Changefeeds tells how the change feeds of the hub are doing.
func (c *Client) Changefeeds(ctx context.Context) ([]ChangefeedInfo, error) {
	var got struct{ Changefeeds []ChangefeedInfo }
	err := c.call(ctx, http.MethodGet, "/ops/changefeeds", nil, nil, &got)
	return got.Changefeeds, err
}

// ResyncChangefeed has a change feed forget its place and begin anew, with a
// snapshot if it takes one. Any of several hubs can be asked.
func (c *Client) ResyncChangefeed(ctx context.Context, name string) (ChangefeedInfo, error) {
	var got ChangefeedInfo
	err := c.call(ctx, http.MethodPost, "/ops/changefeeds/"+url.PathEscape(name)+"/resync", nil, nil, &got)
	return got, err
}

// OutboxInfo is how an outbox that a hub drains is doing. Times are epoch ms.
type OutboxInfo struct {
	Name         string `json:"name"`
	State        string `json:"state"` // draining, outage or stopped
	Pending      int64  `json:"pending"`
	Claimed      int64  `json:"claimed"`
	Refused      int64  `json:"refused"` // how many of the pending ones have an error
	Failed       int64  `json:"failed"`  // wait for a person
	LagMs        int64  `json:"lag_ms"`  // age of the oldest row that is not sent
	Counted      int64  `json:"counted,omitempty"`
	SentTotal    uint64 `json:"sent_total"`
	RefusedTotal uint64 `json:"refused_total"`
	LastSent     int64  `json:"last_sent,omitempty"`
	Waking       bool   `json:"waking"` // the database tells when rows come
	Outage       string `json:"outage,omitempty"`
	Error        string `json:"error,omitempty"`
	ErrorAt      int64  `json:"error_at,omitempty"`
}

// Outboxes tells how the outboxes that the hub drains are doing.
func (c *Client) Outboxes(ctx context.Context) ([]OutboxInfo, error) {
	var got struct{ Outboxes []OutboxInfo }
	err := c.call(ctx, http.MethodGet, "/ops/outboxes", nil, nil, &got)
	return got.Outboxes, err
}

// OutboxRow is a row that could not be published.
type OutboxRow struct {
	ID       event.ID `json:"id"`
	Topic    string   `json:"topic"`
	Key      string   `json:"key,omitempty"`
	State    string   `json:"state"` // failed, or pending or claimed if it is tried again
	Attempts int      `json:"attempts"`
	Error    string   `json:"error"`
	At       int64    `json:"at"` // epoch ms
}

func outboxPath(name, rest string) string { return "/ops/outboxes/" + url.PathEscape(name) + rest }

// OutboxErrors lists up to limit rows that could not be published, those that
// wait for a person first.
func (c *Client) OutboxErrors(ctx context.Context, name string, limit int) ([]OutboxRow, error) {
	var got struct{ Rows []OutboxRow }
	err := c.call(ctx, http.MethodGet, outboxPath(name, "/errors"), url.Values{"limit": {strconv.Itoa(limit)}}, nil, &got)
	return got.Rows, err
}

// RetryOutbox has rows that could not be published tried again at once: those
// with these ids, or all. It says how many they were.
func (c *Client) RetryOutbox(ctx context.Context, name string, ids ...event.ID) (int, error) {
	var got struct{ Retried int }
	var body any
	if len(ids) > 0 {
		body = map[string]any{"ids": ids}
	}
	err := c.call(ctx, http.MethodPost, outboxPath(name, "/retry"), nil, body, &got)
	return got.Retried, err
}

// DiscardOutbox removes rows that could not be published: they never will be, and
// those behind them go on. It says how many they were.
func (c *Client) DiscardOutbox(ctx context.Context, name string, ids ...event.ID) (int, error) {
	var got struct{ Discarded int }
	err := c.call(ctx, http.MethodPost, outboxPath(name, "/discard"), nil, map[string]any{"ids": ids}, &got)
	return got.Discarded, err
}
