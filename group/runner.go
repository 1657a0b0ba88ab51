package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"promethean/event"
	"promethean/store"
)

// bounds of what a runner holds; see docs/delivery.md.
type bounds struct {
	handedAhead uint64 // how far the handed mark runs ahead at most
	references  int    // items
	ranges      int    // settled ranges above the floor
	perKey      int    // waiting behind one key
	kept        int    // bytes of events that are not handed out
}

var defaultBounds = bounds{handedAhead: 1000, references: 100_000, ranges: 1_000_000, perKey: 64, kept: 16 << 20}

// runner decides what happens to the events of one group. All fields are
// under mu. It has a goroutine only while something is to be read or to be
// recorded.
type runner struct {
	e *Engine
	name
	// cursor is what the group goes by in the log: its name, or one that says
	// which partition of it this is.
	cursor string
	part   *part // nil: the group is not partitioned

	loading   sync.Mutex // held by load
	loaded    bool
	abandoned bool // it failed to load, and another takes its place

	mu      sync.Mutex
	own     ownership
	life    uint64 // changes whenever all that is held is forgotten
	set     Settings
	filter  func(*event.Event) bool // nil takes everything
	cur     store.Cursor            // as the log has it
	members []*Member
	turn    int // the member that is notified next
	paused  bool
	closed  bool
	failed  error // the log has failed: nothing goes on

	// Reading.
	next    uint64 // the last seq that was read
	dirty   bool   // there may be more to read
	reading bool
	looked  time.Time // when it was asked where the topic begins
	look    time.Time // when a full runner looks below again
	first   uint64    // what lies below it is gone, as far as we know
	lead    uint64    // how far the handed mark runs ahead now
	raised  time.Time // when it was raised last
	mark    uint64    // while not 0: suspects lie at or below it, and come first
	counted uint64    // what lies at or below it counts one delivery at least

	held    map[heldName]*item
	letters map[uint64]*item // replayed originals by the seq of their dead letter
	keys    map[string]*keyQueue
	parked  map[string]int // dead letters of parked keys that are not replayed
	ready   fifo
	delays  delays
	leases  leases
	kept    int // bytes of events that are held and not handed out
	tokens  uint64
	visible uint64 // a seq up to which the topic was seen to go
	top     uint64 // the highest seq that was handed out
	timer   *time.Timer
	timerAt time.Time

	// Suspects that may go, and the one that is under way.
	suspects fifo
	tried    *item

	// What the next record takes.
	acks     []*item
	dead     []*item
	records  []*item
	skipped  store.Ranges // filtered out, gone, or acked before it was read
	writing  store.Ranges // what of that is on its way to the log
	foreign  store.Ranges // of other partitions; recorded with the rest
	waiters  []chan<- error
	ops      []func() // run by the settler between two records
	settler  bool
	reader   func() // runReader and runSettler, made once
	recorder func()
	finished chan struct{} // closed when a closing runner's settler has ended
}

// newRunner makes the runner of a group whose cursor is named so.
func newRunner(e *Engine, n name, group string) *runner {
	r := &runner{
		e: e, name: name{n.topic, group}, cursor: n.group,
		held:    make(map[heldName]*item),
		letters: make(map[uint64]*item),
		keys:    make(map[string]*keyQueue),
	}
	r.reader = func() { r.runReader(math.MaxInt) }
	r.recorder = r.runSettler
	if e.leases != nil {
		r.own.step, r.own.turn = r.runStep, make(chan struct{}, 1)
	}
	return r
}

// stored is what the runner goes by in the engine.
func (r *runner) stored() name { return name{r.topic, r.cursor} }

// errAbandoned says that another runner has to be asked.
var errAbandoned = errors.New("abandoned")

// load reads the group's state, or makes it, and takes it over.
func (r *runner) load(ctx context.Context, set *Settings, start Start) error {
	r.loading.Lock()
	defer r.loading.Unlock()
	switch {
	case r.abandoned:
		return errAbandoned
	case r.loaded && set == nil:
		return nil
	case r.loaded:
		err := r.fits(set)
		if err != nil && r.refresh(ctx) == nil {
			err = r.fits(set)
		}
		return err
	}
	err := r.takeOver(ctx, set, start)
	r.loaded, r.abandoned = err == nil, err != nil
	return err
}

