package group

import (
	"container/heap"
	"time"

	"promethean/event"
)

// state is where an event stands in its group. What has been read and is not
// settled is held as an item.
type state byte

const (
	waiting   state = iota // an earlier event of its key is not settled
	queued                 // a suspect: its turn comes when the one before was tried
	recording              // its next delivery is being recorded
	ready                  // may be handed out
	leased                 // handed out
	delayed                // comes back later
	blocked                // has failed for good and stays
	settling               // the record that it is settled is under way
)

// item is one event that a runner holds.
type item struct {
	seq uint64
	id  event.ID
	key string
	ts  int64
	ev  event.Event
	// size is what ev takes; 0 if it is not kept and has to be read again.
	size int

	state state
	// delivered counts deliveries; recorded is what the cursor says, where it
	// says anything.
	delivered, recorded uint32
	handed              bool // it was delivered at least once, counted or not
	lost                bool // its event is gone
	over                bool // it was forgotten with all others
	suspect             bool
	letter              uint64 // the dead letter that it is replayed from

	lease    uint64
	acked    uint64 // the lease under which it was acked
	deadline time.Time
	member   *Member
	due      time.Time    // when a delayed item comes back
	reason   string       // why it failed last
	beside   *event.Event // what is appended when it is settled
	then     func(error)  // called when its ack is durable
}

func newItem(ev event.Event) *item {
	it := &item{seq: ev.Seq, id: ev.ID, key: ev.Key, ts: ev.TS}
	it.keep(ev)
	return it
}

// heldName is what an item is held by: an event may be there twice, as itself
// and as the original of a dead letter that is replayed.
type heldName struct {
	id     event.ID
	letter uint64
}

func (it *item) name() heldName { return heldName{it.id, it.letter} }

// keep keeps the event itself; drop forgets it.
func (it *item) keep(ev event.Event) {
	it.ev = ev
	it.size = 256 + len(ev.Payload)
}

func (it *item) drop() { it.ev, it.size = event.Event{}, 0 }

// keyQueue is the unsettled events of one key.
type keyQueue struct {
	head  *item   // the first; the others wait for it
	queue []*item // waiting, in log order
	// more says that events of the key after the seq last, up to what was
	// read, are not held: they are found again by the key index. missed says
	// that there was one since the search began.
	more, missed bool
	last         uint64
	refilling    bool
}

// fifo is a queue of items. Those that have left the state that they were
// queued in are skipped by whoever takes them out.
type fifo struct {
	list []*item
	head int
}

func (q *fifo) len() int      { return len(q.list) - q.head }
func (q *fifo) push(it *item) { q.list = append(q.list, it) }

// pushFront puts it first: an item that was handed out before.
func (q *fifo) pushFront(it *item) {
	if q.head > 0 {
		q.head--
		q.list[q.head] = it
		return
	}
	q.list = append([]*item{it}, q.list...)
}

func (q *fifo) peek() *item {
	if q.head == len(q.list) {
		return nil
	}
	return q.list[q.head]
}

func (q *fifo) pop() *item {
	it := q.list[q.head]
	q.list[q.head] = nil
	q.head++
	switch {
	case q.head == len(q.list):
		q.list, q.head = q.list[:0], 0
	case q.head > 64 && q.head > len(q.list)/2:
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	return it
}

// delays orders delayed items by the time at which they come back.
type delays []*item

func (d delays) Len() int           { return len(d) }
func (d delays) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d delays) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *delays) Push(x any)        { *d = append(*d, x.(*item)) }
func (d *delays) Pop() any {
	old := *d
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return it
}

func (d *delays) add(it *item) { heap.Push(d, it) }

// due takes out what has come back by now. An item that is no longer delayed
// has been settled meanwhile.
func (d *delays) due(now time.Time, yield func(*item)) {
	for len(*d) > 0 && !(*d)[0].due.After(now) {
		if it := heap.Pop(d).(*item); it.state == delayed && !it.due.After(now) {
			yield(it)
		}
	}
}

// leases lists what is handed out by deadline. All leases of a group last
// equally long, so the list is in order but for those that were extended.
type leases struct {
	list []lease
	live int
}

type lease struct {
	it       *item
	token    uint64
	deadline time.Time
}

// over says that the lease has ended, or goes on until another deadline.
func (l *lease) over() bool {
	return l.it.state != leased || l.it.lease != l.token || !l.it.deadline.Equal(l.deadline)
}

func (ls *leases) add(it *item) {
	if len(ls.list) > 64 && len(ls.list) > 4*ls.live {
		ls.tidy()
	}
	l := lease{it, it.lease, it.deadline}
	i := len(ls.list)
	for i > 0 && ls.list[i-1].deadline.After(l.deadline) {
		i-- // an extended one ends later
	}
	ls.list = append(ls.list, lease{})
	copy(ls.list[i+1:], ls.list[i:])
	ls.list[i] = l
}

// tidy forgets what is over.
func (ls *leases) tidy() {
	kept := ls.list[:0]
	for _, l := range ls.list {
		if !l.over() {
			kept = append(kept, l)
		}
	}
	clear(ls.list[len(kept):])
	ls.list = kept
}

// next is the earliest deadline.
func (ls *leases) next() (time.Time, bool) {
	n := 0
	for n < len(ls.list) && ls.list[n].over() {
		n++
	}
	ls.list = ls.list[n:]
	if len(ls.list) == 0 {
		return time.Time{}, false
	}
	return ls.list[0].deadline, true
}

// expired takes out the items whose lease has run out.
func (ls *leases) expired(now time.Time, yield func(*item)) {
	for len(ls.list) > 0 {
		l := ls.list[0]
		if !l.over() && l.deadline.After(now) {
			return
		}
		ls.list = ls.list[1:]
		if !l.over() {
			yield(l.it)
		}
	}
}
