package compact

import (
	"context"
	"crypto/sha256"
	"fmt"
	"iter"

	"promethean"
	"promethean/event"
	"promethean/store"
)

// Cold is where to start with a topic that has snapshots: first with what they
// hold, then with the events after a seq.
type Cold struct {
	// After is the seq up to which the snapshots stand for the topic.
	After uint64
	// Keep says which keys All yields. Default nil: all of them.
	Keep func(key string) bool

	hub             *promethean.Hub
	topic, snapshot string
	until           uint64
}

// ColdStart finds where to start with a topic. If it has no snapshots, or none
// yet, After is 0 and All is empty: start with its first event.
//
// All and the events after After together give the state of every key: nothing
// is left out, and no event comes twice. Read those events soon: a tombstone
// among them goes after the topic's grace time, and what it deleted may be among
// the snapshots.
func ColdStart(ctx context.Context, hub *promethean.Hub, topic string) (*Cold, error) {
	set, err := SettingsOf(hub.Settings(topic))
	if err != nil {
		return nil, err
	}
	c := &Cold{hub: hub, topic: topic, snapshot: set.SnapshotTopic(topic)}
	if c.snapshot == "" {
		return c, nil
	}
	for e, err := range hub.Read(ctx, store.Query{Topic: c.snapshot, Reverse: true, Limit: 1}) {
		if err != nil {
			return nil, fmt.Errorf("cold start of topic %s: %w", topic, err)
		}
		r, err := ParseRecord(&e)
		if err != nil {
			return nil, fmt.Errorf("cold start of topic %s: %w", topic, err)
		}
		c.After, c.until = r.UpTo, e.Seq
	}
	return c, nil
}

// All yields, for every key that is not deleted, the last event that the
// snapshots know of, the newest first. Of it they have the key, the id, seq, ts,
// headers and payload. It holds some 50 bytes a key in memory.
func (c *Cold) All(ctx context.Context) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		if c.until == 0 {
			return
		}
		seen := make(map[[16]byte]struct{})
		for e, err := range c.hub.Read(ctx, store.Query{Topic: c.snapshot, Until: c.until, Reverse: true}) {
			if err == nil && c.Keep != nil && !c.Keep(e.Key) {
				continue
			}
			var r Record
			if err == nil {
				r, err = ParseRecord(&e)
			}
			if err != nil {
				yield(event.Event{}, fmt.Errorf("cold start of topic %s: %w", c.topic, err))
				return
			}
			if r.Seq > c.After {
				continue // it comes with the events
			}
			sum := sha256.Sum256([]byte(r.Key))
			key := [16]byte(sum[:16])
			if _, done := seen[key]; done {
				continue
			}
			seen[key] = struct{}{}
			if r.Deleted {
				continue
			}
			if !yield(r.Event(c.topic, &e), nil) {
				return
			}
		}
	}
}
