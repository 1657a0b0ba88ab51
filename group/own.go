package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"promethean/event"
	"promethean/store"
)

// Several processes may share an engine, and one of them owns a group at a time.
// It holds a lease by the name of the group and has written an epoch of its own
// into the cursor. The lease decides who may begin; the epoch sees to it that
// whoever comes too late changes nothing, whatever clocks say.
//
// An owner that cannot renew in time stops handing out, and forgets what it
// held, before its lease ends: it counts from the moment at which it asked.
// The next owner begins at the cursor, as after a crash. An owner that leaves
// cleanly says so, and nobody is suspect.

// ErrNotOwner says that another process owns the group; see NotOwnerError.
var ErrNotOwner = errors.New("another hub owns the group")

// NotOwnerError says which group another process owns. It is ErrNotOwner.
type NotOwnerError struct {
	Topic, Group string
	Err          error
}

func (e *NotOwnerError) Error() string {
	return fmt.Sprintf("topic %s, group %s: %v", e.Topic, e.Group, e.Err)
}

// Unwrap gives ErrNotOwner, or what it is wrapped in.
func (e *NotOwnerError) Unwrap() error { return e.Err }

// named says of which group an error is that is ErrNotOwner.
func (n name) named(err error) error {
	var already *NotOwnerError
	if !errors.Is(err, ErrNotOwner) || errors.As(err, &already) {
		return err
	}
	return &NotOwnerError{Topic: n.topic, Group: n.group, Err: err}
}

// DefaultOwnFor is how long a process owns a group without renewing.
const DefaultOwnFor = 10 * time.Second

// ownership is a runner's share in that. All but turn is under runner.mu.
type ownership struct {
	turn  chan struct{} // holds one while somebody takes, renews or gives back; before runner.mu
	owned bool          // always, once loaded, on an engine that is not shared
	lease store.Lease
	until time.Time // it must not act as the owner after that
	lapse *time.Timer
	// stepping says that a step is on its way; due is the timer of the next.
	stepping bool
	due      *time.Timer
	step     func() // runner.runStep, made once
}

func (n name) leaseName() string { return LeaseName(n.topic, n.group) }

// LeaseName is the name of the lease that whoever serves a group holds, on an
// engine that several processes share.
func LeaseName(topic, group string) string { return "group\n" + topic + "\n" + group }

// Owner names this process on an engine that several share.
func (e *Engine) Owner() string { return e.o.Owner }

// OwnFor is how long this process owns a group without renewing.
func (e *Engine) OwnFor() time.Duration { return e.o.OwnFor }

// OwnerOf names the process that owns a group now. If none does, that is
// store.ErrNotFound; the first one that wants it gets it then. On an engine
// that is not shared it is always this one.
func (e *Engine) OwnerOf(ctx context.Context, topic, group string) (string, error) {
	if e.leases == nil {
		return e.o.Owner, nil
	}
	holds, ok := store.As[store.Holds](e.log)
	if !ok {
		return "", fmt.Errorf("owner of topic %s, group %s: %w: the engine does not tell", topic, group, errors.ErrUnsupported)
	}
	l, err := holds.Holder(ctx, name{topic, group}.leaseName())
	if err != nil {
		return "", fmt.Errorf("owner of topic %s, group %s: %w", topic, group, err)
	}
	return l.Owner, nil
}

// Owns says whether this process may act for a group now.
func (e *Engine) Owns(topic, group string) bool {
	e.mu.Lock()
	r := e.runners[name{topic, group}]
	e.mu.Unlock()
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isOwner()
}

// Seek has the process try at once to become the owner of the member's group,
// if it is not. It does not wait. Without it that is tried three times in
// Options.OwnFor.
func (m *Member) Seek() {
	r := m.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if !m.gone && !r.own.owned {
		r.seek(0)
	}
}

// tell says to all members whether the process owns the group. mu must be held.
func (r *runner) tell(owned bool) {
	for _, m := range r.members {
		if m.owned != nil {
			m.owned(owned)
		}
	}
}

// isOwner says whether the runner may act for the group now. mu must be held.
func (r *runner) isOwner() bool {
	return r.own.owned && (r.e.leases == nil || time.Now().Before(r.own.until))
}

// ownUntil says for how long the runner is the owner, by what it asked for
// then: a server that does not answer must not keep it from stopping in time.
// mu must be held.
func (r *runner) ownUntil(asked time.Time) {
	ttl := r.e.o.OwnFor
	r.own.until = asked.Add(ttl - ttl/10)
	if r.own.lapse == nil {
		r.own.lapse = time.AfterFunc(time.Until(r.own.until), func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if !r.isOwner() && !r.closed {
				r.giveUp(errLate)
			}
		})
		return
	}
	r.own.lapse.Reset(time.Until(r.own.until))
}

