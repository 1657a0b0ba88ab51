package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"promethean/event"
	"promethean/gateway/auth"
	"promethean/gateway/internal/frame"
	"promethean/gateway/internal/ws"
	"promethean/wire"
)

// maxFrame is the largest frame that is read, where payloads are not larger: a
// batch of maxBatchBytes and what stands around it.
const maxFrame = maxBatchBytes + 64<<10

// keepFrame is how large a message may be of which an idle connection keeps
// the memory.
const keepFrame = 4 << 10

// openWS serves GET /ws. The route is open to all: each frame asks for itself.
func openWS(c *call) error {
	who, err := c.g.identify(c.r) // a token that is wrong is refused here
	if err != nil {
		return err
	}
	if !c.g.enter() {
		return errDraining
	}
	opened := false
	defer func() {
		if !opened {
			c.g.open.Done()
		}
	}()
	n := &connection{g: c.g, ctx: context.Background(), who: who, remote: c.r.RemoteAddr, bucket: c.g.connection(c.r)}
	if n.forwarded, n.away = c.forwarded, c.g.away(bearer(c.r)); c.proved {
		n.bucket = nil // the other hub counts
	}
	n.deliverer = n.deliver
	conn, err := c.g.keeper.Accept(c.w, c.r, ws.Options{
		Limit: max(maxFrame, 2*c.g.payloadLimit()), Queue: c.g.o.Queue, MessageWait: c.g.o.BodyWait,
		Stalled: n.stalled, Silent: n.silent, Room: n.hasRoom, Refused: refused, Heard: n.heard,
	})
	if errors.Is(err, ws.ErrHandshake) {
		return wire.Errorf(wire.InvalidArgument, "%w", err)
	}
	if err != nil {
		c.g.o.Logger.Debug("a WebSocket was not opened", "err", err)
		return nil // there is nobody to answer
	}
	n.ws, opened = conn, true
	c.g.o.Connections(1)
	go n.run() // not here, so that what the server keeps for a request is let go
	return nil
}

// refused is the last frame to a client who sent what closes the connection.
func refused(e *ws.CloseError) []byte {
	var code wire.Code
	switch wire.Close(e.Code) {
	case wire.CloseBadText:
		code = wire.BadJSON
	case wire.CloseTooBig:
		code = wire.PayloadTooLarge
	default:
		return nil
	}
	return append(frame.AppendErr(nil, nil, code, e.Reason), '}')
}

// connection is one WebSocket. One goroutine reads and works; others deliver
// events while there are some.
type connection struct {
	g   *Gateway
	ws  *ws.Conn
	ctx context.Context // of what is done for the client; it does not end

	remote    string // where it comes from
	forwarded bool   // another hub has made it
	away      *away  // nil where there are no other hubs

	// Of the goroutine that reads.
	decoder frame.Decoder
	frame   frame.Frame
	bucket  *bucket // nil: as many frames as come
	gather  gather
	undo    func() bool
	beat    time.Time // when the coordinator of partitioned groups last heard of it

	beats atomic.Int32 // subscriptions to partitioned groups

	mu         sync.Mutex
	who        *auth.Principal
	timer      *time.Timer // ends the connection for want of a valid token
	may        map[scoped]struct{}
	subs       map[subName]*sub
	past       map[subName]struct{} // ended subscriptions to partitioned groups
	ready      []*member            // have something to take
	delivering bool                 // somebody is at them
	deliverer  func()               // deliver, made once
	slow       bool                 // it does not read: what it holds does not count as delivered
	ended      bool

	resting sync.Mutex // held while members are told to rest or to go on
	parked  bool       // under resting: the queue is full
}

// scoped is something that the client was found to be allowed.
type scoped struct {
	action auth.Action
	topic  string
}

// maxScoped bounds what is remembered of that.
const maxScoped = 256

