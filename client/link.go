package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"promethean/wire"
)

// link is the one connection of a client: it makes it when somebody needs it,
// makes it again when it is lost, and matches answers with requests.
//
// Lock order: Subscription.mu before link.mu. Nothing is waited for and nobody
// is called back under either.
type link struct {
	c *Client

	ctx    context.Context // ends with the client
	cancel context.CancelCauseFunc
	wake   chan struct{} // somebody needs a connection
	ended  chan struct{} // closed when the goroutine of the link is gone; nil before it began

	mu      sync.Mutex
	closing bool // no new publishes and subscriptions
	over    bool // nothing new at all
	corr    uint64
	pending map[uint64]*request // not answered
	queue   []*request          // of those, what is to be written
	session *session            // nil: there is no connection
	subs    map[*Subscription]struct{}
	last    error         // why there is no connection
	quiet   chan struct{} // closed once nothing is pending, if somebody waits for that
}

// request is one frame that wants an answer.
type request struct {
	corr uint64
	// body is the frame without its end. It may be made as late as it is
	// written: then prepare does that, once.
	body    []byte
	prepare func() []byte
	// on is the connection that it is about: if that is lost, done gets
	// errLost. Nil: it is sent again over the next connection.
	on *session
	// done gets the answer, or an error if there will be none. It is called
	// once, without a lock, and must not wait.
	done func(a *answer, err error)
}

// errLost says that the connection was lost before the answer came.
var errLost = errors.New("the connection was lost")

