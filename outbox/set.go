package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"promethean/store"
)

// Box is an outbox that a [Set] drains.
type Box struct {
	Store Store
	// Setup has the store's Setup called first, again and again until it
	// succeeds.
	Setup bool
	// Close is called when the drainer has ended. It may be nil.
	Close func() error
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
	d *Drainer

	mu    sync.Mutex
	setup string // why it is not set up
}

// Add puts an outbox into the set and begins to drain it. A database that is
// away is waited for.
func (s *Set) Add(b Box, p Publisher, o Options) error {
	d, err := New(b.Store, p, o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return fmt.Errorf("outbox %s: %w", d.o.Name, store.ErrClosed)
	}
	if s.find(d.o.Name) != nil {
		return fmt.Errorf("%w: there is an outbox %s already", store.ErrInvalid, d.o.Name)
	}
	x := &drained{Box: b, d: d}
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
	i := slices.IndexFunc(s.boxes, func(x *drained) bool { return x.d.o.Name == name })
	if i < 0 {
		return nil
	}
	return s.boxes[i]
}

// Store gives an outbox; one that there is not is [store.ErrNotFound].
func (s *Set) Store(name string) (Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.find(name); x != nil {
		return x.Store, nil
	}
	return nil, fmt.Errorf("outbox %q: %w", name, store.ErrNotFound)
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
	st := x.d.Status()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.setup != "" {
		st.Outage, st.LastError = x.setup, x.setup
	}
	return st
}

func (x *drained) run(ctx context.Context) (err error) {
	if x.Close != nil {
		defer func() { err = errors.Join(err, x.Close()) }()
	}
	if x.Setup && !x.prepare(ctx) {
		return nil
	}
	return x.d.Run(ctx)
}

// prepare sets the outbox up, and says whether ctx is still good.
func (x *drained) prepare(ctx context.Context) bool {
	for wait := x.d.o.MinBackoff; ctx.Err() == nil; wait = min(2*wait, x.d.o.MaxBackoff) {
		err := x.Store.Setup(ctx)
		x.mu.Lock()
		if x.setup = ""; err != nil {
			x.setup = "set up: " + err.Error()
		}
		x.mu.Unlock()
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			x.d.o.Logger.Warn("the outbox cannot be set up; it is tried again", "outbox", x.d.o.Name, "err", err)
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
