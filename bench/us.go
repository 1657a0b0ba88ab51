package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"promethean/event"
	"promethean/store"
)

// engineTarget is our own engine, called in process as an embedder calls it.
type engineTarget struct {
	log store.Log
}

func (*engineTarget) Name() string       { return nameUs }
func (*engineTarget) Durability() string { return durable }
func (*engineTarget) Available() error   { return nil }

func (t *engineTarget) Open(_ context.Context, dir string) error {
	log, err := openLog(dir)
	if err != nil {
		return err
	}
	t.log = log // only now: a failed Open may give a nil pointer in the interface
	return nil
}

func (t *engineTarget) Publisher(context.Context, int) (publisher, error) {
	return enginePublisher{t.log}, nil
}

func (t *engineTarget) Close() error {
	if t.log == nil {
		return nil
	}
	err := t.log.Close()
	t.log = nil
	return err
}

type enginePublisher struct{ log store.Log }

func (p enginePublisher) Publish(ctx context.Context, evs []event.Event) error {
	answers, err := p.log.Append(ctx, store.Batch{Events: evs})
	if err == nil && len(answers) != len(evs) {
		err = fmt.Errorf("%d answers for %d events", len(answers), len(evs))
	}
	return err
}

func (enginePublisher) Close() error { return nil }

// Settle looks up each event by its id, and the newest event of its key, which
// is the event itself unless another publisher met the same key later.
func (t *engineTarget) Settle(ctx context.Context, last []event.Event) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for i := range last {
		if err := t.found(ctx, &last[i]); err != nil {
			return err
		}
	}
	return nil
}

// found tries until the lookups answer: an index that is written behind may
// need a moment, and that moment is what the clock has to see.
func (t *engineTarget) found(ctx context.Context, e *event.Event) error {
	for {
		seq, err := t.log.LocateID(ctx, e.Topic, e.ID)
		if err == nil {
			err = t.newestOfKey(ctx, e, seq)
		}
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(time.Millisecond):
		}
	}
}

func (t *engineTarget) newestOfKey(ctx context.Context, e *event.Event, seq uint64) error {
	for got, err := range t.log.Read(ctx, store.Query{Topic: e.Topic, Key: e.Key, Reverse: true, Limit: 1}) {
		if err != nil {
			return err
		}
		if got.Key != e.Key || got.Seq == seq && got.ID != e.ID {
			return fmt.Errorf("topic %s, key %s: the newest event is seq %d with key %s and id %v", e.Topic, e.Key, got.Seq, got.Key, got.ID)
		}
		if got.Seq >= seq {
			return nil
		}
	}
	return fmt.Errorf("topic %s, key %s, seq %d: %w", e.Topic, e.Key, seq, store.ErrNotFound)
}
