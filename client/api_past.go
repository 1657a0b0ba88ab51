package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"promethean/event"
)

// When says which moment of the past is meant. The zero value means now.
type When struct {
	// Time is the moment: events with a later time do not count.
	Time time.Time
	// AsOf is how far the log had come: events with a higher seq do not count.
	AsOf *uint64
	// Reduce says how events become a state: replace or merge (RFC 7386). The
	// default is what the hub has for the topic.
	Reduce string
}

// State is what a key was.
type State struct {
	Topic string `json:"topic"`
	Key   string `json:"key"`
	// State is null where there was nothing, or it was deleted.
	State json.RawMessage `json:"state"`
	// TS and Seq are those of the last event that counts, 0 if there is none.
	TS  int64  `json:"ts"`
	Seq uint64 `json:"seq"`
	// Events is how many were applied.
	Events int `json:"events"`
}

// At says what a key was. If events are gone that may have to do with the
// answer, the error has the code history_gone, and says in [Error.Oldest] from
// when on there is one.
func (c *Client) At(ctx context.Context, topic, key string, w When) (State, error) {
	q := url.Values{"topic": {topic}, "key": {key}}
	if !w.Time.IsZero() {
		q.Set("ts", strconv.FormatInt(w.Time.UnixMilli(), 10))
	}
	if w.AsOf != nil {
		q.Set("asOf", strconv.FormatUint(*w.AsOf, 10))
	}
	setReduce(q, w.Reduce)
	var s State
	err := c.call(ctx, http.MethodGet, "/at", q, nil, &s)
	return s, err
}

func setReduce(q url.Values, reduce string) {
	if reduce != "" {
		q.Set("reduce", reduce)
	}
}

// Step is an event of a key, and what it changed.
type Step struct {
	Event event.Event `json:"event"`
	// State is what the key was after it; nil where that is not known, since
	// events before are gone.
	State json.RawMessage `json:"state,omitzero"`
	// Changes are what differs from the state before; nil where that is not
	// known.
	Changes []Change `json:"changes,omitzero"`
}

// Change is one difference: the value at a path before and after.
type Change struct {
	// Op is add, remove or replace.
	Op string `json:"op"`
	// Path is a JSON pointer into the state.
	Path string          `json:"path"`
	From json.RawMessage `json:"from,omitempty"` // not of an add
	To   json.RawMessage `json:"to,omitempty"`   // not of a remove
}

// HistoryDiff gives the events of a key in log order, those after a seq, each
// with what it changed. Reduce is as in [When].
func (c *Client) HistoryDiff(ctx context.Context, topic, key string, after uint64, reduce string) iter.Seq2[Step, error] {
	return func(yield func(Step, error) bool) {
		for {
			q := url.Values{"topic": {topic}, "key": {key}, "limit": {strconv.Itoa(MaxPage)}, "after": {strconv.FormatUint(after, 10)}, "diff": {"1"}}
			setReduce(q, reduce)
			n := 0
			for row, err := range c.list(ctx, "/history", q, "steps") {
				var s Step
				if err == nil {
					err = json.Unmarshal(row, &s)
				}
				if !yield(s, err) || err != nil {
					return
				}
				n, after = n+1, s.Event.Seq
			}
			if n == 0 {
				return
			}
		}
	}
}
