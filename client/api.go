package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"promethean/event"
)

// The calls of this file and its neighbours go over HTTP, one request each.
// They are made once: who wants to try again asks Temporary. A refusal is an
// *Error.

// Bounds of the hub that callers have to know.
const (
	// MaxBatch is how many events one batch may hold.
	MaxBatch = 10_000
	// MaxBatchBytes is how large its rows may be together.
	MaxBatchBytes = 8 << 20
	// MaxPage is how many events one page may have.
	MaxPage = 10_000
)

// Where a [Place] is.
const (
	Earliest = "earliest" // before the first event
	Latest   = "latest"   // after the last one
	ByTime   = "ts"       // before the first event with that time or a later one
	ByID     = "afterId"  // after that event
	BySeq    = "seq"      // after that seq
)

// Place is a place in a topic, between two events. The zero value lets the hub
// decide: that is the beginning for who reads, and the end for who waits for
// what comes.
type Place struct {
	// From is one of Earliest, Latest, ByTime, ByID, BySeq.
	From string
	// Time belongs to ByTime.
	Time time.Time
	// ID belongs to ByID.
	ID event.ID
	// Seq belongs to BySeq.
	Seq uint64
}

// afterSeq is the place after a seq.
func afterSeq(seq uint64) Place { return Place{From: BySeq, Seq: seq} }

// query adds the place to a query.
func (p Place) query(q url.Values) {
	if p.From != "" {
		q.Set("from", p.From)
	}
	switch p.From {
	case ByTime:
		q.Set("ts", strconv.FormatInt(p.Time.UnixMilli(), 10))
	case ByID:
		q.Set("afterId", p.ID.String())
	case BySeq:
		q.Set("seq", strconv.FormatUint(p.Seq, 10))
	}
}

// fields adds the place to the fields of a body.
func (p Place) fields(m map[string]any) {
	if p.From != "" {
		m["from"] = p.From
	}
	switch p.From {
	case ByTime:
		m["ts"] = p.Time.UnixMilli()
	case ByID:
		m["afterId"] = p.ID.String()
	case BySeq:
		m["seq"] = p.Seq
	}
}

// request makes a request with the token of the moment.
func (c *Client) request(ctx context.Context, method, path string, q url.Values, body []byte) (*http.Request, error) {
	u := *c.base
	// The path comes escaped, so that a name with a slash stays one segment.
	escaped := u.EscapedPath() + path
	plain, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, fmt.Errorf("client: %s %s: %w", method, path, err)
	}
	u.Path, u.RawPath, u.RawQuery = plain, escaped, q.Encode()
	var rd io.Reader
	if body != nil {
		rd = bytes.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), rd)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	token, err := c.token(ctx)
	if err != nil {
		return nil, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, nil
}

// send sends a request and gives the answer, if it is a good one. Close its
// body.
func (c *Client) send(r *http.Request) (*http.Response, error) {
	got, err := c.o.HTTP.Do(r)
	if err != nil {
		if cause := r.Context().Err(); cause != nil {
			return nil, cause // without the address before it
		}
		return nil, err
	}
	if got.StatusCode < 200 || got.StatusCode > 299 {
		defer got.Body.Close()
		return nil, refusal(got)
	}
	return got, nil
}

// maxAnswer bounds an answer that is held as a whole.
const maxAnswer = 256 << 20

// call sends in, if it is not nil, as JSON, and reads the answer into out, if
// that is not nil.
func (c *Client) call(ctx context.Context, method, path string, q url.Values, in, out any) error {
	var body []byte
	switch v := in.(type) {
	case nil:
	case json.RawMessage:
		body = v
	default:
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("client: %s %s: %w", method, path, err)
		}
	}
	r, err := c.request(ctx, method, path, q, body)
	if err != nil {
		return err
	}
	return c.exchange(r, out)
}

// exchange sends a request and reads the answer into out, if that is not nil.
func (c *Client) exchange(r *http.Request, out any) error {
	got, err := c.send(r)
	if err != nil {
		return err
	}
	return readAnswer(r, got, out)
}

// readAnswer reads an answer into out, if that is not nil, and closes it.
func readAnswer(r *http.Request, got *http.Response, out any) error {
	defer got.Body.Close()
	if out == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(got.Body, maxProblem)) // the connection can be used again
		return err
	}
	data, err := io.ReadAll(io.LimitReader(got.Body, maxAnswer))
	if err != nil {
		return interrupted(r.Context(), err)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("client: %s %s: the answer is not that of a hub: %w", r.Method, r.URL.Path, err)
	}
	return nil
}

// interrupted gives the reason of the context, if that is why something was
// not read.
func interrupted(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// Ready asks whether the hub takes work. It needs no token.
func (c *Client) Ready(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, "/readyz", nil, nil, nil)
}
