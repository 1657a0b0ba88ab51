package changefeed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
)

// Publisher stores events; a [promethean.Bus] is one.
type Publisher interface {
	// Publish stores events as a whole. One whose id is known is not stored
	// again, and is told as a duplicate.
	Publish(ctx context.Context, events ...event.Event) ([]promethean.Receipt, error)
}

// DefaultKey is what the place of a feed is kept under.
const DefaultKey = "changefeed:default"

// oversized marks an event that stands for a document that is too large.
const oversized = "x-change-oversized"

// Options are those of a feed.
type Options struct {
	// Name is what status and logs call the feed. Default the topic.
	Name string
	// Topic gets the events.
	Topic string
	// Tokens keeps the place under Key, which is [DefaultKey] by default. Two
	// feeds must not have the same.
	Tokens Tokens
	Key    string
	// Filter says which changes are published. It is not asked about deletes,
	// which all are. Default all.
	Filter func(*Change) (bool, error)
	// Map makes the payload of a document. It is not called for deletes. Default
	// the document.
	Map func(*Change) (json.RawMessage, error)
	// MaxPayload is the size above which a payload is replaced by a marker.
	// Default 1 MiB, which is what a hub takes by default.
	MaxPayload int
	// Resnapshot lets the feed begin anew by itself when the source has lost the
	// history since the saved place.
	Resnapshot bool
	// SkipRefused leaves out changes that the filter, the map or the hub refuses,
	// and counts them. By default the feed waits until they are taken.
	SkipRefused bool
	// MinBackoff and MaxBackoff bound the pauses after failures. Default 100 ms
	// and 30 s.
	MinBackoff, MaxBackoff time.Duration
	// Logger gets what goes wrong. Default none.
	Logger *slog.Logger
}

const (
	// maxEvents and maxBytes bound what is published at a time.
	maxEvents = 500
	maxBytes  = 4 << 20
	// lookEvery is how often the source is asked how far it is behind.
	lookEvery = 10 * time.Second
	lookFor   = 5 * time.Second
)

func (o *Options) fill() error {
	if err := event.CheckTopic(o.Topic); err != nil {
		return err
	}
	if o.Tokens == nil {
		return fmt.Errorf("%w: a change feed needs a place to keep its token in", store.ErrInvalid)
	}
	if o.MinBackoff < 0 || o.MaxBackoff < 0 || o.MaxPayload < 0 {
		return fmt.Errorf("%w: options of a change feed are not negative", store.ErrInvalid)
	}
	if o.Name == "" {
		o.Name = o.Topic
	}
	if o.Key == "" {
		o.Key = DefaultKey
	}
	if o.MaxPayload == 0 {
		o.MaxPayload = 1 << 20
	}
	if o.MinBackoff == 0 {
		o.MinBackoff = 100 * time.Millisecond
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = 30 * time.Second
	}
	o.MaxBackoff = max(o.MaxBackoff, o.MinBackoff)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("feed", o.Name)
	return nil
}

// Feed publishes the changes of a source until it is closed.
type Feed struct {
	o    Options
	bus  Publisher
	src  Source
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	status  Status
	saved   uint64             // how often a place was
	held    time.Time          // when the first change was made that is at hand
	resync  bool               // the next round begins anew
	round   context.CancelFunc // ends the round that is under way
	changed chan struct{}      // closed when somebody wants the feed to look again
}

