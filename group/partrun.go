package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"promethean/event"
	"promethean/store"
)

// part is what the runner of a partition has that others have not.
type part struct {
	number     int
	plan       Plan
	term       int
	generation uint64
	follows    bool
	pages      *pages
	of         *parted
	place      *place // how far it has read, for the others

	// Under runner.mu.
	meta    []byte // the group's settings
	version uint64 // of the cursor that had them
	div     *divider
	until   uint64 // where the plan ends, if it does
	ends    bool
	flushed uint64 // how far what is foreign was recorded
	taken   bool   // somebody was the member in this epoch
}

// learn takes over the group's settings as a cursor has them, unless later ones
// are known. The runner's mu must be held.
func (p *part) learn(meta []byte, version uint64) {
	if version >= p.version {
		p.meta, p.version = meta, version
	}
}

// maxForeign is how far a partition without events of its own goes on before
// that is recorded: so far it reads again after a restart.
const maxForeign = 8192

// newItem makes the item of an event.
func (r *runner) newItem(ev event.Event) *item {
	it := newItem(ev)
	if p := r.part; p != nil && p.div.keyOf != nil {
		it.key = p.div.key(&ev)
	}
	return it
}

// isMine says whether an event is of the runner's partition.
func (r *runner) isMine(ev *event.Event) bool {
	if r.part == nil {
		return true
	}
	r.mu.Lock()
	d := r.part.div
	r.mu.Unlock()
	return d.of(ev) == r.part.number
}

// ofKey finds the events of a key that a query names.
func (r *runner) ofKey(q store.Query) (events []event.Event, err error) {
	if r.part == nil {
		return r.list(q)
	}
	r.mu.Lock()
	d := r.part.div
	r.mu.Unlock()
	key, limit := q.Key, q.Limit
	if q.Limit = 0; d.keyOf != nil {
		q.Key = "" // what order follows is not what the log knows
	}
	for ev, err := range r.e.log.Read(r.e.ctx, q) {
		if err != nil {
			return nil, err
		}
		if d.key(&ev) == key && d.of(&ev) == r.part.number {
			if events = append(events, ev); len(events) == limit {
				break
			}
		}
	}
	return events, nil
}

// readPage reads what comes next, and says whether to go on. mu must be held; it
// is given back meanwhile.
func (r *runner) readPage() bool {
	p, life, after := r.part, r.life, r.next
	r.dirty = false
	if p.ends && after >= p.until {
		return true
	}
	grown := p.pages.grown.Load()
	due := time.Since(r.looked) >= lookEvery
	r.mu.Unlock()
	p.of.abreast(p.place, after)
	g, err := p.pages.read(after, grown)
	first := uint64(0)
	if err == nil {
		first = g.first
	}
	if due && err == nil { // a page that was kept may have what is gone by now
		var b store.Bounds
		b, err = r.e.log.Bounds(r.e.ctx, r.topic)
		first = b.First
	}
	r.mu.Lock()
	switch {
	case r.life != life:
		return true // all was forgotten meanwhile
	case err != nil:
		r.breakDown(err)
		return false
	}
	if due {
		r.looked = time.Now()
	}
	if first > max(r.first, r.cur.Floor+1) {
		r.trimmed(first)
	}
	r.takePage(g)
	if g.upto > after && r.next < p.limit(g.upto) || !g.end || g.grown < grown {
		r.dirty = true
	}
	return true
}

// limit is how far of what was read up to a seq belongs to the plan.
func (p *part) limit(upto uint64) uint64 {
	if p.ends {
		return min(upto, p.until)
	}
	return upto
}

