package mongooutbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/event"
	"promethean/outbox"
)

var (
	hasError = bson.E{Key: "error", Value: bson.D{{Key: "$exists", Value: true}}}
	// troubled are rows that a person may retry or discard.
	troubled = bson.D{{Key: "state", Value: in(bson.A{outbox.Pending, outbox.Failed})}, hasError}
)

// Stats implements [outbox.Store].
func (b *Outbox) Stats(ctx context.Context) (s outbox.Stats, err error) {
	if s, err = b.stats(ctx); err != nil {
		return outbox.Stats{}, fmt.Errorf("count rows of outbox %s: %w", b.o.Collection, err)
	}
	return s, nil
}

func (b *Outbox) stats(ctx context.Context) (s outbox.Stats, err error) {
	now, err := b.now(ctx)
	if err != nil {
		return s, err
	}
	found, err := b.rows.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "state", Value: in(bson.A{outbox.Pending, outbox.Claimed, outbox.Failed})}}}},
		{{Key: "$group", Value: bson.D{
			{Key: "_id", Value: "$state"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: int64(1)}}}, {Key: "oldest", Value: bson.D{{Key: "$min", Value: "$added"}}},
		}}},
	})
	if err != nil {
		return s, err
	}
	var list []struct {
		State  outbox.State `bson:"_id"`
		N      int64        `bson:"n"`
		Oldest int64        `bson:"oldest"`
	}
	if err := found.All(ctx, &list); err != nil {
		return s, err
	}
	for _, x := range list {
		switch x.State {
		case outbox.Pending:
			s.Pending = x.N
		case outbox.Claimed:
			s.Claimed = x.N
		case outbox.Failed:
			s.Failed = x.N
		case outbox.Sent:
		}
		s.Oldest = max(s.Oldest, time.Duration(max(now-x.Oldest, 1))*time.Millisecond)
	}
	if s.Pending > 0 {
		s.Refused, err = b.rows.CountDocuments(ctx, bson.D{{Key: "state", Value: outbox.Pending}, hasError})
	}
	return s, err
}

// Errors implements [outbox.Store].
func (b *Outbox) Errors(ctx context.Context, limit int) ([]outbox.Refused, error) {
	var docs []rowDoc
	// The failed ones first, then the others, as far as there is room.
	for _, state := range []bson.A{{outbox.Failed}, {outbox.Pending, outbox.Claimed}} {
		room := limit - len(docs)
		if room <= 0 {
			break
		}
		found, err := b.rows.Find(ctx, bson.D{{Key: "state", Value: in(state)}, hasError}, options.Find().SetLimit(int64(room)).
			SetSort(bson.D{{Key: "added", Value: 1}, {Key: "place", Value: 1}}).
			SetProjection(bson.D{{Key: "payload", Value: 0}, {Key: "meta", Value: 0}}))
		var part []rowDoc
		if err == nil {
			err = found.All(ctx, &part)
		}
		if err != nil {
			return nil, fmt.Errorf("list errors of outbox %s: %w", b.o.Collection, err)
		}
		docs = append(docs, part...)
	}
	slices.SortStableFunc(docs, func(a, b rowDoc) int { return compare(&a, &b) })
	list := make([]outbox.Refused, len(docs))
	for i, d := range docs {
		list[i] = outbox.Refused{Topic: d.Topic, Key: d.Key, State: d.State, Attempts: d.Attempts, Error: d.Error, At: time.UnixMilli(d.ErrorAt)}
		copy(list[i].ID[:], d.ID.Data)
	}
	return list, nil
}

// Retry implements [outbox.Store].
func (b *Outbox) Retry(ctx context.Context, ids ...event.ID) (n int, err error) {
	all := idsOf(ids)
	if len(ids) == 0 {
		all, err = b.find(ctx, troubled, options.Find())
	}
	if err == nil {
		n, err = b.guarded(ctx, all, troubled, func(now int64) bson.D {
			return bson.D{{Key: "$set", Value: bson.D{
				{Key: "state", Value: outbox.Pending}, {Key: "since", Value: now}, {Key: "until", Value: int64(0)}, {Key: "attempts", Value: 0},
			}}}
		})
	}
	if err != nil {
		return n, fmt.Errorf("retry rows of outbox %s: %w", b.o.Collection, err)
	}
	return n, nil
}

// Discard implements [outbox.Store].
func (b *Outbox) Discard(ctx context.Context, ids ...event.ID) (int, error) {
	models := make([]mongo.WriteModel, len(ids))
	for i, id := range ids {
		models[i] = mongo.NewDeleteOneModel().SetFilter(append(bson.D{{Key: "_id", Value: idOf(id)}}, troubled...))
	}
	n, err := b.write(ctx, models)
	if err != nil {
		return n, fmt.Errorf("discard rows of outbox %s: %w", b.o.Collection, err)
	}
	return n, nil
}

// Prune implements [outbox.Store]. It removes counters too that nobody has used
// for as long, and at least an hour.
func (b *Outbox) Prune(ctx context.Context, olderThan time.Duration, limit int) (n int, err error) {
	if err := outbox.CheckPrune(olderThan, limit); err != nil {
		return 0, err
	}
	if n, err = b.prune(ctx, olderThan, limit); err != nil {
		return n, fmt.Errorf("prune outbox %s: %w", b.o.Collection, err)
	}
	return n, nil
}

func (b *Outbox) prune(ctx context.Context, olderThan time.Duration, limit int) (int, error) {
	now, err := b.now(ctx)
	if err != nil {
		return 0, err
	}
	old := bson.D{{Key: "$lte", Value: now - ms(olderThan)}}
	ids, err := b.find(ctx, bson.D{{Key: "state", Value: outbox.Sent}, {Key: "since", Value: old}},
		options.Find().SetSort(bson.D{{Key: "since", Value: 1}}).SetLimit(int64(limit)))
	if err != nil {
		return 0, err
	}
	n := 0
	if len(ids) > 0 {
		res, err := b.rows.DeleteMany(ctx, bson.D{{Key: "_id", Value: in(ids)}, {Key: "state", Value: outbox.Sent}})
		if err != nil {
			return 0, err
		}
		n = int(res.DeletedCount)
	}
	return n, b.pruneKeys(ctx, now-max(ms(olderThan), time.Hour.Milliseconds()), limit)
}

// pruneKeys removes counters of lanes in which nothing waits. One that somebody
// raises meanwhile has another number, and stays.
func (b *Outbox) pruneKeys(ctx context.Context, before int64, limit int) error {
	found, err := b.places.Find(ctx, bson.D{{Key: "at", Value: bson.D{{Key: "$lte", Value: before}}}}, options.Find().
		SetSort(bson.D{{Key: "at", Value: 1}}).SetLimit(int64(limit)))
	if err != nil {
		return err
	}
	var list []struct {
		Lane string `bson:"_id"`
		N    int64  `bson:"n"`
	}
	if err := found.All(ctx, &list); err != nil || len(list) == 0 {
		return err
	}
	lanes := make([]string, len(list))
	for i, k := range list {
		lanes[i] = k.Lane
	}
	waiting := make(map[string]int64)
	if err := b.first(ctx, lanes, bson.E{Key: "state", Value: bson.D{{Key: "$ne", Value: outbox.Sent}}}, waiting); err != nil {
		return err
	}
	var models []mongo.WriteModel
	for _, k := range list {
		if waiting[k.Lane] == 0 {
			models = append(models, mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: k.Lane}, {Key: "n", Value: k.N}}))
		}
	}
	if len(models) == 0 {
		return nil
	}
	return again(ctx, func() error {
		_, err := b.places.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
		return err
	})
}
