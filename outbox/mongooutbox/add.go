package mongooutbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/event"
	"promethean/outbox"
)

// The document of a row. Times are epoch milliseconds of the server's clock.
//
//	_id       the event's id, as a UUID
//	topic, key, ts, payload (the JSON text), meta (see outbox.Row.Meta)
//	lane      topic and key with a NUL between; only while the row has a key and
//	          is not sent
//	place     the row's number in its lane, 0 without a key
//	added     when it was added; it never goes down along a lane
//	state     pending, claimed, failed, sent
//	since     when the state began
//	until     when the claim or the back-off is over
//	owner     who has claimed it, claim by which call
//	attempts, error, errorAt
type rowDoc struct {
	ID       bson.Binary   `bson:"_id"`
	Topic    string        `bson:"topic"`
	Key      string        `bson:"key"`
	TS       int64         `bson:"ts"`
	Payload  string        `bson:"payload"`
	Meta     string        `bson:"meta,omitempty"`
	Lane     string        `bson:"lane,omitempty"`
	Place    int64         `bson:"place"`
	Added    int64         `bson:"added"`
	State    outbox.State  `bson:"state"`
	Since    int64         `bson:"since"`
	Until    int64         `bson:"until"`
	Owner    string        `bson:"owner,omitempty"`
	Claim    bson.ObjectID `bson:"claim,omitempty"`
	Attempts int           `bson:"attempts"`
	Error    string        `bson:"error,omitempty"`
	ErrorAt  int64         `bson:"errorAt,omitempty"`
}

func idOf(id event.ID) bson.Binary { return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]} }

func idsOf(ids []event.ID) bson.A {
	out := make(bson.A, len(ids))
	for i, id := range ids {
		out[i] = idOf(id)
	}
	return out
}

// laneOf names what order goes by; "" for rows without a key.
func laneOf(topic, key string) string {
	if key == "" {
		return ""
	}
	return topic + "\x00" + key
}

// Add adds rows in the transaction whose context is given. A row that breaks the
// rules of events is refused, and nothing is added; the transaction stays as it
// was. Any other error should end the transaction: return it from the callback of
// WithTransaction, which tries again where that helps.
func (b *Outbox) Add(ctx context.Context, rows ...outbox.Row) error {
	checked, err := outbox.CheckRows(rows, b.o.Limits)
	if err != nil {
		return fmt.Errorf("add to outbox: %w", err)
	}
	if err := b.mayAdd(ctx); err != nil {
		return fmt.Errorf("add to outbox %s: %w", b.o.Collection, err)
	}
	if len(checked) == 0 {
		return nil
	}
	now, err := b.now(ctx)
	if err != nil {
		return fmt.Errorf("add to outbox %s: %w", b.o.Collection, err)
	}
	docs := make([]rowDoc, len(checked))
	for i := range checked {
		r := &checked[i]
		meta, err := r.Meta()
		if err != nil {
			return fmt.Errorf("add to outbox: %w", &outbox.RowError{Index: i, Err: err})
		}
		docs[i] = rowDoc{
			ID: idOf(r.ID), Topic: r.Topic, Key: r.Key, TS: r.TS, Payload: string(r.Payload), Meta: string(meta),
			Lane: laneOf(r.Topic, r.Key), Added: now, State: outbox.Pending,
		}
	}
	if err := b.place(ctx, docs, now); err != nil {
		return fmt.Errorf("add to outbox %s: %w", b.o.Collection, err)
	}
	if _, err := b.rows.InsertMany(ctx, docs); err != nil {
		return fmt.Errorf("add to outbox %s: %w", b.o.Collection, err)
	}
	return nil
}

// mayAdd tells whether what is promised about rows holds.
func (b *Outbox) mayAdd(ctx context.Context) error {
	if b.o.WithoutTransactions {
		return nil
	}
	s := mongo.SessionFromContext(ctx)
	if s == nil || !s.TransactionRunning() {
		return errors.New("the context is not that of a transaction")
	}
	real, err := b.transacts(ctx)
	if err == nil && !real {
		err = errors.New("the server is no member of a replica set: its transactions undo nothing")
	}
	return err
}

// place gives rows their places in their lanes.
func (b *Outbox) place(ctx context.Context, docs []rowDoc, now int64) error {
	lanes := make(map[string][]*rowDoc)
	for i := range docs {
		if lane := docs[i].Lane; lane != "" {
			lanes[lane] = append(lanes[lane], &docs[i])
		}
	}
	// In order, so that two who add to the same lanes do not wait for each other.
	for _, lane := range slices.Sorted(maps.Keys(lanes)) {
		n := int64(len(lanes[lane]))
		var last struct {
			N  int64 `bson:"n"`
			At int64 `bson:"at"`
		}
		err := again(ctx, func() error {
			return b.places.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: lane}},
				bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: n}}}, {Key: "$max", Value: bson.D{{Key: "at", Value: now}}}},
				options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&last)
		})
		if err != nil {
			return fmt.Errorf("place of key %.40q in topic %s: %w", lanes[lane][0].Key, lanes[lane][0].Topic, err)
		}
		for i, d := range lanes[lane] {
			d.Place, d.Added = last.N-n+int64(i)+1, last.At
		}
	}
	return nil
}
