package mongofeed

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/changefeed"
)

// place is a token: canonical extended JSON, so that people can read it.
type place struct {
	// Of is the collection, so that a token is not used for another one.
	Of string `bson:"of"`
	// Resume is the server's token of where the stream goes on. Servers that
	// give none with an empty batch have it go on from At.
	Resume bson.Raw        `bson:"resume,omitempty"`
	At     *bson.Timestamp `bson:"at,omitempty"`
	// Snapshot is there until the snapshot is done.
	Snapshot *snapshotPlace `bson:"snapshot,omitempty"`
}

// snapshotPlace is how far a snapshot is.
type snapshotPlace struct {
	// Time names the snapshot: ids follow from it.
	Time bson.Timestamp `bson:"time"`
	// Last has the _id of the last document that was handed over.
	Last bson.Raw `bson:"last,omitempty"`
}

func (p place) token() ([]byte, error) {
	b, err := bson.MarshalExtJSON(p, true, false)
	if err != nil {
		return nil, fmt.Errorf("encode the token: %w", err)
	}
	return b, nil
}

func parsePlace(token []byte, of string) (place, error) {
	var p place
	if err := bson.UnmarshalExtJSON(token, true, &p); err != nil {
		return place{}, fmt.Errorf("%w: the saved token cannot be read, it is of another kind: %w", changefeed.ErrRefused, err)
	}
	if p.Of != of {
		return place{}, fmt.Errorf("%w: the saved token is of %q: give the feed a key of its own", changefeed.ErrRefused, p.Of)
	}
	if p.Resume == nil && p.At == nil {
		return place{}, fmt.Errorf("%w: the saved token has no place in the stream", changefeed.ErrRefused)
	}
	return p, nil
}
