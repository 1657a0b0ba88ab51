package auth

import (
	"context"
	"errors"
	"sync/atomic"
)

// Chain is a [Verifier] that asks others in turn. The first that knows the token
// answers; if none does, the last one's reason is given, so that the one with
// the most to say comes last. An empty chain knows nobody.
type Chain []Verifier

// Verify implements [Verifier].
func (c Chain) Verify(ctx context.Context, token string) (*Principal, error) {
	err := unauthorized("the token is unknown")
	for _, v := range c {
		who, e := v.Verify(ctx, token)
		if e == nil {
			return who, nil
		}
		if err = e; !errors.Is(e, ErrUnauthorized) {
			break // it could not be found out, so nobody may say no
		}
	}
	return nil, err
}

// Switch is a [Verifier] that asks another one, which can be replaced while it
// is in use: to change tokens without a restart. Make one with [NewSwitch].
type Switch struct{ now atomic.Pointer[Verifier] }

// NewSwitch makes a switch that asks v.
func NewSwitch(v Verifier) *Switch {
	s := &Switch{}
	s.now.Store(&v)
	return s
}

// Set has v asked from now on, and gives the one before, to be closed. Requests
// that come later meet v; connections that were let in before stay open.
func (s *Switch) Set(v Verifier) Verifier { return *s.now.Swap(&v) }

// Verify implements [Verifier].
func (s *Switch) Verify(ctx context.Context, token string) (*Principal, error) {
	return (*s.now.Load()).Verify(ctx, token)
}
