package view

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"promethean/compact"
	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// line is one way of a reader through the topic: the live one, or the one that
// builds the view anew beside it.
//
// A session has two goroutines: one reads events and makes batches of them, the
// other commits these. So the next batch is made while one is committed; what
// it has to know of uncommitted documents it finds in an overlay. Whatever goes
// wrong ends the session, and the next one begins at the place that is
// committed: nothing that was made ahead outlives a session.
type line struct {
	v          *View
	reader     string
	suffix     string // of the stored collections' names
	rebuilding bool

	place atomic.Uint64 // what is committed
	// moved gets a token when place has changed.
	moved chan struct{}

	// failed are events that the documents have refused, by seq; refused is
	// what the producer knows of them: the session begins again for each.
	failed, refused map[uint64]error
	limit           atomic.Int64  // of events that one batch reads
	events          atomic.Uint64 // that were read
	lost            atomic.Uint64 // that failed
	// committed is told of every batch that is committed. May be nil.
	committed func(b *batch, stale int)
}

func (v *View) newLine(suffix string) *line {
	l := &line{
		v: v, reader: v.name + suffix, suffix: suffix, rebuilding: suffix != "",
		moved: make(chan struct{}, 1), failed: make(map[uint64]error),
	}
	l.limit.Store(int64(v.batch * v.factor))
	return l
}

// batch is what one commit takes.
type batch struct {
	from, to uint64
	ops      []store.DocOp
	of       []uint64 // by operation: the seq of its event
	dead     []group.Letter
	counts   counts
	events   uint64
}

// mapper makes operations of events.
type mapper interface {
	// add makes operations of the first events, and says of how many. It may
	// take fewer than there are, but none only with an error. An error is the
	// engine's, or the context's.
	add(ctx context.Context, events []event.Event, b *batch) (int, error)
}

// errAgain ends a session that has to begin again at once.
var errAgain = errors.New("begin again")

// errBeyond says that the place lies beyond the end of the topic.
var errBeyond = errors.New("the view is further than the topic goes: the log is another one, or an older copy")

const (
	// readBytes is about how much one batch reads.
	readBytes = 4 << 20
	// minLimit is how far a batch shrinks while documents are refused.
	minLimit = 16
)

// session projects from the place on: up to a seq or, if that is 0, until the
// context ends. pauses and tick are for the live line, and may be nil.
func (l *line) session(ctx context.Context, until uint64, pauses <-chan *pause, flush func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var producer sync.WaitGroup
	defer producer.Wait()
	defer cancel()
	out := make(chan *batch)
	var made error // set before out is closed
	producer.Go(func() {
		defer close(out)
		made = l.produce(ctx, until, out)
	})
	var due <-chan time.Time
	if flush != nil {
		t := time.NewTicker(l.v.o.FlushEvery)
		defer t.Stop()
		due = t.C
	}
	for {
		select {
		case b, ok := <-out:
			if !ok {
				return made
			}
			if err := l.commit(ctx, b); err != nil {
				return err
			}
		case <-due:
			if err := flush(ctx); err != nil {
				return err
			}
		case p := <-pauses:
			cancel()
			producer.Wait()
			p.hold(l.v.ctx)
			return errAgain
		}
	}
}

// commit makes a batch take effect.
func (l *line) commit(ctx context.Context, b *batch) error {
	v := l.v
	if len(b.dead) > 0 && !l.rebuilding {
		if err := v.hub.Engine().Bury(ctx, b.dead...); err != nil {
			return fmt.Errorf("dead letters: %w", err)
		}
	}
	stale, err := v.docs.Commit(ctx, store.DocBatch{Reader: l.reader, From: b.from, To: b.to, Ops: b.ops})
	var refused *store.DocError
	switch {
	case errors.As(err, &refused) && refused.Op >= 0 && refused.Op < len(b.ops):
		op := &b.ops[refused.Op]
		l.failed[b.of[refused.Op]] = fmt.Errorf("collection %s, key %q: %w", op.Collection, op.Key, refused.Err)
		// More of them may follow, and each costs a batch.
		l.limit.Store(max(l.limit.Load()/2, int64(min(minLimit, v.batch))))
		return errAgain
	case errors.Is(err, store.ErrConflict):
		r, err := v.docs.Reader(ctx, l.reader)
		if err != nil {
			return err
		}
		l.move(r.Seq)
		if !l.rebuilding {
			v.moved(r.Seq)
		}
		return errAgain
	case err != nil:
		return err
	}
	for seq := range l.failed {
		if seq <= b.to {
			delete(l.failed, seq)
		}
	}
	if most, now := int64(v.batch*v.factor), l.limit.Load(); now < most && len(l.failed) == 0 {
		l.limit.Store(min(now+max(now/8, 1), most))
	}
	l.events.Add(b.events)
	l.lost.Add(uint64(len(b.dead)))
	l.move(b.to)
	if l.committed != nil {
		l.committed(b, stale)
	}
	return nil
}

