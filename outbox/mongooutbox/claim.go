package mongooutbox

import (
	"cmp"
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

// over is a filter for rows whose claim or back-off is over: by its end, or since
// it began in the future, so that the clock was set back.
func over(now int64) bson.E {
	return bson.E{Key: "$or", Value: bson.A{
		bson.D{{Key: "until", Value: bson.D{{Key: "$lte", Value: now}}}},
		bson.D{{Key: "since", Value: bson.D{{Key: "$gt", Value: now + slack}}}},
	}}
}

func in(values any) bson.D { return bson.D{{Key: "$in", Value: values}} }

// candidate is a row that may be claimed.
type candidate struct {
	ID    bson.Binary `bson:"_id"`
	Lane  string      `bson:"lane"`
	Place int64       `bson:"place"`
}

// tries is how often a claim begins anew because others were quicker.
const tries = 3

// ClaimBatch implements [outbox.Store].
func (b *Outbox) ClaimBatch(ctx context.Context, owner string, n int, lease time.Duration) ([]outbox.Row, error) {
	if err := outbox.CheckClaim(owner, n, lease); err != nil {
		return nil, err
	}
	for range tries {
		rows, more, err := b.claim(ctx, owner, n, lease)
		if err != nil {
			return nil, fmt.Errorf("claim rows of outbox %s: %w", b.o.Collection, err)
		}
		if len(rows) > 0 || !more {
			return rows, nil
		}
	}
	return nil, nil
}

// claim takes rows. It says whether there were some that it did not get.
func (b *Outbox) claim(ctx context.Context, owner string, n int, lease time.Duration) (rows []outbox.Row, more bool, err error) {
	now, err := b.now(ctx)
	if err != nil {
		return nil, false, err
	}
	list, err := b.candidates(ctx, now, n)
	if err != nil || len(list) == 0 {
		return nil, false, err
	}
	// Each row by itself, if it is still free.
	token := bson.NewObjectID()
	ids := make(bson.A, len(list))
	models := make([]mongo.WriteModel, len(list))
	for i, c := range list {
		ids[i] = c.ID
		models[i] = mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: c.ID}, {Key: "state", Value: outbox.Pending}, over(now)}).
			SetUpdate(bson.D{{Key: "$set", Value: bson.D{
				{Key: "state", Value: outbox.Claimed}, {Key: "owner", Value: owner}, {Key: "claim", Value: token},
				{Key: "since", Value: now}, {Key: "until", Value: now + ms(lease)},
			}}})
	}
	if _, err := b.write(ctx, models); err != nil {
		return nil, false, err
	}
	docs, err := b.mine(ctx, ids, token)
	if err != nil {
		return nil, false, err
	}
	docs, err = b.giveBackBehind(ctx, docs, token)
	if err != nil {
		return nil, false, err
	}
	for _, d := range docs {
		rows = append(rows, d.row())
	}
	return rows, len(rows) < len(list), nil
}

