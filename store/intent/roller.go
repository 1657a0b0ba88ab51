package intent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"promethean/event"
	"promethean/store"
)

// discardAfter is how many times the grace an intent whose parts are not all
// there is left alone. Its writer died before it could begin, or is very slow.
const discardAfter = 100

// roller does what others have begun and left. It looks when the store is
// opened and when an intent was written, and again after the grace for as long
// as one is open: it does not poll.
type roller struct {
	l      *Log
	watch  *store.Watch
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup
	// seen says since when an intent is open, by its id, as far as we know:
	// only this process's clock counts.
	seen map[event.ID]time.Time
}

func (r *roller) begin(l *Log) {
	r.l, r.seen = l, make(map[event.ID]time.Time)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.watch = l.Engine.Watch(Topic)
	r.ended.Go(r.run)
}

func (r *roller) end() {
	r.cancel()
	r.watch.Stop()
	r.ended.Wait()
}

func (r *roller) run() {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.watch.C:
		case <-again.C:
		}
		open, err := r.round()
		if err != nil && r.ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
			r.l.o.Logger.Warn("roll intents forward", "err", err)
		}
		if open || err != nil {
			again.Reset(r.l.o.Grace)
		}
	}
}

// intent is what is found of one in the log.
type intent struct {
	id     event.ID
	of     int
	parts  map[int]record
	places store.Ranges
}

// round deals with intents that are open for longer than the grace. It says
// whether some are open still.
func (r *roller) round() (open bool, err error) {
	list, err := r.open()
	if err != nil {
		return false, err
	}
	seen := make(map[event.ID]time.Time)
	for _, in := range list {
		since, known := r.seen[in.id]
		if !known {
			since = time.Now()
		}
		age := time.Since(since)
		switch {
		case len(in.parts) == in.of && age >= r.l.o.Grace:
			err = r.roll(in)
		case len(in.parts) < in.of && age >= discardAfter*r.l.o.Grace:
			r.l.o.Logger.Info("an intent was not written to its end and is dropped", "intent", in.id, "parts", len(in.parts), "of", in.of)
			err = r.l.settle(r.ctx, in.places)
		default:
			seen[in.id] = since
			continue
		}
		if err != nil {
			seen[in.id] = since
			break
		}
	}
	r.seen = seen
	return len(seen) > 0, err
}

// open lists the intents that are not done, in the order of their first parts.
func (r *roller) open() ([]*intent, error) {
	c, err := r.l.Cursor(r.ctx, Topic, group)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []*intent
	byID := make(map[event.ID]*intent)
	for e, err := range r.l.Engine.Read(r.ctx, store.Query{Topic: Topic, After: c.Floor}) {
		if err != nil {
			return nil, err
		}
		if c.Settled.Contains(e.Seq) {
			continue
		}
		var rec record
		if err := json.Unmarshal(e.Payload, &rec); err != nil {
			r.l.o.Logger.Error("an intent cannot be read and is left alone", "seq", e.Seq, "err", err)
			continue
		}
		in := byID[rec.Intent]
		if in == nil {
			in = &intent{id: rec.Intent, of: rec.Of, parts: make(map[int]record)}
			byID[rec.Intent] = in
			list = append(list, in)
		}
		in.parts[rec.Part] = rec
		in.places.Add(store.Range{First: e.Seq, Last: e.Seq})
	}
	return list, nil
}

// roll does the rest of an intent.
func (r *roller) roll(in *intent) error {
	b := store.Batch{Internal: in.parts[0].Hub}
	for i := range in.of {
		for _, k := range in.parts[i].Events {
			e, err := k.event()
			if err != nil {
				return fmt.Errorf("intent %s: %w", in.id, err)
			}
			b.Events = append(b.Events, e)
		}
	}
	r.l.o.Logger.Info("an intent was left and is done now", "intent", in.id, "events", len(b.Events))
	if _, err := r.l.forward(r.ctx, b); err != nil {
		return err
	}
	return r.l.settle(r.ctx, in.places)
}
