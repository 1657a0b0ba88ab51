package group

import (
	"errors"
	"iter"
	"slices"
	"time"

	"promethean/event"
	"promethean/store"
)

// Bounds of one record.
const (
	maxDead      = 64
	maxDeadBytes = 4 << 20
)

// settle starts recording, if it is not under way. mu must be held.
func (r *runner) settle() {
	if r.settler || r.failed != nil {
		return
	}
	r.settler = true
	r.e.work.Go(r.recorder)
}

// record is what goes to the log in one append.
type record struct {
	acks, dead, records []*item
	skipped             store.Ranges
	waiters             []chan<- error
	handed              uint64
	life, generation    uint64
	settlement          store.Settlement
	batch               store.Batch
}

func (rec *record) empty() bool {
	return len(rec.acks) == 0 && len(rec.dead) == 0 && len(rec.records) == 0 && len(rec.skipped) == 0 && rec.handed == 0
}

// runSettler records what has gathered, until nothing has. Whatever comes
// while a record is on its way goes into the next.
func (r *runner) runSettler() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.failed == nil {
		rec := r.gather()
		if rec.empty() {
			for _, w := range rec.waiters {
				w <- nil // what they wait for is recorded
			}
			if len(r.ops) == 0 {
				break
			}
		} else if !r.put(rec) {
			break
		}
		if len(r.ops) > 0 {
			op := r.ops[0]
			r.ops = r.ops[1:]
			op() // gives mu back meanwhile
		}
	}
	r.settler = false
	if r.failed != nil {
		for _, op := range r.ops {
			op()
		}
		r.ops = nil
	}
	if r.finished != nil {
		close(r.finished)
		r.finished = nil
	}
}

// put writes a record and takes over what it says. mu must be held; it is
// given back meanwhile.
func (r *runner) put(rec *record) bool {
	r.writing = rec.skipped
	r.mu.Unlock()
	err := r.write(rec)
	r.mu.Lock()
	r.writing = nil
	if rec.life != r.life {
		// All was forgotten meanwhile. The items were told.
		for _, w := range rec.waiters {
			w <- err
		}
		return true
	}
	if err != nil {
		for _, w := range rec.waiters {
			w <- err
		}
		for _, it := range rec.acks {
			if it.then != nil {
				it.then(err)
				it.then = nil
			}
		}
		r.breakDown(err)
		return r.failed == nil
	}
	r.recorded(rec)
	return true
}

// The handed mark is raised about every paceFrom to paceTo, and runs ahead by as
// many events as are handed out in that time, within bounds. After a crash
// whatever lies below it is suspect and comes one at a time: a group that is slow
// has few.
const (
	minLead  = 32
	paceFrom = 250 * time.Millisecond
	paceTo   = 2 * time.Second
)

// pace looks how long the last mark sufficed. mu must be held.
func (r *runner) pace(now time.Time) {
	switch took := now.Sub(r.raised); {
	case r.raised.IsZero() || took > paceTo:
		r.lead /= 2
	case took < paceFrom:
		r.lead *= 2
	}
	r.lead = min(max(r.lead, minLead), r.e.bounds.handedAhead)
	r.raised = now
}

// ahead is how far the handed mark runs ahead: by about the same number of its
// own events for a partition as for a whole group. mu must be held.
func (r *runner) ahead() uint64 {
	if r.part == nil {
		return r.lead
	}
	return r.lead * uint64(r.part.plan.Count)
}

