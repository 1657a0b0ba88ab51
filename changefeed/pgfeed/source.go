package pgfeed

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"promethean/changefeed"
)

type sink func(context.Context, changefeed.Batch) error

// Stream implements [changefeed.Source].
func (s *Source) Stream(ctx context.Context, token []byte, to func(context.Context, changefeed.Batch) error) error {
	err := s.stream(ctx, token, func(ctx context.Context, b changefeed.Batch) error {
		if err := to(ctx, b); err != nil {
			return sinkError{err}
		}
		return nil
	})
	if told := (sinkError{}); errors.As(err, &told) {
		return told.error
	}
	if err != nil && ctx.Err() == nil {
		s.pool.Reset() // if the server was away, all connections to it are dead
		err = fmt.Errorf("PostgreSQL feed of %s: %w", s.name(), err)
	}
	return err
}

// run is one Stream.
type run struct {
	s      *Source
	sink   sink
	conn   *pgconn.PgConn // to make slots with
	system string
	t      table
}

func (s *Source) stream(ctx context.Context, token []byte, to sink) error {
	r := &run{s: s, sink: to}
	var at place
	var err error
	if token != nil {
		if at, err = parsePlace(token); err != nil {
			return err
		}
	}
	if r.conn, err = s.replication(ctx); err != nil {
		return err
	}
	defer shut(r.conn)
	if r.system, err = s.identify(ctx, r.conn); err != nil {
		return err
	}
	if r.t, err = s.describe(ctx); err != nil && !errors.Is(err, errNoTable) {
		return err
	}
	if token == nil {
		return r.begin(ctx, err != nil)
	}
	return r.resume(ctx, at)
}

// begin is the first time, or the first after the place was forgotten.
func (r *run) begin(ctx context.Context, missing bool) error {
	s := r.s
	if missing {
		return fmt.Errorf("%w: there is no table %s in the database %s", changefeed.ErrRefused, s.name(), s.config.Database)
	}
	if err := s.usable(r.t); err != nil {
		return err
	}
	before, err := s.member(ctx, r.t)
	if err != nil {
		return err
	}
	at := place{System: r.system, Table: r.t.oid, Slot: s.o.Slot}
	if at.Member, err = s.publish(ctx, r.t, true); err != nil {
		return err
	}
	if before != 0 && !s.o.Snapshot {
		// A slot that somebody has made for us, or one whose place was not saved
		// any more, has all changes since: it will do.
		st, err := s.slot(ctx, at.Slot)
		if err != nil {
			return err
		}
		if st != nil && st.status != "lost" {
			if err := s.own(at.Slot, st); err != nil {
				return err
			}
			at.LSN = st.confirmed
			if err := r.move(ctx, at); err != nil {
				return err
			}
			return r.follow(ctx, at, false)
		}
	}
	for _, slot := range []string{s.second(s.o.Slot), s.o.Slot} {
		if err := s.dropSlot(ctx, slot); err != nil {
			return err
		}
	}
	return r.fresh(ctx, at, nil)
}

// fresh makes the slot of a place and goes on from there: first with the rows,
// if they are wanted. Before, if any, comes between the two, and is told where
// the slot begins.
func (r *run) fresh(ctx context.Context, at place, before func(lsn) error) (err error) {
	var snapshot string
	if at.LSN, snapshot, err = r.s.newSlot(ctx, r.conn, at.Slot); err != nil {
		return err
	}
	if r.s.o.Snapshot || before != nil {
		if err := r.snapshot(ctx, at, snapshot, before); err != nil {
			return err
		}
	}
	shut(r.conn)
	at.Origin = 0
	if err := r.move(ctx, at); err != nil {
		return err
	}
	return r.follow(ctx, at, false)
}

// snapshot hands over the rows as they were when a slot was made.
func (r *run) snapshot(ctx context.Context, at place, name string, before func(lsn) error) error {
	v, err := r.view(ctx, name)
	if err != nil {
		return err
	}
	defer v.close()
	shut(r.conn)
	if before != nil {
		if err := before(at.LSN); err != nil {
			return err
		}
	}
	if at.Snapshot = true; at.Origin == 0 {
		at.Origin = at.LSN
	}
	if err := r.move(ctx, at); err != nil {
		return err
	}
	if err := r.s.dropSlot(ctx, r.s.second(at.Slot)); err != nil {
		return err
	}
	return v.rows(ctx, at)
}

// move saves a place without a change.
func (r *run) move(ctx context.Context, at place) error {
	return r.sink(ctx, changefeed.Batch{Token: at.token(), Snapshot: at.Snapshot, Position: at.position()})
}

