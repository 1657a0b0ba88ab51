package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"promethean/cluster"
	"promethean/gateway/internal/frame"
	"promethean/wire"
)

const (
	// upstreamWait is how long another hub may take to answer a frame.
	upstreamWait = 10 * time.Second
	// upstreamPing is how often a connection to another hub is tried: it may be
	// cut without a word.
	upstreamPing = 3 * time.Second
	// upstreamPong is how long the answer to that may take.
	upstreamPong = 5 * time.Second
	// upstreamLeave is how long another hub may take to give leases back.
	upstreamLeave = time.Second
)

// upstream is a WebSocket from this hub to another, for the subscriptions of one
// client that the other hub serves. It is made when the first of them needs it,
// and closed with the last.
//
// A client that does not read keeps the upstream from being read, and so the
// owner from sending more than the network and its own queue hold: nothing
// piles up here.
type upstream struct {
	c      *connection
	hub    cluster.Hub
	conn   *websocket.Conn
	ctx    context.Context
	cancel context.CancelFunc
	behind atomic.Bool // the client has no room: nothing is read meanwhile

	flushing atomic.Bool // somebody is about to write what was passed

	mu    sync.Mutex
	subs  map[subName]*relayed
	calls map[uint64]chan error
	corr  uint64
	ended bool
}

// relayed is one subscription there.
type relayed struct {
	m    *member
	over chan struct{} // closed when the other hub no longer serves it
}

var errLost = errors.New("the connection to the owner is lost")

