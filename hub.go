package promethean

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/internal/pool"
	"promethean/store"
	"promethean/store/intent"
	"promethean/store/logstore"
)

// Options configure a hub. The zero value works.
type Options struct {
	// Limits bound what is published; a zero field means its default: payloads
	// of at most 1 MiB.
	Limits event.Limits
	// Logger gets what has no caller to be told. The default discards.
	Logger *slog.Logger
	// Metrics is told what happens; see package metrics for one that speaks
	// to Prometheus. May be nil.
	Metrics Metrics
	// Tracer makes spans; see package tracing for OpenTelemetry. May be nil.
	Tracer Tracer
	// Owner names this process on an engine that several share. The default
	// is made of the host's name and a random id.
	Owner string
	// OwnFor is how long this process owns a group on such an engine without
	// renewing, and so about how long the group stands still if the process
	// dies. The default is 10 s.
	OwnFor time.Duration
	// DrainTimeout is how long Close waits for handlers. The default is 30 s.
	DrainTimeout time.Duration
}

// Bus is what capabilities are built on and wrap. [Hub] implements it, and so
// does every decorator. A batch is the primitive of publishing, so that nothing
// slips past a decorator.
type Bus interface {
	// Publish stores events as a whole, in order, durably when it returns. It
	// does not keep the list, whose events it may not change.
	Publish(ctx context.Context, events ...event.Event) ([]Receipt, error)
	// Subscribe has a handler called for the events of a topic, or of all
	// topics that fit a pattern, as a member of a durable group.
	Subscribe(ctx context.Context, topic, group string, h Handler, opts ...SubscribeOption) (Subscription, error)
	// Ack settles events by id. There is one result for each.
	Ack(ctx context.Context, topic, group string, ids ...event.ID) ([]Result, error)
	// Nack gives events back.
	Nack(ctx context.Context, topic, group string, reason string, ids ...event.ID) ([]Result, error)
	// Cursor says how far a group is.
	Cursor(ctx context.Context, topic, group string) (Position, error)
	// SetCursor moves a group to a place.
	SetCursor(ctx context.Context, topic, group string, to Place) error
}

var _ Bus = (*Hub)(nil)

// Log is an engine: what a hub needs of a store.
type Log = group.Log

// Hub is an event bus over one engine.
type Hub struct {
	log    Log
	groups *group.Engine
	o      Options

	workers *pool.Pool
	timed   bool // somebody wants to know how long handlers take

	mu   sync.Mutex
	subs map[*subscription]struct{}
	fans map[*fan]struct{}
	// follows are told of topics that are new.
	follows map[*Following]struct{}
	topics  map[string]*topicState
	sets    uint64 // how often this hub has set a topic
	// watchers are told of settings.
	watchers map[*settingsWatcher]struct{}
	// notices are those of a shared engine; nil where there is no other hub.
	notices *notices
	closed  bool
	err     error
}

// topicState is what the hub remembers of a topic.
type topicState struct {
	partitions int
	settings   store.Settings
	setAt      uint64 // Hub.sets when this hub set it last
}

// set takes over settings.
func (t *topicState) set(s store.Settings) { t.partitions, t.settings = max(s.Partitions, 1), s }

// Open opens a hub on a directory, and makes it if there is none. One process
// has it open at a time.
func Open(dir string, o Options) (*Hub, error) {
	log, err := logstore.Open(dir, o.store())
	if err != nil {
		return nil, err
	}
	return New(log, o)
}

// OpenMemory opens a hub that keeps everything in memory: for tests, and for
// what need not outlive the process.
func OpenMemory(o Options) (*Hub, error) {
	log, err := logstore.OpenMemory(o.store())
	if err != nil {
		return nil, err
	}
	return New(log, o)
}

// store gives the options of the embedded engine.
func (o Options) store() logstore.Options {
	s := logstore.Options{Limits: o.Limits, Logger: o.Logger}
	if o.Metrics != nil {
		s.Synced = o.Metrics.Synced
	}
	return s
}

