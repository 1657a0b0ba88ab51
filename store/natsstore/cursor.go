package natsstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"promethean/event"
	"promethean/store"
)

// maxGroup is the longest name of a group, in bytes.
const maxGroup = 256

// cursorRecord is the value of a group's key in the bucket "groups". Ranges and
// attempts are varints: each number is the distance to the one before.
type cursorRecord struct {
	Version    uint64 `json:"v"`
	Epoch      uint64 `json:"e,omitempty"`
	Generation uint64 `json:"g,omitempty"`
	Floor      uint64 `json:"f,omitempty"`
	Handed     uint64 `json:"h,omitempty"`
	Settled    []byte `json:"s,omitempty"`
	Attempts   []byte `json:"a,omitempty"`
	Meta       []byte `json:"m,omitempty"`
}

func encodeCursor(c *store.Cursor) ([]byte, error) {
	r := cursorRecord{Version: c.Version, Epoch: c.Epoch, Generation: c.Generation, Floor: c.Floor, Handed: c.Handed, Meta: c.Meta}
	last := uint64(0)
	for _, x := range c.Settled {
		r.Settled = binary.AppendUvarint(r.Settled, x.First-last)
		r.Settled = binary.AppendUvarint(r.Settled, x.Last-x.First)
		last = x.Last
	}
	last = 0
	for _, seq := range slices.Sorted(maps.Keys(c.Attempts)) {
		r.Attempts = binary.AppendUvarint(r.Attempts, seq-last)
		r.Attempts = binary.AppendUvarint(r.Attempts, uint64(c.Attempts[seq]))
		last = seq
	}
	return json.Marshal(r)
}

func decodeCursor(topic, group string, value []byte) (store.Cursor, error) {
	var r cursorRecord
	if err := json.Unmarshal(value, &r); err != nil {
		return store.Cursor{}, fmt.Errorf("damaged entry: %w", err)
	}
	c := store.Cursor{Topic: topic, Group: group, Version: r.Version, Epoch: r.Epoch, Generation: r.Generation, Floor: r.Floor, Handed: r.Handed, Meta: r.Meta}
	in := reader{s: string(r.Settled)}
	for last := uint64(0); in.s != ""; {
		first := last + in.num()
		last = first + in.num()
		c.Settled = append(c.Settled, store.Range{First: first, Last: last})
	}
	at := reader{s: string(r.Attempts)}
	for seq := uint64(0); at.s != ""; {
		if c.Attempts == nil {
			c.Attempts = make(map[uint64]uint32)
		}
		seq += at.num()
		c.Attempts[seq] = uint32(at.num())
	}
	if in.bad || at.bad {
		return store.Cursor{}, errors.New("damaged entry: a list is cut short")
	}
	return c, nil
}

func groupKey(topic, group string) string { return topic + "." + token(group, &kvSafe) }

// loadCursor reads a group from the leader. Without a group the cursor is zero
// and the revision that of its deletion, if any.
func (s *Store) loadCursor(ctx context.Context, topic, group string) (store.Cursor, uint64, error) {
	e, err := s.get(ctx, s.cursors, groupKey(topic, group))
	if errors.Is(err, errGone) {
		return store.Cursor{}, e.rev, nil
	}
	if err != nil {
		return store.Cursor{}, 0, err
	}
	c, err := decodeCursor(topic, group, e.value)
	return c, e.rev, err
}

// Cursor implements [store.Cursors].
func (s *Store) Cursor(ctx context.Context, topic, group string) (store.Cursor, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return store.Cursor{}, err
	}
	defer end()
	var c store.Cursor
	if event.CheckTopic(topic) == nil && group != "" && len(group) <= maxGroup {
		c, _, err = s.loadCursor(ctx, topic, group)
	}
	if err == nil && c.Version == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Cursor{}, fmt.Errorf("cursor of group %s on topic %s: %w", shorten(group), shorten(topic), s.outcome(ctx, err))
	}
	return c, nil
}

