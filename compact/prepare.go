package compact

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"promethean/event"
	"promethean/store"
)

// ErrUnsupported says that the engine cannot compact.
var ErrUnsupported = errors.New("this engine cannot remove single events")

func (c *Compactor) unsupported() error {
	return fmt.Errorf("%w, so that compaction is not for topics on it", ErrUnsupported)
}

// Prepare judges settings of a topic before they are stored: it refuses those
// that contradict each other or those of other topics, and those that would do
// nothing.
func (c *Compactor) Prepare(ctx context.Context, topic string, was, now store.Settings) error {
	old, err := SettingsOf(was)
	if err != nil {
		return err
	}
	set, err := SettingsOf(now)
	if err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{event.ErrInvalidArgument}, args...)...)
	}
	all := c.topics.Load()
	if source, ok := all.source[topic]; ok {
		switch {
		case set.Snapshot != nil:
			return bad("snapshot: %s holds the snapshots of %s, and has none of its own", topic, source)
		case !reflect.DeepEqual(old, set):
			return bad("compaction: %s holds the snapshots of %s, whose settings it follows", topic, source)
		case now.Retention > 0 || now.MaxBytes > 0:
			return bad("retention, max_bytes: %s holds the snapshots of %s, which stay", topic, source)
		}
	}
	if !set.Compaction {
		switch {
		case set.History > 0:
			return bad("history: topic %s is not compacted, so that it keeps all events: set compaction too", topic)
		case set.Tombstones > 0:
			return bad("tombstones: topic %s is not compacted, so that it keeps them: set compaction too", topic)
		case set.Snapshot != nil:
			return bad("snapshot: topic %s is not compacted: set compaction too", topic)
		}
		return nil
	}
	if event.ReservedTopic(topic) {
		return bad("compaction: %s is the hub's own topic", topic)
	}
	if c.compacts == nil {
		return c.unsupported()
	}
	if set.Snapshot == nil {
		return nil
	}
	return c.prepareSnapshot(ctx, topic, &set, all, bad)
}

// prepareSnapshot judges where snapshots go.
func (c *Compactor) prepareSnapshot(ctx context.Context, topic string, set *Settings, all *topics, bad func(string, ...any) error) error {
	to := set.SnapshotTopic(topic)
	if err := event.CheckTopic(to); err != nil {
		return fmt.Errorf("snapshot.topic: %w", err)
	}
	other, taken := all.source[to]
	target, compacted := all.settings[to]
	switch {
	case event.ReservedTopic(to):
		return bad("snapshot.topic: %s is the hub's own topic", to)
	case to == topic:
		return bad("snapshot.topic: the snapshots of %s must go to another topic", topic)
	case taken && other != topic:
		return bad("snapshot.topic: %s holds the snapshots of %s", to, other)
	case compacted && target.Snapshot != nil:
		return bad("snapshot.topic: %s has snapshots of its own", to)
	}
	if taken {
		return nil // it is as it was
	}
	for e, err := range c.hub.Log().Read(ctx, store.Query{Topic: to, Reverse: true, Limit: 1}) {
		if err != nil {
			return err
		}
		if r, err := ParseRecord(&e); err != nil || r.Seq == 0 || r.Key != e.Key {
			return bad("snapshot.topic: %s has events that are no snapshots", to)
		}
	}
	return nil
}
