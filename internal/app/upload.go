package app

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"promethean/client"
	"promethean/event"
)

// batch is what is published with one call.
type batch struct {
	rows  []byte
	marks []uint64 // where each row comes from: a line, or a seq
}

// uploader publishes rows in the order in which they are put, in batches: while
// one is on its way the next comes together, so it is as large as the hub is
// slow, and a single row does not wait for others. Its calls are tried again
// while the hub is away; every row has an id, so nothing is stored twice.
type uploader struct {
	c    *client.Client
	wait patience
	// done is told of each batch that is durable. It is called by one
	// goroutine.
	done func(b *batch, got []client.Stored) error
	// source names a mark in errors: "line" or "seq".
	source string

	mu     sync.Mutex
	next   *batch
	closed bool
	some   chan struct{} // there is something to send, or the end
	space  chan struct{} // there is room
}

// run publishes what feed puts, and returns when all of it is durable. If feed
// fails, what it has put before is published all the same.
func (l *uploader) run(ctx context.Context, feed func(ctx context.Context, put func(mark uint64, e *event.Event) error) error) error {
	l.next = &batch{}
	l.some, l.space = make(chan struct{}, 1), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := make(chan error, 1)
	go func() {
		err := l.send(ctx)
		if err != nil {
			cancel() // whoever feeds it shall not wait
		}
		sent <- err
	}()
	fed := feed(ctx, func(mark uint64, e *event.Event) error { return l.put(ctx, mark, e) })
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	wake(l.some)
	if err := <-sent; err != nil {
		return err
	}
	return fed
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds a row, and waits while there is no room for it.
func (l *uploader) put(ctx context.Context, mark uint64, e *event.Event) error {
	for {
		l.mu.Lock()
		b := l.next
		if len(b.marks) < client.MaxBatch {
			before := len(b.rows)
			rows, err := e.AppendStoredJSON(b.rows)
			if err != nil {
				l.mu.Unlock()
				return err
			}
			rows = append(rows, '\n')
			if len(rows) <= client.MaxBatchBytes || before == 0 {
				b.rows, b.marks = rows, append(b.marks, mark)
				l.mu.Unlock()
				wake(l.some)
				return nil
			}
			b.rows = rows[:before] // the memory stays
		}
		l.mu.Unlock()
		select {
		case <-l.space:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send publishes one batch after the other.
func (l *uploader) send(ctx context.Context) error {
	spare := &batch{}
	for {
		select {
		case <-l.some:
		case <-ctx.Done():
			return ctx.Err()
		}
		l.mu.Lock()
		b, closed := l.next, l.closed
		if len(b.marks) == 0 {
			l.mu.Unlock()
			if closed {
				return nil
			}
			continue
		}
		l.next = spare
		l.mu.Unlock()
		wake(l.space)
		if closed {
			wake(l.some) // for the end
		}
		var got []client.Stored
		err := l.wait.do(ctx, func() (err error) {
			got, err = l.c.PostRows(ctx, b.rows)
			return err
		})
		if err == nil && len(got) != len(b.marks) {
			err = fmt.Errorf("the hub answered %d events with %d receipts", len(b.marks), len(got))
		}
		if err == nil {
			err = l.done(b, got)
		}
		if err != nil {
			return l.placed(b, err)
		}
		b.rows, b.marks = b.rows[:0], b.marks[:0]
		spare = b
	}
}

// placed says which line or event an error is about.
func (l *uploader) placed(b *batch, err error) error {
	var refused *client.Error
	if errors.As(err, &refused) && refused.Index != nil && *refused.Index < len(b.marks) {
		return fmt.Errorf("%s %d: %w", l.source, b.marks[*refused.Index], err)
	}
	return err
}
