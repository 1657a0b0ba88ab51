package compact

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
)

// Options configure a compactor. The zero value works.
type Options struct {
	// Every is how often topics are looked at. Default 10 s; negative: only when
	// [Compactor.Compact] is called.
	Every time.Duration
	// Hold gives a seq of a topic from which on tombstones stay, because a view
	// has not passed them; math.MaxUint64 if there is none. May be nil.
	Hold func(topic string) uint64
	// Observe is told of every compaction and every round of snapshots. May be
	// nil.
	Observe func(Report)
	// Logger hears of what goes wrong. Default: nobody does.
	Logger *slog.Logger
	// Owner names this process on an engine that several share. Default: a
	// random name.
	Owner string
	// Now is the time. Default [time.Now].
	Now func() time.Time
}

// Report says what was done with a topic.
type Report struct {
	Topic string
	// Before is where the compaction ended, 0 if there was none, and Compacted
	// what it did.
	Before    uint64
	Compacted store.Compacted
	// Snapshots is how many records were written.
	Snapshots int
	Took      time.Duration
	Err       error
}

const (
	defaultSweep = 10 * time.Second
	// closeWait bounds how long Close takes to store where the topics ended.
	closeWait = 5 * time.Second
)

// Compactor looks after all topics that are to be compacted, until it is closed.
//
// All methods may be called concurrently.
type Compactor struct {
	hub      *promethean.Hub
	o        Options
	marks    *promethean.SystemTopic
	compacts store.Compacts // nil: the engine cannot
	leases   store.Leases   // nil: nobody else is there
	// one is held by whoever compacts: several at a time would only wait for
	// the same disk.
	one sync.Mutex

	topics atomic.Pointer[topics]

	mu      sync.Mutex
	workers map[string]*worker
	closed  bool

	ctx    context.Context
	cancel context.CancelFunc
	stop   func()
	done   sync.WaitGroup
}

// topics is what the settings say; it does not change.
type topics struct {
	settings map[string]Settings // of those that are compacted
	source   map[string]string   // the topic that a snapshot topic is of
}

