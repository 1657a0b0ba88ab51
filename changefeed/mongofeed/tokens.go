package mongofeed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"promethean/changefeed"
)

// Tokens keeps the places of feeds in the collection changefeed_tokens of a
// database: {_id: key, token: text, saved_at: date}.
type Tokens struct{ coll *mongo.Collection }

var _ changefeed.Tokens = (*Tokens)(nil)

// NewTokens keeps places in a database. Nothing is asked of the server yet. A
// place is saved when the majority has it in its journal.
func NewTokens(db *mongo.Database) *Tokens {
	journal := true
	return &Tokens{coll: db.Collection("changefeed_tokens", options.Collection().
		SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary()).
		SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal}))}
}

// Load implements [changefeed.Tokens].
func (t *Tokens) Load(ctx context.Context, key string) ([]byte, error) {
	var row struct{ Token string }
	err := t.coll.FindOne(ctx, bson.D{{Key: "_id", Value: key}}).Decode(&row)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load token %q from MongoDB: %w", key, err)
	}
	if row.Token == "" {
		return nil, fmt.Errorf("load token %q from MongoDB: the document has no token", key)
	}
	return []byte(row.Token), nil
}

// Save implements [changefeed.Tokens].
func (t *Tokens) Save(ctx context.Context, key string, token []byte) error {
	row := bson.D{{Key: "_id", Value: key}, {Key: "token", Value: string(token)}, {Key: "saved_at", Value: time.Now()}}
	if _, err := t.coll.ReplaceOne(ctx, row[:1], row, options.Replace().SetUpsert(true)); err != nil {
		return fmt.Errorf("save token %q in MongoDB: %w", key, err)
	}
	return nil
}

// Delete implements [changefeed.Tokens].
func (t *Tokens) Delete(ctx context.Context, key string) error {
	if _, err := t.coll.DeleteOne(ctx, bson.D{{Key: "_id", Value: key}}); err != nil {
		return fmt.Errorf("delete token %q from MongoDB: %w", key, err)
	}
	return nil
}
