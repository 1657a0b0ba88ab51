package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// wokenEvery is how often a store that wakes is looked at all the same.
	wokenEvery = 15 * time.Second
	// idleGrowth is by how much the pause of an idle drainer grows. Six times
	// 250 ms leaves room for the counting below one query a second.
	idleGrowth = 6
	// longestOutage bounds the pause while hub or database are away.
	longestOutage = 5 * time.Second
	// maxVain is how often in turn a drainer may be woken for nothing before it
	// looks at most every vainPause: a store may wake whenever anything changes.
	maxVain   = 4
	vainPause = 1500 * time.Millisecond
	// pruneEvery and pruneBatch are how often and how much is pruned at a time.
	pruneEvery = time.Minute
	pruneBatch = 1000
	// lastWords bounds how long rows are given back when a run ends.
	lastWords = 5 * time.Second
)

// run is one run of a drainer; all in one goroutine.
type run struct {
	*Drainer
	owner string

	woken  <-chan struct{}
	roused bool          // the last look was because of that
	vain   int           // looks in turn that were, and found nothing
	rewake time.Time     // when to try to be woken again
	idle   time.Duration // the last pause of an idle drainer
	failed time.Duration // the last pause in an outage
	due    dues          // when refused rows are due

	requeueAt, statsAt, pruneAt time.Time
}

func (r *run) loop(ctx context.Context) {
	defer r.sleepWell()
	for ctx.Err() == nil {
		r.listen(ctx)
		more, err := r.round(ctx)
		if ctx.Err() != nil {
			return
		}
		if more && err == nil {
			r.idle, r.failed = 0, 0
			r.fine()
			continue
		}
		r.wait(ctx, r.pause(err))
	}
}

// round does all that is due once. It says whether there is more to do.
func (r *run) round(ctx context.Context) (more bool, err error) {
	if err := r.requeue(ctx); err != nil {
		return false, err
	}
	n, err := r.pass(ctx)
	switch {
	case n > 0:
		r.idle, r.vain = 0, 0
	case r.roused:
		r.vain++
	}
	r.roused = false
	if counting := r.count(ctx); err == nil { // also while the hub is away
		err = counting
	}
	if err != nil {
		return false, err
	}
	pruning, err := r.prune(ctx)
	return n == r.o.Batch || pruning, err
}

// pause is how long to wait when there is nothing more to do.
func (r *run) pause(err error) time.Duration {
	if err != nil {
		r.trouble(err)
		r.failed = min(max(2*r.failed, r.o.Every), max(longestOutage, r.o.Every))
		return r.failed/2 + rand.N(r.failed/2+1)
	}
	r.fine()
	r.failed = 0
	r.idle = min(max(2*r.idle, r.o.Every), idleGrowth*r.o.Every)
	wait := r.idle
	if r.woken != nil {
		// Nobody tells of claims that are over.
		wait = max(min(wokenEvery, r.o.Lease/2), r.o.Every)
	}
	if next, ok := r.due.next(time.Now()); ok {
		wait = min(wait, next)
	}
	return wait
}

// wait waits, or until rows come. Waking does not cut an outage short.
func (r *run) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	woken := r.woken
	if r.failed > 0 {
		woken = nil
	}
	if r.vain >= maxVain {
		vain := time.NewTimer(min(d, vainPause))
		defer vain.Stop()
		select {
		case <-vain.C:
		case <-ctx.Done():
			return
		}
	}
	select {
	case <-timer.C:
	case <-ctx.Done():
	case _, open := <-woken:
		if r.roused = open; !open {
			r.deaf(fmt.Errorf("the store no longer tells when rows come"))
		}
	}
}

// listen begins to be woken, if the store can.
func (r *run) listen(ctx context.Context) {
	w, ok := r.store.(Waker)
	if !ok || r.woken != nil || time.Now().Before(r.rewake) {
		return
	}
	woken, err := w.Wake(ctx)
	if err != nil {
		r.deaf(err)
		return
	}
	r.woken = woken
	r.note(func(s *Status) { s.Waking = true })
}

// deaf goes on without being woken for a while.
func (r *run) deaf(err error) {
	r.woken, r.rewake = nil, time.Now().Add(wokenEvery)
	r.note(func(s *Status) { s.Waking = false })
	r.o.Logger.Info("outbox: looking for rows without being woken", "outbox", r.o.Name, "error", err)
}

// sleepWell waits until nothing is left of being woken. The context has ended.
func (r *run) sleepWell() {
	if r.woken == nil {
		return
	}
	for range r.woken {
	}
}

// bounded is a context for one call of the store: one that does not answer is
// noticed, and does not outlast a lease.
func (r *run) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, r.o.Lease/2)
}

