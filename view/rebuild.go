package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"promethean/compact"
	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// Progress is how far a rebuild is.
type Progress struct {
	State string `json:"state"` // building, swapping, done, failed
	Seq   uint64 `json:"seq"`
	Tail  uint64 `json:"tail"`
	Done  uint64 `json:"events"` // events that were read
	// Failed is how many of them could not be projected. They become no dead
	// letters again.
	Failed uint64    `json:"failed,omitempty"`
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended,omitzero"`
	Err    string    `json:"err,omitempty"`
}

// States of a rebuild.
const (
	stateBuilding = "building"
	stateSwapping = "swapping"
	stateDone     = "done"
	stateFailed   = "failed"
)

// RebuildOptions change a rebuild.
type RebuildOptions struct {
	// From is where it begins. Default: with the first event. Latest is none.
	From From
	// Progress is called now and then, by one goroutine at a time.
	Progress func(Progress)
}

// Rebuild builds the view anew beside the live one and swaps them. Whoever reads
// sees the old documents until then, and the new ones after it; none is older
// than what was there before. While it runs the view goes on, but for a moment
// at the end. If ctx ends, or the view is closed, it ends and leaves nothing.
//
// One that runs already is ErrRebuilding. Where several hubs share the
// documents, the one that projects must be asked; others say
// group.ErrNotOwner.
func (v *View) Rebuild(ctx context.Context, o RebuildOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	b, err := v.newBuild(&o)
	if err != nil {
		return err
	}
	defer v.work.Done()
	return v.rebuilt(ctx, b)
}

// StartRebuild has Rebuild run until the view is closed; see [Status.Rebuild].
// One that runs already is ErrRebuilding.
func (v *View) StartRebuild(o RebuildOptions) error {
	b, err := v.newBuild(&o)
	if err != nil {
		return err
	}
	go func() {
		defer v.work.Done()
		_ = v.rebuilt(v.ctx, b) // the progress tells
	}()
	return nil
}

// build is one rebuild.
type build struct {
	v    *View
	o    *RebuildOptions
	l    *line
	live bool // the live line is at work beside it
	told time.Time
}

// newBuild enters a rebuild, which counts as work of the view from here on.
func (v *View) newBuild(o *RebuildOptions) (*build, error) {
	if o.From == "earliest" {
		o.From = Earliest
	}
	err := checkFrom(o.From)
	switch {
	case err != nil:
	case o.From == Latest:
		err = fmt.Errorf("%w: a rebuild from %s would hold nothing", store.ErrInvalid, Latest)
	case o.From == Snapshot && v.merge:
		err = errMergeSnapshot
	}
	if err != nil {
		return nil, fmt.Errorf("rebuild view %s: %w", v.name, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.closed:
		err = store.ErrClosed
	case v.building != nil || v.must != "":
		err = ErrRebuilding
	case !v.owns:
		err = group.ErrNotOwner
	}
	if err != nil {
		return nil, fmt.Errorf("rebuild view %s: %w", v.name, err)
	}
	v.work.Add(1)
	return v.enter(o, true), nil
}

// enter notes that a rebuild begins. mu must be held.
func (v *View) enter(o *RebuildOptions, live bool) *build {
	b := &build{v: v, o: o, live: live, l: v.newLine(next)}
	v.building = b.l
	v.progress = &Progress{State: stateBuilding, Began: time.Now()}
	return b
}

// rebuildOwn is the rebuild without which the view cannot go on.
func (v *View) rebuildOwn(ctx context.Context) error {
	v.mu.Lock()
	from := v.from
	if from == Latest {
		from = Earliest
	}
	b := v.enter(&RebuildOptions{From: from}, false)
	v.mu.Unlock()
	return v.rebuilt(ctx, b)
}

// rebuilt runs a rebuild and notes how it ended.
func (v *View) rebuilt(ctx context.Context, b *build) error {
	err := b.run(ctx)
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeFor)
		// What is left is dropped at the next start at the latest.
		if drop := v.docs.Drop(clean, b.l.reader); drop != nil && !errors.Is(drop, store.ErrClosed) {
			v.o.Logger.Warn("what is left of a rebuild was not dropped", "view", v.name, "err", drop)
		}
		cancel()
		err = fmt.Errorf("rebuild view %s: %w", v.name, err)
	}
	v.mu.Lock()
	p := v.progress
	p.Ended, p.State, p.Seq = time.Now(), stateDone, b.l.place.Load()
	p.Done, p.Failed = b.l.events.Load(), b.l.lost.Load()
	if err != nil {
		p.State, p.Err = stateFailed, err.Error()
	}
	v.building = nil
	told := *p
	v.mu.Unlock()
	if told.Failed > 0 {
		v.o.Logger.Warn("events failed in a rebuild and are not in the view", "view", v.name, "topic", v.topic, "events", told.Failed)
	}
	if b.o.Progress != nil {
		b.o.Progress(told)
	}
	return err
}

// tellEvery is how often progress is told.
const tellEvery = 200 * time.Millisecond

// tell notes how far the rebuild is.
func (b *build) tell(state string, tail uint64) {
	v := b.v
	v.mu.Lock()
	p := v.progress
	p.State, p.Seq, p.Tail = state, b.l.place.Load(), max(tail, p.Tail)
	p.Done, p.Failed = b.l.events.Load(), b.l.lost.Load()
	told := *p
	v.mu.Unlock()
	if now := time.Now(); b.o.Progress != nil && now.Sub(b.told) >= tellEvery {
		b.told = now
		b.o.Progress(told)
	}
}

