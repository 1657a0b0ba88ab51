package compat

import (
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// world is what is known of a value that was written: its kind, schemas that it
// satisfies and schemas that it does not. References and allOf are resolved, so
// that each keyword of the reader can be proved from all that is known at once.
// A world does not change once it is made.
type world struct {
	kinds    kind
	pos, neg []*jsonschema.Schema
	has, not map[int]bool // the classes of pos and neg
	required map[string]bool
	key      string
}

// world puts together what is known.
func (c *checker) world(kinds kind, pos, neg []*jsonschema.Schema) *world {
	w := &world{kinds: kinds, has: make(map[int]bool), not: make(map[int]bool), required: make(map[string]bool)}
	for _, s := range pos {
		c.learn(w, s)
	}
	for _, s := range neg {
		c.deny(w, s)
	}
	// What is required brings more with it, and so do conditions that are known.
	for n := -1; n != len(w.has)+len(w.not)+len(w.required); {
		n = len(w.has) + len(w.not) + len(w.required)
		for _, s := range slices.Clone(w.pos) {
			c.consequences(w, s)
		}
	}
	for id := range w.has {
		if w.not[id] {
			w.kinds = 0
		}
	}
	byClass := func(a, b *jsonschema.Schema) int { return c.id(a) - c.id(b) }
	slices.SortFunc(w.pos, byClass)
	slices.SortFunc(w.neg, byClass)
	var b strings.Builder
	b.WriteString(strconv.Itoa(int(w.kinds)))
	for _, s := range w.pos {
		b.WriteByte('+')
		b.WriteString(strconv.Itoa(c.id(s)))
	}
	for _, s := range w.neg {
		b.WriteByte('-')
		b.WriteString(strconv.Itoa(c.id(s)))
	}
	w.key = b.String()
	return w
}

// and is a world with more known.
func (c *checker) and(w *world, more ...*jsonschema.Schema) *world {
	return c.world(w.kinds, slices.Concat(w.pos, more), w.neg)
}

// but is a world with something denied.
func (c *checker) but(w *world, denied ...*jsonschema.Schema) *world {
	return c.world(w.kinds, w.pos, slices.Concat(w.neg, denied))
}

// learn adds a schema that the value satisfies.
func (c *checker) learn(w *world, s *jsonschema.Schema) {
	if isTrue(s) || w.has[c.id(s)] {
		return
	}
	if isFalse(s) {
		w.kinds = 0
		return
	}
	c.steps++
	w.has[c.id(s)] = true
	w.pos = append(w.pos, s)
	w.kinds &= kindsOf(s)
	if s.MultipleOf != nil && s.MultipleOf.IsInt() {
		w.kinds &^= fraction
	}
	for _, name := range s.Required {
		w.required[name] = true
	}
	for _, sub := range always(s) {
		c.learn(w, sub)
	}
	if s.Not != nil {
		c.deny(w, s.Not)
	}
}

// always gives the schemas that apply to a value whenever s does.
func always(s *jsonschema.Schema) []*jsonschema.Schema {
	list := slices.Clone(s.AllOf)
	if s.Ref != nil {
		list = append(list, s.Ref)
	}
	if s.DynamicRef != nil {
		list = append(list, s.DynamicRef.Ref)
	}
	if len(s.AnyOf) == 1 {
		list = append(list, s.AnyOf[0])
	}
	if len(s.OneOf) == 1 {
		list = append(list, s.OneOf[0])
	}
	return list
}

// deny adds a schema that the value does not satisfy.
func (c *checker) deny(w *world, s *jsonschema.Schema) {
	if isFalse(s) || w.not[c.id(s)] {
		return
	}
	if isTrue(s) {
		w.kinds = 0
		return
	}
	c.steps++
	w.not[c.id(s)] = true
	w.neg = append(w.neg, s)
	if keywords(s) != 1 {
		return
	}
	// Not one thing is the opposite of that thing.
	switch {
	case s.Types != nil && !s.Types.IsEmpty():
		w.kinds &^= kindsOf(s)
	case s.Not != nil:
		c.learn(w, s.Not)
	case s.Ref != nil:
		c.deny(w, s.Ref)
	case len(s.AnyOf) > 0:
		for _, sub := range s.AnyOf {
			c.deny(w, sub)
		}
	case len(s.AllOf) == 1:
		c.deny(w, s.AllOf[0])
	}
}

// consequences adds what follows from a schema together with the rest.
func (c *checker) consequences(w *world, s *jsonschema.Schema) {
	if s.If != nil {
		if w.has[c.id(s.If)] || isTrue(s.If) {
			if s.Then != nil {
				c.learn(w, s.Then)
			}
		} else if (w.not[c.id(s.If)] || isFalse(s.If)) && s.Else != nil {
			c.learn(w, s.Else)
		}
	}
	for name, names := range s.DependentRequired {
		if w.required[name] {
			for _, other := range names {
				w.required[other] = true
			}
		}
	}
	if w.kinds&^object != 0 {
		return // what is required is required of objects, and there may be others
	}
	for name, sub := range s.DependentSchemas {
		if w.required[name] {
			c.learn(w, sub)
		}
	}
	for name, dep := range s.Dependencies {
		if !w.required[name] {
			continue
		}
		switch dep := dep.(type) {
		case []string:
			for _, other := range dep {
				w.required[other] = true
			}
		case *jsonschema.Schema:
			c.learn(w, dep)
		}
	}
}

// values lists all values of a world, if they are few.
func (c *checker) values(w *world) (list []any, ok bool) {
	var given []any
	found := false
	for _, s := range w.pos {
		if s.Const != nil {
			given, found = []any{*s.Const}, true
			break
		}
		if s.Enum != nil && (!found || len(s.Enum.Values) < len(given)) {
			given, found = s.Enum.Values, true
		}
	}
	if !found {
		given, found = c.small(w)
	}
	if !found {
		return nil, false
	}
	for _, v := range given {
		c.steps++
		if w.kinds&kindOf(v) != 0 &&
			!slices.ContainsFunc(w.pos, func(s *jsonschema.Schema) bool { return rejects(s, v) }) &&
			!slices.ContainsFunc(w.neg, func(s *jsonschema.Schema) bool { return accepts(s, v) }) {
			list = append(list, v)
		}
	}
	return list, true
}

// fewNumbers is how many numbers are tried one by one.
const fewNumbers = 40

// small lists the values of kinds that have few: null, true, false and whole
// numbers between two limits.
func (c *checker) small(w *world) (list []any, ok bool) {
	if w.kinds&^(null|boolean|integer) != 0 {
		return nil, false
	}
	if w.kinds&integer != 0 {
		r := rangeOf(w, integer)
		if r.low == nil || r.high == nil || new(big.Rat).Sub(r.high, r.low).Cmp(big.NewRat(fewNumbers, 1)) > 0 {
			return nil, false
		}
		for n := whole(r.low, false, 1); n.Cmp(r.high) <= 0; n.Add(n, one) {
			list = append(list, jsonNumber(n))
		}
	}
	if w.kinds&null != 0 {
		list = append(list, nil)
	}
	if w.kinds&boolean != 0 {
		list = append(list, true, false)
	}
	return list, true
}

// names gives the properties that schemas of a world speak of.
func (w *world) names() map[string]bool {
	list := maps.Clone(w.required)
	for _, s := range w.pos {
		for name := range s.Properties {
			list[name] = true
		}
	}
	for _, s := range w.neg {
		for _, name := range s.Required {
			list[name] = true
		}
	}
	return list
}
