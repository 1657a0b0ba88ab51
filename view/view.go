package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// View is at work until it is closed.
type View struct {
	hub        Hub
	log        promethean.Log
	docs       store.Docs
	o          Options
	kind       string
	topic      string
	name       string
	group      string
	from       From
	definition string
	merge      bool
	declared   []store.Collection
	// batch is how many events one commit takes; factor times as many if there
	// is much to do.
	batch, factor int
	mapper        func(*line) mapper
	handles       []*Collection
	leases        store.Leases // nil where no other hub projects into the same documents
	owner         string
	shows         bool // the view's group is moved along

	ctx    context.Context // ends with the view
	cancel context.CancelFunc
	work   sync.WaitGroup
	feed   feed
	pauses chan *pause

	// Of the goroutine that projects.
	marks    []mark
	noKeyAt  time.Time
	noKeyOld uint64

	mu       sync.Mutex
	place    uint64 // what is committed
	synced   uint64 // what of it is durable
	build    string // names the build that is served
	must     string // why the view has to be built anew before it goes on
	owns     bool   // this hub projects
	live     *line
	counts   counts
	err      error
	progress *Progress // of the rebuild that runs, or of the last one
	building *line     // nil if none runs
	closed   bool
	closeErr error
}

// counts are those of Status.
type counts struct{ noKey, stale, dead, expired uint64 }

// ErrRebuilding says that the view is being built anew already.
var ErrRebuilding = errors.New("the view is being rebuilt already")

// meta is what a reader's Meta holds: what it was built by.
type meta struct {
	Kind       string   `json:"kind"`
	Topic      string   `json:"topic"`
	Definition string   `json:"definition,omitempty"`
	Names      []string `json:"collections"`
	From       From     `json:"from,omitempty"`
	// Begin is the place at which it began.
	Begin uint64 `json:"begin,omitempty"`
	// Build is different for every build.
	Build string `json:"build"`
}

// same says whether a build of one is what the other wants.
func (m *meta) same(o *meta) bool {
	if m.Kind != o.Kind || m.Topic != o.Topic || m.Definition != o.Definition || len(m.Names) != len(o.Names) {
		return false
	}
	for i := range m.Names {
		if m.Names[i] != o.Names[i] {
			return false
		}
	}
	return true
}

func (m *meta) encode() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // plain fields
	}
	return b
}

func (v *View) newMeta(from From, begin uint64) *meta {
	m := &meta{Kind: v.kind, Topic: v.topic, Definition: v.definition, From: from, Begin: begin, Build: event.NewID().String()}
	for _, c := range v.declared {
		m.Names = append(m.Names, c.Name)
	}
	return m
}

// at are the views at work in this process: two of one name would push each
// other aside for ever.
var at struct {
	mu    sync.Mutex
	views map[workName]struct{}
}

type workName struct {
	docs store.Docs
	name string
}

// start checks what was asked for, and begins.
func (v *View) start(ctx context.Context) error {
	if v.from == "earliest" {
		v.from = Earliest
	}
	err := errors.Join(checkName("view", v.name), event.CheckTopic(v.topic), checkCollections(v.declared), checkFrom(v.from))
	if err != nil {
		return err
	}
	v.log, v.docs = v.hub.Log(), v.o.Docs
	_, shared := v.log.(store.Shared)
	v.shows = v.docs == nil || !shared
	if v.docs == nil {
		if v.docs, err = docsOf(ctx, v.log); err != nil {
			return err
		}
		if shared {
			v.leases, _ = v.log.(store.Leases)
			v.owner = v.hub.Engine().Owner() + ownerSep + event.NewID().String()
		}
	}
	if _, ok := v.docs.(store.Transacts); !ok && v.kind == "transactional" {
		return fmt.Errorf("%w: a transactional view needs documents that are committed together, and the engine has no transactions", errors.ErrUnsupported)
	}
	v.ctx, v.cancel = context.WithCancel(context.WithoutCancel(ctx))
	v.pauses = make(chan *pause)
	v.feed.init()
	for i := range v.declared {
		v.handles = append(v.handles, &Collection{v: v, c: &v.declared[i]})
	}
	if err := v.take(); err != nil {
		v.cancel()
		return err
	}
	own, err := v.begin(ctx)
	if err != nil {
		v.cancel()
		v.drop()
		return err
	}
	v.work.Go(func() { v.run(own) })
	return nil
}

