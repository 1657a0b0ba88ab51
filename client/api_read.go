package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/event"
)

// Locate gives the seq that a place is after: 0 at the beginning of a topic
// that never lost an event, the last seq at its end.
func (c *Client) Locate(ctx context.Context, topic string, p Place) (uint64, error) {
	q := url.Values{"topic": {topic}, "limit": {"0"}}
	p.query(q)
	var got struct{ Next uint64 }
	err := c.call(ctx, http.MethodGet, "/replay", q, nil, &got)
	return got.Next, err
}

// ReadOptions bound a read. The zero value reads on to the end of the topic.
type ReadOptions struct {
	// Until is the last seq that is read. The default is the end of the topic
	// as it is when the read comes there.
	Until uint64
	// Page is how many events one request asks for. The default, and the most,
	// is MaxPage.
	Page int
	// Normalise gives events in the latest version of their schema. One that
	// cannot be brought up to it ends the read with an error that names it. The
	// default is to give them as they were stored.
	Normalise bool
}

// Read gives the events of a topic from a place on, in order, page by page,
// until there are no more. It holds one event at a time. After an error there
// is nothing more; go on with a new Read after the last seq.
func (c *Client) Read(ctx context.Context, topic string, from Place, o ReadOptions) iter.Seq2[event.Event, error] {
	page := o.Page
	if page <= 0 || page > MaxPage {
		page = MaxPage
	}
	return func(yield func(event.Event, error) bool) {
		for {
			q := url.Values{"topic": {topic}, "limit": {strconv.Itoa(page)}}
			from.query(q)
			setNormalise(q, o.Normalise)
			n, last := 0, uint64(0)
			for e, err := range c.page(ctx, "/replay", q) {
				if err == nil && o.Until > 0 && e.Seq > o.Until {
					return
				}
				if !yield(e, err) || err != nil {
					return
				}
				n, last = n+1, e.Seq
			}
			if n == 0 || o.Until > 0 && last >= o.Until {
				return
			}
			from = afterSeq(last)
		}
	}
}

// setNormalise adds to a query that events are to be normalised.
func setNormalise(q url.Values, on bool) {
	if on {
		q.Set("normalise", "1")
	}
}

// History gives the events of a key in log order, those after a seq.
func (c *Client) History(ctx context.Context, topic, key string, after uint64) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		for {
			q := url.Values{"topic": {topic}, "key": {key}, "limit": {strconv.Itoa(MaxPage)}, "after": {strconv.FormatUint(after, 10)}}
			n := 0
			for e, err := range c.page(ctx, "/history", q) {
				if !yield(e, err) || err != nil {
					return
				}
				n, after = n+1, e.Seq
			}
			if n == 0 {
				return
			}
		}
	}
}

// page gives the events of one answer with a list of them, as they come.
func (c *Client) page(ctx context.Context, path string, q url.Values) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		for row, err := range c.list(ctx, path, q, "events") {
			var e event.Event
			if err == nil {
				err = event.DecodeJSON(row, &e)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// list gives the elements of the array under a name in an object, as they
// come, so that a long answer is never held as a whole. An element is good
// until the next one.
func (c *Client) list(ctx context.Context, path string, q url.Values, name string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		r, err := c.request(ctx, http.MethodGet, path, q, nil)
		if err != nil {
			yield(nil, err)
			return
		}
		got, err := c.send(r)
		if err != nil {
			yield(nil, err)
			return
		}
		defer got.Body.Close()
		// The hub has checked names and texts; to look again takes time.
		d := jsontext.NewDecoder(got.Body, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
		fail := func(err error) { yield(nil, interrupted(ctx, err)) }
		if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
			fail(badAnswer(path, err))
			return
		}
		for d.PeekKind() == '"' {
			t, err := d.ReadToken()
			if err != nil {
				fail(err)
				return
			}
			if t.String() == "error" && d.PeekKind() == '{' {
				// The hub could not go on, and says why.
				problem, err := d.ReadValue()
				if err == nil {
					err = brokenOff(problem)
				}
				fail(err)
				return
			}
			if t.String() != name || d.PeekKind() != '[' {
				if err := d.SkipValue(); err != nil {
					fail(err)
					return
				}
				continue
			}
			if _, err := d.ReadToken(); err != nil {
				fail(err)
				return
			}
			for d.PeekKind() != ']' {
				row, err := d.ReadValue()
				if err != nil {
					fail(err)
					return
				}
				if !yield(row, nil) {
					return
				}
			}
			if _, err := d.ReadToken(); err != nil {
				fail(err)
				return
			}
		}
		// What does not end well was cut off.
		if _, err := d.ReadToken(); err != nil {
			fail(err)
		}
	}
}

// badAnswer is the error about something that does not speak as a hub does.
func badAnswer(path string, err error) error {
	var syntax *jsontext.SyntacticError
	if err == nil || errors.As(err, &syntax) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("client: %s: the answer is not that of a hub", path)
	}
	return err
}