func (r *runner) isAbandoned() bool {
	r.loading.Lock()
	defer r.loading.Unlock()
	return r.abandoned
}

// takeOver reads the group's state, or makes it. On an engine that nobody
// shares the group is ours then.
func (r *runner) takeOver(ctx context.Context, set *Settings, start Start) error {
	c, err := r.e.log.Cursor(ctx, r.topic, r.cursor)
	if errors.Is(err, store.ErrNotFound) {
		if set == nil {
			return ErrNotFound
		}
		c, err = r.make(ctx, *set, start)
		if errors.Is(err, store.ErrConflict) && r.e.leases != nil {
			c, err = r.e.log.Cursor(ctx, r.topic, r.cursor) // somebody else was quicker
		}
	}
	if err != nil {
		return err
	}
	if err := r.adopt(&c); err != nil {
		return err
	}
	if set != nil {
		if err := r.fits(set); err != nil {
			return err
		}
	}
	if r.part == nil && r.set.Partitions != 0 {
		return errParted
	}
	r.mu.Lock()
	r.cur = c
	r.mu.Unlock()
	if r.e.leases == nil {
		if c, err = r.fence(ctx); err != nil {
			return err
		}
		letters, err := r.findLetters(ctx)
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.own.owned = true
		r.start(c, letters)
		r.mu.Unlock()
	}
	return r.e.watch(r)
}

func (r *runner) make(ctx context.Context, set Settings, start Start) (store.Cursor, error) {
	if _, err := CompileFilter(set.Filter); err != nil {
		return store.Cursor{}, err
	}
	floor, err := r.e.Floor(ctx, r.topic, start)
	if err != nil {
		return store.Cursor{}, err
	}
	c := store.Cursor{Topic: r.topic, Group: r.cursor, Floor: floor, Generation: 1, Meta: set.withDefaults().encode()}
	if r.part != nil {
		c.Generation, c.Meta = r.part.generation, nil
	}
	c.Version, err = r.e.log.PutCursor(ctx, c)
	return c, err
}

// start begins to hand out as the cursor says. mu must be held.
func (r *runner) start(c store.Cursor, letters []foundLetter) {
	r.cur, r.mark, r.counted = c, 0, 0
	if c.Handed > c.Floor {
		r.mark, r.counted = c.Handed, c.Handed
	}
	r.begin()
	r.addLetters(letters)
	if r.part != nil {
		r.looked = time.Time{} // pages may have what is gone
		r.told()
		r.checkEnded()
	}
	r.feed()
}

// begin starts reading at the floor. mu must be held. Leases are never named
// anew: after a move the epoch is the same, and one that ended with the move
// must not fit what is handed out again.
func (r *runner) begin() {
	r.next, r.top, r.dirty = r.cur.Floor, r.cur.Floor, true
	r.tokens = max(r.tokens, r.cur.Epoch<<epochShift)
}

// epochShift is where the epoch stands in the name of a lease.
const epochShift = 40

// wake says that the topic has grown. If it returns true, the caller has the
// runner read.
func (r *runner) wake() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirty = true
	return r.mayRead()
}

// enter takes in an event that was read. mu must be held.
func (r *runner) enter(ev event.Event) {
	if gap := r.next + 1; ev.Seq > gap {
		r.expire(store.Range{First: gap, Last: ev.Seq - 1})
	}
	r.next = ev.Seq
	if r.isDone(ev.Seq) {
		return
	}
	if r.filter != nil && !r.filter(&ev) {
		r.skipped.Add(store.Range{First: ev.Seq, Last: ev.Seq})
		r.settle()
		return
	}
	r.admit(r.newItem(ev))
}

// isDone says whether an event that is not held needs no delivery: it is
// settled, or about to be. mu must be held.
func (r *runner) isDone(seq uint64) bool {
	return settled(&r.cur, seq) || r.skipped.Contains(seq) || r.writing.Contains(seq)
}

