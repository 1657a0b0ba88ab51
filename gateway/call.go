package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/event"
	"promethean/gateway/auth"
	"promethean/schema"
	"promethean/schema/compat"
	"promethean/store"
	"promethean/timetravel"
	"promethean/wire"
)

// call is one HTTP request on its way through a handler.
type call struct {
	g   *Gateway
	w   *recorder
	r   *http.Request
	who *auth.Principal // nil where nobody needs a token

	forwarded bool          // another hub has sent it: it goes no further
	proved    bool          // and that is proved
	sent      []byte        // the body, where it is JSON and was read
	waits     time.Duration // how long the call asks to wait
}

// handler serves a call. An error becomes the answer, unless something was
// written before: then the connection is cut, so that nobody takes a part for
// the whole.
type handler func(c *call) error

// answerJSON writes v as the answer.
func (c *call) answerJSON(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.answer(status, append(body, '\n'))
}

// answer writes JSON that is ready.
func (c *call) answer(status int, body []byte) error {
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	_, err := c.w.Write(body)
	return err
}

// allow is the check of access for what the call is about.
func (c *call) allow(a auth.Action, topic string) error { return c.g.allow(c.who, a, topic) }

// queryTopic reads the query parameter topic and checks its name, and that it
// exists where topics must.
func (c *call) queryTopic() (string, error) {
	topic := c.r.URL.Query().Get("topic")
	if err := event.CheckTopic(topic); err != nil {
		return "", err
	}
	return topic, c.g.exists(c.r.Context(), topic)
}

// queryNum reads a number of the query. Without one it is def; above most it is
// most.
func (c *call) queryNum(name string, def, most uint64) (uint64, error) {
	s := c.r.URL.Query().Get(name)
	if s == "" {
		return def, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return most, nil
	}
	if err != nil {
		return 0, wire.Errorf(wire.InvalidArgument, "%s: %q is no number from 0 on", name, clip(s))
	}
	return min(n, most), nil
}

// parseTime reads epoch milliseconds or RFC 3339.
func parseTime(name, s string) (int64, error) {
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil && ms >= 0 && ms <= event.MaxTS {
		return ms, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil && t.UnixMilli() >= 0 && t.UnixMilli() <= event.MaxTS {
		return t.UnixMilli(), nil
	}
	return 0, wire.Errorf(wire.InvalidArgument, "%s: %q is neither epoch milliseconds nor a time such as 2026-01-31T12:00:00Z", name, clip(s))
}

// problem is an answer of application/problem+json. What else an error has to
// say stands beside its fields.
type problem struct {
	Type   string    `json:"type"`
	Title  string    `json:"title"`
	Status int       `json:"status"`
	Detail string    `json:"detail,omitempty"`
	Code   wire.Code `json:"code"`

	Index    *int    `json:"index,omitempty"`    // of the bad row of a batch, from 0
	Expected *uint64 `json:"expected,omitempty"` // of a seq_conflict
	Actual   *uint64 `json:"actual,omitempty"`

	Seq      uint64              `json:"seq,omitempty"`      // of an event that cannot be normalised
	Errors   []schema.FieldError `json:"errors,omitempty"`   // of a payload that is not valid
	Problems []compat.Problem    `json:"problems,omitempty"` // of a schema that does not fit

	Oldest    *int64 `json:"oldest,omitempty"`     // ts that can be answered, of a history_gone
	OldestSeq uint64 `json:"oldest_seq,omitempty"` // the same for asOf
}

// problemOf says what an error means to a caller. What went wrong inside is for
// the log, not for him.
func problemOf(err error) problem {
	e := codeOf(err).Entry()
	p := problem{Type: "about:blank", Title: e.Title, Status: e.Status, Code: e.Code, Detail: err.Error()}
	if e.Code == wire.Internal {
		p.Detail = ""
	}
	if errors.Is(err, errMethod) {
		p.Status = http.StatusMethodNotAllowed
	}
	var row *store.EventError
	if errors.As(err, &row) {
		p.Index = &row.Index
	}
	var seq *store.SeqConflictError
	if errors.As(err, &seq) {
		p.Expected, p.Actual = &seq.Expected, &seq.Actual
	}
	var bad *schema.InvalidError
	if errors.As(err, &bad) {
		p.Errors = bad.Errors
	}
	var up *schema.UpcastError
	if errors.As(err, &up) {
		p.Seq = up.Seq
	}
	var conflict *schema.ConflictError
	if errors.As(err, &conflict) {
		p.Problems = conflict.Problems
	}
	var gone *timetravel.GoneError
	if errors.As(err, &gone) {
		p.OldestSeq = gone.OldestSeq
		if gone.Known {
			p.Oldest = &gone.Oldest
		}
	}
	return p
}

// fail answers with a problem.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.Code == wire.Internal {
		g.o.Logger.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	switch p.Code {
	case wire.Unauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="promethean"`)
	case wire.RateLimited:
		h.Set("Retry-After", strconv.Itoa(retryAfter(err)))
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("a problem does not encode: %v", err)) // plain fields
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // who does not take it does not miss it
}

// appendText writes a JSON string, with no more escapes than JSON asks for.
func appendText(b []byte, s string) []byte {
	b, err := jsontext.AppendQuote(b, strings.ToValidUTF8(s, "\uFFFD"))
	if err != nil {
		panic(fmt.Sprintf("a text does not encode: %v", err)) // it is valid
	}
	return b
}
