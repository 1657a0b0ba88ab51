package group_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// crash lets the power fail, perhaps while a good deal is on its way to the
// disk: acks, failures, replays, publishes.
func (m *model) crash() {
	m.logf("crash")
	var calls sync.WaitGroup
	var sent []event.Event
	asked := make(map[*ledger][]group.LetterAt)
	if m.rng.IntN(2) == 0 {
		for _, l := range m.ledgers {
			l.settleSome()
			if m.rng.IntN(3) == 0 {
				list := l.askable()
				asked[l] = list
				calls.Go(func() { _ = l.e.Redeliver(context.Background(), topic, l.name, list) })
			}
		}
		for _, k := range m.someKeys() {
			e := event.New(topic, []byte(`{"n":0}`))
			e.Key = k
			sent = append(sent, e)
		}
		log := m.log
		calls.Go(func() {
			for _, e := range sent {
				_, _ = log.Append(context.Background(), store.Batch{Events: []event.Event{e}})
			}
		})
		for range m.rng.IntN(200) {
			runtime.Gosched()
		}
	}
	m.fail(m.rng.Uint64(), &calls)
	m.open()
	m.survivors(sent)
	for _, l := range m.ledgers {
		for _, f := range l.facts {
			if f.lease == 0 && (!f.settled || f.asked) {
				f.hi++ // it may have been about to be handed out
			}
			f.lease, f.notBy = 0, time.Time{}
		}
	}
	for _, l := range m.ledgers {
		l.lettersAfter(asked[l])
		// One that was delivered is suspect for certain.
		l.fresh = slices.ContainsFunc(l.facts, func(f *fact) bool {
			return f.touched && f.lo > 0 && f.hi < l.set.MaxAttempts && !f.settled && !f.maybe && !f.maybeDead && !f.torn && !f.gone && !f.blocked && !l.parked(f.ev.Key)
		})
	}
	m.crashed = true
	m.begin()
}

// settleSome acks some of what is handed out, and lets some fail, and waits for
// nothing.
func (l *ledger) settleSome() {
	out := l.handedOut()
	for _, f := range out[:l.rng.IntN(len(out)+1)] {
		var n *group.Nack
		if l.rng.IntN(3) == 0 {
			n = &group.Nack{Reason: "no", Dead: l.rng.IntN(2) == 0}
		}
		if err := f.holder.Done(&f.held, n); err != nil {
			l.fatalf("settle seq %d: %v", f.ev.Seq, err)
		}
		l.logf("seq %d: %+v is under way", f.ev.Seq, n)
		switch {
		case n == nil:
			f.maybe = true
		case n.Dead || f.lo >= l.set.MaxAttempts:
			f.lease = 0
			if l.set.DeadLetter == group.DeadBlock && !f.asked {
				f.hi = max(f.hi, l.set.MaxAttempts-1) // and the crash adds one
			} else {
				f.maybeDead = true
			}
		default:
			f.lease = 0
		}
	}
}

// survivors finds out which of the events that were on their way are in the
// log: the first ones, if any. No other may be missing.
func (m *model) survivors(sent []event.Event) {
	b, err := m.log.Bounds(context.Background(), topic)
	if err != nil {
		m.fatalf("%v", err)
	}
	have := len(m.events)
	if int(b.Last) < have || int(b.Last) > have+len(sent) {
		m.fatalf("the topic ends at %d; %d events were published, %d were on their way", b.Last, have, len(sent))
	}
	for e, err := range m.log.Read(context.Background(), store.Query{Topic: topic, After: uint64(have)}) {
		if err != nil {
			m.fatalf("%v", err)
		}
		if e.ID != sent[0].ID {
			m.fatalf("seq %d is not what was sent", e.Seq)
		}
		sent = sent[1:]
		m.known(e)
	}
	m.logf("the topic ends at %d", len(m.events))
}

// lettersAfter finds out what the disk says about dead letters whose replay, or
// the end of it, was under way.
func (l *ledger) lettersAfter(asked []group.LetterAt) {
	in := func(kind string) func(seq uint64) bool {
		c, err := l.log.Cursor(context.Background(), group.LetterTopic(topic), kind+l.name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			l.fatalf("%v", err)
		}
		return func(seq uint64) bool { return seq <= c.Floor || c.Settled.Contains(seq) }
	}
	requested, replayed := in("system.requested:"), in("system.replayed:")
	for _, a := range asked {
		if requested(a.Seq) {
			l.ask(l.byID[a.Original.ID], a.Seq)
			l.logf("replay seq %d", a.Original.Seq)
		}
	}
	for _, f := range l.facts {
		if f.asked && f.maybe {
			if f.maybe = false; replayed(f.letter) {
				l.logf("the replay of seq %d is done", f.ev.Seq)
				f.settle()
			}
		}
	}
}

func (m *model) restart() {
	m.logf("restart")
	for _, l := range m.ledgers {
		for _, f := range l.handedOut() {
			f.lease = 0
			f.lo--
			f.hi--
		}
		for _, f := range l.facts {
			f.notBy, f.touched = time.Time{}, false
		}
		l.fresh = false
	}
	m.close()
	m.open()
	m.begin()
}

// begin has members join after the log was opened.
func (m *model) begin() {
	m.shrink(m.e)
	for _, l := range m.ledgers {
		l.paused, l.members = false, nil
		l.enrol()
	}
	if m.shares() && m.server == nil { // until whoever died owns nothing any more
		time.Sleep(2 * m.ownFor())
	}
	m.settleDown()
}

// shares says whether others may have the log open.
func (m *model) shares() bool { return m.kind == shared || m.server != nil }

// steps says whether a record is written in several.
func (m *model) steps() bool { return m.kind != whole || m.server != nil }
