package group_test

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// cutLog is a shared log that can be out of reach for one engine, as it is
// after its process has died.
type cutLog struct {
	group.Log
	leases store.Leases
	cut    *atomic.Bool
	late   *atomic.Int64 // nanoseconds that an answer about a lease takes; may be nil
}

func cutOff(log group.Log, cut *atomic.Bool) group.Log {
	return cutLog{log, log.(store.Leases), cut, nil}
}

func (cutLog) SharedByProcesses() {}

// Holder asks past the cut: it is what others see.
func (l cutLog) Holder(ctx context.Context, name string) (store.Lease, error) {
	return l.Log.(store.Holds).Holder(ctx, name)
}

func (l cutLog) MaxBatch() (events, bytes int) { return l.Log.(store.Bounded).MaxBatch() }

func (l cutLog) err() error {
	if l.cut.Load() {
		return fmt.Errorf("%w: cut off", store.ErrUnavailable)
	}
	return nil
}

func (l cutLog) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if err := l.err(); err != nil {
		return nil, err
	}
	return l.Log.Append(ctx, b)
}

func (l cutLog) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	if err := l.err(); err != nil {
		return func(yield func(event.Event, error) bool) { yield(event.Event{}, err) }
	}
	return l.Log.Read(ctx, q)
}

func (l cutLog) Cursor(ctx context.Context, topic, name string) (store.Cursor, error) {
	if err := l.err(); err != nil {
		return store.Cursor{}, err
	}
	return l.Log.Cursor(ctx, topic, name)
}

func (l cutLog) PutCursor(ctx context.Context, c store.Cursor) (uint64, error) {
	if err := l.err(); err != nil {
		return 0, err
	}
	return l.Log.PutCursor(ctx, c)
}

func (l cutLog) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
	if err := l.err(); err != nil {
		return store.Lease{}, err
	}
	return l.leases.Acquire(ctx, name, owner, ttl)
}

func (l cutLog) Renew(ctx context.Context, s store.Lease, ttl time.Duration) (store.Lease, error) {
	if err := l.err(); err != nil {
		return s, err
	}
	renewed, err := l.leases.Renew(ctx, s, ttl)
	if l.late != nil {
		time.Sleep(time.Duration(l.late.Load())) // its answer is on its way
	}
	return renewed, err
}

func (l cutLog) Release(ctx context.Context, s store.Lease) error {
	if err := l.err(); err != nil {
		return err
	}
	return l.leases.Release(ctx, s)
}
