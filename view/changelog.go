package view

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"promethean/event"
	"promethean/internal/patch"
	"promethean/store"
)

// changelog makes the documents of a changelog view.
type changelog struct {
	o       *ChangelogOptions
	l       *line
	mapped  []mapped
	overlay *overlay // of a view that merges
}

// mapped is what the functions of the view say about an event.
type mapped struct {
	key     string
	object  []byte // compact; nil deletes
	version *int64
	err     error
}

// share is how many events a goroutine takes at least: below that it costs more
// than it brings.
const share = 64

// add implements [mapper].
func (c *changelog) add(ctx context.Context, events []event.Event, b *batch) (int, error) {
	if cap(c.mapped) < len(events) {
		c.mapped = make([]mapped, len(events))
	}
	c.mapped = c.mapped[:len(events)]
	c.mapAll(ctx, events)
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if c.o.Merge {
		return c.mergeAll(ctx, events, b)
	}
	size := 0
	for i := range c.mapped {
		size += len(c.mapped[i].object) + len(c.mapped[i].key) + 40
	}
	// The bodies of a batch share one piece of memory, as long as it does.
	arena := make([]byte, 0, size)
	b.ops = make([]store.DocOp, 0, len(events))
	b.of = make([]uint64, 0, len(events))
	for i := range events {
		e, m := &events[i], &c.mapped[i]
		if !c.usable(e, m, b) {
			continue
		}
		var body []byte
		if m.object != nil {
			from := len(arena)
			var err error
			if arena, err = appendDocument(arena, m.key, e.TS, m.object); err != nil {
				arena = arena[:from]
				b.dead = append(b.dead, c.l.v.letter(e, err, 1))
				continue
			}
			body = arena[from:len(arena):len(arena)]
		}
		c.op(e, m, body, b)
	}
	return len(events), nil
}

// usable says whether an event changes a document; if not, it is counted.
func (c *changelog) usable(e *event.Event, m *mapped, b *batch) bool {
	if err := c.l.refused[e.Seq]; err != nil && m.err == nil {
		m.err = err
	}
	switch {
	case m.err != nil:
		b.dead = append(b.dead, c.l.v.letter(e, m.err, 1))
	case m.key == "":
		b.counts.noKey++
	default:
		return true
	}
	return false
}

func (c *changelog) op(e *event.Event, m *mapped, body []byte, b *batch) {
	b.ops = append(b.ops, store.DocOp{
		Collection: c.o.Collection + c.l.suffix,
		Doc:        store.Doc{Key: m.key, TS: e.TS, Seq: e.Seq, Version: m.version, Body: body},
	})
	b.of = append(b.of, e.Seq)
}

// mapAll maps events, on all cores if functions were given.
func (c *changelog) mapAll(ctx context.Context, events []event.Event) {
	workers := 1
	if c.o.KeyOf != nil || c.o.Map != nil || c.o.Tombstone != nil || c.o.VersionOf != nil || c.o.Upcast != nil {
		workers = max(min(runtime.GOMAXPROCS(0), len(events)/share), 1)
	}
	var wg sync.WaitGroup
	for w := 1; w < workers; w++ {
		wg.Go(func() { c.mapSome(ctx, events, w, workers) })
	}
	c.mapSome(ctx, events, 0, workers)
	wg.Wait()
}

// mapSome maps every so manieth event.
func (c *changelog) mapSome(ctx context.Context, events []event.Event, from, step int) {
	for i := from; i < len(events) && ctx.Err() == nil; i += step {
		c.mapped[i] = c.mapOne(ctx, &events[i])
	}
}

func (c *changelog) mapOne(ctx context.Context, stored *event.Event) (m mapped) {
	defer func() {
		if p := recover(); p != nil {
			m = mapped{err: fmt.Errorf("panic: %v", p)}
		}
	}()
	e, own := stored, *stored
	null := string(e.Payload) == "null"
	if c.o.Upcast != nil && !null {
		if own, m.err = c.o.Upcast(ctx, own); m.err != nil {
			m.err = fmt.Errorf("upcast: %w", m.err)
			return m
		}
		e = &own
	}
	if c.o.KeyOf != nil {
		if m.key, m.err = c.o.KeyOf(e); m.err != nil {
			m.err = fmt.Errorf("key: %w", m.err)
			return m
		}
	}
	if m.key == "" {
		m.key = stored.Key
	}
	if m.key == "" {
		return m
	}
	if m.err = checkKey(m.key); m.err != nil {
		return m
	}
	if c.o.VersionOf != nil {
		version, ok, err := c.o.VersionOf(e)
		if err != nil {
			m.err = fmt.Errorf("version: %w", err)
			return m
		}
		if ok {
			m.version = &version
		}
	}
	gone := null || store.Tombstone(e.Payload)
	if !gone && c.o.Tombstone != nil {
		if gone, m.err = c.o.Tombstone(e); m.err != nil {
			m.err = fmt.Errorf("tombstone: %w", m.err)
			return m
		}
	}
	if gone {
		return m
	}
	object, valid := []byte(e.Payload), c.o.Upcast == nil
	if c.o.Map != nil {
		mapped, err := c.o.Map(e)
		if err != nil {
			m.err = fmt.Errorf("map: %w", err)
			return m
		}
		object, valid = mapped, false
	}
	if m.object, m.err = compactObject(object, valid); m.err == nil && (len(m.object) == 0 || m.object[0] != '{') {
		m.err = noObject(m.object)
	}
	return m
}

// mergeAll merges what was mapped into the documents.
func (c *changelog) mergeAll(ctx context.Context, events []event.Event, b *batch) (int, error) {
	if c.overlay == nil {
		c.overlay = newOverlay(c.l)
	}
	c.overlay.tidy()
	size := 0
	for i := range events {
		e, m := &events[i], &c.mapped[i]
		if size > readBytes {
			return i, nil // the documents may be far larger than the events
		}
		if !c.usable(e, m, b) {
			continue
		}
		n := docName{c.o.Collection, m.key}
		was, err := c.overlay.get(ctx, n)
		if err != nil {
			return 0, err
		}
		if was.unsure && was.seq > c.l.place.Load() {
			if i > 0 {
				return i, nil // and what is before is committed meanwhile
			}
			if err := c.l.wait(ctx, was.seq); err != nil {
				return 0, err
			}
		}
		if was.unsure {
			c.overlay.forget(n)
			if was, err = c.overlay.get(ctx, n); err != nil {
				return 0, err
			}
		}
		if was.version != nil && m.version != nil && *m.version <= *was.version {
			b.counts.stale++
			continue
		}
		now := known{seq: e.Seq, version: m.version, unsure: was.body == nil && was.seq == 0 && m.version != nil}
		if m.object != nil {
			before := own(was.body)
			if len(before) == 0 {
				before = []byte("{}") // patches of nothing leave their nulls out too
			}
			merged, err := patch.Merge(before, own(m.object))
			if err == nil {
				now.body, err = appendDocument(nil, m.key, e.TS, merged)
			}
			if err != nil {
				b.dead = append(b.dead, c.l.v.letter(e, err, 1))
				continue
			}
		} else if now.version == nil {
			now.version = was.version
		}
		c.overlay.put(n, now)
		size += len(now.body)
		c.op(e, m, now.body, b)
	}
	return len(events), nil
}

// own gives an object without the fields that are ours.
func own(object []byte) []byte {
	if len(object) == 0 || !mayReserve(object) {
		return object
	}
	out := []byte{'{'}
	for m := range members(object) {
		if reserved(m.name()) {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, m.raw...), ':'), m.value...)
	}
	return append(out, '}')
}
