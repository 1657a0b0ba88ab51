package timetravel

import (
	"context"
	"fmt"
	"math"

	"promethean"
	"promethean/compact"
	"promethean/event"
	"promethean/store"
)

// again is how often it is tried anew when events go while they are read.
const again = 8

// result is an answer.
type result[T any] struct {
	state  *T
	ts     int64
	seq    uint64
	events int
}

// base is a snapshot to begin with.
type base struct {
	Snapshot
	// covered is the seq up to which nothing follows the snapshot for certain.
	covered uint64
}

// loss is what was removed from a topic.
type loss struct {
	first uint64 // where it begins
	mark  compact.Mark
	// trimmed says that events went in other ways than by the mark's.
	trimmed bool
}

// any says whether anything was removed.
func (l *loss) any() bool { return l.first > 1 || l.mark.Before > 1 }

// floor is the seq from which on everything is there.
func (l *loss) floor() uint64 { return max(l.first, l.mark.Before) }

// lossOf looks up what was removed from a topic.
func lossOf(ctx context.Context, hub *promethean.Hub, topic string) (l loss, err error) {
	b, err := hub.Log().Bounds(ctx, topic)
	if err != nil {
		return l, err
	}
	if l.mark, err = compact.MarkOf(ctx, hub.Log(), topic); err != nil {
		return l, err
	}
	l.first = b.First
	l.trimmed = l.mark.TrimmedBy(l.first, hub.Settings(topic))
	return l, nil
}

// unborn says that a key of which nothing is left below the mark was null before
// what is left: its events there have ended with a tombstone that the query
// comes after, or there were none.
func (l *loss) unborn(q *Query) bool {
	return !l.trimmed && (q.TS == nil || *q.TS >= l.mark.MaxTS) && (q.AsOf == nil || *q.AsOf >= max(l.mark.Tombstones, 1)-1)
}

// traveller finds one answer.
type traveller[T any] struct {
	hub *promethean.Hub
	q   Query
	o   Options
	new func() fold[T]
}

// travel finds the answer, or says that it is gone.
func travel[T any](ctx context.Context, hub *promethean.Hub, q Query, o Options, fresh func() fold[T]) (*result[T], error) {
	if q.none() {
		return &result[T]{}, nil
	}
	t := &traveller[T]{hub, q, o, fresh}
	if t.new().last() && o.FetchSnapshot == nil && o.SnapshotTopic == "" {
		set, err := compact.SettingsOf(hub.Settings(q.Topic))
		if err != nil {
			return nil, err
		}
		t.o.SnapshotTopic = set.SnapshotTopic(q.Topic)
	}
	var gone *GoneError
	for range again {
		var out *result[T]
		var sure bool
		var err error
		if t.new().last() {
			out, sure, gone, err = t.backwards(ctx)
		} else {
			out, sure, gone, err = t.forwards(ctx)
		}
		switch {
		case err != nil:
			return nil, err
		case gone != nil && sure:
			return nil, gone
		case sure:
			return out, nil
		}
	}
	// Events go as fast as we read: that is history which is going.
	if gone == nil {
		gone = t.gone()
	}
	return nil, gone
}

func (t *traveller[T]) gone() *GoneError { return &GoneError{Topic: t.q.Topic, Key: t.q.Key} }

// there says whether an event is still there.
func (t *traveller[T]) there(ctx context.Context, seq uint64) (found bool, err error) {
	if seq == 0 {
		return false, nil
	}
	for _, err := range t.hub.Read(ctx, store.Query{Topic: t.q.Topic, Key: t.q.Key, After: seq - 1, Until: seq, Limit: 1}) {
		if err != nil {
			return false, err
		}
		found = true
	}
	return found, nil
}

// first gives the first event of the key that is there; false if there is none.
func (t *traveller[T]) first(ctx context.Context) (e event.Event, found bool, err error) {
	for e, err := range t.hub.Read(ctx, store.Query{Topic: t.q.Topic, Key: t.q.Key, Limit: 1}) {
		return e, err == nil, err
	}
	return e, false, nil
}

