package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
)

// Update applies an event to the value of its key: f gets what the key stands
// for, false if nothing, and gives what it stands for from then on. The change is
// durable when Update returns. An event that has been applied before is left out
// without an error. d is the delivery that the handler got with the event; nil
// means that it is no replayed dead letter.
//
// f may return [Delete] or [Keep]. Any other error is given back, and nothing is
// changed. A value whose JSON is a tombstone, such as that of a nil pointer,
// deletes too. f may be called several times, with values of different ages, of
// which the last counts: it must do nothing but compute. What it is given is its
// own to change.
//
// An event that can never be applied, such as one without a key or one whose
// value breaks the limits of the hub, is refused with [promethean.Dead].
func (t *Table[K, V]) Update(ctx context.Context, e event.Event, d *promethean.Delivery, f func(v V, ok bool) (V, error)) error {
	letter := d != nil && d.Letter != 0
	return t.t.update(ctx, &e, letter, func(p *part, key string, r record) (value []byte, err error) {
		var v V
		if r.value != nil || r.alien {
			if v, err = decode[V](t.t, p, key, r); err != nil {
				return nil, err
			}
		}
		v, err = f(v, r.value != nil)
		if errors.Is(err, Delete) {
			return nil, nil
		}
		if err != nil {
			if errors.Is(err, Keep) {
				return nil, Keep
			}
			return nil, t.t.fail(key, p.n, err)
		}
		if value, err = json.Marshal(v); err != nil {
			return nil, t.t.fail(key, p.n, promethean.Dead(fmt.Errorf("value: %w", err)))
		}
		if store.Tombstone(value) {
			return nil, nil
		}
		return value, nil
	})
}

// update has a value computed and appends it, until nobody else gets in between.
func (t *table) update(ctx context.Context, e *event.Event, letter bool, compute func(*part, string, record) ([]byte, error)) error {
	p, key, err := t.place(e)
	if err != nil {
		return err
	}
	r, _ := p.get(key)
	fresh := false // r was read in this call
	for {
		// A source seq only grows, so this holds whatever the age of r is.
		switch {
		case e.Seq < r.source && letter:
			return t.fail(key, p.n, promethean.Dead(fmt.Errorf(
				"event %s, seq %d, comes back from the dead letters after seq %d of its key was applied: whether it was applied itself is not known; replay it to the topic in place of the group", e.ID, e.Seq, r.source)))
		case e.Seq <= r.source:
			return nil
		}
		value, err := compute(p, key, r)
		if errors.Is(err, Keep) {
			return nil
		}
		if err == nil {
			var next record
			if next, err = t.append(ctx, e, key, r.seq, value); err == nil {
				p.put(key, next)
				return nil
			}
			var conflict *store.SeqConflictError
			if !errors.As(err, &conflict) {
				return t.fail(key, p.n, err)
			}
			r, err = t.await(ctx, key, conflict.Actual)
		} else {
			if fresh {
				return err
			}
			// It may have been judged by an old value, or by none of a key that
			// was deleted.
			r, err = t.newest(ctx, key)
		}
		if err != nil {
			return t.fail(key, p.n, err)
		}
		fresh = true
		p.put(key, r)
	}
}

// place finds the key of an event, and its partition.
func (t *table) place(e *event.Event) (*part, string, error) {
	refuse := func(format string, args ...any) error {
		return promethean.Dead(fmt.Errorf("table %s, event %s: %w: "+format, append([]any{t.name, e.ID, event.ErrInvalidArgument}, args...)...))
	}
	key := ""
	if t.o.KeyOf != nil {
		key = t.o.KeyOf(e)
	}
	if key == "" {
		key = e.Key
	}
	switch {
	case key == "":
		return nil, "", refuse("it has no key")
	case e.Seq == 0:
		return nil, "", refuse("it has no seq, so that it was not published")
	}
	t.mu.RLock()
	source := t.source
	p, err := t.homeLocked(key)
	if stored, ok := e.Partition.Get(); p == nil && ok && t.o.Partitions == 0 && t.count > 0 {
		// It may have been divided in another way than by its key.
		if p = t.parts[stored]; p == nil {
			p = t.parts[stored%t.count]
		}
	}
	t.mu.RUnlock()
	if source == "" {
		t.mu.Lock()
		if t.source == "" {
			t.source = e.Topic
		}
		source = t.source
		t.mu.Unlock()
	}
	if source != e.Topic {
		return nil, "", refuse("it is of topic %s, and the table of %s", e.Topic, source)
	}
	if p == nil {
		return nil, "", err
	}
	return p, key, nil
}

// record is what a changelog record says of its key.
type record struct {
	seq    uint64 // in the changelog; 0: there is none
	source uint64
	value  []byte // nil: the key is deleted
	alien  bool   // somebody else has written it
}

// errAlien says that a record is not one of a table.
var errAlien = errors.New("the record is not the table's: it has no " + SourceHeader)

// parse reads a record.
func parse(e *event.Event) record {
	r := record{seq: e.Seq}
	text, _ := e.Headers.Get(SourceHeader)
	var err error
	if r.source, err = strconv.ParseUint(text, 10, 64); err != nil {
		r.alien = true
		return r
	}
	if !store.Tombstone(e.Payload) {
		r.value = e.Payload
	}
	return r
}

// tombstone is the payload of the record of a deleted key.
var tombstone = json.RawMessage("null")

// append stores the next record of a key. A nil value deletes it.
func (t *table) append(ctx context.Context, e *event.Event, key string, last uint64, value []byte) (record, error) {
	next := event.Event{
		Topic: t.o.Changelog, Key: key, Payload: value, CausedBy: []string{e.ID.String()},
		Headers: event.Headers{{Name: SourceHeader, Value: strconv.FormatUint(e.Seq, 10)}},
	}
	if value == nil {
		next.Payload = tombstone
	}
	got, err := t.hub.PublishIf(ctx, []store.Expect{{Topic: t.o.Changelog, Key: key, Seq: last}}, next)
	if err != nil {
		if rule := (*event.RuleError)(nil); errors.As(err, &rule) {
			err = promethean.Dead(err)
		}
		return record{}, err
	}
	return record{seq: got[0].Seq, source: e.Seq, value: value}, nil
}

// newest reads the last record of a key.
func (t *table) newest(ctx context.Context, key string) (record, error) {
	for e, err := range t.hub.Read(ctx, store.Query{Topic: t.o.Changelog, Key: key, Reverse: true, Limit: 1}) {
		if err != nil {
			return record{}, fmt.Errorf("read topic %s: %w", t.o.Changelog, err)
		}
		e := e.Clone()
		return parse(&e), nil
	}
	return record{}, nil
}

// patience is how long a record that is known to be on its way is waited for
// before the append is tried again.
const patience = 100 * time.Millisecond

// await reads the last record of a key, once the one with a seq is visible: it
// may have been judged against before it was.
func (t *table) await(ctx context.Context, key string, seq uint64) (record, error) {
	r, err := t.newest(ctx, key)
	if err != nil || r.seq >= seq {
		return r, err
	}
	w := t.hub.Log().Watch(t.o.Changelog)
	defer w.Stop()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		// It may be gone for good by now: the next append tells.
		if r, err = t.newest(ctx, key); err != nil || r.seq >= seq {
			return r, err
		}
		select {
		case <-w.C:
		case <-timer.C:
			return r, nil
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
}