// pass claims rows and publishes them. It says how many were claimed, and why
// nothing goes on.
func (r *run) pass(ctx context.Context) (int, error) {
	began := time.Now()
	short, done := r.bounded(ctx)
	rows, err := r.store.ClaimBatch(short, r.owner, r.o.Batch, r.o.Lease)
	done()
	if err != nil {
		return 0, fmt.Errorf("claim rows: %w", err)
	}
	if len(rows) == 0 {
		return 0, nil
	}
	// What is not stored by then is given back while it is surely ours.
	limited, cancel := context.WithDeadline(ctx, began.Add(r.o.Lease*2/3))
	defer cancel()
	a := attempt{d: r.Drainer}
	a.publish(limited, rows)
	err = r.settle(ctx, &a, began.Add(r.o.Lease))
	switch {
	case a.outage != nil:
		return len(rows), fmt.Errorf("publish: %w", a.outage)
	case err != nil:
		return len(rows), err
	}
	return len(rows), nil
}

// settle tells the store what became of the rows, also when the run is to end.
// It tries until their lease is over: then they come again, and what was sent is
// known to the hub.
func (r *run) settle(ctx context.Context, a *attempt, until time.Time) error {
	if ctx.Err() != nil {
		until = time.Now().Add(lastWords)
	}
	limited, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	for pause := r.o.Every; ; pause *= 2 {
		err := r.tell(limited, a)
		if err == nil || limited.Err() != nil {
			return err
		}
		r.trouble(err)
		if time.Now().Add(pause).After(until) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return r.tell(limited, a)
		}
	}
}

// tell does one step after the other, and forgets those that are done.
func (r *run) tell(ctx context.Context, a *attempt) error {
	if len(a.sent) > 0 {
		if err := r.store.MarkSent(ctx, a.sent...); err != nil {
			return fmt.Errorf("mark %d rows as sent: %w", len(a.sent), err)
		}
		n := uint64(len(a.sent))
		r.note(func(s *Status) { s.SentTotal += n; s.LastSent = time.Now() })
		a.sent = nil
	}
	if len(a.refusals) > 0 {
		if err := r.store.MarkError(ctx, r.owner, a.refusals...); err != nil {
			return fmt.Errorf("mark %d rows as refused: %w", len(a.refusals), err)
		}
		r.refused(a.refusals)
		a.refusals = nil
	}
	if len(a.back) > 0 {
		if err := r.store.Release(ctx, r.owner, a.back...); err != nil {
			return fmt.Errorf("give back %d rows: %w", len(a.back), err)
		}
		a.back = nil
	}
	return nil
}

// refused notes refusals, and when the first of them is due.
func (r *run) refused(list []Refusal) {
	now := time.Now()
	for _, f := range list {
		if !f.GiveUp {
			r.due.add(now.Add(f.After), r.o.Every)
		}
	}
	r.note(func(s *Status) {
		s.RefusedTotal += uint64(len(list))
		s.LastError, s.LastErrorAt = list[len(list)-1].Reason, now
	})
}

// requeue frees rows whose claims are over, now and then.
func (r *run) requeue(ctx context.Context) error {
	now := time.Now()
	if now.Before(r.requeueAt) {
		return nil
	}
	short, done := r.bounded(ctx)
	defer done()
	n, err := r.store.RequeueExpired(short)
	if err != nil {
		return fmt.Errorf("requeue rows: %w", err)
	}
	r.requeueAt = now.Add(r.o.Lease / 2)
	if n > 0 {
		r.o.Logger.Info("outbox: claims were over", "outbox", r.o.Name, "rows", n)
	}
	return nil
}

// count takes the figures for the status, now and then.
func (r *run) count(ctx context.Context) error {
	now := time.Now()
	if now.Before(r.statsAt) {
		return nil
	}
	short, done := r.bounded(ctx)
	defer done()
	stats, err := r.store.Stats(short)
	if err != nil {
		return fmt.Errorf("count rows: %w", err)
	}
	r.statsAt = now.Add(r.o.StatsEvery)
	r.note(func(s *Status) { s.Stats, s.StatsAt = stats, now })
	return nil
}

// prune removes old rows, now and then. It says whether there are more.
func (r *run) prune(ctx context.Context) (more bool, err error) {
	now := time.Now()
	if r.o.Keep < 0 || now.Before(r.pruneAt) {
		return false, nil
	}
	short, done := r.bounded(ctx)
	defer done()
	n, err := r.store.Prune(short, r.o.Keep, pruneBatch)
	if err != nil {
		return false, fmt.Errorf("prune rows: %w", err)
	}
	if n >= pruneBatch {
		return true, nil
	}
	r.pruneAt = now.Add(pruneEvery)
	return false, nil
}

// dues are the times at which refused rows are due again, rounded up, so that
// many rows are few times.
type dues map[time.Time]bool

func (d *dues) add(at time.Time, step time.Duration) {
	if *d == nil {
		*d = make(dues)
	}
	(*d)[at.Add(step).Truncate(step)] = true
}

// next is how long it is until the next time, and forgets those that are over.
func (d dues) next(now time.Time) (wait time.Duration, ok bool) {
	for at := range d {
		left := at.Sub(now)
		if left <= 0 {
			delete(d, at)
			continue
		}
		if !ok || left < wait {
			wait, ok = left, true
		}
	}
	return wait, ok
}
