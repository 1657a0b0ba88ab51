package group

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"promethean/store"
)

// Shadow shows how far a reader is that keeps its place elsewhere: it has a
// group whose cursor is floor, and makes it if need be. Nothing is handed out to
// it, so it has no members; whatever else was done to its cursor is undone.
func (e *Engine) Shadow(ctx context.Context, topic, group string, floor uint64) error {
	n := name{topic, group}
	for {
		c, err := e.log.Cursor(ctx, topic, group)
		if errors.Is(err, store.ErrNotFound) {
			c, err = store.Cursor{Topic: topic, Group: group, Generation: 1, Meta: Settings{Ordering: ByTopic}.withDefaults().encode()}, nil
		}
		if err != nil {
			return fmt.Errorf("topic %s, group %s: %w", topic, group, err)
		}
		if c.Version > 0 && c.Floor == floor && len(c.Settled) == 0 && len(c.Attempts) == 0 {
			return nil
		}
		e.mu.Lock()
		r := e.runners[n]
		e.mu.Unlock()
		if r != nil && c.Version > 0 {
			// Somebody has it open, who must not go on from where it was.
			err = r.move(ctx, floor)
		} else {
			c.Floor, c.Handed, c.Settled, c.Attempts = floor, floor, nil, nil
			_, err = e.log.PutCursor(ctx, c)
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrFenced):
			if r != nil { // it was deleted under its hands: the next call makes it again
				return fmt.Errorf("topic %s, group %s: %w", topic, group, err)
			}
		default:
			return fmt.Errorf("topic %s, group %s: %w", topic, group, err)
		}
	}
}

// Bury stores dead letters of readers that keep their place elsewhere, durably
// when it returns. What failed in one group is stored once, however often it is
// buried. TS is the time now. There is no dead letter of a dead letter.
func (e *Engine) Bury(ctx context.Context, letters ...Letter) error {
	var b store.Batch
	for _, l := range letters {
		if strings.HasPrefix(l.Topic, LetterPrefix) {
			e.o.Logger.Warn("a dead letter failed and stays where it is", "topic", l.Topic, "group", l.Group, "id", l.Original.ID, "err", l.Err)
			continue
		}
		b.Events = append(b.Events, e.letterEvent(&l, l.Original.Key, 0, 0))
	}
	if len(b.Events) == 0 {
		return nil
	}
	b.Internal = true
	stored, err := e.bury(ctx, &b)
	for i := range stored {
		if !stored[i].Duplicate {
			e.o.Observer.DeadLettered(strings.TrimPrefix(b.Events[i].Topic, LetterPrefix), letters[0].Group)
		}
	}
	return err
}

// bury appends in runs that the log takes.
func (e *Engine) bury(ctx context.Context, b *store.Batch) (out []store.Appended, err error) {
	most, bytes := len(b.Events), maxBury
	if l, ok := e.log.(store.Bounded); ok {
		events, size := l.MaxBatch()
		most, bytes = min(most, events), min(bytes, size)
	}
	for _, part := range store.Cut(b.Events, most, bytes) {
		got, err := e.log.Append(ctx, store.Batch{Events: part, Internal: true})
		if err != nil {
			return out, err
		}
		out = append(out, got...)
	}
	return out, nil
}

// maxBury is how many bytes of dead letters go into one batch.
const maxBury = 4 << 20
