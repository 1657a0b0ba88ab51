package mongofeed

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// part is what the server sent at a time, or a piece of it. Its events are in
// memory that is used again once it is given back.
type part struct {
	events []bson.Raw
	memory []byte
	resume bson.Raw // the place behind them
	err    error    // why no more comes
}

// fetcher reads a stream, one part ahead of whoever takes them.
type fetcher struct {
	changes *mongo.ChangeStream
	o       Options
	parts   chan part
	back    chan part // those that are done with
}

func newFetcher(changes *mongo.ChangeStream, o Options) *fetcher {
	return &fetcher{changes: changes, o: o, parts: make(chan part), back: make(chan part, 2)}
}

// run hands over parts until the stream fails or the context ends. Then it closes
// the channel.
func (f *fetcher) run(ctx context.Context) {
	defer close(f.parts)
	for ctx.Err() == nil {
		p := f.next(ctx)
		select {
		case f.parts <- p:
		case <-ctx.Done():
			return
		}
		if p.err != nil {
			return
		}
	}
}

// next takes what the server has sent, up to what may be handed over at a time.
func (f *fetcher) next(ctx context.Context) (p part) {
	if !f.changes.TryNext(ctx) {
		if err := f.changes.Err(); err != nil {
			return part{err: fmt.Errorf("read the change stream: %w", err)}
		}
		if f.changes.ID() == 0 {
			return part{err: errors.New("the server has closed the change stream")}
		}
		return part{resume: bytes.Clone(f.changes.ResumeToken())}
	}
	select {
	case p = <-f.back:
		p.events, p.memory = p.events[:0], p.memory[:0]
	default:
	}
	for size := 0; ; {
		// The driver's own memory is good until the next look only.
		begin := len(p.memory)
		p.memory = append(p.memory, f.changes.Current...)
		p.events = append(p.events, p.memory[begin:len(p.memory):len(p.memory)])
		size += len(f.changes.Current)
		if f.changes.RemainingBatchLength() == 0 || len(p.events) >= f.o.BatchSize || size >= f.o.BatchBytes {
			p.resume = bytes.Clone(f.changes.ResumeToken())
			return p
		}
		if !f.changes.TryNext(ctx) { // it has more, so that this asks nobody
			return part{err: fmt.Errorf("read the change stream: %w", f.changes.Err())}
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
