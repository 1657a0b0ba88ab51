package logstore

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"promethean/event"
	"promethean/store/logstore/internal/journal"
)

// writer decides the order of things. Two goroutines share it.
//
// The judge takes in what waits, judges it and builds a frame of it in the
// image of the segment: the open group. The pilot writes and syncs one group
// at a time: the judge hands it the open one and begins the next, so a sync
// serves all that arrived during the one before. What has landed is made
// visible and answered by the judge.
//
// The judge alone decides and alone changes what readers see, and all fields
// are its own but for those of whoever flies; the pilot knows nothing but
// bytes.
type writer struct {
	s       *Store
	j       *journal.Journal
	act     *mem // the active mem
	maxBody int
	full    bool        // the next request does not fit the segment
	marked  atomic.Bool // the last frame is a durable mark
	// freeze asks for a new segment while the active mem has no higher number.
	freeze atomic.Uint64
	rest   []*request // taken from the queue, not yet taken in
	taken  []*request // the memory that rest was taken with
	spare  []*group   // to be used again
	open   *group
	flying *group // ended and not yet visible, nil if there is none
	crowd  int    // how many requests flew last
	yields int    // since the open group could have taken off

	out  chan *group // to the pilot
	back chan *group // what has landed; whoever sends pokes the judge

	// These belong to whoever flies a group.
	lastAt  int64 // commit times never run backwards
	durable uint64
}

// group is the requests that share a frame.
type group struct {
	reqs    []*request // granted, not yet answered
	size    int        // how many took off
	body    []byte
	off     int // of body in the image
	frame   journal.Pending
	at      int64
	err     error
	entries int
	mark    bool // it is flown without entries, as a durable mark
	// What has been granted and is not yet visible.
	pend  []pending
	ids   table
	heads map[cursorKey]cursorHead
}

// pending is an event of a group.
type pending struct {
	t   *topic
	rec event.Record
	seq uint64
}

// cursorHead is what judging a settlement needs of a cursor.
type cursorHead struct {
	exists         bool
	version, epoch uint64
}

// nextGroup gives an empty group.
func (w *writer) nextGroup() *group {
	if n := len(w.spare); n > 0 {
		g := w.spare[n-1]
		w.spare = w.spare[:n-1]
		return g
	}
	return &group{heads: make(map[cursorKey]cursorHead)}
}

func (g *group) reset() {
	clear(g.reqs)
	clear(g.pend)
	g.ids.reset()
	clear(g.heads)
	*g = group{reqs: g.reqs[:0], pend: g.pend[:0], ids: g.ids, heads: g.heads}
}

func (w *writer) init(s *Store, j *journal.Journal) {
	w.s, w.j = s, j
	w.out, w.back = make(chan *group, 1), make(chan *group, 1)
	w.maxBody = j.MaxBody()
	w.durable = j.Next() - 1
	w.open = w.nextGroup()
	for _, t := range s.byNum {
		t.next, t.cut = t.last+1, t.first
	}
}

// runPilot writes and syncs groups until the judge quits.
func (w *writer) runPilot() {
	for g := range w.out {
		g.err = w.flight(g)
		w.back <- g
		poke(w.s.wake)
	}
}

// ready says whether the open group is to be flown.
func (w *writer) ready() bool { return w.open.entries > 0 || w.open.mark }

// end ends the open group, which is to be flown, and begins another.
func (w *writer) end() *group {
	g := w.open
	w.open = w.nextGroup()
	g.frame = w.j.End(len(g.body))
	g.size = len(g.reqs)
	w.flying, w.yields = g, 0
	return g
}

func (w *writer) flight(g *group) error {
	if err := w.s.Err(); err != nil {
		return err // what came before is lost, so this cannot stand
	}
	w.lastAt = max(w.lastAt, time.Now().UnixMilli())
	g.at = w.lastAt
	err := g.frame.Write(w.durable, g.at)
	if err == nil {
		answerAsync(g)
		err = w.sync(g)
	}
	if err != nil {
		w.s.fail(err)
		return w.s.Err()
	}
	w.durable = g.frame.LSN
	return nil
}

func (w *writer) sync(g *group) error {
	if w.s.o.Synced == nil {
		return g.frame.Sync()
	}
	began := time.Now()
	err := g.frame.Sync()
	w.s.o.Synced(time.Since(began))
	return err
}

// answerAsync answers those who do not wait for the sync. An answered request
// is its caller's and must not be touched again.
func answerAsync(g *group) {
	waiters := g.reqs[:0]
	for _, r := range g.reqs {
		if r.async {
			r.answer(nil)
		} else {
			waiters = append(waiters, r)
		}
	}
	clear(g.reqs[len(waiters):])
	g.reqs = waiters
}

