package logstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"promethean/event"
	"promethean/store"
	"promethean/store/internal/superseded"
	"promethean/store/logstore/internal/chunk"
)

// Compact implements [store.Compacts].
//
// It first finds out what is to go, without changing anything: if that is
// nothing, it costs a scan of the topic, or not even that if nothing has
// happened since the last time. What goes at the topic's beginning is trimmed.
// For what is left, mems that hold some of it are sealed, the sections that do
// are written anew without it, some at a time, and the indexes are rid of its
// entries if these are many.
//
// Crash argument: each of these steps is that of a trim, a seal, a rewrite or
// a merge. Entries of events that are gone lead nowhere, and who looks a seq
// below topic.compacted up in an index sees whether its event is there.
func (s *Store) Compact(ctx context.Context, name string, c store.Compaction) (store.Compacted, error) {
	if err := event.CheckTopic(name); err != nil {
		return store.Compacted{}, fmt.Errorf("compact: %w", err)
	}
	if err := errors.Join(ctx.Err(), s.usable()); err != nil {
		return store.Compacted{}, err
	}
	select {
	case s.compacting <- struct{}{}:
		defer func() { <-s.compacting }()
	case <-ctx.Done():
		return store.Compacted{}, ctx.Err()
	case <-s.stop:
		return store.Compacted{}, store.ErrClosed
	}
	j := &compaction{s: s, ctx: ctx, pace: pacer{s: s, ctx: ctx}}
	if err := j.run(name, c); err != nil {
		return j.done, fmt.Errorf("compact topic %s: %w", name, err)
	}
	return j.done, nil
}

// compaction is one call of Compact.
type compaction struct {
	s    *Store
	ctx  context.Context
	t    *topic
	pace pacer

	first, before, tombstones uint64
	key                       string // the only one that it is about, "" for all

	dead  superseded.Set // what is to be removed
	tombs superseded.Set // of these, the tombstones that are the last of their key
	low   uint64         // the smallest seq that stays, before if none does
	count uint64         // how many events there are below before
	bytes uint64         // and what they take

	done store.Compacted
}

// cleanMark is what a compaction has brought a topic to: there is nothing to
// do for another one that says the same.
type cleanMark struct {
	first, before, tombstones uint64
	kept                      uint64
}

