package mongostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/event"
)

// Trim implements [store.Log].
func (s *Store) Trim(ctx context.Context, topic string, before uint64) error {
	if err := event.CheckTopic(topic); err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	if err := s.call(ctx, func(ctx context.Context) error { return s.trim(ctx, topic, before) }); err != nil {
		return fmt.Errorf("trim topic %s: %w", topic, err)
	}
	return nil
}

// trim hides what is below before by one change of the topic's document, and
// then removes it. If it is cut off in between, the sweep of any process goes
// on with it.
func (s *Store) trim(ctx context.Context, topic string, before uint64) error {
	t, err := s.refresh(ctx, topic)
	if err != nil || t.last == 0 {
		return err
	}
	before = min(before, t.last+1)
	for {
		d, err := s.topicDoc(ctx, topic)
		if err != nil || before <= uint64(d.First) {
			return err
		}
		if before, err = s.retainedFrom(ctx, &d, before, t.last); err != nil {
			return err
		}
		base, gone, end := int64(t.first), t.cum, t.last
		if before <= t.last {
			c, err := s.holding(ctx, topic, before, d.Base, false)
			if err != nil {
				return err
			}
			if c == nil {
				continue // somebody has trimmed further
			}
			base, gone, end = int64(c.first), c.cum, c.last
			for i := range c.events {
				if c.events[i].seq >= before {
					gone -= int64(len(c.events[i].doc))
				}
			}
		}
		less, err := s.lessIn(ctx, &d, uint64(d.First), end)
		if err != nil {
			return err
		}
		// Only if what the plan rests on is still true: a commit below the
		// base, left by a slow writer, could otherwise pass for one that counts.
		moved := int64(0)
		err = s.do(ctx, func(ctx context.Context) error {
			result, err := s.topics.UpdateOne(ctx,
				bson.D{{Key: "_id", Value: topic}, {Key: "first", Value: d.First}, {Key: "base", Value: d.Base}},
				bson.D{{Key: "$set", Value: bson.D{{Key: "first", Value: clamp(before)}, {Key: "base", Value: base}, {Key: "gone", Value: gone}}}, {Key: "$inc", Value: bson.D{{Key: "less", Value: -less}}}})
			if err == nil {
				moved = result.MatchedCount
			}
			return err
		})
		if err != nil {
			return err
		}
		if moved > 0 {
			return s.purge(ctx, topic)
		}
		// An answer may have been lost, or somebody else was quicker: look again.
		if d, err = s.topicDoc(ctx, topic); err != nil {
			return err
		}
		if uint64(d.First) >= before {
			return s.purge(ctx, topic)
		}
	}
}

// purge removes what the topic's document hides. It may be repeated, and run
// in several processes at a time.
//
// Whole commits go first. So at most one commit of a topic has no events, as
// the unique index over ids demands, which counts no events as one value.
func (s *Store) purge(ctx context.Context, topic string) error {
	d, err := s.topicDoc(ctx, topic)
	if err != nil || d.First <= 1 {
		return err
	}
	return s.do(ctx, func(ctx context.Context) error {
		// A commit below the base that a slow writer left may reach above it.
		_, err := s.commits.DeleteMany(ctx, bson.D{
			{Key: "t", Value: topic}, {Key: "last", Value: bson.D{{Key: "$lt", Value: d.Base + maxEvents}}},
			{Key: "_id.s", Value: bson.D{{Key: "$lt", Value: d.Base}}},
		})
		if err != nil {
			return err
		}
		_, err = s.commits.UpdateOne(ctx, bson.D{{Key: "_id", Value: commitID(topic, uint64(d.Base))}},
			bson.D{{Key: "$pull", Value: bson.D{{Key: "events", Value: bson.D{{Key: "seq", Value: bson.D{{Key: "$lt", Value: d.First}}}}}}}})
		if err != nil {
			return err
		}
		if d.Done >= d.First {
			return nil
		}
		_, err = s.topics.UpdateOne(ctx, bson.D{{Key: "_id", Value: topic}}, bson.D{{Key: "$max", Value: bson.D{{Key: "done", Value: d.First}}}})
		return err
	})
}

// sweepLoop enforces retention for as long as the store is open.
func (s *Store) sweepLoop() {
	ticker := time.NewTicker(s.o.SweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case <-ticker.C:
		}
		if err := s.sweep(s.life); err != nil && s.life.Err() == nil {
			s.o.Logger.Warn("mongostore: sweep", "error", err)
		}
	}
}

