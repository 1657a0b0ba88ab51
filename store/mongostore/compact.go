package mongostore

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/event"
	"promethean/store"
	"promethean/store/internal/superseded"
)

// Compact implements [store.Compacts]. One scan finds out what is superseded,
// or several if the topic has very many keys. What is so at its beginning is
// trimmed; the rest is taken out of the commits that hold it, by an update of
// each.
//
// No commit is deleted by it: what stands at its place keeps a writer that has
// slept from taking that, see the package doc. A commit that loses all of its
// events keeps its head, some 300 bytes on the disk, until a trim reaches it.
//
// It may be repeated, and run in several processes at a time: each update is
// one step that names the seqs which go.
func (s *Store) Compact(ctx context.Context, topic string, c store.Compaction) (done store.Compacted, err error) {
	if err := event.CheckTopic(topic); err != nil {
		return done, fmt.Errorf("compact: %w", err)
	}
	j := compaction{s: s, topic: topic}
	err = s.call(ctx, func(ctx context.Context) error { return j.run(ctx, c) })
	if err != nil {
		return j.done, fmt.Errorf("compact topic %s: %w", topic, err)
	}
	return j.done, nil
}

// compaction is one call of Compact.
type compaction struct {
	s     *Store
	topic string
	find  *superseded.Finder
	from  uint64
	until uint64
	bytes float64 // what the events up to until take
	done  store.Compacted
}

func (j *compaction) run(ctx context.Context, c store.Compaction) error {
	t, err := j.s.refresh(ctx, j.topic)
	if err != nil || t.last == 0 {
		return err
	}
	d, err := j.s.topicDoc(ctx, j.topic)
	if err != nil {
		return err
	}
	c.Before = min(c.Before, t.last+1)
	if uint64(d.First) >= c.Before {
		return nil
	}
	j.from, j.until = uint64(d.First), c.Before-1
	j.find = superseded.New(c, 0)
	for j.find.Next() {
		j.bytes = 0
		err := j.events(ctx, j.from, j.until, func(e *event.Event) {
			j.bytes += float64(e.Size())
			j.find.See(e.Seq, e.Key, e.Payload)
		})
		if err != nil {
			return err
		}
	}
	j.done.Kept = j.find.Count
	last := j.find.Dead.Last()
	if last == 0 {
		return nil
	}
	if err := j.trim(ctx); err != nil || last < j.find.Low {
		return err
	}
	// From here on the topic has gaps, and trims look where its events are.
	err = j.s.do(ctx, func(ctx context.Context) error {
		_, err := j.s.topics.UpdateOne(ctx, bson.D{{Key: "_id", Value: j.topic}}, bson.D{{Key: "$max", Value: bson.D{{Key: "gaps", Value: clamp(last + 1)}}}})
		return err
	})
	if err != nil {
		return err
	}
	return j.pull(ctx, last)
}

// events calls fn with the events from one seq to another.
func (j *compaction) events(ctx context.Context, from, until uint64, fn func(*event.Event)) error {
	sc := &scan{s: j.s, q: store.Query{Topic: j.topic, After: from - 1, Until: until}}
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var page []event.Event
		var err error
		if page, done, err = sc.next(ctx); err != nil {
			return err
		}
		for i := range page {
			fn(&page[i])
		}
	}
	return nil
}

// trim removes what goes at the topic's beginning.
func (j *compaction) trim(ctx context.Context) error {
	low := j.find.Low
	if low <= j.from || !j.find.Dead.Any(j.from, low-1) {
		return nil
	}
	maxTS := int64(0)
	if j.find.Tombs.Any(j.from, low-1) {
		err := j.events(ctx, j.from, low-1, func(e *event.Event) {
			if j.find.Tombs.Has(e.Seq) {
				maxTS = max(maxTS, e.TS)
			}
		})
		if err != nil {
			return err
		}
	}
	if err := j.s.trim(ctx, j.topic, low); err != nil {
		return err
	}
	j.done.MaxTS = max(j.done.MaxTS, maxTS)
	j.removed(j.find.Dead.Count(j.from, low-1))
	return nil
}

func (j *compaction) removed(n uint64) {
	j.done.Removed += n
	j.done.Kept -= n
	j.done.Bytes += int64(j.bytes * float64(n) / float64(j.find.Count))
}

