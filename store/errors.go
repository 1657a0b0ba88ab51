package store

import (
	"errors"
	"fmt"
)

// Conditions that callers tell apart with errors.Is.
var (
	// ErrClosed: the store is closed.
	ErrClosed = errors.New("store is closed")
	// ErrNotFound: no such event, group or document.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the version is not the stored one.
	ErrConflict = errors.New("version conflict")
	// ErrSeqConflict: an expected seq is not the last one; see SeqConflictError.
	ErrSeqConflict = errors.New("seq conflict")
	// ErrFenced: the epoch is over.
	ErrFenced = errors.New("fenced: the epoch is over")
	// ErrHeld: somebody else owns the lease.
	ErrHeld = errors.New("lease is held by another owner")
	// ErrInvalid: an argument breaks a rule that is not an event's.
	ErrInvalid = errors.New("invalid argument")
	// ErrTooLarge: the batch is larger than the engine takes.
	ErrTooLarge = errors.New("batch too large")
	// ErrFailed: the store met an error that it cannot recover from while it
	// is open, such as a failing sync. It accepts nothing more; the cause is
	// wrapped beside it. Open it again once the cause is gone.
	ErrFailed = errors.New("store has stopped accepting")
	// ErrCorrupt: stored data is damaged; see CorruptError.
	ErrCorrupt = errors.New("stored data is damaged")
	// ErrFormat: the data was written by a newer version.
	ErrFormat = errors.New("unknown format version")
	// ErrUnavailable: the server is away, or cannot serve now. Trying again
	// later, with the same ids, is safe.
	ErrUnavailable = errors.New("store is unavailable")
	// ErrLocked: another process has the directory open.
	ErrLocked = errors.New("directory is in use by another process")
)

// SeqConflictError says which expectation failed. It is ErrSeqConflict.
type SeqConflictError struct {
	Topic, Key       string
	Expected, Actual uint64
}

func (e *SeqConflictError) Error() string {
	if e.Key != "" {
		return fmt.Sprintf("topic %s, key %q: last seq is %d, expected %d", e.Topic, e.Key, e.Actual, e.Expected)
	}
	return fmt.Sprintf("topic %s: last seq is %d, expected %d", e.Topic, e.Actual, e.Expected)
}

// Unwrap makes errors.Is(err, ErrSeqConflict) true.
func (e *SeqConflictError) Unwrap() error { return ErrSeqConflict }

// EventError names the event of a batch that an error is about.
type EventError struct {
	Index int
	Err   error
}

func (e *EventError) Error() string { return fmt.Sprintf("event %d: %v", e.Index, e.Err) }

// Unwrap gives the rule that was broken.
func (e *EventError) Unwrap() error { return e.Err }

// CorruptError names the place of damage. It is ErrCorrupt.
type CorruptError struct {
	File   string
	Offset int64
	Detail string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("damaged: file %s, offset %d: %s", e.File, e.Offset, e.Detail)
}

// Unwrap makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }
