package natsstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"promethean/event"
	"promethean/store"
)

// request is what one append publishes: stored as a whole or not at all.
type request struct {
	ctx   context.Context
	msgs  []*nats.Msg
	ids   []event.ID
	times []int64
	bytes int
	solo  bool // not together with others: it has conditions

	done chan struct{}
	seqs []uint64
	err  error
}

func (r *request) answer(seqs []uint64, err error) {
	r.seqs, r.err = seqs, err
	close(r.done)
}

// queue holds what waits for the commit that is under way. What waits becomes
// the next commit as a whole.
type queue struct {
	mu      sync.Mutex
	waiting []*request
	busy    bool
	rest    chan struct{} // closed when not busy; nil if nobody waits for that
	// each is about what a pipelined single takes, as measured.
	each time.Duration
}

const (
	// mergeBytes is about how much one shared commit takes.
	mergeBytes = 4 << 20
	// manySingles is from when on singles are worth an atomic batch on a server
	// that takes longer than slowSingle for each: one that syncs each message.
	// A batch has a price of its own, some milliseconds on a file of one server.
	manySingles = 48
	slowSingle  = 70 * time.Microsecond
)

// errKnown is a single event whose id the server knows.
var errKnown = errors.New("the server knows the id")

// submit queues r and waits for its answer.
func (s *Store) submit(ctx context.Context, t *topic, r *request) ([]uint64, error) {
	r.ctx = ctx
	q := &t.queue
	q.mu.Lock()
	if s.closing.Load() {
		q.mu.Unlock()
		return nil, store.ErrClosed
	}
	if !q.busy && !s.spawn(func() { s.commitAll(t) }) {
		q.mu.Unlock()
		return nil, store.ErrClosed
	}
	q.busy = true
	q.waiting = append(q.waiting, r)
	q.mu.Unlock()
	select {
	case <-r.done:
		return r.seqs, r.err
	case <-ctx.Done():
		// If it is still queued, the committer drops it.
		return nil, ctx.Err()
	}
}

// idle is closed once nothing is being committed.
func (t *topic) idle() <-chan struct{} {
	q := &t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.rest == nil {
		q.rest = make(chan struct{})
		if !q.busy {
			close(q.rest)
		}
	}
	return q.rest
}

// commitAll commits what waits until nothing does.
func (s *Store) commitAll(t *topic) {
	q := &t.queue
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.busy = false
			if q.rest != nil {
				close(q.rest)
			}
			q.mu.Unlock()
			return
		}
		n, events, bytes := 0, 0, 0
		for _, r := range q.waiting {
			if n > 0 && (events+len(r.msgs) > maxEvents || bytes+r.bytes > mergeBytes) {
				break
			}
			n++
			events += len(r.msgs)
			bytes += r.bytes
		}
		group := q.waiting[:n:n]
		q.waiting = q.waiting[n:]
		if len(q.waiting) == 0 {
			q.waiting = nil
		}
		q.mu.Unlock()
		s.commit(t, group)
	}
}

// commit publishes a group. Requests with conditions go one by one, the others
// together.
func (s *Store) commit(t *topic, group []*request) {
	taken := make(map[event.ID]struct{})
	var shared []*request
	for _, r := range group {
		switch {
		case r.ctx.Err() != nil:
			r.answer(nil, r.ctx.Err())
		case t.meets(r, taken):
			// Another request has one of its ids: it is a duplicate by now, or
			// will be.
			r.answer(nil, errAgain)
		case r.solo:
			s.commitShared(t, shared)
			shared = nil
			s.commitBatch(t, []*request{r})
		default:
			shared = append(shared, r)
		}
	}
	s.commitShared(t, shared)
}

// meets says whether an id of r is known or taken, and takes those of r.
func (t *topic) meets(r *request, taken map[event.ID]struct{}) bool {
	for _, id := range r.ids {
		if _, ok := taken[id]; ok || t.index.get(id) != 0 {
			return true
		}
	}
	for _, id := range r.ids {
		taken[id] = struct{}{}
	}
	return false
}

func (s *Store) commitShared(t *topic, group []*request) {
	events := 0
	for _, r := range group {
		events += len(r.msgs)
	}
	switch {
	case len(group) == 0:
	case len(group) == events && (events < manySingles || t.queue.each < slowSingle):
		s.commitSingles(t, group)
	default:
		s.commitBatch(t, group)
	}
}