func newLink(c *Client) *link {
	l := &link{c: c, wake: make(chan struct{}, 1), pending: make(map[uint64]*request), subs: make(map[*Subscription]struct{})}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// begin starts the goroutine of the link. mu must be held.
func (l *link) begin() {
	if l.ended == nil {
		l.ended = make(chan struct{})
		go l.run()
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// send queues a request. It may be called with Subscription.mu held: requests
// go out in the order in which they were queued.
func (l *link) send(r *request) {
	l.mu.Lock()
	if l.over || r.on != nil && r.on != l.session {
		err := errLost
		if l.over {
			err = ErrClosed
		}
		l.mu.Unlock()
		go r.done(nil, err) // not here: the caller may hold a lock
		return
	}
	l.corr++
	r.corr = l.corr
	l.pending[r.corr] = r
	s := l.session
	if s == nil {
		l.begin() // what is pending is sent then
	} else {
		l.queue = append(l.queue, r)
	}
	l.mu.Unlock()
	if s != nil {
		s.poke()
	}
}

// exchange sends a request and waits for its answer. A refusal is an *Error.
func (l *link) exchange(ctx context.Context, body []byte, on *session) (*answer, error) {
	type outcome struct {
		a   *answer
		err error
	}
	done := make(chan outcome, 1)
	r := &request{body: body, on: on, done: func(a *answer, err error) { done <- outcome{a, err} }}
	l.send(r)
	select {
	case o := <-done:
		if o.err == nil && o.a.refusal != nil {
			return nil, o.a.refusal
		}
		return o.a, o.err
	case <-ctx.Done():
		l.forget(r)
		return nil, l.late(ctx)
	}
}

// persist is exchange until there is an answer that is for good: a hub that is
// overloaded or goes away is asked again, with growing pauses.
func (l *link) persist(ctx context.Context, body []byte) (*answer, error) {
	for try := 0; ; try++ {
		a, err := l.exchange(ctx, body, nil)
		var refusal *Error
		if !errors.As(err, &refusal) || !passing(refusal) {
			return a, err
		}
		if !l.pause(ctx, l.backoff(try)) {
			if ctx.Err() == nil {
				return nil, ErrClosed
			}
			return nil, fmt.Errorf("%w; the hub said last: %w", ctx.Err(), refusal)
		}
	}
}

// passing says whether a refusal is about the moment and not about the request.
func passing(e *Error) bool {
	switch wire.Code(e.Code) {
	case wire.RateLimited, wire.Draining, wire.Unavailable:
		return true
	}
	return false
}

// late is the error of a request whose context has ended: it says why there
// was no answer, if that is known.
func (l *link) late(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == nil && l.last != nil {
		return fmt.Errorf("%w; no connection to %s: %w", ctx.Err(), l.c.base.Host, l.last)
	}
	return fmt.Errorf("%w; the hub has not answered yet", ctx.Err())
}

// forget takes back a request that nobody waits for any more.
func (l *link) forget(r *request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(r.corr)
	if len(l.queue) > 2*len(l.pending)+64 { // nobody writes, and callers come and go
		l.queue = slices.DeleteFunc(l.queue, func(r *request) bool { return l.pending[r.corr] != r })
	}
}

// drop removes a pending request, and gives it. mu must be held.
func (l *link) drop(corr uint64) *request {
	r := l.pending[corr]
	if r == nil {
		return nil
	}
	delete(l.pending, corr)
	if len(l.pending) == 0 && l.quiet != nil {
		close(l.quiet)
		l.quiet = nil
	}
	return r
}

// take gives what is to be written, without what was taken back.
func (l *link) take(s *session, into []*request) []*request {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != s {
		return into
	}
	for _, r := range l.queue {
		if l.pending[r.corr] == r {
			into = append(into, r)
		}
	}
	clear(l.queue)
	l.queue = l.queue[:0]
	return into
}

// answered gives an answer to who waits for it.
func (l *link) answered(corr uint64, a *answer) {
	l.mu.Lock()
	r := l.drop(corr)
	l.mu.Unlock()
	if r != nil {
		r.done(a, nil)
	}
}

// run keeps a connection while somebody needs one.
func (l *link) run() {
	defer close(l.ended)
	for try := 0; ; try++ {
		if !l.wanted() {
			return
		}
		s, err := l.dial()
		if err != nil {
			if l.ctx.Err() != nil {
				return
			}
			l.c.o.Logger.Warn("no connection to the hub", "hub", l.c.base.Host, "try", try+1, "err", err)
			var refusal *Error
			if errors.As(err, &refusal) {
				l.refused(refusal)
				try = -1
				continue
			}
			l.mu.Lock()
			l.last = err
			l.mu.Unlock()
			l.pause(l.ctx, l.backoff(try))
			continue
		}
		l.attach(s)
		err = s.serve()
		l.detach(s, err)
		if s.useful.Load() {
			try = 0
		}
		l.pause(l.ctx, l.backoff(try)) // others may come back at the same time
	}
}

// wanted waits until somebody needs a connection, and is false at the end.
func (l *link) wanted() bool {
	for {
		l.mu.Lock()
		need, over := len(l.pending) > 0 || len(l.subs) > 0, l.over
		l.mu.Unlock()
		if over || l.ctx.Err() != nil {
			return false
		}
		if need {
			return true
		}
		select {
		case <-l.wake:
		case <-l.ctx.Done():
		}
	}
}

// attach begins with a connection: what was not answered is sent again, in its
// order, and then subscriptions are made again. Acks thus come before the
// deliveries that they settle.
func (l *link) attach(s *session) {
	l.mu.Lock()
	l.session, l.last, l.queue = s, nil, nil
	for _, corr := range slices.Sorted(maps.Keys(l.pending)) {
		l.queue = append(l.queue, l.pending[corr])
	}
	subs := slices.Collect(maps.Keys(l.subs))
	l.mu.Unlock()
	s.poke()
	for _, sub := range subs {
		sub.attach()
	}
}

// detach ends with a connection.
func (l *link) detach(s *session, why error) {
	l.mu.Lock()
	l.session, l.last, l.queue = nil, why, nil
	var lost []*request
	for corr, r := range l.pending {
		if r.on != nil {
			lost = append(lost, r)
			l.drop(corr)
		}
	}
	largest := l.tooBig(why)
	subs := slices.Collect(maps.Keys(l.subs))
	closing := l.over
	l.mu.Unlock()
	if !closing {
		l.c.o.Logger.Warn("the connection to the hub was lost", "hub", l.c.base.Host, "err", why)
	}
	if largest != nil {
		largest.done(&answer{refusal: &Error{Code: string(wire.PayloadTooLarge), Message: fmt.Sprintf("a frame of %d bytes is larger than the hub takes", len(largest.body))}}, nil)
	}
	for _, r := range lost {
		r.done(nil, errLost)
	}
	for _, sub := range subs {
		sub.detach(s)
	}
}

// tooBig finds the request because of which the hub has closed the connection,
// if it was a frame over its limit: sent again, it would end the next
// connection too. It is not answered, so the largest of those that are not is
// over the limit in any case. mu must be held.
func (l *link) tooBig(why error) *request {
	if closeOf(why) != wire.CloseTooBig {
		return nil
	}
	var largest *request
	for _, r := range l.pending {
		if largest == nil || len(r.body) > len(largest.body) {
			largest = r
		}
	}
	if largest != nil {
		l.drop(largest.corr)
	}
	return largest
}

// refused ends everything that waits, because the hub lets this client not in.
func (l *link) refused(err *Error) {
	l.mu.Lock()
	l.last = err
	pending := slices.Collect(maps.Values(l.pending))
	for _, r := range pending {
		l.drop(r.corr)
	}
	subs := slices.Collect(maps.Keys(l.subs))
	l.mu.Unlock()
	for _, r := range pending {
		r.done(&answer{refusal: err}, nil)
	}
	for _, sub := range subs {
		sub.fail(err)
	}
}

// add makes a subscription known, so that each connection has it.
func (l *link) add(sub *Subscription) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return ErrClosed
	}
	for other := range l.subs {
		if other.group == sub.group && slices.ContainsFunc(other.topics, func(t string) bool { return slices.Contains(sub.topics, t) }) {
			return &Error{Code: string(wire.AlreadySubscribed), Message: fmt.Sprintf("the client has a subscription to %q as group %s", other.topics, sub.group)}
		}
	}
	l.subs[sub] = struct{}{}
	l.begin()
	return nil
}

// remove forgets a subscription.
func (l *link) remove(sub *Subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subs, sub)
}