// New makes a hub over an engine, which the hub closes. If it fails, the
// engine is closed already.
func New(log Log, o Options) (*Hub, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NoMetrics{}
	}
	_, untold := o.Metrics.(NoMetrics)
	if o.DrainTimeout == 0 {
		o.DrainTimeout = 30 * time.Second
	}
	log = intent.Wrap(log, intent.Options{Limits: o.Limits, Logger: o.Logger})
	h := &Hub{
		log: log, o: o, workers: pool.New(), timed: !untold,
		subs:    make(map[*subscription]struct{}),
		fans:    make(map[*fan]struct{}),
		follows: make(map[*Following]struct{}),
		topics:  make(map[string]*topicState),

		watchers: make(map[*settingsWatcher]struct{}),
	}
	h.groups = group.New(log, group.Options{
		Logger: o.Logger, Observer: o.Metrics, Owner: o.Owner, OwnFor: o.OwnFor,
		Partitions: func(topic string) int { return h.Settings(topic).Partitions },
	})
	// What is told after this is heard, so nothing is missed between the two.
	told, err := log.Bounds(context.Background(), noticeTopic)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	for t, err := range log.Topics(context.Background()) {
		if err != nil {
			return nil, errors.Join(err, log.Close())
		}
		h.topics[t.Name] = new(topicState)
		h.topics[t.Name].set(t.Settings)
	}
	if _, shared := log.(store.Shared); shared {
		h.listen(told.Last)
	}
	o.Metrics.Attach(h)
	return h, nil
}

// Close stops handing out events, waits for handlers that are at work, records
// how far every group is, and releases everything. Handlers that do not end
// within Options.DrainTimeout lose their leases.
func (h *Hub) Close() error {
	h.mu.Lock()
	if h.closed {
		defer h.mu.Unlock()
		return h.err
	}
	h.closed = true
	ending := make([]Subscription, 0, len(h.subs)+len(h.fans))
	for s := range h.subs {
		ending = append(ending, s)
	}
	for f := range h.fans {
		ending = append(ending, f)
	}
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), h.o.DrainTimeout)
	defer cancel()
	errs := make([]error, len(ending)+2)
	var wg sync.WaitGroup
	for i, s := range ending {
		wg.Go(func() { errs[i] = s.Stop(ctx) })
	}
	wg.Wait()
	h.workers.Close()
	if h.notices != nil {
		h.notices.stop()
	}
	errs[len(ending)] = h.groups.Close(ctx)
	errs[len(ending)+1] = h.log.Close()
	err := errors.Join(errs...)
	h.mu.Lock()
	h.err = err
	h.mu.Unlock()
	return err
}

// ErrClosed says that the hub was closed.
var ErrClosed = store.ErrClosed

// Read yields events of one topic in order, and ends at what was the end when
// it began. See [store.Query] for what can be selected.
func (h *Hub) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		if err := event.CheckTopic(q.Topic); err != nil {
			yield(event.Event{}, fmt.Errorf("read: %w", err))
			return
		}
		if q.Limit < 0 {
			yield(event.Event{}, fmt.Errorf("read topic %s: %w: limit %d is negative", q.Topic, group.ErrInvalid, q.Limit))
			return
		}
		h.log.Read(ctx, q)(yield)
	}
}

// Limits are those of what is published, defaults filled in.
func (h *Hub) Limits() event.Limits {
	l := h.o.Limits
	if l.Payload <= 0 {
		l.Payload = event.DefaultPayload
	}
	return l
}

// Topics yields all topics by name.
func (h *Hub) Topics(ctx context.Context) iter.Seq2[store.Topic, error] { return h.log.Topics(ctx) }

// SetTopic changes a topic's settings, and makes it if need be. Other hubs on
// the same engine learn of it within moments.
func (h *Hub) SetTopic(ctx context.Context, topic string, s store.Settings) error {
	set := func() error { return h.log.SetTopic(ctx, topic, s) }
	if err := event.CheckTopic(topic); err != nil {
		return set() // it says so
	}
	if err := h.groups.SetPartitions(ctx, topic, h.Settings(topic).Partitions, max(s.Partitions, 1), set); err != nil {
		return err
	}
	h.mu.Lock()
	h.sets++
	asOf := h.sets
	h.known(topic).setAt = asOf
	h.mu.Unlock()
	h.learn(topic, s, asOf)
	if h.notices != nil {
		h.notices.changed(topic)
	}
	return nil
}

// known gives what is remembered of a topic; one that is new is told to those
// who subscribe to a pattern. mu must be held.
func (h *Hub) known(topic string) *topicState {
	t := h.topics[topic]
	if t == nil {
		t = &topicState{partitions: 1}
		h.topics[topic] = t
		for f := range h.follows {
			f.appeared(topic)
		}
	}
	return t
}

