package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"promethean/event"
	"promethean/wire"
)

// Subscription is a handler at work.
type Subscription struct {
	c       *Client
	l       *link
	topics  []string
	group   string
	handler Handler
	o       SubscribeOptions
	body    []byte // of SUBSCRIBE

	ctx    context.Context // of the handlers
	cancel context.CancelCauseFunc
	begun  chan struct{} // closed when the hub has accepted it first
	done   chan struct{} // closed at the end
	still  chan struct{} // gets a token when nothing is handled any more

	mu       sync.Mutex
	session  *session // the connection that has SUBSCRIBE; nil: none
	live     bool     // and has answered it
	accepted bool     // begun is closed
	ended    bool     // done is closed
	err      error
	stopping bool
	paused   bool // by its owner
	held     bool // the hub was told to pause

	works    map[workKey]*work
	queue    []*work // those that wait for a handler, and some that are gone
	workers  int     // goroutines that run handlers
	starting int     // of them, those that have not taken a work yet
	active   int     // works that are running or settling
	bytes    int
	room     chan struct{} // closed when bytes fall; nil: nobody waits
	acks     map[string]*ackBatch
	renewer  *time.Timer
	due      time.Time // when renewer fires; zero: it does not
}

// Done is closed when the subscription has ended: it was stopped, or the hub
// has refused it for good when the client came back to it.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Err says why the subscription has ended: nil while it goes on and after Stop,
// otherwise the refusal, an [*Error].
func (s *Subscription) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

type matching int

const (
	noMatch matching = iota
	byPattern
	exact
)

// match says whether the events of a topic are for this subscription.
func (s *Subscription) match(topic string) matching {
	found := noMatch
	for _, t := range s.topics {
		if t == topic {
			return exact
		}
		if strings.Contains(t, "*") && event.MatchPattern(t, topic) {
			found = byPattern
		}
	}
	return found
}

// attach subscribes on the connection that there is. One that is paused waits
// until it goes on.
func (s *Subscription) attach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribe(0)
}

// subscribe sends SUBSCRIBE. mu must be held.
func (s *Subscription) subscribe(try int) {
	on := s.l.current()
	if on == nil || s.session == on || s.ended || s.stopping || s.paused && s.accepted {
		return
	}
	s.session, s.live, s.held = on, false, false
	s.l.send(&request{body: s.body, on: on, done: func(a *answer, err error) { s.subscribed(on, try, a, err) }})
}

// subscribed takes the answer to SUBSCRIBE.
func (s *Subscription) subscribed(on *session, try int, a *answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil || s.session != on:
		return // the next connection has its own
	case a.refusal == nil:
		s.live = true
		if !s.accepted {
			s.accepted = true
			close(s.begun)
		}
		s.flow()
		return
	}
	s.session = nil
	if wire.Code(a.refusal.Code).Entry().Retry {
		time.AfterFunc(s.l.backoff(try), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.subscribe(try + 1)
		})
		return
	}
	s.finishLocked(a.refusal)
}

// detach is told that a connection was lost: its leases are.
func (s *Subscription) detach(on *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == on {
		s.session, s.live, s.held = nil, false, false
	}
	for _, w := range s.works {
		if w.nextOn == on {
			w.next, w.nextOn = nil, nil
		}
		if w.session == on {
			s.lose(w)
		}
	}
}

// fail ends the subscription.
func (s *Subscription) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finishLocked(err)
}

// finishLocked ends the subscription. What it holds is the hub's again, at the
// latest when the leases run out. mu must be held.
func (s *Subscription) finishLocked(err error) {
	if s.ended {
		return
	}
	s.ended, s.err = true, err
	s.l.remove(s)
	if s.session != nil {
		// Nobody waits for the answer: the connection may be lost, and then the
		// hub knows.
		s.l.send(&request{body: s.unsubscribe(), on: s.session, done: func(*answer, error) {}})
	}
	s.session, s.live = nil, false
	for _, w := range s.works {
		s.lose(w)
	}
	if s.renewer != nil {
		s.renewer.Stop()
	}
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
	cause := err
	if cause == nil {
		cause = context.Canceled
	}
	s.cancel(cause)
	close(s.done)
}

func (s *Subscription) unsubscribe() []byte {
	w := textWriter{buf: beginFrame(nil, wire.OpUnsubscribe)}
	w.list("topics", s.topics)
	w.field("group", s.group)
	return w.buf
}