func (v *View) take() error {
	at.mu.Lock()
	defer at.mu.Unlock()
	n := workName{v.docs, v.name}
	if _, taken := at.views[n]; taken {
		return fmt.Errorf("%w: a view of that name is at work", store.ErrConflict)
	}
	if at.views == nil {
		at.views = make(map[workName]struct{})
	}
	at.views[n] = struct{}{}
	return nil
}

func (v *View) drop() {
	at.mu.Lock()
	defer at.mu.Unlock()
	delete(at.views, workName{v.docs, v.name})
}

// prepare brings the documents in line with what was declared. Whoever projects
// calls it before.
func (v *View) prepare(ctx context.Context) error {
	if err := v.docs.Drop(ctx, v.name+next); err != nil {
		return fmt.Errorf("drop what was left of a rebuild: %w", err)
	}
	r, err := v.docs.Reader(ctx, v.name)
	if errors.Is(err, store.ErrNotFound) {
		return v.prepareNew(ctx)
	}
	if err != nil {
		return err
	}
	var was meta
	if err := json.Unmarshal(r.Meta, &was); err != nil {
		return fmt.Errorf("what is noted about the view does not decode: %w", err)
	}
	want := v.newMeta(was.From, was.Begin)
	if was.same(want) && r.Seq == 0 && was.From == Snapshot {
		// It was on its way through the snapshot: what is there is a part.
		if err := v.docs.Drop(ctx, v.name); err != nil {
			return err
		}
		return v.prepareNew(ctx)
	}
	must := ""
	decl := store.Reader{Name: v.name, Collections: v.declared, Meta: r.Meta}
	if !was.same(want) {
		must = "its definition has changed"
		if was.Topic != v.topic {
			must = fmt.Sprintf("its topic was %s and is %s", was.Topic, v.topic)
		}
		// The old documents are served on, with the indexes that they have.
		decl.Collections = nil
		for _, c := range v.declared {
			for _, o := range r.Collections {
				if o.Name == c.Name {
					c.Indexes = o.Indexes
				}
			}
			decl.Collections = append(decl.Collections, c)
		}
	}
	if err := v.docs.Declare(ctx, decl); err != nil {
		return declared(err)
	}
	if must == "" && r.Seq < was.Begin {
		if _, err := v.docs.Commit(ctx, store.DocBatch{Reader: v.name, From: r.Seq, To: was.Begin}); err != nil {
			return err
		}
		r.Seq = was.Begin
	}
	v.placed(r.Seq, must, was.Build)
	return nil
}

// prepareNew makes a view that was not there.
func (v *View) prepareNew(ctx context.Context) error {
	begin := uint64(0)
	switch v.from {
	case Latest:
		b, err := v.log.Bounds(ctx, v.topic)
		if err != nil {
			return err
		}
		begin = b.Last
	case Snapshot:
		if _, err := v.snapshotTopic(ctx); err != nil {
			return err
		}
	}
	m := v.newMeta(v.from, begin)
	if err := v.docs.Declare(ctx, store.Reader{Name: v.name, Collections: v.declared, Meta: m.encode()}); err != nil {
		return declared(err)
	}
	if begin > 0 {
		if _, err := v.docs.Commit(ctx, store.DocBatch{Reader: v.name, To: begin}); err != nil {
			return err
		}
	}
	v.placed(begin, "", m.Build)
	return nil
}

func declared(err error) error {
	if errors.Is(err, store.ErrConflict) {
		return fmt.Errorf("a collection belongs to another view: %w", err)
	}
	return fmt.Errorf("declare the collections: %w", err)
}

// placed takes over where the documents are.
func (v *View) placed(seq uint64, must, build string) {
	l := v.newLine("")
	l.place.Store(seq)
	l.committed = v.committed
	v.mu.Lock()
	v.place, v.synced, v.must, v.build, v.live = seq, seq, must, build, l
	v.mu.Unlock()
	v.feed.reset(seq)
}

// Name is the view's.
func (v *View) Name() string { return v.name }

