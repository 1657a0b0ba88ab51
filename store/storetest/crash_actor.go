package storetest

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"

	"promethean/event"
	"promethean/store"
)

// shared is the topic that all actors write.
const shared = "shared"

// actor is one caller of a workload. What it does follows from its random
// numbers alone.
type actor struct {
	r     *rig
	name  string
	rng   *rand.Rand
	alone bool // nobody else uses the store: it may be closed and opened

	own     []string // topics that nobody else writes, so that it may trim them
	begun   []string // topics that it let begin with another seq than 1
	keys    int
	count   int
	settled uint64 // up to where its group has settled own[0]
	put     store.Cursor
}

func newActor(r *rig, name string, rng *rand.Rand, alone bool) *actor {
	a := &actor{r: r, name: name, rng: rng, alone: alone, own: []string{name + ".a", name + ".b"}, keys: 5}
	a.put = store.Cursor{Topic: a.own[1], Group: "moved"}
	return a
}

// play works for a number of steps, or until something fails.
func (a *actor) play(steps int) error {
	// Two groups: one that only settlements change, one that is only put.
	if err := a.putCursor(&store.Cursor{Topic: a.own[0], Group: "work"}); err != nil {
		return err
	}
	for range steps {
		if err := a.step(); err != nil {
			return fmt.Errorf("%s, step %d: %w", a.name, a.count, err)
		}
		if a.rng.IntN(3) == 0 {
			if err := a.r.observe(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *actor) step() error {
	a.count++
	switch p := a.rng.IntN(100); {
	case p < 24:
		return a.append(store.Batch{Events: a.events(1)})
	case p < 42:
		return a.append(store.Batch{Events: a.events(2 + a.rng.IntN(5))})
	case p < 52:
		return a.append(store.Batch{Events: a.events(1 + a.rng.IntN(2)), Async: true})
	case p < 59:
		return a.again()
	case p < 69:
		return a.settle(a.events(1 + a.rng.IntN(2)))
	case p < 75:
		return a.settle(nil)
	case p < 80:
		return a.putCursor(&a.put)
	case p < 85:
		return a.trim()
	case p < 89:
		return a.compact()
	case p < 92:
		return a.set()
	case p < 94:
		return a.begin()
	case p < 97 || !a.alone:
		topic := a.own[a.rng.IntN(2)]
		e := a.event(topic)
		return a.append(store.Batch{Events: []event.Event{e}, Expect: []store.Expect{{Topic: topic, Seq: a.r.book.last(topic)}}})
	}
	return a.reopen()
}

// event makes an event. Its id follows from the random numbers too, and is in
// the order of time for every second one only.
func (a *actor) event(topic string) event.Event {
	var id event.ID
	for i := range id {
		id[i] = byte(a.rng.Uint32())
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	if a.rng.IntN(2) == 0 {
		binary.BigEndian.PutUint64(id[:], uint64(baseTS+a.count)<<16|7<<12)
	}
	fill := make([]byte, []int{0, 20, 200, 700, 700, 1500}[a.rng.IntN(6)])
	for i := range fill {
		fill[i] = "abcdefghijklmnop"[a.rng.IntN(16)]
	}
	e := event.Event{ID: id, TS: baseTS + int64(a.rng.IntN(5000)), Topic: topic, SID: fmt.Sprintf("%s:%d", a.name, a.count)}
	e.Payload = json.RawMessage(fmt.Sprintf(`{"fill":"%s"}`, fill))
	if k := a.rng.IntN(a.keys); k > 0 {
		e.Key = fmt.Sprintf("key-%d", k)
	}
	if a.rng.IntN(12) == 0 {
		e.Payload = json.RawMessage(`{"_deleted":true}`)
	}
	return e
}

func (a *actor) events(n int) (out []event.Event) {
	topics := []string{a.own[0], a.own[0], a.own[1], shared}
	for range n {
		topic := topics[a.rng.IntN(len(topics))]
		if _, ok := a.r.engine().(store.AtomicTopics); !ok && len(out) > 0 {
			topic = out[0].Topic
		}
		out = append(out, a.event(topic))
	}
	return out
}

func (a *actor) append(b store.Batch) error {
	try := a.r.book.try(b)
	got, err := a.r.engine().Append(context.Background(), b)
	if err != nil {
		return fmt.Errorf("%w: %w", errAppend, err)
	}
	if err := a.r.over(); err != nil {
		return err
	}
	if err := answersFit(b, got); err != nil {
		return broken("%v", err)
	}
	return a.r.book.accept(try, got, !b.Async)
}

// again sends a batch a second time, as after a lost answer.
func (a *actor) again() error {
	try := a.r.book.any(a.rng, a.name)
	if try == nil {
		return a.append(store.Batch{Events: a.events(1)})
	}
	got, err := a.r.engine().Append(context.Background(), store.Batch{Events: try.events})
	if err != nil {
		return fmt.Errorf("%w: %w", errAppend, err)
	}
	if err := a.r.over(); err != nil {
		return err
	}
	for i := range got {
		if !got[i].Duplicate || got[i].Seq != try.seqs[i] {
			return broken("sent again, seq %d of topic %s is answered with %d, duplicate %v", try.seqs[i], try.events[i].Topic, got[i].Seq, got[i].Duplicate)
		}
	}
	return a.r.book.accept(try, got, true)
}

// settle moves the group of own[0] on over seqs that it has not settled, with
// events beside it or without. Each seq is settled once, so that it can be
// told later which of the settlements took place.
func (a *actor) settle(events []event.Event) error {
	if _, ok := a.r.engine().(store.Settles); !ok {
		return a.append(store.Batch{Events: a.events(1)})
	}
	last := a.r.book.last(a.own[0])
	if a.settled >= last {
		return a.append(store.Batch{Events: a.events(1)})
	}
	first := a.settled + 1 + uint64(a.rng.IntN(2)) // sometimes one is left out
	first = min(first, last)
	done := store.Range{First: first, Last: min(last, first+uint64(a.rng.IntN(3)))}
	a.settled = done.Last
	s := store.Settlement{Topic: a.own[0], Group: "work", Done: []store.Range{done}, Handed: done.Last}
	return a.append(store.Batch{Events: events, Settle: []store.Settlement{s}})
}

func (a *actor) putCursor(c *store.Cursor) error {
	c.Meta = fmt.Appendf(nil, "%s %d", a.name, a.count)
	c.Epoch++
	if c.Group == "work" {
		c.Epoch = 0
	}
	a.r.book.tryPut(*c)
	version, err := a.r.engine().PutCursor(context.Background(), *c)
	if err := cmp.Or(err, a.r.over()); err != nil {
		return err
	}
	if version != c.Version+1 {
		return broken("put cursor: version %d after %d", version, c.Version)
	}
	c.Version = version
	a.r.book.acceptPut(*c)
	return nil
}

func (a *actor) trim() error {
	topic := a.own[a.rng.IntN(2)]
	before := a.r.book.last(topic) * uint64(a.rng.IntN(110)) / 100
	if before < 2 {
		return a.append(store.Batch{Events: a.events(1)})
	}
	a.r.book.tryTrim(topic, before)
	if err := cmp.Or(a.r.engine().Trim(context.Background(), topic, before), a.r.over()); err != nil {
		return err
	}
	a.r.book.acceptTrim(topic, before)
	return nil
}

// compact compacts a topic below a seq up to which everything is visible, so
// that it can be told what is to go.
func (a *actor) compact() error {
	e, ok := a.r.engine().(store.Compacts)
	if !ok {
		return a.trim()
	}
	topic := a.own[a.rng.IntN(2)]
	log, err := readAll(context.Background(), a.r.engine(), store.Query{Topic: topic})
	if err := cmp.Or(err, a.r.over()); err != nil {
		return err
	}
	if len(log) == 0 {
		return a.append(store.Batch{Events: a.events(1)})
	}
	last := log[len(log)-1].Seq
	c := store.Compaction{Before: last + 1 - uint64(a.rng.IntN(int(min(last, 4)))), Tombstones: uint64(a.rng.IntN(int(last) + 2))}
	gone := superseded(log, c)
	a.r.book.tryCompact(topic, gone)
	got, err := e.Compact(context.Background(), topic, c)
	if err := cmp.Or(err, a.r.over()); err != nil {
		return err
	}
	if got.Removed != uint64(len(gone)) {
		return broken("compact topic %s %+v: %+v, want %d events removed", topic, c, got, len(gone))
	}
	a.r.book.acceptCompact(topic, gone)
	return nil
}

// begin lets a topic begin with another seq than 1. Once there are some of them,
// it writes one.
func (a *actor) begin() error {
	e, ok := a.r.engine().(store.Begins)
	if !ok {
		return a.append(store.Batch{Events: a.events(1)})
	}
	if n := len(a.begun); n > 0 && a.rng.IntN(n+1) > 0 {
		return a.append(store.Batch{Events: []event.Event{a.event(a.begun[a.rng.IntN(n)])}})
	}
	topic, seq := fmt.Sprintf("%s.begun%d", a.name, len(a.begun)), 2+uint64(a.rng.IntN(1000))
	a.r.book.tryBegin(topic, seq)
	if err := cmp.Or(e.Begin(context.Background(), topic, seq), a.r.over()); err != nil {
		return err
	}
	a.r.book.acceptBegin(topic, seq)
	a.begun = append(a.begun, topic)
	return nil
}

func (a *actor) set() error {
	topic := a.own[0]
	s := store.Settings{Partitions: 1 + a.count, Meta: fmt.Appendf(nil, "%s %d", a.name, a.count)}
	a.r.book.trySet(topic, s)
	if err := cmp.Or(a.r.engine().SetTopic(context.Background(), topic, s), a.r.over()); err != nil {
		return err
	}
	a.r.book.acceptSet(topic)
	return nil
}

func (a *actor) reopen() error {
	if err := a.r.engine().Close(); err != nil {
		return err
	}
	e, err := a.r.d.open()
	if err != nil {
		return err
	}
	a.r.mu.Lock()
	a.r.e = e
	a.r.mu.Unlock()
	return nil
}

// errAppend marks errors of Append.
var errAppend = errors.New("append")

// errBroken marks errors that are the engine's fault even on a broken disk.
var errBroken = errors.New("broken promise")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errBroken, fmt.Sprintf(format, args...))
}
