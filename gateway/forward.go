package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"promethean/cluster"
	"promethean/event"
	"promethean/group"
	"promethean/wire"
)

const (
	// forwardWait is how long the owner may take for a call, beside what the
	// call itself says.
	forwardWait = 15 * time.Second
	// askWait is how long another hub may take to tell what only completes an
	// answer.
	askWait = 3 * time.Second
	// forwardTries is how long a group is given to find an owner that answers.
	forwardTries = 2 * time.Second
	// forwardPause is how long after a try that failed the next one comes, at
	// first and at most.
	forwardPause, forwardMaxPause = 20 * time.Millisecond, 250 * time.Millisecond
	// maxProblem bounds what is read of a refusal.
	maxProblem = 64 << 10
)

// run has a route's handler serve the call, or another hub if that has what the
// call is about: a group, mostly.
func (c *call) run(r *route) error {
	err := r.handle(c)
	began := time.Now()
	for wait := forwardPause; ; wait = min(2*wait, forwardMaxPause) {
		find := c.elsewhere(err)
		if find == nil || c.w.begun || c.forwarded || !c.g.peers.several() {
			return err
		}
		again, failed := c.forward(find)
		if failed == nil || !again || time.Since(began) > forwardTries || !pause(c.r.Context(), wait) {
			return failed
		}
		// It may be ours by now.
		c.r.Body = io.NopCloser(bytes.NewReader(c.sent))
		err = r.handle(c)
	}
}

// finder finds the hub that has what a call is about.
type finder func(ctx context.Context) (cluster.Hub, error)

// atHub says that a call is to be served by another hub than this one, and why
// this one cannot.
type atHub struct {
	find finder
	err  error
}

func (e *atHub) Error() string { return e.err.Error() }

func (e *atHub) Unwrap() error { return e.err }

// elsewhere tells by a handler's error how to find the hub that can serve the
// call. It is nil if none can do better.
func (c *call) elsewhere(err error) finder {
	var no *group.NotOwnerError
	var at *atHub
	switch {
	case errors.As(err, &no):
		return func(ctx context.Context) (cluster.Hub, error) { return c.g.peers.owner(ctx, no.Topic, no.Group) }
	case errors.As(err, &at):
		return at.find
	}
	return nil
}

// owned says that the call is to be served by another hub, which owns the group
// and can be reached. If that hub is only about to own it, or gave no address,
// the call is served here: it waits for the group to be free.
func (c *call) owned(topic, name string) error {
	if !c.g.peers.several() || c.g.hub.Engine().Owns(topic, name) {
		return nil
	}
	_, err := c.g.peers.owner(c.r.Context(), topic, name)
	var none *noAddress
	switch {
	case err == nil:
		return &group.NotOwnerError{Topic: topic, Group: name, Err: group.ErrNotOwner}
	case errors.Is(err, errTransit), errors.As(err, &none):
		return nil
	}
	return err
}

// forward sends the call as it came to another hub, and relays the answer. again
// says that it may work in a moment.
func (c *call) forward(find finder) (again bool, err error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), forwardWait+c.waits)
	defer cancel()
	hub, err := find(ctx)
	if err != nil {
		return true, err
	}
	ctx, undo := c.g.peers.bound(ctx, hub)
	defer undo()
	r, err := c.g.peers.request(ctx, hub, c.r.Method, c.r.URL.RequestURI(), bearer(c.r), bytes.NewReader(c.sent))
	if err != nil {
		return false, err
	}
	for _, name := range []string{"Content-Type", "Accept", "Traceparent", "Tracestate"} {
		if v := c.r.Header.Get(name); v != "" {
			r.Header.Set(name, v)
		}
	}
	got, err := c.g.peers.http.Do(r)
	if err != nil {
		if c.r.Context().Err() != nil {
			return false, c.r.Context().Err()
		}
		return unsent(err), c.g.peers.unreachable(hub, err)
	}
	defer func() { _ = got.Body.Close() }()
	if got.StatusCode == http.StatusServiceUnavailable {
		return true, problemOfOwner(got)
	}
	h := c.w.Header()
	for _, name := range []string{"Content-Type", "Content-Length", "Retry-After", "Www-Authenticate"} {
		if v := got.Header.Get(name); v != "" {
			h.Set(name, v)
		}
	}
	c.w.WriteHeader(got.StatusCode)
	_, err = io.Copy(c.w, got.Body)
	return false, err
}

// askPeer reads what another hub, of which is known what it has, answers to a GET
// of the same caller.
func (c *call) askPeer(id, has, uri string, out any) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), askWait)
	defer cancel()
	hub, err := c.g.peers.address(ctx, id, has)
	if err != nil {
		return err
	}
	r, err := c.g.peers.request(ctx, hub, http.MethodGet, uri, bearer(c.r), nil)
	if err != nil {
		return err
	}
	got, err := c.g.peers.http.Do(r)
	if err != nil {
		return c.g.peers.unreachable(hub, err)
	}
	defer func() { _ = got.Body.Close() }()
	if got.StatusCode != http.StatusOK {
		return problemOfOwner(got)
	}
	return json.NewDecoder(io.LimitReader(got.Body, maxBody)).Decode(out)
}

// problemOfOwner is the error that an owner answered with. That it shuts down
// is no reason to say so of this hub.
func problemOfOwner(got *http.Response) error {
	var p struct {
		Code   wire.Code
		Detail string
	}
	data, err := io.ReadAll(io.LimitReader(got.Body, maxProblem))
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil || p.Code == "" || p.Code == wire.Draining {
		p.Code = wire.Unavailable
	}
	if p.Detail == "" {
		p.Detail = p.Code.Entry().Title
	}
	return wire.Errorf(p.Code, "the hub that has it: %s", clipTo(p.Detail, 500))
}

