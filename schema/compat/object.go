package compat

import (
	"maps"
	"math"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"promethean/schema/internal/sample"
)

func itoa(n int) string { return strconv.Itoa(n) }

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// naming is a property, or all properties that no schema names and that match the
// same patterns.
type naming struct {
	name    string
	known   bool
	matched map[string]bool
}

func known(name string) naming { return naming{name: name, known: true} }

// matches says whether a pattern matches the name.
func (n naming) matches(re jsonschema.Regexp) bool {
	if n.known {
		return re.MatchString(n.name)
	}
	return n.matched[re.String()]
}

// own gives what a schema's own keywords demand of a property, and whether they
// have anything to do with it.
func own(s *jsonschema.Schema, n naming) (list []*jsonschema.Schema, evaluated bool) {
	if sub, ok := s.Properties[n.name]; ok && n.known {
		list, evaluated = append(list, sub), true
	}
	for re, sub := range s.PatternProperties {
		if n.matches(re) {
			list, evaluated = append(list, sub), true
		}
	}
	if !evaluated && s.AdditionalProperties != nil {
		evaluated = true
		if sub, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
			list = append(list, sub)
		}
	}
	return list, evaluated
}

// shut says whether a schema allows no property of this name by
// additionalProperties: false.
func shut(s *jsonschema.Schema, n naming) bool {
	if s.AdditionalProperties != false {
		return false
	}
	if _, ok := s.Properties[n.name]; ok && n.known {
		return false
	}
	for re := range s.PatternProperties {
		if n.matches(re) {
			return false
		}
	}
	return true
}

// nearby gives a schema and all that may apply to the same value with it.
func (c *checker) nearby(s *jsonschema.Schema) []*jsonschema.Schema {
	if list, ok := c.near[s]; ok {
		return list
	}
	seen := map[*jsonschema.Schema]bool{s: true}
	list := []*jsonschema.Schema{s}
	for i := 0; i < len(list); i++ {
		for _, sub := range sample.Below(list[i]) {
			if sub.InPlace && !seen[sub.Schema] {
				seen[sub.Schema] = true
				list = append(list, sub.Schema)
			}
		}
	}
	c.steps += len(list)
	c.near[s] = list
	return list
}

// maybe says whether a schema, or one that may apply with it, evaluates a property.
func (c *checker) maybe(s *jsonschema.Schema, n naming) bool {
	return slices.ContainsFunc(c.nearby(s), func(sub *jsonschema.Schema) bool {
		_, evaluated := own(sub, n)
		return evaluated || sub != s && sub.UnevaluatedProperties != nil
	})
}

// surely says whether a schema, or one that applies with it for sure, evaluates a
// property.
func (c *checker) surely(w *world, s *jsonschema.Schema, n naming) bool {
	if _, evaluated := own(s, n); evaluated {
		return true
	}
	if c.steps++; c.spent() {
		return false
	}
	deep := func(sub *jsonschema.Schema) bool {
		return sub.UnevaluatedProperties != nil || c.surely(w, sub, n)
	}
	if slices.ContainsFunc(always(s), deep) {
		return true
	}
	for _, sub := range c.applying(w, s) {
		if deep(sub) {
			return true
		}
	}
	return false
}

// applying gives the branches of a schema that apply to all values of a world.
func (c *checker) applying(w *world, s *jsonschema.Schema) (list []*jsonschema.Schema) {
	holds := func(sub *jsonschema.Schema) bool {
		return c.strictly(func() bool { return c.fits(w, sub) })
	}
	for _, sub := range slices.Concat(s.AnyOf, s.OneOf) {
		if holds(sub) {
			list = append(list, sub)
		}
	}
	if s.If != nil {
		switch {
		case holds(s.If):
			list = append(list, s.If)
			if s.Then != nil {
				list = append(list, s.Then)
			}
		case s.Else != nil && c.strictly(func() bool { return c.void(c.and(w, s.If)) }):
			list = append(list, s.Else)
		}
	}
	for name, sub := range s.DependentSchemas {
		if w.required[name] {
			list = append(list, sub)
		}
	}
	return list
}

// member is what is known of the value of a property, if it is there.
func (c *checker) member(w *world, n naming) *world {
	none := c.world(0, nil, nil)
	if n.known && !w.required[n.name] && c.sizeLimits(w).high <= len(w.required) || !n.known && c.sizeLimits(w).high == 0 {
		return none // there is no room for it
	}
	var pos, neg []*jsonschema.Schema
	for _, s := range w.pos {
		if shut(s, n) {
			return none
		}
		list, evaluated := own(s, n)
		pos = append(pos, list...)
		if !evaluated && s.UnevaluatedProperties != nil && !c.maybe(s, n) {
			pos = append(pos, s.UnevaluatedProperties)
		}
		if n.known && s.PropertyNames != nil && rejects(s.PropertyNames, n.name) {
			return none
		}
	}
	for _, s := range w.neg {
		if !n.known {
			break
		}
		// Not having it is lacking it, and not having it with such a value is
		// having it with another.
		if len(s.Required) == 1 && s.Required[0] == n.name && keywords(s) == 1 {
			return none
		}
		sub, ok := s.Properties[n.name]
		if !ok || len(s.Properties) != 1 {
			continue
		}
		switch {
		case keywords(s) == 1:
			neg = append(neg, sub)
		case keywords(s) == 2 && len(s.Required) == 1 && s.Required[0] == n.name:
			neg = append(neg, sub) // if it is there
		}
	}
	return c.world(everything, pos, neg)
}

