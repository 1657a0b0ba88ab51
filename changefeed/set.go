package changefeed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"promethean/store"
)

// Elsewhere is the state of a feed that another hub runs.
const Elsewhere State = "elsewhere"

// keepFor is how long a hub has a feed without renewing.
const keepFor = 10 * time.Second

// SetOptions are those of a [Set].
type SetOptions struct {
	// Leases decides which of several hubs runs a feed. Nil: this one does.
	Leases store.Leases
	// Owner names the hub in leases.
	Owner  string
	Logger *slog.Logger
}

// Set is the feeds of a hub, by name. Where several hubs share an engine, each
// feed is run by one of them; if that hub ends, another goes on.
type Set struct {
	o    SetOptions
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu    sync.Mutex
	kept  []*keeper
	ended bool
}

// NewSet makes a set without feeds.
func NewSet(o SetOptions) *Set {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Set{o: o}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Open connects to a source, and to where its place is kept. It must not wait
// for a server. Tokens that are an [io.Closer] are closed after the source.
type Open func() (Source, Tokens, error)

// Add puts a feed into the set, and runs it as soon as it may.
func (s *Set) Add(bus Publisher, open Open, o Options) error {
	full := o
	full.Tokens = noTokens{} // so that the rest can be judged
	if err := full.fill(); err != nil {
		return fmt.Errorf("change feed %s: %w", o.Name, err)
	}
	o.Name, o.Key = full.Name, full.Key
	k := &keeper{s: s, bus: bus, open: open, o: o, status: Status{
		Name: o.Name, Topic: o.Topic, State: Starting, Since: time.Now(), LagBytes: -1,
	}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return fmt.Errorf("change feed %s: %w", o.Name, store.ErrClosed)
	}
	for _, other := range s.kept {
		if other.o.Name == o.Name {
			return fmt.Errorf("%w: there is a change feed %s already", store.ErrInvalid, o.Name)
		}
		if other.o.Key == o.Key {
			return fmt.Errorf("%w: change feeds %s and %s keep their places under one key, %q", store.ErrInvalid, other.o.Name, o.Name, o.Key)
		}
	}
	s.kept = append(s.kept, k)
	s.work.Go(k.run)
	return nil
}

// List tells how the feeds are doing, by name.
func (s *Set) List() (list []Status) {
	s.mu.Lock()
	kept := slices.Clone(s.kept)
	s.mu.Unlock()
	for _, k := range kept {
		list = append(list, k.tell())
	}
	slices.SortFunc(list, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Resync has a feed begin anew; see [Feed.Resync]. One that does not run here is
// [store.ErrUnavailable], one that there is not [store.ErrNotFound].
func (s *Set) Resync(name string) error {
	k, err := s.find(name)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.feed == nil {
		return fmt.Errorf("%w: change feed %s does not run at this hub (%s)", store.ErrUnavailable, name, k.status.State)
	}
	k.feed.Resync()
	return nil
}

// Where gives the owner, as in [SetOptions], that runs a feed. If none does at
// the moment that is [store.ErrUnavailable].
func (s *Set) Where(ctx context.Context, name string) (owner string, err error) {
	k, err := s.find(name)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	here := k.feed != nil
	k.mu.Unlock()
	if holds, ok := store.As[store.Holds](s.o.Leases); ok && !here {
		l, err := holds.Holder(ctx, k.lease())
		if errors.Is(err, store.ErrNotFound) {
			err = fmt.Errorf("%w: no hub runs change feed %s at the moment", store.ErrUnavailable, name)
		}
		return l.Owner, err
	}
	if !here {
		return "", fmt.Errorf("%w: change feed %s does not run at this hub", store.ErrUnavailable, name)
	}
	return s.o.Owner, nil
}

func (s *Set) find(name string) (*keeper, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.kept, func(k *keeper) bool { return k.o.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("change feed %q: %w", name, store.ErrNotFound)
	}
	return s.kept[i], nil
}

// Close ends all feeds.
func (s *Set) Close() error {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
	return nil
}

// keeper runs one feed of a set where and while it may.
type keeper struct {
	s    *Set
	bus  Publisher
	open Open
	o    Options

	mu     sync.Mutex
	feed   *Feed // nil while it does not run here
	status Status
}

func (k *keeper) tell() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.feed != nil {
		return k.feed.Status()
	}
	return k.status
}

// note tells why the feed does not run here.
func (k *keeper) note(s State, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.become(s)
	if k.status.Error, k.status.ErrorAt = "", (time.Time{}); err != nil {
		k.status.Error, k.status.ErrorAt = err.Error(), time.Now()
	}
}

func (k *keeper) run() {
	ctx := k.s.ctx
	for ctx.Err() == nil {
		hold, err := k.acquire(ctx)
		if err == nil {
			err = k.serve(ctx, hold)
		}
		switch {
		case errors.Is(err, store.ErrHeld):
			k.note(Elsewhere, nil)
		case err != nil && ctx.Err() == nil:
			k.note(Waiting, err)
			k.s.o.Logger.Warn("the feed does not run at this hub", "feed", k.o.Name, "err", err)
		}
		pause(ctx, nil, keepFor/5)
	}
	k.note(Stopped, nil)
}

// tenure is the right to run a feed.
type tenure struct {
	lease store.Lease
	until time.Time // by this hub's clock
}

func (k *keeper) lease() string { return "changefeed:" + k.o.Name }

func (k *keeper) acquire(ctx context.Context) (t tenure, err error) {
	if k.s.o.Leases == nil {
		return tenure{}, nil
	}
	asked := time.Now()
	t.lease, err = k.s.o.Leases.Acquire(ctx, k.lease(), k.s.o.Owner, keepFor)
	t.until = asked.Add(keepFor)
	return t, err
}

// serve runs the feed until the set ends, or the right to run it.
func (k *keeper) serve(ctx context.Context, t tenure) (err error) {
	src, tokens, err := k.open()
	if err != nil {
		k.release(t)
		return err
	}
	if c, ok := tokens.(io.Closer); ok {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	o := k.o
	o.Tokens = tokens
	f, err := Start(k.bus, src, o)
	if err != nil {
		k.release(t)
		return errors.Join(err, src.Close())
	}
	k.mu.Lock()
	k.feed = f
	k.mu.Unlock()
	err = k.hold(ctx, &t)
	k.mu.Lock()
	k.feed = nil
	k.mu.Unlock()
	err = errors.Join(err, f.Close())
	k.release(t)
	return err
}

// hold renews the lease until the set ends or it is lost.
func (k *keeper) hold(ctx context.Context, t *tenure) error {
	if k.s.o.Leases == nil {
		<-ctx.Done()
		return nil
	}
	for pause(ctx, nil, keepFor/4) {
		asked := time.Now()
		try, cancel := context.WithDeadline(ctx, t.until.Add(-keepFor/4))
		lease, err := k.s.o.Leases.Renew(try, t.lease, keepFor)
		cancel()
		switch {
		case err == nil:
			t.lease, t.until = lease, asked.Add(keepFor)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, store.ErrFenced) || time.Until(t.until) < keepFor/2:
			return fmt.Errorf("renew the lease of the feed: %w", err)
		}
	}
	return nil
}

// release lets others go on at once.
func (k *keeper) release(t tenure) {
	if k.s.o.Leases == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	_ = k.s.o.Leases.Release(ctx, t.lease) // it ends by itself
}

// noTokens stands in until a source is opened.
type noTokens struct{}

func (noTokens) Load(context.Context, string) ([]byte, error) { return nil, nil }
func (noTokens) Save(context.Context, string, []byte) error   { return nil }
func (noTokens) Delete(context.Context, string) error         { return nil }