func (c *connection) run() {
	defer c.g.open.Done()
	defer c.g.o.Connections(-1)
	c.mu.Lock()
	c.watchToken()
	c.mu.Unlock()
	c.undo = context.AfterFunc(c.g.ctx, c.ws.Kick)
	leave := c.serve()
	c.undo()
	c.end(leave)
	if leave {
		c.ws.Shut(uint16(wire.CloseGoingAway), "the hub is shutting down", false, nil)
	}
	c.ws.Finish()
}

// serve works on frames until the end. It returns true if the hub drains: then
// leases go back uncounted.
func (c *connection) serve() (leave bool) {
	for {
		msg, err := c.ws.Next()
		if err != nil {
			if errors.Is(err, ws.ErrKicked) && c.g.ctx.Err() == nil {
				continue
			}
			return c.g.ctx.Err() != nil && errors.Is(err, ws.ErrKicked)
		}
		if c.ws.Closed() {
			return false // nobody would get the answer
		}
		c.work(msg)
		if c.ws.Buffered() {
			continue // what has come together is worked on together
		}
		c.finishGathered()
		if len(msg) > keepFrame {
			c.frame = frame.Frame{} // it would keep the message
		}
		c.ws.Push()
		if c.ws.WaitRoom(); c.ws.Closed() {
			return false
		}
	}
}

// work does what one frame asks for, or gathers it.
func (c *connection) work(msg []byte) {
	f := &c.frame
	err := c.decoder.Decode(msg, f)
	if c.g.o.Verifier != nil && f.Op != wire.OpAuth && (err == nil || codeOf(err) != wire.BadJSON) && c.principal() == nil {
		err = wire.Errorf(wire.Unauthorized, "a token is needed: send AUTH first") // whatever else is wrong
	}
	if limit := c.bucket.request(); limit != nil {
		err = limit
	}
	if err == nil && f.Op != wire.OpPublish && f.Op != wire.OpAck {
		c.finishGathered() // what came before happens before
	}
	if err == nil {
		switch f.Op {
		case wire.OpPublish:
			err = c.publish(f, len(msg))
		case wire.OpAck:
			err = c.ack(f)
		case wire.OpNack, wire.OpModAck:
			err = c.change(f)
		case wire.OpAuth:
			err = c.auth(f)
		case wire.OpSubscribe:
			err = c.subscribe(f)
		case wire.OpUnsubscribe:
			err = c.unsubscribe(f)
		case wire.OpPause, wire.OpResume:
			err = c.pause(f)
		}
	}
	if err != nil {
		c.ws.End(c.appendRefusal(c.ws.Begin(), f.Corr, err, wire.Internal, f.Batch))
	}
}

// ok answers a frame.
func (c *connection) ok(corr []byte) {
	c.ws.End(append(frame.AppendOK(c.ws.Begin(), corr), '}'))
}

// refuse answers a frame with an error. What nobody foresaw is for the log, and
// the client is told of it by the code other.
func (c *connection) refuse(corr []byte, err error, other wire.Code) {
	c.ws.End(c.appendRefusal(c.ws.Begin(), corr, err, other, false))
}

// appendRefusal is refuse into a buffer; of a batch it names the bad event.
func (c *connection) appendRefusal(b, corr []byte, err error, other wire.Code, batch bool) []byte {
	p := problemOf(err)
	if p.Code == wire.Internal {
		c.g.o.Logger.Error("frame failed", "op", c.frame.Op, "topic", clip(c.frame.Topic), "err", err)
		p.Code, p.Detail = other, other.Entry().Title
	}
	b = frame.AppendErr(b, corr, p.Code, p.Detail)
	for _, x := range []struct {
		name  string
		value *uint64
	}{{"expected", p.Expected}, {"actual", p.Actual}} {
		if x.value != nil {
			b = frame.AppendNumber(b, x.name, *x.value)
		}
	}
	if len(p.Errors) > 0 {
		if text, err := json.Marshal(p.Errors); err == nil { // plain fields
			b = append(append(b, `,"errors":`...), text...)
		}
	}
	if p.Index != nil && batch {
		b = frame.AppendNumber(b, "index", uint64(*p.Index))
	}
	return append(b, '}')
}

