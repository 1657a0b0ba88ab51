package group_test

import (
	"context"
	"errors"
	"slices"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/internal/crashfs"
)

// The inputs of the model: each puts something to the group and does the same
// to what the model knows.

func (m *model) publishSome() {
	var keys []string
	for range 1 + m.rng.IntN(6) {
		keys = append(keys, pick(m.rng, []string{"", "a", "b", "c"}))
	}
	for _, e := range m.publish(keys...) {
		f := &fact{ev: e}
		m.facts = append(m.facts, f)
		m.byID[e.ID] = f
		if e.Seq != uint64(len(m.facts)) {
			m.fatalf("published seq %d, want %d", e.Seq, len(m.facts))
		}
	}
	m.logf("publish %q up to seq %d", keys, len(m.facts))
}

func (m *model) take() {
	if len(m.members) == 0 {
		return
	}
	w := pick(m.rng, m.members)
	n := 1 + m.rng.IntN(5)
	got := w.Take(n)
	if m.paused && len(got) > 0 {
		m.fatalf("delivered in a pause")
	}
	if m.fresh && len(got) > 1 {
		m.fatalf("%d suspects at a time", len(got))
	}
	if len(got) > 0 {
		m.fresh = false
	}
	for _, d := range got {
		m.delivered(w, d)
	}
}

// delivered checks one hand-out.
func (m *model) delivered(w *member, d group.Delivery) {
	f := m.byID[d.Event.ID]
	m.logf("seq %d is delivered, attempt %d", d.Event.Seq, d.Attempt)
	switch {
	case f == nil:
		m.fatalf("seq %d was never published", d.Event.Seq)
	case f.settled && !f.asked:
		m.fatalf("seq %d comes back, and it is settled", f.ev.Seq)
	case !f.asked && m.set.Ordering == group.ByKey && m.parked(f.ev.Key):
		m.fatalf("seq %d is handed out, and its key is parked", f.ev.Seq)
	case f.blocked:
		m.fatalf("seq %d comes back, and it is blocked", f.ev.Seq)
	case f.lease != 0:
		m.fatalf("seq %d is handed out twice", f.ev.Seq)
	case time.Now().Before(f.notBy):
		m.fatalf("seq %d comes back %v early", f.ev.Seq, time.Until(f.notBy))
	case d.Attempt < f.lo+1 || d.Attempt > f.hi+1:
		m.fatalf("seq %d: attempt %d, want %d to %d", f.ev.Seq, d.Attempt, f.lo+1, f.hi+1)
	case d.Event.Seq != f.ev.Seq || d.Event.Key != f.ev.Key || string(d.Event.Payload) != string(f.ev.Payload):
		m.fatalf("seq %d has changed", f.ev.Seq)
	case d.Attempt > m.set.MaxAttempts:
		m.fatalf("seq %d: attempt %d of %d", f.ev.Seq, d.Attempt, m.set.MaxAttempts)
	}
	m.touched = true
	f.maybe = false
	if m.set.Ordering != group.Unordered {
		for _, before := range m.facts[:f.ev.Seq-1] {
			if m.set.Ordering == group.ByKey && (f.ev.Key == "" || before.ev.Key != f.ev.Key) {
				continue
			}
			if before.asked {
				m.fatalf("seq %d is handed out before seq %d is replayed", f.ev.Seq, before.ev.Seq)
			}
			if !before.settled && !before.maybe && !before.gone {
				m.fatalf("seq %d is handed out before seq %d is settled", f.ev.Seq, before.ev.Seq)
			}
			before.settled = before.settled || before.maybe
		}
	}
	f.lo, f.hi = d.Attempt, d.Attempt
	f.lease, f.holder, f.held = d.Lease, w, d
	f.until = time.Now().Add(m.set.AckTimeout)
}

// handedOut gives what is in somebody's hands.
func (m *model) handedOut() (out []*fact) {
	for _, f := range m.facts {
		if f.lease != 0 {
			out = append(out, f)
		}
	}
	return out
}

// parked says whether a key has dead letters that are not done.
func (m *model) parked(key string) bool {
	return m.set.DeadLetter == group.DeadKey && key != "" && slices.ContainsFunc(m.facts, func(f *fact) bool { return f.ev.Key == key && f.open > 0 })
}