// candidates finds up to n rows that are free and not held up, in order.
func (b *Outbox) candidates(ctx context.Context, now int64, n int) (list []candidate, err error) {
	found, err := b.rows.Find(ctx, bson.D{{Key: "state", Value: outbox.Pending}, over(now)}, options.Find().
		SetSort(bson.D{{Key: "added", Value: 1}, {Key: "place", Value: 1}}).SetBatchSize(int32(min(n, 1000))).
		SetProjection(bson.D{{Key: "_id", Value: 1}, {Key: "lane", Value: 1}, {Key: "place", Value: 1}}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close(context.WithoutCancel(ctx)) }()
	held := make(map[string]int64) // by lane, the first place that is held; 0: none
	page := make([]candidate, 0, n)
	for len(list) < n {
		page = page[:0]
		for len(page) < n && found.Next(ctx) {
			var c candidate
			if err := found.Decode(&c); err != nil || len(c.ID.Data) != len(event.ID{}) {
				b.o.Logger.Warn("outbox: a document is no row", "outbox", b.o.Collection, "document", found.Current.String(), "error", err)
				continue
			}
			page = append(page, c)
		}
		if err := found.Err(); err != nil {
			return nil, err
		}
		if len(page) == 0 {
			return list, nil
		}
		if err := b.look(ctx, held, page, now); err != nil {
			return nil, err
		}
		for _, c := range page {
			if at := held[c.Lane]; (at == 0 || c.Place < at) && len(list) < n {
				list = append(list, c)
			}
		}
	}
	return list, nil
}

// look finds out where lanes are held up by rows that cannot be claimed.
func (b *Outbox) look(ctx context.Context, held map[string]int64, page []candidate, now int64) error {
	var lanes []string
	for _, c := range page {
		if _, known := held[c.Lane]; !known && c.Lane != "" {
			held[c.Lane] = 0
			lanes = append(lanes, c.Lane)
		}
	}
	return b.first(ctx, lanes, bson.E{Key: "$or", Value: bson.A{
		bson.D{{Key: "state", Value: in(bson.A{outbox.Claimed, outbox.Failed})}},
		bson.D{{Key: "state", Value: outbox.Pending}, {Key: "until", Value: bson.D{{Key: "$gt", Value: now}}}, {Key: "since", Value: bson.D{{Key: "$lte", Value: now + slack}}}},
	}}, held)
}

// first finds the first place in each lane of rows that fit a filter.
func (b *Outbox) first(ctx context.Context, lanes []string, filter bson.E, into map[string]int64) error {
	if len(lanes) == 0 {
		return nil
	}
	found, err := b.rows.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "lane", Value: in(lanes)}, filter}}},
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$lane"}, {Key: "place", Value: bson.D{{Key: "$min", Value: "$place"}}}}}},
	})
	if err != nil {
		return err
	}
	var list []struct {
		Lane  string `bson:"_id"`
		Place int64  `bson:"place"`
	}
	if err := found.All(ctx, &list); err != nil {
		return err
	}
	for _, x := range list {
		into[x.Lane] = x.Place
	}
	return nil
}

// claimed is a row that was taken, as it is stored.
type claimed struct {
	candidate
	raw bson.Raw
}

// mine reads what a claim has taken, in order.
func (b *Outbox) mine(ctx context.Context, ids bson.A, token bson.ObjectID) (list []claimed, err error) {
	found, err := b.rows.Find(ctx, bson.D{{Key: "_id", Value: in(ids)}, {Key: "state", Value: outbox.Claimed}, {Key: "claim", Value: token}},
		options.Find().SetSort(bson.D{{Key: "added", Value: 1}, {Key: "place", Value: 1}}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close(context.WithoutCancel(ctx)) }()
	for found.Next(ctx) {
		c := claimed{raw: slices.Clone(found.Current)}
		if err := found.Decode(&c.candidate); err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, found.Err()
}

// giveBackBehind keeps the rows before which everything is sent or ours too.
func (b *Outbox) giveBackBehind(ctx context.Context, list []claimed, token bson.ObjectID) ([]claimed, error) {
	var lanes []string
	for _, c := range list {
		if c.Lane != "" && !slices.Contains(lanes, c.Lane) {
			lanes = append(lanes, c.Lane)
		}
	}
	others := make(map[string]int64)
	if err := b.first(ctx, lanes, bson.E{Key: "claim", Value: bson.D{{Key: "$ne", Value: token}}}, others); err != nil {
		return nil, err
	}
	var back bson.A
	list = slices.DeleteFunc(list, func(c claimed) bool {
		if at := others[c.Lane]; at == 0 || c.Place < at {
			return false
		}
		back = append(back, c.ID)
		return true
	})
	if len(back) == 0 {
		return list, nil
	}
	_, err := b.guarded(ctx, back, bson.D{{Key: "state", Value: outbox.Claimed}, {Key: "claim", Value: token}}, b.freed)
	return list, err
}

// row is a stored row as the drainer gets it. What cannot be read of it is its
// damage.
func (c *claimed) row() (r outbox.Row) {
	copy(r.ID[:], c.ID.Data)
	var d rowDoc
	if err := bson.Unmarshal(c.raw, &d); err != nil {
		// Enough to hold up its key alone.
		r.Topic, _ = c.raw.Lookup("topic").StringValueOK()
		r.Key, _ = c.raw.Lookup("key").StringValueOK()
		r.Damaged(err)
		return r
	}
	r.Topic, r.Key, r.TS, r.Attempts = d.Topic, d.Key, d.TS, d.Attempts
	r.Payload = []byte(d.Payload)
	r.SetMeta([]byte(d.Meta))
	return r
}

// compare orders errors: those that failed first, then as they were added.
func compare(a, b *rowDoc) int {
	rank := func(d *rowDoc) int {
		if d.State == outbox.Failed {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Added, b.Added), cmp.Compare(a.Place, b.Place))
}