// resume goes on from a place.
func (r *run) resume(ctx context.Context, at place) error {
	s := r.s
	if at.Slot != s.o.Slot && at.Slot != s.second(s.o.Slot) {
		return fmt.Errorf("%w: the token is of slot %s, and the feed is set to %s: set it back, or begin anew", changefeed.ErrRefused, at.Slot, s.o.Slot)
	}
	if at.System != r.system {
		return fmt.Errorf("%w: the token is of server %s, and this is server %s", changefeed.ErrHistoryLost, at.System, r.system)
	}
	// A table that is gone may have changes that were not read yet.
	gone := r.t.oid != at.Table
	if !gone {
		if err := s.usable(r.t); err != nil {
			return err
		}
		if member, err := s.publish(ctx, r.t, false); err != nil {
			return err
		} else if member != at.Member {
			return fmt.Errorf("%w: table %s was taken out of the publication %s and put in again", changefeed.ErrHistoryLost, s.name(), s.o.Publication)
		}
	}
	st, err := s.slot(ctx, at.Slot)
	switch {
	case err != nil:
		return err
	case st == nil:
		return fmt.Errorf("%w: the slot %s was dropped", changefeed.ErrHistoryLost, at.Slot)
	case st.status == "lost":
		return fmt.Errorf("%w: the server no longer keeps the log for slot %s (see max_slot_wal_keep_size)", changefeed.ErrHistoryLost, at.Slot)
	case st.confirmed > at.LSN:
		return fmt.Errorf("%w: slot %s was read on to %s by somebody else; the feed is at %s", changefeed.ErrHistoryLost, at.Slot, st.confirmed, at.LSN)
	}
	if err := s.own(at.Slot, st); err != nil {
		return err
	}
	// What is left of a snapshot that was begun again.
	if err := s.dropSlot(ctx, s.second(at.Slot)); err != nil {
		return err
	}
	if at.Snapshot && !gone {
		return r.again(ctx, at)
	}
	r.t.oid = at.Table
	shut(r.conn)
	at.Snapshot, at.Origin = false, 0
	return r.follow(ctx, at, gone)
}

// again begins a snapshot that was not finished once more, with a second slot.
// Rows of the first one may be published that were changed or deleted since. So
// the first slot is read up to where the second one begins, and only then come
// the rows: no key goes back, and none stays that was deleted.
func (r *run) again(ctx context.Context, old place) error {
	next := place{System: old.System, Table: old.Table, Member: old.Member, Slot: r.s.second(old.Slot), Origin: old.Origin}
	return r.fresh(ctx, next, func(start lsn) error {
		err := r.read(ctx, old, start, false)
		if errors.Is(err, errReached) {
			return nil
		}
		return err
	})
}

// follow reads a slot for ever. If the table is gone it reads to the end.
func (r *run) follow(ctx context.Context, at place, gone bool) error {
	var until lsn
	if gone {
		now, err := r.s.now(ctx)
		if err != nil {
			return err
		}
		until = now
	}
	err := r.read(ctx, at, until, true)
	if errors.Is(err, errReached) {
		return fmt.Errorf("%w: table %s was dropped or renamed", changefeed.ErrGone, r.s.name())
	}
	return err
}

// now is where the server's log ends.
func (s *Source) now(ctx context.Context) (lsn, error) {
	var end string
	if err := s.pool.QueryRow(ctx, "SELECT pg_current_wal_lsn()::text").Scan(&end); err != nil {
		return 0, s.means(ctx, "ask for the end of the log", err)
	}
	return parseLSN(end)
}

// read hands over what a slot has from a place on, up to until, if that is not
// 0, and returns errReached then. With watch the table is looked after: when it
// is gone, the end of the log of then is until.
func (r *run) read(ctx context.Context, at place, until lsn, watch bool) error {
	p, err := r.s.newPump(ctx, r.t, at)
	if err != nil {
		return err
	}
	p.until.Store(uint64(until))
	within, stop := context.WithCancelCause(ctx)
	var wait sync.WaitGroup
	wait.Go(func() { p.run(within) })
	wait.Go(func() { r.guard(within, stop, p, watch && until == 0) })
	err = r.handOver(within, p.q)
	stop(nil)
	wait.Wait()
	if cause := context.Cause(within); errors.Is(cause, errFull) && ctx.Err() == nil {
		return r.s.save(ctx, at.Slot)
	}
	return err
}

// handOver gives what is queued to the sink, until the queue ends.
func (r *run) handOver(ctx context.Context, q *queue) error {
	for {
		changes, at, err := q.take(ctx)
		if err != nil {
			return err
		}
		if err := r.sink(ctx, changefeed.Batch{Changes: changes, Token: at.token(), Position: at.position()}); err != nil {
			return err
		}
		q.save(at)
	}
}
