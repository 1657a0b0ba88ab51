package storetest

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"promethean/event"
	"promethean/store"
)

// ledger is what the world outside knows about a store: what it was asked,
// what it answered, and what it showed. A crash must not contradict it.
type ledger struct {
	mu       sync.Mutex
	attempts []*attempt
	byEvent  map[eventName]place
	topics   map[string]*topicNotes
	puts     map[groupName]*putNotes
	// lost holds the settlements that did not survive, with their groups.
	lost []store.Settlement
}

type eventName struct {
	topic string
	id    event.ID
}

// place is an event of an attempt.
type place struct {
	attempt *attempt
	index   int
}

// attempt is one batch that was sent.
type attempt struct {
	events []event.Event
	settle []store.Settlement
	// seqs are the answers, nil while there is none.
	seqs []uint64
	// durable: the store has said that it is stored for good.
	durable bool
	// gone: the batch was not there after a crash, so it must stay away.
	gone bool
}

// topicNotes are what is known about a topic.
type topicNotes struct {
	accepted uint64              // the highest seq that was answered
	seen     map[uint64]event.ID // what a reader was shown
	seenLast uint64
	// Trims: up to where events may be gone, and up to where they must be.
	mayTrim, mustTrim uint64
	// compacted has what a compaction was to remove, and whether it must be
	// gone.
	compacted map[uint64]bool
	// settings were tried in this order; those before sure are replaced.
	settings []store.Settings
	sure     int
}

// putNotes are what is known about a group that is only put.
type putNotes struct {
	tried []store.Cursor // with the version that each makes
	sure  uint64         // the highest version that was answered
}

func newLedger() *ledger {
	return &ledger{
		byEvent: make(map[eventName]place),
		topics:  make(map[string]*topicNotes),
		puts:    make(map[groupName]*putNotes),
	}
}

// clone gives a ledger of its own for each disk that a crash may leave.
func (l *ledger) clone() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := newLedger()
	for _, a := range l.attempts {
		b := *a
		b.seqs = slices.Clone(a.seqs)
		c.add(&b)
	}
	for name, n := range l.topics {
		m := *n
		m.seen, m.settings = maps.Clone(n.seen), slices.Clone(n.settings)
		m.compacted = maps.Clone(n.compacted)
		c.topics[name] = &m
	}
	for name, p := range l.puts {
		c.puts[name] = &putNotes{tried: slices.Clone(p.tried), sure: p.sure}
	}
	c.lost = slices.Clone(l.lost)
	return c
}

func (l *ledger) add(a *attempt) {
	l.attempts = append(l.attempts, a)
	for i, e := range a.events {
		l.byEvent[eventName{e.Topic, e.ID}] = place{a, i}
		l.topic(e.Topic)
	}
}

func (l *ledger) topic(name string) *topicNotes {
	n := l.topics[name]
	if n == nil {
		n = &topicNotes{seen: make(map[uint64]event.ID), compacted: make(map[uint64]bool)}
		l.topics[name] = n
	}
	return n
}

// try notes a batch before it is sent.
func (l *ledger) try(b store.Batch) *attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &attempt{events: b.Events, settle: b.Settle}
	l.add(a)
	return a
}

// accept notes the answer to a batch.
func (l *ledger) accept(a *attempt, got []store.Appended, durable bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.durable = a.durable || durable
	if a.seqs != nil {
		return nil
	}
	for i, answer := range got {
		if answer.Duplicate {
			return broken("a new event is called a duplicate of seq %d", answer.Seq)
		}
		a.seqs = append(a.seqs, answer.Seq)
		n := l.topic(a.events[i].Topic)
		n.accepted = max(n.accepted, answer.Seq)
	}
	return nil
}

// last is the highest seq of a topic that was answered.
func (l *ledger) last(topic string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.topic(topic).accepted
}

