package mongostore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/store"
)

// groupLane is the queue of settlements of a group, and the state that its
// last write left. While nobody else changes the group, that is the stored
// state, and one write settles all that wait.
type groupLane struct {
	name groupName

	mu      sync.Mutex
	queue   []*settling
	running bool

	// Of the goroutine that runs.
	state store.Cursor
	rev   int64
	put   int64
	have  bool
}

// settling is one settlement that waits.
type settling struct {
	ctx  context.Context
	s    store.Settlement
	done chan struct{}
	err  error
}

// settleAll applies settlements, each as a step of its own.
func (s *Store) settleAll(ctx context.Context, list []store.Settlement) error {
	for i := range list {
		err := s.settle(ctx, &list[i])
		if err == nil {
			continue
		}
		if errors.Is(err, store.ErrClosed) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return err
		}
		return fmt.Errorf("append: settle group %s of topic %s: %w", shorten(list[i].Group), shorten(list[i].Topic), err)
	}
	return nil
}

func (s *Store) settle(ctx context.Context, st *store.Settlement) error {
	w := &settling{ctx: ctx, s: *st, done: make(chan struct{})}
	// The caller may go before we do.
	w.s.Done = append([]store.Range(nil), st.Done...)
	w.s.Attempts = append([]store.Attempt(nil), st.Attempts...)
	name := groupName{st.Topic, st.Group}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return store.ErrClosed
	}
	l := s.group[name]
	if l == nil {
		l = &groupLane{name: name}
		s.group[name] = l
	}
	l.mu.Lock()
	l.queue = append(l.queue, w)
	if !l.running {
		l.running = true
		s.lanes.Go(func() { s.runGroup(l) })
	}
	l.mu.Unlock()
	s.mu.Unlock()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runGroup settles what waits, all at once, again and again.
func (s *Store) runGroup(l *groupLane) {
	for {
		l.mu.Lock()
		waiting := l.queue
		l.queue = nil
		if len(waiting) == 0 {
			l.running = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.life, 3*s.o.RetryFor)
		err := s.settleGroup(ctx, l, waiting)
		cancel()
		for _, w := range waiting {
			if err != nil && w.err == nil {
				w.err = err
				if s.life.Err() != nil {
					w.err = store.ErrClosed
				} else if errors.Is(err, context.DeadlineExceeded) {
					w.err = unavailable(errors.New("other writers came first for too long"))
				}
			}
			close(w.done)
		}
	}
}

// settleGroup applies settlements to a group by compare-and-set on its
// revision. Applying one twice is the same as once, so a write whose answer
// was lost is simply repeated on what is found.
func (s *Store) settleGroup(ctx context.Context, l *groupLane, waiting []*settling) error {
	deadline := time.Now().Add(s.o.RetryFor)
	fresh := false
	for pause := (backOff{}); ; {
		if !l.have {
			d, c, err := s.readCursor(ctx, l.name)
			if errors.Is(err, store.ErrNotFound) {
				for _, w := range waiting {
					w.err = err
				}
				return nil
			}
			if err != nil {
				return err
			}
			l.state, l.rev, l.put, l.have, fresh = c, d.Rev, d.Put, true, true
		}
		next := l.state.Clone()
		refused, err := s.apply(ctx, &next, waiting)
		if err != nil {
			return err
		}
		if refused && !fresh {
			l.have = false // somebody else may have changed the group
			continue
		}
		if !changes(waiting) {
			return nil
		}
		rev, matched := newRev(), false
		err = s.try(ctx, func(ctx context.Context) error {
			d := encodeCursor(&next, rev, l.put)
			result, err := s.cursors.UpdateOne(ctx, append(l.name.filter(), bson.E{Key: "rev", Value: l.rev}), bson.D{{Key: "$set", Value: bson.D{
				{Key: "epoch", Value: d.Epoch}, {Key: "floor", Value: d.Floor}, {Key: "handed", Value: d.Handed}, {Key: "settled", Value: d.Settled},
				{Key: "attempts", Value: d.Attempts}, {Key: "rev", Value: rev},
			}}})
			matched = err == nil && result.MatchedCount > 0
			return err
		})
		if matched {
			l.state, l.rev = next, rev
			return nil
		}
		l.have = false
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !transient(err):
			return err
		case err != nil && time.Now().After(deadline):
			return unavailable(err)
		case err != nil:
			if err := pause.wait(ctx); err != nil {
				return err
			}
		}
	}
}

// changes says whether any of the settlements was not refused.
func changes(waiting []*settling) bool {
	for _, w := range waiting {
		if w.err == nil {
			return true
		}
	}
	return false
}

// apply settles what is not refused, and says whether something was.
func (s *Store) apply(ctx context.Context, c *store.Cursor, waiting []*settling) (refused bool, err error) {
	for _, w := range waiting {
		if w.err = w.ctx.Err(); w.err != nil {
			continue // nobody waits for it
		}
		if c.Epoch != w.s.Epoch {
			w.err, refused = fmt.Errorf("epoch %d, stored %d: %w", w.s.Epoch, c.Epoch, store.ErrFenced), true
			continue
		}
		highest := uint64(0)
		for _, r := range w.s.Done {
			if r.First <= r.Last {
				highest = max(highest, r.Last)
			}
		}
		last, err := s.atLeast(ctx, w.s.Topic, highest)
		if err != nil {
			return refused, err
		}
		if highest > last {
			w.err, refused = fmt.Errorf("%w: seq %d is above the last, %d", store.ErrInvalid, highest, last), true
			continue
		}
		c.Settle(&w.s)
	}
	return refused, nil
}

// atLeast gives the topic's last seq if it is below seq, and otherwise any that
// is not. Tails only rise, so an old one is often enough.
func (s *Store) atLeast(ctx context.Context, topic string, seq uint64) (uint64, error) {
	if t, _ := s.laneOf(topic).known(); t.last >= seq {
		return t.last, nil
	}
	t, err := s.refresh(ctx, topic)
	return t.last, err
}