// replay asks for dead letters.
func (m *model) replay() {
	list := m.world.letters("g")
	list = list[:m.rng.IntN(len(list)+1)]
	if len(list) == 0 {
		return
	}
	if err := m.e.Redeliver(context.Background(), topic, "g", list); err != nil {
		m.fatalf("redeliver: %v", err)
	}
	for _, l := range list {
		f := m.byID[l.Original.ID]
		if f.asked {
			m.fatalf("seq %d has two dead letters that are not done", f.ev.Seq)
		}
		m.logf("replay seq %d", f.ev.Seq)
		f.asked, f.lo, f.hi, f.lease, f.notBy = true, 0, 0, 0, time.Time{}
	}
}

func (f *fact) settle() {
	if f.asked {
		f.asked = false
		f.open--
	}
	f.settled, f.lease, f.blocked, f.maybe = true, 0, false, false
}

func (m *model) ackOne() {
	out := m.handedOut()
	if len(out) == 0 {
		return
	}
	f := pick(m.rng, out)
	m.logf("ack seq %d", f.ev.Seq)
	if m.rng.IntN(2) == 0 {
		if err := f.holder.Done(&f.held, nil); err != nil {
			m.fatalf("ack seq %d: %v", f.ev.Seq, err)
		}
	} else {
		m.ack("g", f.ev.ID)
	}
	f.settle()
}

// failed is what the model does when a delivery has failed.
func (m *model) failed(f *fact, notBy time.Time, dead bool) {
	f.lease, f.notBy = 0, notBy
	if !dead && f.lo < m.set.MaxAttempts {
		return
	}
	m.logf("seq %d is dead", f.ev.Seq)
	if m.set.DeadLetter == group.DeadBlock {
		f.blocked = true
		f.lo, f.hi = m.set.MaxAttempts, m.set.MaxAttempts
		return
	}
	m.bury(f)
}

func (m *model) bury(f *fact) {
	f.settle()
	f.letters++
	f.open++
}

func (m *model) nackOne() {
	out := m.handedOut()
	if len(out) == 0 {
		return
	}
	f := pick(m.rng, out)
	n := group.Nack{Reason: "no", Dead: m.rng.IntN(6) == 0}
	notBy := time.Now().Add(75 * time.Millisecond)
	if m.rng.IntN(3) == 0 {
		n.Delay, n.HasDelay = time.Duration(m.rng.IntN(5000))*time.Millisecond, true
		notBy = time.Now().Add(n.Delay)
	}
	m.logf("nack seq %d, %+v", f.ev.Seq, n)
	lease := uint64(0)
	if m.rng.IntN(2) == 0 {
		lease = f.lease
	}
	res, err := m.e.Nack(topic, "g", []group.Selected{{ID: f.ev.ID, Lease: lease}}, n)
	if err != nil || res[0].Err != nil {
		m.fatalf("nack seq %d: %v %v", f.ev.Seq, err, res)
	}
	m.failed(f, notBy, n.Dead)
}

func (m *model) extend() {
	out := m.handedOut()
	if len(out) == 0 {
		return
	}
	f := pick(m.rng, out)
	by := time.Duration(1+m.rng.IntN(120)) * time.Second
	res, err := m.e.Extend(topic, "g", []group.Selected{{ID: f.ev.ID, Lease: f.lease}}, by)
	if err != nil || res[0].Err != nil {
		m.fatalf("extend seq %d: %v %v", f.ev.Seq, err, res)
	}
	m.logf("extend seq %d by %v", f.ev.Seq, by)
	f.until = time.Now().Add(by)
}

// pass lets time pass.
func (m *model) pass() {
	d := time.Duration(m.rng.IntN(3000)) * time.Millisecond
	if m.rng.IntN(4) == 0 {
		d *= 30
	}
	time.Sleep(d)
	synctest.Wait()
	m.logf("%v pass", d)
	for _, f := range m.handedOut() {
		if !time.Now().Before(f.until) {
			m.logf("the lease of seq %d is over", f.ev.Seq)
			m.failed(f, f.until.Add(75*time.Millisecond), false)
		}
	}
}

func (m *model) joinOne() {
	if len(m.members) < 3 {
		m.enrol()
	}
}

// part takes a member away.
func (m *model) part() *member {
	if len(m.members) == 0 {
		return nil
	}
	i := m.rng.IntN(len(m.members))
	w := m.members[i]
	m.members = slices.Delete(m.members, i, i+1)
	return w
}

func (m *model) leaveOne() {
	if w := m.part(); w != nil {
		m.logf("a member leaves")
		w.Leave()
		for _, f := range m.handedOut() {
			if f.holder == w {
				f.lease = 0
				f.lo--
				f.hi--
			}
		}
	}
}

