package intent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"promethean/event"
	"promethean/store"
)

const (
	// Topic is where intents are kept.
	Topic = "system.intents"
	// group is whose cursor says which intents are done.
	group = "system.roller"
	// keep is how long intents stay after they are done, for people who look.
	keep = 7 * 24 * time.Hour
)

// Engine is what is wrapped.
type Engine interface {
	store.Log
	store.Cursors
}

// Options configure a log. The zero value works.
type Options struct {
	// Limits are those of the engine: what it would refuse must not be
	// promised. A zero field means its default.
	Limits event.Limits
	// Grace is how long whoever wrote an intent has before others do the
	// rest. The default is 5 s.
	Grace time.Duration
	// Logger hears of what others left. The default discards.
	Logger *slog.Logger
}

// Log is an engine that takes batches over several topics.
type Log struct {
	Engine
	o             Options
	events, bytes int // of one batch

	made sync.Mutex // held while the roller's cursor is made
	has  bool       // it is

	roller roller
}

// sharedLog is one over an engine that several processes have open.
type sharedLog struct {
	*Log
	store.Leases
}

// Unwrap gives the engine, for [store.As].
func (l *Log) Unwrap() any { return l.Engine }

// SharedByProcesses is the ability [store.Shared].
func (sharedLog) SharedByProcesses() {}

// compactLog and sharedCompactLog are those over an engine that compacts.
type compactLog struct {
	*Log
	store.Compacts
}

type sharedCompactLog struct {
	sharedLog
	store.Compacts
}

// Wrap gives an engine that takes batches over several topics. One that does so
// by itself is returned as it is. Closing it closes the engine.
func Wrap(e Engine, o Options) Engine {
	if _, ok := e.(store.AtomicTopics); ok {
		return e
	}
	if o.Grace == 0 {
		o.Grace = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{Engine: e, o: o, events: math.MaxInt, bytes: math.MaxInt}
	if b, ok := e.(store.Bounded); ok {
		l.events, l.bytes = b.MaxBatch()
	}
	l.roller.begin(l)
	compacts, _ := e.(store.Compacts)
	leases, ok := e.(store.Leases)
	_, shared := e.(store.Shared)
	switch shared = shared && ok; {
	case shared && compacts != nil:
		return sharedCompactLog{sharedLog{l, leases}, compacts}
	case shared:
		return sharedLog{l, leases}
	case compacts != nil:
		return compactLog{l, compacts}
	}
	return l
}

// record is the payload of an event of the topic of intents: one part of one
// intent.
type record struct {
	Intent event.ID `json:"intent"`
	Part   int      `json:"part"`
	Of     int      `json:"of"`
	Hub    bool     `json:"hub,omitempty"` // the hub's own events, which may be larger
	Events []kept   `json:"events"`
}

// kept is an event of an intent, as its binary record with the topic: JSON
// would not keep every byte of a payload.
type kept []byte

func keepAll(events []event.Event) []kept {
	out := make([]kept, len(events))
	for i := range events {
		out[i] = event.AppendBinary(nil, &events[i], true)
	}
	return out
}

func (k kept) event() (e event.Event, err error) {
	err = event.DecodeBinary(k, &e, "")
	e.Seq = 0
	return e, err
}

// MaxBatch is the ability [store.Bounded]: what goes into one batch here is
// bounded by nothing but memory.
func (l *Log) MaxBatch() (events, bytes int) { return math.MaxInt, math.MaxInt }

// Append implements [store.Log].
func (l *Log) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if l.fits(b.Events) {
		return l.Engine.Append(ctx, b)
	}
	if len(b.Expect) > 0 || len(b.Settle) > 0 {
		return nil, fmt.Errorf("append: %w: this engine takes several topics, or %d events of %d bytes, in several steps, and expectations or settlements beside them need one", store.ErrInvalid, l.events, l.bytes)
	}
	limits := l.o.Limits
	if b.Internal {
		limits = limits.Internal()
	}
	for i := range b.Events {
		if err := b.Events[i].Check(limits); err != nil {
			return nil, fmt.Errorf("append topic %s: %w", b.Events[i].Topic, &store.EventError{Index: i, Err: err})
		}
	}
	done, err := l.write(ctx, b)
	if err != nil {
		return nil, err
	}
	out, err := l.forward(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("append in several steps: the rest follows by itself: %w", err)
	}
	return out, l.settle(ctx, done)
}