// Start begins to publish. What goes wrong afterwards is told by [Feed.Status]
// and to the logger, and tried again. The feed closes the source.
func Start(bus Publisher, src Source, o Options) (*Feed, error) {
	if err := o.fill(); err != nil {
		return nil, fmt.Errorf("change feed: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &Feed{
		o: o, bus: bus, src: src, stop: cancel, done: make(chan struct{}), changed: make(chan struct{}),
		status: Status{Name: o.Name, Topic: o.Topic, State: Starting, Since: time.Now(), LagBytes: -1},
	}
	go f.run(ctx)
	return f, nil
}

// Close ends the feed and closes its source. What was published and not yet
// noted is found again by its ids.
func (f *Feed) Close() error {
	f.stop()
	<-f.done
	return f.src.Close()
}

// Resync has the feed forget its place and begin anew, with a snapshot if its
// source takes one. It returns when that is asked for; [Feed.Status] tells what
// comes of it.
func (f *Feed) Resync() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resync = true
	if f.round != nil {
		f.round()
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// run is one round after the other: a round ends by an error.
func (f *Feed) run(ctx context.Context) {
	defer close(f.done)
	defer f.set(Stopped)
	var looks sync.WaitGroup
	looks.Go(func() { f.look(ctx) })
	defer looks.Wait()
	backoff := f.o.MinBackoff
	for {
		before := f.progress()
		changed, err := f.try(ctx)
		if ctx.Err() != nil {
			return
		}
		if f.progress() != before {
			backoff = f.o.MinBackoff
		}
		wait := backoff/2 + rand.N(backoff/2+1)
		switch {
		case errors.Is(err, errAgain):
			continue
		case errors.Is(err, ErrHistoryLost):
			f.lost(err)
			if f.o.Resnapshot {
				f.Resync()
				continue
			}
			wait = -1
		case errors.Is(err, ErrGone):
			f.fail(Gone, err)
			wait = f.o.MaxBackoff
		case errors.Is(err, ErrRefused):
			f.fail(Failed, err)
			wait = f.o.MaxBackoff
		default:
			f.fail(Waiting, err)
			backoff = min(2*backoff, f.o.MaxBackoff)
		}
		if !pause(ctx, changed, wait) {
			return
		}
	}
}

// pause waits for so long, or for ever if it is negative, or until somebody
// wants the feed to look again. It says whether ctx is still good.
func pause(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	var over <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-over:
	case <-changed:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// errAgain ends a round because somebody asked for another one.
var errAgain = errors.New("the feed begins anew")

// try is one round. Changed is closed when somebody wants another one.
func (f *Feed) try(ctx context.Context) (changed <-chan struct{}, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	anew := f.resync
	f.round, changed = cancel, f.changed
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.round = nil; f.resync && !anew {
			err = errAgain
		}
	}()
	var token []byte
	if anew {
		if err := f.forget(ctx); err != nil {
			return changed, fmt.Errorf("begin anew: %w", err)
		}
	} else if token, err = f.o.Tokens.Load(ctx, f.o.Key); err != nil {
		return changed, fmt.Errorf("load the place %q: %w", f.o.Key, err)
	}
	err = f.src.Stream(ctx, token, f.store)
	if err == nil {
		err = errors.New("the source has ended its stream")
	}
	return changed, err
}

// forget removes the place here and at the source.
func (f *Feed) forget(ctx context.Context) error {
	if err := f.o.Tokens.Delete(ctx, f.o.Key); err != nil {
		return fmt.Errorf("remove the place %q: %w", f.o.Key, err)
	}
	if err := f.src.Forget(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resync, f.held = false, time.Time{}
	return nil
}

// store publishes a batch and saves its place: it is the sink of the source.
func (f *Feed) store(ctx context.Context, b Batch) error {
	f.begin(b)
	var events []event.Event
	size := 0
	flush := func() error {
		if len(events) == 0 {
			return nil
		}
		err := f.publish(ctx, events)
		events, size = events[:0], 0
		return err
	}
	for i := range b.Changes {
		e, err := f.event(&b.Changes[i])
		switch {
		case err != nil && f.o.SkipRefused:
			f.refused(b.Changes[i].Key, err)
			continue
		case err != nil:
			return errors.Join(flush(), err)
		case e.Topic == "":
			f.count(func(s *Status) { s.Filtered++ })
			continue
		}
		if len(events) >= maxEvents || size+len(e.Payload) > maxBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		events, size = append(events, e), size+len(e.Payload)
	}
	if err := flush(); err != nil {
		return err
	}
	if b.Token != nil {
		if err := f.o.Tokens.Save(ctx, f.o.Key, b.Token); err != nil {
			return fmt.Errorf("save the place %q: %w", f.o.Key, err)
		}
	}
	f.passed(b)
	return nil
}

// null is the payload of a tombstone.
var null = json.RawMessage("null")

// event makes the event of a change; one without a topic is left out.
func (f *Feed) event(c *Change) (e event.Event, err error) {
	e = event.Event{ID: c.ID, Topic: f.o.Topic, Key: c.Key, Headers: c.Headers, Payload: null}
	if !c.At.IsZero() {
		e.TS = c.At.UnixMilli()
	}
	if c.Doc == nil {
		return e, nil
	}
	if f.o.Filter != nil {
		if ok, err := f.o.Filter(c); err != nil || !ok {
			if err != nil {
				err = fmt.Errorf("filter of %s %q: %w", c.Op, c.Key, err)
			}
			return event.Event{}, err
		}
	}
	e.Payload = c.Doc
	if f.o.Map != nil {
		if e.Payload, err = f.o.Map(c); err != nil {
			return event.Event{}, fmt.Errorf("map of %s %q: %w", c.Op, c.Key, err)
		}
		if len(bytes.TrimSpace(e.Payload)) == 0 {
			return event.Event{}, fmt.Errorf("map of %s %q: it gives nothing", c.Op, c.Key)
		}
	}
	if n := len(e.Payload); n > f.o.MaxPayload {
		e.Headers = append(e.Headers[:len(e.Headers):len(e.Headers)], event.Header{Name: oversized, Value: strconv.Itoa(n)})
		e.Payload = json.RawMessage(`{"_oversized":` + strconv.Itoa(n) + `}`)
		f.count(func(s *Status) { s.Oversized++ })
		f.o.Logger.Warn("a document is too large: a marker takes its place", "key", c.Key, "bytes", n, "limit", f.o.MaxPayload)
	}
	return e, nil
}

// publish stores events in order. If they are refused as a whole they are tried
// in halves, so that it is known which it was, and those before it are stored.
func (f *Feed) publish(ctx context.Context, events []event.Event) error {
	got, err := f.bus.Publish(ctx, events...)
	switch {
	case err == nil:
		f.stored(got)
		return nil
	case passing(ctx, err):
		return fmt.Errorf("publish to %s: %w", f.o.Topic, err)
	case len(events) > 1:
		half := len(events) / 2
		if err := f.publish(ctx, events[:half]); err != nil {
			return err
		}
		return f.publish(ctx, events[half:])
	case f.o.SkipRefused:
		f.refused(events[0].Key, err)
		return nil
	}
	return fmt.Errorf("publish key %q to %s: %w", events[0].Key, f.o.Topic, err)
}

// passing says whether an error is about the hub and the moment, and not about
// the events.
func passing(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	for _, e := range []error{store.ErrUnavailable, store.ErrFailed, store.ErrClosed, store.ErrHeld, store.ErrFenced, store.ErrConflict, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
