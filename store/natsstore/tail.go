package natsstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/store"
)

// tail keeps a topic's index up to date. What this process appends goes into
// the index when it is acknowledged; the tail fetches the rest: what others
// append, when they say so, or when our own acknowledgements show a gap, and now
// and then besides, in case that somebody died before he said it. A long way it
// goes with an ordered consumer that delivers headers only.
//
// What makes the index safe to trust: at some moment the leader said that the
// last seq is L, and since then the index has reached L. So every event that it
// lacks was stored after that moment, which is fresh; and if that is less than
// half of the duplicate window ago, the server itself still knows the id.
type tail struct {
	mu      sync.Mutex
	running bool
	pos     uint64        // the index has everything up to here
	moved   chan struct{} // closed when pos rises; nil if nobody waits
	fresh   time.Time     // everything stored before this moment is in the index
	mark    uint64        // once pos reaches mark, fresh is markAt
	markAt  time.Time
	own     store.Ranges // what we have appended beyond pos

	last    atomic.Uint64 // the last seq that anybody told us of
	poke    chan struct{} // last has risen
	restart chan struct{} // begin a long way again
}

const (
	// longWay is from how many messages on a consumer is worth its price.
	longWay = 10_000
	// askEvery is how often the leader is asked for the last seq of a topic
	// that somebody watches, in case that nobody told.
	askEvery = 2 * time.Second
)

// stored says that we have appended the messages from first to last: the index
// has them.
func (l *tail) stored(first, last uint64) {
	l.mu.Lock()
	l.own.Add(store.Range{First: first, Last: last})
	l.absorb()
	gap := len(l.own) > 0
	l.mu.Unlock()
	if gap {
		l.hint(last)
	}
}

// absorb moves pos over what we have appended ourselves. mu must be held.
func (l *tail) absorb() {
	pos := l.pos
	for len(l.own) > 0 && l.own[0].First <= pos+1 {
		pos = max(pos, l.own[0].Last)
		l.own = append(l.own[:0], l.own[1:]...)
	}
	l.rise(pos)
}

// rise sets pos. mu must be held.
func (l *tail) rise(pos uint64) {
	if pos <= l.pos {
		return
	}
	l.pos = pos
	if l.moved != nil {
		close(l.moved)
		l.moved = nil
	}
	if l.mark != 0 && l.pos >= l.mark {
		if l.markAt.After(l.fresh) {
			l.fresh = l.markAt
		}
		l.mark = 0
	}
}

// hint says that the stream has a message with that seq.
func (l *tail) hint(seq uint64) {
	raise(&l.last, seq)
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// advance says that the index has everything up to pos and, where asked is
// given, that the leader's last seq was pos at that moment.
func (l *tail) advance(pos uint64, asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rise(pos)
	l.absorb()
	if !asked.IsZero() && pos <= l.pos && asked.After(l.fresh) {
		l.fresh = asked
	}
}

// reset begins anew: it is another stream.
func (l *tail) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pos, l.fresh, l.mark, l.own = 0, time.Time{}, 0, nil
	l.last.Store(0)
	select {
	case l.restart <- struct{}{}:
	default:
	}
}

// reached notes that the leader's last seq was seq at a moment: the index is as
// fresh as that when it gets there.
func (l *tail) reached(seq uint64, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pos >= seq {
		if at.After(l.fresh) {
			l.fresh = at
		}
		return
	}
	if l.mark == 0 {
		l.mark, l.markAt = seq, at
	}
}

func (l *tail) at() (pos uint64, fresh time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pos, l.fresh
}

// follow begins to tail a topic whose stream is there, if nobody does yet.
func (s *Store) follow(t *topic) {
	t.tail.mu.Lock()
	defer t.tail.mu.Unlock()
	if !t.tail.running {
		t.tail.running = s.spawn(func() { s.runTail(t) })
	}
}

func (s *Store) runTail(t *topic) {
	ask := time.NewTicker(askEvery)
	defer ask.Stop()
	var wait time.Duration
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.tail.poke:
		case <-ask.C:
			if s.watches.has(t.name) {
				if i, err := s.inspect(s.ctx, t.name); err == nil && i != nil {
					raise(&t.tail.last, i.State.LastSeq)
				}
			}
		}
		if err := s.catchUp(t); err != nil && s.ctx.Err() == nil {
			s.o.Logger.Warn("tail stopped, beginning again", "topic", t.name, "error", err)
			pause(s.ctx, &wait)
			t.tail.hint(0)
			continue
		}
		wait = 0
	}
}

// catchUp brings the index to the last seq that anybody told us of.
func (s *Store) catchUp(t *topic) error {
	for {
		pos, _ := t.tail.at()
		last := t.tail.last.Load()
		if pos >= last || s.ctx.Err() != nil {
			return nil
		}
		if last-pos > longWay {
			if err := s.tailOnce(t, last); err != nil {
				return err
			}
			continue
		}
		r := scan{s: s, stream: t.stream, lags: t.replicas.Load() != 1, last: last}
		top := pos
		err := r.up(s.ctx, pos+1, last, 0, func(seq uint64, m *nats.Msg) (bool, error) {
			t.found(seq, m.Header.Get(hdrID), m.Header.Get(hdrTS))
			top = seq
			return true, nil
		})
		if err != nil {
			t.tail.advance(top, time.Time{})
			return err
		}
		t.tail.advance(last, time.Time{}) // what is missing is gone
		s.appeared(t, last)
	}
}

