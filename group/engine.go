package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"promethean/event"
	"promethean/internal/pool"
	"promethean/store"
)

// Log is what the engine needs of a store.
type Log interface {
	store.Log
	store.Cursors
}

// Options configure an engine.
type Options struct {
	// Logger gets what has no caller to be told. The default discards.
	Logger *slog.Logger
	// Observer is told what happens, for metrics. May be nil.
	Observer Observer
	// Owner names this process on an engine that several share. The default
	// is made of the host's name and a random id.
	Owner string
	// OwnFor is how long this process owns a group on such an engine without
	// renewing, and so about how long the group stands still if it dies. The
	// default is DefaultOwnFor.
	OwnFor time.Duration
	// Partitions says how many partitions a topic has, as far as the caller
	// knows. May be nil: topics have one then, until SetPartitions.
	Partitions func(topic string) int
}

// Observer is told what happens to events. Its methods are called often and
// under a lock: they must be quick and must not call back.
type Observer interface {
	Delivered(topic, group string, redelivered bool)
	Acked(topic, group string, sincePublish time.Duration)
	Nacked(topic, group string)
	DeadLettered(topic, group string)
	Expired(topic, group string, n uint64)
	InFlight(topic, group string, delta int)
	ReadAhead(topic, group string, took time.Duration)
}

// Errors of the engine, to be told apart with errors.Is.
var (
	// ErrClosed says that the engine was closed.
	ErrClosed = errors.New("group engine is closed")
	// ErrFenced says that the delivery is over: its lease has ended.
	ErrFenced = errors.New("the lease is over")
	// ErrUnknownID says that the event was never delivered to the group.
	ErrUnknownID = errors.New("never delivered to this group")
	// ErrNotFound says that there is no such group.
	ErrNotFound = errors.New("no such group")
)

type name struct{ topic, group string }

// Engine runs the groups of one process.
type Engine struct {
	log     Log
	o       Options
	bounds  bounds
	leases  store.Leases // nil if no other process has the log open
	settles bool         // the log takes events and settlements together

	mu      sync.Mutex
	runners map[name]*runner
	topics  map[string]*watcher
	pages   map[string]*pages
	parted  map[name]*parted
	closed  bool
	work    *pool.Pool      // goroutines of runners and watchers
	ctx     context.Context // of background work; ends when Close gives up
	cancel  context.CancelFunc
}

// New makes an engine over a log. Close it before the log.
func New(log Log, o Options) *Engine {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = NoObserver{}
	}
	if o.OwnFor == 0 {
		o.OwnFor = DefaultOwnFor
	}
	if o.Owner == "" {
		host, _ := os.Hostname() // a name for people; the id is what counts
		o.Owner = host + " " + event.NewID().String()
	}
	e := &Engine{log: log, o: o, bounds: defaultBounds, runners: make(map[name]*runner), topics: make(map[string]*watcher), pages: make(map[string]*pages), parted: make(map[name]*parted), work: pool.New()}
	if _, shared := log.(store.Shared); shared {
		e.leases, _ = log.(store.Leases)
	}
	_, e.settles = log.(store.Settles)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// Start says where a new group begins.
type Start struct {
	From    From
	TS      int64
	AfterID event.ID
	Seq     uint64
}

// From names a place in a topic.
type From string

const (
	// Latest is the end of the topic: only what is published from now on.
	Latest From = "latest"
	// Earliest is the first retained event.
	Earliest From = "earliest"
	// FromTS is the first event with a timestamp at or after TS.
	FromTS From = "ts"
	// AfterID is after the event with that id.
	AfterID From = "afterId"
	// FromSeq is after that seq.
	FromSeq From = "seq"
)

// ErrCursorUnknown says that a place does not exist: an id that is not, or no
// longer, in the topic.
var ErrCursorUnknown = errors.New("no such place in the topic")

