package compat

import (
	"math"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// at gives what a schema's own keywords demand of the item at a place.
func at(s *jsonschema.Schema, i int) *jsonschema.Schema {
	if i < len(s.PrefixItems) {
		return s.PrefixItems[i]
	}
	return s.Items2020
}

// maybeAt says whether a schema, or one that may apply with it, evaluates an item.
func (c *checker) maybeAt(s *jsonschema.Schema, i int) bool {
	return slices.ContainsFunc(c.nearby(s), func(sub *jsonschema.Schema) bool {
		return at(sub, i) != nil || sub.Contains != nil || sub != s && sub.UnevaluatedItems != nil
	})
}

// surelyAt says whether a schema, or one that applies with it for sure, evaluates
// an item.
func (c *checker) surelyAt(w *world, s *jsonschema.Schema, i int) bool {
	if at(s, i) != nil {
		return true
	}
	if c.steps++; c.spent() {
		return false
	}
	for _, list := range [][]*jsonschema.Schema{always(s), c.applying(w, s)} {
		for _, sub := range list {
			if sub.UnevaluatedItems != nil || c.surelyAt(w, sub, i) {
				return true
			}
		}
	}
	return false
}

// item is what is known of the item at a place, if it is there.
func (c *checker) item(w *world, i int) *world {
	var pos []*jsonschema.Schema
	for _, s := range w.pos {
		switch sub := at(s, i); {
		case sub != nil:
			pos = append(pos, sub)
		case s.UnevaluatedItems != nil && !c.maybeAt(s, i):
			pos = append(pos, s.UnevaluatedItems)
		}
	}
	return c.world(everything, pos, nil)
}

// places is the number of places that schemas tell apart; the next one stands for
// all that follow.
func (c *checker) places(w *world, r *jsonschema.Schema) (n int) {
	look := func(s *jsonschema.Schema) {
		n = max(n, len(s.PrefixItems))
		if s.UnevaluatedItems != nil {
			for _, sub := range c.nearby(s) {
				n = max(n, len(sub.PrefixItems))
			}
		}
	}
	for _, s := range w.pos {
		look(s)
	}
	if r != nil {
		look(r)
	}
	return n
}

// length is how many items arrays of a world have.
func (c *checker) length(w *world) counts {
	n := counts{0, math.MaxInt}
	for _, s := range w.pos {
		n.add(s.MinItems, s.MaxItems)
		if s.Contains != nil {
			n.low = max(n.low, atLeast(s))
		}
	}
	for i := range c.places(w, nil) + 1 {
		if i >= n.high {
			break
		}
		if c.inside(func() bool { return c.void(c.item(w, i)) }) {
			n.high = i
			break
		}
	}
	return n
}

// atLeast is how many items contains asks for.
func atLeast(s *jsonschema.Schema) int {
	if s.MinContains != nil {
		return *s.MinContains
	}
	return 1
}

// noArray proves that no array belongs to a world.
func (c *checker) noArray(w *world) bool {
	w = c.world(array, w.pos, w.neg)
	n := c.length(w)
	if n.low > n.high {
		return true
	}
	for _, s := range w.pos {
		if s.Contains == nil || atLeast(s) == 0 {
			continue
		}
		// No place can have what it looks for.
		none := true
		for i := range min(c.places(w, nil)+1, n.high) {
			if !c.inside(func() bool { return c.void(c.and(c.item(w, i), s.Contains)) }) {
				none = false
				break
			}
		}
		if none {
			return true
		}
	}
	return false
}

// contains proves that arrays of a world have at least as many of the items that
// a reader looks for as it wants.
func (c *checker) contains(w *world, r *jsonschema.Schema) bool {
	want := atLeast(r)
	if want == 0 {
		return true
	}
	n := c.length(w)
	last := c.places(w, nil)
	found := 0
	for i := range min(n.low, last+1) {
		if c.inside(func() bool { return c.fits(c.item(w, i), r.Contains) }) {
			if i == last {
				found += n.low - last // all that follow are alike
			} else {
				found++
			}
		}
	}
	if found >= want {
		return true
	}
	for _, s := range w.pos {
		if s.Contains != nil && atLeast(s) >= want && c.inside(func() bool { return c.fits(c.world(everything, []*jsonschema.Schema{s.Contains}, nil), r.Contains) }) {
			return true
		}
	}
	return false
}

// containsAtMost proves that they do not have too many.
func (c *checker) containsAtMost(w *world, r *jsonschema.Schema) bool {
	if r.MaxContains == nil || c.length(w).high <= *r.MaxContains {
		return true
	}
	for _, s := range w.pos {
		if s.Contains != nil && s.MaxContains != nil && *s.MaxContains <= *r.MaxContains &&
			c.strictly(func() bool {
				return c.inside(func() bool { return c.fits(c.world(everything, []*jsonschema.Schema{r.Contains}, nil), s.Contains) })
			}) {
			return true
		}
	}
	return false
}
