package store

import (
	"context"

	"promethean/event"
)

// AtomicTopics is the ability to append one batch over several topics.
type AtomicTopics interface{ AppendsAcrossTopics() }

// Shared is the ability to be open in several processes at a time. Who works
// on a group must own it then: see [Leases], which such an engine has.
type Shared interface{ SharedByProcesses() }

// Bounded is an engine with limits to one batch beyond those of its events.
type Bounded interface {
	// MaxBatch is how many events one batch may have, and how many bytes their
	// keys, headers and payloads together. A larger one is [ErrTooLarge].
	MaxBatch() (events, bytes int)
}

// Cut cuts events into runs of at most so many events and, but for one that is
// alone, so many bytes, in order.
func Cut(list []event.Event, events, bytes int) (out [][]event.Event) {
	for len(list) > 0 {
		n, size := 0, 0
		for n < len(list) && n < events && (n == 0 || size+list[n].Size() <= bytes) {
			size += list[n].Size()
			n++
		}
		out, list = append(out, list[:n]), list[n:]
	}
	return out
}

// Compacts is the ability to remove single superseded events.
type Compacts interface {
	// Compact removes, of every key of the topic, all events but the last
	// among those with a seq below before.
	Compact(ctx context.Context, topic string, before uint64) error
}

// BacksUp is the ability to copy a running store.
type BacksUp interface {
	// Backup writes to dir, which must not exist, a copy that holds
	// everything that was acknowledged when Backup was called.
	Backup(ctx context.Context, dir string) error
}
