package logstore

import (
	"context"
	"fmt"

	"promethean/event"
	"promethean/store"
)

// request is one call that waits for the writer. Requests are pooled, so that
// an append allocates nothing but its answer.
type request struct {
	ctx  context.Context
	done chan struct{} // one token when answered
	err  error

	batch store.Batch
	items []item
	buf   []byte   // the records of items
	bytes int      // what the request takes in a frame, at most
	gen   uint64   // the mem that was active when ids and keys were looked up
	last  []uint64 // per expectation: the last seq of its key by then
	async bool     // the writer's: it is answered before it is durable

	// At most one of these is set, and then batch is empty.
	trim     *trimOp
	settings *settingsOp
	cursor   *cursorOp
	begin    *beginOp
}

// item is one event of a request.
type item struct {
	off, n uint32 // in buf
	t      *topic // nil until the writer makes it
	seq    uint64
	old    uint64 // the seq under which the id is known outside the active mem
	dup    bool
}

type trimOp struct {
	topic  string
	before uint64
	t      *topic
}

type settingsOp struct {
	topic    string
	settings store.Settings
	t        *topic
}

type cursorOp struct {
	cursor store.Cursor
	drop   bool
	t      *topic
}

// newRequest gives an empty request. The pool is the store's own, so that a
// store in a test with virtual time shares no channel with another.
func (s *Store) newRequest() *request {
	if r, ok := s.requests.Get().(*request); ok {
		return r
	}
	return &request{done: make(chan struct{}, 1)}
}

func (s *Store) recycle(r *request) {
	if cap(r.buf) > 1<<20 {
		r.buf = nil // one large batch must not be kept for ever
	}
	clear(r.items)
	*r = request{done: r.done, items: r.items[:0], buf: r.buf[:0], last: r.last[:0]}
	s.requests.Put(r)
}

func (r *request) record(it *item) event.Record {
	return event.Record(r.buf[it.off : it.off+it.n])
}

// Append implements [store.Log].
func (s *Store) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(b.Events) == 0 && len(b.Settle) == 0 {
		return nil, s.usable()
	}
	for i := range b.Settle {
		if b.Settle[i].Take != 0 {
			return nil, fmt.Errorf("settle group %s: %w: one process has the store open, and takes an epoch by PutCursor", b.Settle[i].Group, store.ErrInvalid)
		}
	}
	r := s.newRequest()
	r.batch = b
	if err := s.prepare(r); err != nil {
		s.recycle(r)
		return nil, err
	}
	if err := s.submit(ctx, r); err != nil {
		return nil, err
	}
	out := make([]store.Appended, len(r.items))
	for i := range r.items {
		out[i] = store.Appended{Seq: r.items[i].seq, Duplicate: r.items[i].dup}
	}
	s.recycle(r)
	return out, s.originals(ctx, b, out)
}

// originals reads the stored events of duplicates.
func (s *Store) originals(ctx context.Context, b store.Batch, out []store.Appended) error {
	for i := range out {
		if !out[i].Duplicate {
			continue
		}
		for e, err := range s.Read(ctx, store.Query{Topic: b.Events[i].Topic, After: out[i].Seq - 1, Until: out[i].Seq}) {
			if err != nil {
				return fmt.Errorf("append topic %s: read the original of a duplicate: %w", b.Events[i].Topic, err)
			}
			out[i].Original = &e
		}
	}
	return nil
}

// prepare does all that needs no order, in the caller's goroutine: rules,
// encoding, and the search for known ids outside the active mem.
func (s *Store) prepare(r *request) error {
	b := &r.batch
	limits := s.o.Limits
	if b.Internal {
		limits = limits.Internal()
	}
	for i := range b.Events {
		e := &b.Events[i]
		if err := e.Check(limits); err != nil {
			return fmt.Errorf("append topic %s: %w", shorten(e.Topic), &store.EventError{Index: i, Err: err})
		}
		off := len(r.buf)
		r.buf = event.AppendBinary(r.buf, e, false)
		n := len(r.buf) - off
		r.items = append(r.items, item{off: uint32(off), n: uint32(n)})
		// Its entry, and one that names the topic in case it is new.
		r.bytes += n + 2*entryHead + len(e.Topic)
		if r.bytes > s.w.maxBody {
			return fmt.Errorf("append: %w: event %d goes beyond %d bytes", store.ErrTooLarge, i, s.w.maxBody)
		}
	}
	for i := range b.Expect {
		if err := event.CheckTopic(b.Expect[i].Topic); err != nil {
			return fmt.Errorf("append: expectation %d: %w", i, err)
		}
	}
	for i := range b.Settle {
		r.bytes += entryHead + settleSize(&b.Settle[i])
	}
	if r.bytes > s.w.maxBody {
		return fmt.Errorf("append: %w: %d bytes, the limit is %d", store.ErrTooLarge, r.bytes, s.w.maxBody)
	}
	return s.lookUp(r)
}

// lookUp finds what the judge would have to read from files otherwise.
func (s *Store) lookUp(r *request) error {
	if err := s.findKnown(r); err != nil {
		return err
	}
	return s.findKeys(r)
}

