package group_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"promethean/event"
	"promethean/group"
)

// The inputs of the model: each puts something to the group and does the same
// to what the model knows.

func (m *model) publishSome() {
	keys := m.someKeys()
	m.known(m.publish(keys...)...)
	m.logf("publish %q up to seq %d", keys, len(m.events))
}

func (m *model) someKeys() (keys []string) {
	for range 1 + m.rng.IntN(6) {
		keys = append(keys, pick(m.rng, []string{"", "a", "b", "c"}))
	}
	return keys
}

// known adds events that are in the log.
func (m *model) known(events ...event.Event) {
	for _, e := range events {
		m.events = append(m.events, e)
		if e.Seq != uint64(len(m.events)) {
			m.fatalf("seq %d, want %d", e.Seq, len(m.events))
		}
		for _, l := range m.ledgers {
			f := &fact{ev: e, refused: !l.passes(&e)}
			l.facts = append(l.facts, f)
			l.byID[e.ID] = f
		}
	}
}

func (l *ledger) take() {
	if len(l.members) == 0 {
		return
	}
	w := pick(l.rng, l.members)
	n := 1 + l.rng.IntN(5)
	got := w.Take(n)
	if l.paused && len(got) > 0 {
		l.fatalf("delivered in a pause")
	}
	if l.fresh && len(got) > 1 {
		l.fatalf("%d suspects at a time", len(got))
	}
	if len(got) > 0 {
		l.fresh = false
	}
	for _, d := range got {
		l.delivered(w, d)
	}
}

// delivered checks one hand-out.
func (l *ledger) delivered(w *member, d group.Delivery) {
	f := l.byID[d.Event.ID]
	l.logf("seq %d is delivered, attempt %d", d.Event.Seq, d.Attempt)
	switch {
	case f == nil:
		l.fatalf("seq %d was never published", d.Event.Seq)
	case f.refused:
		l.fatalf("seq %d is handed out, and the filter refuses it", d.Event.Seq)
	case f.settled && !f.asked:
		l.fatalf("seq %d comes back, and it is settled", f.ev.Seq)
	case !f.asked && l.parked(f.ev.Key):
		l.fatalf("seq %d is handed out, and its key is parked", f.ev.Seq)
	case f.blocked:
		l.fatalf("seq %d comes back, and it is blocked", f.ev.Seq)
	case f.lease != 0:
		l.fatalf("seq %d is handed out twice", f.ev.Seq)
	case time.Now().Before(f.notBy):
		l.fatalf("seq %d comes back %v early", f.ev.Seq, time.Until(f.notBy))
	case d.Attempt < f.lo+1 || d.Attempt > f.hi+1:
		l.fatalf("seq %d: attempt %d, want %d to %d", f.ev.Seq, d.Attempt, f.lo+1, f.hi+1)
	case d.Event.Seq != f.ev.Seq || d.Event.Key != f.ev.Key || string(d.Event.Payload) != string(f.ev.Payload):
		l.fatalf("seq %d has changed", f.ev.Seq)
	case d.Attempt > l.set.MaxAttempts:
		l.fatalf("seq %d: attempt %d of %d", f.ev.Seq, d.Attempt, l.set.MaxAttempts)
	}
	f.touched = true
	f.maybe, f.maybeDead = false, false
	if l.set.Ordering != group.Unordered {
		for _, before := range l.facts[:f.ev.Seq-1] {
			if l.set.Ordering == group.ByKey && (f.ev.Key == "" || before.ev.Key != f.ev.Key) {
				continue
			}
			if before.asked {
				l.fatalf("seq %d is handed out before seq %d is replayed", f.ev.Seq, before.ev.Seq)
			}
			if !before.settled && !before.maybe && !before.gone && !before.refused {
				l.fatalf("seq %d is handed out before seq %d is settled", f.ev.Seq, before.ev.Seq)
			}
			before.settled = before.settled || before.maybe
		}
	}
	f.lo, f.hi = d.Attempt, d.Attempt
	f.lease, f.holder, f.held = d.Lease, w, d
	f.until = time.Now().Add(l.set.AckTimeout)
}

// handedOut gives what is in somebody's hands.
func (l *ledger) handedOut() (out []*fact) {
	for _, f := range l.facts {
		if f.lease != 0 {
			out = append(out, f)
		}
	}
	return out
}

// parked says whether a key has dead letters that are not done.
func (l *ledger) parked(key string) bool {
	return l.set.DeadLetter == group.DeadKey && key != "" && slices.ContainsFunc(l.facts, func(f *fact) bool { return f.ev.Key == key && f.open > 0 })
}

// replay asks for dead letters.
func (l *ledger) replay() {
	list := l.askable()
	if len(list) == 0 {
		return
	}
	if err := l.e.Redeliver(context.Background(), topic, l.name, list); err != nil {
		l.fatalf("redeliver: %v", err)
	}
	for _, letter := range list {
		f := l.byID[letter.Original.ID]
		l.ask(f, letter.Seq)
		l.logf("replay seq %d", f.ev.Seq)
	}
}

