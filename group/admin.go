package group

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"promethean/store"
)

// Info is how a group stands.
type Info struct {
	Topic, Group string
	Settings     Settings
	// Cursor is the floor: it and everything below is settled.
	Cursor uint64
	// Tail is the topic's last seq; Lag how many events are not settled.
	Tail, Lag uint64
	// InFlight is how many events are handed out; Pending how many were
	// delivered and are not settled, those that come back later included.
	InFlight, Pending int
	Members           int
	Paused            bool
	Generation        uint64
}

// Info tells how a group stands.
func (e *Engine) Info(ctx context.Context, topic, group string) (Info, error) {
	e.mu.Lock()
	r := e.runners[name{topic, group}]
	e.mu.Unlock()
	b, err := e.log.Bounds(ctx, topic)
	if err != nil {
		return Info{}, err
	}
	if r == nil {
		i, err := e.partedInfo(ctx, topic, group, b)
		if err == nil || !errors.Is(err, ErrConflict) {
			return i, err
		}
	}
	if r != nil {
		r.mu.Lock()
		if r.own.owned {
			defer r.mu.Unlock()
			i := info(&r.cur, b)
			i.Settings, i.Paused, i.Members = r.set, r.paused, len(r.members)
			i.Pending = 0
			for _, it := range r.held {
				if it.state == leased {
					i.InFlight++
				}
				if it.delivered > 0 && it.state != settling {
					i.Pending++
				}
			}
			return i, nil
		}
		r.mu.Unlock()
	}
	c, err := e.log.Cursor(ctx, topic, group)
	if errors.Is(err, store.ErrNotFound) {
		return Info{}, fmt.Errorf("topic %s, group %s: %w", topic, group, ErrNotFound)
	}
	if err != nil {
		return Info{}, err
	}
	i := info(&c, b)
	if r != nil {
		r.mu.Lock()
		i.Paused, i.Members = r.paused, len(r.members)
		r.mu.Unlock()
	}
	i.Settings, err = decodeSettings(c.Meta)
	return i, err
}

func info(c *store.Cursor, b store.Bounds) Info {
	i := Info{Topic: c.Topic, Group: c.Group, Cursor: c.Floor, Tail: b.Last, Pending: len(c.Attempts), Generation: c.Generation}
	from := max(c.Floor, b.First-1) // what is gone lags no more
	if b.Last > from {
		i.Lag = b.Last - from
		for _, s := range c.Settled {
			if s.Last > from {
				i.Lag -= min(s.Last, b.Last) - max(s.First, from+1) + 1
			}
		}
	}
	return i
}

// Move sets the cursor to a place. All leases end; settlements and counts
// after the place are forgotten.
func (e *Engine) Move(ctx context.Context, topic, group string, to Start) error {
	r, err := e.open(ctx, topic, group, nil, Start{})
	if err != nil && !errors.Is(err, errParted) {
		return err
	}
	floor, err := e.Floor(ctx, topic, to)
	if err != nil {
		return fmt.Errorf("topic %s, group %s: %w", topic, group, err)
	}
	if r == nil {
		err = e.moveParted(ctx, topic, group, floor)
	} else {
		err = r.move(ctx, floor)
	}
	if err != nil {
		return fmt.Errorf("move the cursor of topic %s, group %s: %w", topic, group, err)
	}
	return nil
}

func (r *runner) move(ctx context.Context, floor uint64) error {
	r.mu.Lock()
	owner := r.isOwner()
	r.mu.Unlock()
	if !owner && r.e.leases != nil {
		return r.moveForeign(ctx, floor)
	}
	return r.do(func() error {
		c := store.Cursor{
			Topic: r.topic, Group: r.cursor, Version: r.cur.Version, Epoch: r.cur.Epoch, Generation: r.cur.Generation + 1,
			Floor: floor, Handed: floor, Meta: r.cur.Meta,
		}
		r.mu.Unlock()
		v, err := r.e.log.PutCursor(r.e.ctx, c)
		r.mu.Lock()
		if err != nil {
			return err
		}
		c.Version = v
		r.reset(c)
		return nil
	})
}

// do has op run between two records, with mu held.
func (r *runner) do(op func() error) error {
	done := make(chan error, 1)
	r.mu.Lock()
	if err := r.usable(); err != nil {
		r.mu.Unlock()
		return err
	}
	r.ops = append(r.ops, func() {
		if err := r.usable(); err != nil {
			done <- err
			return
		}
		done <- op()
	})
	r.settle()
	r.mu.Unlock()
	return <-done
}

// reset begins again at c. mu must be held.
func (r *runner) reset(c store.Cursor) {
	letters := r.letters
	r.clear(ErrFenced) // what they acked is forgotten
	r.cur = c
	r.begin()
	for seq, it := range letters {
		r.inject(seq, it.ev, 0)
	}
	r.feed()
}

// clear forgets all that is held; whoever waits for a record gets err. mu must
// be held.
func (r *runner) clear(err error) {
	r.life++
	for _, it := range r.held {
		if it.state == leased {
			r.endLease(it)
		}
		r.release(it)
		it.state, it.over = settling, true // whoever still has it finds it over
		if it.then != nil {
			it.then(err)
		}
	}
	clear(r.held)
	clear(r.keys)
	r.letters = make(map[uint64]*item)
	r.ready, r.suspects, r.delays, r.leases = fifo{}, fifo{}, nil, leases{}
	r.kept, r.tried, r.mark, r.counted, r.first = 0, nil, 0, 0, 0
	r.acks, r.dead, r.records, r.skipped, r.writing, r.foreign = nil, nil, nil, nil, nil, nil
	for _, w := range r.waiters {
		w <- err
	}
	r.waiters = nil
}

