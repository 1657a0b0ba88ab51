package mongofeed

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// part is what the server sent at a time, or a piece of it.
type part struct {
	events []bson.Raw
	resume bson.Raw // the place behind them
	err    error    // why no more comes
}

// fetch reads a stream and hands over its parts, one ahead of whoever takes them,
// until the stream fails or the context ends. Then it closes the channel.
func fetch(ctx context.Context, changes *mongo.ChangeStream, o Options, parts chan<- part) {
	defer close(parts)
	for ctx.Err() == nil {
		p := next(ctx, changes, o)
		select {
		case parts <- p:
		case <-ctx.Done():
			return
		}
		if p.err != nil {
			return
		}
	}
}

// next takes what the server has sent, up to what may be handed over at a time.
func next(ctx context.Context, changes *mongo.ChangeStream, o Options) (p part) {
	if !changes.TryNext(ctx) {
		if err := changes.Err(); err != nil {
			return part{err: fmt.Errorf("read the change stream: %w", err)}
		}
		if changes.ID() == 0 {
			return part{err: errors.New("the server has closed the change stream")}
		}
		return part{resume: bytes.Clone(changes.ResumeToken())}
	}
	var a arena
	size := 0
	p.events = make([]bson.Raw, 0, min(changes.RemainingBatchLength()+1, o.BatchSize))
	for {
		// The driver may use the memory again.
		p.events = append(p.events, a.keep(changes.Current))
		size += len(changes.Current)
		if changes.RemainingBatchLength() == 0 || len(p.events) >= o.BatchSize || size >= o.BatchBytes {
			p.resume = bytes.Clone(changes.ResumeToken())
			return p
		}
		if !changes.TryNext(ctx) { // it has more, so that this asks nobody
			return part{err: fmt.Errorf("read the change stream: %w", changes.Err())}
		}
	}
}

// arena is memory for many small values that live about as long as each other.
type arena struct{ free []byte }

const arenaBytes = 64 << 10

// room gives memory to which a value of about n bytes may be appended.
func (a *arena) room(n int) []byte {
	if cap(a.free)-len(a.free) < n {
		a.free = make([]byte, 0, max(arenaBytes, n))
	}
	return a.free[len(a.free):]
}

// used takes what was appended to the room. If it outgrew the room, it has
// memory of its own.
func (a *arena) used(b []byte) []byte {
	if n := len(a.free); cap(b) == cap(a.free)-n {
		a.free = a.free[:n+len(b)]
	}
	return b[:len(b):len(b)]
}

// keep copies a value.
func (a *arena) keep(b []byte) []byte { return a.used(append(a.room(len(b)), b...)) }