// Place is a place in a topic, to move a group to.
type Place = group.Start

// Position is how far a group is.
type Position struct {
	Topic, Group string
	// Seq is the cursor: it and everything below is settled.
	Seq uint64
	// LastID and LastTS are those of the event at Seq, if it is still there.
	LastID event.ID
	LastTS int64
	// Pending is how many events were delivered and are not settled.
	Pending int
}

// Cursor implements [Bus].
func (h *Hub) Cursor(ctx context.Context, topic, name string) (Position, error) {
	i, err := h.groups.Info(ctx, topic, name)
	if err != nil {
		return Position{}, err
	}
	p := Position{Topic: topic, Group: name, Seq: i.Cursor, Pending: i.Pending}
	if i.Cursor > 0 {
		for e, err := range h.log.Read(ctx, store.Query{Topic: topic, After: i.Cursor - 1, Until: i.Cursor}) {
			if err != nil {
				return Position{}, err
			}
			p.LastID, p.LastTS = e.ID, e.TS
		}
	}
	return p, nil
}

// SetCursor implements [Bus].
func (h *Hub) SetCursor(ctx context.Context, topic, name string, to Place) error {
	return h.groups.Move(ctx, topic, name, to)
}

// Lag is how far a group is behind.
type Lag struct {
	Topic, Group string
	// Events is how many are not settled.
	Events uint64
	// Age is how old the first of them is; 0 if there is none.
	Age          time.Duration
	Cursor, Tail uint64
}

// Lag tells how far a group is behind.
func (h *Hub) Lag(ctx context.Context, topic, name string) (Lag, error) {
	i, err := h.groups.Info(ctx, topic, name)
	if err != nil {
		return Lag{}, err
	}
	l := Lag{Topic: topic, Group: name, Events: i.Lag, Cursor: i.Cursor, Tail: i.Tail}
	if i.Lag > 0 {
		for e, err := range h.log.Read(ctx, store.Query{Topic: topic, After: i.Cursor, Limit: 1}) {
			if err != nil {
				return Lag{}, err
			}
			l.Age = max(time.Since(e.Time()), 0)
		}
	}
	return l, nil
}

// Groups yields the groups of a topic by name; "" means of all topics.
func (h *Hub) Groups(ctx context.Context, topic string) iter.Seq2[group.Info, error] {
	return func(yield func(group.Info, error) bool) {
		for c, err := range h.log.Cursors(ctx, topic) {
			if err != nil {
				yield(group.Info{}, err)
				return
			}
			if strings.HasPrefix(c.Group, "system.") {
				continue
			}
			i, err := h.groups.Info(ctx, c.Topic, c.Group)
			if errors.Is(err, group.ErrNotFound) {
				continue // removed meanwhile
			}
			if !yield(i, err) || err != nil {
				return
			}
		}
	}
}

// Engine gives the delivery engine, for capabilities that need more than the
// bus offers.
func (h *Hub) Engine() *group.Engine { return h.groups }

// Log gives the engine below, for the same.
func (h *Hub) Log() Log { return h.log }

// Result answers for one id.
type Result = group.Result

// Ack implements [Bus]. It returns once the settlements are durable.
func (h *Hub) Ack(_ context.Context, topic, name string, ids ...event.ID) ([]Result, error) {
	return h.groups.Ack(topic, name, selected(ids), false)
}

// AckAsync is Ack that does not wait until the settlements are durable.
func (h *Hub) AckAsync(topic, name string, ids ...event.ID) ([]Result, error) {
	return h.groups.Ack(topic, name, selected(ids), true)
}

// Nack implements [Bus].
func (h *Hub) Nack(_ context.Context, topic, name, reason string, ids ...event.ID) ([]Result, error) {
	return h.groups.Nack(topic, name, selected(ids), group.Nack{Reason: reason})
}

// ModAck lets the leases of events last until so long from now.
func (h *Hub) ModAck(_ context.Context, topic, name string, by time.Duration, ids ...event.ID) ([]Result, error) {
	return h.groups.Extend(topic, name, selected(ids), by)
}

func selected(ids []event.ID) []group.Selected {
	out := make([]group.Selected, len(ids))
	for i, id := range ids {
		out[i].ID = id
	}
	return out
}
