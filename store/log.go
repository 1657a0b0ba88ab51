package store

import (
	"context"
	"iter"
	"time"

	"promethean/event"
)

// Log is one ordered, durable, idempotent log per topic.
type Log interface {
	// Append stores the batch and answers with one [Appended] for each event,
	// in the order given. It returns once everything is durable.
	//
	// Events need an id, a topic and a payload; Seq is ignored and given by
	// the engine. A broken rule is an [*event.RuleError] inside an
	// [*EventError] that names the event's index, and nothing is stored.
	//
	// Expectations and settlements are judged in commit order, against all
	// that was accepted before, durable or not. A batch whose events are all
	// duplicates is a retry: its expectations are not judged again.
	//
	// A settlement may name events that are pending, but none of its own
	// batch. A batch without events and settlements does nothing.
	//
	// If ctx ends while the batch waits, Append returns ctx.Err(); the batch
	// may or may not be stored. Retrying with the same ids is safe.
	Append(ctx context.Context, b Batch) ([]Appended, error)

	// Read yields the events that q selects, in seq order, and then ends; it
	// does not wait for new ones. It covers at least everything that was
	// visible when the iteration began. An error ends the iteration. What has
	// been trimmed is left out silently: compare with Bounds.
	//
	// A yielded event is the caller's for good. Its strings and payload may
	// share memory with its neighbours; they must not be modified.
	Read(ctx context.Context, q Query) iter.Seq2[event.Event, error]

	// Bounds says what a topic holds. An unknown topic is empty.
	Bounds(ctx context.Context, topic string) (Bounds, error)

	// LocateID gives the seq of a retained event, or ErrNotFound.
	LocateID(ctx context.Context, topic string, id event.ID) (uint64, error)

	// LocateTime gives the smallest retained seq whose event has TS at or
	// after ts, or one past the last seq if there is none. Timestamps may run
	// backwards along the log: events after the answer may be older than ts.
	LocateTime(ctx context.Context, topic string, ts int64) (uint64, error)

	// Trim removes all events of topic with a seq below before, durably when
	// it returns. Seqs go on where they were. Trimming beyond the end empties
	// the topic; an unknown topic is left unknown.
	Trim(ctx context.Context, topic string, before uint64) error

	// SetTopic stores the topic's settings, durably when it returns, and makes
	// the topic if need be. A bad name is event.ErrInvalidTopic.
	SetTopic(ctx context.Context, topic string, s Settings) error

	// Topics yields all topics by name in ascending order.
	Topics(ctx context.Context) iter.Seq2[Topic, error]

	// Watch wakes a reader after events of the topics have become visible; no
	// topics means all of them. Signals are merged: one wake-up stands for
	// any number of events.
	Watch(topics ...string) *Watch

	// Close answers what waits, then releases everything. Calls after Close,
	// and reads that run into it, fail with ErrClosed.
	Close() error
}

// Batch is what one Append stores as a whole.
type Batch struct {
	Events []event.Event
	// Expect lists conditions; if one fails, nothing is stored and the error
	// is a [*SeqConflictError].
	Expect []Expect
	// Settle moves groups. Every engine takes settlements in a batch without
	// events: each is a step of its own then, in the order given, and if one
	// is refused those before it stand. With the ability Settles they go
	// together, with events beside them too.
	Settle []Settlement
	// Async returns as soon as seqs are given, before the batch is durable.
	// After a crash it may be missing, though never in part.
	Async bool
	// Internal marks records that the hub itself writes, such as dead
	// letters: their payload may be twice the limit plus 64 KiB.
	Internal bool
}

// Expect is a condition on the log at the moment of commit: that Seq is the
// last seq of the topic or, where Key is set, of that key in the topic. Zero
// means that there is none.
type Expect struct {
	Topic string
	Key   string
	Seq   uint64
}

// Appended answers for one event of a batch.
type Appended struct {
	Seq uint64
	// Duplicate says that the id was known when the call came: Seq is that of the
	// stored event. An event that the call itself stored is none, however often
	// the engine had to try.
	Duplicate bool
	// Original is the stored event of a duplicate. It is nil in the rare cases
	// that it was trimmed before it could be read, or that an asynchronous
	// append answers before it is durable.
	Original *event.Event
}

// Query selects events of one topic.
type Query struct {
	Topic string
	// After excludes seqs up to and including it.
	After uint64
	// Until excludes seqs above it. 0 means no bound.
	Until uint64
	// Key keeps the events of one key. "" means all.
	Key string
	// Partition keeps the events of one partition. Unset means all.
	Partition event.Partition
	// Reverse yields from the highest seq down.
	Reverse bool
	// Limit ends the iteration after so many events. 0 means no limit.
	Limit int
}

// Bounds is the extent of a topic.
type Bounds struct {
	// First is the smallest retained seq, Last+1 if the topic is empty.
	First uint64
	// Last is the highest seq ever visible, 0 if there was none.
	Last uint64
	// Bytes is about what the retained events take on disk.
	Bytes int64
}

// Empty says whether the topic holds no event.
func (b Bounds) Empty() bool { return b.First > b.Last }

// Settings are what an engine must know about a topic. The zero value keeps
// everything for ever in one partition with durable appends.
type Settings struct {
	// Retention is the age, by commit time, at which events are removed.
	// 0 keeps them for ever.
	Retention time.Duration
	// MaxBytes is the size above which the oldest events are removed.
	// 0 means no limit.
	MaxBytes int64
	// Partitions is the partition count. 0 means 1.
	Partitions int
	// Async makes every append to the topic asynchronous, as Batch.Async does
	// when all topics of a batch say so.
	Async bool
	// Meta belongs to the layers above; engines keep it as it is.
	Meta []byte
}

// Topic is one row of Topics.
type Topic struct {
	Name     string
	Bounds   Bounds
	Settings Settings
}
