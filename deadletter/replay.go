// Package deadletter works on events that have failed for good. A group puts
// them into the topic dlq.<topic> as {topic, group, original, err, ts,
// attempts}; here they are listed, and replayed once their cause is mended.
//
// A dead letter is replayed once. Which ones were is kept in the log, so that
// it survives restarts.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"promethean"
	"promethean/event"
	"promethean/group"
)

// DefaultLimit is how many dead letters Replay takes at a time.
const DefaultLimit = 1000

// Target says where dead letters are replayed to.
type Target string

const (
	// ToTopic publishes the originals to their topic again, as new events:
	// every group gets them. It is the default.
	ToTopic Target = "topic"
	// ToGroup hands the originals to the group alone that they failed in,
	// ahead of later events of their keys. Parked keys are always replayed so.
	ToGroup Target = "group"
)

// Options of a replay. The zero value replays up to 1000 dead letters of all
// groups.
type Options struct {
	// Group keeps the dead letters of one group.
	Group string
	// IDs keeps those with these ids, their own or their originals'.
	IDs []event.ID
	// Limit is how many are replayed at most; 0 means DefaultLimit.
	Limit int
	// To says where to. Default ToTopic.
	To Target
	// Transform changes an original before it is replayed. An error ends the
	// replay; what came before it is replayed. Topic, key and seq stay.
	Transform func(event.Event) (event.Event, error)
}

// Report says what a replay did.
type Report struct {
	// Replayed is how many dead letters were replayed, Remaining how many of
	// those asked for are left.
	Replayed, Remaining int
}

// Replay replays the dead letters of a topic, oldest first.
func Replay(ctx context.Context, hub *promethean.Hub, topic string, o Options) (Report, error) {
	var rep Report
	if err := event.CheckTopic(topic); err != nil {
		return rep, fmt.Errorf("replay dead letters: %w", err)
	}
	switch {
	case o.Limit < 0:
		return rep, fmt.Errorf("replay dead letters of %s: %w: limit %d is negative", topic, group.ErrInvalid, o.Limit)
	case o.Limit == 0:
		o.Limit = DefaultLimit
	}
	switch o.To {
	case "", ToTopic, ToGroup:
	default:
		return rep, fmt.Errorf("replay dead letters of %s: %w: to %q is none of topic, group", topic, group.ErrInvalid, o.To)
	}
	// What is chosen is fixed first: a replay to the topic may fail again and
	// add to what is read.
	var chosen []group.LetterAt
	err := hub.Engine().Letters(ctx, topic, o.Group, func(l group.LetterAt) bool {
		if len(o.IDs) > 0 && !slices.Contains(o.IDs, l.ID) && !slices.Contains(o.IDs, l.Original.ID) {
			return true
		}
		if len(chosen) == o.Limit {
			rep.Remaining++
			return true
		}
		chosen = append(chosen, l)
		return true
	})
	if err != nil {
		return rep, fmt.Errorf("replay dead letters of %s: %w", topic, err)
	}
	for i, l := range chosen {
		if err := replay(ctx, hub, l, &o); err != nil {
			rep.Remaining += len(chosen) - i
			return rep, fmt.Errorf("replay dead letter %s of %s: %w", l.ID, topic, err)
		}
		rep.Replayed++
	}
	return rep, nil
}

// replaySpace is the namespace of the ids of what is published again.
var replaySpace = event.NameID(event.ID{}, "promethean replay")

func replay(ctx context.Context, hub *promethean.Hub, l group.LetterAt, o *Options) error {
	e := l.Original
	if o.Transform != nil {
		was := e
		var err error
		if e, err = o.Transform(e.Clone()); err != nil {
			return fmt.Errorf("transform: %w", err)
		}
		e.Topic, e.Key, e.Seq, e.ID = was.Topic, was.Key, was.Seq, was.ID
	}
	if l.Parked || o.To == ToGroup {
		if o.Transform != nil {
			var err error
			if l, err = hub.Engine().Rewrite(ctx, l, e); err != nil {
				return err
			}
		}
		return hub.Engine().Redeliver(ctx, l.Topic, l.Group, []group.LetterAt{l})
	}
	// It follows from the dead letter, so that a replay that was cut off and is
	// done again publishes nothing twice.
	e.ID, e.Seq = event.NameID(replaySpace, l.ID.String()), 0
	e.CausedBy = append(slices.Clone(e.CausedBy), l.ID.String())
	e.Headers = e.Headers.Set("x-replayed-from", group.LetterTopic(l.Topic))
	return hub.Engine().Republish(ctx, l.Topic, l.Group, []group.LetterAt{l}, []event.Event{e})
}

// Count is how many dead letters a group has on a topic.
type Count struct {
	Topic, Group string
	Letters      int
}

// Counts says how many dead letters there are, of all topics, that were not
// replayed.
func Counts(ctx context.Context, hub *promethean.Hub) ([]Count, error) {
	var out []Count
	for t, err := range hub.Topics(ctx) {
		if err != nil {
			return nil, err
		}
		if len(t.Name) <= len(group.LetterPrefix) || t.Name[:len(group.LetterPrefix)] != group.LetterPrefix {
			continue
		}
		topic := t.Name[len(group.LetterPrefix):]
		n := make(map[string]int)
		if err := hub.Engine().Letters(ctx, topic, "", func(l group.LetterAt) bool {
			n[l.Group]++
			return true
		}); err != nil {
			return nil, err
		}
		for g, k := range n {
			out = append(out, Count{topic, g, k})
		}
	}
	slices.SortFunc(out, func(a, b Count) int {
		if a.Topic != b.Topic {
			if a.Topic < b.Topic {
				return -1
			}
			return 1
		}
		if a.Group < b.Group {
			return -1
		}
		return 1
	})
	return out, nil
}

// Subscribe is Bus.Subscribe whose events go to the dead letters after so many
// attempts. It stands for the wrapper of the same name elsewhere: here every
// group has dead letters.
func Subscribe(ctx context.Context, bus promethean.Bus, topic, name string, maxAttempts int, h promethean.Handler, opts ...promethean.SubscribeOption) (promethean.Subscription, error) {
	if maxAttempts < 1 {
		return nil, errors.New("subscribe with dead letters: maxAttempts must be at least 1")
	}
	return bus.Subscribe(ctx, topic, name, h, append(slices.Clone(opts), promethean.MaxAttempts(maxAttempts))...)
}
