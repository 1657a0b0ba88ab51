package pgoutbox

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean/event"
	"promethean/outbox"
)

// Figures of claims.
const (
	// maxLook bounds how many due rows a claim looks at in one statement. It
	// begins with as many as it is to take; if keys are held up, it goes on
	// with ever more.
	maxLook = 25_600
	// slow is what a whole look may take before the next ones are shortened.
	slow = 25 * time.Millisecond
)

// scan is what claims remember of earlier ones.
//
// Rows that were claimed or sent leave dead entries in the index until it is
// vacuumed, and rows behind one that has failed are looked at by every claim. If
// there are so many that a whole look is slow, claims begin where that one found
// its first free row, for ten times as long as it took, and then look at the
// whole again. What is before the beginning holds up its key meanwhile, so that
// order is kept.
type scan struct {
	empty bool      // the last claim found nothing
	from  int64     // where to begin
	until time.Time // how long to begin there
}

func (s *Outbox) plan() scan {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.scan
	if time.Now().After(p.until) {
		p.from = 0
	}
	return p
}

// learn notes what a claim has met. A look from the middle that found less than
// was asked for does not count as one that found nothing.
func (s *Outbox) learn(p scan, taken []int64, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scan.empty = len(taken) == 0
	switch {
	case len(taken) == 0:
		s.scan.from = 0
	case p.from == 0 && took > slow:
		s.scan.from, s.scan.until = taken[0], time.Now().Add(10*took)
	}
}

// lookAtAll has the next claim look at all rows, since some may be due again.
func (s *Outbox) lookAtAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scan = scan{}
}

// ClaimBatch implements [outbox.Store]. See the package comment on claims. If the
// last claim found nothing it first looks, by one query, whether there is
// anything now.
func (s *Outbox) ClaimBatch(ctx context.Context, owner string, n int, lease time.Duration) ([]outbox.Row, error) {
	if err := outbox.CheckClaim(owner, n, lease); err != nil {
		return nil, err
	}
	if s.pool == nil {
		return nil, s.wrap("claim rows", errNoPool)
	}
	p := s.plan()
	if p.empty {
		var some bool
		if err := s.pool.QueryRow(ctx, s.sql.peek).Scan(&some); err != nil || !some {
			return nil, s.wrap("claim rows", err)
		}
	}
	c := claim{statements: &s.sql, owner: owner, n: n, lease: lease}
	err := s.withConn(ctx, func(conn *pgxpool.Conn) error {
		took, err := c.fill(ctx, conn, p.from)
		if err == nil && p.from > 0 && len(c.rows) == 0 {
			p.from = 0
			took, err = c.fill(ctx, conn, 0)
		}
		if err == nil {
			_, err = conn.Exec(ctx, `COMMIT`)
		}
		if err == nil {
			s.learn(p, c.taken, took)
		}
		return err
	})
	if err != nil {
		return nil, s.wrap("claim rows", err)
	}
	return c.rows, nil
}

// claim is one call of ClaimBatch.
type claim struct {
	*statements
	owner string
	n     int
	lease time.Duration
	begun bool // the transaction is open, and this is the only claim
	rows  []outbox.Row
	taken []int64 // their numbers
}

// fill takes rows from a number on, looking further while those that it has seen
// are held up. It says how long that took, without the wait for other claims.
func (c *claim) fill(ctx context.Context, conn *pgxpool.Conn, from int64) (took time.Duration, err error) {
	for look := c.n; ; look = max(look, min(4*look, maxLook)) {
		seen, last, spent, err := c.step(ctx, conn, from, look)
		took += spent
		if err != nil || seen < look || len(c.rows) >= c.n {
			return took, err
		}
		from = last + 1
	}
}

// step runs the statement once and says how many rows it has looked at, the number
// of the last, and how long it took. The first step begins the transaction on its
// way.
func (c *claim) step(ctx context.Context, conn *pgxpool.Conn, from int64, look int) (seen int, last int64, spent time.Duration, err error) {
	all := &pgx.Batch{}
	if !c.begun {
		all.Queue(begin)
		all.Queue(c.enter)
	}
	before := all.Len()
	taken := array(c.taken, func(n int64) string { return strconv.FormatInt(n, 10) })
	all.Queue(c.claim, from, look, c.n-len(c.rows), c.owner, micros(c.lease), taken)
	results := conn.SendBatch(ctx, all)
	defer func() {
		if bad := results.Close(); err == nil {
			err = bad
		}
	}()
	for range before {
		if _, err := results.Exec(); err != nil {
			return 0, 0, 0, err
		}
	}
	c.begun = true
	start := time.Now()
	rows, err := results.Query()
	if err != nil {
		return 0, 0, 0, err
	}
	seen, last, err = c.collect(rows)
	return seen, last, time.Since(start), err
}

// collect reads what the statement has taken.
func (c *claim) collect(rows pgx.Rows) (seen int, last int64, err error) {
	defer rows.Close()
	for rows.Next() {
		var (
			n                          *int64
			id                         *[16]byte
			ts                         *int64
			attempts                   *int
			topic, key, payload, extra *string
		)
		if err := rows.Scan(&seen, &last, &n, &id, &ts, &topic, &key, &payload, &extra, &attempts); err != nil {
			return 0, 0, err
		}
		if n == nil { // nothing was taken
			continue
		}
		r := outbox.Row{ID: event.ID(*id), TS: *ts, Topic: *topic, Key: *key, Payload: []byte(*payload), Attempts: *attempts}
		if extra != nil {
			r.SetMeta([]byte(*extra))
		}
		c.rows, c.taken = append(c.rows, r), append(c.taken, *n)
	}
	return seen, last, rows.Err()
}
