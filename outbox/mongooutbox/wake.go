package mongooutbox

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/outbox"
)

const (
	// maxAwait is how long the server may wait for a row before it answers that
	// there is none. By itself it would do so every second.
	maxAwait = 10 * time.Second
	// renewed is when a stream is opened anew. With a deadline of its own, a limit
	// that the address sets for calls does not end it; the driver wants one that
	// is not too far away.
	renewed = 24 * time.Hour
)

// Wake implements [outbox.Waker] by a change stream: of rows that are added, and
// of those that become pending again.
func (b *Outbox) Wake(ctx context.Context) (<-chan struct{}, error) {
	ctx, cancel := context.WithTimeout(ctx, renewed)
	stream, err := b.rows.Watch(ctx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "$or", Value: bson.A{
			bson.D{{Key: "operationType", Value: "insert"}},
			bson.D{{Key: "updateDescription.updatedFields.state", Value: outbox.Pending}},
		}}}}},
		{{Key: "$project", Value: bson.D{{Key: "_id", Value: 1}}}},
	}, options.ChangeStream().SetMaxAwaitTime(maxAwait))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch outbox %s: %w", b.o.Collection, err)
	}
	woken := make(chan struct{}, 1)
	go func() {
		defer close(woken)
		defer cancel()
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
