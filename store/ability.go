package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

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
	// among those with a seq below c.Before, and that one too if it is below
	// c.Tombstones and a tombstone. Events without a key stay. What it removes
	// is gone as if it had been trimmed: no read yields it, its id is not
	// known, and its space returns to the disk; seqs are not given again, and
	// Bounds.Last stays. The events of a key go in the order of their seqs: what
	// is left of a key is, at every moment, its events from some seq on. It
	// returns once that is durable, and may be called
	// while events are appended, read and trimmed; a call that ends early has
	// removed some of what it was to remove.
	Compact(ctx context.Context, topic string, c Compaction) (Compacted, error)
}

// Compaction says what to remove.
type Compaction struct {
	Before, Tombstones uint64
	// Key restricts it to the events of one key. "" means all keys.
	Key string
}

// Compacted says what was done.
type Compacted struct {
	// Removed is how many events are gone, Kept how many of those below Before
	// are left, and Bytes about how much space was given back.
	Removed, Kept uint64
	Bytes         int64
	// MaxTS is the largest TS of a tombstone that was removed as the last
	// event of its key; 0 if none was.
	MaxTS int64
}

// Tombstone says whether a payload deletes what its key stands for: null, or an
// object in which _deleted is true.
func Tombstone(payload []byte) bool {
	if string(payload) == "null" {
		return true
	}
	// Few payloads have the word in them, and those are parsed.
	if !bytes.Contains(payload, []byte("_deleted")) {
		return false
	}
	var fields map[string]json.RawMessage
	return json.Unmarshal(payload, &fields) == nil && string(fields["_deleted"]) == "true"
}

// Begins is the ability to let a topic begin with another seq than 1, as one
// whose first events are gone.
type Begins interface {
	// Begin makes seq that of the topic's first event, and makes the topic if
	// need be. Bounds are then as if all below seq had been trimmed. It is
	// durable when Begin returns. A topic that has had an event, or begins
	// elsewhere, is ErrConflict; one that is empty and goes on with seq is left
	// as it is. A seq of 0, or above [MaxBegin], is ErrInvalid.
	Begin(ctx context.Context, topic string, seq uint64) error
}

// MaxBegin is the highest seq that a topic may begin with.
const MaxBegin = 1 << 60

// CheckBegin says what is wrong with the arguments of Begin. Engines share it.
func CheckBegin(topic string, seq uint64) error {
	if err := event.CheckTopic(topic); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if seq == 0 || seq > MaxBegin {
		return fmt.Errorf("begin topic %s: %w: seq %d is not within 1 to %d", topic, ErrInvalid, seq, uint64(MaxBegin))
	}
	return nil
}

// BacksUp is the ability to copy a running store.
type BacksUp interface {
	// Backup writes to dir, which must not exist, a copy that holds
	// everything that was acknowledged when Backup was called.
	Backup(ctx context.Context, dir string) error
}
