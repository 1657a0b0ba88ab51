package mongooutbox

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/event"
	"promethean/outbox"
)

// unclaimed removes what a claim put into a row.
var unclaimed = bson.D{{Key: "owner", Value: ""}, {Key: "claim", Value: ""}}

// freed makes a row pending and due.
func (b *Outbox) freed(now int64) bson.D {
	return bson.D{
		{Key: "$set", Value: bson.D{{Key: "state", Value: outbox.Pending}, {Key: "since", Value: now}, {Key: "until", Value: int64(0)}}},
		{Key: "$unset", Value: unclaimed},
	}
}

// write does what is to be done with single documents, each by itself. It says how
// many there were: those too that had been as they were to be.
func (b *Outbox) write(ctx context.Context, models []mongo.WriteModel) (n int, err error) {
	if len(models) == 0 {
		return 0, nil
	}
	err = again(ctx, func() error {
		res, err := b.rows.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
		if res != nil {
			n += int(res.MatchedCount + res.DeletedCount)
		}
		models = undone(models, err)
		return err
	})
	return n, err
}

// undone gives the writes that an error is about: some, if the server names them,
// or all.
func undone(models []mongo.WriteModel, err error) []mongo.WriteModel {
	var failed mongo.BulkWriteException
	if !errors.As(err, &failed) || len(failed.WriteErrors) == 0 {
		return models
	}
	left := make([]mongo.WriteModel, 0, len(failed.WriteErrors))
	for _, w := range failed.WriteErrors {
		left = append(left, w.Request)
	}
	return left
}

// guarded changes the documents that still fit a filter, each by itself: that
// holds on every server.
func (b *Outbox) guarded(ctx context.Context, ids bson.A, filter bson.D, update func(now int64) bson.D) (int, error) {
	now, err := b.now(ctx)
	if err != nil {
		return 0, err
	}
	models := make([]mongo.WriteModel, len(ids))
	for i, id := range ids {
		models[i] = mongo.NewUpdateOneModel().SetFilter(append(bson.D{{Key: "_id", Value: id}}, filter...)).SetUpdate(update(now))
	}
	return b.write(ctx, models)
}

// find gives the ids of rows that fit a filter.
func (b *Outbox) find(ctx context.Context, filter bson.D, o *options.FindOptionsBuilder) (ids bson.A, err error) {
	found, err := b.rows.Find(ctx, filter, o.SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close(context.WithoutCancel(ctx)) }()
	for found.Next(ctx) {
		ids = append(ids, found.Current.Lookup("_id"))
	}
	return ids, found.Err()
}

// MarkSent implements [outbox.Store]. Nothing leads away from being sent, so that
// one update for all rows will do on every server.
func (b *Outbox) MarkSent(ctx context.Context, ids ...event.ID) error {
	if len(ids) == 0 {
		return nil
	}
	now, err := b.now(ctx)
	if err == nil {
		err = again(ctx, func() error {
			_, err := b.rows.UpdateMany(ctx, bson.D{{Key: "_id", Value: in(idsOf(ids))}, {Key: "state", Value: bson.D{{Key: "$ne", Value: outbox.Sent}}}}, bson.D{
				{Key: "$set", Value: bson.D{{Key: "state", Value: outbox.Sent}, {Key: "since", Value: now}, {Key: "until", Value: int64(0)}}},
				{Key: "$unset", Value: append(bson.D{{Key: "lane", Value: ""}}, unclaimed...)},
			})
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("mark rows of outbox %s as sent: %w", b.o.Collection, err)
	}
	return nil
}

// MarkError implements [outbox.Store].
func (b *Outbox) MarkError(ctx context.Context, owner string, refusals ...outbox.Refusal) error {
	now, err := b.now(ctx)
	if err == nil {
		models := make([]mongo.WriteModel, len(refusals))
		for i, f := range refusals {
			state, until := outbox.Pending, now+ms(f.After)
			if f.GiveUp {
				state, until = outbox.Failed, 0
			}
			models[i] = mongo.NewUpdateOneModel().
				SetFilter(bson.D{{Key: "_id", Value: idOf(f.ID)}, {Key: "state", Value: outbox.Claimed}, {Key: "owner", Value: owner}}).
				SetUpdate(bson.D{
					{Key: "$set", Value: bson.D{
						{Key: "state", Value: state}, {Key: "since", Value: now}, {Key: "until", Value: until},
						{Key: "error", Value: outbox.TrimReason(f.Reason)}, {Key: "errorAt", Value: now},
					}},
					{Key: "$inc", Value: bson.D{{Key: "attempts", Value: 1}}},
					{Key: "$unset", Value: unclaimed},
				})
		}
		_, err = b.write(ctx, models)
	}
	if err != nil {
		return fmt.Errorf("mark rows of outbox %s as refused: %w", b.o.Collection, err)
	}
	return nil
}

// Release implements [outbox.Store].
func (b *Outbox) Release(ctx context.Context, owner string, ids ...event.ID) error {
	_, err := b.guarded(ctx, idsOf(ids), bson.D{{Key: "state", Value: outbox.Claimed}, {Key: "owner", Value: owner}}, b.freed)
	if err != nil {
		return fmt.Errorf("give back rows of outbox %s: %w", b.o.Collection, err)
	}
	return nil
}

// RequeueExpired implements [outbox.Store].
func (b *Outbox) RequeueExpired(ctx context.Context) (n int, err error) {
	now, err := b.now(ctx)
	var ids bson.A
	if err == nil {
		ids, err = b.find(ctx, bson.D{{Key: "state", Value: outbox.Claimed}, over(now)}, options.Find())
	}
	if err == nil && len(ids) > 0 {
		n, err = b.guarded(ctx, ids, bson.D{{Key: "state", Value: outbox.Claimed}, over(now)}, b.freed)
	}
	if err != nil {
		return n, fmt.Errorf("requeue rows of outbox %s: %w", b.o.Collection, err)
	}
	return n, nil
}
