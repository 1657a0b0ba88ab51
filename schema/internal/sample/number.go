package sample

import (
	"encoding/json"
	"math/big"
	"strings"
)

// span is the range of numbers that schemas allow.
type span struct {
	low, high         *big.Rat
	lowOpen, highOpen bool
	steps             []*big.Rat // it must be a multiple of each
}

func (s *span) contains(n *big.Rat) bool {
	if s.low != nil {
		if c := n.Cmp(s.low); c < 0 || c == 0 && s.lowOpen {
			return false
		}
	}
	if s.high != nil {
		if c := n.Cmp(s.high); c > 0 || c == 0 && s.highOpen {
			return false
		}
	}
	for _, step := range s.steps {
		if !new(big.Rat).Quo(n, step).IsInt() {
			return false
		}
	}
	return true
}

func (s *span) raise(n *big.Rat, open bool) {
	if n != nil && (s.low == nil || n.Cmp(s.low) > 0 || n.Cmp(s.low) == 0 && open) {
		s.low, s.lowOpen = n, open
	}
}

func (s *span) lower(n *big.Rat, open bool) {
	if n != nil && (s.high == nil || n.Cmp(s.high) < 0 || n.Cmp(s.high) == 0 && open) {
		s.high, s.highOpen = n, open
	}
}

// edges are numbers at which programs break.
var edges = func() (list []*big.Rat) {
	for _, s := range []string{
		"0", "1", "-1", "2", "-2", "10", "100", "9007199254740993", "-9007199254740993", "18446744073709551616", "-9223372036854775809", "2147483648",
		"123456789012345678901234567890", "1/2", "-1/2", "1/10", "3/10", "5/4", "-999/8", "1/1000000",
	} {
		n, _ := new(big.Rat).SetString(s)
		list = append(list, n)
	}
	return list
}()

// number makes a number within the limits.
func (m *Maker) number(f *facts, whole bool) (any, bool) {
	var s span
	for _, a := range f.all {
		s.raise(a.Minimum, false)
		s.raise(a.ExclusiveMinimum, true)
		s.lower(a.Maximum, false)
		s.lower(a.ExclusiveMaximum, true)
		if a.MultipleOf != nil {
			s.steps = append(s.steps, a.MultipleOf)
		}
	}
	for range 40 {
		n := m.candidate(&s, whole)
		if n.IsInt() != whole || !s.contains(n) {
			continue
		}
		if written, ok := m.write(n); ok {
			return written, true
		}
	}
	return nil, false
}

// candidate gives a number that may fit.
func (m *Maker) candidate(s *span, whole bool) *big.Rat {
	n := new(big.Rat)
	switch {
	case s.low != nil && m.chance(4):
		n.Set(s.low)
	case s.high != nil && m.chance(4):
		n.Set(s.high)
	case s.low != nil && s.high != nil && !m.chance(3):
		// somewhere between
		n.Sub(s.high, s.low)
		n.Mul(n, big.NewRat(int64(m.rng.IntN(1001)), 1000))
		n.Add(n, s.low)
	case len(m.pool.numbers) > 0 && m.chance(2):
		n.Set(pick(m, m.pool.numbers))
	case m.chance(3):
		n.Set(pick(m, edges))
		if s.low != nil {
			n.Add(n.Abs(n), s.low)
		} else if s.high != nil {
			n.Sub(s.high, n.Abs(n))
		}
	default:
		n.SetInt64(int64(m.rng.IntN(2000) - 1000))
	}
	if m.chance(3) {
		n.Add(n, pick(m, edges[:3]))
	}
	if len(s.steps) > 0 {
		n = round(new(big.Rat).Quo(n, s.steps[0]), m.chance(2))
		n.Mul(n, s.steps[0])
		if len(s.steps) > 1 {
			n.Mul(n, s.steps[len(s.steps)-1])
		}
	}
	switch {
	case whole && !n.IsInt():
		n = round(n, m.chance(2))
	case !whole && n.IsInt() && len(s.steps) == 0:
		n.Add(n, pick(m, []*big.Rat{big.NewRat(1, 2), big.NewRat(-1, 2), big.NewRat(1, 8), big.NewRat(-1, 1000), big.NewRat(1, 10)}))
	}
	return n
}

// round gives the whole number below or above.
func round(n *big.Rat, up bool) *big.Rat {
	q, r := new(big.Int).DivMod(n.Num(), n.Denom(), new(big.Int))
	if up && r.Sign() != 0 {
		q.Add(q, big.NewInt(1))
	}
	return new(big.Rat).SetInt(q)
}

// write gives a number as it stands in a document, sometimes in an unusual form.
// What has no end as a decimal fraction cannot be written.
func (m *Maker) write(n *big.Rat) (json.Number, bool) {
	if n.Num().BitLen() > 1400 || n.Denom().BitLen() > 1400 {
		return "", false // nobody writes four hundred digits
	}
	if n.IsInt() {
		digits := n.Num().String()
		if m.chance(12) && !m.calm {
			if bare := strings.TrimRight(digits, "0"); len(digits)-len(bare) == 2 {
				return json.Number(bare + "e2"), true
			}
			return json.Number(digits + ".0"), true
		}
		return json.Number(digits), true
	}
	digits, exact := n.FloatPrec()
	if !exact || digits > 400 {
		return "", false
	}
	return json.Number(n.FloatString(digits)), true
}
