package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ViewInfo is how a read model is.
type ViewInfo struct {
	Name  string `json:"name"`
	Topic string `json:"topic"`
	Group string `json:"group"`
	// Kind is changelog or transactional.
	Kind string `json:"kind"`
	// Seq is how far it is, Tail the last seq of the topic, Lag how many seqs lie
	// between.
	Seq  uint64 `json:"seq"`
	Tail uint64 `json:"tail"`
	Lag  uint64 `json:"lag"`
	// Collections are what can be asked, each by its name.
	Collections []ViewCollection `json:"collections"`
	// Events without a key, that were too old to change anything, that became
	// dead letters, and that expired before the view had read them; since the hub
	// has started.
	NoKey   uint64 `json:"no_key,omitempty"`
	Stale   uint64 `json:"stale,omitempty"`
	Dead    uint64 `json:"dead,omitempty"`
	Expired uint64 `json:"expired,omitempty"`
	// Err says why the view stands still, if it does.
	Err string `json:"err,omitempty"`
	// Rebuild is the one that is under way, or the last one; nil if there was
	// none since the hub has started.
	Rebuild *ViewRebuild `json:"rebuild,omitempty"`
}

// ViewCollection is one collection of a view.
type ViewCollection struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
	// Indexes are the fields of each.
	Indexes [][]string `json:"indexes"`
}

// ViewRebuild is how far a rebuild is.
type ViewRebuild struct {
	// State is building, swapping, done or failed.
	State string `json:"state"`
	Seq   uint64 `json:"seq"`
	Tail  uint64 `json:"tail"`
	// Events is how many were read.
	Events uint64    `json:"events"`
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended,omitzero"`
	Err    string    `json:"err,omitempty"`
}

// Document is one document of a view.
type Document struct {
	// ETag is for [Client.Snap]: it changes exactly when the document does.
	ETag string
	// Body is the document as the hub served it.
	Body json.RawMessage
}

// DocumentList is a part of a view.
type DocumentList struct {
	Offset int               `json:"offset"`
	Limit  int               `json:"limit"`
	Count  int               `json:"count"`
	Items  []json.RawMessage `json:"items"`
}

func viewPath(name string, more string) string { return "/views/" + url.PathEscape(name) + more }

// Views lists the read models that the caller may read.
func (c *Client) Views(ctx context.Context) ([]ViewInfo, error) {
	var got struct{ Views []ViewInfo }
	err := c.call(ctx, http.MethodGet, "/views", nil, nil, &got)
	return got.Views, err
}

// View gives the read model that a collection belongs to.
func (c *Client) View(ctx context.Context, name string) (ViewInfo, error) {
	var got ViewInfo
	err := c.call(ctx, http.MethodGet, viewPath(name, ""), nil, nil, &got)
	return got, err
}

// Snap gives one document; there is none: not_found. Where etag is the one that
// the document has, it has not changed, and fresh is false.
func (c *Client) Snap(ctx context.Context, view, key, etag string) (d Document, fresh bool, err error) {
	r, err := c.request(ctx, http.MethodGet, viewPath(view, "/snap/"+url.PathEscape(key)), nil, nil)
	if err != nil {
		return d, false, err
	}
	if etag != "" {
		r.Header.Set("If-None-Match", etag)
	}
	got, err := c.o.HTTP.Do(r)
	if err != nil {
		if cause := ctx.Err(); cause != nil {
			return d, false, cause
		}
		return d, false, err
	}
	defer got.Body.Close()
	switch got.StatusCode {
	case http.StatusNotModified:
		return Document{ETag: got.Header.Get("ETag")}, false, nil
	case http.StatusOK:
	default:
		return d, false, refusal(got)
	}
	body, err := io.ReadAll(io.LimitReader(got.Body, maxAnswer))
	if err != nil {
		return d, false, fmt.Errorf("client: view %s: %w", view, err)
	}
	return Document{ETag: got.Header.Get("ETag"), Body: body}, true, nil
}

// ListView gives documents, newest first. A filter is a field that the view
// declares as indexed, and the text of what it equals. A limit of 0 lets the hub
// decide.
func (c *Client) ListView(ctx context.Context, view string, filter map[string]string, offset, limit int) (DocumentList, error) {
	q := make(url.Values)
	for name, value := range filter {
		q.Set(name, value)
	}
	if offset > 0 {
		q.Set("offset", strconv.Itoa(offset))
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var got DocumentList
	err := c.call(ctx, http.MethodGet, viewPath(view, "/list"), q, nil, &got)
	return got, err
}

// RebuildView has the hub begin to build a view anew, from its first event or,
// with from "snapshot", from the snapshots of its topic. [Client.View] tells how
// far it is.
func (c *Client) RebuildView(ctx context.Context, name, from string) (ViewInfo, error) {
	body := map[string]string{}
	if from != "" {
		body["from"] = from
	}
	var got ViewInfo
	err := c.call(ctx, http.MethodPost, viewPath(name, "/rebuild"), nil, body, &got)
	return got, err
}
