package compat

import (
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// keywords proves each keyword of a schema for all values of a world. With a
// report it goes on after a failure, and says what failed.
func (c *checker) keywords(w *world, r *jsonschema.Schema, rep *report) bool {
	ok := true
	for _, prove := range []func(*world, *jsonschema.Schema, *report) bool{
		c.general, c.numbers, c.strings, c.arrays, c.objects, c.combinators,
	} {
		if !prove(w, r, rep) {
			ok = false
			if rep == nil {
				return false
			}
		}
	}
	return ok
}

// leaf proves one keyword. With a report, cases are told apart before it is said
// to fail: what fails in general may hold in each case.
func (c *checker) leaf(w *world, rep *report, prove func(*world) bool, f finding) bool {
	if rep == nil {
		return prove(w)
	}
	if c.worst(w, prove) == nil {
		return true
	}
	rep.add(f)
	return false
}

// worst gives a case of a world in which something cannot be proved, nil if there
// is none. Cases without values do not count.
func (c *checker) worst(w *world, prove func(*world) bool) *world {
	if w.kinds == 0 || prove(w) || c.void(w) {
		return nil
	}
	if c.splits >= maxSplits {
		return w
	}
	c.splits++
	defer func() { c.splits-- }()
	parts := c.parts(w)
	for _, part := range parts {
		if bad := c.worst(part, prove); bad != nil {
			return bad
		}
	}
	if len(parts) == 0 {
		return w
	}
	return nil
}

// descend proves that a world fits a schema, and with a report says why not.
func (c *checker) descend(w *world, r *jsonschema.Schema, rep *report) bool {
	if c.fits(w, r) {
		return true
	}
	if rep != nil {
		c.explain(w, r, rep)
	}
	return false
}

// explain reports why a world does not fit a schema.
func (c *checker) explain(w *world, r *jsonschema.Schema, rep *report) {
	if !rep.enter(w.key + "<" + r.Location) { // by place: each one is told, also where several say the same
		return
	}
	if list, ok := c.values(w); ok {
		rep.refused(r, slices.DeleteFunc(list, func(v any) bool { return accepts(r, v) }))
		return
	}
	before := len(rep.list)
	c.keywords(w, r, rep)
	if len(rep.list) == before && !c.fits(w, r) {
		if parts := c.parts(w); len(parts) > 0 && c.splits < maxSplits {
			c.splits++
			defer func() { c.splits-- }()
			for _, part := range parts {
				if !c.fits(part, r) {
					c.explain(part, r, rep)
					return
				}
			}
		}
	}
}

// general proves what has nothing to do with the kind of a value.
func (c *checker) general(w *world, r *jsonschema.Schema, rep *report) bool {
	if isFalse(r) {
		return c.leaf(w, rep, func(w *world) bool { return w.kinds == 0 }, forbidden(r))
	}
	ok := true
	for _, sub := range always(r) {
		if !c.descend(w, sub, rep) {
			ok = false
			if rep == nil {
				return false
			}
		}
	}
	if kinds := kindsOf(r); kinds != everything {
		ok = c.leaf(w, rep, func(w *world) bool { return w.kinds&^kinds == 0 }, wrongType(r, w.kinds)) && ok
	}
	// A world whose values can be listed is decided by trying them.
	byValue := func(w *world) bool {
		list, listed := c.values(w)
		return listed && !slices.ContainsFunc(list, func(v any) bool { return !accepts(r, v) })
	}
	if r.Const != nil {
		ok = c.leaf(w, rep, byValue, notConst(r)) && ok
	}
	if r.Enum != nil {
		ok = c.leaf(w, rep, byValue, notListed(r)) && ok
	}
	return ok
}

func (c *checker) numbers(w *world, r *jsonschema.Schema, rep *report) bool {
	if w.kinds&number == 0 {
		return true
	}
	with := func(prove func(numbers) bool) func(*world) bool {
		return func(w *world) bool { return w.kinds&number == 0 || prove(rangeOf(w, w.kinds)) }
	}
	ok := true
	if r.Minimum != nil || r.ExclusiveMinimum != nil {
		ok = c.leaf(w, rep, with(func(n numbers) bool { return n.atLeast(r.Minimum, false) && n.atLeast(r.ExclusiveMinimum, true) }), tooLow(r)) && ok
	}
	if r.Maximum != nil || r.ExclusiveMaximum != nil {
		ok = c.leaf(w, rep, with(func(n numbers) bool { return n.atMost(r.Maximum, false) && n.atMost(r.ExclusiveMaximum, true) }), tooHigh(r)) && ok
	}
	if r.MultipleOf != nil {
		ok = c.leaf(w, rep, with(func(n numbers) bool { return n.multiplesOf(r.MultipleOf) }), noMultiple(r)) && ok
	}
	return ok
}

func (c *checker) strings(w *world, r *jsonschema.Schema, rep *report) bool {
	if w.kinds&text == 0 {
		return true
	}
	some := func(has func(s *jsonschema.Schema) bool) func(*world) bool {
		return func(w *world) bool { return w.kinds&text == 0 || slices.ContainsFunc(w.pos, has) }
	}
	ok := true
	if r.MinLength != nil {
		ok = c.leaf(w, rep, func(w *world) bool { return w.kinds&text == 0 || lengthOf(w).low >= *r.MinLength }, tooShort(r)) && ok
	}
	if r.MaxLength != nil {
		ok = c.leaf(w, rep, func(w *world) bool { return w.kinds&text == 0 || lengthOf(w).high <= *r.MaxLength }, tooLong(r)) && ok
	}
	if r.Pattern != nil {
		all, prefix, pure := shape(r.Pattern.String())
		same := some(func(s *jsonschema.Schema) bool {
			return s.Pattern != nil && (s.Pattern.String() == r.Pattern.String() || pure && begins(s.Pattern.String(), prefix))
		})
		ok = c.leaf(w, rep, func(w *world) bool { return all || same(w) }, noMatch(w, r)) && ok
	}
	if r.Format != nil {
		ok = c.leaf(w, rep, some(func(s *jsonschema.Schema) bool { return s.Format != nil && plainFormat(s) == plainFormat(r) }), noFormat(w, r)) && ok
	}
	return ok
}

// plainFormat names a format; of two names for one check, the one.
func plainFormat(s *jsonschema.Schema) string {
	switch s.Format.Name {
	case "iri":
		return "uri"
	case "iri-reference":
		return "uri-reference"
	}
	return s.Format.Name
}

// begins says whether all that a pattern matches begins with a text.
func begins(pattern, prefix string) bool {
	_, other, _ := shape(pattern)
	return strings.HasPrefix(other, prefix)
}

func (c *checker) arrays(w *world, r *jsonschema.Schema, rep *report) bool {
	if w.kinds&array == 0 || r.MinItems == nil && r.MaxItems == nil && !r.UniqueItems && len(r.PrefixItems) == 0 && r.Items2020 == nil && r.Contains == nil && r.UnevaluatedItems == nil {
		return true
	}
	w = c.world(array, w.pos, w.neg)
	ok := true
	if r.MinItems != nil {
		ok = c.leaf(w, rep, func(w *world) bool { return c.length(w).low >= *r.MinItems }, tooFewItems(r)) && ok
	}
	if r.MaxItems != nil {
		ok = c.leaf(w, rep, func(w *world) bool { return c.length(w).high <= *r.MaxItems }, tooManyItems(r)) && ok
	}
	if r.UniqueItems {
		ok = c.leaf(w, rep, func(w *world) bool {
			return c.length(w).high <= 1 || slices.ContainsFunc(w.pos, func(s *jsonschema.Schema) bool { return s.UniqueItems })
		}, notUnique(r)) && ok
	}
	if r.Contains != nil {
		ok = c.leaf(w, rep, func(w *world) bool { return c.contains(w, r) }, notContained(r)) && ok
		ok = c.leaf(w, rep, func(w *world) bool { return c.containsAtMost(w, r) }, containedTooOften(r)) && ok
	}
	for i := range c.places(w, r) + 1 {
		if !ok && rep == nil {
			return false
		}
		ok = c.place(w, r, i, rep) && ok
	}
	return ok
}

// place proves what a reader demands of the item at a place.
func (c *checker) place(w *world, r *jsonschema.Schema, i int, rep *report) bool {
	// demand gives the schema, nil if there is none.
	demand := func(w *world) *jsonschema.Schema {
		sub := at(r, i)
		if sub == nil && r.UnevaluatedItems != nil && !c.surelyAt(w, r, i) && !c.leftBefore(w, r, func(s *jsonschema.Schema) *jsonschema.Schema { return s.UnevaluatedItems }) {
			sub = r.UnevaluatedItems
		}
		return sub
	}
	prove := func(w *world) bool {
		sub := demand(w)
		return sub == nil || isTrue(sub) || c.length(w).high <= i || c.inside(func() bool { return c.fits(c.item(w, i), sub) })
	}
	if rep == nil {
		return prove(w)
	}
	bad := c.worst(w, prove)
	if bad == nil {
		return true
	}
	sub := demand(bad)
	if isFalse(sub) {
		rep.add(itemClosed(r, i, sub == r.UnevaluatedItems))
		return false
	}
	c.inside(func() bool { return c.descend(c.item(bad, i), sub, rep) })
	return false
}

// combinators proves what is put together from other schemas.
func (c *checker) combinators(w *world, r *jsonschema.Schema, rep *report) bool {
	ok := true
	if len(r.AnyOf) > 1 {
		prove := func(w *world) bool {
			return slices.ContainsFunc(r.AnyOf, func(sub *jsonschema.Schema) bool { return c.fits(w, sub) })
		}
		ok = c.branch(w, r.AnyOf, prove, rep, noBranch(r, "anyOf", RuleAnyOf)) && ok
	}
	if len(r.OneOf) > 1 && (ok || rep != nil) {
		ok = c.branch(w, r.OneOf, func(w *world) bool { return c.exactlyOne(w, r.OneOf) }, rep, noBranch(r, "oneOf", RuleOneOf)) && ok
	}
	if r.Not != nil && (ok || rep != nil) {
		ok = c.leaf(w, rep, func(w *world) bool { return c.strictly(func() bool { return c.void(c.and(w, r.Not)) }) }, excluded(r)) && ok
	}
	if r.If != nil && (ok || rep != nil) {
		if r.Then != nil {
			ok = c.descend(c.and(w, r.If), r.Then, rep) && ok
		}
		if r.Else != nil && (ok || rep != nil) {
			ok = c.descend(c.but(w, r.If), r.Else, rep) && ok
		}
	}
	return ok
}

// exactlyOne proves that one branch holds and all others do not.
func (c *checker) exactlyOne(w *world, branches []*jsonschema.Schema) bool {
	for i, sub := range branches {
		if !c.fits(w, sub) {
			continue
		}
		for j, other := range branches {
			if i != j && !c.strictly(func() bool { return c.void(c.and(w, other)) }) {
				return false // another one may hold too, so no choice of i helps
			}
		}
		return true
	}
	return false
}

// branch proves that a world fits alternatives. If one alone comes into question,
// the report says what is wrong with it.
func (c *checker) branch(w *world, branches []*jsonschema.Schema, prove func(*world) bool, rep *report, f finding) bool {
	if rep == nil {
		return prove(w)
	}
	bad := c.worst(w, prove)
	if bad == nil {
		return true
	}
	var open []*jsonschema.Schema
	for _, sub := range branches {
		if !c.strictly(func() bool { return c.void(c.and(bad, sub)) }) {
			open = append(open, sub)
		}
	}
	if len(open) == 1 && !c.fits(bad, open[0]) {
		before := len(rep.list)
		c.explain(bad, open[0], rep)
		if len(rep.list) > before {
			return false
		}
	}
	rep.add(f)
	return false
}
