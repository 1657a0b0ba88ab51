package pgoutbox

// Statements gives SQL of the store for tests that ask how it is carried out.
func (s *Outbox) Statements() map[string]string {
	return map[string]string{
		"claim": s.sql.claim, "peek": s.sql.peek, "expired": s.sql.expired, "requeue": s.sql.requeue, "stats": s.sql.stats,
		"sent": s.sql.markSent, "prune": s.sql.prune, "errors": s.sql.errors,
	}
}
