package mongostore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"promethean/event"
	"promethean/store"
)

// request is one append that waits for its lane.
type request struct {
	ctx    context.Context
	items  []item
	expect []store.Expect
	size   int // of the encoded events

	done chan struct{} // closed when answered
	out  []store.Appended
	err  error
}

// item is one event of a request, encoded in the caller's goroutine: nothing
// of the caller's is looked at after its call has returned.
type item struct {
	id  event.ID
	key string
	ts  int64
	doc []byte
}

// Append implements [store.Log].
func (s *Store) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(b.Events) == 0 {
		if s.isClosed() {
			return nil, store.ErrClosed
		}
		return nil, s.settleAll(ctx, b.Settle)
	}
	r, topic, err := s.request(ctx, &b)
	if err != nil {
		return nil, err
	}
	if err := s.submit(s.laneOf(topic), r); err != nil {
		return nil, err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if r.err == nil {
		return r.out, nil
	}
	if errors.Is(r.err, store.ErrClosed) || ctx.Err() != nil && errors.Is(r.err, ctx.Err()) {
		return nil, r.err
	}
	return nil, fmt.Errorf("append topic %s: %w", topic, r.err)
}

// request checks a batch with events and encodes it.
func (s *Store) request(ctx context.Context, b *store.Batch) (*request, string, error) {
	limits := s.o.Limits
	if b.Internal {
		limits = limits.Internal()
	}
	for i := range b.Events {
		if err := b.Events[i].Check(limits); err != nil {
			return nil, "", fmt.Errorf("append topic %s: %w", shorten(b.Events[i].Topic), &store.EventError{Index: i, Err: err})
		}
	}
	topic := b.Events[0].Topic
	for i := range b.Events {
		if b.Events[i].Topic != topic {
			return nil, "", fmt.Errorf("append topic %s: %w: event %d is of topic %s, and this engine appends to one topic at a time", topic, store.ErrInvalid, i, b.Events[i].Topic)
		}
	}
	if len(b.Settle) > 0 {
		return nil, "", fmt.Errorf("append topic %s: %w: this engine takes no settlements beside events", topic, store.ErrInvalid)
	}
	for i, x := range b.Expect {
		if x.Topic != topic {
			return nil, "", fmt.Errorf("append topic %s: %w: expectation %d is about topic %s, and this engine judges the topic that it appends to", topic, store.ErrInvalid, i, shorten(x.Topic))
		}
	}
	if len(b.Events) > maxEvents {
		return nil, "", fmt.Errorf("append topic %s: %w: %d events, the limit is %d", topic, store.ErrTooLarge, len(b.Events), maxEvents)
	}
	r := &request{ctx: ctx, items: make([]item, len(b.Events)), expect: append([]store.Expect(nil), b.Expect...), done: make(chan struct{})}
	bytes := 0
	for i := range b.Events {
		e := &b.Events[i]
		bytes += len(e.Key) + len(e.Payload)
		for _, h := range e.Headers {
			bytes += len(h.Name) + len(h.Value)
		}
		r.items[i] = item{id: e.ID, key: e.Key, ts: e.TS, doc: encodeEvent(e)}
		r.size += len(r.items[i].doc) + 8
		if bytes > maxBatchBytes || r.size > maxCommit {
			return nil, "", fmt.Errorf("append topic %s: %w: event %d goes beyond %d bytes", topic, store.ErrTooLarge, i, maxBatchBytes)
		}
	}
	return r, topic, nil
}

// submit queues a request and sees to it that its lane runs.
func (s *Store) submit(l *lane, r *request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, r)
	if !l.running {
		l.running = true
		s.lanes.Go(func() { s.runLane(l) })
	}
	return nil
}

// runLane commits what waits, one commit after the other. What arrives while
// one is on its way becomes the next.
func (s *Store) runLane(l *lane) {
	answered, took := 0, time.Duration(0)
	for {
		l.gather(answered, took)
		l.mu.Lock()
		events, size, n := 0, 0, 0
		for n < len(l.queue) {
			r := l.queue[n]
			if n > 0 && (events+len(r.items) > maxEvents || size+r.size > groupBytes) {
				break
			}
			events, size, n = events+len(r.items), size+r.size, n+1
		}
		if n == 0 {
			l.queue, l.running = nil, false
			l.mu.Unlock()
			return
		}
		g := &group{s: s, l: l, reqs: l.queue[:n:n]}
		l.queue = l.queue[n:]
		l.mu.Unlock()
		began := time.Now()
		g.commit()
		answered, took = n, time.Since(began)
	}
}

// gather lets those who were answered by the last commit join those who wait,
// for a small part of the time that it took. A commit costs the server far more
// than an event in it. Two halves of the publishers would take turns otherwise,
// or the first who comes back would have a commit to himself.
func (l *lane) gather(answered int, took time.Duration) {
	if answered < 2 {
		return
	}
	l.mu.Lock()
	n := len(l.queue)
	l.mu.Unlock()
	want := n + answered
	for began := time.Now(); n < want && time.Since(began) < took/8; {
		runtime.Gosched()
		l.mu.Lock()
		n = len(l.queue)
		l.mu.Unlock()
	}
}