// backwards finds the last event that counts, and how many do since the newest
// snapshot that serves. It is not sure if something went while it looked.
func (t *traveller[T]) backwards(ctx context.Context) (out *result[T], sure bool, gone *GoneError, err error) {
	before, err := t.hub.Log().Bounds(ctx, t.q.Topic)
	if err != nil {
		return nil, false, nil, err
	}
	since, err := t.serving(ctx)
	if err != nil {
		return nil, false, nil, err
	}
	q := t.q.events()
	q.Reverse = true
	oldest := int64(math.MaxInt64)
	for e, err := range t.hub.Read(ctx, q) {
		if err != nil {
			return nil, false, nil, err
		}
		switch {
		case !t.q.counts(e.TS):
			oldest = min(oldest, e.TS)
			continue
		case out != nil && e.Seq > since:
			out.events++ // it was, and then came others
			continue
		case out != nil:
		default:
			if out, err = t.answer(&e); err != nil {
				return nil, false, nil, err
			}
			if e.Seq > since {
				continue
			}
		}
		break
	}
	lost, err := lossOf(ctx, t.hub, t.q.Topic)
	if err != nil {
		return nil, false, nil, err
	}
	switch {
	case out != nil && out.seq >= lost.floor():
		return out, true, nil, nil
	case out != nil:
		sure, err = t.there(ctx, out.seq)
		return out, sure, nil, err
	case !lost.any():
		return &result[T]{}, true, nil, nil
	}
	none, sure, err := t.noneBelow(ctx, before.Last, &lost)
	if err != nil || !sure {
		return nil, false, nil, err
	}
	if none && lost.unborn(&t.q) {
		return &result[T]{}, true, nil, nil
	}
	out, usable, err := t.fromSnapshot(ctx, &lost)
	if err != nil || out != nil {
		return out, true, nil, err
	}
	gone = t.gone()
	if t.q.AsOf != nil {
		e, found, err := t.first(ctx)
		if found && t.q.TS == nil {
			gone.OldestSeq = e.Seq
		}
		return nil, true, gone, err
	}
	oldest = min(oldest, usable)
	if none && !lost.trimmed {
		oldest = min(oldest, lost.mark.MaxTS)
	}
	if oldest < math.MaxInt64 {
		gone.Oldest, gone.Known = oldest, true
	}
	return nil, true, gone, nil
}

// answer makes the state of one event.
func (t *traveller[T]) answer(e *event.Event) (*result[T], error) {
	f := t.new()
	if err := step(f, e); err != nil {
		return nil, err
	}
	return &result[T]{f.state(), e.TS, e.Seq, 1}, nil
}

// step applies an event.
func step[T any](f fold[T], e *event.Event) error {
	if store.Tombstone(e.Payload) {
		f.reset()
		return nil
	}
	if err := f.apply(*e); err != nil {
		return fmt.Errorf("topic %s, seq %d: %w", e.Topic, e.Seq, err)
	}
	return nil
}

// noneBelow says that no event of the key is left below the mark. It is not sure
// if one may have come and replaced another while we read: last is where the
// topic ended before.
func (t *traveller[T]) noneBelow(ctx context.Context, last uint64, lost *loss) (none, sure bool, err error) {
	b := lost.mark.Before
	if b <= 1 {
		return false, true, nil
	}
	if last+1 < b {
		// What came between may be what the last one was removed for.
		for _, err := range t.hub.Read(ctx, store.Query{Topic: t.q.Topic, Key: t.q.Key, After: last, Until: b - 1, Limit: 1}) {
			return false, false, err
		}
	}
	e, found, err := t.first(ctx)
	return !found || e.Seq >= b, true, err
}

// fromSnapshot gives the answer that a snapshot has where all events that are
// left do not count, and the smallest TS for which it would have one.
func (t *traveller[T]) fromSnapshot(ctx context.Context, lost *loss) (out *result[T], usable int64, err error) {
	usable = math.MaxInt64
	s, err := t.snapshot(ctx)
	if err != nil || s == nil {
		return nil, usable, err
	}
	if max(s.Seq, s.covered)+1 < lost.floor() {
		return nil, usable, nil // events behind it may be missing
	}
	if !t.q.counts(s.TS) || t.q.AsOf != nil && s.Seq > *t.q.AsOf {
		return nil, s.TS, nil
	}
	f := t.new()
	if err := f.base(s.State); err != nil {
		return nil, usable, fmt.Errorf("snapshot of topic %s, key %q: %w", t.q.Topic, t.q.Key, err)
	}
	return &result[T]{f.state(), s.TS, s.Seq, 0}, usable, nil
}

// snapshot finds one to begin with; nil if there is none. For a reducer that
// depends on the last event it is the key's newest; it is for the caller to see
// whether it serves.
func (t *traveller[T]) snapshot(ctx context.Context) (*base, error) {
	if t.o.FetchSnapshot != nil {
		s, err := t.o.FetchSnapshot(ctx, t.q)
		if err != nil || s == nil {
			return nil, err
		}
		return &base{Snapshot: *s}, nil
	}
	topic := t.o.SnapshotTopic
	if topic == "" {
		return nil, nil
	}
	// How far all of them are comes first: what is found of the key is as new.
	all, found, err := compact.LastRecord(ctx, t.hub.Log(), topic, "")
	if err != nil || !found {
		return nil, err
	}
	newest := true
	for e, err := range t.hub.Read(ctx, store.Query{Topic: topic, Key: t.q.Key, Reverse: true}) {
		if err != nil {
			return nil, err
		}
		r, err := compact.ParseRecord(&e)
		if err != nil {
			return nil, err
		}
		s := &base{Snapshot: Snapshot{State: r.Payload, Seq: r.Seq, TS: r.TS, MaxTS: r.MaxTS}}
		if newest && r.Seq >= all.Since {
			s.covered = all.UpTo
		}
		if t.new().last() || s.serves(&t.q) {
			return s, nil
		}
		newest = false
	}
	return nil, nil
}