// admit holds an item and finds its place. mu must be held.
func (r *runner) admit(it *item) {
	r.count(it)
	q := r.queue(it)
	switch {
	case q == nil:
		r.hold(it)
		r.activate(it)
	case q.more || q.head != nil && (len(q.queue) >= r.e.bounds.perKey || len(r.held) >= r.e.bounds.references/2):
		q.more, q.missed = true, true // it is found again
	case q.head == nil:
		q.head, q.last = it, it.seq
		r.hold(it)
		r.activate(it)
	default:
		q.queue = append(q.queue, it)
		q.last = it.seq
		if r.kept > r.e.bounds.kept {
			it.drop()
		}
		r.hold(it)
	}
}

// count says how often an item that was read was delivered before. mu must be
// held.
func (r *runner) count(it *item) {
	if n := r.cur.Attempts[it.seq]; n > 0 {
		it.delivered, it.recorded = n, n
	}
	if it.seq <= r.counted {
		it.delivered = max(it.delivered, 1)
		it.suspect = r.mark != 0
	}
}

// queueName says which queue it stands in; ok is false if it waits for nobody.
// mu must be held.
func (r *runner) queueName(it *item) (key string, ok bool) {
	switch r.set.Ordering {
	case ByTopic:
		return "", true
	case ByKey:
		return it.key, it.key != ""
	}
	return "", false
}

// queue gives the queue that it stands in, made if need be; nil if it waits
// for nobody. mu must be held.
func (r *runner) queue(it *item) *keyQueue {
	k, ok := r.queueName(it)
	if !ok {
		return nil
	}
	q := r.keys[k]
	if q == nil {
		q = &keyQueue{}
		r.keys[k] = q
	}
	return q
}

// headed gives the queue that it is the head of, nil if there is none. mu must
// be held.
func (r *runner) headed(it *item) *keyQueue {
	if k, ok := r.queueName(it); ok {
		if q := r.keys[k]; q != nil && q.head == it {
			return q
		}
	}
	return nil
}

func (r *runner) hold(it *item) {
	r.held[it.name()] = it
	if it.letter != 0 {
		r.letters[it.letter] = it
	}
	r.kept += it.size
}

// activate is called when it is an item's turn. mu must be held.
func (r *runner) activate(it *item) {
	switch {
	case it.letter == 0 && r.isParked(it.key):
		r.follow(it)
	case int(it.delivered) >= r.set.MaxAttempts:
		it.suspect = false
		if it.reason == "" {
			it.reason = fmt.Sprintf("the process ended during delivery %d of %d", it.delivered, r.set.MaxAttempts)
		}
		r.die(it)
	case it.suspect:
		it.state = queued
		r.suspects.push(it)
		r.trySuspect()
	case !it.due.IsZero() && it.due.After(time.Now()):
		it.state = delayed // its turn came before its time
		r.delays.add(it)
		r.schedule(it.due)
	default:
		it.state = ready
		r.ready.push(it)
	}
}

// trySuspect lets the next suspect go, if none is under way. mu must be held.
func (r *runner) trySuspect() {
	for r.tried == nil && r.suspects.len() > 0 {
		it := r.suspects.pop()
		if it.state != queued || it.over {
			continue // settled meanwhile
		}
		r.tried = it
		it.state = ready
		r.ready.push(it)
	}
	r.endRecovery()
}

// endRecovery goes over to handing out many at a time once no suspect is left
// that could go. mu must be held.
func (r *runner) endRecovery() {
	if r.mark == 0 || r.tried != nil || r.suspects.len() > 0 || r.next < r.mark {
		return
	}
	r.mark = 0
	r.dirty = true
	r.read()
	r.settle() // raises the mark of what may be handed out
}

// release ends an item's time with a member. mu must be held.
func (r *runner) release(it *item) {
	if m := it.member; m != nil {
		m.inflight--
		r.e.o.Observer.InFlight(r.topic, r.group, -1)
		it.member = nil
	}
}

// endLease ends the delivery that is under way. mu must be held.
func (r *runner) endLease(it *item) {
	r.leases.live--
	it.lease = 0
	if r.tried == it {
		r.tried = nil
		it.suspect = false
	}
}