func (j *compaction) run(name string, c store.Compaction) error {
	s := j.s
	s.mu.RLock()
	j.t = s.topics[name]
	if j.t == nil {
		s.mu.RUnlock()
		return nil
	}
	j.first, j.before = j.t.first, min(c.Before, j.t.last+1)
	j.tombstones, j.key = min(c.Tombstones, j.before), c.Key
	clean := j.t.clean
	s.mu.RUnlock()
	if j.first >= j.before {
		return nil
	}
	if j.key == "" && clean.first == j.first && clean.before == j.before && clean.tombstones >= j.tombstones {
		j.done.Kept = clean.kept
		return nil
	}
	if err := j.find(); err != nil {
		return err
	}
	removed := j.dead.Count(0, j.before)
	j.done.Kept = j.count
	if removed > 0 {
		if err := j.remove(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	switch {
	case j.key == "":
		j.t.clean = cleanMark{j.low, j.before, j.tombstones, j.count - removed}
	case removed > 0:
		j.t.clean = cleanMark{} // what it says of the events that are kept is over
	}
	s.mu.Unlock()
	return nil
}

// find finds out what is dead.
func (j *compaction) find() error {
	f := superseded.New(store.Compaction{Before: j.before, Tombstones: j.tombstones, Key: j.key}, j.s.o.mostSeen)
	for f.Next() {
		j.bytes = 0
		err := j.s.scan(&j.pace, j.t, j.first, j.before-1, func(r event.Record) {
			j.bytes += uint64(len(r)) + chunk.RecordHead
			f.See(r.Seq(), r.Key(), r.Payload())
		})
		if err != nil {
			return err
		}
	}
	j.dead, j.tombs, j.low, j.count = f.Dead, f.Tombs, f.Low, f.Count
	return nil
}

// remove removes what is dead.
func (j *compaction) remove() error {
	s, last := j.s, j.dead.Last()
	if j.low > j.first {
		if err := j.trim(); err != nil {
			return err
		}
	}
	if last < j.low {
		return nil
	}
	if err := s.sealThrough(j.ctx, j.t, last); err != nil {
		return err
	}
	for pos := j.low; pos <= last; {
		next, err := j.step(pos, last)
		if err != nil {
			return err
		}
		pos = next
	}
	if err := s.withFiles(func() error { return s.cleanIndex(&j.pace) }); err != nil {
		return err
	}
	poke(s.tidyWake) // chunks have become thin or small
	return nil
}

// trim removes what is dead at the topic's beginning.
func (j *compaction) trim() error {
	maxTS := int64(0)
	if j.tombs.Any(0, j.low-1) {
		err := j.s.scan(&j.pace, j.t, j.first, j.low-1, func(r event.Record) {
			if j.tombs.Has(r.Seq()) {
				maxTS = max(maxTS, r.TS())
			}
		})
		if err != nil {
			return err
		}
	}
	if err := j.s.Trim(j.ctx, j.t.name, j.low); err != nil {
		return err
	}
	n := j.dead.Count(0, j.low-1)
	j.done.MaxTS = max(j.done.MaxTS, maxTS)
	j.removed(n, int64(float64(j.bytes)*float64(n)/float64(j.count)))
	return nil
}

func (j *compaction) removed(n uint64, bytes int64) {
	j.done.Removed += n
	j.done.Kept -= min(n, j.done.Kept)
	j.done.Bytes += bytes
}

// withFiles runs a step that changes files and rows of the directory.
func (s *Store) withFiles(fn func() error) error {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.gone.Load() {
		return store.ErrClosed
	}
	if err := s.Err(); err != nil {
		return err
	}
	s.tidying.Lock()
	defer s.tidying.Unlock()
	return fn()
}

// stop says why background work must end, nil if it need not.
func (p *pacer) stop() error {
	select {
	case <-p.s.stop:
		return store.ErrClosed
	default:
		return p.ctx.Err()
	}
}

// pacer keeps long work from taking a processor from publishers: while events
// are appended, it rests restShare times as long as it works: BenchmarkCompact
// says what that leaves to publishers.
type pacer struct {
	s     *Store
	ctx   context.Context
	began time.Time
	lsn   uint64
}

const (
	// workSlice is how long the work goes on between two rests.
	workSlice = 2 * time.Millisecond
	restShare = 5
)

// rest is called after each bit of work. It rests if it is time to, and fails
// if the work must end.
func (p *pacer) rest() error {
	if err := p.stop(); err != nil {
		return err
	}
	worked := time.Since(p.began)
	if worked < workSlice {
		return nil
	}
	p.s.mu.RLock()
	lsn := p.s.mems[len(p.s.mems)-1].lastLSN
	p.s.mu.RUnlock()
	if !p.began.IsZero() && lsn != p.lsn {
		t := time.NewTimer(min(restShare*worked, 50*workSlice))
		defer t.Stop()
		select {
		case <-t.C:
		case <-p.s.stop:
		case <-p.ctx.Done():
		}
	}
	p.began, p.lsn = time.Now(), lsn
	return p.stop()
}

// sealThrough returns once the topic's events up to seq are in chunks alone.
func (s *Store) sealThrough(ctx context.Context, t *topic, seq uint64) error {
	for {
		wait, news := s.unsealed(t, seq)
		if !wait {
			break
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.stop:
			return store.ErrClosed
		case <-s.failed:
			return s.Err()
		}
	}
	s.dropTail(t, seq)
	return nil
}

// unsealed says whether mems hold events of a topic up to seq that are not
// sealed, and what to wait for then. If the active mem does, it is frozen.
func (s *Store) unsealed(t *topic, seq uint64) (bool, <-chan struct{}) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	wait := false
	for i, m := range s.mems {
		if first, _, ok := m.span(t.num); m.sealed || !ok || first > seq {
			continue
		}
		wait = true
		if i == len(s.mems)-1 {
			s.w.freeze.Store(m.number) // others ask for this one or an older one
			poke(s.wake)
		}
	}
	return wait, s.sealNews
}

// dropTail lets go of the sealed mems up to the last that holds events of the
// topic up to seq. What is older goes too: the judge takes it for granted that
// of mems which were there at one time the older ones go first.
func (s *Store) dropTail(t *topic, seq uint64) {
	s.mu.Lock()
	n := 0
	for i, m := range s.mems {
		if first, _, ok := m.span(t.num); m.sealed && ok && first <= seq {
			n = i + 1
		}
	}
	drop := s.mems[:n]
	s.mems = s.mems[n:len(s.mems):len(s.mems)]
	s.mu.Unlock()
	for _, m := range drop {
		s.pool.release(m)
	}
}

// scan calls fn with the records of a topic from lo to hi.
func (s *Store) scan(p *pacer, t *topic, lo, hi uint64, fn func(event.Record)) error {
	for pos := lo; pos <= hi; {
		next, err := s.scanStep(p, t, pos, hi, fn)
		if err != nil || next == 0 {
			return err
		}
		pos = next
	}
	return nil
}

// scanStep scans some events of a mem, or one section from pos on.
func (s *Store) scanStep(p *pacer, t *topic, pos, hi uint64, fn func(event.Record)) (uint64, error) {
	if err := p.rest(); err != nil {
		return 0, err
	}
	s.life.RLock()
	defer s.life.RUnlock()
	s.mu.RLock()
	if s.gone.Load() {
		s.mu.RUnlock()
		return 0, store.ErrClosed
	}
	pos = max(pos, t.first)
	if m := s.memWith(t.num, pos); m != nil {
		b := s.fetchMem(t, m, pos, pos, hi, readCount, false) // unlocks
		for _, r := range b.recs {
			fn(r)
		}
		return b.next, nil
	}
	sealed := t.sealed
	s.mu.RUnlock()
	x, ok, err := s.findSection(t.num, pos, false)
	if err != nil {
		return 0, err
	}
	if !ok {
		return s.beyond(t, sealed, pos, false).next, nil
	}
	if x.first > hi {
		return 0, nil
	}
	return s.scanSection(p, x, pos, hi, fn)
}