// sweep trims what has expired, ends trims that were cut off, and notes where
// topics end. Several processes may do it at once.
func (s *Store) sweep(ctx context.Context) error {
	positive := bson.D{{Key: "$gt", Value: int64(0)}}
	docs, err := s.topicDocs(ctx, bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "retention", Value: positive}}, bson.D{{Key: "max_bytes", Value: positive}},
		bson.D{{Key: "$expr", Value: bson.D{{Key: "$lt", Value: bson.A{"$done", "$first"}}}}},
	}}})
	if err != nil {
		return err
	}
	var failed []error
	for i := range docs {
		if err := s.sweepTopic(ctx, &docs[i]); err != nil {
			failed = append(failed, fmt.Errorf("topic %s: %w", docs[i].Name, err))
		}
	}
	return errors.Join(append(failed, s.noteTails(ctx))...)
}

func (s *Store) sweepTopic(ctx context.Context, d *topicDoc) error {
	if d.Done < d.First {
		if err := s.purge(ctx, d.Name); err != nil {
			return err
		}
	}
	if d.Retention <= 0 && d.MaxBytes <= 0 {
		return nil
	}
	t, err := s.refresh(ctx, d.Name)
	if err != nil {
		return err
	}
	before, err := s.expired(ctx, d, t)
	if err != nil || before == 0 {
		return err
	}
	return s.trim(ctx, d.Name, before)
}

// expired gives the seq before which a topic's settings say that events go, 0
// if none does.
func (s *Store) expired(ctx context.Context, d *topicDoc, t tail) (before uint64, err error) {
	old := time.Now().Add(-time.Duration(d.Retention)).UnixMilli()
	less := d.Less // what compaction has removed behind c
	for from, width := uint64(d.First), uint64(maxEvents); from <= t.last; width = min(2*width, 1<<17) {
		to := min(from+width, t.last+1)
		heads, _, err := s.counting(ctx, query{topic: d.Name, from: from, to: to, heads: true})
		if err != nil {
			return 0, err
		}
		for _, c := range heads {
			// Without all of c there is still as much as may be, or more.
			less -= c.less
			over := d.MaxBytes > 0 && t.cum-c.cum-less >= d.MaxBytes
			if !over && (d.Retention <= 0 || c.at >= old) {
				return s.cutInside(ctx, d, t, c, before, t.cum-c.cum-less)
			}
			before = c.last + 1
		}
		from = to
	}
	return before, nil
}

// cutInside finds how many events of a commit have to go for the size, where
// those behind it take rest. The newest event of a topic stays, however large
// it is.
func (s *Store) cutInside(ctx context.Context, d *topicDoc, t tail, c *commit, before uint64, rest int64) (uint64, error) {
	if d.MaxBytes <= 0 {
		return before, nil
	}
	whole, err := s.holding(ctx, d.Name, c.last, int64(c.first), false)
	if err != nil || whole == nil {
		return before, err
	}
	for i := range whole.events {
		rest += int64(len(whole.events[i].doc))
	}
	for i := range whole.events {
		e := &whole.events[i]
		if rest <= d.MaxBytes || e.seq == t.last {
			break
		}
		rest -= int64(len(e.doc))
		before = e.seq + 1
	}
	return before, nil
}

// noteEvery is how far a topic grows before its end is noted again.
const noteEvery = 1000

// noteTails writes down where topics end that have grown, so that who opens
// the store does not have to look through them.
func (s *Store) noteTails(ctx context.Context) error {
	s.mu.Lock()
	lanes := make([]*lane, 0, len(s.lane))
	for _, l := range s.lane {
		lanes = append(lanes, l)
	}
	s.mu.Unlock()
	for _, l := range lanes {
		l.mu.Lock()
		last, noted, exists := l.tail.last, l.noted, l.exists
		l.mu.Unlock()
		if last < noted+noteEvery || !exists {
			continue
		}
		err := s.do(ctx, func(ctx context.Context) error {
			_, err := s.topics.UpdateOne(ctx, bson.D{{Key: "_id", Value: l.topic}}, bson.D{{Key: "$max", Value: bson.D{{Key: "tail", Value: clamp(last)}}}})
			return err
		})
		if err != nil {
			return fmt.Errorf("note the end of topic %s: %w", l.topic, err)
		}
		l.mu.Lock()
		l.noted = last
		l.mu.Unlock()
	}
	return nil
}
