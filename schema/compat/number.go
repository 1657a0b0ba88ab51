package compat

import (
	"encoding/json"
	"math"
	"math/big"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

var one = big.NewRat(1, 1)

// numbers is what is known of a number.
type numbers struct {
	low, high         *big.Rat // nil where there is no limit
	lowOpen, highOpen bool
	step              *big.Rat // it is a multiple of this, nil for of nothing
}

// rangeOf gives the limits of the numbers of a world.
func rangeOf(w *world, kinds kind) numbers {
	var r numbers
	for _, s := range w.pos {
		r.above(s.Minimum, false)
		r.above(s.ExclusiveMinimum, true)
		r.below(s.Maximum, false)
		r.below(s.ExclusiveMaximum, true)
		if s.MultipleOf != nil {
			r.multiple(s.MultipleOf)
		}
	}
	for _, s := range w.neg {
		// Not being at least n is being below n.
		if !lone(s, w.kinds&number) {
			continue
		}
		switch {
		case s.Minimum != nil:
			r.below(s.Minimum, true)
		case s.ExclusiveMinimum != nil:
			r.below(s.ExclusiveMinimum, false)
		case s.Maximum != nil:
			r.above(s.Maximum, true)
		case s.ExclusiveMaximum != nil:
			r.above(s.ExclusiveMaximum, false)
		}
	}
	if kinds&fraction == 0 {
		r.multiple(one)
	}
	if r.step == nil {
		return r
	}
	// The limits move to the first multiple inside.
	if r.low != nil {
		r.low, r.lowOpen = whole(new(big.Rat).Quo(r.low, r.step), r.lowOpen, 1), false
		r.low.Mul(r.low, r.step)
	}
	if r.high != nil {
		r.high, r.highOpen = whole(new(big.Rat).Quo(r.high, r.step), r.highOpen, -1), false
		r.high.Mul(r.high, r.step)
	}
	return r
}

func (r *numbers) above(n *big.Rat, open bool) {
	if n == nil {
		return
	}
	if r.low == nil || n.Cmp(r.low) > 0 || n.Cmp(r.low) == 0 && open {
		r.low, r.lowOpen = n, open
	}
}

func (r *numbers) below(n *big.Rat, open bool) {
	if n == nil {
		return
	}
	if r.high == nil || n.Cmp(r.high) < 0 || n.Cmp(r.high) == 0 && open {
		r.high, r.highOpen = n, open
	}
}

// multiple makes the step the least common multiple of itself and n.
func (r *numbers) multiple(n *big.Rat) {
	if r.step == nil {
		r.step = n
		return
	}
	// lcm(a/b, c/d) = lcm(a, c) / gcd(b, d), for reduced fractions.
	a, c := r.step.Num(), n.Num()
	lcm := new(big.Int).Mul(a, c)
	lcm.Quo(lcm, new(big.Int).GCD(nil, nil, a, c))
	gcd := new(big.Int).GCD(nil, nil, r.step.Denom(), n.Denom())
	if lcm.BitLen() <= maxBits {
		r.step = new(big.Rat).SetFrac(lcm, gcd)
	}
}

// whole gives the first whole number from a limit on, upwards or downwards.
func whole(n *big.Rat, open bool, direction int64) *big.Rat {
	q, rest := new(big.Int).DivMod(n.Num(), n.Denom(), new(big.Int)) // rounded down
	switch {
	case rest.Sign() == 0 && open:
		q.Add(q, big.NewInt(direction))
	case rest.Sign() != 0 && direction > 0:
		q.Add(q, big.NewInt(1))
	}
	return new(big.Rat).SetInt(q)
}

// empty says whether no number is left.
func (r *numbers) empty() bool {
	if r.low == nil || r.high == nil {
		return false
	}
	n := r.low.Cmp(r.high)
	return n > 0 || n == 0 && (r.lowOpen || r.highOpen)
}

// atLeast says whether all numbers are n or above, or above n.
func (r *numbers) atLeast(n *big.Rat, open bool) bool {
	if n == nil {
		return true
	}
	if r.low == nil {
		return false
	}
	c := r.low.Cmp(n)
	return c > 0 || c == 0 && (!open || r.lowOpen)
}

func (r *numbers) atMost(n *big.Rat, open bool) bool {
	if n == nil {
		return true
	}
	if r.high == nil {
		return false
	}
	c := r.high.Cmp(n)
	return c < 0 || c == 0 && (!open || r.highOpen)
}

// multiplesOf says whether all numbers are multiples of n.
func (r *numbers) multiplesOf(n *big.Rat) bool {
	return n == nil || r.step != nil && new(big.Rat).Quo(r.step, n).IsInt()
}

// lone says whether a schema has one keyword beside a type that takes all values
// of these kinds.
func lone(s *jsonschema.Schema, kinds kind) bool {
	if s.Types != nil && !s.Types.IsEmpty() {
		return keywords(s) == 2 && kinds&^kindsOf(s) == 0
	}
	return keywords(s) == 1
}

// counts is a range of lengths or counts.
type counts struct{ low, high int }

func (r *counts) add(low, high *int) {
	if low != nil {
		r.low = max(r.low, *low)
	}
	if high != nil {
		r.high = min(r.high, *high)
	}
}

func lengthOf(w *world) counts {
	r := counts{0, math.MaxInt}
	for _, s := range w.pos {
		r.add(s.MinLength, s.MaxLength)
	}
	for _, s := range w.neg {
		if !lone(s, text) {
			continue
		}
		switch {
		case s.MinLength != nil:
			r.high = min(r.high, *s.MinLength-1)
		case s.MaxLength != nil && *s.MaxLength < math.MaxInt:
			r.low = max(r.low, *s.MaxLength+1)
		}
	}
	return r
}

// jsonNumber writes a whole number.
func jsonNumber(n *big.Rat) json.Number { return json.Number(n.Num().String()) }