// askable gives some of the dead letters that can be replayed. An event that is
// to be delivered itself is left out: the model could not tell the two apart.
func (l *ledger) askable() []group.LetterAt {
	list := slices.DeleteFunc(l.letters(l.name), func(a group.LetterAt) bool { return l.byID[a.Original.ID].torn })
	return list[:l.rng.IntN(len(list)+1)]
}

// ask takes down that a dead letter's original is to be handed out again.
func (l *ledger) ask(f *fact, letter uint64) {
	if f.asked {
		l.fatalf("seq %d has two dead letters that are not done", f.ev.Seq)
	}
	f.asked, f.letter, f.lo, f.hi, f.lease, f.notBy = true, letter, 0, 0, 0, time.Time{}
}

func (f *fact) settle() {
	if f.asked {
		f.asked = false
		f.open--
	}
	f.settled, f.lease, f.blocked, f.maybe, f.maybeDead, f.torn = true, 0, false, false, false, false
}

func (l *ledger) ackOne() {
	out := l.handedOut()
	if len(out) == 0 {
		return
	}
	f := pick(l.rng, out)
	l.logf("ack seq %d", f.ev.Seq)
	if l.rng.IntN(2) == 0 {
		if err := f.holder.Done(&f.held, nil); err != nil {
			l.fatalf("ack seq %d: %v", f.ev.Seq, err)
		}
	} else {
		l.ack(l.name, f.ev.ID)
	}
	f.settle()
}

// failed is what the model does when a delivery has failed.
func (l *ledger) failed(f *fact, notBy time.Time, dead bool) {
	f.lease, f.notBy = 0, notBy
	if !dead && f.lo < l.set.MaxAttempts {
		return
	}
	l.logf("seq %d is dead", f.ev.Seq)
	if l.set.DeadLetter == group.DeadBlock {
		f.blocked = true
		f.lo, f.hi = l.set.MaxAttempts, l.set.MaxAttempts
		return
	}
	l.bury(f)
}

func (l *ledger) bury(f *fact) {
	if f.torn {
		f.settle()
		return
	}
	f.settle()
	f.letters++
	f.open++
}

func (l *ledger) nackOne() {
	out := l.handedOut()
	if len(out) == 0 {
		return
	}
	f := pick(l.rng, out)
	n := group.Nack{Reason: "no", Dead: l.rng.IntN(6) == 0}
	notBy := time.Now().Add(75 * time.Millisecond)
	if l.rng.IntN(3) == 0 {
		n.Delay, n.HasDelay = time.Duration(l.rng.IntN(5000))*l.unit(), true
		notBy = time.Now().Add(n.Delay)
	}
	l.logf("nack seq %d, %+v", f.ev.Seq, n)
	lease := uint64(0)
	if l.rng.IntN(2) == 0 {
		lease = f.lease
	}
	res, err := l.e.Nack(topic, l.name, []group.Selected{{ID: f.ev.ID, Lease: lease}}, n)
	if err != nil || res[0].Err != nil {
		l.fatalf("nack seq %d: %v %v", f.ev.Seq, err, res)
	}
	l.failed(f, notBy, n.Dead)
}

// raise gives the group more attempts: what was blocked has some again.
func (l *ledger) raise() {
	if l.set.MaxAttempts >= 8 {
		return
	}
	l.set.MaxAttempts++
	l.logf("%d attempts from now on", l.set.MaxAttempts)
	if err := l.e.Change(context.Background(), topic, l.name, group.Settings{MaxAttempts: l.set.MaxAttempts}); err != nil {
		l.fatalf("%v", err)
	}
	for _, f := range l.facts {
		if f.blocked {
			f.blocked, f.notBy = false, time.Time{}
		}
	}
}

func (l *ledger) extend() {
	out := l.handedOut()
	if len(out) == 0 {
		return
	}
	f := pick(l.rng, out)
	by := time.Duration(1+l.rng.IntN(120)) * time.Second
	res, err := l.e.Extend(topic, l.name, []group.Selected{{ID: f.ev.ID, Lease: f.lease}}, by)
	if err != nil || res[0].Err != nil {
		l.fatalf("extend seq %d: %v %v", f.ev.Seq, err, res)
	}
	l.logf("extend seq %d by %v", f.ev.Seq, by)
	f.until = time.Now().Add(by)
}

// pass lets time pass.
func (m *model) pass() {
	d := time.Duration(m.rng.IntN(3000)) * m.unit()
	if m.rng.IntN(4) == 0 {
		d *= 30
	}
	m.sleep(d)
}

// unit is what a millisecond of the model takes.
func (m *model) unit() time.Duration {
	if m.server != nil {
		return time.Millisecond / 30
	}
	return time.Millisecond
}