// gather takes what the next record is made of. mu must be held.
func (r *runner) gather() *record {
	rec := &record{
		acks: r.acks, records: r.records, skipped: r.skipped, waiters: r.waiters,
		life: r.life, generation: r.cur.Generation,
	}
	r.acks, r.records, r.skipped, r.waiters = nil, nil, nil, nil
	n, bytes := 0, 0
	for n < len(r.dead) && n < maxDead && bytes < maxDeadBytes {
		bytes += r.dead[n].size
		n++
	}
	rec.dead = slices.Clone(r.dead[:n])
	r.dead = slices.Delete(r.dead, 0, n)
	if r.mark == 0 && r.top+r.ahead()/2 > r.cur.Handed && !r.closed && r.own.owned {
		r.pace(time.Now())
		rec.handed = r.top + r.ahead()
	}
	r.gatherForeign(rec)
	// The settlement of this group.
	st := &rec.settlement
	*st = store.Settlement{Topic: r.topic, Group: r.cursor, Epoch: r.cur.Epoch, Handed: rec.handed}
	seqs := make([]uint64, 0, len(rec.acks)+len(rec.dead))
	for _, list := range [][]*item{rec.acks, rec.dead} {
		for _, it := range list {
			if it.letter == 0 {
				seqs = append(seqs, it.seq)
			}
		}
	}
	slices.Sort(seqs)
	st.Done = union(rec.skipped, seqs)
	for _, it := range rec.records {
		n := it.delivered + 1
		if it.state == blocked {
			n = it.delivered
		}
		if it.letter == 0 {
			st.Attempts = append(st.Attempts, store.Attempt{Seq: it.seq, Count: n})
		}
	}
	return rec
}

// union gives the ranges of a set together with seqs in ascending order.
func union(set store.Ranges, seqs []uint64) (out []store.Range) {
	add := func(x store.Range) {
		if k := len(out) - 1; k >= 0 && x.First <= out[k].Last+1 {
			out[k].Last = max(out[k].Last, x.Last)
			return
		}
		out = append(out, x)
	}
	for _, seq := range seqs {
		for len(set) > 0 && set[0].First <= seq {
			add(set[0])
			set = set[1:]
		}
		add(store.Range{First: seq, Last: seq})
	}
	for _, x := range set {
		add(x)
	}
	return out
}

// write puts a record into the log.
func (r *runner) write(rec *record) error {
	b := &rec.batch
	if len(rec.settlement.Done) > 0 || len(rec.settlement.Attempts) > 0 || rec.handed > 0 {
		b.Settle = append(b.Settle, rec.settlement)
	}
	for _, it := range rec.dead {
		ev := it.ev
		if it.size == 0 {
			again, found, err := r.fetch(it.seq)
			if err != nil {
				return err
			}
			if !found {
				continue // gone with retention: there is nothing to keep
			}
			ev = again
		}
		letter, ok := r.letter(it, &ev, rec.generation)
		if ok {
			b.Events = append(b.Events, letter)
			b.Internal = true
		}
	}
	for _, it := range rec.acks {
		if it.beside != nil {
			b.Events = append(b.Events, *it.beside)
		}
	}
	b.Settle = append(b.Settle, r.ofLetters(rec)...)
	if len(b.Settle) == 0 && len(b.Events) == 0 {
		return nil
	}
	return r.e.append(r.e.ctx, b)
}

// recorded takes over what a record says, now that it is durable. mu must be
// held.
func (r *runner) recorded(rec *record) {
	r.cur.Settle(&rec.settlement)
	r.releaseKeys(rec)
	now := time.Now()
	for _, it := range rec.records {
		it.recorded = it.delivered + 1
		if it.state == blocked {
			it.recorded = it.delivered
			r.unblock(it)
		}
		if it.state == recording {
			it.state = ready
			r.ready.pushFront(it)
		}
	}
	for _, it := range rec.acks {
		if !it.lost {
			r.e.o.Observer.Acked(r.topic, r.group, now.Sub(time.UnixMilli(it.ts)))
		}
		if it.then != nil {
			it.then(nil)
		}
		r.forget(it)
	}
	for _, it := range rec.dead {
		r.e.o.Observer.DeadLettered(r.topic, r.group)
		r.forget(it)
	}
	for _, w := range rec.waiters {
		w <- nil
	}
	r.trySuspect()
	r.checkEnded()
	r.feed()
}

// Nack says how a delivery has failed.
type Nack struct {
	Reason string
	// Delay is when it comes back, if HasDelay is set; else a growing back-off.
	Delay    time.Duration
	HasDelay bool
	// Dead sends it to the dead letters at once.
	Dead bool
}

// Outcome is what became of a delivery.
type Outcome struct {
	// Nack says how it has failed; nil is an ack.
	Nack *Nack
	// Beside is an event of the hub's own that is appended in the same step as
	// an ack. May be nil.
	Beside *event.Event
	// Then is called once an ack is durable, or the group has failed, and at
	// once for the rest. It is called under a lock. May be nil.
	Then func(error)
}

