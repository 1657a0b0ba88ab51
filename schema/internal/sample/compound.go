package sample

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// array makes an array.
func (m *Maker) array(f *facts, depth int) (any, bool) {
	low, high, unique := 0, math.MaxInt, false
	prefix := 0
	for _, a := range f.all {
		if a.MinItems != nil {
			low = max(low, *a.MinItems)
		}
		if a.MaxItems != nil {
			high = min(high, *a.MaxItems)
		}
		unique = unique || a.UniqueItems
		prefix = max(prefix, len(a.PrefixItems))
	}
	if low > high || low > maxNodes {
		return nil, false
	}
	n := m.size(low, high, prefix, depth)
	wanted := m.contained(f, n)
	list := make([]any, 0, n)
	for i := range n {
		v, ok := m.item(f, i, wanted[i], unique, list, depth)
		if !ok {
			break
		}
		list = append(list, v)
	}
	return list, len(list) >= low
}

// size chooses how many members an array or an object has.
func (m *Maker) size(low, high, known, depth int) int {
	n := low
	switch {
	case depth > fullDepth || m.calm && m.chance(2):
	case m.chance(4):
		n = known
	case m.chance(4) && high < 40:
		n = high
	case m.chance(4) && len(m.pool.counts) > 0:
		n = pick(m, m.pool.counts) + m.rng.IntN(3) - 1
	default:
		n = low + m.rng.IntN(4)
	}
	return min(max(n, low), high, low+40)
}

// contained decides which items have to be what contains asks for.
func (m *Maker) contained(f *facts, n int) map[int][]*jsonschema.Schema {
	wanted := make(map[int][]*jsonschema.Schema)
	for _, a := range f.all {
		if a.Contains == nil || n == 0 {
			continue
		}
		count := 1
		if a.MinContains != nil {
			count = *a.MinContains
		}
		for _, i := range m.rng.Perm(n)[:min(count, n)] {
			wanted[i] = append(wanted[i], a.Contains)
		}
	}
	return wanted
}

func (m *Maker) item(f *facts, i int, more []*jsonschema.Schema, unique bool, before []any, depth int) (any, bool) {
	list := slices.Clone(more)
	for _, a := range f.all {
		switch {
		case i < len(a.PrefixItems):
			list = append(list, a.PrefixItems[i])
		case a.Items2020 != nil:
			list = append(list, a.Items2020)
		case a.UnevaluatedItems != nil && len(f.all) == 1:
			list = append(list, a.UnevaluatedItems)
		}
	}
	for range 6 {
		v, ok := m.value(list, depth+1)
		if ok && (!unique || !slices.ContainsFunc(before, func(b any) bool { return equal(v, b) })) {
			return v, true
		}
	}
	return nil, false
}

// equal compares two values as a validator does: by value, not by how a number is
// written.
func equal(a, b any) bool {
	one := &jsonschema.Schema{DraftVersion: 2020, Const: &a}
	return one.Validate(b) == nil
}

// object makes an object.
func (m *Maker) object(f *facts, depth int) (any, bool) {
	low, high := 0, math.MaxInt
	known := make(map[string]bool)
	var patterns []jsonschema.Regexp
	open := true
	for _, a := range f.all {
		if a.MinProperties != nil {
			low = max(low, *a.MinProperties)
		}
		if a.MaxProperties != nil {
			high = min(high, *a.MaxProperties)
		}
		for name := range a.Properties {
			known[name] = true
		}
		patterns = append(patterns, sortedPatterns(a)...)
		if a.AdditionalProperties == false {
			open = false
		}
	}
	if low > high || len(f.must) > high || low > maxNodes {
		return nil, false
	}
	out := make(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(f.must)) {
		v, ok := m.member(f, name, depth)
		if !ok || f.never[name] {
			return nil, false
		}
		out[name] = v
	}
	if depth > fullDepth && len(out) >= low {
		return out, true
	}
	add := func(name string) {
		if _, ok := out[name]; ok || f.never[name] || len(out) >= high {
			return
		}
		if v, ok := m.member(f, name, depth); ok {
			out[name] = v
		}
	}
	if !m.chance(6) {
		share := 1 + m.rng.IntN(3)
		for _, name := range slices.Sorted(maps.Keys(known)) {
			if m.rng.IntN(4) < share {
				add(name)
			}
		}
	}
	extra := 0
	if (open || len(patterns) > 0) && !m.chance(3) {
		extra = m.rng.IntN(4)
		if m.chance(4) && len(m.pool.counts) > 0 {
			extra = min(pick(m, m.pool.counts)+m.rng.IntN(3)-1, 40)
		}
	}
	for try := 0; (len(out) < low || extra > 0) && try < 4*low+12; try++ {
		add(m.newName(known, patterns))
		extra--
	}
	return out, len(out) >= low
}

// newName gives a name for a property that is not required: from either schema,
// from a pattern, or made up.
func (m *Maker) newName(known map[string]bool, patterns []jsonschema.Regexp) string {
	switch {
	case len(patterns) > 0 && m.chance(2):
		return m.match(pick(m, patterns), 0)
	case len(known) > 0 && m.chance(3):
		return pick(m, slices.Sorted(maps.Keys(known)))
	case len(m.pool.names) > 0 && !m.chance(3):
		return pick(m, m.pool.names)
	case len(m.pool.regexps) > 0 && m.chance(3):
		return m.match(pick(m, m.pool.regexps), 0)
	case len(m.pool.texts) > 0 && m.chance(6):
		return pick(m, m.pool.texts)
	case m.chance(8):
		return pick(m, []string{"", "__proto__", "constructor", "$ref", "a/b~c", "é", strings.Repeat("n", 120)})
	}
	return m.letters(1 + m.rng.IntN(8))
}

// member makes the value of a property.
func (m *Maker) member(f *facts, name string, depth int) (any, bool) {
	var list []*jsonschema.Schema
	for _, a := range f.all {
		found := false
		if sub, ok := a.Properties[name]; ok {
			list, found = append(list, sub), true
		}
		for _, re := range sortedPatterns(a) {
			if re.MatchString(name) {
				list, found = append(list, a.PatternProperties[re]), true
			}
		}
		if !found {
			switch more := a.AdditionalProperties.(type) {
			case bool:
				if !more {
					return nil, false
				}
			case *jsonschema.Schema:
				list = append(list, more)
			case nil:
				if a.UnevaluatedProperties != nil && !m.mentioned(f, a, name) {
					list = append(list, a.UnevaluatedProperties)
				}
			}
		}
		if a.PropertyNames != nil && a.PropertyNames.Validate(name) != nil {
			return nil, false
		}
	}
	return m.value(list, depth+1)
}

// mentioned says whether another of the schemas may have evaluated a property.
func (m *Maker) mentioned(f *facts, but *jsonschema.Schema, name string) bool {
	for _, a := range f.all {
		if a == but {
			continue
		}
		if _, ok := a.Properties[name]; ok || a.AdditionalProperties != nil {
			return true
		}
		for re := range a.PatternProperties {
			if re.MatchString(name) {
				return true
			}
		}
	}
	return false
}
