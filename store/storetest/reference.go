package storetest

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sort"
	"sync"

	"promethean/event"
	"promethean/store"
)

// Reference is a store.Log and store.Cursors in memory, made of plain maps and
// one mutex: slow and obviously right. The suites are tried on it, and [Model]
// compares engines with it. It has the abilities Settles, AtomicTopics, Shared
// and Compacts.
//
// Its data outlives Close: Reopen gives them back, as a disk would.
type Reference struct {
	mu      sync.Mutex
	closed  bool
	limits  event.Limits
	topics  map[string]*topicLog
	cursors map[groupName]store.Cursor
	leases  map[string]heldLease
	watches map[*store.Watch][]string
}

var (
	_ Engine             = (*Reference)(nil)
	_ store.Leases       = (*Reference)(nil)
	_ store.Holds        = (*Reference)(nil)
	_ store.Settles      = (*Reference)(nil)
	_ store.AtomicTopics = (*Reference)(nil)
	_ store.Shared       = (*Reference)(nil)
	_ store.Compacts     = (*Reference)(nil)
	_ store.Begins       = (*Reference)(nil)
)

type groupName struct{ topic, group string }

// topicLog is one topic, with the retained events in the order of their seqs.
type topicLog struct {
	settings store.Settings
	last     uint64
	events   []event.Event
	seqs     map[event.ID]uint64 // of the retained events
	bytes    int64
}

func (l *topicLog) bounds() store.Bounds {
	b := store.Bounds{First: l.last + 1, Last: l.last, Bytes: l.bytes}
	if len(l.events) > 0 {
		b.First = l.events[0].Seq
	}
	return b
}

func (l *topicLog) add(e event.Event) {
	l.last = e.Seq
	l.seqs[e.ID] = e.Seq
	l.bytes += sizeOf(&e)
	l.events = append(l.events, e)
}

// cut drops the first event.
func (l *topicLog) cut() {
	e := &l.events[0]
	delete(l.seqs, e.ID)
	l.bytes -= sizeOf(e)
	l.events = l.events[1:]
}

func sizeOf(e *event.Event) int64 { return int64(len(event.AppendBinary(nil, e, true))) }

func (l *topicLog) byID(id event.ID) *event.Event {
	seq, ok := l.seqs[id]
	if !ok {
		return nil
	}
	i := sort.Search(len(l.events), func(i int) bool { return l.events[i].Seq >= seq })
	return &l.events[i]
}

// lastOf gives the last seq of the topic or of a key in it.
func (l *topicLog) lastOf(key string) uint64 {
	if key == "" {
		return l.last
	}
	for _, e := range slices.Backward(l.events) {
		if e.Key == key {
			return e.Seq
		}
	}
	return 0
}

// NewReference gives an empty store. The payload limit is that of limits.
func NewReference(limits event.Limits) *Reference {
	return &Reference{
		limits:  limits,
		topics:  make(map[string]*topicLog),
		cursors: make(map[groupName]store.Cursor),
		leases:  make(map[string]heldLease),
		watches: make(map[*store.Watch][]string),
	}
}

// Reopen closes r and gives a store with the same data.
func (r *Reference) Reopen() *Reference {
	_ = r.Close()
	return &Reference{limits: r.limits, topics: r.topics, cursors: r.cursors, leases: r.leases, watches: make(map[*store.Watch][]string)}
}

// SharedByProcesses is the ability Shared.
func (r *Reference) SharedByProcesses() {}

// SettlesInAppend is the ability Settles.
func (r *Reference) SettlesInAppend() {}

// AppendsAcrossTopics is the ability AtomicTopics.
func (r *Reference) AppendsAcrossTopics() {}

// enter locks the store for one call, or says why it cannot be served.
func (r *Reference) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return store.ErrClosed
	}
	return nil
}

// topic gives a topic, empty and not kept if it is unknown.
func (r *Reference) topic(name string) *topicLog {
	if l := r.topics[name]; l != nil {
		return l
	}
	return &topicLog{seqs: make(map[event.ID]uint64)}
}

// Append implements store.Log.
func (r *Reference) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	limits := r.limits
	if b.Internal {
		limits = limits.Internal()
	}
	for i := range b.Events {
		if err := b.Events[i].Check(limits); err != nil {
			return nil, fmt.Errorf("append: %w", &store.EventError{Index: i, Err: err})
		}
	}
	if err := r.enter(ctx); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	answers, fresh := r.place(b.Events)
	if len(fresh) > 0 || len(b.Events) == 0 {
		for _, x := range b.Expect {
			if last := r.topic(x.Topic).lastOf(x.Key); last != x.Seq {
				return nil, fmt.Errorf("append: %w", &store.SeqConflictError{Topic: x.Topic, Key: x.Key, Expected: x.Seq, Actual: last})
			}
		}
	}
	for i := range b.Settle {
		if err := r.judge(&b.Settle[i]); err != nil {
			return nil, fmt.Errorf("append: settle group %s of topic %s: %w", b.Settle[i].Group, b.Settle[i].Topic, err)
		}
	}
	for _, e := range fresh {
		l := r.topic(e.Topic)
		r.topics[e.Topic] = l
		l.add(e)
	}
	for i := range b.Settle {
		name := groupName{b.Settle[i].Topic, b.Settle[i].Group}
		c := r.cursors[name].Clone()
		c.Settle(&b.Settle[i])
		r.cursors[name] = c
	}
	r.wake(fresh)
	return answers, nil
}

