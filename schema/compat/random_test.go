package compat

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

// Random schemas are small and drawn from few names, numbers and patterns, so
// that two of them often have to do with each other.

type node = map[string]any

var (
	someNames    = []string{"a", "b", "c", "ab"}
	somePatterns = []string{"^a", "^ab", "b$", "^[a-c]+$", "c", "^a$"}
	someFormats  = []string{"date", "ipv4", "email", "uuid"}
	someTypes    = []string{"null", "boolean", "integer", "number", "string", "array", "object"}
	someValues   = []any{nil, true, false, 0, 1, 2.5, -1, 3, "a", "ab", "abc", "", "2024-02-29", []any{}, []any{1}, node{}, node{"a": 1}, node{"a": "a", "b": 1}}
)

// dice draws from rapid. What rapid draws is mostly small, so it is stirred; a
// failure can still be made smaller.
type dice struct {
	t     *rapid.T
	drawn *uint64
}

func (d dice) n(n int) int {
	*d.drawn++
	v := rapid.Uint64().Draw(d.t, "n") + *d.drawn*0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return int((v ^ v>>31) % uint64(n))
}

func (d dice) chance(n int) bool { return d.n(n) == 0 }
func (d dice) number() any       { return []any{-1, 0, 1, 2, 3, 1.5, 0.5, 5, 10}[d.n(9)] }

func oneOf[T any](d dice, l []T) T { return l[d.n(len(l))] }

// some draws a few different elements.
func some[T any](d dice, l []T, low, high int) (out []any) {
	l = slices.Clone(l)
	for range low + d.n(high-low+1) {
		i := d.n(len(l))
		out = append(out, l[i])
		l = slices.Delete(l, i, i+1)
	}
	return out
}

// schema draws one. References go to the root or to $defs/x.
func (d dice) schema(depth int) any {
	if d.chance(12) {
		return d.chance(2)
	}
	s := node{}
	kinds := []string{oneOf(d, someTypes)}
	if depth > 0 && d.n(3) > 0 {
		kinds[0] = oneOf(d, []string{"object", "object", "array"})
	}
	switch d.n(6) {
	case 0:
		kinds = append(kinds, oneOf(d, someTypes))
		if kinds[0] == kinds[1] {
			kinds = kinds[:1]
		}
		s["type"] = anyList(kinds)
	case 1:
		// it speaks of a kind without asking for it
	default:
		s["type"] = kinds[0]
	}
	for range 1 + d.n(3) {
		d.keyword(s, oneOf(d, kinds), depth)
	}
	if d.chance(5) {
		d.combine(s, depth)
	}
	return s
}

func anyList[T any](l []T) []any {
	out := make([]any, len(l))
	for i, v := range l {
		out[i] = v
	}
	return out
}

// keyword adds one that is about a kind of value.
func (d dice) keyword(s node, kind string, depth int) {
	sub := func() any {
		if depth <= 0 {
			return node{"type": oneOf(d, someTypes)}
		}
		return d.schema(depth - 1)
	}
	switch kind {
	case "integer", "number":
		if k := oneOf(d, []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}); d.chance(6) {
			s[k] = d.number()
		} else if strings.HasSuffix(k, "inimum") {
			s[k] = oneOf(d, []any{-1, 0, 1, 0.5})
		} else {
			s[k] = oneOf(d, []any{2, 3, 5, 10, 3.5})
		}
		if d.chance(4) {
			s["multipleOf"] = oneOf(d, []any{1, 2, 3, 0.5, 6, 1.5})
		}
	case "string":
		switch d.n(4) {
		case 0:
			s["minLength"] = d.n(4)
		case 1:
			s["maxLength"] = d.n(5)
		case 2:
			s["pattern"] = oneOf(d, somePatterns)
		default:
			if d.chance(3) {
				s["format"] = oneOf(d, someFormats)
			}
		}
	case "array":
		switch d.n(9) {
		case 0:
			s["minItems"] = d.n(4)
		case 1:
			s["maxItems"] = d.n(4)
		case 2:
			s["uniqueItems"] = true
		case 3:
			s["prefixItems"] = []any{sub(), sub()}[:1+d.n(2)]
		case 4:
			s["contains"] = sub()
			if d.chance(2) {
				s[oneOf(d, []string{"minContains", "maxContains"})] = d.n(3)
			}
		case 5:
			s["unevaluatedItems"] = sub()
		default:
			s["items"] = sub()
		}
	case "object":
		switch d.n(12) {
		case 0:
			s["required"] = append([]any{}, some(d, someNames, 0, 3)...)
		case 1:
			s["additionalProperties"] = oneOf(d, []any{false, false, true, sub()})
		case 2:
			s["patternProperties"] = node{oneOf(d, somePatterns): sub()}
		case 3:
			s["propertyNames"] = oneOf(d, []any{node{"pattern": oneOf(d, somePatterns)}, node{"enum": []any{"a", "b"}}, node{"maxLength": d.n(3)}, node{"enum": []any{"a", "ab", "c"}}})
		case 4:
			s[oneOf(d, []string{"minProperties", "maxProperties"})] = d.n(4)
		case 5:
			s["dependentRequired"] = node{oneOf(d, someNames): []any{oneOf(d, someNames)}}
		case 6:
			s["unevaluatedProperties"] = oneOf(d, []any{false, false, sub()})
		case 7:
			s["dependentSchemas"] = node{oneOf(d, someNames): sub()}
		default:
			props, _ := s["properties"].(node)
			if props == nil {
				props = node{}
				s["properties"] = props
			}
			for range 1 + d.n(3) {
				props[oneOf(d, someNames)] = sub()
			}
		}
	default:
		if d.chance(3) {
			d.values(s)
		}
	}
	if d.chance(8) {
		d.values(s)
	}
}