// Stop ends the subscription: no more events are handed to handlers, those at
// work may finish until ctx ends, and what is not done then goes back at once,
// uncounted. It must not be called by a handler, which it would wait for.
func (s *Subscription) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	for _, w := range slices.Clone(s.queue) {
		s.lose(w) // it goes back with UNSUBSCRIBE
	}
	s.flow()
	s.mu.Unlock()
	err := s.quiet(ctx)
	s.mu.Lock()
	on, gone := s.session, make(chan struct{})
	if on == nil {
		close(gone)
	} else {
		// It is sent whether or not there is time to wait for the answer. If
		// the connection is lost, the hub knows.
		s.l.send(&request{body: s.unsubscribe(), on: on, done: func(*answer, error) { close(gone) }})
		s.session, s.live = nil, false
	}
	s.mu.Unlock()
	select {
	case <-gone:
	case <-ctx.Done():
	}
	s.fail(nil)
	return err
}

// quiet waits until nothing is handled and every settlement is answered.
func (s *Subscription) quiet(ctx context.Context) error {
	for {
		s.mu.Lock()
		busy := s.active
		s.mu.Unlock()
		if busy == 0 {
			return nil
		}
		select {
		case <-s.still:
		case <-s.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("stop the subscription to %s as %s: %d events are still at work: %w", strings.Join(s.topics, ", "), s.group, busy, ctx.Err())
		}
	}
}

// Pause has the hub hand out nothing more to this subscription; other members
// of the group go on. What has come already is still handled. Resume goes on.
func (s *Subscription) Pause() { s.pause(true) }

// Resume takes Pause back.
func (s *Subscription) Resume() { s.pause(false) }

func (s *Subscription) pause(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = on
	s.subscribe(0)
	s.flow()
}

// full says whether the hub should pause. Between two bounds it should go on
// with what it does. mu must be held.
func (s *Subscription) full() bool {
	if s.held {
		return s.bytes > s.o.MaxBytes/2 || len(s.works) > s.o.MaxInFlight/2
	}
	return s.bytes > s.o.MaxBytes || len(s.works) > s.o.MaxInFlight
}

// flow tells the hub to pause or to go on. mu must be held.
func (s *Subscription) flow() {
	if s.room != nil && !s.choked() {
		close(s.room)
		s.room = nil
	}
	hold := s.paused || s.stopping || s.full()
	if !s.live || hold == s.held {
		return
	}
	s.held = hold
	op := wire.OpResume
	if hold {
		op = wire.OpPause
	}
	on := s.session
	for _, topic := range s.topics {
		s.l.send(&request{body: appendGroup(nil, op, topic, s.group), on: on, done: func(a *answer, err error) {
			if err != nil || a.refusal == nil || !wire.Code(a.refusal.Code).Entry().Retry {
				return
			}
			time.AfterFunc(s.l.backoff(0), func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.session == on && s.held == hold {
					s.held = !hold // so that it is said again, if it still holds
					s.flow()
				}
			})
		}})
	}
}

// onTheWay is what a hub may have sent before it hears that it shall pause: what
// waits in its queue and in the network's buffers.
const onTheWay = 32 << 20

// choked says whether nothing more may be read. mu must be held.
func (s *Subscription) choked() bool { return s.bytes > s.o.MaxBytes+onTheWay && !s.ended }

// maxChoked is how long the reader waits for handlers before it gives the
// connection up. It is less than what a hub bears, and more than any handler
// should take that waits for an answer which comes behind the events.
const maxChoked = 20 * time.Second

// errChoked says that handlers took too long while the client was full.
var errChoked = errors.New("the handlers take too long for what the hub sends: lower MaxInFlight, or raise MaxBytes")

// push takes events that have come. It waits while there are far too many,
// which a hub that was told to pause does not send.
func (s *Subscription) push(on *session, topic string, list []delivered) error {
	s.mu.Lock()
	for i := range list {
		s.accept(on, topic, &list[i])
	}
	s.flow()
	s.spawn()
	if !s.choked() {
		s.mu.Unlock()
		return nil
	}
	if s.room == nil {
		s.room = make(chan struct{})
	}
	room := s.room
	s.mu.Unlock()
	on.held.Store(true)
	defer on.held.Store(false)
	timer := time.NewTimer(maxChoked)
	defer timer.Stop()
	select {
	case <-room:
		return nil
	case <-on.ctx.Done():
		return context.Cause(on.ctx)
	case <-timer.C:
		return errChoked
	}
}
