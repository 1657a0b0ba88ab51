package compat

import (
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// objects proves what a reader demands of objects.
func (c *checker) objects(w *world, r *jsonschema.Schema, rep *report) bool {
	if w.kinds&object == 0 {
		return true
	}
	w = c.world(object, w.pos, w.neg)
	ok := true
	done := func() bool { return !ok && rep == nil }
	for _, name := range slices.Compact(slices.Sorted(slices.Values(r.Required))) {
		ok = c.leaf(w, rep, func(w *world) bool { return w.required[name] }, missing(r, name)) && ok
		if done() {
			return false
		}
	}
	if r.MinProperties != nil {
		ok = c.leaf(w, rep, func(w *world) bool { return c.size(w).low >= *r.MinProperties }, tooFewProperties(r)) && ok
	}
	if r.MaxProperties != nil && !done() {
		ok = c.leaf(w, rep, func(w *world) bool { return c.size(w).high <= *r.MaxProperties }, tooManyProperties(r)) && ok
	}
	if done() {
		return false
	}
	ok = c.dependents(w, r, rep) && ok
	if done() {
		return false
	}
	return c.contents(w, r, rep) && ok
}

// dependents proves what a reader demands if a property is there.
func (c *checker) dependents(w *world, r *jsonschema.Schema, rep *report) bool {
	ok := true
	need := func(name string, names []string) {
		there := c.and(w, c.having(name))
		for _, other := range names {
			ok = c.leaf(there, rep, func(w *world) bool { return w.required[other] }, missingBeside(r, name, other)) && ok
		}
	}
	for _, name := range sorted(r.DependentRequired) {
		if c.absent(w, name) {
			continue
		}
		need(name, r.DependentRequired[name])
	}
	for _, name := range sorted(r.DependentSchemas) {
		ok = c.descend(c.and(w, c.having(name)), r.DependentSchemas[name], rep) && ok
	}
	for _, name := range sorted(r.Dependencies) {
		if c.absent(w, name) {
			continue
		}
		switch dep := r.Dependencies[name].(type) {
		case []string:
			need(name, dep)
		case *jsonschema.Schema:
			ok = c.descend(c.and(w, c.having(name)), dep, rep) && ok
		}
	}
	return ok
}

// contents proves what a reader demands of names and values of properties.
func (c *checker) contents(w *world, r *jsonschema.Schema, rep *report) bool {
	if len(r.Properties) == 0 && len(r.PatternProperties) == 0 && (r.AdditionalProperties == nil || r.AdditionalProperties == true) && r.UnevaluatedProperties == nil && r.PropertyNames == nil {
		return true
	}
	list, few := c.namings(w, r)
	ok := true
	if !few {
		if rep == nil {
			return false
		}
		rep.add(tooManyPatterns(r))
		ok = false
	}
	for _, n := range list {
		if r.PropertyNames != nil {
			ok = c.leaf(w, rep, func(w *world) bool { return c.nameFits(w, r, n) }, badName(r, n)) && ok
		}
		if !ok && rep == nil {
			return false
		}
		ok = c.property(w, r, n, rep) && ok
		if !ok && rep == nil {
			return false
		}
	}
	return ok
}

// nameFits proves that a reader takes a name, if it occurs.
func (c *checker) nameFits(w *world, r *jsonschema.Schema, n naming) bool {
	if c.inside(func() bool { return c.void(c.member(w, n)) }) {
		return true
	}
	if n.known {
		return accepts(r.PropertyNames, n.name)
	}
	return c.inside(func() bool { return c.fits(c.nameWorld(w, n), r.PropertyNames) })
}

// demand is what a reader asks of a property.
type demand struct {
	list []*jsonschema.Schema
	shut bool // it takes no such property
}

func (c *checker) demand(w *world, r *jsonschema.Schema, n naming) (d demand) {
	if shut(r, n) {
		return demand{shut: true}
	}
	list, evaluated := own(r, n)
	if !evaluated && r.UnevaluatedProperties != nil && !c.surely(w, r, n) && !c.leftBefore(w, r, func(s *jsonschema.Schema) *jsonschema.Schema { return s.UnevaluatedProperties }) {
		if isFalse(r.UnevaluatedProperties) {
			return demand{shut: true}
		}
		list = append(list, r.UnevaluatedProperties)
	}
	return demand{list: list}
}

// property proves what a reader demands of one property.
func (c *checker) property(w *world, r *jsonschema.Schema, n naming, rep *report) bool {
	prove := func(w *world) bool {
		d := c.demand(w, r, n)
		if !d.shut && !slices.ContainsFunc(d.list, func(s *jsonschema.Schema) bool { return !isTrue(s) }) || c.excused(w, r, n, d) {
			return true
		}
		return c.inside(func() bool {
			member := c.member(w, n)
			if d.shut {
				return c.void(member)
			}
			return !slices.ContainsFunc(d.list, func(s *jsonschema.Schema) bool { return !c.fits(member, s) })
		})
	}
	if rep == nil {
		return prove(w)
	}
	bad := c.worst(w, prove)
	if bad == nil {
		return true
	}
	d := c.demand(bad, r, n)
	switch {
	case d.shut && n.known && describes(bad, n.name):
		rep.add(removed(r, n.name))
	case d.shut:
		rep.add(closed(r))
	case c.unspoken(bad, n) && len(d.list) == 1 && r.Properties[n.name] == d.list[0]:
		rep.add(added(r, n.name, slices.Contains(r.Required, n.name)))
	default:
		c.inside(func() bool {
			for _, sub := range d.list {
				c.descend(c.member(bad, n), sub, rep)
			}
			return false
		})
	}
	return false
}

// describes says whether a schema of a world has a property.
func describes(w *world, name string) bool {
	return slices.ContainsFunc(w.pos, func(s *jsonschema.Schema) bool { return s.Properties[name] != nil })
}

// excused says whether leniency lets a property pass: an optional one that the
// writer says nothing of, or one that only the writer describes.
func (c *checker) excused(w *world, r *jsonschema.Schema, n naming, d demand) bool {
	if !c.lenient || !n.known {
		return false
	}
	if d.shut {
		return describes(w, n.name) && !slices.Contains(r.Required, n.name)
	}
	return c.unspoken(w, n) && r.Properties[n.name] != nil && len(d.list) == 1 && !slices.Contains(r.Required, n.name)
}

// unspoken says whether the writer says nothing of a property.
func (c *checker) unspoken(w *world, n naming) bool {
	m := c.member(w, n)
	return n.known && !describes(w, n.name) && len(m.pos) == 0 && len(m.neg) == 0
}
