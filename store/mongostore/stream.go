package mongostore

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// stream follows the server's change stream of new commits, where there is
// one, and wakes watches at once. It only saves time: polling goes on beside
// it, at its slowest, so a stream that fails or misses something costs a delay
// and no event.
func (s *Store) stream() {
	for pause := (backOff{}); s.life.Err() == nil; {
		err := s.follow(func() { pause = backOff{} })
		var server mongo.ServerError
		if errors.As(err, &server) && !transient(err) {
			s.o.Logger.Info("mongostore: no change stream: new events of other processes are found by polling", "reason", err)
			return
		}
		if pause.wait(s.life) != nil {
			return
		}
	}
}

const (
	// maxAwait is how long the server may wait for a change before it answers
	// that there is none. By itself it would do so every second.
	maxAwait = 10 * time.Second
	// renewed is when a stream is opened anew. With a deadline of its own, a limit
	// that the address sets for calls does not end it; the driver wants one that
	// is not too far away.
	renewed = 24 * time.Hour
)

func (s *Store) follow(opened func()) error {
	ctx, cancel := context.WithTimeout(s.life, renewed)
	defer cancel()
	changes, err := s.commits.Watch(ctx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}},
		{{Key: "$project", Value: bson.D{{Key: "t", Value: "$fullDocument.t"}, {Key: "last", Value: "$fullDocument.last"}}}},
	}, options.ChangeStream().SetMaxAwaitTime(maxAwait))
	if err != nil {
		return err
	}
	defer func() { _ = changes.Close(s.life) }()
	opened()
	for changes.Next(ctx) {
		var row struct {
			Topic string `bson:"t"`
			Last  int64  `bson:"last"`
		}
		if err := changes.Decode(&row); err != nil {
			return err
		}
		if uint64(row.Last) <= s.watch.seenOf(row.Topic) {
			continue // our own, most likely
		}
		if _, err := s.refresh(s.life, row.Topic); err != nil { // wakes
			return err
		}
	}
	return changes.Err()
}
