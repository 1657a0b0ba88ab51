package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"promethean/event"
	"promethean/store"
)

// copyTopic brings a topic of the target to where that of the source is.
func (m *migration) copyTopic(ctx context.Context, t store.Topic) error {
	c := copying{m: m, topic: t.Name, until: t.Bounds.Last}
	if err := c.run(ctx, t.Bounds.First); err != nil {
		return fmt.Errorf("copy topic %s: %w", t.Name, err)
	}
	return nil
}

// copying is the copy of one topic.
type copying struct {
	m     *migration
	topic string
	until uint64 // the source's last seq

	batch       []event.Event
	size        int
	most, bytes int    // of a batch
	next        uint64 // the seq that the target gives next, the batch included
	filled      int64  // of the batch
	ts          int64  // of the last event
	gapless     bool   // the target cannot have gaps
}

func (c *copying) run(ctx context.Context, first uint64) error {
	to := c.m.to
	b, err := to.Bounds(ctx, c.topic)
	if err != nil {
		return err
	}
	if b.Last == 0 {
		if err := c.begin(ctx, first); err != nil {
			return err
		}
		b.Last = first - 1
	}
	c.next = b.Last + 1
	c.most, c.bytes = limits(to)
	_, compacts := store.As[store.Compacts](to)
	c.gapless = !compacts
	for block, err := range ahead(ctx, c.m.from, store.Query{Topic: c.topic, After: b.Last, Until: c.until}) {
		if err != nil {
			return fmt.Errorf("source: %w", err)
		}
		for i := range block {
			if err := c.fill(ctx, block[i].Seq); err != nil {
				return err
			}
			if err := c.add(ctx, block[i]); err != nil {
				return err
			}
			c.ts = block[i].TS
		}
	}
	if err := c.fill(ctx, c.until+1); err != nil {
		return err
	}
	if err := c.flush(ctx); err != nil {
		return err
	}
	return c.empty(ctx)
}

// begin makes the topic with the seq of its first event.
func (c *copying) begin(ctx context.Context, first uint64) error {
	if first <= 1 {
		return c.m.to.SetTopic(ctx, c.topic, store.Settings{})
	}
	b, ok := store.As[store.Begins](c.m.to)
	if !ok {
		return fmt.Errorf("%w: the target's topics begin with seq 1, and this one has lost the events before %d", errors.ErrUnsupported, first)
	}
	return b.Begin(ctx, c.topic, first)
}

func (c *copying) gapKey() string { return gapKey + c.m.id.String() }

// fill puts something in place of what is missing before a seq.
func (c *copying) fill(ctx context.Context, before uint64) error {
	if c.gapless && c.next < before {
		return fmt.Errorf("%w: the target's topics have no gaps, and this one lacks seq %d", errors.ErrUnsupported, c.next)
	}
	for c.next < before {
		e := event.Event{
			ID: event.NameID(c.m.id, c.topic+" "+strconv.FormatUint(c.next, 10)), Seq: c.next, TS: c.ts, Topic: c.topic,
			Key: c.gapKey(), Payload: json.RawMessage("null"),
		}
		if err := c.add(ctx, e); err != nil {
			return err
		}
		c.filled++
	}
	return nil
}

func (c *copying) add(ctx context.Context, e event.Event) error {
	if size := e.Size(); len(c.batch) == c.most || len(c.batch) > 0 && c.size+size > c.bytes {
		if err := c.flush(ctx); err != nil {
			return err
		}
	}
	c.batch = append(c.batch, e)
	c.size += e.Size()
	c.next = e.Seq + 1
	return nil
}

// flush appends the batch where it belongs.
func (c *copying) flush(ctx context.Context) error {
	if len(c.batch) == 0 {
		return nil
	}
	first := c.batch[0].Seq
	got, err := c.m.to.Append(ctx, store.Batch{
		Events: c.batch, Expect: []store.Expect{{Topic: c.topic, Seq: first - 1}}, Internal: true,
	})
	if err != nil {
		return fmt.Errorf("from seq %d on: %w", first, err)
	}
	for i, a := range got {
		if a.Duplicate || a.Seq != first+uint64(i) {
			return fmt.Errorf("%w: id %s of seq %d is known to the target, which has it at seq %d", ErrMismatch, c.batch[i].ID, c.batch[i].Seq, a.Seq)
		}
	}
	n := int64(len(c.batch))
	c.m.copied.Add(n - c.filled)
	c.m.filled.Add(c.filled)
	c.m.advance(n)
	clear(c.batch)
	c.batch, c.size, c.filled = c.batch[:0], 0, 0
	return nil
}

// empty takes out again what fills the gaps.
func (c *copying) empty(ctx context.Context) error {
	there := false
	for _, err := range c.m.to.Read(ctx, store.Query{Topic: c.topic, Key: c.gapKey(), Limit: 1}) {
		if err != nil {
			return err
		}
		there = true
	}
	if !there {
		return nil
	}
	to, _ := store.As[store.Compacts](c.m.to) // else there were none
	_, err := to.Compact(ctx, c.topic, store.Compaction{Before: c.until + 1, Tombstones: c.until + 1, Key: c.gapKey()})
	return err
}

// copyGroups makes the target's groups those of the source.
func (m *migration) copyGroups(ctx context.Context) error {
	wanted := make(map[[2]string]bool)
	for c, err := range m.from.Cursors(ctx, "") {
		if err != nil {
			return fmt.Errorf("groups of the source: %w", err)
		}
		wanted[[2]string{c.Topic, c.Group}] = true
		if err := m.copyGroup(ctx, c); err != nil {
			return fmt.Errorf("group %s of topic %s: %w", c.Group, c.Topic, err)
		}
	}
	m.sum.Groups = len(wanted)
	var over []store.Cursor
	for c, err := range m.to.Cursors(ctx, "") {
		if err != nil {
			return fmt.Errorf("groups of the target: %w", err)
		}
		if !wanted[[2]string{c.Topic, c.Group}] && c.Group != markGroup {
			over = append(over, c)
		}
	}
	for _, c := range over { // the source had them when the migration began
		if err := m.to.DeleteCursor(ctx, c.Topic, c.Group, c.Version); err != nil {
			return fmt.Errorf("group %s of topic %s: %w", c.Group, c.Topic, err)
		}
	}
	return nil
}

func (m *migration) copyGroup(ctx context.Context, c store.Cursor) error {
	old, err := m.to.Cursor(ctx, c.Topic, c.Group)
	switch {
	case errors.Is(err, store.ErrNotFound):
		c.Version = 0
	case err != nil:
		return err
	case differsIn(&c, &old) == "":
		return nil
	default:
		c.Version = old.Version
	}
	_, err = m.to.PutCursor(ctx, c)
	return err
}
