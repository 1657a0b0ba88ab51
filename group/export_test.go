package group

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Shrink makes the bounds of the groups so small that a test can reach them.
func (e *Engine) Shrink(handedAhead uint64, references, ranges, perKey, kept int) {
	e.bounds = bounds{handedAhead, references, ranges, perKey, kept}
}

// Quiet says whether the engine does nothing that needs no time, and has read
// what there is to read. It waits a moment for that.
func (e *Engine) Quiet() bool {
	e.mu.Lock()
	runners := slices.Collect(maps.Values(e.runners))
	e.mu.Unlock()
	for _, r := range runners {
		r.mu.Lock()
		r.dirty = true // as if the topic had grown
		r.read()
		r.mu.Unlock()
	}
	for _, r := range runners {
		if !r.quiet() {
			return false
		}
	}
	return true
}

func (r *runner) quiet() bool {
	for range 1000 {
		r.mu.Lock()
		busy := r.reading || r.settler || r.own.stepping || len(r.members) > 0 && !r.own.owned
		for _, q := range r.keys {
			busy = busy || q.refilling
		}
		r.mu.Unlock()
		if !busy {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// Dump tells what a runner holds.
func (e *Engine) Dump(topic, group string) string {
	r := e.runners[name{topic, group}]
	r.mu.Lock()
	defer r.mu.Unlock()
	s := fmt.Sprintf("cur %+v next %d dirty %v reading %v settler %v mark %d counted %d top %d first %d ready %d suspects %d tried %v kept %d failed %v paused %v\n",
		r.cur, r.next, r.dirty, r.reading, r.settler, r.mark, r.counted, r.top, r.first, r.ready.len(), r.suspects.len(), r.tried != nil, r.kept, r.failed, r.paused)
	for _, it := range r.held {
		s += fmt.Sprintf("  seq %d key %q state %d delivered %d recorded %d suspect %v size %d\n", it.seq, it.key, it.state, it.delivered, it.recorded, it.suspect, it.size)
	}
	for k, q := range r.keys {
		s += fmt.Sprintf("  key %q head %v queue %d more %v missed %v last %d refilling %v\n", k, q.head != nil, len(q.queue), q.more, q.missed, q.last, q.refilling)
	}
	for _, m := range r.members {
		s += fmt.Sprintf("  member inflight %d limit %d batch %d\n", m.inflight, m.limit, m.batch)
	}
	return s
}
