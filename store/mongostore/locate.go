package mongostore

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/event"
	"promethean/store"
)

func uuid(id event.ID) bson.Binary { return bson.Binary{Subtype: binUUID, Data: id[:]} }

// findIDs adds to into the events of a topic that have one of the ids and are
// retained.
func (s *Store) findIDs(ctx context.Context, topic string, ids []event.ID, into map[event.ID]*event.Event) error {
	const most = 500
	for part := range slices.Chunk(ids, most) {
		list := make(bson.A, len(part))
		wanted := make(map[event.ID]bool, len(part))
		for i, id := range part {
			list[i], wanted[id] = uuid(id), true
		}
		found, err := s.holdingIDs(ctx, topic, list)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			continue
		}
		d, err := s.topicDoc(ctx, topic) // read after the commits: see the package doc
		if err != nil {
			return err
		}
		for _, c := range found {
			for i := range c.events {
				e := &c.events[i]
				if d.hides(c) || !d.shows(e.seq) || !wanted[e.id()] {
					continue
				}
				decoded, err := e.decode(topic)
				if err != nil {
					return err
				}
				decoded = decoded.Clone() // the commit may be large
				into[decoded.ID] = &decoded
			}
		}
	}
	return nil
}

// holdingIDs reads the commits in which ids stand. Of a single id, and of a
// few, it has the server leave out the other events.
func (s *Store) holdingIDs(ctx context.Context, topic string, ids bson.A) (list []*commit, err error) {
	const few = 8
	err = s.do(ctx, func(ctx context.Context) error {
		var found *mongo.Cursor
		var err error
		switch {
		case len(ids) == 1:
			found, err = s.commits.Find(ctx, bson.D{{Key: "t", Value: topic}, {Key: "events.id", Value: ids[0]}},
				options.Find().SetProjection(bson.D{{Key: "last", Value: 1}, {Key: "events", Value: bson.D{{Key: "$elemMatch", Value: bson.D{{Key: "id", Value: ids[0]}}}}}}))
		case len(ids) <= few:
			found, err = s.commits.Aggregate(ctx, mongo.Pipeline{
				{{Key: "$match", Value: bson.D{{Key: "t", Value: topic}, {Key: "events.id", Value: bson.D{{Key: "$in", Value: ids}}}}}},
				{{Key: "$project", Value: bson.D{{Key: "last", Value: 1}, {Key: "events", Value: bson.D{{Key: "$filter", Value: bson.D{
					{Key: "input", Value: "$events"}, {Key: "as", Value: "e"},
					{Key: "cond", Value: bson.D{{Key: "$in", Value: bson.A{"$$e.id", ids}}}},
				}}}}}}},
			})
		default:
			found, err = s.commits.Find(ctx, bson.D{{Key: "t", Value: topic}, {Key: "events.id", Value: bson.D{{Key: "$in", Value: ids}}}})
		}
		if err == nil {
			list, err = parseAll(ctx, found)
		}
		return err
	})
	return list, err
}

// lastOfKey gives the seq of the last retained event of a key, 0 if there is
// none. It looks up to the tail, and may find a later one.
func (s *Store) lastOfKey(ctx context.Context, topic, key string, t tail) (uint64, error) {
	s.laneOf(topic).learn(t)
	sc := &scan{s: s, q: store.Query{Topic: topic, Key: key, Until: t.last, Reverse: true, Limit: 1}}
	if t.last == 0 {
		return 0, nil
	}
	for done := false; !done; {
		var page []event.Event
		var err error
		if page, done, err = sc.next(ctx); err != nil {
			return 0, err
		}
		if len(page) > 0 {
			return page[0].Seq, nil
		}
	}
	return 0, nil
}

// LocateID implements [store.Log].
func (s *Store) LocateID(ctx context.Context, topic string, id event.ID) (seq uint64, err error) {
	err = s.call(ctx, func(ctx context.Context) error {
		found := make(map[event.ID]*event.Event)
		if err := s.findIDs(ctx, topic, []event.ID{id}, found); err != nil {
			return err
		}
		if found[id] == nil {
			return store.ErrNotFound
		}
		seq = found[id].Seq
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("locate id %s in topic %s: %w", id, shorten(topic), err)
	}
	return seq, nil
}

// LocateTime implements [store.Log].
func (s *Store) LocateTime(ctx context.Context, topic string, ts int64) (seq uint64, err error) {
	err = s.call(ctx, func(ctx context.Context) (err error) {
		seq, err = s.locateTime(ctx, topic, ts)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("locate time %d in topic %s: %w", ts, shorten(topic), err)
	}
	return seq, nil
}

func (s *Store) locateTime(ctx context.Context, topic string, ts int64) (uint64, error) {
	t, err := s.refresh(ctx, topic)
	if err != nil {
		return 0, err
	}
	d, err := s.topicDoc(ctx, topic)
	if err != nil {
		return 0, err
	}
	from, err := s.firstTop(ctx, t, &d, ts)
	if err != nil {
		return 0, err
	}
	// The commit at from has an event that late, or one of those that were
	// trimmed had. In the latter case the server looks through what follows.
	const most = 4
	for width := uint64(1); from <= t.last; width *= 8 {
		found, now, err := s.counting(ctx, query{
			topic: topic, from: from, to: min(from+width*maxEvents, t.last+1), limit: most,
			more: bson.D{{Key: "hi", Value: bson.D{{Key: "$gte", Value: ts}}}},
		})
		if err != nil {
			return 0, err
		}
		for _, c := range found {
			for i := range c.events {
				if at, _ := c.events[i].doc.Lookup("ts").Int64OK(); at >= ts && now.shows(c.events[i].seq) {
					return c.events[i].seq, nil
				}
			}
		}
		if len(found) == most {
			from = found[most-1].last + 1
		} else {
			from = min(from+width*maxEvents, t.last+1)
		}
	}
	return t.last + 1, nil
}

// firstTop finds the first seq of the first commit up to which some event,
// trimmed ones included, has ts or later. What it looks for rises along the
// log, so it halves the range.
func (s *Store) firstTop(ctx context.Context, t tail, d *topicDoc, ts int64) (uint64, error) {
	if t.top < ts {
		return t.last + 1, nil
	}
	lo, hi := uint64(d.First), t.first // the answer is from lo to hi
	for lo < hi {
		c, err := s.holding(ctx, d.Name, lo+(hi-lo)/2, d.Base, true)
		if err != nil {
			return 0, err
		}
		switch {
		case c == nil: // trimmed meanwhile
			lo = lo + (hi-lo)/2 + 1
		case c.top >= ts:
			hi = min(c.first, hi)
			if c.first <= lo {
				return lo, nil
			}
		default:
			lo = c.last + 1
		}
	}
	return hi, nil
}
