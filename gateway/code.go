package gateway

import (
	"context"
	"errors"

	"promethean/compact"
	"promethean/event"
	"promethean/group"
	"promethean/partition"
	"promethean/schema"
	"promethean/store"
	"promethean/timetravel"
	"promethean/view"
	"promethean/wire"
)

// sentinels are the conditions of the rooms below. The first that fits counts.
var sentinels = []struct {
	err  error
	code wire.Code
}{
	{event.ErrBadJSON, wire.BadJSON},
	{event.ErrInvalidTopic, wire.InvalidTopic},
	{event.ErrInvalidHeader, wire.InvalidHeader},
	{event.ErrPayloadTooLarge, wire.PayloadTooLarge},
	{event.ErrInvalidArgument, wire.InvalidArgument},
	{schema.ErrInvalid, wire.SchemaInvalid},
	{schema.ErrUpcast, wire.SchemaInvalid},
	{schema.ErrConflict, wire.SchemaConflict},
	{schema.ErrInvalidSchema, wire.InvalidArgument},
	{compact.ErrReserved, wire.Forbidden},
	{compact.ErrUnsupported, wire.Unsupported},
	{timetravel.ErrGone, wire.HistoryGone},
	{compact.ErrReserved, wire.Forbidden},
	{store.ErrTooLarge, wire.BatchTooLarge},
	{store.ErrSeqConflict, wire.SeqConflict},
	{group.ErrConflict, wire.GroupConflict},
	{partition.ErrFenced, wire.Fenced},
	{partition.ErrSwept, wire.Unavailable}, // it may come again
	{partition.ErrLeft, wire.Unavailable},
	{partition.ErrClosed, wire.Draining},
	{group.ErrPlan, wire.Unavailable},
	{view.ErrRebuilding, wire.GroupConflict},
	{group.ErrCursorUnknown, wire.CursorUnknown},
	{group.ErrUnknownID, wire.UnknownID},
	{group.ErrFenced, wire.Fenced},
	{group.ErrNotFound, wire.NotFound},
	{group.ErrNotOwner, wire.Unavailable},
	{group.ErrInvalid, wire.InvalidArgument},
	{store.ErrUnavailable, wire.Unavailable},
	{store.ErrFailed, wire.Unavailable},
	{store.ErrHeld, wire.Unavailable},
	{store.ErrFenced, wire.Unavailable}, // another hub has taken over: the next call goes there
	{store.ErrConflict, wire.Unavailable},
	{store.ErrNotFound, wire.NotFound},
	{store.ErrInvalid, wire.InvalidArgument},
	{store.ErrClosed, wire.Draining},
	{group.ErrClosed, wire.Draining},
	{context.DeadlineExceeded, wire.Unavailable},
	{context.Canceled, wire.Unavailable},
}

// codeOf finds the code of an error: its own, or that of the condition that it
// wraps. An error that nobody foresaw is Internal.
func codeOf(err error) wire.Code {
	var own *wire.Error
	if errors.As(err, &own) {
		return own.Code
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.code
		}
	}
	return wire.Internal
}
