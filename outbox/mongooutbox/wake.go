package mongooutbox

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"promethean/outbox"
)

// Wake implements [outbox.Waker] by a change stream: of rows that are added, and
// of those that become pending again.
func (b *Outbox) Wake(ctx context.Context) (<-chan struct{}, error) {
	stream, err := b.rows.Watch(ctx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "$or", Value: bson.A{
			bson.D{{Key: "operationType", Value: "insert"}},
			bson.D{{Key: "updateDescription.updatedFields.state", Value: outbox.Pending}},
		}}}}},
		{{Key: "$project", Value: bson.D{{Key: "_id", Value: 1}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("watch outbox %s: %w", b.o.Collection, err)
	}
	woken := make(chan struct{}, 1)
	go func() {
		defer close(woken)
		defer func() { _ = stream.Close(context.WithoutCancel(ctx)) }()
		for stream.Next(ctx) {
			select {
			case woken <- struct{}{}:
			default:
			}
		}
		if err := stream.Err(); err != nil && ctx.Err() == nil {
			b.o.Logger.Warn("outbox: the change stream has ended", "outbox", b.o.Collection, "error", err)
		}
	}()
	return woken, nil
}