// settlement is an ACK, NACK or MODACK of a connection.
type settlement struct {
	op           wire.Op
	topic, group string
	ids          []group.Selected
	nack         group.Nack
	extend       time.Duration
}

// as settles by the engine of this hub what lies in the partitions of a member.
func (s *settlement) as(e *group.Engine, as []*group.Member) ([]group.Result, error) {
	switch s.op {
	case wire.OpNack:
		return e.NackAs(as, s.topic, s.ids, s.nack)
	case wire.OpModAck:
		return e.ExtendAs(as, s.topic, s.ids, s.extend)
	}
	return e.AckAs(as, s.topic, s.ids, false)
}

// here settles by the engine of this hub.
func (s *settlement) here(e *group.Engine) ([]group.Result, error) {
	switch s.op {
	case wire.OpNack:
		return e.Nack(s.topic, s.group, s.ids, s.nack)
	case wire.OpModAck:
		return e.Extend(s.topic, s.group, s.ids, s.extend)
	}
	return e.Ack(s.topic, s.group, s.ids, false)
}

// settle settles for the client, at the owner of the group.
func (c *connection) settle(s *settlement) ([]group.Result, error) {
	if as, parted := c.asMember(s.topic, s.group); parted {
		return s.as(c.g.hub.Engine(), as)
	}
	if c.forwarded || !c.g.peers.several() {
		return s.here(c.g.hub.Engine())
	}
	began := time.Now()
	away := c.relays(s.topic, s.group) // it is known to be another hub's
	for wait := forwardPause; ; wait = min(2*wait, forwardMaxPause) {
		if !away {
			results, err := s.here(c.g.hub.Engine())
			if !errors.Is(err, group.ErrNotOwner) {
				return results, err
			}
		}
		results, again, err := c.settleAway(s)
		if err == nil || !again || time.Since(began) > forwardTries || !pause(c.g.ctx, wait) {
			return results, err
		}
		away = false
	}
}

// settleAway settles at the hub that owns the group. again says that it may
// work in a moment.
func (c *connection) settleAway(s *settlement) (results []group.Result, again bool, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, forwardWait)
	defer cancel()
	hub, err := c.g.peers.owner(ctx, s.topic, s.group)
	if err != nil {
		return nil, true, err
	}
	ctx, undo := c.g.peers.bound(ctx, hub)
	defer undo()
	for len(results) < len(s.ids) { // no call takes more
		part := *s
		part.ids = s.ids[len(results):min(len(results)+maxIDs, len(s.ids))]
		uri, body := part.request()
		r, err := c.g.peers.request(ctx, hub, http.MethodPost, uri, c.bearer(), bytes.NewReader(body))
		if err != nil {
			return nil, false, err
		}
		got, err := c.g.peers.http.Do(r) //nolint:bodyclose // readResults does it
		if err != nil {
			// An ack may be said twice; of the rest nobody knows whether it was heard.
			return nil, s.op == wire.OpAck || unsent(err), c.g.peers.unreachable(hub, err)
		}
		done, err := readResults(got, part.ids)
		if err != nil {
			return nil, codeOf(err) == wire.Unavailable, err
		}
		results = append(results, done...)
	}
	return results, false, nil
}

// request gives the call that does the same by HTTP.
func (s *settlement) request() (uri string, body []byte) {
	in := struct {
		Topic  string   `json:"topic"`
		Group  string   `json:"group"`
		IDs    []string `json:"ids"`
		Leases []string `json:"leases"`
		Reason string   `json:"reason,omitempty"`
		Delay  *int64   `json:"delay_ms,omitempty"`
		Dead   bool     `json:"dead,omitempty"`
		Extend *int64   `json:"extend_ms,omitempty"`
	}{Topic: s.topic, Group: s.group}
	for _, id := range s.ids {
		in.IDs = append(in.IDs, id.ID.String())
		in.Leases = append(in.Leases, strconv.FormatUint(id.Lease, 10))
	}
	uri = "/ack"
	switch s.op {
	case wire.OpNack:
		uri = "/nack"
		in.Reason, in.Dead = s.nack.Reason, s.nack.Dead
		if s.nack.HasDelay {
			in.Delay = new(s.nack.Delay.Milliseconds())
		}
	case wire.OpModAck:
		uri = "/modack"
		in.Extend = new(s.extend.Milliseconds())
	}
	body, err := json.Marshal(in)
	if err != nil {
		panic(err) // plain fields: it cannot fail
	}
	return uri, body
}

// readResults reads the answer of the owner.
func readResults(got *http.Response, ids []group.Selected) ([]group.Result, error) {
	defer func() { _ = got.Body.Close() }()
	if got.StatusCode != http.StatusOK {
		return nil, problemOfOwner(got)
	}
	var out struct {
		Results []struct {
			ID  event.ID
			OK  bool
			Err wire.Code
		}
	}
	if err := json.NewDecoder(got.Body).Decode(&out); err != nil || len(out.Results) != len(ids) {
		return nil, wire.Errorf(wire.Unavailable, "the hub that owns the group gave no answer that can be read")
	}
	list := make([]group.Result, len(ids))
	for i, r := range out.Results {
		list[i].ID = ids[i].ID
		if !r.OK {
			list[i].Err = wire.Errorf(r.Err, "%s", r.Err.Entry().Title)
		}
	}
	return list, nil
}
