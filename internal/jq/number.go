package jq

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/itchyny/gojq"
)

// These operators are written anew, because gojq's own do more in one step than
// a run may do in all. They give the same.

// computed makes a number of a payload into one to compute with: an int, an
// integer of any size, or a float.
func computed(v any) any {
	n, ok := v.(json.Number)
	if !ok {
		return v
	}
	if i, err := strconv.Atoi(string(n)); err == nil {
		return i
	}
	if strings.ContainsAny(string(n), ".eE") {
		f, err := strconv.ParseFloat(string(n), 64)
		if err == nil {
			return f
		}
	} else if b, ok := new(big.Int).SetString(string(n), 10); ok {
		return b
	}
	if strings.HasPrefix(string(n), "-") {
		return math.Inf(-1)
	}
	return math.Inf(1)
}

// toFloat gives any number as a float.
func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case float64:
		return v, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return f, true
	}
	return 0, false
}

// toBig gives an integer as one of any size.
func toBig(v any) (*big.Int, bool) {
	switch v := v.(type) {
	case int:
		return big.NewInt(int64(v)), true
	case *big.Int:
		return v, true
	}
	return nil, false
}

// arithmetic does an operation on two numbers that are not both ints.
func (r *run) arithmetic(a, b any, ints func(x, y *big.Int) any, floats func(x, y float64) any) (any, bool) {
	if x, ok := toBig(a); ok {
		if y, ok := toBig(b); ok {
			if x.BitLen()+y.BitLen() > maxDigits*4 {
				r.err = errDigits
				return r.err, true
			}
			return ints(x, y), true
		}
	}
	x, ok := toFloat(a)
	y, fine := toFloat(b)
	if !ok || !fine {
		return nil, false
	}
	return floats(x, y), true
}

func cannot(do string, a, b any) error {
	return fmt.Errorf("cannot %s: %s and %s", do, preview(a), preview(b))
}

func (r *run) sub(a, b any) any {
	a, b = computed(a), computed(b)
	if x, ok := a.(int); ok {
		if y, ok := b.(int); ok {
			if v := x - y; (v <= x) == (y >= 0) {
				return v
			}
		}
	}
	if v, ok := r.arithmetic(a, b,
		func(x, y *big.Int) any { return new(big.Int).Sub(x, y) },
		func(x, y float64) any { return x - y }); ok {
		return v
	}
	x, ok := a.([]any)
	y, fine := b.([]any)
	if !ok || !fine {
		return cannot("subtract", a, b)
	}
	if err, failed := r.product(a, b).(error); failed {
		return err
	}
	rest := make([]any, 0, len(x))
next:
	for _, v := range x {
		for _, w := range y {
			if gojq.Compare(v, w) == 0 {
				continue next
			}
		}
		rest = append(rest, v)
	}
	return rest
}

func (r *run) mul(a, b any) any {
	a, b = computed(a), computed(b)
	if x, ok := a.(int); ok {
		if y, ok := b.(int); ok {
			if v := x * y; y == 0 || y != -1 && v/y == x {
				return v
			}
		}
	}
	if v, ok := r.arithmetic(a, b,
		func(x, y *big.Int) any { return small(new(big.Int).Mul(x, y)) },
		func(x, y float64) any { return x * y }); ok {
		return v
	}
	if x, ok := a.(map[string]any); ok {
		if y, ok := b.(map[string]any); ok {
			return r.made(merge(x, y))
		}
	}
	if s, ok := a.(string); ok {
		if n, ok := toFloat(b); ok {
			return r.repeat(s, n)
		}
	}
	if s, ok := b.(string); ok {
		if n, ok := toFloat(a); ok {
			return r.repeat(s, n)
		}
	}
	return cannot("multiply", a, b)
}

// small gives an int where -1 made an int look too large.
func small(b *big.Int) any {
	if b.IsInt64() {
		return int(b.Int64())
	}
	return b
}

// merge puts what is in b over what is in a, object by object.
func merge(a, b map[string]any) map[string]any {
	m := maps.Clone(a)
	if m == nil {
		m = make(map[string]any, len(b))
	}
	for name, v := range b {
		if x, ok := m[name].(map[string]any); ok {
			if y, ok := v.(map[string]any); ok {
				v = merge(x, y)
			}
		}
		m[name] = v
	}
	return m
}

func (r *run) repeat(s string, n float64) any {
	switch {
	case n < 0 || math.IsNaN(n):
		return nil
	case float64(len(s))*n > float64(r.limits.Value):
		return r.tooLarge()
	case s == "":
		return s
	}
	return r.made(strings.Repeat(s, int(n)))
}

func (r *run) div(a, b any) any {
	a, b = computed(a), computed(b)
	if y, ok := toFloat(b); ok && y == 0 {
		if _, ok := toFloat(a); ok {
			return fmt.Errorf("cannot divide %s by: %s", preview(a), preview(b))
		}
	}
	if x, ok := a.(int); ok {
		if y, ok := b.(int); ok && y != -1 {
			if x%y == 0 {
				return x / y
			}
			return float64(x) / float64(y)
		}
	}
	if v, ok := r.arithmetic(a, b,
		func(x, y *big.Int) any {
			d, m := new(big.Int).DivMod(x, y, new(big.Int))
			if m.Sign() == 0 {
				return small(d)
			}
			f, _ := toFloat(x)
			g, _ := toFloat(y)
			return f / g
		},
		func(x, y float64) any { return x / y }); ok {
		return v
	}
	s, ok := a.(string)
	sep, fine := b.(string)
	if !ok || !fine {
		return cannot("divide", a, b)
	}
	if s == "" {
		return []any{}
	}
	if !r.charge(48 * (strings.Count(s, sep) + 1)) {
		return r.err
	}
	parts := strings.Split(s, sep)
	list := make([]any, len(parts))
	for i, p := range parts {
		list[i] = p
	}
	return r.made(list)
}
