package store

import "context"

// AtomicTopics is the ability to append one batch over several topics.
type AtomicTopics interface{ AppendsAcrossTopics() }

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