// commitBatch stores all messages of the group as one atomic batch, or a lone
// one by itself.
func (s *Store) commitBatch(t *topic, group []*request) {
	var msgs []*nats.Msg
	for _, r := range group {
		msgs = append(msgs, r.msgs...)
	}
	began := time.Now()
	ack, err := s.publishBatch(msgs)
	if err == nil && ack.Duplicate {
		err = errKnown
	}
	if err == nil && (ack.Seq < uint64(len(msgs)) || len(msgs) > 1 && ack.Count != len(msgs)) {
		err = fmt.Errorf("%w: the server stored %d of %d messages up to seq %d", store.ErrUnavailable, ack.Count, len(msgs), ack.Seq)
	}
	if err != nil {
		for _, r := range group {
			r.answer(nil, err)
		}
		return
	}
	t.queue.each = t.queue.each * 63 / 64 // so that singles are tried again
	raise(&t.visible, ack.Seq)
	seq := ack.Seq - uint64(len(msgs)) + 1
	for _, r := range group {
		seqs := make([]uint64, len(r.msgs))
		for i := range seqs {
			seqs[i] = seq
			t.index.put(r.ids[i], seq, r.times[i])
			seq++
		}
		r.seqs = seqs
	}
	t.tail.stored(ack.Seq-uint64(len(msgs))+1, ack.Seq)
	t.tail.reached(ack.Seq, began)
	s.appeared(t, ack.Seq)
	for _, r := range group {
		r.answer(r.seqs, nil)
	}
	s.tell(t, ack.Seq)
}

// publishBatch publishes messages as one atomic batch.
func (s *Store) publishBatch(msgs []*nats.Msg) (pubAck, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.AttemptTimeout)
	defer cancel()
	if len(msgs) == 1 {
		return s.publish(ctx, msgs[0])
	}
	id := event.NewID().String()
	for i, m := range msgs {
		m.Header[hdrBatch] = []string{id}
		m.Header[hdrBatchSeq] = []string{strconv.Itoa(i + 1)}
		if i == len(msgs)-1 {
			m.Header[hdrCommit] = []string{"1"}
			return s.publish(ctx, m)
		}
		if err := s.nc.PublishMsg(m); err != nil {
			return pubAck{}, err
		}
	}
	return pubAck{}, nil
}

// commitSingles publishes events one behind the other and then waits for all
// answers: round trips are shared, and each event stands by itself.
func (s *Store) commitSingles(t *topic, group []*request) {
	if len(group) == 1 {
		s.commitBatch(t, group)
		return
	}
	began := time.Now()
	inbox := s.nc.NewInbox()
	answers := make(chan *nats.Msg, len(group))
	sub, err := s.nc.ChanSubscribe(inbox+".*", answers)
	left := make(map[int]*request, len(group))
	for i, r := range group {
		if err == nil {
			m := r.msgs[0]
			m.Reply = inbox + "." + strconv.Itoa(i)
			err = s.nc.PublishMsg(m)
			m.Reply = ""
		}
		if err != nil {
			r.answer(nil, err)
			continue
		}
		left[i] = r
	}
	if sub != nil {
		defer func() { _ = sub.Unsubscribe() }()
	}
	timer := time.NewTimer(s.o.AttemptTimeout)
	defer timer.Stop()
	highest := uint64(0)
	for len(left) > 0 {
		select {
		case m := <-answers:
			i, err := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
			r := left[i]
			if err != nil || r == nil {
				continue
			}
			delete(left, i)
			highest = max(highest, s.single(t, r, m, began))
		case <-timer.C:
			for _, r := range left {
				r.answer(nil, nats.ErrTimeout)
			}
			s.tell(t, highest)
			return
		case <-s.ctx.Done():
			for _, r := range left {
				r.answer(nil, store.ErrClosed)
			}
			return
		}
	}
	s.tell(t, highest)
	each := time.Since(began) / time.Duration(len(group))
	if len(group) >= manySingles/2 {
		t.queue.each = (3*t.queue.each + each) / 4
	}
}

// single answers one of several, and gives its seq.
func (s *Store) single(t *topic, r *request, m *nats.Msg, began time.Time) uint64 {
	ack, err := readAck(m)
	if err == nil && ack.Duplicate {
		err = errKnown
	}
	if err != nil {
		r.answer(nil, err)
		return 0
	}
	raise(&t.visible, ack.Seq)
	t.index.put(r.ids[0], ack.Seq, r.times[0])
	t.tail.stored(ack.Seq, ack.Seq)
	t.tail.reached(ack.Seq, began)
	s.appeared(t, ack.Seq)
	r.answer([]uint64{ack.Seq}, nil)
	return ack.Seq
}
