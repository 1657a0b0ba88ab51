package wire

import (
	"context"
	"errors"
	"fmt"

	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// Error is an error with a code of its own.
type Error struct {
	Code Code
	Msg  string
	Err  error // what led to it; not shown. May be nil
}

func (e *Error) Error() string { return e.Msg }

// Unwrap gives what led to it.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an error with a code. The last argument that is an error for %w
// is wrapped.
func Errorf(c Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: c, Msg: err.Error(), Err: errors.Unwrap(err)}
}

// sentinels are the conditions of the rooms below. The first that fits counts.
var sentinels = []struct {
	err  error
	code Code
}{
	{event.ErrBadJSON, BadJSON},
	{event.ErrInvalidTopic, InvalidTopic},
	{event.ErrInvalidHeader, InvalidHeader},
	{event.ErrPayloadTooLarge, PayloadTooLarge},
	{event.ErrInvalidArgument, InvalidArgument},
	{store.ErrTooLarge, BatchTooLarge},
	{store.ErrSeqConflict, SeqConflict},
	{group.ErrConflict, GroupConflict},
	{group.ErrCursorUnknown, CursorUnknown},
	{group.ErrUnknownID, UnknownID},
	{group.ErrFenced, Fenced},
	{group.ErrNotFound, NotFound},
	{group.ErrNotOwner, Unavailable},
	{group.ErrInvalid, InvalidArgument},
	{store.ErrUnavailable, Unavailable},
	{store.ErrFailed, Unavailable},
	{store.ErrHeld, Unavailable},
	{store.ErrFenced, Unavailable}, // another hub has taken over: the next call goes there
	{store.ErrConflict, Unavailable},
	{store.ErrNotFound, NotFound},
	{store.ErrInvalid, InvalidArgument},
	{store.ErrClosed, Draining},
	{group.ErrClosed, Draining},
	{context.DeadlineExceeded, Unavailable},
	{context.Canceled, Unavailable},
}

// CodeOf finds the code of an error: its own, or that of the condition that it
// wraps. An error that nobody foresaw is Internal.
func CodeOf(err error) Code {
	var own *Error
	if errors.As(err, &own) {
		return own.Code
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.code
		}
	}
	return Internal
}
