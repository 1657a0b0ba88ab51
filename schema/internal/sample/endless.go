package sample

import (
	"net/url"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Endless says whether no finite document satisfies a schema because it needs
// itself inside itself, such as an object whose required property is again such
// an object. The pointer is to the schema where the circle closes.
//
// What can be met is found as the least fixpoint: at first nothing, then what
// needs nothing, then what needs only that, and so on. A schema that cannot be
// met for another reason, such as false, is not endless: the greatest fixpoint,
// which trusts circles, does not hold it to be possible either.
func Endless(s *jsonschema.Schema) (pointer string, ok bool) {
	if s.Bool != nil {
		return "", false
	}
	all := reachable(s)
	least, greatest := fixpoint(all, false), fixpoint(all, true)
	if least.some(s) || !greatest.some(s) {
		return "", false
	}
	return Pointer(circle(least, greatest, s)), true
}

// reachable gives a schema and all below it.
func reachable(s *jsonschema.Schema) []*jsonschema.Schema {
	seen := map[*jsonschema.Schema]bool{s: true}
	list := []*jsonschema.Schema{s}
	for i := 0; i < len(list); i++ {
		for _, sub := range Below(list[i]) {
			if !seen[sub.Schema] {
				seen[sub.Schema] = true
				list = append(list, sub.Schema)
			}
		}
	}
	return list
}

// possible says of which kinds there are documents of a schema.
type possible map[*jsonschema.Schema]kind

func (p possible) some(s *jsonschema.Schema) bool { return p[s] != 0 }

// fixpoint goes up from nothing, or down from everything.
func fixpoint(all []*jsonschema.Schema, greatest bool) possible {
	p := make(possible, len(all))
	for _, s := range all {
		if greatest {
			p[s] = everything
		}
	}
	for changed := true; changed; {
		changed = false
		// Backwards, because what is below was found later.
		for i := len(all) - 1; i >= 0; i-- {
			if k := p.judge(all[i]); k != p[all[i]] {
				p[all[i]] = k
				changed = true
			}
		}
	}
	return p
}

// judge gives the kinds that a schema can be met with, if what it needs can be
// met as p says. It never says no where there may be a document.
func (p possible) judge(s *jsonschema.Schema) kind {
	switch {
	case s.Bool != nil && *s.Bool:
		return everything
	case s.Bool != nil:
		return 0
	case s.Const != nil || s.Enum != nil:
		return kindsOf(s) // the values that are listed end
	}
	k := kindsOf(s)
	for _, sub := range same(s) {
		k &= p[sub]
	}
	for _, list := range [][]*jsonschema.Schema{s.AnyOf, s.OneOf} {
		if len(list) > 0 {
			var any kind
			for _, sub := range list {
				any |= p[sub]
			}
			k &= any
		}
	}
	if k&object != 0 {
		for _, sub := range needs(s) {
			if !p.some(sub) {
				k &^= object
			}
		}
	}
	if k&array != 0 {
		for _, sub := range needsItems(s) {
			if !p.some(sub) {
				k &^= array
			}
		}
	}
	return k
}

// needs gives the schemas that properties of every object must satisfy.
func needs(s *jsonschema.Schema) (list []*jsonschema.Schema) {
	for _, name := range s.Required {
		sub, known := s.Properties[name]
		if known {
			list = append(list, sub)
		}
		for _, re := range sortedPatterns(s) {
			if re.MatchString(name) {
				list, known = append(list, s.PatternProperties[re]), true
			}
		}
		if more, ok := s.AdditionalProperties.(*jsonschema.Schema); ok && !known {
			list = append(list, more)
		}
	}
	return list
}

// needsItems gives the schemas that items of every array must satisfy.
func needsItems(s *jsonschema.Schema) (list []*jsonschema.Schema) {
	low := 0
	if s.MinItems != nil {
		low = *s.MinItems
	}
	for i, sub := range s.PrefixItems {
		if i < low {
			list = append(list, sub)
		}
	}
	if low > len(s.PrefixItems) && s.Items2020 != nil {
		list = append(list, s.Items2020)
	}
	if s.Contains != nil && (s.MinContains == nil || *s.MinContains > 0) {
		list = append(list, s.Contains)
	}
	return list
}

// circle goes down through what cannot be met until it meets a schema again.
func circle(least, greatest possible, s *jsonschema.Schema) *jsonschema.Schema {
	seen := make(map[*jsonschema.Schema]bool)
	for !seen[s] {
		seen[s] = true
		for _, list := range [][]*jsonschema.Schema{needs(s), needsItems(s), same(s), s.AnyOf, s.OneOf} {
			for _, sub := range list {
				if !least.some(sub) && greatest.some(sub) {
					s = sub
				}
			}
		}
	}
	return s
}

// Pointer is the JSON pointer to a schema inside the one it belongs to.
func Pointer(s *jsonschema.Schema) string {
	_, fragment, _ := strings.Cut(s.Location, "#")
	if plain, err := url.PathUnescape(fragment); err == nil {
		return plain
	}
	return fragment
}