func (c *connection) principal() *auth.Principal {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.who
}

// allow is the check of access. What was allowed once is remembered until the
// token changes.
func (c *connection) allow(a auth.Action, topic string) error {
	if c.g.o.Verifier == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := scoped{a, topic}
	if _, ok := c.may[name]; ok {
		return nil
	}
	if err := c.g.allow(c.who, a, topic); err != nil {
		return err
	}
	if c.may == nil {
		c.may = make(map[scoped]struct{}, 4)
	}
	if len(c.may) < maxScoped {
		c.may[name] = struct{}{}
	}
	return nil
}

// auth takes a token, in the place of another one if there was one. It must
// allow the subscriptions that there are.
func (c *connection) auth(f *frame.Frame) error {
	if c.g.o.Verifier == nil {
		c.ok(f.Corr)
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.g.o.BodyWait)
	defer cancel()
	who, err := c.g.verify(ctx, c.remote, f.Token)
	if err != nil {
		return err
	}
	if err := c.identified(who); err != nil {
		return err
	}
	c.reauthenticate(f.Token)
	c.ok(f.Corr)
	return nil
}

// identified takes over who the client is now.
func (c *connection) identified(who *auth.Principal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.subs {
		if err := c.g.allow(who, auth.Subscribe, name.topic); err != nil {
			return wire.Errorf(codeOf(err), "the token does not cover the subscription to %s: %w", name.topic, err)
		}
	}
	c.who, c.may = who, nil
	c.watchToken()
	return nil
}

// watchToken sees to it that the connection ends with its token, or if none
// comes. mu must be held.
func (c *connection) watchToken() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	switch {
	case c.g.o.Verifier == nil || c.ended:
	case c.who == nil:
		c.timer = time.AfterFunc(c.g.o.AuthWait, func() { c.expire(nil, "no token came in time") })
	case !c.who.Expires.IsZero():
		who := c.who
		c.timer = time.AfterFunc(time.Until(who.Expires), func() { c.expire(who, "the token has ended") })
	}
}

// expire ends the connection, unless it has got another token meanwhile.
func (c *connection) expire(who *auth.Principal, reason string) {
	c.mu.Lock()
	same := c.who == who && !c.ended
	c.mu.Unlock()
	if same {
		c.ws.Shut(uint16(wire.CloseUnauthorized), reason, false, append(frame.AppendErr(nil, nil, wire.Unauthorized, reason), '}'))
		c.end(false)
	}
}

// stalled is called when the client has read nothing for long. Much of what it
// holds it has never seen, so that does not count as delivered.
func (c *connection) stalled() {
	const reason = "the client does not read"
	c.mu.Lock()
	c.slow = true
	c.mu.Unlock()
	c.ws.Shut(uint16(wire.CloseSlowConsumer), reason, true, append(frame.AppendErr(nil, nil, wire.SlowConsumer, reason), '}'))
	go c.end(true) // at once: the reader may wait for a last word of the client
}

// silent is called when the client has not answered pings.
func (c *connection) silent() {
	c.ws.Shut(uint16(wire.CloseSilent), "the client does not answer", true, nil)
	go c.end(false)
}

// end ends all subscriptions. What the client holds goes back at once: as
// failed, or uncounted with leave.
func (c *connection) end(leave bool) {
	c.mu.Lock()
	c.ended = true
	leave = leave || c.slow
	subs := c.subs
	c.subs, c.ready = nil, nil
	c.watchToken()
	c.mu.Unlock()
	for _, s := range subs {
		s.end(leave)
	}
	if c.away != nil {
		c.away.end(c)
	}
}

// checkName says what is wrong with a topic and a group that a frame names.
func checkName(topic, group string) error {
	if err := event.CheckTopic(topic); err != nil {
		return err
	}
	return checkGroup(group)
}
