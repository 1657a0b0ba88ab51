package compact

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	"promethean/event"
	"promethean/store"
)

// What is held in memory of one stretch of the topic, and what is appended at a
// time.
const (
	stretchKeys  = 50_000
	stretchBytes = 32 << 20
	batchEvents  = 256
	batchBytes   = 2 << 20
)

// recordSpace is the name space of the ids of records.
var recordSpace = event.NameID(event.ID{}, "snapshots")

// snapshotter is how far the snapshots of a topic are.
type snapshotter struct {
	topic string // where they are; "": not looked up yet
	// covered and since are as in Record, high is the largest TS up to covered.
	covered, since uint64
	high           int64
	last           uint64    // seq of the snapshot topic
	at             time.Time // when the last round was
	// known is up to where there may be records that were written before we
	// came, though covered does not say so.
	known uint64
}

// changed is a key of a stretch.
type changed struct {
	e     event.Event
	maxTS int64
}

// snapshots writes records of all keys that have changed, if it is time, and
// says how many.
func (w *worker) snapshots(ctx context.Context, now time.Time, to string, set *Settings, force bool) (n int, err error) {
	s := &w.snap
	if s.topic != to {
		if err := w.resume(ctx, to); err != nil {
			return 0, err
		}
	} else if !force && now.Sub(s.at) < set.every() {
		return 0, nil
	}
	if err := w.makeTopic(ctx, to, set); err != nil {
		return 0, err
	}
	b, err := w.c.hub.Log().Bounds(ctx, w.topic)
	if err != nil {
		return 0, err
	}
	for s.covered < b.Last {
		wrote, err := w.stretch(ctx, b.Last)
		n += wrote
		if err != nil {
			s.topic = "" // what is stored is looked at again
			return n, err
		}
	}
	s.at = now
	return n, nil
}

// resume finds out how far the snapshots are.
func (w *worker) resume(ctx context.Context, to string) error {
	b, err := w.c.hub.Log().Bounds(ctx, to)
	if err != nil {
		return err
	}
	source, err := w.c.hub.Log().Bounds(ctx, w.topic)
	if err != nil {
		return err
	}
	r, _, err := LastRecord(ctx, w.c.hub.Log(), to, "")
	if err != nil {
		return err
	}
	w.snap = snapshotter{topic: to, covered: r.UpTo, since: r.Since, high: r.High, last: b.Last, known: source.Last}
	return nil
}

// makeTopic sees to it that the snapshot topic has the settings that follow
// from those of its source.
func (w *worker) makeTopic(ctx context.Context, to string, set *Settings) error {
	was := w.c.hub.Settings(to)
	now := was
	now.Partitions = w.c.hub.Settings(w.topic).Partitions
	now.Retention, now.MaxBytes, now.Async = 0, 0, false
	if err := (Settings{Compaction: true, History: set.History, Tombstones: set.Tombstones}).Put(&now); err != nil {
		return err
	}
	if was.Partitions == now.Partitions && was.Retention == 0 && was.MaxBytes == 0 && !was.Async && string(was.Meta) == string(now.Meta) {
		return nil
	}
	return w.c.hub.SetTopic(ctx, to, now)
}

// stretch covers events up to a seq, or fewer if their keys are too many to hold
// in memory.
func (w *worker) stretch(ctx context.Context, last uint64) (int, error) {
	s := &w.snap
	keys := make(map[string]*changed)
	size, end, high := 0, last, s.high
	for e, err := range w.c.hub.Log().Read(ctx, store.Query{Topic: w.topic, After: s.covered, Until: last}) {
		if err != nil {
			return 0, err
		}
		high = max(high, e.TS)
		if e.Key == "" {
			continue // of before the topic was compacted
		}
		c := keys[e.Key]
		if c == nil {
			c = &changed{}
			keys[e.Key] = c
		} else {
			size -= c.e.Size()
		}
		c.e, c.maxTS = e.Clone(), max(c.maxTS, e.TS)
		size += c.e.Size()
		if len(keys) >= stretchKeys || size >= stretchBytes {
			end = e.Seq
			break
		}
	}
	// What was trimmed before we came to it is in no record.
	b, err := w.c.hub.Log().Bounds(ctx, w.topic)
	if err != nil {
		return 0, err
	}
	if b.First > s.covered+1 && (w.mark.Trimmed || w.mark.TrimmedBy(b.First, w.c.hub.Settings(w.topic))) {
		s.since = max(s.since, b.First)
	}
	list := slices.SortedFunc(maps.Values(keys), func(a, b *changed) int { return cmp.Compare(a.e.Seq, b.e.Seq) })
	n, err := w.write(ctx, list, end, high)
	if err != nil {
		return n, err
	}
	s.covered, s.high = end, high
	return n, nil
}

// write appends the records of a stretch. The last of them says that the stretch
// is covered. It says how many there were.
func (w *worker) write(ctx context.Context, list []*changed, end uint64, high int64) (n int, err error) {
	s := &w.snap
	space := event.NameID(recordSpace, s.topic)
	partitions := max(w.c.hub.Settings(s.topic).Partitions, 1)
	batch, size := make([]event.Event, 0, min(len(list), batchEvents)), 0
	for i, c := range list {
		r := Record{
			Key: c.e.Key, Payload: c.e.Payload, TS: c.e.TS, Seq: c.e.Seq, ID: c.e.ID,
			MaxTS: c.maxTS, UpTo: s.covered, Since: s.since, High: high,
		}
		if i == len(list)-1 {
			r.UpTo = end
		}
		if store.Tombstone(c.e.Payload) {
			r.Payload, r.Deleted = json.RawMessage("null"), true
		}
		var before Record
		if r.MaxTS < s.high || r.Seq <= s.known {
			// An earlier event of the key may be later, or its record there.
			if before, _, err = LastRecord(ctx, w.c.hub.Log(), s.topic, r.Key); err != nil {
				return n, err
			}
			r.MaxTS = max(r.MaxTS, before.MaxTS)
		}
		if before.Seq < r.Seq {
			text, err := encode(r)
			if err != nil {
				return n, err
			}
			id := event.NameID(space, strconv.FormatUint(r.Seq, 10))
			e := event.Event{
				ID: id, TS: w.c.o.Now().UnixMilli(), Topic: s.topic, Key: r.Key, Headers: c.e.Headers, Payload: text,
				Partition: event.PartitionOf(event.PartitionFor(r.Key, id, partitions)),
			}
			batch, size = append(batch, e), size+e.Size()
		}
		if len(batch) == 0 || len(batch) < batchEvents && size < batchBytes && i < len(list)-1 {
			continue
		}
		if err := w.append(ctx, batch); err != nil {
			return n, err
		}
		n += len(batch)
		batch, size = batch[:0], 0
	}
	return n, nil
}

// append stores records, if nobody else has.
func (w *worker) append(ctx context.Context, batch []event.Event) error {
	got, err := w.c.hub.Log().Append(ctx, store.Batch{
		Events: batch, Expect: []store.Expect{{Topic: w.snap.topic, Seq: w.snap.last}}, Internal: true,
	})
	if err != nil {
		return err
	}
	for _, a := range got {
		if !a.Duplicate {
			w.snap.last = max(w.snap.last, a.Seq)
		}
	}
	return nil
}
