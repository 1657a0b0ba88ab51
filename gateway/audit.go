package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"promethean"
	"promethean/gateway/auth"
	"promethean/wire"
)

const (
	auditKept   = 90 * 24 * time.Hour // where system.audit has no settings yet
	auditQueue  = 256                 // records that wait to be written
	auditBatch  = 64
	auditWait   = 10 * time.Second // for one write
	auditBody   = 4 << 10          // of what was asked for, that is kept
	refusalRate = 3                // a second; a few more may come at once
)

// auditRecord is a payload of system.audit. All texts are of bounded length.
type auditRecord struct {
	// Action is the route that was called, such as "PUT /cursors", "login" for
	// a token that was refused, or "audit" for records that were lost.
	Action    string `json:"action"`
	Principal string `json:"principal"`
	Topic     string `json:"topic,omitempty"`
	Group     string `json:"group,omitempty"`
	// Outcome is "ok", or the code of the problem.
	Outcome string `json:"outcome"`
	Status  int    `json:"status,omitempty"`
	Detail  string `json:"detail,omitempty"`
	// Request is the beginning of the body, as text.
	Request string `json:"request,omitempty"`
	Remote  string `json:"remote,omitempty"`
	// Omitted is how many refusals before this one are not in the topic.
	Omitted int64 `json:"omitted,omitempty"`
}

// auditor writes records to system.audit, beside the requests: they never wait
// for it, and never fail because of it. One goroutine writes; it begins with
// the first record and ends with close.
type auditor struct {
	topic *promethean.SystemTopic
	log   *slog.Logger

	refusals *rate.Limiter
	omitted  atomic.Int64  // refusals that were too many
	nudge    chan struct{} // has room for one: something was omitted
	lost     atomic.Int64  // records that found no room

	mu      sync.Mutex
	queue   chan auditRecord // nil before the first record
	closed  bool
	done    chan struct{}
	writing context.Context
	giveUp  context.CancelFunc
}

func newAuditor(hub *promethean.Hub, log *slog.Logger) *auditor {
	topic, err := hub.SystemTopic("audit", auditKept)
	if err != nil {
		panic(fmt.Sprintf("system.audit: %v", err)) // the name is a constant
	}
	a := &auditor{
		topic: topic, log: log,
		refusals: rate.NewLimiter(refusalRate, 2*refusalRate),
		nudge:    make(chan struct{}, 1),
		done:     make(chan struct{}),
	}
	a.writing, a.giveUp = context.WithCancel(context.Background())
	return a
}

// add has a record written. It does not wait: where there is no room, or it is
// too late, the record is counted as lost.
func (a *auditor) add(r auditRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		a.logLost(r, promethean.ErrClosed)
		return
	}
	if a.queue == nil {
		a.queue = make(chan auditRecord, auditQueue)
		go a.run(a.queue)
	}
	select {
	case a.queue <- r:
	default:
		a.lost.Add(1)
	}
}

// refused is add for what anybody can cause as often as he likes: only a few a
// second are written, and how many were not.
func (a *auditor) refused(r auditRecord) {
	if a.refusals.Allow() {
		r.Omitted = a.omitted.Swap(0)
		a.add(r)
		return
	}
	a.omitted.Add(1)
	select {
	case a.nudge <- struct{}{}:
	default:
	}
}

// run writes what comes until the queue is closed.
func (a *auditor) run(queue <-chan auditRecord) {
	defer close(a.done)
	const pause = time.Second
	later := time.NewTimer(pause) // when what was omitted is told, if nothing else tells it
	later.Stop()
	defer later.Stop()
	for {
		select {
		case r, ok := <-queue:
			if !ok {
				a.write(a.left())
				return
			}
			batch := []auditRecord{r}
			for more := true; more && len(batch) < auditBatch; {
				select {
				case r, ok := <-queue:
					if more = ok; ok {
						batch = append(batch, r)
					}
				default:
					more = false
				}
			}
			a.write(append(batch, a.lostOnes()...))
		case <-a.nudge:
			later.Reset(pause)
		case <-later.C:
			a.write(a.left())
		}
	}
}

// left are records of what is not in the topic and was not told yet.
func (a *auditor) left() []auditRecord {
	list := a.lostOnes()
	if n := a.omitted.Swap(0); n > 0 {
		list = append(list, auditRecord{Action: "login", Principal: unknown, Outcome: string(wire.Unauthorized), Detail: "more refusals than are written one by one", Omitted: n})
	}
	return list
}

func (a *auditor) lostOnes() []auditRecord {
	n := a.lost.Swap(0)
	if n == 0 {
		return nil
	}
	a.log.Error("audit records were lost: more came than could be written", "count", n)
	return []auditRecord{{Action: "audit", Principal: "hub", Outcome: "lost", Detail: "more records came than could be written", Omitted: n}}
}

