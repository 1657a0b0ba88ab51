package mongostore

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/event"
	"promethean/store"
)

// Begin implements [store.Begins]. A commit without events is put right below
// the seq, and trimmed: from then on all is as in a topic that had events up to
// there. If it is cut off in between, the commit tells by its sum of bytes that
// no event ever was before it, and whoever begins again trims it.
func (s *Store) Begin(ctx context.Context, topic string, seq uint64) error {
	if err := store.CheckBegin(topic, seq); err != nil {
		return err
	}
	if err := s.call(ctx, func(ctx context.Context) error { return s.begin(ctx, topic, seq) }); err != nil {
		return fmt.Errorf("begin topic %s: %w", topic, err)
	}
	return nil
}

func (s *Store) begin(ctx context.Context, topic string, seq uint64) error {
	for {
		t, err := s.refresh(ctx, topic)
		if err != nil {
			return err
		}
		d, err := s.topicDoc(ctx, topic)
		if err != nil {
			return err
		}
		b := d.bounds(t)
		switch {
		case b.Last+1 == seq && (b.Empty() || t.cum == 0):
			if err := s.ensureTopic(ctx, topic); err != nil {
				return err
			}
			return s.trim(ctx, topic, seq)
		case b.Last != 0:
			return fmt.Errorf("its next seq is %d, not %d: %w", b.Last+1, seq, store.ErrConflict)
		}
		if err := s.ensureTopic(ctx, topic); err != nil {
			return err
		}
		if err := s.insertStub(ctx, topic, seq-1); err != nil && !duplicate(err) {
			return err
		}
	}
}

// insertStub puts a commit that ends at seq, and has no events, into a topic
// that has none.
func (s *Store) insertStub(ctx context.Context, topic string, seq uint64) error {
	nonce := make([]byte, 12)
	_, _ = crand.Read(nonce) // never fails
	doc := bson.D{
		{Key: "_id", Value: commitID(topic, seq)}, {Key: "t", Value: topic}, {Key: "last", Value: int64(seq)},
		{Key: "at", Value: time.Now()}, {Key: "hi", Value: int64(0)}, {Key: "top", Value: int64(0)}, {Key: "cum", Value: int64(0)},
		{Key: "c", Value: bson.Binary{Data: nonce}},
		{Key: "events", Value: bson.A{bson.D{{Key: "seq", Value: int64(stubSeq)}, {Key: "id", Value: uuid(event.NewID())}}}},
	}
	return s.do(ctx, func(ctx context.Context) error {
		_, err := s.commits.InsertOne(ctx, doc)
		return err
	})
}
