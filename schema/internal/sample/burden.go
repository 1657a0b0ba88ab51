package sample

import (
	"math"
	"math/big"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// MaxBurden is how many schemas may be applied to one value. A few references
// that each lead to two others are a short text, and take a validator for ever.
const MaxBurden = 10_000

// Burden is the most schemas that are applied to one value of a document, each as
// often as references lead to it, and the pointer to where that is. A reference
// that leads back to itself on the same value counts as more than can be borne.
func Burden(s *jsonschema.Schema) (n int, pointer string) {
	memo := make(map[*jsonschema.Schema]int)
	for _, sub := range reachable(s) {
		if m := burden(sub, memo); m > n {
			n, pointer = m, Pointer(sub)
		}
	}
	return n, pointer
}

// maxBits bounds numbers; calculating with longer ones takes too long.
const maxBits = 4096

// Heavy says whether validating a document could take too long to try many.
func Heavy(s *jsonschema.Schema) bool {
	if n, _ := Burden(s); n > MaxBurden {
		return true
	}
	for _, sub := range reachable(s) {
		for _, n := range []*big.Rat{sub.Maximum, sub.Minimum, sub.ExclusiveMaximum, sub.ExclusiveMinimum, sub.MultipleOf} {
			if n != nil && (n.Num().BitLen() > maxBits || n.Denom().BitLen() > maxBits) {
				return true
			}
		}
	}
	return false
}

// open marks schemas that are being counted.
const open = -1

func burden(s *jsonschema.Schema, memo map[*jsonschema.Schema]int) int {
	if n, ok := memo[s]; ok {
		if n == open {
			return math.MaxInt32
		}
		return n
	}
	memo[s] = open
	n := 1
	for _, sub := range Below(s) {
		if sub.InPlace {
			n = min(n+burden(sub.Schema, memo), math.MaxInt32)
		}
	}
	memo[s] = n
	return n
}

// repeats is how often a value inside another may be looked at because several
// schemas speak of it. It multiplies with each value inside another.
func repeats(s *jsonschema.Schema) (most int) {
	most = 1
	steps := 0
	for _, root := range reachable(s) {
		counts := make(map[string]int)
		var walk func(s *jsonschema.Schema)
		walk = func(s *jsonschema.Schema) {
			if steps++; steps > 200_000 {
				return
			}
			for _, sub := range Below(s) {
				switch {
				case sub.InPlace:
					walk(sub.Schema)
				case len(Below(sub.Schema)) > 0:
					counts[sub.Label]++
					most = max(most, counts[sub.Label])
				}
			}
		}
		walk(root)
	}
	return most
}

// depthFor is how deep documents may be so that validating them does not take for
// ever.
func depthFor(repeats int) int {
	if repeats < 2 {
		return maxDepth
	}
	return min(maxDepth, max(3, int(math.Log(1e5)/math.Log(float64(repeats)))))
}

// Depth is how deep a document may be nested so that looking at all of it does
// not take for ever; bounded is false if any may. A schema that refers to itself,
// and speaks of one value in several places, doubles the work with each step down.
func Depth(s *jsonschema.Schema) (most int, bounded bool) {
	n := repeats(s)
	if n < 2 || !recursive(s) {
		return 0, false
	}
	return max(3, int(math.Log(1e5)/math.Log(float64(n)))), true
}

// recursive says whether a schema refers to itself, in any way.
func recursive(s *jsonschema.Schema) bool {
	const under, done = 1, 2
	state := make(map[*jsonschema.Schema]int)
	var visit func(s *jsonschema.Schema) bool
	visit = func(s *jsonschema.Schema) bool {
		switch state[s] {
		case under:
			return true
		case done:
			return false
		}
		state[s] = under
		for _, sub := range Below(s) {
			if visit(sub.Schema) {
				return true
			}
		}
		state[s] = done
		return false
	}
	return visit(s)
}