// found takes a message into the index.
func (t *topic) found(seq uint64, id, at string) {
	raise(&t.visible, seq)
	if id, err := parseMsgID(id); err == nil {
		ts, _ := strconv.ParseInt(at, 10, 64)
		t.index.put(id, seq, ts)
	}
}

// tailOnce follows the stream until the index has reached last, that fails or
// somebody asks for a restart.
func (s *Store) tailOnce(t *topic, last uint64) error {
	pos, _ := t.tail.at()
	c := jetstream.OrderedConsumerConfig{HeadersOnly: true, InactiveThreshold: time.Minute}
	if pos > 0 {
		c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, pos+1
	}
	ctx, cancel := context.WithTimeout(s.ctx, 2*s.o.AttemptTimeout)
	defer cancel()
	consumer, err := s.js.OrderedConsumer(ctx, t.stream, c)
	if err != nil {
		return err
	}
	there := make(chan struct{})
	var once sync.Once
	run, err := consumer.Consume(func(m jetstream.Msg) {
		if s.tailed(t, m) >= last {
			once.Do(func() { close(there) })
		}
	},
		jetstream.PullMaxMessages(4096), jetstream.PullHeartbeat(2*time.Second), jetstream.PullExpiry(10*time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			s.o.Logger.Debug("tail", "topic", t.name, "error", err)
		}))
	if err != nil {
		return err
	}
	defer run.Stop()
	select {
	case <-s.ctx.Done():
		return nil
	case <-there:
		return nil
	case <-t.tail.restart:
		return nil
	case <-run.Closed():
		return errors.New("the consumer ended")
	}
}

// tailed takes one message of the consumer into the index, and gives its seq.
func (s *Store) tailed(t *topic, m jetstream.Msg) uint64 {
	meta, err := m.Metadata()
	if err != nil {
		return 0
	}
	seq, h := meta.Sequence.Stream, m.Headers()
	t.found(seq, h.Get(hdrID), h.Get(hdrTS))
	t.tail.advance(seq, time.Time{})
	// One wake-up stands for any number of events.
	if meta.NumPending == 0 || seq%256 == 0 {
		s.appeared(t, seq)
	}
	if meta.NumPending == 0 {
		return max(seq, t.tail.last.Load()) // what is missing is gone
	}
	return seq
}

// appeared says that events up to seq can be read.
func (s *Store) appeared(t *topic, seq uint64) {
	raise(&t.visible, seq)
	if raise(&t.woken, seq) {
		s.wake(t.name)
	}
}

// current makes the index fresh enough for an append: an id that it lacks is
// known to the server.
func (s *Store) current(ctx context.Context, t *topic) error {
	s.follow(t)
	if _, fresh := t.tail.at(); time.Since(fresh) < time.Duration(t.window.Load())/2 {
		return nil
	}
	_, err := s.sync(ctx, t)
	return err
}

// sync waits until the index has everything that was stored before the call,
// and gives what the leader said. Nil means that the stream is gone.
func (s *Store) sync(ctx context.Context, t *topic) (*streamInfo, error) {
	s.follow(t)
	asked := time.Now()
	i, err := s.inspect(ctx, t.name)
	if err != nil || i == nil {
		return i, err
	}
	last := i.State.LastSeq
	t.tail.advance(i.first()-1, time.Time{}) // what is below is gone
	t.tail.hint(last)
	if err := s.waitFor(ctx, t, last); err != nil {
		return nil, err
	}
	t.tail.reached(last, asked)
	return i, nil
}

// waitFor waits until the index has reached seq.
func (s *Store) waitFor(ctx context.Context, t *topic, seq uint64) error {
	end := time.Now().Add(s.o.IndexTimeout)
	last, stuck := uint64(0), 0
	for {
		t.tail.mu.Lock()
		pos := t.tail.pos
		if pos >= seq {
			t.tail.mu.Unlock()
			return nil
		}
		if t.tail.moved == nil {
			t.tail.moved = make(chan struct{})
		}
		moved := t.tail.moved
		t.tail.mu.Unlock()
		timer := time.NewTimer(500 * time.Millisecond)
		select {
		case <-moved:
			timer.Stop()
			continue
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return s.outcome(ctx, ctx.Err())
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: %w: it is at seq %d of %d", store.ErrUnavailable, errLag, pos, seq)
		}
		if pos != last {
			last, stuck = pos, 0
			continue
		}
		if stuck++; s.skip(ctx, t, pos, seq) != nil && stuck%10 == 9 {
			select { // the messages are there, and the tail does not bring them
			case t.tail.restart <- struct{}{}:
			default:
			}
		}
	}
}

// skip moves the index over seqs that hold nothing.
func (s *Store) skip(ctx context.Context, t *topic, pos, seq uint64) error {
	one, cancel := context.WithTimeout(ctx, s.o.AttemptTimeout)
	defer cancel()
	m, err := s.fromLeader(one, t.stream, getRequest{Seq: pos + 1, Next: s.allSubjects(t.name)})
	switch {
	case errors.Is(err, errGone):
		t.tail.advance(seq, time.Time{})
		return nil
	case err != nil:
		return err
	case m.Seq > pos+1:
		t.tail.advance(min(seq, m.Seq-1), time.Time{})
		return nil
	}
	return errLag
}