// Topic is what it reads.
func (v *View) Topic() string { return v.topic }

// Group is its group on the topic.
func (v *View) Group() string { return v.group }

// Collections gives a handle of each, in the order of declaration.
func (v *View) Collections() []*Collection { return append([]*Collection(nil), v.handles...) }

// Collection gives one, or nil.
func (v *View) Collection(name string) *Collection {
	for _, c := range v.handles {
		if c.c.Name == name {
			return c
		}
	}
	return nil
}

// Source implements [Source]: the first collection.
func (v *View) Source() *Collection { return v.handles[0] }

// Wait returns once events up to seq are in the view.
func (v *View) Wait(ctx context.Context, seq uint64) error {
	for {
		top, changed := v.feed.state()
		if top >= seq {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-v.ctx.Done():
			return fmt.Errorf("view %s: %w", v.name, store.ErrClosed)
		}
	}
}

// Close stops the view and makes durable what it has. What it has not projected
// yet it projects when it is started again.
func (v *View) Close() error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		v.work.Wait()
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.closeErr
	}
	v.closed = true
	v.mu.Unlock()
	v.cancel()
	v.work.Wait()
	v.drop()
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.closeErr
}

// Status is how a view is.
type Status struct {
	Name        string             `json:"name"`
	Topic       string             `json:"topic"`
	Group       string             `json:"group"`
	Kind        string             `json:"kind"` // changelog or transactional
	Seq         uint64             `json:"seq"`  // how far it is
	Tail        uint64             `json:"tail"`
	Lag         uint64             `json:"lag"`
	Collections []CollectionStatus `json:"collections"`
	// Those below count since the start: events without a key, operations that
	// were too old to change anything, dead letters, and events that retention
	// removed before they were read.
	NoKey   uint64    `json:"no_key,omitempty"`
	Stale   uint64    `json:"stale,omitempty"`
	Dead    uint64    `json:"dead,omitempty"`
	Expired uint64    `json:"expired,omitempty"`
	Err     string    `json:"err,omitempty"` // why it stands still
	Rebuild *Progress `json:"rebuild,omitempty"`
}

// CollectionStatus is how a collection is.
type CollectionStatus struct {
	Name    string     `json:"name"`
	Count   int64      `json:"count"`
	Indexes [][]string `json:"indexes"`
}

// Status says how the view is.
func (v *View) Status(ctx context.Context) (Status, error) {
	v.mu.Lock()
	s := Status{
		Name: v.name, Topic: v.topic, Group: v.group, Kind: v.kind, Seq: v.place,
		NoKey: v.counts.noKey, Stale: v.counts.stale, Dead: v.counts.dead, Expired: v.counts.expired,
	}
	if v.err != nil {
		s.Err = v.err.Error()
	}
	if v.progress != nil {
		p := *v.progress
		s.Rebuild = &p
	}
	v.mu.Unlock()
	b, err := v.log.Bounds(ctx, v.topic)
	if err != nil {
		return s, fmt.Errorf("view %s: %w", v.name, err)
	}
	s.Tail = b.Last
	if from := max(s.Seq, b.First-1); s.Tail > from { // what is gone lags no more
		s.Lag = s.Tail - from
	}
	for _, c := range v.declared {
		cs := CollectionStatus{Name: c.Name, Indexes: [][]string{}}
		for _, x := range c.Indexes {
			cs.Indexes = append(cs.Indexes, x.Fields)
		}
		cs.Count, err = v.docs.Count(ctx, c.Name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return s, fmt.Errorf("view %s, collection %s: %w", v.name, c.Name, err)
		}
		s.Collections = append(s.Collections, cs)
	}
	return s, nil
}

// low is the seq up to which what the view has read is durable; a rebuild that
// is behind counts too.
func (v *View) low() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	low := v.synced
	if v.must != "" {
		low = 0
	}
	if v.building != nil {
		low = min(low, v.building.place.Load())
	}
	return low
}

var _ Hub = (*promethean.Hub)(nil)

// letter makes the dead letter of an event.
func (v *View) letter(e *event.Event, err error, attempts int) group.Letter {
	return group.Letter{Topic: v.topic, Group: v.group, Original: *e, Err: err.Error(), Attempts: attempts}
}