func (d dice) values(s node) {
	list := someValues
	if t, ok := s["type"].(string); ok && !d.chance(8) {
		list = slices.DeleteFunc(slices.Clone(list), func(v any) bool { return !isType(v, t) })
	}
	if d.chance(2) {
		s["const"] = oneOf(d, list)
		return
	}
	s["enum"] = some(d, list, 1, min(4, len(list)))
}

// isType says whether a value is of a type.
func isType(v any, t string) bool {
	switch v := v.(type) {
	case nil:
		return t == "null"
	case bool:
		return t == "boolean"
	case int:
		return t == "integer" || t == "number"
	case float64:
		return t == "number" || t == "integer" && v == float64(int(v))
	case string:
		return t == "string"
	case []any:
		return t == "array"
	}
	return t == "object"
}

// combine adds a keyword that puts schemas together.
func (d dice) combine(s node, depth int) {
	sub := func() any {
		if depth <= 0 {
			return node{"type": oneOf(d, someTypes)}
		}
		return d.schema(depth - 1)
	}
	switch d.n(8) {
	case 0:
		s["not"] = sub()
	case 1:
		s["if"], s["then"] = sub(), sub()
		if d.chance(2) {
			s["else"] = sub()
		}
	case 2:
		s["$ref"] = "#/$defs/x"
	case 3:
		s["allOf"] = []any{sub(), sub()}
	case 4:
		kind := func(v string) any {
			return node{"type": "object", "required": []any{"c"}, "properties": node{"c": node{"const": v}, "a": sub()}}
		}
		s[oneOf(d, []string{"oneOf", "anyOf"})] = []any{kind("a"), kind("b"), kind("c")}[:2+d.n(2)]
	case 5, 6:
		s["anyOf"] = []any{sub(), sub()}
	default:
		s["oneOf"] = []any{sub(), sub()}
	}
}

// document draws a whole schema with $defs.
func (d dice) document() node {
	s := d.schema(2)
	for tries := 0; tries < 5 && (isBool(s) || len(s.(node)) < 2); tries++ {
		s = d.schema(2)
	}
	if isBool(s) {
		return node{}
	}
	return d.define(s.(node))
}

func isBool(v any) bool {
	_, ok := v.(bool)
	return ok
}

// define adds what the references of a schema lead to.
func (d dice) define(s node) node {
	if _, ok := s["$defs"]; ok || !strings.Contains(written(s), `"$ref"`) {
		return s
	}
	s["$defs"] = node{"x": d.schema(1)}
	if d.chance(2) {
		s["$defs"] = node{"x": node{"type": oneOf(d, []any{"object", []any{"object", "null"}}), "properties": node{"a": node{"$ref": "#/$defs/x"}, "b": d.schema(0)}, "required": []any{"b"}}}
	}
	return s
}

// clone copies a schema that is still text.
func clone(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	return out
}

// nodes lists the schemas inside a schema.
func nodes(v any) (list []node) {
	s, ok := v.(node)
	if !ok {
		return nil
	}
	list = append(list, s)
	for _, key := range slices.Sorted(maps.Keys(s)) {
		switch key {
		case "not", "if", "then", "else", "items", "contains", "additionalProperties", "unevaluatedProperties", "unevaluatedItems":
			list = append(list, nodes(s[key])...)
		case "properties", "patternProperties", "dependentSchemas", "$defs":
			below := s[key].(node)
			for _, name := range slices.Sorted(maps.Keys(below)) {
				list = append(list, nodes(below[name])...)
			}
		case "allOf", "anyOf", "oneOf", "prefixItems":
			for _, sub := range s[key].([]any) {
				list = append(list, nodes(sub)...)
			}
		}
	}
	return list
}

