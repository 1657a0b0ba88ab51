package mongofeed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/changefeed"
)

// reader is one run of a stream.
type reader struct {
	s       *Source
	session *mongo.Session
	sink    func(context.Context, changefeed.Batch) error
	at      place

	changes []changefeed.Change // read, and not handed over yet
	bytes   int
	absent  []int // which of them still need a document
	ids     []bson.RawValue
	time    bson.Timestamp // of the last change that was read
	saved   time.Time      // when a token was handed over last
	scratch []byte
}

// closeIn bounds how long it takes to give up a cursor.
const closeIn = 5 * time.Second

// hand gives the sink what was read, and where to go on.
func (r *reader) hand(ctx context.Context, snapshot bool) error {
	if err := r.lookUp(ctx); err != nil {
		return err
	}
	token, err := r.at.token()
	if err != nil {
		return err
	}
	b := changefeed.Batch{Changes: r.changes, Token: token, Snapshot: snapshot}
	switch {
	case snapshot && r.at.Snapshot != nil && r.at.Snapshot.Last != nil:
		b.Position = "snapshot up to _id " + keyOf(r.at.Snapshot.Last.Lookup("_id"))
	case snapshot:
		b.Position = "snapshot"
	case !r.time.IsZero():
		b.Position = "cluster time " + clock(r.time)
	}
	if err := r.sink(ctx, b); err != nil {
		return sinkError{err}
	}
	r.changes, r.bytes, r.saved = nil, 0, time.Now()
	return nil
}

// watch opens the stream at the place, or now if there is none.
func (r *reader) watch(ctx context.Context) (*mongo.ChangeStream, error) {
	o := options.ChangeStream().SetFullDocument(options.FullDocument(r.s.o.FullDocument)).
		SetBatchSize(int32(min(r.s.o.BatchSize, 1<<30))).SetMaxAwaitTime(r.s.o.MaxAwait)
	switch {
	case r.at.Of == "":
		o.SetBatchSize(0) // an empty batch has the place where it begins
	case r.at.Resume != nil:
		// Not resumeAfter, which does not go on behind the end of a stream.
		o.SetStartAfter(r.at.Resume)
	case r.at.At != nil:
		o.SetStartAtOperationTime(r.at.At)
	}
	changes, err := r.s.coll.Watch(mongo.NewSessionContext(ctx, r.session), mongo.Pipeline{}, o)
	if err != nil {
		err = fmt.Errorf("open the change stream: %w", err)
		if r.at.Resume != nil {
			err = opening{err}
		}
		return nil, err
	}
	return changes, nil
}

func (r *reader) close(ctx context.Context, changes *mongo.ChangeStream) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeIn)
	defer cancel()
	_ = changes.Close(ctx) // the server forgets it by itself
}

// begin takes the place from which on no change is missed, and hands it over
// before anything else, so that a crash does not move it.
func (r *reader) begin(ctx context.Context) error {
	changes, err := r.watch(ctx)
	if err != nil {
		return err
	}
	r.at = place{Of: r.s.name(), Resume: bytes.Clone(changes.ResumeToken())}
	r.close(ctx, changes)
	now := r.session.OperationTime()
	if now == nil {
		return fmt.Errorf("%w: the server does not tell the cluster time: it must be a MongoDB replica set or sharded cluster", changefeed.ErrRefused)
	}
	if r.at.Resume == nil {
		// Changes of this very time are told once more, rather than missed.
		r.at.At = now
	}
	if r.s.o.Snapshot {
		r.at.Snapshot = &snapshotPlace{Time: *now}
	}
	return r.hand(ctx, r.s.o.Snapshot)
}

// follow hands over changes as they come.
func (r *reader) follow(ctx context.Context) error {
	changes, err := r.watch(ctx)
	if err != nil {
		return err
	}
	defer r.close(ctx, changes)
	for r.saved = time.Now(); ; {
		if changes.TryNext(ctx) {
			if err := r.take(ctx, changes); err != nil {
				return err
			}
			continue
		}
		if err := changes.Err(); err != nil {
			return fmt.Errorf("read the change stream: %w", err)
		}
		if changes.ID() == 0 {
			return errors.New("the server has closed the change stream")
		}
		if now := changes.ResumeToken(); now != nil && !bytes.Equal(now, r.at.Resume) && time.Since(r.saved) >= r.s.o.TokenEvery {
			r.at.Resume, r.at.At = bytes.Clone(now), nil
			if err := r.hand(ctx, false); err != nil {
				return err
			}
		}
	}
}

// take reads the change that the stream is at. At the end of what the server has
// sent, or of what may be handed over at a time, it is handed over.
func (r *reader) take(ctx context.Context, changes *mongo.ChangeStream) error {
	e, err := parseEvent(changes.Current)
	if err != nil {
		return fmt.Errorf("read a change: %w", err)
	}
	switch e.op {
	case "drop", "rename", "dropDatabase", "invalidate":
		// The place stays before it: whoever comes back meets it again.
		if len(r.changes) > 0 {
			if err := r.hand(ctx, false); err != nil {
				return err
			}
		}
		return fmt.Errorf("%w: %s was ended by %s", changefeed.ErrGone, r.s.name(), e.said())
	}
	if err := r.add(e); err != nil {
		return err
	}
	r.at.Resume, r.at.At = bytes.Clone(changes.ResumeToken()), nil
	if changes.RemainingBatchLength() == 0 || len(r.changes) >= r.s.o.BatchSize || r.bytes >= r.s.o.BatchBytes {
		return r.hand(ctx, false)
	}
	return nil
}

// add makes a change of an event.
func (r *reader) add(e streamEvent) error {
	c, err := e.change(&r.scratch)
	if err != nil {
		return err
	}
	r.time = e.time
	if c.Op == changefeed.OpUpdate && c.Doc == nil {
		if r.s.o.FullDocument != WhenAvailable {
			return nil // it is gone: the delete that follows tells
		}
		r.absent = append(r.absent, len(r.changes))
		r.ids = append(r.ids, e.id)
	}
	r.changes = append(r.changes, c)
	r.bytes += len(c.Doc)
	return nil
}

// lookUp finds the documents of updates that came without one. Those that are
// gone are left out, as the delete that follows tells.
func (r *reader) lookUp(ctx context.Context) error {
	if len(r.absent) == 0 {
		return nil
	}
	found, err := r.s.coll.Find(mongo.NewSessionContext(ctx, r.session), bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: r.ids}}}})
	if err != nil {
		return fmt.Errorf("look up documents without a post image: %w", err)
	}
	defer func() { _ = found.Close(context.WithoutCancel(ctx)) }()
	docs := make(map[string][]byte)
	for found.Next(ctx) {
		doc, err := appendDocument(nil, found.Current)
		if err != nil {
			return err
		}
		docs[keyOf(found.Current.Lookup("_id"))] = doc
	}
	if err := found.Err(); err != nil {
		return fmt.Errorf("look up documents without a post image: %w", err)
	}
	for _, i := range r.absent {
		r.changes[i].Doc = docs[r.changes[i].Key]
	}
	kept := r.changes[:0]
	for _, c := range r.changes {
		if c.Op != changefeed.OpUpdate || c.Doc != nil {
			kept = append(kept, c)
		}
	}
	r.changes, r.absent, r.ids = kept, nil, nil
	return nil
}
