package group

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"promethean/event"
)

// Member takes events for a group. Its methods may be called concurrently.
type Member struct {
	r        *runner
	limit    int // how much it may hold
	batch    int
	inflight int  // under runner.mu
	notified bool // under runner.mu: it was told and has not come yet
	resting  bool // under runner.mu: it takes nothing now
	gone     bool // under runner.mu
	notify   func()
	owned    func(bool)         // nil: it does not want to know
	epoch    func(epoch uint64) // likewise, of a partition
	ended    func()
}

// MemberOptions configure a member.
type MemberOptions struct {
	// MaxInFlight is how many events it may hold; 0 means DefaultMaxInFlight.
	MaxInFlight int
	// BatchSize is how many events are read ahead for it; 0 means
	// DefaultBatchSize.
	BatchSize int
	// Notify is called when there is something to take, and not again before
	// Take was called. It is called under a lock: it must neither block nor
	// call back.
	Notify func()
	// Resting has it begin at rest: see [Member.Rest].
	Resting bool
	// Owned is called on an engine that several processes share: with true when
	// this one has become the owner of the group, before anything is handed
	// out; with false when it has given the group up, and each time it finds
	// that another one has it. It is called under a lock, as Notify is. May be
	// nil.
	Owned func(owned bool)
}

// Delivery is one event in the hands of a member.
type Delivery struct {
	Event       event.Event
	Attempt     int // the first is 1
	MaxAttempts int
	// Lease names this delivery.
	Lease    uint64
	Deadline time.Time
	// Cursor is the group's floor when the event was handed out.
	Cursor uint64
	// Letter is the seq of the dead letter that the event is replayed from; 0
	// if it comes from the topic.
	Letter uint64

	it      *item
	missing bool // the event has to be read again
}

// Join makes a member of a group, which is made with start if need be.
func (e *Engine) Join(ctx context.Context, topic, group string, set Settings, start Start, o MemberOptions) (*Member, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("topic %s, group %s: %w", topic, group, err)
	}
	r, err := e.open(ctx, topic, group, &set, start)
	if err != nil {
		return nil, err
	}
	m := newMember(r, o)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enroll(m); err != nil {
		return nil, err
	}
	return m, nil
}

func (o *MemberOptions) check() error {
	for _, x := range []struct {
		name  string
		value int
	}{{"maxInFlight", o.MaxInFlight}, {"batchSize", o.BatchSize}} {
		if x.value < 0 {
			return fmt.Errorf("%w: %s %d is negative", ErrInvalid, x.name, x.value)
		}
	}
	return nil
}

func newMember(r *runner, o MemberOptions) *Member {
	m := &Member{r: r, limit: o.MaxInFlight, batch: o.BatchSize, notify: o.Notify, owned: o.Owned, resting: o.Resting}
	if m.limit == 0 {
		m.limit = DefaultMaxInFlight
	}
	if m.batch == 0 {
		m.batch = DefaultBatchSize
	}
	return m
}

// enroll has a member among those that events are handed to. mu must be held.
func (r *runner) enroll(m *Member) error {
	if r.closed {
		return ErrClosed
	}
	if r.failed != nil {
		return r.failed
	}
	r.members = append(r.members, m)
	if r.own.owned {
		r.feed()
	} else {
		r.seek(0)
	}
	return nil
}

// hungry says whether it would take something. runner.mu must be held.
func (m *Member) hungry() bool { return m.inflight < m.limit && !m.resting }

// Rest says that the member takes nothing for a while, or does so again: what
// is ready goes to the others meanwhile. What it holds it keeps.
func (m *Member) Rest(on bool) {
	r := m.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.gone || m.resting == on {
		return
	}
	m.resting = on
	m.notified = false
	r.feed()
}

// Gone says that the membership is over: it was left, or somebody else has
// taken the partition, and it will get nothing again.
func (m *Member) Gone() bool {
	r := m.r
	r.mu.Lock()
	defer r.mu.Unlock()
	return m.gone
}

// Held is how many events it holds.
func (m *Member) Held() int {
	r := m.r
	r.mu.Lock()
	defer r.mu.Unlock()
	return m.inflight
}

