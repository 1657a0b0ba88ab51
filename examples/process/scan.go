package process

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"promethean/event"
	"promethean/store"
)

// scanBatch is how many states a scan publishes at once.
const scanBatch = 100

// scan looks for silence until ctx ends.
func (p *Projector) scan(ctx context.Context) {
	defer close(p.ended)
	tick := time.NewTicker(p.o.ScanEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := p.scanOnce(ctx); err != nil && ctx.Err() == nil {
			p.o.Logger.Warn("look for silent processes", "err", err)
		}
	}
}

// scanOnce states which processes are silent.
func (p *Projector) scanOnce(ctx context.Context) error {
	// Other projectors have published too.
	if err := p.follow(ctx); err != nil {
		return err
	}
	// Heartbeats that wait to be handled may be of those that seem silent, so
	// the question is who was silent when the oldest of them came.
	now := time.Now()
	lag, err := p.hub.Lag(ctx, HeartbeatTopic, Group)
	if err != nil {
		return err
	}
	silent := p.silentSince(now.Add(-lag.Age).Add(-p.o.StaleAfter).UnixMilli())
	var errs []error
	for part := range slices.Chunk(silent, scanBatch) {
		errs = append(errs, p.stateAll(ctx, part))
	}
	return errors.Join(errs...)
}

// silentSince gives the processes that were not heard of after a time, in a
// steady order.
func (p *Projector) silentSince(ts int64) []known {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []known
	for _, k := range p.alive {
		if k.state.LastSeenTS <= ts {
			k.state.Status = Stale
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b known) int { return strings.Compare(a.state.ProcessID, b.state.ProcessID) })
	return out
}

// stateAll publishes that processes are stale.
func (p *Projector) stateAll(ctx context.Context, list []known) error {
	events := make([]event.Event, len(list))
	expect := make([]store.Expect, len(list))
	for i := range list {
		s := &list[i].state
		e, err := newEvent(staleID(s), s)
		if err != nil {
			return err
		}
		events[i], expect[i] = e, store.Expect{Topic: StateTopic, Key: s.ProcessID, Seq: list[i].seq}
	}
	got, err := p.hub.PublishIf(ctx, expect, events...)
	if err == nil {
		for i, r := range got {
			list[i].seq = r.Seq
			p.remember(list[i])
		}
		return nil
	}
	if len(list) > 1 && ctx.Err() == nil {
		// One that has come back holds up the others, or the engine does not
		// take as many under conditions: each for itself then.
		var errs []error
		for i := range list {
			errs = append(errs, p.stateAll(ctx, list[i:i+1]))
		}
		return errors.Join(errs...)
	}
	if errors.Is(err, store.ErrSeqConflict) {
		return nil // it has come back; the next scan reads what it says
	}
	return err
}