// runJudge takes in, judges and answers until the store is closed.
func (w *writer) runJudge() {
	s := w.s
	defer close(w.out)
	idle := time.NewTimer(time.Hour)
	defer idle.Stop()
	for {
		if w.hasLanded() {
			w.land(<-w.back)
		}
		w.takeIn()
		switch {
		case w.hasLanded():
		case w.flying != nil:
			w.waitForPilot()
		case w.ready() && w.alone():
			g := w.end()
			g.err = w.flight(g)
			w.land(g)
		case w.ready():
			if !w.gather() {
				w.out <- w.end()
			}
		case len(w.open.reqs) > 0:
			// Only duplicates, and nothing is under way: what they repeat is
			// visible, hence durable.
			g := w.open
			w.open = w.nextGroup()
			g.err = s.Err()
			g.answerAll()
			w.recycle(g)
		case w.full:
			w.makeRoom()
		case w.queued():
		case s.isClosed():
			if !w.askMark() {
				return
			}
		default:
			if !w.marked.Load() {
				idle.Reset(s.o.MarkAfter)
			}
			select {
			case <-s.wake:
			case <-idle.C:
				w.askMark()
			}
		}
	}
}

func (w *writer) hasLanded() bool { return len(w.back) > 0 }

// alone says that one publisher waits and no other is likely to: it is served
// without the pilot.
func (w *writer) alone() bool { return len(w.open.reqs) <= 1 && w.crowd <= 1 }

// gatherYields is how often those who were answered last get the chance to
// come back before a group takes off. The last of them is the first to run,
// and without this it would be served over and over while the others wait for
// a processor; and with many of them a sync would serve few.
const gatherYields = 2

// gather lets others run, and returns false if they had their chance.
func (w *writer) gather() bool {
	if w.yields == gatherYields || !w.admits() {
		return false
	}
	w.yields++
	runtime.Gosched()
	return true
}

// admits says whether the open group takes more requests.
func (w *writer) admits() bool { return !w.full && len(w.open.body) < maxFrame }

// waitForPilot waits for a group to land, or for more requests.
func (w *writer) waitForPilot() {
	if !w.admits() {
		w.stall(w.s.wake)
		return
	}
	runtime.Gosched() // publishers that can run come first: one wake-up then serves many
	if !w.hasLanded() && !w.queued() {
		<-w.s.wake
	}
}

// stallCheck is how often contexts are looked at while nothing is taken in.
const stallCheck = 20 * time.Millisecond

// stall waits until c delivers, or some time has passed, and answers those in
// the queue whose contexts have ended. It serves where requests may
// have to wait for long before they are taken in.
func (w *writer) stall(c <-chan struct{}) {
	t := time.NewTimer(stallCheck)
	select {
	case <-c:
	case <-t.C:
		w.s.queueMu.Lock()
		w.rest = append(w.rest[:len(w.rest):len(w.rest)], w.s.queue...)
		clear(w.s.queue)
		w.s.queue = w.s.queue[:0]
		w.s.queueMu.Unlock()
		w.taken = nil
		w.rest = slices.DeleteFunc(w.rest, func(r *request) bool {
			err := r.ctx.Err()
			if err != nil {
				r.answer(err)
			}
			return err != nil
		})
	}
	t.Stop()
}

// askMark has an empty frame written that says how far everything is durable,
// so that later damage to the last frames can be told from a torn tail. It
// returns false if there is nothing to mark, or no way to.
func (w *writer) askMark() bool {
	if w.marked.Load() || w.s.Err() != nil || !w.j.Room(0) {
		return false
	}
	w.open.reset() // nothing was granted, but it may have begun
	w.open.mark = true
	return true
}

func (s *Store) isClosed() bool {
	s.queueMu.Lock()
	defer s.queueMu.Unlock()
	return s.closed && len(s.queue) == 0
}

// queued says whether anything waits to be taken in.
func (w *writer) queued() bool {
	if len(w.rest) > 0 {
		return true
	}
	w.s.queueMu.Lock()
	defer w.s.queueMu.Unlock()
	return len(w.s.queue) > 0
}

// takeIn judges what waits, and adds what it grants to the open group.
func (w *writer) takeIn() {
	for w.admits() && !w.hasLanded() {
		if w.act.number <= w.freeze.Load() && w.s.Err() == nil {
			w.full = true
			return
		}
		if len(w.rest) == 0 && !w.fetchQueue() {
			return
		}
		r := w.rest[0]
		if err := w.s.Err(); err != nil {
			w.rest = w.rest[1:]
			r.answer(err)
			continue
		}
		if err := r.ctx.Err(); err != nil {
			w.rest = w.rest[1:]
			r.answer(err)
			continue
		}
		if !w.j.Room(len(w.open.body) + r.bytes) {
			w.full = true
			return
		}
		if w.open.body == nil {
			w.open.body, w.open.off = w.j.Begin()
		}
		w.rest = w.rest[1:]
		if err := w.judge(r); err != nil {
			r.answer(err)
			continue
		}
		w.encode(r)
		w.open.reqs = append(w.open.reqs, r)
	}
}

// fetchQueue moves what waits in the queue to rest.
func (w *writer) fetchQueue() bool {
	clear(w.taken)
	w.s.queueMu.Lock()
	w.rest, w.s.queue = w.s.queue, w.taken[:0]
	w.s.queueMu.Unlock()
	w.taken = w.rest
	return len(w.rest) > 0
}