// Behind says that there may be something for the member in a moment, though
// there is nothing to take now: the topic, which ends at tail, is not read to
// its end, or something is being recorded first.
func (m *Member) Behind(tail uint64) bool {
	r := m.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if !m.hungry() || m.gone || r.paused || r.closed || r.failed != nil {
		return false
	}
	return !r.own.owned || r.next < tail || r.reading || r.settler
}

// poke tells the member that there is something to take. runner.mu must be
// held.
func (m *Member) poke() {
	if m.notified || m.gone || m.resting || m.notify == nil {
		return
	}
	m.notified = true
	m.notify()
}

// feed tells members of what is ready, and reads on. mu must be held.
func (r *runner) feed() {
	r.read()
	if r.paused || r.closed {
		return
	}
	n := r.ready.len()
	for i := 0; i < len(r.members) && n > 0; i++ {
		m := r.members[(r.turn+i)%len(r.members)]
		if m.hungry() {
			m.poke()
			n -= m.batch
		}
	}
	if len(r.members) > 0 {
		r.turn = (r.turn + 1) % len(r.members)
	}
}

// Take gives up to n events that are ready, none if there are none now.
func (m *Member) Take(n int) []Delivery { return m.TakeWithin(n, math.MaxInt) }

// TakeWithin is Take that gives no more once the events together have so many
// bytes. One that has to be read again counts as half of what is left.
func (m *Member) TakeWithin(n, bytes int) []Delivery {
	r := m.r
	var out []Delivery
	r.mu.Lock()
	m.notified = false
	hungry := 0
	for _, o := range r.members {
		if o.hungry() {
			hungry++
		}
	}
	n = min(n, (r.ready.len()+hungry-1)/max(hungry, 1)) // the others shall get their share
	if n > 0 {
		out = make([]Delivery, 0, n)
	}
	for len(out) < n && bytes > 0 {
		it, ok := r.hand(m)
		if !ok {
			break
		}
		if out = append(out, r.delivery(it)); it.size > 0 {
			bytes -= it.size
		} else {
			bytes -= bytes/2 + 1
		}
	}
	if len(out) > 0 {
		r.more(m)
	} else {
		r.read()
	}
	r.mu.Unlock()
	return m.complete(out)
}

// TakeOne gives one event that is ready. called says that the caller comes
// because of a notification; one that comes back for more says false, so that
// a notification brings one caller, and that one perhaps the next.
func (m *Member) TakeOne(called bool) (d Delivery, ok bool) {
	r := m.r
	r.mu.Lock()
	if called {
		m.notified = false
	}
	it, ok := r.hand(m)
	if ok {
		d = r.delivery(it)
		r.more(m)
	} else {
		r.read()
	}
	r.mu.Unlock()
	if d.missing {
		list := m.complete([]Delivery{d})
		if len(list) == 0 {
			return m.TakeOne(false)
		}
		d = list[0]
	}
	return d, ok
}

// more tells others of what is left after somebody took something. mu must be
// held.
func (r *runner) more(m *Member) {
	r.read()
	if r.ready.len() == 0 || r.paused {
		return
	}
	if len(r.members) == 1 {
		if m.hungry() {
			m.poke()
		}
		return
	}
	r.feed()
}

// complete reads the events again that were not kept. What is gone was
// settled by retention.
func (m *Member) complete(list []Delivery) []Delivery {
	r := m.r
	kept := list[:0]
	for _, d := range list {
		if d.missing {
			ev, found, err := r.fetch(d.it.seq)
			if err != nil {
				r.mu.Lock()
				r.breakDown(err)
				r.mu.Unlock()
				continue
			}
			if !found {
				m.lost(&d)
				continue
			}
			r.mu.Lock()
			if d.it.state == leased && d.it.lease == d.Lease {
				d.it.keep(ev)
			}
			r.mu.Unlock()
			d.Event, d.missing = ev, false
		}
		kept = append(kept, d)
	}
	return kept
}

