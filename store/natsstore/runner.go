package natsstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/event"
)

// readers go on where an earlier read has ended: who reads a topic from its
// beginning asks for one piece after the other. The second one gets a consumer,
// which brings messages at less than half the price of direct gets: a server
// writes their headers anew for each of those.
type readers struct {
	mu   sync.Mutex
	list []*runner
	ends []uint64 // where reads ended that got all they wanted, the last ones
	age  int      // rises when what was fetched ahead is no longer good
}

// runner is a consumer at a place. It fetches ahead: the next piece is on its
// way while the last one is worked on.
type runner struct {
	next  uint64 // what it brings next
	used  time.Time
	ask   string // where to ask for more
	sub   *nats.Subscription
	msgs  chan *nats.Msg
	asked int // messages that are on their way
	age   int // that of the readers when it was taken
}

// fetch asks for more if little is on its way.
func (x *runner) fetch(s *Store) error {
	if x.asked >= readerPiece {
		return nil
	}
	x.asked += readerPiece
	return s.bulk.PublishRequest(x.ask, x.sub.Subject, askForPiece)
}

var askForPiece = fmt.Appendf(nil, `{"batch":%d,"no_wait":true}`, readerPiece)

// stop ends it. The server forgets the consumer by itself.
func (x *runner) stop() { _ = x.sub.Unsubscribe() }

const (
	maxReaders = 32
	// readerIdle is how long a server keeps a consumer that nobody asks.
	readerIdle = 30 * time.Second
	// readerFresh is for how long what was fetched ahead is good: somebody may
	// trim the topic meanwhile.
	readerFresh = time.Second
	// readerPiece is how much it fetches at a time.
	readerPiece = 1000
	// readerMin is how much a read must want to be worth a new one.
	readerMin = 64
)

// take gives the reader at a place. If there is none, it says whether one is
// worth it: because a read has ended there, and there was more.
func (r *readers) take(next uint64) (*runner, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.DeleteFunc(r.list, func(x *runner) bool {
		old := time.Since(x.used) > readerFresh
		if old {
			x.stop()
		}
		return old
	})
	for i, x := range r.list {
		if x.next == next {
			r.list = slices.Delete(r.list, i, i+1)
			return x, true
		}
	}
	return nil, slices.Contains(r.ends, next)
}

// clear forgets all of them: what they fetched ahead is gone.
func (r *readers) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.list {
		x.stop()
	}
	r.list, r.ends = nil, nil
	r.age++
}

// now gives the age.
func (r *readers) now() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.age
}

// ended notes where a read has ended that got all it wanted; x is its reader,
// if it had one.
func (r *readers) ended(next uint64, x *runner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x != nil && x.age != r.age {
		x.stop()
		return
	}
	if x != nil {
		x.next, x.used = next, time.Now()
		r.list = append(r.list, x)
		if len(r.list) > maxReaders {
			r.list[0].stop()
			r.list = slices.Delete(r.list, 0, 1)
		}
		return
	}
	if len(r.ends) == maxReaders {
		r.ends = slices.Delete(r.ends, 0, 1)
	}
	r.ends = append(r.ends, next)
}

// readOn reads up to want messages from a place on with a reader, if there is
// one or one is worth it. It gives where to go on, and whether that is needed:
// a reader that brings less than was wanted proves nothing. Whatever goes wrong
// with it, others can do what is left.
func (s *Store) readOn(ctx context.Context, t *topic, from uint64, want int, each func(*event.Event) bool) (next uint64, left int, more bool, err error) {
	next, left = from, want
	x, worth := t.readers.take(from)
	if x == nil && worth && want >= readerMin {
		x = s.newReader(ctx, t, from)
	}
	if x == nil {
		return next, left, true, nil
	}
	x.age = t.readers.now()
	whole := false
	defer func() {
		if whole {
			t.readers.ended(next, x)
		} else {
			x.stop()
		}
	}()
	late := time.NewTimer(s.o.AttemptTimeout)
	defer late.Stop()
	for left > 0 {
		if x.fetch(s) != nil {
			return next, left, true, nil
		}
		var m *nats.Msg
		select {
		case m = <-x.msgs:
		case <-late.C:
			return next, left, true, nil
		case <-ctx.Done():
			return next, left, false, ctx.Err()
		}
		meta, err := m.Metadata()
		if err != nil || meta.Sequence.Stream < next {
			return next, left, true, nil // no message: the end, or something went wrong
		}
		x.asked--
		e, err := s.decode(t.name, m.Subject, meta.Sequence.Stream, m.Header, m.Data)
		if err != nil {
			return next, left, false, err
		}
		next = e.Seq + 1
		left--
		if !each(&e) && left > 0 {
			return next, left, false, nil
		}
	}
	whole = x.fetch(s) == nil
	return next, left, false, nil
}

// newReader makes a consumer at a place; nil if that fails.
func (s *Store) newReader(ctx context.Context, t *topic, from uint64) *runner {
	one, cancel := context.WithTimeout(ctx, s.o.AttemptTimeout)
	defer cancel()
	c, err := s.js.CreateConsumer(one, t.stream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: readerIdle,
	})
	if err != nil {
		return nil
	}
	x := &runner{
		next: from, used: time.Now(), msgs: make(chan *nats.Msg, 3*readerPiece),
		ask: apiPrefix + "CONSUMER.MSG.NEXT." + t.stream + "." + c.CachedInfo().Name,
	}
	if x.sub, err = s.bulk.ChanSubscribe(s.bulk.NewInbox(), x.msgs); err != nil {
		return nil
	}
	return x
}
