package storetest

import (
	"context"
	"fmt"

	"promethean/store"
)

// Plain is an engine without its abilities: batches have events of one topic
// or settlements, each of which is a step of its own, and are small. What is
// built on engines is tested on it too. It hides everything but the two ports;
// give it [store.Leases] by embedding both.
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
			if err := p.take(ctx, s); err != nil {
				return nil, err
			}
			s.Take = 0
			s.Epoch++
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

// take does what an engine that processes share does by itself: here one
// process has it open.
func (p Plain) take(ctx context.Context, s store.Settlement) error {
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