// errLate is why an owner gives up that could not renew.
var errLate = fmt.Errorf("%w: it was not renewed in time", ErrNotOwner)

// seek has the next step of ownership taken after a while, or now. mu must be
// held.
func (r *runner) seek(after time.Duration) {
	if r.e.leases == nil || r.closed || r.own.stepping {
		return
	}
	if r.own.due != nil {
		r.own.due.Stop()
		r.own.due = nil
	}
	if after > 0 {
		r.own.due = time.AfterFunc(after, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.seek(0)
		})
		return
	}
	r.own.stepping = true
	if !r.e.work.Go(r.own.step) {
		r.own.stepping = false
	}
}

// runStep takes, renews or gives back the ownership, whatever is next.
func (r *runner) runStep() {
	ttl := r.e.o.OwnFor
	next := ttl/3 - rand.N(ttl/30+1)
	r.own.turn <- struct{}{}
	r.mu.Lock()
	members, owned, lease := len(r.members), r.own.owned, r.own.lease
	closed := r.closed
	r.mu.Unlock()
	var err error
	foreign := false
	switch {
	case closed, members == 0 && !owned:
		next = 0
	case members == 0:
		if err = r.handBack(); err == nil {
			next = 0
		}
	case owned:
		err = r.renew(lease)
	default:
		if err = r.takeOwnership(r.e.ctx); errors.Is(err, store.ErrHeld) {
			err, foreign = nil, true // somebody else is at it
		}
	}
	<-r.own.turn
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own.stepping = false
	if foreign && !r.own.owned && !r.closed {
		r.tell(false)
	}
	if err != nil && !r.closed {
		r.e.o.Logger.Warn("ownership of a group", "topic", r.topic, "group", r.group, "err", err)
	}
	if next > 0 || len(r.members) > 0 && !r.own.owned {
		r.seek(max(next, ttl/30))
	}
}

// takeOwnership becomes the owner, or fails with store.ErrHeld. An owner whose
// time is over begins anew too: what it handed out belongs to its old epoch.
func (r *runner) takeOwnership(ctx context.Context) error {
	ttl := r.e.o.OwnFor
	r.mu.Lock()
	r.giveUp(errLate)
	r.mu.Unlock()
	asked := time.Now()
	lease, err := r.e.leases.Acquire(ctx, r.stored().leaseName(), r.e.o.Owner, ttl)
	if err != nil {
		return err
	}
	if err := r.reroot(ctx); err != nil {
		return err
	}
	c, err := r.fence(ctx)
	if err != nil {
		return err
	}
	if err := r.adopt(&c); err != nil {
		return err
	}
	letters, err := r.findLetters(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	r.own.owned, r.own.lease = true, lease
	r.ownUntil(asked)
	r.tell(true) // before anything is handed out
	r.e.o.Logger.Info("group is taken over", "topic", r.topic, "group", r.group, "epoch", c.Epoch, "cursor", c.Floor, "handed", c.Handed)
	r.start(c, letters)
	return nil
}

// fence writes a new epoch into the cursor: nobody else can settle from here
// on.
func (r *runner) fence(ctx context.Context) (store.Cursor, error) {
	for {
		c, err := r.e.log.Cursor(ctx, r.topic, r.cursor)
		if err != nil {
			return c, err
		}
		epoch := c.Epoch + 1
		if r.e.leases != nil {
			// What the owner before has settled until this moment counts, so the
			// state must not be written before he is shut out.
			take := store.Settlement{Topic: r.topic, Group: r.cursor, Epoch: c.Epoch, Take: epoch}
			if _, err = r.e.log.Append(ctx, store.Batch{Settle: []store.Settlement{take}}); err == nil {
				c, err = r.e.log.Cursor(ctx, r.topic, r.cursor)
			}
			if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrConflict) || err == nil && c.Epoch != epoch {
				continue // somebody else was quicker
			}
			if err != nil {
				return c, err
			}
		}
		b, err := r.e.log.Bounds(ctx, r.topic)
		if err != nil {
			return c, err
		}
		c.Epoch = epoch
		// What was never published was never handed out.
		c.Handed = max(min(c.Handed, b.Last), c.Floor)
		c.Version, err = r.e.log.PutCursor(ctx, c)
		if r.e.leases != nil && (errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrFenced)) {
			continue
		}
		return c, err
	}
}

