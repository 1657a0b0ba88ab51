package mongostore

import (
	"context"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// noEnd is an upper bound that excludes nothing.
const noEnd = math.MaxInt64

// query selects commits of a topic that end at from or later and before to. On
// servers that cannot read an index in order, the width of that range is what
// a query costs: keep it narrow.
type query struct {
	topic    string
	from, to uint64
	more     bson.D // further conditions
	down     bool   // from the highest seq
	newest   bool   // the one that begins last
	limit    int64
	heads    bool // without events
}

// clamp makes a seq fit for the server, whose integers have a sign.
func clamp(seq uint64) int64 { return int64(min(seq, math.MaxInt64)) }

// findCommits reads commits. What is found says nothing about trims: judge it
// by a topicDoc that was read afterwards.
func (s *Store) findCommits(ctx context.Context, q query) (list []*commit, err error) {
	ends := bson.D{{Key: "$gte", Value: clamp(q.from)}}
	if q.to < noEnd {
		ends = append(ends, bson.E{Key: "$lt", Value: clamp(q.to)})
	}
	filter := append(bson.D{{Key: "t", Value: q.topic}, {Key: "last", Value: ends}}, q.more...)
	order := 1
	if q.down {
		order = -1
	}
	o := options.Find().SetSort(bson.D{{Key: "last", Value: order}})
	if q.newest {
		o.SetSort(bson.D{{Key: "_id.s", Value: -1}}).SetLimit(1)
	}
	if q.limit > 0 {
		o.SetLimit(q.limit)
	}
	if q.heads {
		o.SetProjection(bson.D{{Key: "events", Value: 0}})
	}
	err = s.do(ctx, func(ctx context.Context) error {
		found, err := s.commits.Find(ctx, filter, o)
		if err == nil {
			list, err = parseAll(ctx, found)
		}
		return err
	})
	return list, err
}

// parseAll reads the commits that a cursor gives, and closes it.
func parseAll(ctx context.Context, found *mongo.Cursor) (list []*commit, err error) {
	defer func() { _ = found.Close(context.WithoutCancel(ctx)) }()
	for found.Next(ctx) {
		c, err := parseCommit(slices.Clone(found.Current))
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, found.Err()
}

// counting reads commits, and then the topic's document, and leaves out what
// does not count. In that order: see the package doc.
func (s *Store) counting(ctx context.Context, q query) (list []*commit, d topicDoc, err error) {
	if list, err = s.findCommits(ctx, q); err != nil {
		return nil, d, err
	}
	if d, err = s.topicDoc(ctx, q.topic); err != nil {
		return nil, d, err
	}
	return slices.DeleteFunc(list, d.hides), d, nil
}

// holding finds the commit that holds seq, which must not be above the topic's
// last, among those that begin at base or later. It gives nil if that is gone.
func (s *Store) holding(ctx context.Context, topic string, seq uint64, base int64, heads bool) (*commit, error) {
	found, err := s.findCommits(ctx, query{
		topic: topic, from: seq, to: seq + maxEvents, limit: 1, heads: heads,
		more: bson.D{{Key: "_id.s", Value: bson.D{{Key: "$gte", Value: base}, {Key: "$lte", Value: clamp(seq)}}}},
	})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}