// Start begins to compact topics by their settings. Close it before the hub.
// On an engine that cannot compact it refuses such settings, see
// [Compactor.Prepare], and does nothing else.
func Start(ctx context.Context, hub *promethean.Hub, o Options) (*Compactor, error) {
	if o.Every == 0 {
		o.Every = defaultSweep
	}
	if o.Hold == nil {
		o.Hold = func(string) uint64 { return math.MaxUint64 }
	}
	if o.Observe == nil {
		o.Observe = func(Report) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Owner == "" {
		o.Owner = event.NewID().String()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	marks, err := hub.SystemTopic("compactions", 0)
	if err != nil {
		return nil, err
	}
	c := &Compactor{hub: hub, o: o, marks: marks, workers: make(map[string]*worker)}
	c.compacts, _ = store.As[store.Compacts](hub.Log())
	if _, shared := hub.Log().(store.Shared); shared {
		c.leases, _ = hub.Log().(store.Leases)
	}
	c.topics.Store(&topics{})
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.stop = hub.WatchSettings(c.setting)
	return c, nil
}

// Close ends the work. A compaction that is under way is broken off; the next
// start goes on with it.
func (c *Compactor) Close() error {
	c.stop()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.done.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	var errs []error
	c.mu.Lock() // nobody works any more
	defer c.mu.Unlock()
	for _, w := range c.workers {
		errs = append(errs, w.close(ctx))
	}
	return errors.Join(errs...)
}

// setting takes the settings of a topic.
func (c *Compactor) setting(topic string, s store.Settings) {
	set, err := SettingsOf(s)
	if err != nil {
		c.o.Logger.Error("the settings of a topic cannot be read", "topic", topic, "err", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now := &topics{settings: make(map[string]Settings), source: make(map[string]string)}
	for name, other := range c.topics.Load().settings {
		now.settings[name] = other
	}
	delete(now.settings, topic)
	if set.Compaction {
		now.settings[topic] = set
	}
	for name, other := range now.settings {
		if to := other.SnapshotTopic(name); to != "" {
			now.source[to] = name
		}
	}
	c.topics.Store(now)
	if c.compacts == nil || !set.Compaction {
		return // a worker that is there finds that it has nothing to do
	}
	if w := c.workers[topic]; w != nil {
		w.poke()
		return
	}
	w := &worker{c: c, topic: topic, wake: make(chan struct{}, 1)}
	c.workers[topic] = w
	if c.o.Every > 0 {
		c.done.Go(w.run)
	}
}

// Settings gives those of a topic that is compacted; false if it is not.
func (c *Compactor) Settings(topic string) (Settings, bool) {
	set, ok := c.topics.Load().settings[topic]
	return set, ok
}

// Compact does at once what is to be done with a topic: snapshots, and a
// compaction even if there is little to gain. It says what was done.
func (c *Compactor) Compact(ctx context.Context, topic string) (Report, error) {
	if c.compacts == nil {
		return Report{}, c.unsupported()
	}
	c.mu.Lock()
	w := c.workers[topic]
	c.mu.Unlock()
	if w == nil {
		return Report{}, fmt.Errorf("compact topic %s: %w: its settings do not say compaction", topic, event.ErrInvalidArgument)
	}
	r := w.sweep(ctx, true)
	return r, r.Err
}

// worker looks after one topic.
type worker struct {
	c     *Compactor
	topic string
	wake  chan struct{}

	mu sync.Mutex // held by a sweep; all that follows is under it

	owned  bool // what follows is what is stored
	held   bool // the lease is ours
	lease  store.Lease
	mark   Mark
	tried  store.Compaction // what was compacted last, by this process
	stored time.Time        // when ticks were stored last
	ticked bool             // ticks have changed since
	grown  int              // records since old ones were removed

	snap snapshotter
}

// poke has the worker look at its settings.
func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run sweeps until the compactor is closed. It waits while the topic is not to be
// compacted.
func (w *worker) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-w.c.ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		if _, ok := w.c.Settings(w.topic); !ok {
			timer.Stop()
			continue
		}
		if r := w.sweep(w.c.ctx, false); r.Err != nil && w.c.ctx.Err() == nil {
			w.c.o.Logger.Warn("a topic cannot be compacted now", "topic", w.topic, "err", r.Err)
		}
		timer.Reset(w.c.o.Every)
	}
}

// sweep does what is to be done.
func (w *worker) sweep(ctx context.Context, force bool) (r Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began := time.Now()
	r.Topic = w.topic
	set, ok := w.c.Settings(w.topic)
	if !ok {
		return r
	}
	mine, err := w.own(ctx)
	if err == nil && mine {
		err = w.work(ctx, &set, force, &r)
	}
	if err != nil {
		w.owned = false // what is stored is looked at again
		r.Err = fmt.Errorf("compact topic %s: %w", w.topic, err)
	}
	if r.Took = time.Since(began); r.Before > 0 || r.Snapshots > 0 || r.Err != nil {
		w.c.o.Observe(r)
	}
	return r
}

// own sees to it that the topic is ours, and that what is stored is known.
func (w *worker) own(ctx context.Context) (mine bool, err error) {
	if w.c.leases != nil {
		l, err := w.c.leases.Acquire(ctx, "compact:"+w.topic, w.c.o.Owner, max(6*w.c.o.Every, time.Minute))
		if errors.Is(err, store.ErrHeld) {
			w.owned, w.held = false, false
			return false, nil
		}
		if err != nil {
			return false, err
		}
		w.owned = w.owned && l.Epoch == w.lease.Epoch
		w.lease, w.held = l, true
	}
	if w.owned {
		return true, nil
	}
	if w.mark, err = MarkOf(ctx, w.c.hub.Log(), w.topic); err != nil {
		return false, err
	}
	w.owned, w.ticked, w.stored, w.tried = true, false, w.c.o.Now(), store.Compaction{}
	w.snap = snapshotter{}
	return true, nil
}

// work is one sweep of a topic that is ours.
func (w *worker) work(ctx context.Context, set *Settings, force bool, r *Report) error {
	now := w.c.o.Now()
	b, err := w.c.hub.Log().Bounds(ctx, w.topic)
	if err != nil {
		return err
	}
	w.tick(now, b.Last, set)
	if !w.mark.Trimmed && w.mark.TrimmedBy(b.First, w.c.hub.Settings(w.topic)) {
		w.mark.Trimmed, w.ticked = true, true
	}
	if to := set.SnapshotTopic(w.topic); to != "" {
		if r.Snapshots, err = w.snapshots(ctx, now, to, set, force); err != nil {
			return err
		}
	}
	c := w.due(now, set)
	if w.worth(now, b, c, force) {
		if err := w.compact(ctx, now, c, r); err != nil {
			return err
		}
	}
	if w.ticked && now.Sub(w.stored) >= w.storeEvery(set) {
		return w.store(ctx, w.mark)
	}
	return nil
}

// close stores where the topic ended, and gives the lease back.
func (w *worker) close(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	if w.owned && w.ticked {
		errs = append(errs, w.store(ctx, w.mark))
	}
	if w.held {
		errs = append(errs, w.c.leases.Release(ctx, w.lease))
	}
	w.owned, w.held = false, false
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("compact topic %s: %w", w.topic, err)
	}
	return nil
}