// fits says whether the engine takes events as one batch.
func (l *Log) fits(events []event.Event) bool {
	size := 0
	for i := range events {
		if size += events[i].Size(); events[i].Topic != events[0].Topic || i > 0 && size > l.bytes || i >= l.events {
			return false
		}
	}
	return true
}

// partBytes is about how much one part of an intent holds.
const partBytes = 256 << 10

// write puts an intent into the log and gives where its parts are.
func (l *Log) write(ctx context.Context, b store.Batch) (store.Ranges, error) {
	if err := l.make(ctx); err != nil {
		return nil, err
	}
	id := event.NewID()
	parts := store.Cut(b.Events, l.events, min(partBytes, l.bytes))
	var records []event.Event
	for i, events := range parts {
		payload, err := json.Marshal(record{Intent: id, Part: i, Of: len(parts), Hub: b.Internal, Events: keepAll(events)})
		if err != nil {
			return nil, fmt.Errorf("append: write the intent: %w", err)
		}
		e := event.New(Topic, payload)
		e.Key = id.String()
		records = append(records, e)
	}
	var places store.Ranges
	for _, part := range store.Cut(records, l.events, l.bytes) {
		got, err := l.Engine.Append(ctx, store.Batch{Events: part, Internal: true})
		if err != nil {
			return nil, fmt.Errorf("append: write the intent: %w", err)
		}
		for _, a := range got {
			places.Add(store.Range{First: a.Seq, Last: a.Seq})
		}
	}
	return places, nil
}

// make makes the roller's cursor and the topic, once.
func (l *Log) make(ctx context.Context) error {
	l.made.Lock()
	defer l.made.Unlock()
	if l.has {
		return nil
	}
	_, err := l.Cursor(ctx, Topic, group)
	if errors.Is(err, store.ErrNotFound) {
		if err = l.SetTopic(ctx, Topic, store.Settings{Retention: keep}); err == nil {
			_, err = l.PutCursor(ctx, store.Cursor{Topic: Topic, Group: group})
		}
		if errors.Is(err, store.ErrConflict) {
			err = nil // somebody else was quicker
		}
	}
	l.has = err == nil
	return err
}

// forward appends the events of an intent, topic by topic, and answers in the
// order of the batch. Doing it again changes nothing.
func (l *Log) forward(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	byTopic := make(map[string][]int)
	var topics []string
	for i := range b.Events {
		t := b.Events[i].Topic
		if byTopic[t] == nil {
			topics = append(topics, t)
		}
		byTopic[t] = append(byTopic[t], i)
	}
	out := make([]store.Appended, len(b.Events))
	for _, t := range topics {
		events := make([]event.Event, len(byTopic[t]))
		for k, i := range byTopic[t] {
			events[k] = b.Events[i]
		}
		k := 0
		for _, part := range store.Cut(events, l.events, l.bytes) {
			got, err := l.Engine.Append(ctx, store.Batch{Events: part, Async: b.Async, Internal: b.Internal})
			if err != nil {
				return nil, err
			}
			for _, a := range got {
				out[byTopic[t][k]] = a
				k++
			}
		}
	}
	return out, nil
}

// settle takes down that intents are done.
func (l *Log) settle(ctx context.Context, done store.Ranges) error {
	_, err := l.Engine.Append(ctx, store.Batch{Settle: []store.Settlement{{Topic: Topic, Group: group, Done: done}}})
	if err != nil {
		return fmt.Errorf("append in several steps: it is done, and that could not be noted: %w", err)
	}
	return nil
}

// Unfinished counts the records of intents that are not known to be done. Who
// copies a store needs to know: an engine that takes several topics in one step
// has nobody who does the rest.
func Unfinished(ctx context.Context, e Engine) (n int, err error) {
	c, err := e.Cursor(ctx, Topic, group)
	if errors.Is(err, store.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for e, err := range e.Read(ctx, store.Query{Topic: Topic, After: c.Floor}) {
		if err != nil {
			return 0, err
		}
		if !c.Settled.Contains(e.Seq) {
			n++
		}
	}
	return n, nil
}

// Close ends rolling, and closes the engine.
func (l *Log) Close() error {
	l.roller.end()
	return l.Engine.Close()
}