// Pause stops handing out; Resume goes on.
func (e *Engine) Pause(ctx context.Context, topic, group string) error {
	return e.setPaused(ctx, topic, group, true)
}

// Resume goes on handing out after Pause.
func (e *Engine) Resume(ctx context.Context, topic, group string) error {
	return e.setPaused(ctx, topic, group, false)
}

func (e *Engine) setPaused(ctx context.Context, topic, group string, paused bool) error {
	r, err := e.open(ctx, topic, group, nil, Start{})
	if errors.Is(err, errParted) {
		e.partedOf(topic, group).pause(paused)
		for _, r := range e.runnersOf(topic, group) {
			r.pause(paused)
		}
		return nil
	}
	if err != nil {
		return err
	}
	r.pause(paused)
	return nil
}

func (r *runner) pause(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = paused
	r.feed()
}

// Delete removes a group. It must have no members.
func (e *Engine) Delete(ctx context.Context, topic, group string) error {
	r, err := e.acting(ctx, topic, group)
	if errors.Is(err, errParted) {
		return e.deleteParted(ctx, topic, group)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	if n := len(r.members); n > 0 {
		r.mu.Unlock()
		return fmt.Errorf("topic %s, group %s: %w: %d members read", topic, group, ErrInvalid, n)
	}
	r.mu.Unlock()
	if err := r.close(); err != nil {
		return err
	}
	r.mu.Lock()
	version := r.cur.Version
	r.mu.Unlock()
	e.mu.Lock()
	delete(e.runners, r.stored())
	w := e.topics[topic]
	e.mu.Unlock()
	if w != nil {
		w.remove(r)
	}
	return e.log.DeleteCursor(ctx, topic, group, version)
}

func (w *watcher) remove(r *runner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := make([]*runner, 0, len(w.runners)) // a round may hold the old one
	for _, x := range w.runners {
		if x != r {
			kept = append(kept, x)
		}
	}
	w.runners = kept
}

// close takes all leases back, waits for what is being recorded, and records
// the rest.
func (r *runner) close() error {
	r.mu.Lock()
	if r.own.lapse != nil {
		r.own.lapse.Stop()
	}
	if r.own.due != nil {
		r.own.due.Stop()
	}
	if r.closed || !r.own.owned {
		r.closed = true
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	for _, m := range r.members {
		m.gone = true
	}
	for _, it := range r.held {
		if it.state == leased {
			it.delivered-- // it does not count
			r.endLease(it)
			r.release(it)
			it.state = ready
		}
	}
	if r.settler {
		r.finished = make(chan struct{})
		done := r.finished
		r.mu.Unlock()
		<-done
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	switch {
	case r.failed != nil:
		return r.failed
	case !r.own.owned: // lost meanwhile
		return nil
	}
	if err := r.leaveClean(); err != nil {
		if r.e.leases != nil && errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrFenced) {
			return nil // somebody else has it: there is nothing to record
		}
		return err
	}
	if r.e.leases == nil {
		return nil
	}
	return r.e.leases.Release(r.e.ctx, r.own.lease)
}

// leaveClean records how often what is not settled was delivered, and that
// nothing is handed out any more. mu must be held.
func (r *runner) leaveClean() error { return r.leaveTo(r.cur.Epoch) }

// leaveTo is leaveClean that lets another epoch begin.
func (r *runner) leaveTo(epoch uint64) error {
	c := r.cur.Clone()
	c.Epoch = epoch
	c.Settle(&store.Settlement{Done: r.foreign})
	for _, it := range r.held {
		if it.letter != 0 || it.state == settling {
			continue
		}
		if it.delivered > 0 {
			if c.Attempts == nil {
				c.Attempts = make(map[uint64]uint32)
			}
			c.Attempts[it.seq] = it.delivered
		} else {
			delete(c.Attempts, it.seq)
		}
	}
	if r.mark == 0 {
		c.Handed = 0 // nobody is suspect
	}
	v, err := r.e.log.PutCursor(r.e.ctx, c)
	if err != nil {
		return err
	}
	if r.cur.Version = v; r.part != nil {
		c.Version, r.foreign = v, nil
		r.cur = c
	}
	var counts []store.Attempt
	for seq, it := range r.letters {
		if it.recorded != it.delivered && it.state != settling {
			counts = append(counts, store.Attempt{Seq: seq, Count: it.delivered})
		}
	}
	if len(counts) == 0 {
		return nil
	}
	st := store.Settlement{Topic: LetterTopic(r.topic), Group: replayedName(r.group), Attempts: counts}
	_, err = r.e.log.Append(r.e.ctx, store.Batch{Settle: []store.Settlement{st}})
	return err
}

// backOff is how long an event waits after so many deliveries: from 100 ms
// to 30 s, give or take a quarter.
func backOff(delivered uint32) time.Duration {
	d := maxBackOff
	if shift := max(delivered, 1) - 1; shift < 16 {
		d = min(minBackOff<<shift, maxBackOff)
	}
	return d*3/4 + rand.N(d/2)
}

const (
	minBackOff = 100 * time.Millisecond
	maxBackOff = 30 * time.Second
)