// answer lets the caller go on. r is the caller's from here.
func (r *request) answer(err error) {
	r.err = err
	r.done <- struct{}{}
}

// encode adds the entries of a granted request to the open group.
func (w *writer) encode(r *request) {
	g := w.open
	k := len(g.pend)
	for i := range slices.Backward(r.items) {
		if !r.items[i].dup {
			k--
		}
	}
	r.async = r.isAsync()
	for i := range r.items {
		it := &r.items[i]
		if it.dup {
			continue
		}
		g.body = appendEntry(g.body, entryEvent, it.t.num, r.record(it))
		g.entries++
		// r may be gone before the group is visible: keep the copy.
		g.pend[k].rec = event.Record(g.body[len(g.body)-int(it.n):])
		k++
	}
	for i := range r.batch.Settle {
		st := &r.batch.Settle[i]
		g.body = appendEntry(g.body, entrySettle, w.s.topics[st.Topic].num, encodeSettlement(st))
		g.entries++
	}
	before := len(g.body)
	switch {
	case r.trim != nil && r.trim.t != nil:
		g.body = appendEntry(g.body, entryTrim, r.trim.t.num, encodeSeq(r.trim.before))
	case r.begin != nil && r.begin.t != nil:
		g.body = appendEntry(g.body, entryBegin, r.begin.t.num, encodeSeq(r.begin.seq))
	case r.settings != nil:
		g.body = appendEntry(g.body, entrySettings, r.settings.t.num, encodeSettings(&r.settings.settings))
	case r.cursor != nil && r.cursor.drop:
		g.body = appendEntry(g.body, entryDropCursor, r.cursor.t.num, []byte(r.cursor.cursor.Group))
	case r.cursor != nil:
		g.body = appendEntry(g.body, entryCursor, r.cursor.t.num, encodeCursor(&r.cursor.cursor))
	}
	if len(g.body) > before {
		g.entries++
	}
}

// isAsync says whether r is answered before it is durable.
func (r *request) isAsync() bool {
	if len(r.items) == 0 || len(r.batch.Settle) > 0 {
		return false
	}
	if r.batch.Async {
		return true
	}
	for i := range r.items {
		if !r.items[i].t.settings.Async {
			return false
		}
	}
	return true
}

// land makes a group that has landed visible and answers it.
func (w *writer) land(g *group) {
	w.flying, w.crowd = nil, g.size
	if g.err == nil {
		w.apply(g)
	}
	w.marked.Store(g.mark)
	g.answerAll()
	w.recycle(g)
}

func (g *group) answerAll() {
	for _, r := range g.reqs {
		r.answer(g.err)
	}
}

// recycle keeps a group's memory for another.
func (w *writer) recycle(g *group) {
	g.reset()
	w.spare = append(w.spare, g)
}

// apply makes a durable group visible.
func (w *writer) apply(g *group) {
	s := w.s
	m := w.act
	s.mu.Lock()
	err := eachEntry(g.body, g.off, func(e entry) error { return s.applyEntry(m, e, g.at) })
	m.lastLSN, m.end = g.frame.LSN, g.frame.End()
	w.wakeReaders(g)
	s.mu.Unlock()
	if err != nil {
		panic(fmt.Sprintf("logstore: a frame just written does not apply: %v", err)) // a bug, never input
	}
}

// wakeReaders signals those who watch the topics of the group. Under Store.mu.
func (w *writer) wakeReaders(g *group) {
	var last *topic
	for i := range g.pend {
		t := g.pend[i].t
		if t == last {
			continue
		}
		last = t
		for _, x := range t.watches {
			x.Wake()
		}
	}
	if last != nil {
		for _, x := range w.s.allTops {
			x.Wake()
		}
	}
}

// makeRoom goes on in a new segment, once few enough wait to be sealed.
// No group is open or flying, so nothing else happens meanwhile.
func (w *writer) makeRoom() {
	for w.s.Err() == nil && w.s.frozen() > w.s.o.MaxFrozen {
		w.stall(w.s.room)
	}
	if w.s.Err() == nil {
		if err := w.rotate(); err != nil {
			w.s.fail(err)
		}
	}
	w.open.reset() // it began in the old segment
	w.full = false
}

// frozen counts the mems that are not sealed; the active one will be.
func (s *Store) frozen() (n int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, m := range s.mems {
		if !m.sealed {
			n++
		}
	}
	return n
}

// rotate freezes the active mem and goes on in a new segment.
func (w *writer) rotate() error {
	s := w.s
	s.mu.RLock()
	m := s.pool.get(s.nextMem())
	s.mu.RUnlock()
	if err := w.j.Rotate(m.image); err != nil {
		return err
	}
	s.mu.Lock()
	if old := w.act; old != nil && compareID(old.maxID, s.idHigh) > 0 {
		s.idHigh = old.maxID
	}
	m.seg, m.end, m.lastLSN = w.j.Current(), w.j.Offset(), w.j.Next()-1
	s.mems = append(s.mems[:len(s.mems):len(s.mems)], m) // readers may hold the old slice
	w.act = m
	s.mu.Unlock()
	poke(s.sealWake)
	return nil
}