// renew prolongs the ownership. It is lost if somebody else has it, or if the
// cursor was moved by somebody.
func (r *runner) renew(lease store.Lease) error {
	ttl := r.e.o.OwnFor
	asked := time.Now()
	renewed, err := r.e.leases.Renew(r.e.ctx, lease, ttl)
	var c store.Cursor
	if err == nil {
		c, err = r.e.log.Cursor(r.e.ctx, r.topic, r.cursor)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.own.owned || r.own.lease.Epoch != lease.Epoch {
		return nil // lost meanwhile
	}
	switch {
	case err == nil && c.Epoch == r.cur.Epoch:
		r.own.lease = renewed
		r.ownUntil(asked)
	case err == nil:
		r.giveUp(fmt.Errorf("%w: its cursor was moved", ErrNotOwner))
	case errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrNotFound), !time.Now().Before(r.own.until):
		r.giveUp(err)
	}
	return err
}

// giveUp stops acting as the owner. What is handed out is over; the members
// stay, and get events again when the group is taken over. mu must be held.
func (r *runner) giveUp(err error) {
	if !r.own.owned {
		return
	}
	r.e.o.Logger.Warn("group is given up", "topic", r.topic, "group", r.group, "cause", err)
	r.own.owned = false
	r.clear(err)
	r.told()
	r.tell(false)
	r.seek(r.e.o.OwnFor / 30)
}

// handBack gives a group up that nobody here reads any more.
func (r *runner) handBack() error {
	err := r.do(func() error {
		if len(r.members) > 0 || !r.own.owned {
			return nil
		}
		err := r.leaveClean()
		if err == nil {
			r.own.owned = false
			r.clear(ErrNotOwner)
			r.told()
		}
		return err
	})
	r.mu.Lock()
	lease, owned := r.own.lease, r.own.owned
	r.mu.Unlock()
	if err != nil || owned {
		return err
	}
	return r.e.leases.Release(r.e.ctx, lease)
}

// acting opens a group for something that only its owner can do, and becomes
// the owner if nobody is.
func (e *Engine) acting(ctx context.Context, topic, group string) (*runner, error) {
	r, err := e.open(ctx, topic, group, nil, Start{})
	if err != nil || e.leases == nil {
		return r, err
	}
	select {
	case r.own.turn <- struct{}{}:
		defer func() { <-r.own.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	owner := r.isOwner()
	r.mu.Unlock()
	if owner {
		return r, nil
	}
	if err = r.takeOwnership(ctx); errors.Is(err, store.ErrHeld) {
		return nil, r.named(ErrNotOwner)
	}
	if err != nil {
		return nil, fmt.Errorf("topic %s, group %s: %w", topic, group, err)
	}
	r.mu.Lock()
	r.seek(e.o.OwnFor / 3) // gives it back if nobody comes
	r.mu.Unlock()
	return r, nil
}

// moveForeign moves the cursor of a group that somebody else owns, who notices
// when it renews, or when it settles something.
func (r *runner) moveForeign(ctx context.Context, floor uint64) error {
	for {
		c, err := r.e.log.Cursor(ctx, r.topic, r.cursor)
		if err != nil {
			return err
		}
		c = store.Cursor{
			Topic: r.topic, Group: r.cursor, Version: c.Version, Epoch: c.Epoch + 1, Generation: c.Generation + 1,
			Floor: floor, Handed: floor, Meta: c.Meta,
		}
		if _, err = r.e.log.PutCursor(ctx, c); !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrFenced) {
			return err
		}
	}
}

// append puts events and settlements into the log. Where it cannot take both
// in one step, events go first: their ids follow from what they are about, so
// that they are not doubled if the whole has to be done again. Settlements
// come in the order given.
func (e *Engine) append(ctx context.Context, b *store.Batch) error {
	if e.settles || len(b.Events) == 0 {
		_, err := e.log.Append(ctx, *b)
		return err
	}
	byTopic := make(map[string][]event.Event)
	var topics []string
	for _, ev := range b.Events {
		if byTopic[ev.Topic] == nil {
			topics = append(topics, ev.Topic)
		}
		byTopic[ev.Topic] = append(byTopic[ev.Topic], ev)
	}
	most, bytes := len(b.Events), math.MaxInt
	if l, ok := e.log.(store.Bounded); ok {
		most, bytes = l.MaxBatch()
	}
	for _, topic := range topics {
		for _, part := range store.Cut(byTopic[topic], most, bytes) {
			if _, err := e.log.Append(ctx, store.Batch{Events: part, Internal: b.Internal}); err != nil {
				return err
			}
		}
	}
	if len(b.Settle) == 0 {
		return nil
	}
	_, err := e.log.Append(ctx, store.Batch{Settle: b.Settle})
	return err
}
