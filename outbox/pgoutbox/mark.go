package pgoutbox

import (
	"context"
	"strconv"
	"time"

	"promethean/event"
	"promethean/outbox"
)

// MarkSent implements [outbox.Store].
func (s *Outbox) MarkSent(ctx context.Context, ids ...event.ID) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := s.change(ctx, "mark rows as sent", atLeisure, run(s.sql.markSent, idArray(ids)))
	return err
}

// MarkError implements [outbox.Store].
func (s *Outbox) MarkError(ctx context.Context, owner string, refusals ...outbox.Refusal) error {
	if len(refusals) == 0 {
		return nil
	}
	s.lookAtAll()
	_, err := s.change(ctx, "mark rows as refused", inOrder, run(s.sql.markError, owner,
		array(refusals, func(r outbox.Refusal) string { return r.ID.String() }),
		array(refusals, func(r outbox.Refusal) string { return outbox.TrimReason(r.Reason) }),
		array(refusals, func(r outbox.Refusal) string { return strconv.FormatInt(micros(max(r.After, 0)), 10) }),
		array(refusals, func(r outbox.Refusal) string { return strconv.FormatBool(r.GiveUp) })))
	return err
}

// Release implements [outbox.Store]. It wakes drainers.
func (s *Outbox) Release(ctx context.Context, owner string, ids ...event.ID) error {
	if len(ids) == 0 {
		return nil
	}
	s.lookAtAll()
	_, err := s.change(ctx, "give rows back", atLeisure, s.told(run(s.sql.release, owner, idArray(ids)))...)
	return err
}

// RequeueExpired implements [outbox.Store]. Rows that somebody has locked are
// left for the next time.
func (s *Outbox) RequeueExpired(ctx context.Context) (int, error) {
	const what = "requeue rows"
	if s.pool != nil { // mostly there are none, and one query says so
		var some bool
		if err := s.pool.QueryRow(ctx, s.sql.expired).Scan(&some); err != nil || !some {
			return 0, s.wrap(what, err)
		}
	}
	n, err := s.change(ctx, what, inOrder, run(s.sql.requeue))
	if n > 0 {
		s.lookAtAll()
	}
	return n, err
}

// Prune implements [outbox.Store].
func (s *Outbox) Prune(ctx context.Context, olderThan time.Duration, limit int) (int, error) {
	if err := outbox.CheckPrune(olderThan, limit); err != nil {
		return 0, err
	}
	return s.change(ctx, "prune rows", inOrder, run(s.sql.prune, micros(olderThan), limit))
}