// serving gives the seq of the newest snapshot that serves the query: what came
// up to it need not be looked at. 0 if there is none.
func (t *traveller[T]) serving(ctx context.Context) (uint64, error) {
	if t.o.FetchSnapshot != nil || t.o.SnapshotTopic == "" {
		return 0, nil
	}
	for e, err := range t.hub.Read(ctx, store.Query{Topic: t.o.SnapshotTopic, Key: t.q.Key, Reverse: true}) {
		if err != nil {
			return 0, err
		}
		r, err := compact.ParseRecord(&e)
		if err != nil {
			return 0, err
		}
		if s := (&base{Snapshot: Snapshot{Seq: r.Seq, MaxTS: r.MaxTS}}); s.serves(&t.q) {
			return r.Seq, nil
		}
	}
	return 0, nil
}

// serves says that nothing in a snapshot is later than what is asked for.
func (s *base) serves(q *Query) bool {
	return q.counts(s.MaxTS) && (q.AsOf == nil || s.Seq <= *q.AsOf)
}

// forwards applies all events that count.
func (t *traveller[T]) forwards(ctx context.Context) (out *result[T], sure bool, gone *GoneError, err error) {
	before, err := t.hub.Log().Bounds(ctx, t.q.Topic)
	if err != nil {
		return nil, false, nil, err
	}
	s, err := t.snapshot(ctx)
	if err != nil {
		return nil, false, nil, err
	}
	if s != nil && !s.serves(&t.q) {
		s = nil
	}
	out = &result[T]{}
	f := t.new()
	q := t.q.events()
	if s != nil {
		if err := f.base(s.State); err != nil {
			return nil, false, nil, fmt.Errorf("snapshot of topic %s, key %q: %w", t.q.Topic, t.q.Key, err)
		}
		out.ts, out.seq, q.After = s.TS, s.Seq, s.Seq
	}
	// The first event that was seen, and the one that the answer rests on.
	first, rests := uint64(math.MaxUint64), uint64(0)
	oldest, oldestSeq := int64(math.MaxInt64), uint64(0)
	for e, err := range t.hub.Read(ctx, q) {
		if err != nil {
			return nil, false, nil, err
		}
		first = min(first, e.Seq)
		dead := store.Tombstone(e.Payload)
		if dead {
			oldest = min(oldest, e.TS)
			if oldestSeq == 0 {
				oldestSeq = e.Seq
			}
		}
		if !t.q.counts(e.TS) {
			continue
		}
		if err := step(f, &e); err != nil {
			return nil, false, nil, err
		}
		if dead && rests == 0 {
			rests = e.Seq
		}
		out.ts, out.seq, out.events = e.TS, e.Seq, out.events+1
	}
	out.state = f.state()
	lost, err := lossOf(ctx, t.hub, t.q.Topic)
	switch {
	case err != nil:
		return nil, false, nil, err
	case !lost.any() || rests >= lost.floor():
		return out, true, nil, nil
	case rests > 0:
		sure, err = t.there(ctx, rests)
		return out, sure, nil, err
	}
	if s != nil {
		if max(s.Seq, s.covered)+1 >= lost.floor() {
			return out, true, nil, nil
		}
		if found, err := t.there(ctx, s.Seq); err != nil || found {
			return out, true, nil, err
		}
	} else if none, sure, err := t.noneBelow(ctx, before.Last, &lost); err != nil || !sure {
		return nil, false, nil, err
	} else if none {
		if first < lost.mark.Before {
			return nil, false, nil, nil // it went while we read, and what came after it may have gone unseen
		}
		if lost.unborn(&t.q) {
			return out, true, nil, nil
		}
		if !lost.trimmed {
			oldest = min(oldest, lost.mark.MaxTS)
		}
	}
	gone = t.gone()
	switch {
	case t.q.AsOf != nil:
		if t.q.TS == nil {
			gone.OldestSeq = oldestSeq
		}
	case oldest < math.MaxInt64:
		gone.Oldest, gone.Known = oldest, true
	}
	return nil, true, gone, nil
}
