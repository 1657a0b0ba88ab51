package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"promethean/event"
	"promethean/store"
)

// The number of partitions that a topic has holds from some seq on. Which
// numbers there were, and from where, is kept with the topic, so that whoever
// reads it divides the same events in the same way.
//
// A change goes in two steps, since hubs on other machines read at the same
// time: first it is said that there will be another number, then, after a look at
// where the topic ends, from where on. Whoever has read events and finds nothing
// said after that has read what lies before any change to come. Whoever finds
// the first step alone takes the second.

// termsName is the cursor that they are kept in.
const termsName = "system.partitions"

// term is a number of partitions and the seq that it holds after.
type term struct {
	Count int    `json:"count"`
	After uint64 `json:"after"`
	At    int64  `json:"at,omitempty"` // when it began, epoch ms; 0 for the first
}

type terms struct {
	List []term `json:"terms"`
	Next int    `json:"next,omitempty"` // will hold after a seq that is not known
}

// until is where a term ends, if it does.
func (t *terms) until(i int) (seq uint64, ends bool) {
	if i+1 < len(t.List) {
		return t.List[i+1].After, true
	}
	return 0, false
}

// at gives the term that holds for what comes after a seq.
func (t *terms) at(seq uint64) int {
	i := len(t.List) - 1
	for i > 0 && t.List[i].After > seq {
		i--
	}
	return i
}

// terms reads them. Version is 0 if there are none.
func (e *Engine) terms(ctx context.Context, topic string) (t terms, c store.Cursor, err error) {
	c, err = e.log.Cursor(ctx, topic, termsName)
	if errors.Is(err, store.ErrNotFound) {
		return t, store.Cursor{Topic: topic, Group: termsName}, nil
	}
	if err == nil {
		err = json.Unmarshal(c.Meta, &t)
	}
	if err == nil && len(t.List) == 0 {
		err = errors.New("there is none")
	}
	if err != nil {
		err = fmt.Errorf("partitions of topic %s: %w", topic, err)
	}
	return t, c, err
}

// putTerms writes them, if nobody else did meanwhile.
func (e *Engine) putTerms(ctx context.Context, c store.Cursor, t terms) (err error) {
	if c.Meta, err = json.Marshal(t); err == nil {
		_, err = e.log.PutCursor(ctx, c)
	}
	return err
}

// settledTerms gives the terms of a topic with no change under way. A topic
// that was never divided has none.
func (e *Engine) settledTerms(ctx context.Context, topic string) (terms, error) {
	for {
		t, c, err := e.terms(ctx, topic)
		if err != nil || t.Next == 0 {
			return t, err
		}
		b, err := e.log.Bounds(ctx, topic)
		if err != nil {
			return t, err
		}
		if t.List[len(t.List)-1].Count != t.Next {
			t.List = append(t.List, term{t.Next, b.Last, time.Now().UnixMilli()})
		}
		t.Next = 0
		if err := e.putTerms(ctx, c, t); err != nil && !lostRace(err) {
			return t, err
		}
	}
}

// lostRace says that somebody else has written first.
func lostRace(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrFenced)
}

// countedTerms is settledTerms that writes down how many partitions the topic
// has, if nobody did so far.
func (e *Engine) countedTerms(ctx context.Context, topic string) (terms, error) {
	for {
		t, err := e.settledTerms(ctx, topic)
		if err != nil || len(t.List) > 0 {
			return t, err
		}
		n := 1
		if e.o.Partitions != nil {
			n = max(e.o.Partitions(topic), 1)
		}
		err = e.putTerms(ctx, store.Cursor{Topic: topic, Group: termsName}, terms{List: []term{{Count: n}}})
		if err != nil && !lostRace(err) {
			return t, err
		}
	}
}

// SetPartitions gives a topic another number of partitions. set stores it where
// publishers find it. Groups that follow the topic settle what was published
// before, and then go on with the new number.
func (e *Engine) SetPartitions(ctx context.Context, topic string, was, now int, set func() error) error {
	for {
		t, c, err := e.terms(ctx, topic)
		if err != nil {
			return err
		}
		if len(t.List) == 0 {
			if max(was, 1) == now {
				return set()
			}
			t.List = []term{{Count: max(was, 1)}}
		}
		if t.List[len(t.List)-1].Count == now && t.Next == 0 {
			return set()
		}
		t.Next = now
		err = e.putTerms(ctx, c, t)
		if lostRace(err) {
			continue
		}
		if err == nil {
			err = set()
		}
		if err == nil {
			_, err = e.settledTerms(ctx, topic)
		}
		return err
	}
}

// divider says which partition of a group an event belongs to.
type divider struct {
	count int
	// follows the partition that is stored; others are further numbers of
	// partitions that it may stem from, if it was published close to one of the
	// changes.
	follows bool
	others  []int
	changes []int64
	keyOf   func(*event.Event) string
}

// heardIn is how long it takes at most until all hubs know the number of a
// topic's partitions, in ms.
const heardIn = 60_000

// doubtful says that a publisher of that time may not have known the number.
func (d *divider) doubtful(ts int64) bool {
	for _, at := range d.changes {
		if ts > at-heardIn && ts < at+heardIn {
			return true
		}
	}
	return false
}

// key gives what order follows.
func (d *divider) key(ev *event.Event) string {
	if d.keyOf != nil {
		if k := d.keyOf(ev); k != "" {
			return k
		}
	}
	return ev.Key
}

func (d *divider) of(ev *event.Event) int {
	if !d.follows {
		return event.PartitionFor(d.key(ev), ev.ID, d.count)
	}
	stored, ok := ev.Partition.Get()
	if ok && !d.doubtful(ev.TS) {
		return stored % d.count
	}
	want := event.PartitionFor(ev.Key, ev.ID, d.count)
	if !ok || stored == want {
		return want
	}
	for _, n := range d.others {
		// A hub that did not know the number, or knew it before others, has
		// divided by another one. Events of a key stay together all the same.
		if stored == event.PartitionFor(ev.Key, ev.ID, n) {
			return want
		}
	}
	return stored % d.count
}

// divider makes that of one term.
func (t *terms) divider(i int) *divider {
	d := &divider{count: t.List[i].Count, follows: true}
	for _, x := range t.List {
		if x.Count != d.count {
			d.others = append(d.others, x.Count)
		}
		if x.At > 0 {
			d.changes = append(d.changes, x.At)
		}
	}
	return d
}
