package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"promethean/store"
)

// Plain is an engine without its abilities: batches have events of one topic
// or settlements, each of which is a step of its own, and are small. What is
// built on engines is tested on it too. It hides everything but the two ports.
type Plain struct {
	Engine
	// Most is how many events a batch may have. Default 3.
	Most int
}

// MaxBatch is the ability [store.Bounded].
func (p Plain) MaxBatch() (events, bytes int) {
	if p.Most == 0 {
		p.Most = 3
	}
	return p.Most, p.Most << 20
}

// Append implements [store.Log], and refuses what needs an ability.
func (p Plain) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if len(b.Events) > 0 && len(b.Settle) > 0 {
		return nil, fmt.Errorf("append: %w: %d events and %d settlements", store.ErrInvalid, len(b.Events), len(b.Settle))
	}
	if most, _ := p.MaxBatch(); len(b.Events) > most {
		return nil, fmt.Errorf("append: %w: %d events, the limit is %d", store.ErrTooLarge, len(b.Events), most)
	}
	for _, e := range b.Events {
		if e.Topic != b.Events[0].Topic {
			return nil, fmt.Errorf("append: %w: topics %s and %s", store.ErrInvalid, b.Events[0].Topic, e.Topic)
		}
	}
	for _, s := range b.Settle {
		if s.Take != 0 {
			return nil, fmt.Errorf("append: %w: only a shared engine takes an epoch", store.ErrInvalid)
		}
		if _, err := p.Engine.Append(ctx, store.Batch{Settle: []store.Settlement{s}}); err != nil {
			return nil, err
		}
	}
	if len(b.Events) == 0 {
		return nil, nil
	}
	return p.Engine.Append(ctx, b)
}

// Shared is a plain engine that several owners share, in one process.
type Shared struct {
	Plain
	store.Leases
	store.Holds
	mu sync.Mutex // held while something is settled, or an epoch taken
}

// Share gives a plain engine that several owners may have at a time, over one
// that one process has alone.
func Share(e interface {
	Engine
	store.Leases
	store.Holds
}) *Shared {
	return &Shared{Plain: Plain{Engine: e}, Leases: e, Holds: e}
}

// SharedByProcesses is the ability [store.Shared].
func (p *Shared) SharedByProcesses() {}

// Append implements [store.Log].
func (p *Shared) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if len(b.Settle) == 0 {
		return p.Plain.Append(ctx, b)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b.Settle = slices.Clone(b.Settle)
	for i := range b.Settle {
		if s := &b.Settle[i]; s.Take != 0 {
			if err := p.take(ctx, s); err != nil {
				return nil, err
			}
			s.Epoch, s.Take = s.Take, 0
		}
	}
	return p.Plain.Append(ctx, b)
}

// take gives a group another epoch. Unlike a real one it changes the version.
func (p *Shared) take(ctx context.Context, s *store.Settlement) error {
	c, err := p.Cursor(ctx, s.Topic, s.Group)
	if err != nil {
		return err
	}
	if c.Epoch != s.Epoch {
		return fmt.Errorf("settle group %s: %w", s.Group, store.ErrFenced)
	}
	c.Epoch = s.Take
	_, err = p.PutCursor(ctx, c)
	return err
}
