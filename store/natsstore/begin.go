package natsstore

import (
	"context"
	"fmt"
	"time"

	"promethean/store"
)

// Begin implements [store.Begins]. A purge beyond the end of a stream moves its
// end, which is what [Store.Trim] must keep clear of.
func (s *Store) Begin(ctx context.Context, name string, seq uint64) error {
	if err := store.CheckBegin(name, seq); err != nil {
		return err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := s.beginTopic(ctx, s.topic(name), seq); err != nil {
		return fmt.Errorf("begin topic %s: %w", name, s.outcome(ctx, err))
	}
	return nil
}

func (s *Store) beginTopic(ctx context.Context, t *topic, seq uint64) error {
	if err := s.ensure(ctx, t); err != nil {
		return err
	}
	i, err := s.mustInspect(ctx, t.name)
	if err != nil {
		return err
	}
	b := s.extent(t.name, i)
	switch {
	case b.Empty() && b.Last+1 == seq:
		return nil
	case b.Last != 0:
		return fmt.Errorf("its next seq is %d, not %d: %w", b.Last+1, seq, store.ErrConflict)
	}
	asked := time.Now()
	err = s.retry(ctx, func(ctx context.Context) error {
		return s.ask(ctx, "STREAM.PURGE."+t.stream, map[string]uint64{"seq": seq}, &answer{})
	})
	if err != nil {
		return err
	}
	if i, err = s.mustInspect(ctx, t.name); err != nil {
		return err
	}
	if b = s.extent(t.name, i); !b.Empty() || b.Last+1 != seq {
		return fmt.Errorf("somebody else has written to it, from seq %d to %d: %w", b.First, b.Last, store.ErrConflict)
	}
	t.index.trim(seq)
	t.readers.clear()
	t.tail.advance(seq-1, asked)
	return nil
}