// current is the connection that there is, or nil.
func (l *link) current() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

// find gives the subscription that an event belongs to: the one that names its
// topic, else one whose pattern fits.
func (l *link) find(topic, group string) *Subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	var fits *Subscription
	for sub := range l.subs {
		if sub.group != group {
			continue
		}
		switch sub.match(topic) {
		case exact:
			return sub
		case byPattern:
			fits = sub
		}
	}
	return fits
}

// close ends the link.
func (l *link) close(ctx context.Context) error {
	l.mu.Lock()
	l.closing = true
	subs := slices.Collect(maps.Keys(l.subs))
	l.mu.Unlock()
	errs := make([]error, len(subs))
	var all sync.WaitGroup
	for i, sub := range subs {
		all.Go(func() { errs[i] = sub.Stop(ctx) })
	}
	all.Wait()
	errs = append(errs, l.settle(ctx))
	l.mu.Lock()
	l.over = true
	ended, s := l.ended, l.session
	l.mu.Unlock()
	if s != nil {
		s.leave(ctx)
	}
	l.cancel(ErrClosed)
	if ended != nil {
		<-ended
	}
	l.mu.Lock()
	pending := slices.Collect(maps.Values(l.pending))
	clear(l.pending)
	l.mu.Unlock()
	for _, r := range pending {
		r.done(nil, ErrClosed)
	}
	return errors.Join(errs...)
}

// settle waits until all requests are answered.
func (l *link) settle(ctx context.Context) error {
	l.mu.Lock()
	n, quiet := len(l.pending), l.quiet
	if n > 0 && quiet == nil {
		quiet = make(chan struct{})
		l.quiet = quiet
	}
	l.mu.Unlock()
	if n == 0 {
		return nil
	}
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("client: %d requests are not answered: %w", n, ctx.Err())
	}
}

// backoff is the pause after so many tries in vain.
func (l *link) backoff(try int) time.Duration {
	d := l.c.o.MinBackoff
	for range try {
		if d *= 2; d >= l.c.o.MaxBackoff {
			d = l.c.o.MaxBackoff
			break
		}
	}
	return d/2 + rand.N(d/2+1)
}

// pause waits, and says whether it waited to the end.
func (l *link) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-l.ctx.Done():
	}
	return false
}
