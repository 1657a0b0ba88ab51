package group

import "fmt"

// Shrink makes the bounds of the groups so small that a test can reach them.
func (e *Engine) Shrink(handedAhead uint64, references, ranges, perKey, kept int) {
	e.bounds = bounds{handedAhead, references, ranges, perKey, kept}
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