// Done ends a delivery: with nil it is acked, else it has failed for that
// reason. It does not wait until that is durable. A nack whose lease is over
// is ErrFenced; an ack counts all the same.
func (m *Member) Done(d *Delivery, n *Nack) error { return m.Settle(d, Outcome{Nack: n}) }

// Settle is Done that can say more.
func (m *Member) Settle(d *Delivery, o Outcome) (err error) {
	r := m.r
	r.mu.Lock()
	defer r.mu.Unlock()
	it := d.it
	then := o.Then
	defer func() {
		if then != nil {
			then(err)
		}
	}()
	if err := r.usable(); err != nil {
		return err
	}
	if o.Nack != nil {
		if it.state != leased || it.lease != d.Lease {
			return ErrFenced
		}
		r.nack(it, o.Nack)
		return nil
	}
	if it.over {
		return ErrFenced // the cursor was moved, or somebody else has the group
	}
	if it.state != settling {
		it.beside, it.then, then = o.Beside, o.Then, nil
		r.ack(it)
	}
	return nil
}

// usable says whether deliveries can be settled. mu must be held.
func (r *runner) usable() error {
	switch {
	case r.closed:
		return ErrClosed
	case r.failed != nil:
		return r.failed
	case !r.isOwner():
		return r.named(ErrNotOwner)
	}
	return nil
}

func (r *runner) nack(it *item, n *Nack) {
	r.e.o.Observer.Nacked(r.topic, r.group)
	delay := n.Delay
	if !n.HasDelay {
		delay = backOff(it.delivered)
	}
	r.fail(it, n.Reason, delay, n.Dead)
}

// schedule sees to it that the clock wakes the runner by then. mu must be
// held.
func (r *runner) schedule(at time.Time) {
	if r.closed || !r.timerAt.IsZero() && !at.Before(r.timerAt) {
		return
	}
	r.timerAt = at
	if r.timer == nil {
		r.timer = time.AfterFunc(time.Until(at), r.tick)
		return
	}
	r.timer.Reset(time.Until(at))
}

// tick deals with what has run out.
func (r *runner) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timerAt = time.Time{}
	if r.closed || r.failed != nil {
		return
	}
	now := time.Now()
	r.leases.expired(now, func(it *item) {
		r.e.o.Observer.Nacked(r.topic, r.group)
		r.fail(it, "the lease ran out", backOff(it.delivered), false)
	})
	r.delays.due(now, r.activate)
	if at, ok := r.leases.next(); ok {
		r.schedule(at)
	}
	if len(r.delays) > 0 {
		r.schedule(r.delays[0].due)
	}
	if r.look.After(now) {
		r.schedule(r.look)
	}
	r.feed()
}

// Result answers for one id.
type Result struct {
	ID  event.ID
	Err error // nil: done
}

// Selected names deliveries: by id, and by lease where one is given.
type Selected struct {
	ID    event.ID
	Lease uint64 // 0: whatever lease there is
}

// Ack settles events, whoever holds them. It returns once that is durable, or
// at once if async is set.
func (e *Engine) Ack(topic, group string, ids []Selected, async bool) ([]Result, error) {
	r, err := e.acting(e.ctx, topic, group)
	if errors.Is(err, errParted) {
		return e.inParts(topic, e.runnersOf(topic, group), ids, func(r *runner, ids []Selected) ([]Result, error) { return r.ackAll(ids, async) })
	}
	if err != nil {
		return nil, err
	}
	return r.ackAll(ids, async)
}

func (r *runner) ackAll(ids []Selected, async bool) ([]Result, error) {
	out := make([]Result, len(ids))
	seqs, err := r.locate(ids)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	r.mu.Lock()
	if err := r.usable(); err != nil {
		r.mu.Unlock()
		return nil, err
	}
	for i, s := range ids {
		out[i] = Result{ID: s.ID, Err: r.ofOwner(s)}
		if out[i].Err == nil {
			out[i].Err = r.ackID(s.ID, seqs[i])
		}
	}
	if async {
		r.mu.Unlock()
		return out, nil
	}
	r.waiters = append(r.waiters, done)
	r.settle()
	r.mu.Unlock()
	return out, r.named(<-done)
}

