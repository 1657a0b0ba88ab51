package state

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"promethean/compact"
	"promethean/event"
	"promethean/store"
)

// Assigned brings a partition here: it makes the changelog if need be, and reads
// all keys of the partition from it, or from its snapshots and what came after
// them. It is made for
// partition.OnAssigned. A partition that is here is read anew; until that is done
// it stays as it was.
func (t *Table[K, V]) Assigned(ctx context.Context, n int) error {
	if err := t.t.assign(ctx, n); err != nil {
		return fmt.Errorf("table %s, partition %d: restore: %w", t.t.name, n, err)
	}
	return nil
}

// Revoked forgets a partition. It is made for partition.OnRevoked, and does
// nothing about one that is not here. All changes are durable already.
func (t *Table[K, V]) Revoked(_ context.Context, n int) error {
	t.t.mu.Lock()
	defer t.t.mu.Unlock()
	delete(t.t.parts, n)
	delete(t.t.restoring, n)
	return nil
}

func (t *table) assign(ctx context.Context, n int) error {
	count, err := t.partitions(ctx)
	if err != nil {
		return err
	}
	if n < 0 || n >= count {
		return fmt.Errorf("%w: there are %d partitions", event.ErrInvalidArgument, count)
	}
	if err := t.prepare(ctx, count); err != nil {
		return err
	}
	p := &part{n: n, count: count, records: make(map[string]record)}
	t.mu.Lock()
	t.restoring[n] = p // one that was on its way is late
	t.mu.Unlock()
	err = t.restore(ctx, p)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.restoring[n] != p {
		return fmt.Errorf("the partition was assigned or revoked again meanwhile: %w", ErrNotAssigned)
	}
	delete(t.restoring, n)
	if err != nil {
		return err
	}
	t.count, t.parts[n] = count, p
	return nil
}

// partitions is how many partitions there are.
func (t *table) partitions(ctx context.Context) (int, error) {
	switch {
	case t.o.Partitions > 0:
		return t.o.Partitions, nil
	case t.o.Group != "":
		plan, err := t.hub.Engine().Plan(ctx, t.o.Source, t.o.Group)
		if err != nil {
			return 0, fmt.Errorf("how group %s of topic %s is divided: %w", t.o.Group, t.o.Source, err)
		}
		return max(plan.Count, 1), nil
	case t.o.Source != "":
		return max(t.hub.Settings(t.o.Source).Partitions, 1), nil
	}
	return 1, nil
}

// forEver is an age that no tombstone reaches.
const forEver = compact.Age(100 * 365 * 24 * time.Hour)

// prepare sees to it that the changelog has the settings that it needs. What
// else it has stays.
func (t *table) prepare(ctx context.Context, count int) error {
	was := t.hub.Settings(t.o.Changelog)
	now := was
	now.Partitions, now.Retention, now.MaxBytes, now.Async = count, 0, 0, false
	if _, ok := store.As[store.Compacts](t.hub.Log()); ok {
		set, err := compact.SettingsOf(was)
		if err != nil {
			return fmt.Errorf("topic %s: %w", t.o.Changelog, err)
		}
		set.Compaction, set.Tombstones = true, forEver
		if t.o.Tombstones > 0 {
			set.Tombstones = compact.Age(t.o.Tombstones)
		}
		if set.Snapshot == nil {
			set.Snapshot = &compact.Snapshot{}
		}
		if err := set.Put(&now); err != nil {
			return fmt.Errorf("topic %s: %w", t.o.Changelog, err)
		}
	}
	if was.Partitions == now.Partitions && was.Retention == 0 && was.MaxBytes == 0 && !was.Async && bytes.Equal(was.Meta, now.Meta) {
		return nil
	}
	return t.hub.SetTopic(ctx, t.o.Changelog, now)
}

// bulky is how many times as large as its snapshots a changelog must be for them
// to be the quicker way: they take longer to read, byte for byte.
const bulky = 4

// cold gives where to start. The changelog alone has all there is; of one that is
// not compacted, or has a history, that may be much more than the last records.
func (t *table) cold(ctx context.Context) (*compact.Cold, error) {
	c, err := compact.ColdStart(ctx, t.hub, t.o.Changelog)
	if err != nil || c.After == 0 {
		return c, err
	}
	set, err := compact.SettingsOf(t.hub.Settings(t.o.Changelog))
	if err != nil {
		return nil, err
	}
	var size [2]int64
	for i, topic := range []string{t.o.Changelog, set.SnapshotTopic(t.o.Changelog)} {
		b, err := t.hub.Log().Bounds(ctx, topic)
		if err != nil {
			return nil, err
		}
		size[i] = b.Bytes
	}
	if size[0] < bulky*size[1] {
		return &compact.Cold{}, nil
	}
	return c, nil
}

// restore reads a partition: snapshots first, then the records after them. Where
// a record is stored does not matter, only its key does: there may have been
// another number of partitions when it was written.
func (t *table) restore(ctx context.Context, p *part) error {
	began := time.Now()
	progress := &progress{t: t, p: p, began: began, told: began}
	cold, err := t.cold(ctx)
	if err != nil {
		return err
	}
	cold.Keep = p.mine
	for e, err := range cold.All(ctx) {
		if err != nil {
			return err
		}
		t.take(p, &e)
		progress.step(e.Seq)
	}
	// What others append while this reads is read too: compaction may have
	// removed what it superseded.
	for last := cold.After; ; {
		from := last
		for e, err := range t.hub.Read(ctx, store.Query{Topic: t.o.Changelog, After: from}) {
			if err != nil {
				return fmt.Errorf("read topic %s: %w", t.o.Changelog, err)
			}
			if last = e.Seq; p.mine(e.Key) {
				t.take(p, &e)
			}
			progress.step(e.Seq)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if last == from {
			break
		}
	}
	progress.done()
	return nil
}

// take puts a record into a partition that nobody else sees yet.
func (t *table) take(p *part, e *event.Event) {
	r := parse(e)
	if r.alien {
		t.o.Logger.Warn("a record of a changelog is not the table's", "table", t.name, "topic", t.o.Changelog, "key", e.Key, "seq", e.Seq)
	}
	r.value = bytes.Clone(r.value)
	p.put(strings.Clone(e.Key), r)
}

// tellEvery is how often a restore that takes long says how far it is.
const tellEvery = 5 * time.Second

// progress tells how far a restore is.
type progress struct {
	t           *table
	p           *part
	n           int
	began, told time.Time
}

func (g *progress) step(seq uint64) {
	if g.n++; g.n%4096 != 0 || time.Since(g.told) < tellEvery {
		return
	}
	g.told = time.Now()
	g.t.o.Logger.Info("a partition of a table is being restored", "table", g.t.name, "partition", g.p.n,
		"records", g.n, "seq", seq, "keys", len(g.p.records), "for", time.Since(g.began).Round(time.Millisecond))
}

func (g *progress) done() {
	g.t.o.Logger.Info("a partition of a table is restored", "table", g.t.name, "partition", g.p.n,
		"records", g.n, "keys", len(g.p.records), "took", time.Since(g.began).Round(time.Millisecond))
}