func (a *auditor) write(batch []auditRecord) {
	if len(batch) == 0 {
		return
	}
	payloads := make([]json.RawMessage, len(batch))
	for i, r := range batch {
		p, err := json.Marshal(r)
		if err != nil {
			panic(fmt.Sprintf("an audit record does not encode: %v", err)) // plain fields
		}
		payloads[i] = p
	}
	ctx, cancel := context.WithTimeout(a.writing, auditWait)
	defer cancel()
	if err := a.topic.Append(ctx, payloads...); err != nil {
		for _, r := range batch {
			a.logLost(r, err)
		}
	}
}

// logLost keeps a record in the log at least.
func (a *auditor) logLost(r auditRecord, err error) {
	a.log.Error("an audit record was not stored", "err", err, "action", r.Action, "principal", r.Principal,
		"topic", r.Topic, "group", r.Group, "outcome", r.Outcome, "detail", r.Detail, "remote", r.Remote, "omitted", r.Omitted)
}

// close writes what waits, and ends. If ctx ends before, the rest is lost.
func (a *auditor) close(ctx context.Context) error {
	defer a.giveUp()
	a.mu.Lock()
	running := a.queue != nil
	if running && !a.closed {
		close(a.queue)
	}
	a.closed = true
	a.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		a.giveUp()
		<-a.done
		return ctx.Err()
	}
}

// Names of principals that are none.
const (
	unknown   = "unknown"   // a token that was refused
	anonymous = "anonymous" // nobody needs a token
)

// audit records what a call did. err is how it ended; without one the status
// that was written tells.
func (g *Gateway) audit(c *call, action string, status int, body string, err error) {
	r := auditRecord{Action: action, Principal: anonymous, Outcome: "ok", Status: status, Remote: clip(c.r.RemoteAddr)}
	if c.who != nil {
		r.Principal = c.who.Name
	}
	switch {
	case err != nil:
		p := problemOf(err)
		r.Outcome, r.Status, r.Detail = string(p.Code), p.Status, clipTo(p.Detail, 500)
	case status == 0:
		r.Status = http.StatusOK // what the server writes for a handler that did not
	case status >= http.StatusBadRequest:
		r.Outcome = "failed"
	}
	q := c.r.URL.Query()
	r.Topic, r.Group = c.r.PathValue("topic"), c.r.PathValue("group")
	var in struct{ Topic, Group string }
	_ = json.Unmarshal([]byte(body), &in) // what does not parse names nothing
	for _, f := range []struct {
		to         *string
		name, said string
	}{{&r.Topic, "topic", in.Topic}, {&r.Group, "group", in.Group}} {
		if *f.to == "" {
			*f.to = q.Get(f.name)
		}
		if *f.to == "" {
			*f.to = f.said
		}
		*f.to = c.hush(clipTo(*f.to, 200))
	}
	r.Detail, r.Request = c.hush(r.Detail), c.hush(body)
	if r.Outcome == string(wire.Unauthorized) || r.Outcome == string(wire.Forbidden) {
		if c.who == nil {
			r.Principal = unknown
		}
		g.auditor.refused(r)
		return
	}
	g.auditor.add(r)
}

// hush takes the caller's token out of a text, wherever he may have put it.
func (c *call) hush(s string) string {
	token := bearer(c.r)
	if token == "" || !strings.Contains(s, token) {
		return s
	}
	return strings.ReplaceAll(s, token, "[token]")
}

// auditLogin records that a token was refused.
func (g *Gateway) auditLogin(remote string, err error) {
	g.auditor.refused(auditRecord{
		Action: "login", Principal: unknown, Outcome: string(wire.Unauthorized), Status: wire.Unauthorized.Status(),
		Detail: clipTo(err.Error(), 500), Remote: clip(remote),
	})
}

// audits says whether calls of a route are recorded: all that change something
// by the scope admin.
func (r *route) audits() bool {
	return r.action == auth.Admin && r.method != http.MethodGet && r.method != http.MethodHead
}

// recorded takes a call through its handler, and records how it ended.
func (c *call) recorded(route *route, w *recorder) (err error) {
	body := &peeked{ReadCloser: c.r.Body}
	c.r.Body = body
	ended := false
	defer func() {
		how := err
		if !ended {
			how = errPanic
		}
		c.g.audit(c, route.method+" "+route.path, w.status, string(body.seen), how)
	}()
	if err = c.admit(route); err == nil {
		err = c.run(route)
	}
	ended = true
	return err
}

var errPanic = errors.New("the handler panicked")

// peeked remembers the beginning of a body that somebody reads.
type peeked struct {
	io.ReadCloser
	seen []byte
}

// Read implements [io.Reader].
func (p *peeked) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	p.seen = append(p.seen, b[:min(n, auditBody-len(p.seen))]...)
	return n, err
}
