package pgfeed

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"promethean/changefeed"
)

// Codes of the server that are looked at.
const (
	codePrivilege    = "42501"
	codeUndefined    = "42704" // a slot, a publication
	codeNoTable      = "42P01"
	codeInUse        = "55006"
	codeState        = "55000" // not as it must be: wal_level, a slot that is invalid
	codeNoFile       = "58P01" // log that was removed
	codeLimit        = "53400" // all slots are taken
	codeExists       = "42P07"
	codeUnique       = "23505"
	codeDuplicate    = "42710"
	codeNoDatabase   = "3D000"
	codeBadAuth      = "28000"
	codeBadPassword  = "28P01"
	codeUnsupported  = "0A000"
	codeBadParameter = "22023"
)

// code is what the server has said, or nothing.
func code(err error) string {
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// sinkError is one of the sink, which is given back as it is.
type sinkError struct{ error }

func (e sinkError) Unwrap() error { return e.error }

// means puts the error that a feed knows in front of what the server has said.
// Doing is what was tried.
func (s *Source) means(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, changefeed.ErrRefused) || errors.Is(err, changefeed.ErrHistoryLost) || errors.Is(err, changefeed.ErrGone) {
		return err
	}
	switch code(err) {
	case codePrivilege:
		return fmt.Errorf("%w: %s: the role %s lacks a right (it needs REPLICATION, SELECT on %s and, to make the publication, to own the table and CREATE on the database): %w",
			changefeed.ErrRefused, doing, s.config.User, s.name(), err)
	case codeBadAuth, codeBadPassword, codeNoDatabase:
		return fmt.Errorf("%w: %s: %w", changefeed.ErrRefused, doing, err)
	case codeLimit:
		return fmt.Errorf("%w: %s: raise max_replication_slots, or drop slots that nobody reads: %w", changefeed.ErrRefused, doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// lost says what an error of reading a slot means: whether its history is gone.
func (s *Source) lost(ctx context.Context, slot string, err error) error {
	switch code(err) {
	case codeState, codeNoFile:
		return fmt.Errorf("%w: the server no longer keeps the log for slot %s (see max_slot_wal_keep_size): %w", changefeed.ErrHistoryLost, slot, err)
	case codeUndefined:
		return fmt.Errorf("%w: the slot %s or the publication %s was dropped: %w", changefeed.ErrHistoryLost, slot, s.o.Publication, err)
	}
	return s.means(ctx, "read slot "+slot, err)
}