// place finds the answer for each event and gives those that are new, with
// their seqs. It changes nothing.
func (r *Reference) place(events []event.Event) (answers []store.Appended, fresh []event.Event) {
	for i := range events {
		e := events[i].Clone()
		last := r.topic(e.Topic).last
		original := r.topic(e.Topic).byID(e.ID)
		for j := range fresh {
			if fresh[j].Topic != e.Topic {
				continue
			}
			last = fresh[j].Seq
			if fresh[j].ID == e.ID {
				original = &fresh[j]
			}
		}
		if original != nil {
			c := original.Clone()
			answers = append(answers, store.Appended{Seq: c.Seq, Duplicate: true, Original: &c})
			continue
		}
		e.Seq = last + 1
		fresh = append(fresh, e)
		answers = append(answers, store.Appended{Seq: e.Seq})
	}
	return answers, fresh
}

// judge says why a settlement is refused.
func (r *Reference) judge(s *store.Settlement) error {
	c, ok := r.cursors[groupName{s.Topic, s.Group}]
	if !ok {
		return store.ErrNotFound
	}
	if c.Epoch != s.Epoch {
		return store.ErrFenced
	}
	for _, d := range s.Done {
		if last := r.topic(s.Topic).last; d.Last > last && d.First <= d.Last {
			return fmt.Errorf("%w: seq %d is above the last, %d", store.ErrInvalid, d.Last, last)
		}
	}
	return nil
}

func (r *Reference) wake(events []event.Event) {
	for w, topics := range r.watches {
		if slices.ContainsFunc(events, func(e event.Event) bool { return len(topics) == 0 || slices.Contains(topics, e.Topic) }) {
			w.Wake()
		}
	}
}

// Read implements store.Log.
func (r *Reference) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		if err := r.enter(ctx); err != nil {
			yield(event.Event{}, err)
			return
		}
		found := pick(r.topic(q.Topic).events, q)
		r.mu.Unlock()
		for _, e := range found {
			if err := r.enter(ctx); err != nil {
				yield(event.Event{}, err)
				return
			}
			r.mu.Unlock()
			if !yield(e, nil) {
				return
			}
		}
	}
}

// Bounds implements store.Log.
func (r *Reference) Bounds(ctx context.Context, topic string) (store.Bounds, error) {
	if err := r.enter(ctx); err != nil {
		return store.Bounds{}, err
	}
	defer r.mu.Unlock()
	return r.topic(topic).bounds(), nil
}

// LocateID implements store.Log.
func (r *Reference) LocateID(ctx context.Context, topic string, id event.ID) (uint64, error) {
	if err := r.enter(ctx); err != nil {
		return 0, err
	}
	defer r.mu.Unlock()
	if e := r.topic(topic).byID(id); e != nil {
		return e.Seq, nil
	}
	return 0, fmt.Errorf("locate id %s in topic %s: %w", id, topic, store.ErrNotFound)
}

// LocateTime implements store.Log.
func (r *Reference) LocateTime(ctx context.Context, topic string, ts int64) (uint64, error) {
	if err := r.enter(ctx); err != nil {
		return 0, err
	}
	defer r.mu.Unlock()
	l := r.topic(topic)
	for _, e := range l.events {
		if e.TS >= ts {
			return e.Seq, nil
		}
	}
	return l.last + 1, nil
}

// Trim implements store.Log.
func (r *Reference) Trim(ctx context.Context, topic string, before uint64) error {
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	l := r.topic(topic)
	for len(l.events) > 0 && l.events[0].Seq < before {
		l.cut()
	}
	return nil
}

// Begin implements [store.Begins].
func (r *Reference) Begin(ctx context.Context, topic string, seq uint64) error {
	if err := store.CheckBegin(topic, seq); err != nil {
		return err
	}
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	l := r.topic(topic)
	if l.last != 0 && (l.last != seq-1 || len(l.events) > 0) {
		return fmt.Errorf("begin topic %s: %w: its next seq is %d", topic, store.ErrConflict, l.last+1)
	}
	l.last = seq - 1
	r.topics[topic] = l
	return nil
}

// SetTopic implements store.Log.
func (r *Reference) SetTopic(ctx context.Context, topic string, s store.Settings) error {
	if err := event.CheckTopic(topic); err != nil {
		return fmt.Errorf("set topic: %w", err)
	}
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	l := r.topic(topic)
	l.settings = s
	l.settings.Meta = slices.Clone(s.Meta)
	r.topics[topic] = l
	return nil
}

// Topics implements store.Log.
func (r *Reference) Topics(ctx context.Context) iter.Seq2[store.Topic, error] {
	return func(yield func(store.Topic, error) bool) {
		if err := r.enter(ctx); err != nil {
			yield(store.Topic{}, err)
			return
		}
		var rows []store.Topic
		for _, name := range slices.Sorted(maps.Keys(r.topics)) {
			s := r.topics[name].settings
			s.Meta = slices.Clone(s.Meta)
			rows = append(rows, store.Topic{Name: name, Bounds: r.topics[name].bounds(), Settings: s})
		}
		r.mu.Unlock()
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}
}

// Watch implements store.Log.
func (r *Reference) Watch(topics ...string) *store.Watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	var w *store.Watch
	w = store.NewWatch(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watches, w)
	})
	r.watches[w] = slices.Clone(topics)
	return w
}

// Close implements store.Log.
func (r *Reference) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}