func (m *model) dropOne() {
	if w := m.part(); w != nil {
		m.logf("a member is lost")
		w.Drop()
		for _, f := range m.handedOut() {
			if f.holder == w {
				m.failed(f, time.Time{}, false)
			}
		}
	}
}

func (m *model) pause() {
	m.paused = !m.paused
	m.logf("paused: %v", m.paused)
	do := m.e.Resume
	if m.paused {
		do = m.e.Pause
	}
	if err := do(context.Background(), topic, "g"); err != nil {
		m.fatalf("%v", err)
	}
}

func (m *model) move() {
	if len(m.facts) == 0 || slices.ContainsFunc(m.facts, func(f *fact) bool { return f.open > 0 }) {
		return // an event and its dead letter would both be to be handled
	}
	to := max(uint64(m.rng.IntN(len(m.facts)+1)), m.trimmed)
	m.logf("move the cursor to %d", to)
	if err := m.e.Move(context.Background(), topic, "g", group.Start{From: group.FromSeq, Seq: to}); err != nil {
		m.fatalf("move: %v", err)
	}
	m.fresh, m.touched = false, false
	for _, f := range m.facts {
		f.lease, f.lo, f.hi, f.notBy, f.blocked, f.maybe = 0, 0, 0, time.Time{}, false, false
		f.settled = f.ev.Seq <= to
	}
}

func (m *model) trim() {
	if len(m.facts) == 0 {
		return
	}
	to := uint64(m.rng.IntN(len(m.facts) + 1))
	if to <= m.trimmed {
		return
	}
	m.logf("trim up to %d", to)
	if err := m.log.Trim(context.Background(), topic, to+1); err != nil {
		m.fatalf("trim: %v", err)
	}
	m.trimmed, m.fresh = to, false
	for _, f := range m.facts[:to] {
		f.gone = true
	}
}

// crash lets the power fail, perhaps while acks are on their way.
func (m *model) crash() {
	m.logf("crash")
	out := m.handedOut()
	if m.rng.IntN(2) == 0 {
		for _, f := range out[:m.rng.IntN(len(out)+1)] {
			if f.asked {
				continue
			}
			if err := f.holder.Done(&f.held, nil); err != nil {
				m.fatalf("ack seq %d: %v", f.ev.Seq, err)
			}
			m.logf("ack of seq %d under way", f.ev.Seq)
			f.maybe = true
		}
	}
	image := m.fs.Image(m.rng.Uint64(), crashfs.Config{})
	m.close()
	m.fs, m.world.fs = image, image
	for _, f := range m.facts {
		if f.lease == 0 && (!f.settled || f.asked) {
			f.hi++ // it may have been about to be handed out
		}
		f.lease, f.notBy = 0, time.Time{}
	}
	m.reopen()
	// One that was delivered is suspect for certain.
	m.fresh = m.touched && slices.ContainsFunc(m.facts, func(f *fact) bool {
		return f.lo > 0 && f.hi < m.set.MaxAttempts && !f.settled && !f.maybe && !f.gone && !f.blocked
	})
}

func (m *model) restart() {
	m.logf("restart")
	for _, f := range m.handedOut() {
		f.lease = 0
		f.lo--
		f.hi--
	}
	for _, f := range m.facts {
		f.notBy = time.Time{}
	}
	m.close()
	m.touched, m.fresh = false, false
	m.reopen()
}

func (m *model) reopen() {
	m.paused = false
	m.open()
	m.members = nil
	m.enrol()
}

// strangers settles what nobody was given.
func (m *model) strangers() {
	res, err := m.e.Ack(topic, "g", []group.Selected{{ID: event.NewID()}}, false)
	if err != nil || !errors.Is(res[0].Err, group.ErrUnknownID) {
		m.fatalf("ack of an unknown id: %v %v", err, res)
	}
	for _, f := range m.handedOut() {
		res, err := m.e.Nack(topic, "g", []group.Selected{{ID: f.ev.ID, Lease: f.lease + 1<<30}}, group.Nack{})
		if err != nil || !errors.Is(res[0].Err, group.ErrFenced) {
			m.fatalf("nack with another lease: %v %v", err, res)
		}
	}
	for _, f := range m.facts {
		if f.settled && !f.gone && !f.asked {
			if res, err := m.e.Ack(topic, "g", []group.Selected{{ID: f.ev.ID}}, false); err != nil || res[0].Err != nil {
				m.fatalf("ack seq %d again: %v %v", f.ev.Seq, err, res)
			}
			return
		}
	}
}