// upstream gives the connection to a hub, made if there is none.
func (c *connection) upstream(ctx context.Context, hub cluster.Hub) (*upstream, error) {
	c.away.dialing.Lock() // several subscriptions may want the same one
	defer c.away.dialing.Unlock()
	c.mu.Lock()
	u, token, ended := c.away.upstreams[hub.ID], c.away.token, c.ended
	c.mu.Unlock()
	switch {
	case ended:
		return nil, context.Canceled
	case u != nil:
		return u, nil
	}
	p := c.g.peers
	dial, cancel := context.WithTimeout(ctx, peerDial+peerDial)
	defer cancel()
	r, err := p.request(dial, hub, http.MethodGet, "/ws", token, nil)
	if err != nil {
		return nil, err
	}
	conn, answer, err := websocket.Dial(dial, hub.URL+"/ws", &websocket.DialOptions{HTTPClient: p.http, HTTPHeader: r.Header})
	if err != nil {
		if answer != nil {
			_ = answer.Body.Close() // what it says is the status
			if answer.StatusCode == http.StatusServiceUnavailable {
				return nil, errTransit // it is shutting down
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, p.unreachable(hub, err)
	}
	conn.SetReadLimit(int64(4 * max(maxFrame, 2*c.g.payloadLimit())))
	u = &upstream{c: c, hub: hub, conn: conn, subs: make(map[subName]*relayed), calls: make(map[uint64]chan error)}
	u.ctx, u.cancel = p.bound(context.Background(), hub)
	c.mu.Lock()
	if ended = c.ended; !ended {
		c.away.upstreams[hub.ID] = u
		c.g.open.Add(2) // the connection itself is still counted
	}
	c.mu.Unlock()
	if ended {
		u.cancel()
		_ = conn.CloseNow() // nobody wants it any more
		return nil, context.Canceled
	}
	go u.read()
	go u.try()
	return u, nil
}

// read takes what the other hub sends until the end.
func (u *upstream) read() {
	defer u.c.g.open.Done()
	for {
		_, msg, err := u.conn.Read(u.ctx)
		if err != nil {
			break
		}
		u.take(msg)
	}
	u.end()
}

// end lets go of everything: subscriptions look for an owner again.
func (u *upstream) end() {
	u.cancel()
	_ = u.conn.CloseNow() // it may be closed already
	u.mu.Lock()
	u.ended = true
	subs, calls := u.subs, u.calls
	u.subs, u.calls = nil, nil
	u.mu.Unlock()
	for _, s := range subs {
		u.drop(s)
	}
	for _, done := range calls {
		done <- errLost
	}
	c := u.c
	c.mu.Lock()
	if c.away.upstreams[u.hub.ID] == u {
		delete(c.away.upstreams, u.hub.ID)
	}
	c.mu.Unlock()
}

// drop ends the relaying of one subscription, which is no longer among subs.
func (u *upstream) drop(s *relayed) {
	u.c.mu.Lock()
	if s.m.up == u {
		s.m.up = nil
	}
	u.c.mu.Unlock()
	close(s.over)
}

// try finds out from time to time whether the other hub is there.
func (u *upstream) try() {
	defer u.c.g.open.Done()
	for pause(u.ctx, upstreamPing) {
		if u.behind.Load() {
			continue // the answer would not be read
		}
		ctx, cancel := context.WithTimeout(u.ctx, upstreamPong)
		err := u.conn.Ping(ctx)
		cancel()
		if err != nil && !u.behind.Load() {
			u.cancel()
			return
		}
	}
}

// take passes one frame on, or takes an answer.
func (u *upstream) take(msg []byte) {
	if topic, group, ok := frame.Source(msg); ok {
		u.mu.Lock()
		s := u.subs[subName{topic, group}]
		u.mu.Unlock()
		if s != nil {
			u.pass(s.m, msg)
		}
		return
	}
	var f struct {
		Op    string    `json:"op"`
		Corr  uint64    `json:"corr"`
		Code  wire.Code `json:"code"`
		Msg   string    `json:"msg"`
		Topic string    `json:"topic"`
		Group string    `json:"group"`
	}
	if json.Unmarshal(msg, &f) != nil {
		return // nothing that a hub says
	}
	var err error
	if f.Op == "ERR" {
		err = wire.Errorf(f.Code, "%s", f.Msg)
	}
	u.mu.Lock()
	done := u.calls[f.Corr]
	delete(u.calls, f.Corr)
	s := u.subs[subName{f.Topic, f.Group}]
	if f.Op == "ERR" && s != nil { // the other hub is not, or no longer, the owner
		delete(u.subs, subName{f.Topic, f.Group})
	} else {
		s = nil
	}
	u.mu.Unlock()
	if done != nil {
		done <- err
	}
	if s != nil {
		u.drop(s)
	}
}

// pass hands events to the client, once it has room for them. What comes from
// a hub that is no longer the owner is late: it is left out, and comes again.
func (u *upstream) pass(m *member, msg []byte) {
	c := u.c
	c.mu.Lock()
	late := m.up != u
	c.mu.Unlock()
	if late {
		return
	}
	if c.ws.Full() {
		u.behind.Store(true)
		c.ws.WaitRoom()
		u.behind.Store(false)
	}
	c.mu.Lock()
	if late = m.up != u || c.ended; !late {
		c.ws.End(append(c.ws.Begin(), msg...))
	}
	c.mu.Unlock()
	if !late && u.flushing.CompareAndSwap(false, true) {
		// What comes meanwhile goes together.
		if !c.g.workers.Go(u.flush) {
			u.flushing.Store(false)
		}
	}
}

func (u *upstream) flush() {
	u.flushing.Store(false)
	u.c.ws.Flush()
}

// send writes a frame.
func (u *upstream) send(msg []byte) error {
	ctx, cancel := context.WithTimeout(u.ctx, upstreamWait)
	defer cancel()
	return u.conn.Write(ctx, websocket.MessageText, msg)
}

// call sends a frame and waits for the answer.
func (u *upstream) call(ctx context.Context, msg map[string]any) error {
	done := make(chan error, 1)
	u.mu.Lock()
	if u.ended {
		u.mu.Unlock()
		return errLost
	}
	u.corr++
	corr := u.corr
	u.calls[corr] = done
	u.mu.Unlock()
	msg["corr"] = corr
	if err := u.send(encode(msg)); err != nil {
		u.cancel()
		return errLost
	}
	timer := time.NewTimer(upstreamWait)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		u.cancel()
		return errLost
	case <-ctx.Done():
		u.mu.Lock()
		delete(u.calls, corr)
		u.mu.Unlock()
		return ctx.Err()
	}
}

func encode(msg map[string]any) []byte {
	b, err := json.Marshal(msg)
	if err != nil {
		panic(err) // plain values: it cannot fail
	}
	return b
}

// errTaken says that the client has another subscription to the same group and
// topic on the upstream, which brings the events.
var errTaken = errors.New("another subscription of the connection brings the events")

// subscribe has the other hub serve a member, and gives what says that it no
// longer does.
func (u *upstream) subscribe(ctx context.Context, m *member) (*relayed, error) {
	name := subName{m.topic, m.s.name.group}
	s := &relayed{m: m, over: make(chan struct{})}
	u.mu.Lock()
	switch {
	case u.ended:
		u.mu.Unlock()
		return nil, errLost
	case u.subs[name] != nil:
		u.mu.Unlock()
		return nil, errTaken
	}
	u.subs[name] = s
	u.mu.Unlock()
	u.c.mu.Lock()
	current := m.foreign && !m.gone && !u.c.ended
	if current {
		m.up = u // events may come before the answer
	}
	u.c.mu.Unlock()
	err := context.Canceled
	if current {
		err = u.call(ctx, map[string]any{"op": "SUBSCRIBE", "topic": m.topic, "group": name.group, "opts": m.s.opts()})
	}
	if err != nil {
		u.forget(m)
		return nil, err
	}
	return s, nil
}

// opts are the options of a subscription as a frame has them.
func (s *sub) opts() map[string]any {
	o := map[string]any{"batch": s.per, "batchSize": s.o.BatchSize}
	for name, n := range map[string]int64{
		"maxInFlight": int64(s.o.MaxInFlight), "maxAttempts": int64(s.set.MaxAttempts), "ackTimeoutMs": s.set.AckTimeout.Milliseconds(),
	} {
		if n != 0 {
			o[name] = n
		}
	}
	for name, text := range map[string]string{"ordering": string(s.set.Ordering), "deadLetter": string(s.set.DeadLetter), "filter": s.set.Filter} {
		if text != "" {
			o[name] = text
		}
	}
	if s.norm != nil {
		o["normalise"] = true
	}
	return o
}

// forget ends the relaying of a member, and closes the upstream with the last.
// It says whether the other hub served it.
func (u *upstream) forget(m *member) bool {
	name := subName{m.topic, m.s.name.group}
	u.mu.Lock()
	s := u.subs[name]
	if s == nil || s.m != m {
		u.mu.Unlock()
		return false
	}
	delete(u.subs, name)
	last := len(u.subs) == 0
	u.mu.Unlock()
	u.drop(s)
	if last {
		defer u.cancel()
	}
	return true
}

// leave has the other hub take back what the client holds, uncounted.
func (u *upstream) leave(m *member) {
	name := subName{m.topic, m.s.name.group}
	u.c.mu.Lock()
	if m.up == u {
		m.up = nil
	}
	u.c.mu.Unlock()
	u.mu.Lock()
	s := u.subs[name]
	u.mu.Unlock()
	if s == nil || s.m != m {
		return
	}
	// A connection that is closed with something unread may lose what it sent, so
	// the answer is waited for.
	ctx, cancel := context.WithTimeout(u.ctx, upstreamLeave)
	defer cancel()
	_ = u.call(ctx, map[string]any{"op": wire.OpUnsubscribe.String(), "topic": m.topic, "group": name.group}) // if it is gone, so are the leases
	u.forget(m)
}

// rest has the other hub hand nothing to the member for a while, or do so again.
func (u *upstream) rest(m *member, on bool) {
	op := wire.OpResume
	if on {
		op = wire.OpPause
	}
	_ = u.send(encode(map[string]any{"op": op.String(), "topic": m.topic, "group": m.s.name.group})) // if it is gone, another one is looked for
}

// authenticate shows the client's new token.
func (u *upstream) authenticate(token string) {
	_ = u.send(encode(map[string]any{"op": wire.OpAuth.String(), "token": token})) // if it is gone, the next one gets it
}