// ack begins to settle an item. mu must be held.
func (r *runner) ack(it *item) {
	wasLeased := it.state == leased
	if it.state == settling {
		return
	}
	it.state = settling
	if wasLeased {
		it.acked = it.lease
		r.endLease(it)
	} else if r.tried == it {
		r.tried = nil
	}
	r.acks = append(r.acks, it)
	r.settle()
	if r.mark != 0 {
		r.trySuspect()
	}
}

// fail ends a delivery that did not succeed. mu must be held.
func (r *runner) fail(it *item, reason string, delay time.Duration, dead bool) {
	r.endLease(it)
	r.release(it)
	it.reason = reason
	if dead || int(it.delivered) >= r.set.MaxAttempts {
		r.kept += it.size // it may be gone from the log: the dead letter needs it
		r.die(it)
	} else {
		r.putBack(it)
		it.state = delayed
		it.due = time.Now().Add(delay)
		r.delays.add(it)
		r.schedule(it.due)
		r.giveWay(it)
	}
	r.trySuspect()
	r.feed()
}

// giveBack ends a delivery that does not count. mu must be held.
func (r *runner) giveBack(it *item) {
	r.endLease(it)
	r.release(it)
	r.putBack(it)
	it.delivered--
	it.state = ready
	r.ready.pushFront(it)
	r.giveWay(it)
}

// putBack is for an item that was handed out and is not settled. Its event is
// read again when it is needed: it would keep its neighbours in memory too. mu
// must be held.
func (r *runner) putBack(it *item) {
	if it.letter == 0 {
		it.drop()
	}
	r.kept += it.size
	if q := r.headed(it); q != nil {
		for _, w := range q.queue { // they have to wait as well
			if w.letter == 0 {
				r.kept -= w.size
				w.drop()
			}
		}
	}
}

// die does with an item that has failed for good what the group's policy
// says. mu must be held.
func (r *runner) die(it *item) {
	if r.set.DeadLetter == DeadBlock && it.letter == 0 {
		it.state = blocked
		it.delivered = max(it.delivered, uint32(r.set.MaxAttempts))
		if it.recorded < it.delivered {
			r.records = append(r.records, it)
			r.settle()
		}
		return
	}
	if r.set.DeadLetter == DeadKey && it.key != "" {
		r.park(it.key)
	}
	r.bury(it)
	if r.set.DeadLetter != DeadKey || it.key == "" {
		return
	}
	// Those that wait behind it follow.
	if q := r.keys[it.key]; q != nil && r.set.Ordering == ByKey {
		for _, w := range q.queue {
			if w.state == waiting && w.letter == 0 {
				r.follow(w)
			}
		}
	}
}

func (r *runner) isParked(key string) bool {
	_, ok := r.parked[key]
	return ok
}

func (r *runner) park(key string) {
	if r.parked == nil {
		r.parked = make(map[string]int)
	}
	r.parked[key] += 0 // it is there, whatever it counts
}

// follow has an item follow its parked key into the dead letters. mu must be
// held.
func (r *runner) follow(it *item) {
	if r.tried == it {
		r.tried = nil
	}
	it.reason = "its key is parked"
	r.bury(it)
}

// bury has an item written to the dead letters. mu must be held.
func (r *runner) bury(it *item) {
	it.state = settling
	r.dead = append(r.dead, it)
	r.settle()
}

// forget lets a settled item go; the next of its key gets its turn. mu must
// be held.
func (r *runner) forget(it *item) {
	delete(r.held, it.name())
	if it.letter != 0 {
		delete(r.letters, it.letter)
	}
	if it.member == nil {
		r.kept -= it.size
	}
	r.release(it)
	it.drop()
	if q := r.headed(it); q != nil {
		q.head = nil
		key, _ := r.queueName(it)
		r.advance(key, q)
	}
}

// advance gives the turn to the next event of a key. mu must be held.
func (r *runner) advance(key string, q *keyQueue) {
	for len(q.queue) > 0 {
		it := q.queue[0]
		q.queue[0] = nil
		q.queue = q.queue[1:]
		if it.state != waiting {
			continue // settled out of turn, or on its way into the dead letters
		}
		q.head = it
		r.activate(it)
		return
	}
	switch {
	case q.more:
		r.refill(key, q)
	case q.head == nil:
		delete(r.keys, key)
	}
}