// settleSize is at least the size of an encoded settlement.
func settleSize(st *store.Settlement) int {
	return 40 + len(st.Group) + 20*len(st.Done) + 15*len(st.Attempts)
}

func shorten(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%.60q…", s)
	}
	return s
}

// findKnown looks the ids of r up everywhere but in the active mem, which is
// the writer's to search.
func (s *Store) findKnown(r *request) error {
	s.mu.RLock()
	r.gen = s.mems[len(s.mems)-1].number
	high := s.idHigh
	hard := false // some id is not above all that is known
	var t *topic
	for i := range r.items {
		e := &r.batch.Events[i]
		if t == nil || t.name != e.Topic {
			t = s.topics[e.Topic]
		}
		r.items[i].t = t
		hard = hard || t != nil && compareID(e.ID, high) <= 0
	}
	if !hard {
		s.mu.RUnlock()
		return nil
	}
	view := s.viewLocked()
	for i := range r.items {
		if it := &r.items[i]; it.t != nil {
			it.old, _ = view.memSeq(it.t.num, r.batch.Events[i].ID, false)
		}
	}
	s.mu.RUnlock()
	defer view.release()
	for i := range r.items {
		it := &r.items[i]
		if it.t == nil || it.old != 0 {
			continue
		}
		seq, err := view.sealedSeq(it.t, r.batch.Events[i].ID)
		if err != nil {
			return fmt.Errorf("append topic %s: %w", it.t.name, err)
		}
		it.old = seq
	}
	return nil
}

// findKeys looks up the last event of each key that r has an expectation on.
// What is added to mems since findKnown is the writer's to search.
func (s *Store) findKeys(r *request) error {
	r.last = r.last[:0]
	for i := range r.batch.Expect {
		x := &r.batch.Expect[i]
		seq := uint64(0)
		if x.Key != "" {
			s.mu.RLock()
			t := s.topics[x.Topic]
			s.mu.RUnlock()
			if t != nil {
				var err error
				if seq, err = s.lastOfKey(t, x.Key); err != nil {
					return fmt.Errorf("append: expectation %d: %w", i, err)
				}
			}
		}
		r.last = append(r.last, seq)
	}
	return nil
}

// submit queues r and waits for the answer. If it fails, r is not the
// caller's any more.
func (s *Store) submit(ctx context.Context, r *request) error {
	r.ctx = ctx
	s.queueMu.Lock()
	if s.closed {
		s.queueMu.Unlock()
		s.recycle(r)
		return store.ErrClosed
	}
	s.queue = append(s.queue, r)
	s.queueMu.Unlock()
	poke(s.wake)
	<-r.done // the judge watches ctx: a select here would cost every append
	if err := r.err; err != nil {
		s.recycle(r)
		return err
	}
	return nil
}

// control submits a request without events.
func (s *Store) control(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		s.recycle(r)
		return err
	}
	if r.bytes > s.w.maxBody {
		s.recycle(r)
		return fmt.Errorf("%w: %d bytes, the limit is %d", store.ErrTooLarge, r.bytes, s.w.maxBody)
	}
	if err := s.submit(ctx, r); err != nil {
		return err
	}
	s.recycle(r)
	return nil
}

// usable says whether calls are taken.
func (s *Store) usable() error {
	s.queueMu.Lock()
	defer s.queueMu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	return nil
}

// Trim implements [store.Log].
func (s *Store) Trim(ctx context.Context, name string, before uint64) error {
	if err := event.CheckTopic(name); err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	before, err := s.retainedFrom(name, before)
	if err == nil {
		r := s.newRequest()
		r.trim = &trimOp{topic: name, before: before}
		r.bytes = entryHead + 8
		err = s.control(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("trim topic %s: %w", name, err)
	}
	poke(s.tidyWake)
	return nil
}

// retainedFrom moves a seq that lies in a gap up to the first event behind it,
// so that a topic's first seq is always that of an event.
func (s *Store) retainedFrom(name string, seq uint64) (uint64, error) {
	s.mu.RLock()
	t := s.topics[name]
	if t == nil || seq >= t.compacted || seq <= t.first {
		s.mu.RUnlock()
		return seq, nil
	}
	last := t.last
	s.mu.RUnlock()
	_, at, err := s.nearest(t, seq, seq, last, false)
	return at, err
}

// SetTopic implements [store.Log].
func (s *Store) SetTopic(ctx context.Context, name string, set store.Settings) error {
	if err := event.CheckTopic(name); err != nil {
		return fmt.Errorf("set topic: %w", err)
	}
	if set.Retention < 0 || set.MaxBytes < 0 || set.Partitions < 0 || set.Partitions > event.MaxPartitions {
		return fmt.Errorf("set topic %s: %w: retention, max bytes and partitions must not be negative, and partitions at most %d", name, store.ErrInvalid, event.MaxPartitions)
	}
	r := s.newRequest()
	r.settings = &settingsOp{topic: name, settings: set}
	r.bytes = 2*entryHead + len(name) + 256 + 2*len(set.Meta)
	if err := s.control(ctx, r); err != nil {
		return fmt.Errorf("set topic %s: %w", name, err)
	}
	poke(s.tidyWake)
	return nil
}