// PutCursor implements [store.Cursors].
func (s *Store) PutCursor(ctx context.Context, c store.Cursor) (uint64, error) {
	if err := event.CheckTopic(c.Topic); err != nil {
		return 0, fmt.Errorf("put cursor: %w", err)
	}
	if c.Group == "" || len(c.Group) > maxGroup {
		return 0, fmt.Errorf("put cursor: %w: group must have 1 to %d bytes, it has %d", store.ErrInvalid, maxGroup, len(c.Group))
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	if err := s.putCursor(ctx, &c); err != nil {
		return 0, fmt.Errorf("put cursor of group %s on topic %s: %w", shorten(c.Group), c.Topic, s.outcome(ctx, err))
	}
	return c.Version, nil
}

func (s *Store) putCursor(ctx context.Context, c *store.Cursor) error {
	if err := s.ensure(ctx, s.topic(c.Topic)); err != nil {
		return err
	}
	next := c.Clone()
	next.Settled = nil
	for _, r := range c.Settled {
		next.Settled.Add(r)
	}
	next.Version++
	value, err := encodeCursor(&next)
	if err != nil {
		return err
	}
	for wait := time.Duration(0); ; pause(ctx, &wait) {
		old, rev, err := s.loadCursor(ctx, c.Topic, c.Group)
		switch {
		case err != nil:
			return err
		case c.Version != old.Version:
			return fmt.Errorf("version %d, stored %d: %w", c.Version, old.Version, store.ErrConflict)
		case c.Epoch < old.Epoch:
			return fmt.Errorf("epoch %d, stored %d: %w", c.Epoch, old.Epoch, store.ErrFenced)
		}
		rev, err = s.put(ctx, s.cursors, groupKey(c.Topic, c.Group), value, rev)
		if errors.Is(err, errRace) && ctx.Err() == nil {
			continue // a settlement, or another owner
		}
		if err == nil {
			c.Version = next.Version
			s.groups.get(c.Topic, c.Group).note(next, rev)
		}
		return err
	}
}

// DeleteCursor implements [store.Cursors].
func (s *Store) DeleteCursor(ctx context.Context, topic, group string, version uint64) error {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := s.deleteCursor(ctx, topic, group, version); err != nil {
		return fmt.Errorf("delete cursor of group %s on topic %s: %w", shorten(group), shorten(topic), s.outcome(ctx, err))
	}
	return nil
}

func (s *Store) deleteCursor(ctx context.Context, topic, group string, version uint64) error {
	if event.CheckTopic(topic) != nil || group == "" || len(group) > maxGroup {
		return store.ErrNotFound
	}
	for wait := time.Duration(0); ; pause(ctx, &wait) {
		old, rev, err := s.loadCursor(ctx, topic, group)
		switch {
		case err != nil:
			return err
		case old.Version == 0:
			return store.ErrNotFound
		case old.Version != version:
			return fmt.Errorf("version %d, stored %d: %w", version, old.Version, store.ErrConflict)
		}
		_, err = s.put(ctx, s.cursors, groupKey(topic, group), nil, rev)
		if !errors.Is(err, errRace) || ctx.Err() != nil {
			s.groups.drop(topic, group)
			return err
		}
	}
}

// Cursors implements [store.Cursors].
func (s *Store) Cursors(ctx context.Context, topic string) iter.Seq2[store.Cursor, error] {
	return func(yield func(store.Cursor, error) bool) {
		ctx, end, err := s.begin(ctx)
		if err != nil {
			yield(store.Cursor{}, err)
			return
		}
		defer end()
		if topic != "" && event.CheckTopic(topic) != nil {
			return
		}
		rows, err := s.listCursors(ctx, topic)
		if err != nil {
			yield(store.Cursor{}, fmt.Errorf("cursors: %w", s.outcome(ctx, err)))
			return
		}
		for _, c := range rows {
			err := s.outcome(ctx, ctx.Err())
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
}

func (s *Store) listCursors(ctx context.Context, topic string) ([]store.Cursor, error) {
	filter := ">"
	if topic != "" {
		filter = topic + ".*"
	}
	found := make(map[string]store.Cursor) // a key that changes meanwhile comes twice
	err := s.list(ctx, s.cursors, filter, func(key string, e entry) error {
		dot := strings.LastIndexByte(key, '.')
		if dot < 0 {
			return fmt.Errorf("bucket %s: key %q is not ours", s.cursors.name, key)
		}
		group, err := untoken(key[dot+1:])
		if err != nil {
			return err
		}
		c, err := decodeCursor(key[:dot], group, e.value)
		if err != nil {
			return fmt.Errorf("group %s of topic %s: %w", shorten(group), key[:dot], err)
		}
		found[key] = c
		return nil
	})
	rows := slices.Collect(maps.Values(found))
	slices.SortFunc(rows, func(a, b store.Cursor) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Group, b.Group))
	})
	return rows, err
}
