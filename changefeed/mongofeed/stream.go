package mongofeed

import (
	"bytes"
	"context"
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
	at      place // up to where everything is handed over, with what is made

	made   maker           // changes that were read, and not handed over yet
	absent []bson.RawValue // the _ids of those that still need a document
	time   bson.Timestamp  // of the last change that was read
	saved  time.Time       // when a token was handed over last
}

// closeIn bounds how long it takes to give up a cursor.
const closeIn = 5 * time.Second

// hand gives the sink what was read, and where to go on.
func (r *reader) hand(ctx context.Context, snapshot bool) error {
	changes := r.made.done()
	if len(r.absent) > 0 {
		var err error
		if changes, err = r.lookUp(ctx, changes); err != nil {
			return err
		}
	}
	token, err := r.at.token()
	if err != nil {
		return err
	}
	b := changefeed.Batch{Changes: changes, Token: token, Snapshot: snapshot}
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
	r.saved = time.Now()
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

// follow hands over changes as they come. They are fetched beside it, so that the
// server is at work while changes are made ready and stored.
func (r *reader) follow(ctx context.Context) error {
	changes, err := r.watch(ctx)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancel(ctx)
	f := newFetcher(changes, r.s.o)
	go f.run(inner)
	defer func() {
		cancel()
		for range f.parts { // until it is done
		}
		r.close(ctx, changes)
	}()
	r.saved = time.Now()
	for p := range f.parts {
		if p.err != nil {
			return p.err
		}
		if err := r.take(ctx, p); err != nil {
			return err
		}
		select {
		case f.back <- p:
		default:
		}
	}
	return ctx.Err()
}

// take hands over a part. One without events moves the token, if it is time.
func (r *reader) take(ctx context.Context, p part) error {
	if len(p.events) == 0 {
		if bytes.Equal(p.resume, r.at.Resume) || time.Since(r.saved) < r.s.o.TokenEvery {
			return nil
		}
		r.at.Resume, r.at.At = p.resume, nil
		return r.hand(ctx, false)
	}
	r.made.grow(len(p.events))
	for i, raw := range p.events {
		e, err := parseEvent(raw)
		if err != nil {
			return fmt.Errorf("read a change: %w", err)
		}
		switch e.op {
		case "drop", "rename", "dropDatabase", "invalidate":
			return r.gone(ctx, e, p.events[:i])
		}
		if err := r.add(e); err != nil {
			return err
		}
	}
	r.at.Resume, r.at.At = p.resume, nil
	return r.hand(ctx, false)
}

// gone hands over what came before the end of the stream. The place stays before
// it: whoever comes back meets it again.
func (r *reader) gone(ctx context.Context, end streamEvent, before []bson.Raw) error {
	if n := len(before); n > 0 {
		r.at.Resume, r.at.At = before[n-1].Lookup("_id").Document(), nil
		if err := r.hand(ctx, false); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %s was ended by %s", changefeed.ErrGone, r.s.name(), end.said())
}

// add makes a change of an event. An update whose document is gone is left out:
// the delete that follows tells.
func (r *reader) add(e streamEvent) error {
	r.time = e.time
	if e.op == string(changefeed.OpUpdate) && e.doc == nil {
		if r.s.o.FullDocument != WhenAvailable {
			return nil
		}
		r.absent = append(r.absent, e.id)
	}
	return r.made.event(e)
}

// lookUp finds the documents of updates that came without one.
func (r *reader) lookUp(ctx context.Context, changes []changefeed.Change) ([]changefeed.Change, error) {
	docs, err := r.find(ctx, r.absent)
	if err != nil {
		return nil, fmt.Errorf("look up documents without a post image: %w", err)
	}
	r.absent = nil
	kept := changes[:0]
	for _, c := range changes {
		if c.Op == changefeed.OpUpdate && c.Doc == nil {
			if c.Doc = docs[c.Key]; c.Doc == nil {
				continue
			}
		}
		kept = append(kept, c)
	}
	return kept, nil
}

// find gives documents by key. The reader's session is at work for the stream, so
// it has one of its own, by which no member answers from before the changes.
func (r *reader) find(ctx context.Context, ids []bson.RawValue) (map[string][]byte, error) {
	session, err := r.s.client.StartSession()
	if err != nil {
		return nil, err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	if err := session.AdvanceOperationTime(&r.time); err != nil {
		return nil, err
	}
	ctx = mongo.NewSessionContext(ctx, session)
	found, err := r.s.coll.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close(context.WithoutCancel(ctx)) }()
	docs := make(map[string][]byte)
	for found.Next(ctx) {
		doc, err := appendDocument(nil, found.Current)
		if err != nil {
			return nil, err
		}
		docs[keyOf(found.Current.Lookup("_id"))] = doc
	}
	return docs, found.Err()
}
