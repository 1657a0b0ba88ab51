package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"promethean/store"
)

// Box is an outbox that a [Set] drains.
type Box struct {
	// Open gives the store. It is called again and again until it succeeds. One
	// that is an [io.Closer] is closed when the drainer has ended.
	Open func(context.Context) (Store, error)
	// Setup has the store's Setup called then, again and again as well.
	Setup bool
}

// Set is the outboxes that a process drains, by the names of their drainers.
type Set struct {
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu    sync.Mutex
	boxes []*drained
	ended bool
	errs  []error
}

// NewSet makes a set without outboxes.
func NewSet() *Set {
	s := &Set{}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// drained is one outbox of a set.
type drained struct {
	Box
	p Publisher
	o Options

	mu     sync.Mutex
	store  Store    // nil until it is open
	d      *Drainer // nil until it is set up
	outage string   // why it is not
	at     time.Time
}

// Add puts an outbox into the set and begins to drain it. A database that is
// away is waited for.
func (s *Set) Add(b Box, p Publisher, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return fmt.Errorf("outbox %s: %w", o.Name, store.ErrClosed)
	}
	if s.find(o.Name) != nil {
		return fmt.Errorf("%w: there is an outbox %s already", store.ErrInvalid, o.Name)
	}
	x := &drained{Box: b, p: p, o: o}
	s.boxes = append(s.boxes, x)
	s.work.Go(func() {
		if err := x.run(s.ctx); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.errs = append(s.errs, err)
		}
	})
	return nil
}

// find gives an outbox by name. mu must be held.
func (s *Set) find(name string) *drained {
	i := slices.IndexFunc(s.boxes, func(x *drained) bool { return x.o.Name == name })
	if i < 0 {
		return nil
	}
	return s.boxes[i]
}

// Store gives an outbox; one that there is not is [store.ErrNotFound], one that
// could not be opened yet [store.ErrUnavailable].
func (s *Set) Store(name string) (Store, error) {
	s.mu.Lock()
	x := s.find(name)
	s.mu.Unlock()
	if x == nil {
		return nil, fmt.Errorf("outbox %q: %w", name, store.ErrNotFound)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.store == nil {
		return nil, fmt.Errorf("outbox %s: %w: %s", name, store.ErrUnavailable, x.outage)
	}
	return x.store, nil
}

// List tells how the outboxes are doing, by name.
func (s *Set) List() (list []Status) {
	s.mu.Lock()
	boxes := slices.Clone(s.boxes)
	s.mu.Unlock()
	for _, x := range boxes {
		list = append(list, x.status())
	}
	slices.SortFunc(list, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Close ends all drainers; rows under way are given back.
func (s *Set) Close() error {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.errs...)
}

func (x *drained) status() Status {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.d != nil {
		return x.d.Status()
	}
	return Status{Name: x.o.Name, Outage: x.outage, LastError: x.outage, LastErrorAt: x.at}
}

func (x *drained) run(ctx context.Context) (err error) {
	var st Store
	defer func() {
		if c, ok := st.(io.Closer); ok {
			err = errors.Join(err, c.Close())
		}
	}()
	if !x.patiently(ctx, "open", func() error {
		got, err := x.Open(ctx)
		if err == nil {
			st = got
		}
		return err
	}) {
		return nil
	}
	x.mu.Lock()
	x.store = st
	x.mu.Unlock()
	if x.Setup && !x.patiently(ctx, "set up", func() error { return st.Setup(ctx) }) {
		return nil
	}
	d, err := New(st, x.p, x.o)
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.d = d
	x.mu.Unlock()
	return d.Run(ctx)
}

// patiently does something again and again until it succeeds, and says whether
// it did before ctx ended.
func (x *drained) patiently(ctx context.Context, what string, do func() error) bool {
	for wait := x.o.MinBackoff; ctx.Err() == nil; wait = min(2*wait, x.o.MaxBackoff) {
		err := do()
		x.mu.Lock()
		if x.outage = ""; err != nil {
			x.outage, x.at = what+": "+err.Error(), time.Now()
		}
		x.mu.Unlock()
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			x.o.Logger.Warn("the outbox is not ready; it is tried again", "outbox", x.o.Name, "err", err)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	return false
}
