package compact

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"promethean/event"
	"promethean/store"
)

// Record is the payload of an event of a snapshot topic: what a key stood for
// after an event of its own. The event has the key, and the headers of the one
// that it is about.
type Record struct {
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload"` // null where the key was deleted
	TS      int64           `json:"ts"`
	// Seq and ID are those of the event, MaxTS the largest TS of all events of
	// the key up to it.
	Seq   uint64   `json:"seq"`
	ID    event.ID `json:"id"`
	MaxTS int64    `json:"max_ts"`
	// UpTo says that every event of the topic up to it is covered: the newest
	// record of its key up to this one says what became of it.
	UpTo uint64 `json:"upto"`
	// Since is the seq before which events may have been trimmed that no
	// record was made of: records of events below it say nothing of later ones.
	Since uint64 `json:"since,omitempty"`
	// High is at least the largest TS of any event up to UpTo.
	High int64 `json:"high"`
	// Deleted makes the record of a deleted key a tombstone itself.
	Deleted bool `json:"_deleted,omitempty"`
}

// ParseRecord reads the payload of an event of a snapshot topic.
func ParseRecord(e *event.Event) (Record, error) {
	var r Record
	if err := json.Unmarshal(e.Payload, &r); err != nil {
		return Record{}, fmt.Errorf("topic %s, seq %d: no snapshot: %w", e.Topic, e.Seq, err)
	}
	return r, nil
}

// Event gives the event of a topic that a record was made of: what it has of it.
func (r *Record) Event(topic string, e *event.Event) event.Event {
	return event.Event{
		ID: r.ID, Seq: r.Seq, TS: r.TS, Topic: topic, Key: r.Key,
		Partition: e.Partition, Headers: e.Headers, Payload: r.Payload,
	}
}

// LastRecord gives the newest record of a snapshot topic or, where there is a
// key, of that key; false if there is none.
func LastRecord(ctx context.Context, log store.Log, topic, key string) (Record, bool, error) {
	for e, err := range log.Read(ctx, store.Query{Topic: topic, Key: key, Reverse: true, Limit: 1}) {
		if err != nil {
			return Record{}, false, fmt.Errorf("read topic %s: %w", topic, err)
		}
		r, err := ParseRecord(&e)
		return r, err == nil, err
	}
	return Record{}, false, nil
}

// Defaults of the settings.
const (
	defaultEvery      = 30 * time.Second
	defaultTombstones = 24 * time.Hour
)

// SnapshotTopic is where the snapshots of a topic with these settings go; ""
// if there are none.
func (set *Settings) SnapshotTopic(topic string) string {
	switch {
	case set.Snapshot == nil || !set.Compaction:
		return ""
	case set.Snapshot.Topic != "":
		return set.Snapshot.Topic
	}
	return topic + ".snapshot"
}

// grace is how long tombstones stay.
func (set *Settings) grace() time.Duration {
	switch {
	case set.Tombstones > 0:
		return time.Duration(set.Tombstones)
	case set.History > 0:
		return time.Duration(set.History)
	}
	return defaultTombstones
}

// every is how often snapshots are written.
func (set *Settings) every() time.Duration {
	if set.Snapshot != nil && set.Snapshot.Every > 0 {
		return time.Duration(set.Snapshot.Every)
	}
	return defaultEvery
}