func (m *model) sleep(d time.Duration) {
	time.Sleep(d)
	m.settleDown()
	m.logf("%v pass", d)
	m.expire()
}

// expire takes down which leases are over. In real time none may end in the
// next moment, while nobody looks.
func (m *model) expire() {
	if m.server != nil {
		for _, l := range m.ledgers {
			for _, f := range l.handedOut() {
				if left := time.Until(f.until); left < 500*time.Millisecond {
					time.Sleep(left + 100*time.Millisecond)
					m.settleDown()
				}
			}
		}
	}
	for _, l := range m.ledgers {
		for _, f := range l.handedOut() {
			if !time.Now().Before(f.until) {
				l.logf("the lease of seq %d is over", f.ev.Seq)
				l.failed(f, f.until.Add(75*time.Millisecond), false)
			}
		}
	}
}

func (l *ledger) joinOne() {
	if len(l.members) < 3 {
		l.enrol()
	}
}

// part takes a member away.
func (l *ledger) part() *member {
	if len(l.members) == 0 {
		return nil
	}
	i := l.rng.IntN(len(l.members))
	w := l.members[i]
	l.members = slices.Delete(l.members, i, i+1)
	return w
}

// deserted is called when a member is gone. A group that others might have
// members of is given up when it has none here, and cleanly.
func (l *ledger) deserted() {
	if !l.shares() || len(l.members) > 0 {
		return
	}
	l.fresh = false
	for _, f := range l.facts {
		f.touched, f.notBy = false, time.Time{}
	}
}

func (l *ledger) leaveOne() {
	if w := l.part(); w != nil {
		l.logf("a member leaves")
		w.Leave()
		for _, f := range l.handedOut() {
			if f.holder == w {
				f.lease = 0
				f.lo--
				f.hi--
			}
		}
		l.deserted()
	}
}

func (l *ledger) dropOne() {
	if w := l.part(); w != nil {
		l.logf("a member is lost")
		w.Drop()
		for _, f := range l.handedOut() {
			if f.holder == w {
				l.failed(f, time.Time{}, false)
			}
		}
		l.deserted()
	}
}

func (l *ledger) pause() {
	l.paused = !l.paused
	l.logf("paused: %v", l.paused)
	do := l.e.Resume
	if l.paused {
		do = l.e.Pause
	}
	if err := do(context.Background(), topic, l.name); err != nil {
		l.fatalf("%v", err)
	}
}

func (l *ledger) move() {
	if len(l.facts) == 0 || slices.ContainsFunc(l.facts, func(f *fact) bool { return f.open > 0 }) {
		return // an event and its dead letter would both be to be handled
	}
	to := max(uint64(l.rng.IntN(len(l.facts)+1)), l.trimmed)
	l.logf("move the cursor to %d", to)
	if err := l.e.Move(context.Background(), topic, l.name, group.Start{From: group.FromSeq, Seq: to}); err != nil {
		l.fatalf("move: %v", err)
	}
	l.fresh = false
	for _, f := range l.facts {
		f.lease, f.lo, f.hi, f.notBy, f.blocked, f.maybe, f.maybeDead, f.touched = 0, 0, 0, time.Time{}, false, false, false, false
		f.settled = f.ev.Seq <= to
	}
}

func (m *model) trim() {
	if len(m.events) == 0 {
		return
	}
	to := uint64(m.rng.IntN(len(m.events) + 1))
	if to <= m.trimmed {
		return
	}
	m.logf("trim up to %d", to)
	if err := m.log.Trim(context.Background(), topic, to+1); err != nil {
		m.fatalf("trim: %v", err)
	}
	m.trimmed = to
	for _, l := range m.ledgers {
		l.fresh = false
		for _, f := range l.facts[:to] {
			f.gone = true
		}
	}
}

// strangers settles what nobody was given.
func (l *ledger) strangers() {
	res, err := l.e.Ack(topic, l.name, []group.Selected{{ID: event.NewID()}}, false)
	if err != nil || !errors.Is(res[0].Err, group.ErrUnknownID) {
		l.fatalf("ack of an unknown id: %v %v", err, res)
	}
	for _, f := range l.handedOut() {
		res, err := l.e.Nack(topic, l.name, []group.Selected{{ID: f.ev.ID, Lease: f.lease + 1<<30}}, group.Nack{})
		if err != nil || !errors.Is(res[0].Err, group.ErrFenced) {
			l.fatalf("nack with another lease: %v %v", err, res)
		}
	}
	for _, f := range l.facts {
		if f.settled && !f.gone && !f.asked && !f.refused {
			if res, err := l.e.Ack(topic, l.name, []group.Selected{{ID: f.ev.ID}}, false); err != nil || res[0].Err != nil {
				l.fatalf("ack seq %d again: %v %v", f.ev.Seq, err, res)
			}
			return
		}
	}
}
