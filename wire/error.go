package wire

import (
	"errors"
	"fmt"
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
