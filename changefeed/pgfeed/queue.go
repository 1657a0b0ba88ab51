package pgfeed

import (
	"context"
	"sync"
	"time"

	"promethean/changefeed"
)

// entry is a change that waits to be handed over.
type entry struct {
	change changefeed.Change
	commit lsn // of its transaction
	nth    int // it is the nth of those, from 1
	end    lsn // where the transaction ends, if it is its last
}

// size is what a change counts towards the bytes of a batch.
func (e *entry) size() int { return len(e.change.Doc) + len(e.change.Key) + 100 }

const (
	// markAfter is how long the place may stand still while the log grows by
	// less than markBytes without a change of ours, and markSoon if it is more.
	markAfter = 5 * time.Minute
	markSoon  = 10 * time.Second
	markBytes = 1 << 20
)

// queue stands between who reads the stream and who hands over: a slow sink
// must not keep the reader from answering the server.
type queue struct {
	most, mostBytes int
	more            chan struct{} // has one when there may be something to take
	space           chan struct{} // has one when there may be room

	mu      sync.Mutex
	entries []entry
	bytes   int
	mark    lsn   // transactions before are queued
	last    place // what was handed over last
	lastAt  time.Time
	saved   lsn // what the sink has saved
	closed  error
}

func newQueue(from place, o *Options) *queue {
	return &queue{
		most: o.BatchSize, mostBytes: o.BatchBytes, last: from, lastAt: time.Now(), saved: from.LSN, mark: from.LSN,
		more: make(chan struct{}, 1), space: make(chan struct{}, 1),
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// room says whether more should be read: what waits is at most about two
// batches, and one row.
func (q *queue) room() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries) <= 2*q.most && q.bytes <= 2*q.mostBytes
}

// put adds a change of a transaction that is not over.
func (q *queue) put(e entry) {
	q.mu.Lock()
	q.entries = append(q.entries, e)
	q.bytes += e.size()
	many := len(q.entries) > q.most || q.bytes > q.mostBytes
	q.mu.Unlock()
	if many { // a part of a large transaction can be taken
		poke(q.more)
	}
}

// end tells that the transaction that was put is over.
func (q *queue) end(at lsn) {
	q.mu.Lock()
	if n := len(q.entries); n > 0 && q.entries[n-1].end == 0 {
		q.entries[n-1].end = at
	}
	q.mark = max(q.mark, at)
	q.mu.Unlock()
	poke(q.more)
}

// pass tells that nothing of ours was committed before at but what was put.
func (q *queue) pass(at lsn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mark = max(q.mark, at)
}

// close has take fail with err, once all whole transactions are taken.
func (q *queue) close(err error) {
	q.mu.Lock()
	q.closed = err
	q.mu.Unlock()
	poke(q.more)
}

// take waits for the next batch and gives the place behind it.
func (q *queue) take(ctx context.Context) ([]changefeed.Change, place, error) {
	for {
		q.mu.Lock()
		changes, at, ok := q.next()
		closed := q.closed
		q.mu.Unlock()
		if ok {
			poke(q.space)
			return changes, at, nil
		}
		if closed != nil {
			return nil, place{}, closed
		}
		select {
		case <-q.more:
		case <-ctx.Done():
			return nil, place{}, ctx.Err()
		}
	}
}

// next takes as many whole transactions as fit, or a part of one that does not,
// or says that time has passed without a change. mu must be held.
func (q *queue) next() (changes []changefeed.Change, at place, ok bool) {
	n, bytes, whole := 0, 0, 0
	for n < len(q.entries) && n < q.most {
		size := q.entries[n].size()
		if n > 0 && bytes+size > q.mostBytes {
			break
		}
		bytes += size
		if n++; q.entries[n-1].end != 0 {
			whole = n
		}
	}
	at = q.last
	switch {
	case whole > 0:
		n = whole
		at.LSN, at.Commit, at.Done = q.entries[n-1].end, 0, 0
	case n < len(q.entries):
		// The last one of a transaction stays until that is over, so that there
		// is a change to say it with.
		at.Commit, at.Done = q.entries[n-1].commit, q.entries[n-1].nth
	case len(q.entries) == 0 && q.still():
		at.LSN, at.Commit, at.Done = q.mark, 0, 0
	default:
		return nil, at, false
	}
	changes = make([]changefeed.Change, n)
	for i := range changes {
		changes[i] = q.entries[i].change
		q.bytes -= q.entries[i].size()
	}
	if n == len(q.entries) {
		clear(q.entries)
		q.entries = q.entries[:0]
	} else {
		clear(q.entries[:n])
		q.entries = q.entries[n:]
	}
	q.last, q.lastAt = at, time.Now()
	return changes, at, true
}

// still says whether the place should move although there is no change: the
// server keeps its log until it does.
func (q *queue) still() bool {
	since := time.Since(q.lastAt)
	return q.mark > q.last.LSN && (since > markAfter || since > markSoon && q.mark-q.last.LSN >= markBytes)
}

// save notes that the sink has stored all before a place.
func (q *queue) save(at place) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.saved = at.LSN
}

// confirmed is what the server need not keep.
func (q *queue) confirmed() lsn {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.saved
}

// reached is up to where transactions are queued.
func (q *queue) reached() lsn {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mark
}