// takePage enters what a page has for the partition. mu must be held.
func (r *runner) takePage(g *page) {
	p := r.part
	if p.follows {
		r.learn(&g.terms)
	}
	last := p.limit(g.upto)
	if r.mark != 0 {
		last = min(last, r.mark)
	}
	if last <= r.next {
		r.checkEnded() // that the plan ends here may be new
		return
	}
	numbers := g.of(p.div)
	i, _ := slices.BinarySearchFunc(g.events, r.next+1, func(ev event.Event, seq uint64) int {
		switch {
		case ev.Seq < seq:
			return -1
		case ev.Seq > seq:
			return 1
		}
		return 0
	})
	for ; i < len(g.events) && g.events[i].Seq <= last; i++ {
		if int(numbers[i]) != p.number || g.events[i].Seq < r.first {
			continue
		}
		ev := g.events[i]
		r.foreign.Add(store.Range{First: r.next + 1, Last: ev.Seq - 1})
		r.next = ev.Seq - 1
		r.enter(ev)
	}
	r.foreign.Add(store.Range{First: r.next + 1, Last: last})
	r.next = last
	if r.foreignDue() {
		r.settle()
	}
	r.trySuspect() // that was the last one, perhaps
	r.checkEnded()
}

// learn takes over the terms of a topic. mu must be held.
func (r *runner) learn(t *terms) {
	p := r.part
	if p.term >= len(t.List) {
		return
	}
	p.until, p.ends = t.until(p.term)
	p.div = p.of.divider(p.term, t)
}

// foreignDue says that what is foreign is to be recorded by itself. mu must be
// held.
func (r *runner) foreignDue() bool {
	p := r.part
	if p == nil || len(r.foreign) == 0 {
		return false
	}
	return r.next-p.flushed > maxForeign || p.ends && r.next >= p.until && len(r.held) == 0
}

// gatherForeign has a record take along what is foreign and lies before the last
// event that it settles: what lies behind would be a range for each event of the
// partition that was read ahead. mu must be held.
func (r *runner) gatherForeign(rec *record) {
	if len(r.foreign) == 0 {
		return
	}
	top := uint64(0)
	for _, list := range [][]*item{rec.acks, rec.dead} {
		for _, it := range list {
			if it.letter == 0 {
				top = max(top, it.seq)
			}
		}
	}
	if r.foreignDue() {
		top = r.next
	}
	if n := len(rec.skipped); n > 0 {
		top = max(top, rec.skipped[n-1].Last)
	}
	n, _ := slices.BinarySearchFunc(r.foreign, top, func(x store.Range, seq uint64) int {
		if x.First <= seq {
			return -1
		}
		return 1
	})
	if n == 0 {
		return
	}
	if len(rec.skipped) == 0 {
		rec.skipped = slices.Clone(r.foreign[:n])
	} else {
		for _, x := range r.foreign[:n] {
			rec.skipped.Add(x)
		}
	}
	r.part.flushed = max(r.part.flushed, r.foreign[n-1].Last)
	r.foreign = slices.Delete(r.foreign, 0, n)
}

// checkEnded tells the member once all that the plan has is settled. mu must be
// held.
func (r *runner) checkEnded() {
	p := r.part
	if p == nil || !p.ends || !r.own.owned {
		return
	}
	if r.cur.Floor < p.until {
		if r.foreignDue() {
			r.settle()
		}
		return
	}
	for _, m := range r.members {
		if m.ended != nil {
			m.ended()
			m.ended = nil
		}
	}
}

// told tells members whether the partition is theirs. mu must be held.
func (r *runner) told() {
	epoch := uint64(0)
	if r.own.owned {
		epoch = r.cur.Epoch
	}
	for _, m := range r.members {
		if m.epoch != nil {
			m.epoch(epoch)
		}
	}
}

// shutOut ends the membership of whoever has the partition. mu must be held.
func (r *runner) shutOut() {
	for _, m := range r.members {
		m.gone = true
		if m.epoch != nil {
			m.epoch(0)
		}
	}
	r.members = nil
}

// JoinPart makes a member of one partition. Whoever had it is fenced: what it
// holds comes to the new member, and nothing that it settles counts. If the
// group is not divided by that plan any more, the error is ErrPlan.
func (e *Engine) JoinPart(ctx context.Context, topic, group string, p Plan, number int, o PartOptions) (*Member, error) {
	m, err := e.joinPart(ctx, topic, group, p, number, o)
	if err != nil {
		return nil, fmt.Errorf("topic %s, group %s, partition %d: %w", topic, group, number, err)
	}
	return m, nil
}

