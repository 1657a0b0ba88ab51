package storetest

import (
	"context"
	"iter"
	"slices"
	"testing"
	"time"

	"promethean/event"
	"promethean/store"
)

// faulty is a reference with one promise broken. The functions that are set
// stand in for the methods of the same names.
type faulty struct {
	*Reference
	append     func(ctx context.Context, b store.Batch) ([]store.Appended, error)
	read       func(ctx context.Context, q store.Query) iter.Seq2[event.Event, error]
	bounds     func(ctx context.Context, topic string) (store.Bounds, error)
	locateTime func(ctx context.Context, topic string, ts int64) (uint64, error)
	trim       func(ctx context.Context, topic string, before uint64) error
	topicList  func(ctx context.Context) iter.Seq2[store.Topic, error]
	watch      func(topics ...string) *store.Watch
	cursor     func(ctx context.Context, topic, group string) (store.Cursor, error)
	put        func(ctx context.Context, c store.Cursor) (uint64, error)
	cursorList func(ctx context.Context, topic string) iter.Seq2[store.Cursor, error]
	acquire    func(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error)
	renew      func(ctx context.Context, l store.Lease, ttl time.Duration) (store.Lease, error)
	release    func(ctx context.Context, l store.Lease) error
	holder     func(ctx context.Context, name string) (store.Lease, error)
	close      func() error
	reopened   func(r *Reference) // changes the data before they are opened again
}

func (f *faulty) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
	if f.acquire != nil {
		return f.acquire(ctx, name, owner, ttl)
	}
	return f.Reference.Acquire(ctx, name, owner, ttl)
}

func (f *faulty) Renew(ctx context.Context, l store.Lease, ttl time.Duration) (store.Lease, error) {
	if f.renew != nil {
		return f.renew(ctx, l, ttl)
	}
	return f.Reference.Renew(ctx, l, ttl)
}

func (f *faulty) Release(ctx context.Context, l store.Lease) error {
	if f.release != nil {
		return f.release(ctx, l)
	}
	return f.Reference.Release(ctx, l)
}

func (f *faulty) Holder(ctx context.Context, name string) (store.Lease, error) {
	if f.holder != nil {
		return f.holder(ctx, name)
	}
	return f.Reference.Holder(ctx, name)
}

func (f *faulty) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if f.append != nil {
		return f.append(ctx, b)
	}
	return f.Reference.Append(ctx, b)
}

func (f *faulty) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	if f.read != nil {
		return f.read(ctx, q)
	}
	return f.Reference.Read(ctx, q)
}

func (f *faulty) Bounds(ctx context.Context, topic string) (store.Bounds, error) {
	if f.bounds != nil {
		return f.bounds(ctx, topic)
	}
	return f.Reference.Bounds(ctx, topic)
}

func (f *faulty) LocateTime(ctx context.Context, topic string, ts int64) (uint64, error) {
	if f.locateTime != nil {
		return f.locateTime(ctx, topic, ts)
	}
	return f.Reference.LocateTime(ctx, topic, ts)
}

func (f *faulty) Trim(ctx context.Context, topic string, before uint64) error {
	if f.trim != nil {
		return f.trim(ctx, topic, before)
	}
	return f.Reference.Trim(ctx, topic, before)
}

func (f *faulty) Topics(ctx context.Context) iter.Seq2[store.Topic, error] {
	if f.topicList != nil {
		return f.topicList(ctx)
	}
	return f.Reference.Topics(ctx)
}

func (f *faulty) Watch(topics ...string) *store.Watch {
	if f.watch != nil {
		return f.watch(topics...)
	}
	return f.Reference.Watch(topics...)
}

func (f *faulty) Cursor(ctx context.Context, topic, group string) (store.Cursor, error) {
	if f.cursor != nil {
		return f.cursor(ctx, topic, group)
	}
	return f.Reference.Cursor(ctx, topic, group)
}

func (f *faulty) PutCursor(ctx context.Context, c store.Cursor) (uint64, error) {
	if f.put != nil {
		return f.put(ctx, c)
	}
	return f.Reference.PutCursor(ctx, c)
}

func (f *faulty) Cursors(ctx context.Context, topic string) iter.Seq2[store.Cursor, error] {
	if f.cursorList != nil {
		return f.cursorList(ctx, topic)
	}
	return f.Reference.Cursors(ctx, topic)
}

func (f *faulty) Close() error {
	if f.close != nil {
		return f.close()
	}
	return f.Reference.Close()
}

// harnessOf gives stores that spoil has broken.
func harnessOf(spoil func(f *faulty)) Harness {
	open := func(r *Reference) Engine {
		f := &faulty{Reference: r}
		spoil(f)
		return f
	}
	return Harness{
		Name:    "faulty",
		Many:    3000,
		Timeout: 2 * time.Second,
		Open:    func(testing.TB) Engine { return open(NewReference(event.Limits{})) },
		Reopen: func(_ testing.TB, e Engine) Engine {
			f := e.(*faulty)
			_ = f.Close()
			if f.reopened != nil {
				f.reopened(f.Reference)
			}
			return open(f.Reopen())
		},
	}
}

// mapped yields what fn makes of the events that q selects.
func mapped(seq iter.Seq2[event.Event, error], fn func(e event.Event) (event.Event, bool)) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		for e, err := range seq {
			ok := true
			if err == nil {
				e, ok = fn(e)
			}
			if ok && !yield(e, err) {
				return
			}
		}
	}
}

// backwards yields a list from its end.
func backwards[T any](seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var all []T
		for v, err := range seq {
			if err != nil {
				yield(v, err)
				return
			}
			all = append(all, v)
		}
		for _, v := range slices.Backward(all) {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// forget drops the ids of all but the newest events of each topic.
func (r *Reference) forget(keep int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.topics {
		for id, seq := range l.seqs {
			if seq+uint64(keep) <= l.last {
				delete(l.seqs, id)
			}
		}
	}
}

func (r *Reference) lastOf(topic, key string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.topic(topic).lastOf(key)
}
