package pgoutbox

import "time"

// Statements gives SQL of the store for tests that ask how it is carried out.
func (s *Outbox) Statements() map[string]string {
	return map[string]string{
		"claim": s.sql.claim, "peek": s.sql.peek, "expired": s.sql.expired, "requeue": s.sql.requeue, "stats": s.sql.stats,
		"sent": s.sql.markSent, "prune": s.sql.prune, "errors": s.sql.errors,
	}
}

// Listen changes how long a connection may be silent, and a try of it may take.
func (s *Outbox) Listen(silence, patience time.Duration) { s.silence, s.patience = silence, patience }
