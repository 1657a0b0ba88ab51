package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
)

// retryStep is how much longer each wait is before a handler is called again.
const retryStep = 100 * time.Millisecond

// Tx is what a handler sees of the collections: it reads what it wrote. It is
// for the one call, and for one goroutine at a time.
type Tx struct {
	t   *transactional
	ctx context.Context
	e   *event.Event
	// undo is what was known before this call changed it.
	undo []undo
	err  error // of the engine
	over bool
}

type undo struct {
	n     docName
	known known
	had   bool
}

// transactional runs the handler of a transactional view.
type transactional struct {
	o       *TransactionalOptions
	l       *line
	overlay *overlay
	// unique says which collections have a unique index: there every step on
	// the way counts, not only how it ends.
	names  []string
	unique map[string]bool

	tried uint64 // the seq of the event that failed last
	tries int    // how often
	again time.Duration
}

func newTransactional(o *TransactionalOptions, l *line) *transactional {
	t := &transactional{o: o, l: l, overlay: newOverlay(l), unique: make(map[string]bool)}
	for _, c := range o.Collections {
		t.names = append(t.names, c.Name)
		t.unique[c.Name] = slices.ContainsFunc(c.Indexes, func(x store.Index) bool { return x.Unique })
	}
	return t
}

// add implements [mapper].
func (t *transactional) add(ctx context.Context, events []event.Event, b *batch) (int, error) {
	t.overlay.tidy()
	last := make(map[docName]int) // where the operation on it stands
	size := 0
	for i := range events {
		if size > readBytes {
			return i, nil
		}
		e := &events[i]
		if err := t.l.refused[e.Seq]; err != nil {
			b.dead = append(b.dead, t.l.v.letter(e, err, 1))
			continue
		}
		if e.Seq == t.tried {
			if err := rest(ctx, t.again); err != nil {
				return 0, err
			}
		}
		tx := &Tx{t: t, ctx: ctx, e: e}
		err := t.call(tx)
		switch {
		case tx.err != nil:
			return 0, tx.err
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case err != nil:
			t.rollBack(tx)
			if e.Seq != t.tried {
				t.tried, t.tries = e.Seq, 0
			}
			if t.tries++; t.tries <= t.o.Retries && !promethean.IsDead(err) {
				t.again = retryStep * time.Duration(t.tries)
				if d, ok := promethean.RetryAfter(err); ok {
					t.again = d
				}
				if i > 0 {
					return i, nil // what is before it takes effect meanwhile
				}
				return t.add(ctx, events, b)
			}
			b.dead = append(b.dead, t.l.v.letter(e, err, t.tries))
			continue
		}
		for _, u := range tx.undo {
			size += t.write(e, u.n, last, b)
		}
	}
	return len(events), nil
}

// write adds the operation on a document that an event has changed.
func (t *transactional) write(e *event.Event, n docName, last map[docName]int, b *batch) int {
	k := t.overlay.docs[n]
	op := store.DocOp{Collection: n.collection + t.l.suffix, Doc: store.Doc{Key: n.key, TS: e.TS, Seq: e.Seq, Body: k.body}}
	if at, ok := last[n]; ok && !t.unique[n.collection] {
		b.ops[at], b.of[at] = op, e.Seq
		return len(k.body)
	}
	last[n] = len(b.ops)
	b.ops, b.of = append(b.ops, op), append(b.of, e.Seq)
	return len(k.body)
}

// call calls the handler.
func (t *transactional) call(tx *Tx) (err error) {
	defer func() {
		tx.over = true
		if p := recover(); p != nil {
			t.l.v.o.Logger.Error("a handler has panicked", "view", t.l.v.name, "seq", tx.e.Seq, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	e := *tx.e
	if t.o.Upcast != nil && string(e.Payload) != "null" {
		if e, err = t.o.Upcast(tx.ctx, e); err != nil {
			return fmt.Errorf("upcast: %w", err)
		}
	}
	return t.o.Handler(tx.ctx, e, tx)
}

// rollBack undoes what a call did.
func (t *transactional) rollBack(tx *Tx) {
	for _, u := range tx.undo {
		if u.had {
			t.overlay.put(u.n, u.known)
		} else {
			t.overlay.forget(u.n)
		}
	}
}

var errOver = errors.New("the call that this transaction was for is over")

// name checks what a handler asks for.
func (tx *Tx) name(collection, key string) (docName, error) {
	n := docName{collection, key}
	switch {
	case tx.over:
		return n, errOver
	case !slices.Contains(tx.t.names, collection):
		return n, fmt.Errorf("%w: collection %q is not declared; the view has %q", store.ErrInvalid, collection, tx.t.names)
	case key == "":
		return n, fmt.Errorf("%w: collection %s: an empty key", store.ErrInvalid, collection)
	}
	if err := checkKey(key); err != nil {
		return n, fmt.Errorf("%w: collection %s: %w", store.ErrInvalid, collection, err)
	}
	return n, nil
}

// Rebuilding says whether the view is being built anew from events that were
// handled before: whoever does something beside the documents leaves it then.
func (tx *Tx) Rebuilding() bool { return tx.t.l.rebuilding }

// Get decodes a document into v, and says whether there is one. A
// *json.RawMessage gets it as it is served.
func (tx *Tx) Get(collection, key string, v any) (bool, error) {
	n, err := tx.name(collection, key)
	if err != nil {
		return false, err
	}
	k, err := tx.t.overlay.get(tx.ctx, n)
	if err != nil {
		tx.err = err
		return false, err
	}
	if k.body == nil {
		return false, nil
	}
	if raw, ok := v.(*json.RawMessage); ok {
		*raw = slices.Clone(k.body)
		return true, nil
	}
	if err := json.Unmarshal(k.body, v); err != nil {
		return true, fmt.Errorf("collection %s, key %q: %w", collection, key, err)
	}
	return true, nil
}

// Put stores a document: a value that is encoded as a JSON object. The fields
// _key and _ts are set: to the key, and to the time of the event.
func (tx *Tx) Put(collection, key string, v any) error {
	n, err := tx.name(collection, key)
	if err != nil {
		return err
	}
	raw, isRaw := v.(json.RawMessage)
	// What was stored, and what was encoded just now, is known to be sound.
	valid := isRaw && len(raw) > 0 && len(raw) == len(tx.e.Payload) && &raw[0] == &tx.e.Payload[0]
	if !isRaw {
		valid = true
		if raw, err = json.Marshal(v); err != nil {
			return fmt.Errorf("collection %s, key %q: %w", collection, key, err)
		}
	}
	object, err := compactObject(raw, valid)
	if err != nil {
		return fmt.Errorf("collection %s, key %q: %w", collection, key, err)
	}
	body, err := appendDocument(make([]byte, 0, len(object)+len(key)+40), key, tx.e.TS, object)
	if err != nil {
		return fmt.Errorf("collection %s, key %q: %w", collection, key, err)
	}
	tx.set(n, body)
	return nil
}

// Delete removes one.
func (tx *Tx) Delete(collection, key string) error {
	n, err := tx.name(collection, key)
	if err != nil {
		return err
	}
	tx.set(n, nil)
	return nil
}

func (tx *Tx) set(n docName, body []byte) {
	o := tx.t.overlay
	if was, had := o.docs[n]; !had || was.seq != tx.e.Seq || !slices.ContainsFunc(tx.undo, func(u undo) bool { return u.n == n }) {
		tx.undo = append(tx.undo, undo{n, was, had})
	}
	o.put(n, known{body: body, seq: tx.e.Seq})
}

// rest waits.
func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
