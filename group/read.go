package group

import (
	"slices"
	"time"

	"promethean/event"
	"promethean/store"
)

const (
	// readStep is how many events are read at a time, at most.
	readStep = 512
	// readAhead is how many times its batch size is read for a member.
	readAhead = 5
)

// read starts reading ahead if there is room and something to read. mu must
// be held.
func (r *runner) read() {
	if r.mayRead() {
		r.e.work.Go(r.reader)
	}
}

// mayRead says whether reading is to begin; if so, the caller sees to it. mu
// must be held.
func (r *runner) mayRead() bool {
	if r.reading || !r.wants() {
		return false
	}
	r.reading = true
	return true
}

// wants says whether reading on would serve anybody. mu must be held.
func (r *runner) wants() bool {
	if r.mark != 0 && r.next >= r.mark {
		return false // the suspects come first
	}
	return r.failed == nil && r.own.owned && !r.closed && !r.paused && len(r.members) > 0 && (r.dirty && r.lacking() > 0 || r.mustLook())
}

// lookAgain is how often a runner that is full looks whether retention has
// made room.
const lookAgain = 10 * time.Second

// full says that the runner holds too much to read on. Reading up to the last
// settled range, as after a restart, brings no new one. mu must be held.
func (r *runner) full() bool {
	n := len(r.cur.Settled)
	return len(r.held) >= r.e.bounds.references || n >= r.e.bounds.ranges && r.next >= r.cur.Settled[n-1].Last
}

// mustLook says that a full runner has to look where its topic begins now. mu
// must be held.
func (r *runner) mustLook() bool { return r.full() && !time.Now().Before(r.look) }

// lacking is how many more events there is room for. mu must be held.
func (r *runner) lacking() int {
	if r.full() || r.kept > r.e.bounds.kept && r.ready.len() > 0 {
		return 0
	}
	room := 0
	for _, m := range r.members {
		if !m.resting {
			room += min(readAhead*m.batch, m.limit-m.inflight)
		}
	}
	have := r.ready.len() + r.suspects.len()
	if q := r.keys[""]; r.set.Ordering == ByTopic && q != nil {
		have += len(q.queue) // reading past what waits brings nothing
	}
	if 2*have > room {
		return 0 // a few large reads cost less than many small ones
	}
	return room - have
}

// runReader reads for as long as that serves anybody. After so many steps
// another goroutine goes on.
func (r *runner) runReader(steps int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.stopped()
	for ; steps > 0 && r.wants(); steps-- {
		life := r.life
		if r.part != nil && !r.full() {
			if !r.readPage() {
				break
			}
			r.feed()
			continue
		}
		var q store.Query
		if r.full() {
			r.look = time.Now().Add(lookAgain)
			r.schedule(r.look)
		} else {
			q = store.Query{Topic: r.topic, After: r.next, Limit: min(max(r.lacking(), 16), readStep)}
			switch {
			case r.mark != 0:
				q.Until = r.mark
			case r.visible > r.next:
				q.Until = r.visible
			}
			r.dirty = false
		}
		due := time.Since(r.looked) >= lookEvery
		r.mu.Unlock()
		events, b, err := r.collect(q, due)
		r.mu.Lock()
		if r.life != life {
			continue // all was forgotten meanwhile
		}
		if err != nil {
			r.breakDown(err)
			break
		}
		if b.First > 0 {
			r.looked = time.Now()
		}
		if b.First > max(r.first, r.cur.Floor+1) {
			r.trimmed(b.First)
		}
		if q.Limit > 0 {
			r.took(q, events, b)
		}
		r.feed()
	}
	r.reading = false
	r.feed()
}

// lookEvery is how often a runner that reads without a gap looks where its
// topic begins: on a server that is a question more for every read.
const lookEvery = 100 * time.Millisecond

// collect gives what a query does, if there is one, and where the topic begins
// and ends now, if that is due or the events do not follow each other.
func (r *runner) collect(q store.Query, due bool) (events []event.Event, b store.Bounds, err error) {
	began := time.Now()
	if q.Limit > 0 {
		if events, err = r.list(q); err != nil {
			return nil, b, err
		}
	}
	if n := len(events); due || n == 0 || n < q.Limit || events[n-1].Seq != q.After+uint64(n) {
		b, err = r.e.log.Bounds(r.e.ctx, r.topic)
	}
	r.e.o.Observer.ReadAhead(r.topic, r.group, time.Since(began))
	return events, b, err
}

func (r *runner) list(q store.Query) (events []event.Event, err error) {
	for ev, err := range r.e.log.Read(r.e.ctx, q) {
		if err != nil {
			return nil, err
		}
		events = append(events, ev)
	}
	return events, nil
}

// took enters what a query gave. mu must be held.
func (r *runner) took(q store.Query, events []event.Event, b store.Bounds) {
	for i := range events {
		r.enter(events[i])
	}
	switch {
	case len(events) == q.Limit:
		r.dirty = true
	case q.Until != 0:
		// All up to there was visible and is read; what is missing at its end
		// is gone.
		if r.next < q.Until {
			r.expire(store.Range{First: r.next + 1, Last: q.Until})
			r.next = q.Until
		}
		r.dirty = true
	case b.First > r.next+1:
		// The topic was emptied beyond what we have read.
		r.expire(store.Range{First: r.next + 1, Last: b.First - 1})
		r.next = b.First - 1
	}
	if q.Until == 0 && len(events) < q.Limit && b.Last > r.next {
		// More has become visible since, or the topic ends with events that
		// are gone: reading up to there tells.
		r.visible, r.dirty = b.Last, true
	}
	r.trySuspect() // that was the last one, perhaps
}

