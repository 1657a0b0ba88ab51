package pgoutbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"promethean/event"
	"promethean/outbox"
)

// Tx is what Add needs of a transaction: pgx.Tx has it. So have pgx.Conn and
// pgxpool.Pool, which make every Add a transaction of its own.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// SQLTx is what AddSQL needs of a transaction: sql.Tx has it. So have sql.Conn
// and sql.DB, which make every Add a transaction of its own.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Add adds rows within a transaction of pgx: they are published once it is
// committed, and never if it is not. Rows of a key are published in the order of
// commits, and of one transaction in the order in which they were added.
//
// A row that breaks the rules of events is refused before anything is sent to the
// server. Its error is an [*outbox.RowError], and nothing of the call is written.
// Any other error is the server's, and as always with PostgreSQL the transaction
// can then only be rolled back. All rows of a call are sent in one statement.
func (s *Outbox) Add(ctx context.Context, tx Tx, rows ...outbox.Row) error {
	return s.add(rows, func(query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	})
}

// AddSQL is Add within a transaction of database/sql.
func (s *Outbox) AddSQL(ctx context.Context, tx SQLTx, rows ...outbox.Row) error {
	return s.add(rows, func(query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

func (s *Outbox) add(rows []outbox.Row, exec func(query string, args ...any) error) error {
	if len(rows) == 0 {
		return nil
	}
	checked, err := outbox.CheckRows(rows, s.o.Limits)
	if err != nil {
		return s.addError(err)
	}
	metas := make([]string, len(checked))
	for i := range checked {
		if strings.ContainsRune(checked[i].Key, 0) {
			return s.addError(&outbox.RowError{Index: i, Err: &event.RuleError{
				Field: "key", Rule: "must have no NUL in it, which PostgreSQL cannot keep", Kind: event.ErrInvalidArgument,
			}})
		}
		meta, err := checked[i].Meta()
		if err != nil {
			return s.addError(&outbox.RowError{Index: i, Err: err})
		}
		metas[i] = string(meta)
	}
	err = exec(s.addSQL(checked),
		array(checked, func(r outbox.Row) string { return r.ID.String() }),
		array(checked, func(r outbox.Row) string { return strconv.FormatInt(r.TS, 10) }),
		array(checked, func(r outbox.Row) string { return r.Topic }),
		array(checked, func(r outbox.Row) string { return r.Key }),
		array(checked, func(r outbox.Row) string { return string(r.Payload) }),
		array(metas, func(m string) string { return m }))
	if err != nil {
		return s.addError(nameTwin(err, checked))
	}
	return nil
}

func (s *Outbox) addError(err error) error {
	return fmt.Errorf("add to outbox %s: %w", s.table, err)
}

// addSQL chooses the statement: with locks if there are keys.
func (s *Outbox) addSQL(rows []outbox.Row) string {
	locked := false
	for i := range rows {
		locked = locked || rows[i].Key != "" && !s.o.Unlocked
	}
	switch {
	case locked && s.o.Quiet:
		return s.sql.addLockedQuiet
	case locked:
		return s.sql.addLocked
	case s.o.Quiet:
		return s.sql.addQuiet
	}
	return s.sql.add
}

// nameTwin tells which row has an id that is there already, if that is the error.
func nameTwin(err error, rows []outbox.Row) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "23505" {
		return err
	}
	for i := len(rows) - 1; i >= 0; i-- {
		if id := rows[i].ID.String(); strings.Contains(pg.Detail, id) {
			return &outbox.RowError{Index: i, Err: fmt.Errorf("id %s is there already: %w", id, err)}
		}
	}
	return err
}
