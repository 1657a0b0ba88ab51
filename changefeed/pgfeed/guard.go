package pgfeed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"promethean/changefeed"
)

// errFull ends a stream whose slot holds back too much of the server's log.
var errFull = errors.New("the slot holds back too much")

// guard looks after the slot and, if it is to watch, after the table, until ctx
// ends. What it cannot ask for is left to the stream to notice.
func (r *run) guard(ctx context.Context, stop context.CancelCauseFunc, p *pump, watch bool) {
	ticks := time.NewTicker(r.s.o.CheckEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if st, err := r.s.slot(ctx, p.slot); err == nil && st != nil {
			r.s.warn(p.slot, st.held)
			if r.s.over(st.held) {
				stop(errFull)
				return
			}
		}
		if !watch || p.until.Load() != 0 {
			continue
		}
		if t, err := r.s.describe(ctx); errors.Is(err, errNoTable) || err == nil && t.oid != r.t.oid {
			// What was done to it before is read first.
			if end, err := r.s.now(ctx); err == nil {
				p.until.Store(uint64(end))
			}
		}
	}
}

// over says whether so much log is more than the server may be asked to keep.
func (s *Source) over(held int64) bool { return s.o.DropSlotOver > 0 && held > s.o.DropSlotOver }

// warn says that the server keeps much log, and tells the logger once.
func (s *Source) warn(slot string, held int64) (warning string) {
	if s.o.MaxSlotBytes > 0 && held > s.o.MaxSlotBytes {
		warning = fmt.Sprintf("the server keeps %d bytes of its log for slot %s, more than %d: its disk may fill up", held, slot, s.o.MaxSlotBytes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.warned != (warning != "") {
		if s.warned = warning != ""; s.warned {
			s.o.Logger.Error(warning)
		} else {
			s.o.Logger.Info("the server keeps less of its log again", "slot", slot, "bytes", held)
		}
	}
	return warning
}

// save drops a slot to save the disk of the server.
func (s *Source) save(ctx context.Context, slot string) error {
	if err := s.dropSlot(ctx, slot); err != nil {
		return err
	}
	s.o.Logger.Error("the slot was dropped, since the server kept too much of its log for it", "limit", s.o.DropSlotOver)
	return fmt.Errorf("%w: the slot %s was dropped, since the server kept more than %d bytes of its log for it", changefeed.ErrHistoryLost, slot, s.o.DropSlotOver)
}

// Status implements [changefeed.Source]. A slot that nobody reads and that holds
// back more than DropSlotOver is dropped here.
func (s *Source) Status(ctx context.Context) (changefeed.SourceStatus, error) {
	st := changefeed.SourceStatus{LagBytes: -1}
	var version string
	if err := s.pool.QueryRow(ctx, "SELECT current_setting('server_version')").Scan(&version); err != nil {
		return st, fmt.Errorf("PostgreSQL feed of %s: %w", s.name(), s.means(ctx, "ask for the version", err))
	}
	st.Server = "PostgreSQL " + version
	for _, name := range []string{s.o.Slot, s.second(s.o.Slot)} {
		slot, err := s.slot(ctx, name)
		if err != nil {
			return st, fmt.Errorf("PostgreSQL feed of %s: %w", s.name(), err)
		}
		if slot == nil {
			continue
		}
		if s.over(slot.held) && !slot.active {
			_ = s.save(ctx, name) // the next Stream says what that means
			continue
		}
		if slot.status == "lost" {
			st.Warning = fmt.Sprintf("the server no longer keeps the log for slot %s", name)
		}
		if slot.held > st.LagBytes {
			st.LagBytes = slot.held
		}
	}
	if w := s.warn(s.o.Slot, st.LagBytes); w != "" {
		st.Warning = w
	}
	return st, nil
}

// Forget implements [changefeed.Source]. It drops the slots, and the publication
// if it was made here.
func (s *Source) Forget(ctx context.Context) error {
	if err := s.forget(ctx); err != nil {
		return fmt.Errorf("forget the PostgreSQL feed of %s: %w", s.name(), err)
	}
	return nil
}

func (s *Source) forget(ctx context.Context) error {
	for _, slot := range []string{s.o.Slot, s.second(s.o.Slot)} {
		if err := s.dropSlot(ctx, slot); err != nil {
			return err
		}
	}
	var ours bool
	err := s.pool.QueryRow(ctx, "SELECT coalesce(obj_description(oid, 'pg_publication') = $2, false) FROM pg_publication WHERE pubname = $1",
		s.o.Publication, madeHere).Scan(&ours)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !ours {
		return nil
	}
	if err == nil {
		_, err = s.pool.Exec(ctx, "DROP PUBLICATION IF EXISTS "+pgx.Identifier{s.o.Publication}.Sanitize())
	}
	return s.means(ctx, "drop publication "+s.o.Publication, err)
}

// Close implements [changefeed.Source]. Slot and publication stay.
func (s *Source) Close() error {
	s.pool.Close()
	return nil
}