// Floor gives the seq up to which everything lies before the place.
func (e *Engine) Floor(ctx context.Context, topic string, s Start) (uint64, error) {
	switch s.From {
	case "", Latest, Earliest:
		b, err := e.log.Bounds(ctx, topic)
		if err != nil {
			return 0, err
		}
		if s.From == Earliest {
			return b.First - 1, nil
		}
		return b.Last, nil
	case FromTS:
		seq, err := e.log.LocateTime(ctx, topic, s.TS)
		return max(seq, 1) - 1, err
	case AfterID:
		seq, err := e.log.LocateID(ctx, topic, s.AfterID)
		if errors.Is(err, store.ErrNotFound) {
			return 0, fmt.Errorf("%w: topic %s holds no event with id %s", ErrCursorUnknown, topic, s.AfterID)
		}
		return seq, err
	case FromSeq:
		b, err := e.log.Bounds(ctx, topic)
		if err != nil {
			return 0, err
		}
		if s.Seq > b.Last {
			return 0, fmt.Errorf("%w: topic %s ends at seq %d, before %d", ErrCursorUnknown, topic, b.Last, s.Seq)
		}
		return s.Seq, nil
	}
	return 0, fmt.Errorf("%w: from %q is none of latest, earliest, ts, afterId, seq", ErrInvalid, s.From)
}

// Make makes a group, or checks that one that exists has no other settings.
func (e *Engine) Make(ctx context.Context, topic, group string, set Settings, start Start) error {
	if set.Partitions != 0 {
		_, err := e.MakeParted(ctx, topic, group, set, start)
		return err
	}
	_, err := e.open(ctx, topic, group, &set, start)
	if errors.Is(err, errParted) {
		err = nil // what it leaves out contradicts nothing, and the rest fits
	}
	return err
}

// open gives the runner of a group. With settings, a group that does not
// exist is made.
func (e *Engine) open(ctx context.Context, topic, group string, set *Settings, start Start) (*runner, error) {
	if err := event.CheckTopic(topic); err != nil {
		return nil, err
	}
	if group == "" || len(group) > 256 {
		return nil, fmt.Errorf("%w: a group's name has 1 to 256 bytes, not %d", ErrInvalid, len(group))
	}
	if set != nil {
		if err := set.check(); err != nil {
			return nil, fmt.Errorf("group %s: %w", group, err)
		}
	}
	n := name{topic, group}
	for {
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			return nil, ErrClosed
		}
		r := e.runners[n]
		if r == nil {
			r = newRunner(e, n, group)
			e.runners[n] = r
		}
		e.mu.Unlock()
		err := r.load(ctx, set, start)
		if err == nil {
			return r, nil
		}
		if r.isAbandoned() {
			e.mu.Lock()
			if e.runners[n] == r {
				delete(e.runners, n)
			}
			e.mu.Unlock()
		}
		if !errors.Is(err, errAbandoned) {
			return nil, fmt.Errorf("topic %s, group %s: %w", topic, group, err)
		}
	}
}

// Close takes all leases back, records how everything stands, and ends. Ack
// what is to count before. It returns when ctx ends at the latest; what was
// not recorded then is as after a crash.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	runners, topics := e.runners, e.topics
	e.mu.Unlock()
	for _, w := range topics {
		w.watch.Stop()
	}
	defer e.cancel()
	undo := context.AfterFunc(ctx, e.cancel)
	defer undo()
	var wg sync.WaitGroup
	errs := make([]error, 0, len(runners))
	var mu sync.Mutex
	slots := make(chan struct{}, 256) // the log's group commit serves many at once
	for _, r := range runners {
		slots <- struct{}{}
		wg.Go(func() {
			err := r.close()
			<-slots
			if err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("topic %s, group %s: %w", r.topic, r.group, err))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	e.work.Close()
	e.work.Wait()
	return errors.Join(errs...)
}

// NoObserver is told and forgets.
type NoObserver struct{}

// Delivered implements [Observer].
func (NoObserver) Delivered(string, string, bool) {}

// Acked implements [Observer].
func (NoObserver) Acked(string, string, time.Duration) {}

// Nacked implements [Observer].
func (NoObserver) Nacked(string, string) {}

// DeadLettered implements [Observer].
func (NoObserver) DeadLettered(string, string) {}

// Expired implements [Observer].
func (NoObserver) Expired(string, string, uint64) {}

// InFlight implements [Observer].
func (NoObserver) InFlight(string, string, int) {}

// ReadAhead implements [Observer].
func (NoObserver) ReadAhead(string, string, time.Duration) {}
