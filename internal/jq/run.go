package jq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"promethean/event"
)

// run is the account of one run: what it has used, and what it may use. It is
// the context that the machine of gojq asks before every step, which is where
// the limits are kept: without a timer, a goroutine or a channel of its own.
type run struct {
	context.Context // the caller's
	limits          Options

	steps int
	bytes int
	used  time.Duration
	last  time.Time // when the clock was looked at
	// err ends the run at the next step. It stays, so that a program cannot
	// catch it.
	err error

	patterns map[[2]string]*pattern
}

// ended is a channel that is always ready.
var ended = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// checkEvery is how many steps pass between two looks at the clock. The most
// expensive of steps takes some milliseconds.
const checkEvery = 16

// maxGap is how much time counts between two looks at the clock. What is longer
// was most likely spent waiting for a processor: a busy or halted machine must
// not make a good program fail. What a single step may cost is bounded by its
// work, and a run of the default timeout ends after ten such gaps.
const maxGap = 5 * time.Millisecond

// Done implements context.Context. It is called once for each step.
func (r *run) Done() <-chan struct{} {
	if r.steps--; r.steps%checkEvery == 0 || r.err != nil {
		if r.look(); r.err != nil {
			return ended
		}
	}
	return nil
}

// Err implements context.Context.
func (r *run) Err() error { return r.err }

// look finds out whether the run has to end.
func (r *run) look() {
	if r.err != nil {
		return
	}
	switch {
	case r.steps <= 0:
		r.err = fmt.Errorf("%w: it takes more than %d steps", ErrLimit, r.limits.Steps)
	case r.Context.Err() != nil:
		r.err = context.Cause(r.Context)
	default:
		now := time.Now()
		r.used += min(now.Sub(r.last), maxGap)
		if r.last = now; r.used > r.limits.Timeout {
			r.err = fmt.Errorf("%w: it takes longer than %v", ErrLimit, r.limits.Timeout)
		}
	}
}

// begin opens the account.
func (r *run) begin(ctx context.Context, o Options) {
	r.Context, r.limits = ctx, o
	r.steps, r.bytes, r.err = o.Steps, o.Memory, nil
	r.last, r.used = time.Now(), 0
}

// work takes steps for something that happens inside of one step. It is false
// if the run is over.
func (r *run) work(n int) bool {
	if n < 0 || n > r.steps {
		n = r.steps
	}
	if r.steps -= n; n >= checkEvery {
		r.look()
	}
	return r.err == nil
}

// charge takes memory. It is false if the run is over.
func (r *run) charge(n int) bool {
	if r.err != nil {
		return false
	}
	if n < 0 || n > r.bytes {
		r.bytes = 0
		r.err = fmt.Errorf("%w: it uses more than %d bytes", ErrLimit, r.limits.Memory)
		return false
	}
	r.bytes -= n
	return true
}

// tooLarge ends the run because of one value.
func (r *run) tooLarge() error {
	if r.err == nil {
		r.err = fmt.Errorf("%w: it makes a value larger than %d bytes", ErrLimit, r.limits.Value)
	}
	return r.err
}

// maxDigits is the length of the longest number that is computed with.
const maxDigits = 4096

var (
	errDeep   = fmt.Errorf("%w: it makes a value nested deeper than %d", ErrLimit, event.MaxDepth)
	errDigits = fmt.Errorf("%w: a number has more than %d digits", ErrLimit, maxDigits)
	errFull   = errors.New("full")
)

// What a value costs in memory, roughly.
const (
	sizeValue = 16
	sizeArray = 24
	sizeName  = 32
)

// meter adds up the size of a value as a tree: a part that is held twice counts
// twice, because that is what walking over it costs. It stops at the limit.
type meter struct{ left int }

func (m *meter) add(v any, depth int) error {
	if m.left -= sizeValue; m.left < 0 {
		return errFull
	}
	switch v := v.(type) {
	case string:
		if m.left -= len(v); m.left < 0 {
			return errFull
		}
	case json.Number:
		if len(v) > maxDigits {
			return errDigits
		}
	case []any:
		if depth == 0 {
			return errDeep
		}
		m.left -= sizeArray
		for _, x := range v {
			if err := m.add(x, depth-1); err != nil {
				return err
			}
		}
	case map[string]any:
		if depth == 0 {
			return errDeep
		}
		m.left -= sizeArray
		for name, x := range v {
			m.left -= sizeName + len(name)
			if err := m.add(x, depth-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// size measures a value that was made, and ends the run if it is too large or
// too deep.
func (r *run) size(v any) (int, error) {
	m := meter{left: r.limits.Value}
	err := m.add(v, event.MaxDepth)
	used := r.limits.Value - m.left
	if !r.work(used / 256) {
		return 0, r.err
	}
	switch {
	case err == nil:
		return used, nil
	case errors.Is(err, errFull):
		return 0, r.tooLarge()
	}
	r.err = err
	return 0, err
}