// any gives an answered batch of one actor of which nothing was trimmed.
func (l *ledger) any(rng *rand.Rand, actor string) *attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	var fit []*attempt
	for _, a := range l.attempts {
		if a.seqs != nil && strings.HasPrefix(a.events[0].SID, actor+":") && !l.trimmed(a) {
			fit = append(fit, a)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return fit[rng.IntN(len(fit))]
}

// trimmed says whether an event of a may be trimmed or compacted.
func (l *ledger) trimmed(a *attempt) bool {
	for i, e := range a.events {
		n := l.topic(e.Topic)
		if _, ok := n.compacted[a.seqs[i]]; ok || a.seqs[i] < n.mayTrim {
			return true
		}
	}
	return false
}

func (l *ledger) tryPut(c store.Cursor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := groupName{c.Topic, c.Group}
	if l.puts[name] == nil {
		l.puts[name] = &putNotes{}
	}
	c = c.Clone()
	c.Version++
	l.puts[name].tried = append(l.puts[name].tried, c)
}

func (l *ledger) acceptPut(c store.Cursor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.puts[groupName{c.Topic, c.Group}].sure = c.Version
}

func (l *ledger) tryTrim(topic string, before uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.topic(topic)
	n.mayTrim = max(n.mayTrim, min(before, n.accepted+1)) // a trim is about what is there
}

func (l *ledger) acceptTrim(topic string, before uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.topic(topic)
	n.mustTrim = max(n.mustTrim, min(before, n.accepted+1))
}

// A topic that begins with a seq is as one of which all below was trimmed.

func (l *ledger) tryBegin(topic string, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.topic(topic).mayTrim = seq
}

func (l *ledger) acceptBegin(topic string, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.topic(topic)
	n.mustTrim, n.accepted = seq, seq-1
}

func (l *ledger) tryCompact(topic string, gone map[uint64]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.topic(topic)
	for seq := range gone {
		if _, ok := n.compacted[seq]; !ok {
			n.compacted[seq] = false // it may be gone from now on
		}
	}
}

func (l *ledger) acceptCompact(topic string, gone map[uint64]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.topic(topic)
	for seq := range gone {
		n.compacted[seq] = true
	}
}

func (l *ledger) trySet(topic string, s store.Settings) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.topic(topic)
	n.settings = append(n.settings, s)
}

func (l *ledger) acceptSet(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.topic(topic)
	n.sure = len(n.settings) // only its actor sets a topic: it is the last
}

// observe looks at the end of all topics as a reader would, and notes what it
// is shown: that must not change any more. Once over gives an error, nothing
// is noted.
func (l *ledger) observe(e Engine, over func() error) error {
	l.mu.Lock()
	after := make(map[string]uint64)
	for name, n := range l.topics {
		after[name] = n.seenLast
	}
	l.mu.Unlock()
	for name, last := range after {
		events, err := readAll(context.Background(), e, store.Query{Topic: name, After: last})
		if err := cmp.Or(err, over()); err != nil {
			return err
		}
		l.mu.Lock()
		for i := range events {
			if err := l.show(&events[i]); err != nil {
				l.mu.Unlock()
				return err
			}
		}
		l.mu.Unlock()
	}
	return nil
}

// show notes that a reader was shown an event. l.mu is held.
func (l *ledger) show(e *event.Event) error {
	p, ok := l.byEvent[eventName{e.Topic, e.ID}]
	if !ok {
		return broken("topic %s, seq %d: nobody has sent this event: %s", e.Topic, e.Seq, show(e))
	}
	want := at(p.attempt.events[p.index], e.Seq)
	if p.attempt.seqs != nil {
		want.Seq = p.attempt.seqs[p.index]
	}
	if !same(e, &want) {
		return broken("topic %s: the store shows %s, want %s", e.Topic, show(e), show(&want))
	}
	if p.attempt.gone {
		return broken("topic %s, seq %d: an event that was not there after a crash has come back: %s", e.Topic, e.Seq, show(e))
	}
	n := l.topic(e.Topic)
	if n.compacted[e.Seq] {
		return broken("topic %s, seq %d: an event that was compacted has come back: %s", e.Topic, e.Seq, show(e))
	}
	if id, ok := n.seen[e.Seq]; ok && id != e.ID {
		return broken("topic %s, seq %d: shows event %s, and showed %s before", e.Topic, e.Seq, e.ID, id)
	}
	n.seen[e.Seq] = e.ID
	n.seenLast = max(n.seenLast, e.Seq)
	return nil
}