// ExportOptions bound an export by time. The zero value takes everything.
type ExportOptions struct {
	// From leaves out events before it. The default is none.
	From time.Time
	// To leaves out events after it. The default is none.
	To time.Time
	// Normalise gives events in the latest version of their schema. One that
	// cannot be brought up to it ends the export with an error that names it.
	// The default is to give them as they were stored.
	Normalise bool
}

// maxLine bounds one event of a stream: far above the largest payload that a
// hub can be set to.
const maxLine = 256 << 20

// Export gives all events of a topic, in order, by one request and one at a
// time. An error in the middle means that the stream was cut: what came before
// it is whole.
func (c *Client) Export(ctx context.Context, topic string, o ExportOptions) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		q := url.Values{"topic": {topic}, "ndjson": {"1"}}
		if !o.From.IsZero() {
			q.Set("fromTs", strconv.FormatInt(o.From.UnixMilli(), 10))
		}
		if !o.To.IsZero() {
			q.Set("toTs", strconv.FormatInt(o.To.UnixMilli(), 10))
		}
		setNormalise(q, o.Normalise)
		r, err := c.request(ctx, http.MethodGet, "/export", q, nil)
		if err != nil {
			yield(event.Event{}, err)
			return
		}
		got, err := c.send(r)
		if err != nil {
			yield(event.Event{}, err)
			return
		}
		defer got.Body.Close()
		lines := bufio.NewReaderSize(got.Body, 256<<10)
		for {
			line, err := readLine(lines)
			if err == io.EOF && len(line) == 0 { //nolint:errorlint // a reader gives io.EOF itself
				return
			}
			var e event.Event
			if err != nil {
				err = interrupted(ctx, err)
			} else if err = streamError(line); err == nil {
				err = event.DecodeJSON(line, &e)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// readLine gives the next line without its end, good until the next call. The
// rest of a text that ends without a line feed comes with io.EOF.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return bytes.TrimRight(line, "\r\n"), err
	}
	long := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(long) > maxLine {
			return nil, fmt.Errorf("client: a line is longer than %d bytes", maxLine)
		}
		line, err = r.ReadSlice('\n')
		long = append(long, line...)
	}
	return bytes.TrimRight(long, "\r\n"), err
}

// LatestByKey gives the latest event of each key; keys without one are left
// out. At most 1,000 keys can be asked for at once.
func (c *Client) LatestByKey(ctx context.Context, topic string, keys ...string) (map[string]event.Event, error) {
	var got map[string]json.RawMessage
	if err := c.call(ctx, http.MethodGet, "/latest-by-key", url.Values{"topic": {topic}, "key": keys}, nil, &got); err != nil {
		return nil, err
	}
	out := make(map[string]event.Event, len(got))
	for k, v := range got {
		if string(v) == "null" {
			continue
		}
		var e event.Event
		if err := event.DecodeJSON(v, &e); err != nil {
			return nil, err
		}
		out[k] = e
	}
	return out, nil
}
