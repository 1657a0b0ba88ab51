package pgoutbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"promethean/event"
	"promethean/outbox"
)

// Stats implements [outbox.Store]. It reads indexes of rows that are not sent.
func (s *Outbox) Stats(ctx context.Context) (outbox.Stats, error) {
	var (
		st  outbox.Stats
		age *int64
	)
	err := s.withTx(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, s.sql.stats).Scan(&st.Pending, &st.Claimed, &st.Failed, &st.Refused, &age)
	})
	if err != nil {
		return outbox.Stats{}, s.wrap("count rows", err)
	}
	if age != nil {
		st.Oldest = time.Duration(*age) * time.Microsecond
	}
	return st, nil
}

// Errors implements [outbox.Store].
func (s *Outbox) Errors(ctx context.Context, limit int) ([]outbox.Refused, error) {
	var list []outbox.Refused
	err := s.withTx(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, s.sql.errors, max(limit, 0))
		if err == nil {
			list, err = pgx.CollectRows(rows, scanRefused)
		}
		return err
	})
	return list, s.wrap("list errors", err)
}

func scanRefused(row pgx.CollectableRow) (r outbox.Refused, err error) {
	var at *time.Time // somebody may have written the row by hand
	err = row.Scan((*[16]byte)(&r.ID), &r.Topic, &r.Key, (*string)(&r.State), &r.Attempts, &r.Error, &at)
	if at != nil {
		r.At = *at
	}
	return r, err
}

// Retry implements [outbox.Store]. It wakes drainers.
func (s *Outbox) Retry(ctx context.Context, ids ...event.ID) (int, error) {
	s.lookAtAll()
	var which *string
	if len(ids) > 0 {
		list := idArray(ids)
		which = &list
	}
	return s.change(ctx, "retry rows", inOrder, s.told(run(s.sql.retry, which))...)
}

// Discard implements [outbox.Store]. It wakes drainers.
func (s *Outbox) Discard(ctx context.Context, ids ...event.ID) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	s.lookAtAll()
	return s.change(ctx, "discard rows", inOrder, s.told(run(s.sql.discard, idArray(ids)))...)
}