// absent says whether it is known that a property is not there.
func (c *checker) absent(w *world, name string) bool {
	return c.inside(func() bool { return c.void(c.member(w, known(name))) })
}

// maxPatterns bounds the patterns for names that are looked at together.
const maxPatterns = 5

// namings lists the properties that objects of a world may have, as far as the
// schemas tell them apart. False means that there are too many patterns.
func (c *checker) namings(w *world, r *jsonschema.Schema) (list []naming, ok bool) {
	names := w.names()
	patterns := make(map[string]jsonschema.Regexp)
	look := func(s *jsonschema.Schema) {
		for name := range s.Properties {
			names[name] = true
		}
		for re := range s.PatternProperties {
			patterns[re.String()] = re
		}
	}
	var sources []*jsonschema.Schema
	if r != nil {
		sources = append(sources, r)
	}
	for _, s := range append(sources, w.pos...) {
		if s.UnevaluatedProperties != nil {
			for _, sub := range c.nearby(s) { // what is evaluated inside counts
				look(sub)
			}
		} else {
			look(s)
		}
	}
	if values, few := c.values(c.nameWorld(w, naming{})); few {
		for _, v := range values {
			if name, isText := v.(string); isText {
				names[name] = true
			}
		}
		for _, name := range sorted(names) {
			list = append(list, known(name))
		}
		return list, true
	}
	for _, name := range sorted(names) {
		list = append(list, known(name))
	}
	if len(patterns) > maxPatterns {
		return list, false
	}
	if n := c.sizeLimits(w); n.high <= len(w.required) {
		return list, true // there is no room for others
	}
	keys := sorted(patterns)
	for set := range 1 << len(keys) {
		n := naming{matched: make(map[string]bool)}
		for i, key := range keys {
			n.matched[key] = set&(1<<i) != 0
		}
		if possible(n.matched, patterns) {
			list = append(list, n)
		}
	}
	return list, true
}

// nameWorld is what is known of names of properties.
func (c *checker) nameWorld(w *world, n naming) *world {
	var pos, neg []*jsonschema.Schema
	for _, s := range w.pos {
		if s.PropertyNames != nil {
			pos = append(pos, s.PropertyNames)
		}
		for re := range s.PatternProperties {
			if matched, ok := n.matched[re.String()]; ok && matched {
				pos = append(pos, c.matching(re))
			} else if ok {
				neg = append(neg, c.matching(re))
			}
		}
	}
	return c.world(text, pos, neg)
}

// possible says whether a name may match exactly these patterns. It says so too
// where it does not know.
func possible(matched map[string]bool, patterns map[string]jsonschema.Regexp) bool {
	for a, yes := range matched {
		all, prefixA, pureA := shape(patterns[a].String())
		if all && !yes {
			return false
		}
		for b, other := range matched {
			if a == b {
				continue
			}
			_, prefixB, pureB := shape(patterns[b].String())
			switch {
			case yes && other && prefixA != "" && prefixB != "" && !strings.HasPrefix(prefixA, prefixB) && !strings.HasPrefix(prefixB, prefixA):
				return false // they begin differently
			case yes && !other && prefixB != "" && pureB && strings.HasPrefix(prefixA, prefixB):
				return false // what begins with more begins with less
			case !yes && other && prefixA != "" && pureA && strings.HasPrefix(prefixB, prefixA):
				return false
			}
		}
	}
	return true
}

// shape looks at a pattern: whether it matches everything, which text everything
// that it matches begins with, and whether nothing else is asked for.
func shape(pattern string) (all bool, prefix string, pure bool) {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return false, "", false
	}
	re = re.Simplify()
	if re.Op == syntax.OpEmptyMatch || re.Op == syntax.OpStar || re.Op == syntax.OpQuest {
		return true, "", false // it can match nothing, which is everywhere
	}
	if re.Op != syntax.OpConcat || len(re.Sub) < 2 || re.Sub[0].Op != syntax.OpBeginText {
		return re.Op == syntax.OpBeginText, "", false
	}
	if lit := re.Sub[1]; lit.Op == syntax.OpLiteral && lit.Flags&syntax.FoldCase == 0 {
		return false, string(lit.Rune), len(re.Sub) == 2
	}
	return false, "", false
}

// sizeLimits is how many properties objects of a world have.
func (c *checker) sizeLimits(w *world) counts {
	n := counts{len(w.required), math.MaxInt}
	for _, s := range w.pos {
		n.add(s.MinProperties, s.MaxProperties)
	}
	return n
}

// size is sizeLimits, and counts the properties that can be there at all.
func (c *checker) size(w *world) counts {
	n := c.sizeLimits(w)
	list, ok := c.namings(w, nil)
	if !ok {
		return n
	}
	there := 0
	for _, name := range list {
		if c.inside(func() bool { return c.void(c.member(w, name)) }) {
			continue
		}
		if !name.known {
			return n
		}
		there++
	}
	n.high = min(n.high, there)
	return n
}

// noObject proves that no object belongs to a world.
func (c *checker) noObject(w *world) bool {
	w = c.world(object, w.pos, w.neg)
	for _, name := range sorted(w.required) {
		if c.absent(w, name) {
			return true
		}
	}
	n := c.sizeLimits(w)
	if n.low == 0 {
		return false
	}
	if n.low <= n.high {
		n = c.size(w)
	}
	return n.low > n.high
}