// pull takes what goes out of its commits.
func (j *compaction) pull(ctx context.Context, last uint64) error {
	width := uint64(maxEvents)
	for from := j.find.Low; from <= last; {
		// A commit that begins at or below last ends below last+maxEvents.
		to := min(from+width, last+maxEvents)
		list, d, err := j.s.counting(ctx, query{topic: j.topic, from: from, to: to, more: bson.D{{Key: "_id.s", Value: bson.D{{Key: "$lte", Value: clamp(last)}}}}})
		if err != nil {
			return err
		}
		size := 0
		for _, c := range list {
			for i := range c.events {
				size += len(c.events[i].doc)
			}
		}
		if err := j.update(ctx, list, &d); err != nil {
			return err
		}
		switch from = to; {
		case size < smallPage:
			width = min(4*width, maxWidth)
		case size > largePage:
			width = max(width/4, minWidth)
		}
	}
	return nil
}

// cut is what goes of a commit.
type cut struct {
	c      *commit
	seqs   bson.A
	bytes  int64
	left   int
	maxTS  int64
	number uint64
}

func (j *compaction) cutOf(c *commit, d *topicDoc) (x cut) {
	x.c = c
	for i := range c.events {
		e := &c.events[i]
		if !j.find.Dead.Has(e.seq) || !d.shows(e.seq) {
			x.left++
			continue
		}
		x.seqs = append(x.seqs, clamp(e.seq))
		x.bytes += int64(len(e.doc))
		x.number++
		if ts, ok := e.doc.Lookup("ts").Int64OK(); ok && j.find.Tombs.Has(e.seq) {
			x.maxTS = max(x.maxTS, ts)
		}
	}
	return x
}

// update takes what goes out of some commits.
func (j *compaction) update(ctx context.Context, list []*commit, d *topicDoc) error {
	var models []mongo.WriteModel
	bytes, number, maxTS := int64(0), uint64(0), int64(0)
	for _, c := range list {
		x := j.cutOf(c, d)
		if x.number == 0 {
			continue
		}
		models = append(models, x.model())
		bytes, number, maxTS = bytes+x.bytes, number+x.number, max(maxTS, x.maxTS)
	}
	if number == 0 {
		return nil
	}
	// The topic's sum goes first: if we are cut off, it is too high, and
	// retention by size removes too little rather than too much.
	err := j.s.do(ctx, func(ctx context.Context) error {
		_, err := j.s.topics.UpdateOne(ctx, bson.D{{Key: "_id", Value: j.topic}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "less", Value: bytes}}}})
		return err
	})
	if err != nil {
		return err
	}
	err = j.s.do(ctx, func(ctx context.Context) error {
		_, err := j.s.commits.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
		return err
	})
	if err != nil {
		return err
	}
	j.removed(number)
	j.done.MaxTS = max(j.done.MaxTS, maxTS)
	return nil
}

// model is the update of a commit. It does nothing when it is repeated, or
// when somebody else was quicker. A commit that loses everything gets a stub
// that is no event, because of the unique index over ids: see purge.
func (x *cut) model() mongo.WriteModel {
	filter := bson.D{{Key: "_id", Value: commitID(x.c.topic, x.c.first)}, {Key: "events.seq", Value: x.seqs[0]}}
	less := bson.E{Key: "$inc", Value: bson.D{{Key: "less", Value: x.bytes}}}
	if x.left > 0 {
		return mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(bson.D{
			{Key: "$pull", Value: bson.D{{Key: "events", Value: bson.D{{Key: "seq", Value: bson.D{{Key: "$in", Value: x.seqs}}}}}}}, less,
		})
	}
	stub := bson.D{{Key: "seq", Value: int64(stubSeq)}, {Key: "id", Value: uuid(event.NewID())}}
	return mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(bson.D{
		{Key: "$set", Value: bson.D{{Key: "events", Value: bson.A{stub}}}}, less,
	})
}

// stubSeq is the seq of what stands in a commit without events.
const stubSeq = 0

// lessIn sums up what compaction has taken out of the commits that count and
// end from one seq up to another.
func (s *Store) lessIn(ctx context.Context, d *topicDoc, from, until uint64) (sum int64, err error) {
	if d.Less == 0 {
		return 0, nil
	}
	for from <= until {
		to := min(from+1<<17, until+1)
		heads, _, err := s.counting(ctx, query{
			topic: d.Name, from: from, to: to, heads: true, more: bson.D{{Key: "less", Value: bson.D{{Key: "$gt", Value: int64(0)}}}},
		})
		if err != nil {
			return 0, err
		}
		for _, c := range heads {
			sum += c.less
		}
		from = to
	}
	return sum, nil
}

// retainedFrom moves a seq that lies in a gap up to the first event behind it.
func (s *Store) retainedFrom(ctx context.Context, d *topicDoc, seq, last uint64) (uint64, error) {
	if seq >= uint64(d.Gaps) || seq > last {
		return seq, nil
	}
	sc := &scan{s: s, q: store.Query{Topic: d.Name, After: seq - 1, Until: last, Limit: 1}}
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
	return last + 1, nil
}
