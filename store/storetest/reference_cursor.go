package storetest

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"promethean/store"
)

// Cursor implements store.Cursors.
func (r *Reference) Cursor(ctx context.Context, topic, group string) (store.Cursor, error) {
	if err := r.enter(ctx); err != nil {
		return store.Cursor{}, err
	}
	defer r.mu.Unlock()
	c, ok := r.cursors[groupName{topic, group}]
	if !ok {
		return store.Cursor{}, fmt.Errorf("cursor of group %s on topic %s: %w", group, topic, store.ErrNotFound)
	}
	return c.Clone(), nil
}

// PutCursor implements store.Cursors.
func (r *Reference) PutCursor(ctx context.Context, c store.Cursor) (uint64, error) {
	if err := r.enter(ctx); err != nil {
		return 0, err
	}
	defer r.mu.Unlock()
	name := groupName{c.Topic, c.Group}
	old := r.cursors[name] // the zero Cursor has version 0: there is none
	switch {
	case c.Version != old.Version:
		return 0, fmt.Errorf("put cursor of group %s on topic %s: version %d, stored %d: %w", c.Group, c.Topic, c.Version, old.Version, store.ErrConflict)
	case c.Epoch < old.Epoch:
		return 0, fmt.Errorf("put cursor of group %s on topic %s: epoch %d, stored %d: %w", c.Group, c.Topic, c.Epoch, old.Epoch, store.ErrFenced)
	}
	c = c.Clone()
	c.Version++
	r.cursors[name] = c
	return c.Version, nil
}

// DeleteCursor implements store.Cursors.
func (r *Reference) DeleteCursor(ctx context.Context, topic, group string, version uint64) error {
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	name := groupName{topic, group}
	c, ok := r.cursors[name]
	switch {
	case !ok:
		return fmt.Errorf("delete cursor of group %s on topic %s: %w", group, topic, store.ErrNotFound)
	case c.Version != version:
		return fmt.Errorf("delete cursor of group %s on topic %s: version %d, stored %d: %w", group, topic, version, c.Version, store.ErrConflict)
	}
	delete(r.cursors, name)
	return nil
}

// Cursors implements store.Cursors.
func (r *Reference) Cursors(ctx context.Context, topic string) iter.Seq2[store.Cursor, error] {
	return func(yield func(store.Cursor, error) bool) {
		if err := r.enter(ctx); err != nil {
			yield(store.Cursor{}, err)
			return
		}
		var rows []store.Cursor
		for c := range maps.Values(r.cursors) {
			if topic == "" || c.Topic == topic {
				rows = append(rows, c.Clone())
			}
		}
		r.mu.Unlock()
		slices.SortFunc(rows, func(a, b store.Cursor) int {
			return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Group, b.Group))
		})
		for _, c := range rows {
			if !yield(c, nil) {
				return
			}
		}
	}
}
