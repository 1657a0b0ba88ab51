package mongofeed

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/changefeed"
	"promethean/event"
)

// snapshot hands over the documents that are there, by _id, from behind the last
// one that was handed over. They are read after the place in the stream was
// taken: the session sees to it that no member answers from before.
func (r *reader) snapshot(ctx context.Context) error {
	snap := r.at.Snapshot
	if err := r.session.AdvanceOperationTime(&snap.Time); err != nil {
		return fmt.Errorf("begin the snapshot: %w", err)
	}
	byID := bson.D{{Key: "_id", Value: 1}}
	o := options.Find().SetSort(byID).SetHint(byID).SetBatchSize(int32(min(r.s.o.BatchSize, 1<<30)))
	if snap.Last != nil {
		// The bound of the index goes across types, as $gt does not.
		o.SetMin(snap.Last)
	}
	docs, err := r.s.coll.Find(mongo.NewSessionContext(ctx, r.session), bson.D{}, o)
	if err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeIn)
		defer cancel()
		_ = docs.Close(ctx)
	}()
	size := 0
	for first := true; docs.Next(ctx); first = false {
		id := docs.Current.Lookup("_id")
		if first && snap.Last != nil && id.Equal(snap.Last.Lookup("_id")) {
			continue // it was handed over
		}
		name := append([]byte(clock(snap.Time)), byte(id.Type))
		ident := event.NameID(snapshotSpace, string(append(name, id.Value...)))
		if err := r.made.add(ident, changefeed.OpSnapshot, time.Unix(int64(snap.Time.T), 0), id, snap.Time, docs.Current); err != nil {
			return err
		}
		size += len(docs.Current)
		if docs.RemainingBatchLength() > 0 && len(r.made.changes) < r.s.o.BatchSize && size < r.s.o.BatchBytes {
			continue
		}
		size = 0
		if snap.Last, err = bson.Marshal(bson.D{{Key: "_id", Value: id}}); err != nil {
			return fmt.Errorf("read the snapshot: %w", err)
		}
		if err := r.hand(ctx, true); err != nil {
			return err
		}
	}
	if err := docs.Err(); err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}
	r.at.Snapshot = nil
	return r.hand(ctx, false)
}