func (e *Engine) joinPart(ctx context.Context, topic, group string, p Plan, number int, o PartOptions) (*Member, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if number < 0 || number >= p.Count {
		return nil, fmt.Errorf("%w: there are %d", ErrInvalid, p.Count)
	}
	root, err := e.root(ctx, topic, group)
	if err != nil {
		return nil, err
	}
	if root.plan != p {
		return nil, fmt.Errorf("%w: %s in place of %s", ErrPlan, root.plan.ID, p.ID)
	}
	g := e.partedOf(topic, group)
	g.use(o.KeyOf)
	for {
		r, err := e.partRunner(g, root, number)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		r.part.learn(root.cur.Meta, root.cur.Version)
		r.mu.Unlock()
		err = r.load(ctx, &root.set, Start{From: FromSeq, Seq: root.cur.Floor})
		if errors.Is(err, errAbandoned) {
			continue
		}
		if err != nil {
			e.forgetRunner(r)
			return nil, err
		}
		if err := r.adopt(&store.Cursor{}); err != nil {
			return nil, err
		}
		m := newMember(r, o.MemberOptions)
		m.owned, m.epoch, m.ended = nil, o.Owned, o.Ended
		return m, r.admitMember(ctx, m)
	}
}

// partRunner gives the runner of a partition.
func (e *Engine) partRunner(g *parted, root *root, number int) (*runner, error) {
	n := name{g.topic, partName(g.group, root, number)}
	pages := e.pagesOf(g.topic)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	if r := e.runners[n]; r != nil && !r.isAbandoned() {
		return r, nil
	}
	r := newRunner(e, n, g.group)
	r.part = &part{
		number: number, plan: root.plan, term: root.set.term, generation: root.cur.Generation,
		follows: root.set.Partitions == FollowTopic, pages: pages, of: g, meta: root.cur.Meta, version: root.cur.Version,
	}
	if r.part.follows {
		r.part.div = g.divider(root.set.term, &root.terms)
		r.part.until, r.part.ends = root.until()
	} else {
		r.part.div = g.ownDivider(root.plan.Count)
	}
	r.paused = g.isPaused()
	r.part.place = g.placeOf(root.plan)
	e.runners[n] = r
	return r, nil
}

// forgetRunner removes one that could not be loaded, or is closed.
func (e *Engine) forgetRunner(r *runner) {
	e.mu.Lock()
	if e.runners[r.stored()] == r {
		delete(e.runners, r.stored())
	}
	w := e.topics[r.topic]
	e.mu.Unlock()
	if w != nil {
		w.remove(r)
	}
}

// admitMember has m in the place of whoever was the partition's member, under an
// epoch of its own.
func (r *runner) admitMember(ctx context.Context, m *Member) error {
	if r.own.turn != nil {
		select {
		case r.own.turn <- struct{}{}:
			defer func() { <-r.own.turn }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	fresh := r.own.owned && !r.part.taken // its epoch is new already
	owner := r.isOwner()
	r.mu.Unlock()
	if owner && !fresh {
		if err := r.handOver(ctx); err != nil && !(r.e.leases != nil && lostRace(err)) {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shutOut()
	r.part.taken = true
	if err := r.enroll(m); err != nil {
		return err
	}
	if r.own.owned && m.epoch != nil {
		m.epoch(r.cur.Epoch)
	}
	r.checkEnded()
	return nil
}

// handOver begins a new epoch where this process has the partition: what was
// handed out is over.
func (r *runner) handOver(ctx context.Context) error {
	letters, err := r.findLetters(ctx)
	if err != nil {
		return err
	}
	return r.do(func() error {
		r.shutOut()
		if err := r.leaveTo(r.cur.Epoch + 1); err != nil {
			if r.e.leases != nil {
				r.giveUp(err)
			}
			return err
		}
		c := r.cur
		r.clear(ErrFenced)
		r.start(c, letters)
		return nil
	})
}

// reroot reads the group's settings again before the partition is taken over,
// and fails if the group is divided in another way by now.
func (r *runner) reroot(ctx context.Context) error {
	if r.part == nil {
		return nil
	}
	root, err := r.e.root(ctx, r.topic, r.group)
	if err != nil {
		return err
	}
	if root.plan != r.part.plan {
		return ErrPlan
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.part.learn(root.cur.Meta, root.cur.Version)
	if r.part.follows {
		r.learn(&root.terms)
	}
	return nil
}
