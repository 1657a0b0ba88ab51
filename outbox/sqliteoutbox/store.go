package sqliteoutbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"promethean/event"
	"promethean/outbox"
)

// patience is how long the database may be busy before a call gives up.
const patience = 10 * time.Second

// busy says whether another connection has the lock.
func busy(err error) bool {
	var c interface{ Code() int }
	if errors.As(err, &c) {
		return c.Code()&0xff == 5 || c.Code()&0xff == 6 // SQLITE_BUSY, SQLITE_LOCKED, and their extended codes
	}
	return err != nil && strings.Contains(err.Error(), "database is locked") // other drivers
}

// retry makes a call again while the database is busy: connections of the
// service's may have no busy timeout.
func (b *Outbox) retry(ctx context.Context, call func() error) error {
	until := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := call()
		if !busy(err) || time.Now().After(until) {
			return err
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// ms is a duration for the database, rounded up.
func ms(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// ClaimBatch implements [outbox.Store]. It looks for rows first, so that nobody
// has to wait while it passes over those that are held up, or for a look in vain,
// and then takes them if they are still free. All earlier rows of a key that are
// free are among those that it found, and they stay the only ones: rows that come
// later are behind them.
func (b *Outbox) ClaimBatch(ctx context.Context, owner string, n int, lease time.Duration) ([]outbox.Row, error) {
	if err := outbox.CheckClaim(owner, n, lease); err != nil {
		return nil, err
	}
	n = min(n, maxClaim)
	var rows []outbox.Row
	for range 3 { // others may be quicker
		var free []any
		err := b.query(ctx, func(row *sql.Rows) error {
			var pos int64
			err := row.Scan(&pos)
			free = append(free, pos)
			return err
		}, func() { free = nil }, b.q.find, n)
		if err == nil && len(free) > 0 {
			err = b.retry(ctx, func() (err error) {
				rows, err = b.claim(ctx, owner, lease, free)
				return err
			})
		}
		if err != nil {
			return nil, fmt.Errorf("claim rows of outbox %s: %w", b.o.Table, err)
		}
		if len(free) == 0 || len(rows) > 0 {
			break
		}
	}
	return rows, nil
}

// maxClaim is how many rows are claimed at most: SQLite bounds the number of
// arguments.
const maxClaim = 10_000

func (b *Outbox) claim(ctx context.Context, owner string, lease time.Duration, free []any) ([]outbox.Row, error) {
	args := append([]any{owner, ms(lease)}, free...)
	found, err := b.db.QueryContext(ctx, b.q.claim+marks(len(free))+b.q.claimed, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close() }()
	type placed struct {
		pos int64
		row outbox.Row
	}
	list := make([]placed, 0, len(free))
	for found.Next() {
		var p placed
		var id, payload, meta sql.RawBytes
		r := &p.row
		if err := found.Scan(&p.pos, &id, &r.TS, &r.Topic, &r.Key, &payload, &meta, &r.Attempts); err != nil {
			return nil, err
		}
		copy(r.ID[:], id)
		r.Payload = slices.Clone([]byte(payload))
		r.SetMeta(meta)
		list = append(list, p)
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b placed) int { return cmp.Compare(a.pos, b.pos) })
	rows := make([]outbox.Row, len(list))
	for i := range list {
		rows[i] = list[i].row
	}
	return rows, nil
}

// idChunk is how many ids stand in one statement.
const idChunk = 500

// byID runs a statement that ends with "id IN " for all ids, and says how many
// rows it changed.
func (b *Outbox) byID(ctx context.Context, query string, ids []event.ID, args ...any) (n int, err error) {
	for part := range slices.Chunk(ids, idChunk) {
		all := slices.Clone(args)
		for _, id := range part {
			all = append(all, id[:])
		}
		changed, err := b.exec(ctx, query+marks(len(part)), all...)
		n += changed
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// marks are n places for arguments, of which there is at least one.
func marks(n int) string { return "(?" + strings.Repeat(",?", n-1) + ")" }

// exec runs one statement and says how many rows it changed.
func (b *Outbox) exec(ctx context.Context, query string, args ...any) (n int, err error) {
	err = b.retry(ctx, func() error {
		res, err := b.db.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		changed, err := res.RowsAffected()
		n = int(changed)
		return err
	})
	return n, err
}

// MarkSent implements [outbox.Store].
func (b *Outbox) MarkSent(ctx context.Context, ids ...event.ID) error {
	if _, err := b.byID(ctx, b.q.sent, ids); err != nil {
		return fmt.Errorf("mark rows of outbox %s as sent: %w", b.o.Table, err)
	}
	return nil
}

// MarkError implements [outbox.Store]. Each row is changed by itself: if it
// fails midway, telling it again leaves those that are done as they are.
func (b *Outbox) MarkError(ctx context.Context, owner string, refusals ...outbox.Refusal) error {
	for _, f := range refusals {
		state := outbox.Pending
		if f.GiveUp {
			state, f.After = outbox.Failed, 0
		}
		if _, err := b.exec(ctx, b.q.refuse, string(state), ms(f.After), outbox.TrimReason(f.Reason), f.ID[:], owner); err != nil {
			return fmt.Errorf("mark row %s of outbox %s as refused: %w", f.ID, b.o.Table, err)
		}
	}
	return nil
}

// Release implements [outbox.Store].
func (b *Outbox) Release(ctx context.Context, owner string, ids ...event.ID) error {
	if _, err := b.byID(ctx, b.q.release, ids, owner); err != nil {
		return fmt.Errorf("give back rows of outbox %s: %w", b.o.Table, err)
	}
	return nil
}

// RequeueExpired implements [outbox.Store].
func (b *Outbox) RequeueExpired(ctx context.Context) (int, error) {
	n, err := b.exec(ctx, b.q.requeue)
	if err != nil {
		return 0, fmt.Errorf("requeue rows of outbox %s: %w", b.o.Table, err)
	}
	return n, nil
}

// Stats implements [outbox.Store].
func (b *Outbox) Stats(ctx context.Context) (s outbox.Stats, err error) {
	err = b.query(ctx, func(row *sql.Rows) error {
		var state string
		var n, refused int64
		var age sql.NullInt64 // of the oldest
		if err := row.Scan(&state, &n, &refused, &age); err != nil || n == 0 {
			return err
		}
		switch outbox.State(state) {
		case outbox.Pending:
			s.Pending, s.Refused = s.Pending+n, s.Refused+refused
		case outbox.Claimed:
			s.Claimed = n
		case outbox.Failed:
			s.Failed = n
		case outbox.Sent:
		}
		s.Oldest = max(s.Oldest, time.Duration(max(age.Int64, 1))*time.Millisecond)
		return nil
	}, func() { s = outbox.Stats{} }, b.q.stats)
	if err != nil {
		return outbox.Stats{}, fmt.Errorf("count rows of outbox %s: %w", b.o.Table, err)
	}
	return s, nil
}

// query runs a query and hands over each row. It begins anew if the database is
// busy.
func (b *Outbox) query(ctx context.Context, each func(*sql.Rows) error, begin func(), query string, args ...any) error {
	return b.retry(ctx, func() error {
		begin()
		found, err := b.db.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer func() { _ = found.Close() }()
		for found.Next() {
			if err := each(found); err != nil {
				return err
			}
		}
		return found.Err()
	})
}

// Errors implements [outbox.Store].
func (b *Outbox) Errors(ctx context.Context, limit int) (list []outbox.Refused, err error) {
	err = b.query(ctx, func(row *sql.Rows) error {
		var e outbox.Refused
		var id []byte
		var at int64
		if err := row.Scan(&id, &e.Topic, &e.Key, &e.State, &e.Attempts, &e.Error, &at); err != nil {
			return err
		}
		copy(e.ID[:], id)
		e.At = time.UnixMilli(at)
		list = append(list, e)
		return nil
	}, func() { list = nil }, b.q.errors, max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("list errors of outbox %s: %w", b.o.Table, err)
	}
	return list, nil
}

// Retry implements [outbox.Store].
func (b *Outbox) Retry(ctx context.Context, ids ...event.ID) (n int, err error) {
	if len(ids) == 0 {
		n, err = b.exec(ctx, b.q.retryAll)
	} else {
		n, err = b.byID(ctx, b.q.retry, ids)
	}
	if err != nil {
		return n, fmt.Errorf("retry rows of outbox %s: %w", b.o.Table, err)
	}
	return n, nil
}

// Discard implements [outbox.Store].
func (b *Outbox) Discard(ctx context.Context, ids ...event.ID) (int, error) {
	n, err := b.byID(ctx, b.q.discard, ids)
	if err != nil {
		return n, fmt.Errorf("discard rows of outbox %s: %w", b.o.Table, err)
	}
	return n, nil
}

// Prune implements [outbox.Store].
func (b *Outbox) Prune(ctx context.Context, olderThan time.Duration, limit int) (int, error) {
	if err := outbox.CheckPrune(olderThan, limit); err != nil {
		return 0, err
	}
	n, err := b.exec(ctx, b.q.prune, ms(olderThan), limit)
	if err != nil {
		return 0, fmt.Errorf("prune outbox %s: %w", b.o.Table, err)
	}
	return n, nil
}