// written is a schema as text.
func written(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// mutate changes something, and says what.
func (d dice) mutate(root node) (what string) {
	before := written(root)
	for range 6 {
		what = d.change(root)
		d.define(root)
		if written(root) != before {
			break
		}
	}
	return what
}

func (d dice) change(root node) string {
	s := oneOf(d, nodes(root))
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(s)), func(k string) bool { return k == "$defs" })
	switch d.n(12) {
	case 0:
		if len(keys) > 0 {
			k := oneOf(d, keys)
			delete(s, k)
			if k == "if" {
				delete(s, "then")
				delete(s, "else")
			}
			return "remove " + k
		}
	case 1, 2:
		kind := oneOf(d, someTypes)
		if k, ok := s["type"].(string); ok {
			kind = k
		}
		d.keyword(s, kind, 1)
		return "keyword for " + kind
	case 3:
		return d.retype(s)
	case 4:
		return d.renumber(s, keys)
	case 5, 6, 7:
		return d.reproperty(s)
	case 8:
		d.combine(s, 1)
		return "combine"
	case 9:
		return d.rebranch(s)
	case 10:
		return d.wrap(s)
	default:
		return d.revalue(s)
	}
	return "nothing"
}

func (d dice) retype(s node) string {
	switch t := s["type"].(type) {
	case string:
		switch {
		case t == "integer" && d.chance(2):
			s["type"] = "number"
			return "integer to number"
		case d.chance(2):
			if other := oneOf(d, someTypes); other != t {
				s["type"] = []any{t, other}
			}
			return "widen type"
		}
		s["type"] = oneOf(d, someTypes)
		return "change type"
	case []any:
		s["type"] = t[d.n(len(t))]
		return "narrow type"
	}
	s["type"] = oneOf(d, someTypes)
	return "add type"
}

func (d dice) renumber(s node, keys []string) string {
	for _, k := range keys {
		if n, ok := s[k].(float64); ok && k != "const" {
			switch {
			case k == "multipleOf":
				s[k] = n * oneOf(d, []float64{2, 3, 0.5})
			case k[:3] == "min" && n >= 1 || k[:3] == "max" || k[:3] == "exc" || k == "minimum":
				s[k] = n + oneOf(d, []float64{1, -1, 2})
				if s[k].(float64) < 0 && k != "minimum" && k != "maximum" && k[:3] != "exc" {
					s[k] = 0.0
				}
			default:
				s[k] = n + 1
			}
			return "limit " + k
		}
	}
	return "nothing"
}

func (d dice) reproperty(s node) string {
	props, ok := s["properties"].(node)
	if !ok {
		props = node{}
	}
	names := slices.Sorted(maps.Keys(props))
	required, _ := s["required"].([]any)
	name := oneOf(d, someNames)
	switch d.n(6) {
	case 0:
		props[name] = d.schema(0)
		s["properties"] = props
		return "add property"
	case 1:
		if len(names) > 0 {
			delete(props, oneOf(d, names))
		}
		return "remove property"
	case 2:
		if len(names) > 0 {
			old := oneOf(d, names)
			props[name] = props[old]
			if old != name {
				delete(props, old)
			}
		}
		return "rename property"
	case 3:
		s["additionalProperties"] = oneOf(d, []any{true, false, d.schema(0)})
		return "additional properties"
	case 4:
		if i := slices.Index(required, any(name)); i >= 0 {
			s["required"] = slices.Delete(required, i, i+1)
			return "make optional"
		}
		s["required"] = append(required, name)
		return "make required"
	}
	if len(required) > 0 {
		s["required"] = required[1:]
	}
	return "make optional"
}

func (d dice) rebranch(s node) string {
	for _, k := range []string{"anyOf", "oneOf", "allOf", "prefixItems"} {
		list, ok := s[k].([]any)
		if !ok {
			continue
		}
		switch {
		case d.chance(3) && len(list) > 1:
			i := d.n(len(list))
			s[k] = slices.Delete(list, i, i+1)
			return "remove from " + k
		case d.chance(3):
			list[0], list[len(list)-1] = list[len(list)-1], list[0]
			return "swap in " + k
		}
		s[k] = append(list, d.schema(0))
		return "add to " + k
	}
	return "nothing"
}

// wrap puts a schema into a combinator with others.
func (d dice) wrap(s node) string {
	inner := node{}
	for k, v := range s {
		if k != "$defs" {
			inner[k] = v
			delete(s, k)
		}
	}
	k := oneOf(d, []string{"anyOf", "oneOf", "allOf", "not not"})
	switch k {
	case "not not":
		s["not"] = node{"not": inner}
	default:
		list := []any{inner}
		if d.chance(2) {
			list = append(list, d.schema(0))
		}
		s[k] = list
	}
	return "wrap in " + k
}

func (d dice) revalue(s node) string {
	if list, ok := s["enum"].([]any); ok {
		if d.chance(2) && len(list) > 1 {
			s["enum"] = list[1:]
			return "remove from enum"
		}
		v := oneOf(d, someValues)
		for _, e := range list {
			if fmt.Sprint(e) == fmt.Sprint(v) {
				return "nothing"
			}
		}
		s["enum"] = append(list, v)
		return "add to enum"
	}
	if v, ok := s["const"]; ok {
		delete(s, "const")
		s["enum"] = []any{v}
		return "const to enum"
	}
	d.values(s)
	return "add values"
}
