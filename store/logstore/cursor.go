package logstore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"promethean/event"
	"promethean/store"
)

// maxGroup is the longest name of a group, in bytes.
const maxGroup = 256

// Cursor implements [store.Cursors].
func (s *Store) Cursor(ctx context.Context, name, group string) (store.Cursor, error) {
	if err := ctx.Err(); err != nil {
		return store.Cursor{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone.Load() {
		return store.Cursor{}, store.ErrClosed
	}
	if t := s.topics[name]; t != nil {
		if c := s.cursors[cursorKey{t.num, group}]; c != nil {
			return c.Clone(), nil
		}
	}
	return store.Cursor{}, fmt.Errorf("cursor of group %s on topic %s: %w", shorten(group), shorten(name), store.ErrNotFound)
}

// PutCursor implements [store.Cursors].
func (s *Store) PutCursor(ctx context.Context, c store.Cursor) (uint64, error) {
	if err := event.CheckTopic(c.Topic); err != nil {
		return 0, fmt.Errorf("put cursor: %w", err)
	}
	if c.Group == "" || len(c.Group) > maxGroup {
		return 0, fmt.Errorf("put cursor: %w: group must have 1 to %d bytes, it has %d", store.ErrInvalid, maxGroup, len(c.Group))
	}
	version := c.Version + 1
	r := s.newRequest()
	put := c.Clone()
	put.Settled = nil
	for _, x := range c.Settled {
		put.Settled.Add(x)
	}
	r.cursor = &cursorOp{cursor: put}
	r.bytes = 2*entryHead + len(c.Topic) + len(c.Group) + 100 + 20*len(c.Settled) + 15*len(c.Attempts) + len(c.Meta)
	if err := s.control(ctx, r); err != nil {
		return 0, fmt.Errorf("put cursor of group %s on topic %s: %w", c.Group, c.Topic, err)
	}
	return version, nil
}

// DeleteCursor implements [store.Cursors].
func (s *Store) DeleteCursor(ctx context.Context, name, group string, version uint64) error {
	r := s.newRequest()
	r.cursor = &cursorOp{cursor: store.Cursor{Topic: name, Group: group, Version: version}, drop: true}
	r.bytes = entryHead + len(group)
	if err := s.control(ctx, r); err != nil {
		return fmt.Errorf("delete cursor of group %s on topic %s: %w", shorten(group), shorten(name), err)
	}
	return nil
}

// Cursors implements [store.Cursors].
func (s *Store) Cursors(ctx context.Context, name string) iter.Seq2[store.Cursor, error] {
	return func(yield func(store.Cursor, error) bool) {
		s.mu.RLock()
		if s.gone.Load() {
			s.mu.RUnlock()
			yield(store.Cursor{}, store.ErrClosed)
			return
		}
		var keys []cursorKey
		names := make(map[uint32]string)
		for k := range s.cursors {
			if t := s.byNum[k.topic-1]; name == "" || t.name == name {
				keys = append(keys, k)
				names[k.topic] = t.name
			}
		}
		s.mu.RUnlock()
		slices.SortFunc(keys, func(a, b cursorKey) int {
			if c := strings.Compare(names[a.topic], names[b.topic]); c != 0 {
				return c
			}
			return strings.Compare(a.group, b.group)
		})
		for _, k := range keys {
			err := ctx.Err()
			var c store.Cursor
			s.mu.RLock()
			got := s.cursors[k]
			if got != nil {
				c = got.Clone()
			}
			s.mu.RUnlock()
			if got == nil && err == nil {
				continue // deleted while we went
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
}

// Watch implements [store.Log].
func (s *Store) Watch(names ...string) *store.Watch {
	var w *store.Watch
	w = store.NewWatch(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		drop := func(list []*store.Watch) []*store.Watch {
			return slices.DeleteFunc(list, func(x *store.Watch) bool { return x == w })
		}
		s.allTops = drop(s.allTops)
		for _, n := range names {
			if t := s.topics[n]; t != nil {
				t.watches = drop(t.watches)
			} else if list := drop(s.early[n]); len(list) > 0 {
				s.early[n] = list
			} else {
				delete(s.early, n)
			}
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(names) == 0 {
		s.allTops = append(s.allTops, w)
	}
	for _, n := range names {
		if t := s.topics[n]; t != nil {
			t.watches = append(t.watches, w)
		} else {
			s.early[n] = append(s.early[n], w)
		}
	}
	return w
}

// adopt hands the watches that wait for a topic over to it. mu must be held.
func (s *Store) adopt(name string) []*store.Watch {
	list := s.early[name]
	delete(s.early, name)
	return list
}