// trimmed settles what retention removed below first. What is handed out goes
// on. mu must be held.
func (r *runner) trimmed(first uint64) {
	r.first = first
	var under []uint64
	for _, it := range r.held {
		switch {
		case it.seq >= first || it.letter != 0:
		case it.state == leased || it.state == settling:
			under = append(under, it.seq)
		default:
			under = append(under, it.seq)
			r.lose(it)
		}
	}
	// And what is not held, because its key had too many.
	slices.Sort(under)
	from := r.cur.Floor + 1
	for _, seq := range append(under, min(first, r.next+1)) {
		if seq > from {
			r.expire(store.Range{First: from, Last: seq - 1})
		}
		from = max(from, seq+1)
	}
}

// lose settles an item whose event is gone. mu must be held.
func (r *runner) lose(it *item) {
	r.e.o.Observer.Expired(r.topic, r.group, 1)
	if r.tried == it {
		r.tried = nil
	}
	it.state, it.lost = settling, true
	r.acks = append(r.acks, it)
	r.settle()
}

// refill finds the events of a key again that were too many to be held. mu
// must be held.
func (r *runner) refill(key string, q *keyQueue) {
	if q.refilling || r.closed || r.failed != nil {
		return
	}
	q.refilling, q.missed = true, false
	query := store.Query{Topic: r.topic, Key: key, After: q.last, Until: r.next, Limit: r.e.bounds.perKey}
	life := r.life
	r.e.work.Go(func() {
		events, err := r.ofKey(query)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.life != life {
			return
		}
		if err != nil {
			r.breakDown(err)
			return
		}
		q.refilling = false
		if q.last = query.Until; len(events) == query.Limit {
			q.last, q.missed = events[len(events)-1].Seq, true
		}
		q.more = q.missed
		defer r.findGone()
		for i := range events {
			ev := events[i]
			if r.isDone(ev.Seq) || r.held[heldName{id: ev.ID}] != nil {
				continue
			}
			if r.filter != nil && !r.filter(&ev) {
				continue // settled when it was read first
			}
			it := r.newItem(ev)
			r.count(it)
			q.queue = append(q.queue, it)
			r.hold(it)
		}
		if q.head == nil {
			r.advance(key, q)
		}
		r.feed()
	})
}

// findGone settles what was read, is not held because its key had too many,
// and is not found again because single events of it were removed. That can be
// told once no key has events left to be found. mu must be held.
func (r *runner) findGone() {
	for _, q := range r.keys {
		if q.more || q.missed || q.refilling {
			return
		}
	}
	known := slices.Clone(r.cur.Settled)
	for _, list := range []store.Ranges{r.skipped, r.writing, r.foreign} {
		for _, x := range list {
			known.Add(x)
		}
	}
	var seqs []uint64
	for _, it := range r.held {
		if it.letter == 0 {
			seqs = append(seqs, it.seq)
		}
	}
	slices.Sort(seqs)
	for _, seq := range seqs {
		known.Add(store.Range{First: seq, Last: seq})
	}
	from := r.cur.Floor + 1
	for _, x := range append(known, store.Range{First: r.next + 1, Last: r.next + 1}) {
		if last := min(x.First-1, r.next); from <= last {
			r.expire(store.Range{First: from, Last: last})
		}
		from = max(from, x.Last+1)
	}
}

// fetch reads the event of an item again. It returns false if it is gone.
func (r *runner) fetch(seq uint64) (event.Event, bool, error) {
	for ev, err := range r.e.log.Read(r.e.ctx, store.Query{Topic: r.topic, After: seq - 1, Until: seq}) {
		return ev, err == nil, err
	}
	return event.Event{}, false, nil
}

// breakDown stops the group: its log has failed. mu must be held.
func (r *runner) breakDown(err error) {
	if r.failed != nil {
		return
	}
	if r.e.leases != nil {
		r.giveUp(err) // the server is away, or somebody else has the group
		return
	}
	r.failed = err
	if !r.closed {
		r.e.o.Logger.Error("group stops", "topic", r.topic, "group", r.group, "cause", err)
	}
	for _, w := range r.waiters {
		w <- err
	}
	r.waiters = nil
	for _, m := range r.members {
		m.poke()
	}
}

// expire counts a range as settled because retention removed it. mu must be
// held.
func (r *runner) expire(g store.Range) {
	n := g.Last - g.First + 1
	for _, s := range r.cur.Settled {
		if lo, hi := max(s.First, g.First), min(s.Last, g.Last); lo <= hi {
			n -= hi - lo + 1
		}
	}
	if g.First <= r.cur.Floor {
		n -= min(r.cur.Floor, g.Last) - g.First + 1
	}
	if n > 0 && r.part == nil { // most of them are other partitions'
		r.e.o.Observer.Expired(r.topic, r.group, n)
	}
	r.skipped.Add(g)
	r.settle()
}
