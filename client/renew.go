package client

import (
	"time"

	"promethean/event"
	"promethean/wire"
)

// schedule sees to it that leases are looked at, at the latest at a time. mu
// must be held.
func (s *Subscription) schedule(at time.Time) {
	if s.ended || !s.due.IsZero() && !at.Before(s.due) {
		return
	}
	s.due = at
	if s.renewer == nil {
		s.renewer = time.AfterFunc(time.Until(at), s.renew)
	} else {
		s.renewer.Reset(time.Until(at))
	}
}

// renewal is the leases of one topic that are renewed together.
type renewal struct {
	works  []*work
	ids    []event.ID
	leases []uint64
	by     time.Duration
}

// renew renews the leases that are half over, and those that nearly are, in
// one frame for each topic. A lease that was not renewed in time is lost.
func (s *Subscription) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = time.Time{}
	if s.ended {
		return
	}
	now := time.Now()
	var next time.Time
	due := make(map[string]*renewal)
	for key, w := range s.works {
		if w.lost || w.session != s.session || w.state == settling {
			continue
		}
		if !now.Before(w.deadline) {
			s.lose(w)
			continue
		}
		if w.state == taken {
			w.renewAt = w.deadline // to forget it
		} else if !now.Before(w.renewAt.Add(-w.lease / 8)) {
			r := due[key.topic]
			if r == nil {
				r = &renewal{}
				due[key.topic] = r
			}
			r.works, r.ids, r.leases = append(r.works, w), append(r.ids, key.id), append(r.leases, w.d.lease)
			r.by = max(r.by, w.lease)
			w.renewAt = now.Add(w.lease / 2)
			if len(r.ids) == wire.MaxBatch {
				s.extend(key.topic, r, now)
				delete(due, key.topic)
			}
		}
		if next.IsZero() || w.renewAt.Before(next) {
			next = w.renewAt
		}
	}
	for topic, r := range due {
		s.extend(topic, r, now)
	}
	if !next.IsZero() {
		s.schedule(next)
	}
}

// extend sends a MODACK. mu must be held.
func (s *Subscription) extend(topic string, r *renewal, sent time.Time) {
	body := appendModAck(topic, s.group, r.ids, r.leases, r.by)
	s.l.send(&request{body: body, on: s.session, done: func(a *answer, err error) {
		if err != nil {
			return // the connection is lost, and its leases with it
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, w := range r.works {
			switch {
			case w.state == gone || w.state == settling:
			case a.refusal != nil:
				w.renewAt = time.Now().Add(s.l.backoff(0)) // again, while the lease lasts
				s.schedule(w.renewAt)
			case codeAt(a, i) != "":
				s.lose(w)
			default:
				w.deadline = sent.Add(r.by)
			}
		}
	}})
}
