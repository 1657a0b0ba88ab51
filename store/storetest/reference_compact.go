package storetest

import (
	"context"
	"slices"

	"promethean/event"
	"promethean/store"
)

// Compact implements [store.Compacts].
func (r *Reference) Compact(ctx context.Context, topic string, c store.Compaction) (store.Compacted, error) {
	if err := r.enter(ctx); err != nil {
		return store.Compacted{}, err
	}
	defer r.mu.Unlock()
	l := r.topic(topic)
	gone := superseded(l.events, c)
	var done store.Compacted
	l.events = slices.DeleteFunc(slices.Clone(l.events), func(e event.Event) bool {
		last, dead := gone[e.Seq]
		switch {
		case dead:
			delete(l.seqs, e.ID)
			l.bytes -= sizeOf(&e)
			done.Removed++
			done.Bytes += sizeOf(&e)
			if last {
				done.MaxTS = max(done.MaxTS, e.TS)
			}
		case e.Seq < c.Before:
			done.Kept++
		}
		return dead
	})
	return done, nil
}

// superseded says which events of a log a compaction removes; the value says
// that the event is a tombstone and the last of its key.
func superseded(log []event.Event, c store.Compaction) map[uint64]bool {
	last := make(map[string]*event.Event)
	gone := make(map[uint64]bool)
	for i := range log {
		e := &log[i]
		if e.Key == "" || c.Key != "" && c.Key != e.Key || e.Seq >= c.Before {
			continue
		}
		if before := last[e.Key]; before != nil {
			gone[before.Seq] = false
		}
		last[e.Key] = e
	}
	for _, e := range last {
		if e.Seq < c.Tombstones && store.Tombstone(e.Payload) {
			gone[e.Seq] = true
		}
	}
	return gone
}