// lost settles a delivery whose event retention has removed, and all others
// that went with it.
func (m *Member) lost(d *Delivery) {
	r := m.r
	b, err := r.e.log.Bounds(r.e.ctx, r.topic)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.breakDown(err)
		return
	}
	if d.it.state == leased && d.it.lease == d.Lease {
		r.endLease(d.it)
		r.lose(d.it)
	}
	if b.First > r.first {
		r.trimmed(b.First)
	}
	r.trySuspect()
}

// hand leases the next ready item to m. mu must be held.
func (r *runner) hand(m *Member) (*item, bool) {
	if r.paused || r.closed || r.failed != nil || m.gone || !m.hungry() || !r.isOwner() {
		return nil, false
	}
	for {
		it := r.ready.peek()
		if it == nil {
			return nil, false
		}
		if it.state != ready {
			r.ready.pop() // settled meanwhile
			continue
		}
		if it.letter == 0 && r.isParked(it.key) {
			r.ready.pop()
			r.follow(it)
			r.trySuspect()
			continue
		}
		if it.seq > r.cur.Handed && it.letter == 0 {
			r.top = max(r.top, it.seq)
			r.settle() // raises the mark
			return nil, false
		}
		if !r.isOwner() {
			return nil, false
		}
		r.ready.pop()
		// No mark stands for the first delivery of a replayed one.
		if (it.delivered > 0 || it.letter != 0) && it.recorded <= it.delivered {
			it.state = recording // it comes back when that is durable
			r.records = append(r.records, it)
			r.settle()
			continue
		}
		r.kept -= it.size
		it.state, it.member, it.handed = leased, m, true
		it.delivered++
		r.tokens++
		it.lease = r.tokens
		it.deadline = time.Now().Add(r.set.AckTimeout)
		m.inflight++
		r.leases.live++
		r.leases.add(it)
		r.schedule(it.deadline)
		r.e.o.Observer.Delivered(r.topic, r.group, it.delivered > 1)
		r.e.o.Observer.InFlight(r.topic, r.group, 1)
		if it.letter == 0 && it.seq > r.top {
			r.top = it.seq
			if r.top+r.ahead()/2 > r.cur.Handed {
				r.settle()
			}
		}
		return it, true
	}
}

func (r *runner) delivery(it *item) Delivery {
	return Delivery{
		Event: it.ev, Attempt: int(it.delivered), MaxAttempts: r.set.MaxAttempts,
		Lease: it.lease, Deadline: it.deadline, Cursor: r.cur.Floor, Letter: it.letter, it: it, missing: it.size == 0,
	}
}

// Leave ends the membership. What it holds goes back at once and does not
// count as delivered.
func (m *Member) Leave() { m.end(false) }

// Drop ends the membership of somebody who is gone without a word: what it
// holds has failed.
func (m *Member) Drop() { m.end(true) }

func (m *Member) end(failed bool) {
	r := m.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.gone {
		return
	}
	m.gone = true
	r.members = slices.DeleteFunc(r.members, func(x *Member) bool { return x == m })
	var mine []*item
	for _, it := range r.held {
		if it.member == m && it.state == leased {
			mine = append(mine, it)
		}
	}
	// The lowest comes first again.
	slices.SortFunc(mine, func(a, b *item) int {
		if failed {
			return int(a.seq) - int(b.seq)
		}
		return int(b.seq) - int(a.seq)
	})
	for _, it := range mine {
		if failed {
			r.e.o.Observer.Nacked(r.topic, r.group)
			r.fail(it, "the consumer is gone", 0, false)
		} else {
			r.giveBack(it)
		}
	}
	r.feed()
	if len(r.members) == 0 {
		r.seek(0) // others may have members
	}
}

// Alive gives the deadline of a delivery, which may have been extended, and
// says whether its holder may go on: it has neither failed nor run out.
func (m *Member) Alive(d *Delivery) (time.Time, bool) {
	r := m.r
	r.mu.Lock()
	defer r.mu.Unlock()
	return d.it.deadline, d.it.state == leased && d.it.lease == d.Lease || d.it.acked == d.Lease
}