// ofOwner says whether a delivery of a partition is of its owner by now. The
// partition may have gone and come again since it was found. mu must be held.
func (r *runner) ofOwner(s Selected) error {
	if r.part == nil {
		return nil
	}
	return ofEpoch(s, r.cur.Epoch)
}

// locate finds the seqs of ids that are not held; 0 where there is none.
func (r *runner) locate(ids []Selected) ([]uint64, error) {
	seqs := make([]uint64, len(ids))
	for i, s := range ids {
		r.mu.Lock()
		held := r.meant(s) != nil
		r.mu.Unlock()
		if held {
			continue
		}
		seq, err := r.e.log.LocateID(r.e.ctx, r.topic, s.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		seqs[i] = seq
	}
	return seqs, nil
}

// ackID settles an event by its id; seq is where it stands if it was not held.
// mu must be held.
func (r *runner) ackID(id event.ID, seq uint64) error {
	held, known := false, false
	for it := range r.withID(id) {
		held = true
		if it.delivered > 0 || it.handed {
			known = true
			r.ack(it)
		}
	}
	switch {
	case known:
		return nil
	case held:
		return ErrUnknownID
	case seq == 0:
		return ErrUnknownID
	case settled(&r.cur, seq):
		return nil
	case seq <= r.counted || r.cur.Attempts[seq] > 0:
		// Delivered before a restart, and not read again so far.
		r.skipped.Add(store.Range{First: seq, Last: seq})
		r.settle()
		return nil
	}
	return ErrUnknownID
}

// withID yields what is held of an event: itself, and its replayed originals.
// mu must be held.
func (r *runner) withID(id event.ID) iter.Seq[*item] {
	return func(yield func(*item) bool) {
		if it := r.held[heldName{id: id}]; it != nil && !yield(it) {
			return
		}
		for _, it := range r.letters {
			if it.id == id && !yield(it) {
				return
			}
		}
	}
}

// meant gives the one that a delivery is about: the one that is handed out,
// if there are several. mu must be held.
func (r *runner) meant(s Selected) (found *item) {
	for it := range r.withID(s.ID) {
		if found == nil || it.state == leased && (s.Lease == 0 || s.Lease == it.lease) {
			found = it
		}
	}
	return found
}

// Nack gives deliveries back.
func (e *Engine) Nack(topic, group string, ids []Selected, n Nack) ([]Result, error) {
	return e.change(topic, group, ids, nacking(&n))
}

func nacking(n *Nack) func(*runner, *item) {
	return func(r *runner, it *item) { r.nack(it, n) }
}

// Extend lets leases last until so long from now.
func (e *Engine) Extend(topic, group string, ids []Selected, by time.Duration) ([]Result, error) {
	return e.change(topic, group, ids, extending(by))
}

func extending(by time.Duration) func(*runner, *item) {
	at := time.Now().Add(by)
	return func(r *runner, it *item) {
		it.deadline = at
		r.leases.add(it)
		r.schedule(at)
	}
}

// change does something with deliveries that are under way.
func (e *Engine) change(topic, group string, ids []Selected, do func(*runner, *item)) ([]Result, error) {
	r, err := e.acting(e.ctx, topic, group)
	if errors.Is(err, errParted) {
		return e.inParts(topic, e.runnersOf(topic, group), ids, func(r *runner, ids []Selected) ([]Result, error) { return r.changeAll(ids, do) })
	}
	if err != nil {
		return nil, err
	}
	return r.changeAll(ids, do)
}

func (r *runner) changeAll(ids []Selected, do func(*runner, *item)) ([]Result, error) {
	seqs, err := r.locate(ids)
	if err != nil {
		return nil, err
	}
	out := make([]Result, len(ids))
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		return nil, err
	}
	for i, s := range ids {
		it := r.meant(s)
		out[i].ID = s.ID
		switch {
		case r.ofOwner(s) != nil:
			out[i].Err = ErrFenced
		case it == nil && (seqs[i] == 0 || seqs[i] > r.next), it != nil && it.delivered == 0 && !it.handed:
			out[i].Err = ErrUnknownID
		case it == nil, it.state != leased, s.Lease != 0 && s.Lease != it.lease:
			out[i].Err = ErrFenced
		default:
			do(r, it)
		}
	}
	return out, nil
}
