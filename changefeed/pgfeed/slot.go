package pgfeed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"promethean/changefeed"
)

// replication opens a connection that speaks the replication protocol.
func (s *Source) replication(ctx context.Context) (*pgconn.PgConn, error) {
	config := s.config.Config.Copy()
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, config)
	return conn, s.means(ctx, "connect for replication", err)
}

// shut closes a connection, in a moment.
func shut(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// one runs a command that answers with one row.
func one(ctx context.Context, conn *pgconn.PgConn, command string) ([]string, error) {
	results, err := conn.Exec(ctx, command).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) == 0 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) == 0 {
		return nil, fmt.Errorf("%s: the server has not answered with one row", command)
	}
	var row []string
	for _, v := range results[0].Rows[0] {
		row = append(row, string(v))
	}
	return row, nil
}

// identify gives the identifier of the server, and refuses one that does not
// decode its log.
func (s *Source) identify(ctx context.Context, conn *pgconn.PgConn) (system string, err error) {
	row, err := one(ctx, conn, "IDENTIFY_SYSTEM")
	if err != nil {
		return "", s.means(ctx, "identify the server", err)
	}
	var level string
	if err := s.pool.QueryRow(ctx, "SELECT current_setting('wal_level')").Scan(&level); err != nil {
		return "", s.means(ctx, "ask for wal_level", err)
	}
	if level != "logical" {
		return "", fmt.Errorf("%w: wal_level of the server is %s: set wal_level = logical in postgresql.conf and restart the server", changefeed.ErrRefused, level)
	}
	return row[0], nil
}

// newSlot makes a slot and gives where it begins, and the name of the snapshot
// of just then, which can be used until conn is.
func (s *Source) newSlot(ctx context.Context, conn *pgconn.PgConn, slot string) (at lsn, snapshot string, err error) {
	// It waits until transactions that are under way have ended.
	row, err := one(ctx, conn, "CREATE_REPLICATION_SLOT "+pgx.Identifier{slot}.Sanitize()+" LOGICAL pgoutput EXPORT_SNAPSHOT")
	if code(err) == codeState {
		return 0, "", fmt.Errorf("%w: make slot %s: %w", changefeed.ErrRefused, slot, err)
	}
	if err != nil {
		return 0, "", s.means(ctx, "make slot "+slot, err)
	}
	if len(row) < 3 {
		return 0, "", fmt.Errorf("make slot %s: the server tells no snapshot", slot)
	}
	if at, err = parseLSN(row[1]); err != nil {
		return 0, "", fmt.Errorf("make slot %s: %w", slot, err)
	}
	return at, row[2], nil
}

// slotState is what the server says about a slot.
type slotState struct {
	plugin, database string
	active           bool
	status           string // lost, if its log is gone
	confirmed        lsn    // what we have told that we have
	held             int64  // how much log is kept for it
}

// slot looks at a slot; nil if there is none.
func (s *Source) slot(ctx context.Context, name string) (*slotState, error) {
	var st slotState
	var confirmed string
	// wal_status came with version 13: as JSON it is looked at where it is.
	err := s.pool.QueryRow(ctx, `
		SELECT coalesce(plugin::text, ''), coalesce(database::text, ''), active, coalesce(to_jsonb(r) ->> 'wal_status', ''),
			coalesce(confirmed_flush_lsn::text, '0/0'),
			coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), -1)::bigint
		FROM pg_replication_slots r WHERE slot_name = $1`, name).
		Scan(&st.plugin, &st.database, &st.active, &st.status, &confirmed, &st.held)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, s.means(ctx, "look at slot "+name, err)
	}
	st.confirmed, err = parseLSN(confirmed)
	return &st, err
}

// second is the name of the slot beside another.
func (s *Source) second(slot string) string {
	if strings.HasSuffix(slot, "_2") && slot == s.o.Slot+"_2" {
		return s.o.Slot
	}
	return s.o.Slot + "_2"
}

const (
	// busyFor is how long a slot may be in use by a connection that was ours.
	busyFor  = 5 * time.Second
	busyLook = 50 * time.Millisecond
)

// whileBusy does something with a slot again while it is in use, for a while.
func whileBusy(ctx context.Context, do func() error) error {
	deadline := time.Now().Add(busyFor)
	for {
		err := do()
		if code(err) != codeInUse || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(busyLook):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// dropSlot drops a slot of ours. One that is not there is none to drop.
func (s *Source) dropSlot(ctx context.Context, name string) error {
	st, err := s.slot(ctx, name)
	if st == nil || err != nil {
		return err
	}
	if err := s.own(name, st); err != nil {
		return err
	}
	err = whileBusy(ctx, func() error {
		_, err := s.pool.Exec(ctx, "SELECT pg_drop_replication_slot($1)", name)
		return err
	})
	if code(err) == codeUndefined {
		return nil
	}
	return s.means(ctx, "drop slot "+name, err)
}

// own refuses a slot that somebody else must have made.
func (s *Source) own(name string, st *slotState) error {
	if st.plugin != "pgoutput" || st.database != s.config.Database {
		return fmt.Errorf("%w: the slot %s is one of database %q with plugin %q, and so not of this feed: choose another name", changefeed.ErrRefused, name, st.database, st.plugin)
	}
	return nil
}