func (l *line) move(seq uint64) {
	l.place.Store(seq)
	select {
	case l.moved <- struct{}{}:
	default:
	}
}

// wait returns when the place has reached seq.
func (l *line) wait(ctx context.Context, seq uint64) error {
	for l.place.Load() < seq {
		select {
		case <-l.moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// produce reads the topic and makes batches.
func (l *line) produce(ctx context.Context, until uint64, out chan<- *batch) error {
	w := l.v.log.Watch(l.v.topic)
	defer w.Stop()
	l.refused = maps.Clone(l.failed)
	m := l.v.mapper(l)
	place := l.place.Load()
	r := reading{l: l}
	for until == 0 || place < until {
		b, err := r.next(ctx, place, until, m)
		if err != nil {
			return err
		}
		if b == nil && until > 0 {
			return fmt.Errorf("%w: topic %s ends before seq %d", errBeyond, l.v.topic, until)
		}
		if b == nil {
			select {
			case <-w.C:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		select {
		case out <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
		place = b.to
	}
	return nil
}

// reading reads ahead: what a mapper did not take is there for the next batch.
type reading struct {
	l    *line
	rest []event.Event
}

// next gives the batch after a place, or nil if there is nothing.
func (r *reading) next(ctx context.Context, place, until uint64, m mapper) (*batch, error) {
	b := &batch{from: place, to: place}
	if len(r.rest) == 0 {
		if err := r.read(ctx, place, until); err != nil {
			return nil, err
		}
	}
	if len(r.rest) == 0 {
		// There is nothing, or it is gone. What is there when the bounds are
		// asked for is seen by a read after that.
		bounds, err := r.l.v.log.Bounds(ctx, r.l.v.topic)
		if err != nil {
			return nil, err
		}
		if bounds.Last < place {
			return nil, fmt.Errorf("%w: it is at seq %d, and topic %s ends at %d", errBeyond, place, r.l.v.topic, bounds.Last)
		}
		if bounds.Last == place {
			return nil, nil
		}
		if err := r.read(ctx, place, until); err != nil {
			return nil, err
		}
		if len(r.rest) == 0 {
			b.to = bounds.Last
			if until > 0 {
				b.to = min(b.to, until)
			}
			return b, r.gone(ctx, b, b.to+1)
		}
	}
	if first := r.rest[0].Seq; first > place+1 {
		if err := r.gone(ctx, b, first); err != nil {
			return nil, err
		}
	}
	n, err := m.add(ctx, r.rest, b)
	if err != nil {
		return nil, err
	}
	b.events = uint64(n)
	b.to = r.rest[n-1].Seq
	r.rest = r.rest[n:]
	return b, nil
}

func (r *reading) read(ctx context.Context, place, until uint64) error {
	size := 0
	for e, err := range r.l.v.log.Read(ctx, store.Query{Topic: r.l.v.topic, After: place, Until: until, Limit: int(r.l.limit.Load())}) {
		if err != nil {
			return err
		}
		r.rest = append(r.rest, e)
		if size += e.Size(); size >= readBytes {
			break
		}
	}
	return nil
}

// gone counts what retention removed between the place of a batch and a seq. On
// a compaction topic events are missing because later ones stand for them.
func (r *reading) gone(ctx context.Context, b *batch, before uint64) error {
	l := r.l
	if b.from == 0 || l.rebuilding {
		return nil // it begins with what there is
	}
	bounds, err := l.v.log.Bounds(ctx, l.v.topic)
	if err != nil {
		return err
	}
	until := min(before, bounds.First)
	if until <= b.from+1 {
		return nil
	}
	compacted, err := l.v.compacted(ctx)
	if err != nil || compacted {
		return err
	}
	b.counts.expired = until - b.from - 1
	l.v.o.Logger.Warn("events were removed before a view has read them", "view", l.v.name, "topic", l.v.topic, "first", b.from+1, "last", until-1)
	return nil
}

// compacted says whether the topic is a compaction topic.
func (v *View) compacted(ctx context.Context) (bool, error) {
	s, err := v.settings(ctx)
	return s.Compaction, err
}

// settings gives those of the topic that are about compaction.
func (v *View) settings(ctx context.Context) (compact.Settings, error) {
	for t, err := range v.log.Topics(ctx) {
		if err != nil {
			return compact.Settings{}, err
		}
		if t.Name == v.topic {
			return compact.SettingsOf(t.Settings)
		}
	}
	return compact.Settings{}, nil
}