func (b *build) run(ctx context.Context) error {
	v := b.v
	if err := v.docs.Drop(ctx, b.l.reader); err != nil {
		return err
	}
	m := v.newMeta(b.o.From, 0)
	decl := store.Reader{Name: b.l.reader, Meta: m.encode()}
	for _, c := range v.declared {
		c.Name += next
		decl.Collections = append(decl.Collections, c)
	}
	if err := v.docs.Declare(ctx, decl); err != nil {
		return declared(err)
	}
	b.l.committed = func(*batch, int) { b.tell(stateBuilding, 0) }
	if b.o.From == Snapshot {
		if err := b.l.warm(ctx); err != nil {
			return err
		}
	}
	// Each round is shorter than the one before it, unless the topic grows as
	// fast as it is read; then the live line has to wait a little longer.
	for range 20 {
		bounds, err := v.log.Bounds(ctx, v.topic)
		if err != nil {
			return err
		}
		b.tell(stateBuilding, bounds.Last)
		if bounds.Last < b.l.place.Load()+uint64(v.batch) {
			break
		}
		if err := b.reach(ctx, bounds.Last); err != nil {
			return err
		}
	}
	return b.swap(ctx, m)
}

// reach builds up to a seq.
func (b *build) reach(ctx context.Context, seq uint64) error {
	wait := minBackOff
	for b.l.place.Load() < seq {
		before := b.l.place.Load()
		err := b.l.session(ctx, seq, nil, nil)
		switch {
		case err == nil || errors.Is(err, errAgain):
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, store.ErrUnavailable):
			return err
		default:
			if b.l.place.Load() != before {
				wait = minBackOff
			}
			if err := rest(ctx, wait); err != nil {
				return err
			}
			wait = min(2*wait, maxBackOff)
		}
	}
	return nil
}

// swap puts what was built in the place of what is live, which stands still
// meanwhile.
func (b *build) swap(ctx context.Context, m *meta) error {
	v := b.v
	var target uint64
	if b.live {
		p := &pause{held: make(chan struct{}), release: make(chan struct{})}
		defer close(p.release)
		select {
		case v.pauses <- p:
		case <-ctx.Done():
			return ctx.Err()
		}
		<-p.held
		r, err := v.docs.Reader(ctx, v.name)
		if err != nil {
			return err
		}
		target = r.Seq
	} else {
		bounds, err := v.log.Bounds(ctx, v.topic)
		if err != nil {
			return err
		}
		target = bounds.Last
	}
	b.tell(stateSwapping, target)
	b.l.committed = func(*batch, int) { b.tell(stateSwapping, 0) }
	if err := b.reach(ctx, target); err != nil {
		return err
	}
	if err := v.docs.Replace(ctx, v.name, b.l.reader); err != nil {
		return fmt.Errorf("replace the documents: %w", err)
	}
	v.placed(b.l.place.Load(), "", m.Build)
	return nil
}

// snapshotTopic finds the topic of snapshots.
func (v *View) snapshotTopic(ctx context.Context) (string, error) {
	if v.o.SnapshotTopic != "" {
		return v.o.SnapshotTopic, nil
	}
	s, err := v.settings(ctx)
	if err != nil {
		return "", err
	}
	if s.Snapshot == nil {
		return "", fmt.Errorf("%w: topic %s has no snapshots: its settings name none", store.ErrInvalid, v.topic)
	}
	if s.Snapshot.Topic != "" {
		return s.Snapshot.Topic, nil
	}
	return v.topic + ".snapshot", nil
}

// warmNew has a new view begin with the snapshot.
func (v *View) warmNew(ctx context.Context, l *line) error {
	defer func() { l.committed = v.committed }()
	l.committed = func(b *batch, stale int) {
		v.note(b, stale)
		v.feed.jump(b.to) // who watches asks the documents
	}
	return l.warm(ctx)
}

// warm takes the records of the snapshot topic for events of the topic, and
// moves the place to the last one that they cover. Until then the place is 0:
// whoever is interrupted begins again.
func (l *line) warm(ctx context.Context) error {
	v := l.v
	topic, err := v.snapshotTopic(ctx)
	if err != nil {
		return err
	}
	at, covered := uint64(0), uint64(0)
	for {
		var events []event.Event
		size := 0
		for e, err := range v.log.Read(ctx, store.Query{Topic: topic, After: at, Limit: v.batch}) {
			if err != nil {
				return err
			}
			r, err := compact.ParseRecord(&e)
			if err != nil {
				return fmt.Errorf("snapshot topic %s, seq %d: %w", topic, e.Seq, err)
			}
			at, covered = e.Seq, max(covered, r.UpTo)
			e = r.Event(v.topic, &e)
			events = append(events, e)
			if size += e.Size(); size >= readBytes {
				break
			}
		}
		if len(events) == 0 {
			break
		}
		if err := l.take(ctx, events); err != nil {
			return err
		}
	}
	if covered == 0 {
		return nil
	}
	return l.commit(ctx, &batch{to: covered})
}

// take commits events without moving the place.
func (l *line) take(ctx context.Context, events []event.Event) error {
	for len(events) > 0 {
		l.refused = l.failed
		b := &batch{}
		n, err := l.v.mapper(l).add(ctx, events, b)
		if err != nil {
			return err
		}
		b.events = uint64(n)
		err = l.commit(ctx, b)
		switch {
		case errors.Is(err, errAgain) && l.place.Load() == 0: // without what was refused
		case err != nil:
			return err
		default:
			events = events[n:]
		}
	}
	return nil
}
