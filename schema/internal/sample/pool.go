package sample

import (
	"encoding/json"
	"maps"
	"math/big"
	"slices"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// pool holds the names, limits and values that schemas speak of.
type pool struct {
	seen    map[*jsonschema.Schema]bool
	names   []string
	values  []any
	texts   []string
	numbers []*big.Rat
	lengths []int
	counts  []int
	regexps []jsonschema.Regexp
	formats []string
}

// maxSeen bounds the schemas that are looked into for values.
const maxSeen = 5000

func newPool() *pool { return &pool{seen: make(map[*jsonschema.Schema]bool)} }

// add takes over what a schema and those below it speak of.
func (p *pool) add(s *jsonschema.Schema) {
	if s == nil || p.seen[s] || len(p.seen) >= maxSeen {
		return
	}
	p.seen[s] = true
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p.name(name)
	}
	for _, name := range s.Required {
		p.name(name)
	}
	for _, name := range slices.Sorted(maps.Keys(s.DependentRequired)) {
		p.name(name)
		for _, other := range s.DependentRequired[name] {
			p.name(other)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.DependentSchemas)) {
		p.name(name)
	}
	if s.Const != nil {
		p.value(*s.Const)
	}
	if s.Enum != nil {
		for _, v := range s.Enum.Values {
			p.value(v)
		}
	}
	for _, n := range []*big.Rat{s.Minimum, s.Maximum, s.ExclusiveMinimum, s.ExclusiveMaximum, s.MultipleOf} {
		if n != nil && n.Num().BitLen() <= maxBits && n.Denom().BitLen() <= maxBits {
			p.numbers = append(p.numbers, n)
		}
	}
	for _, n := range []*int{s.MinLength, s.MaxLength} {
		if n != nil {
			p.lengths = append(p.lengths, *n)
		}
	}
	for _, n := range []*int{s.MinItems, s.MaxItems, s.MinProperties, s.MaxProperties, s.MinContains, s.MaxContains} {
		if n != nil {
			p.counts = append(p.counts, *n)
		}
	}
	if s.Pattern != nil {
		p.regexps = append(p.regexps, s.Pattern)
	}
	if s.Format != nil {
		p.formats = append(p.formats, s.Format.Name)
	}
	p.regexps = append(p.regexps, sortedPatterns(s)...)
	for _, sub := range Below(s) {
		p.add(sub.Schema)
	}
}

func (p *pool) name(name string) {
	if !slices.Contains(p.names, name) && len(p.names) < 500 {
		p.names = append(p.names, name)
	}
}

func (p *pool) value(v any) {
	if len(p.values) > 500 {
		return
	}
	p.values = append(p.values, v)
	switch v := v.(type) {
	case string:
		p.texts = append(p.texts, v)
	case json.Number:
		if n, ok := new(big.Rat).SetString(v.String()); ok && n.Num().BitLen() <= maxBits && n.Denom().BitLen() <= maxBits {
			p.numbers = append(p.numbers, n)
		}
	}
}

// sortedPatterns gives the patterns of a schema's patternProperties in an order
// that is the same each time.
func sortedPatterns(s *jsonschema.Schema) []jsonschema.Regexp {
	list := slices.Collect(maps.Keys(s.PatternProperties))
	slices.SortFunc(list, func(a, b jsonschema.Regexp) int {
		switch {
		case a.String() < b.String():
			return -1
		case a.String() > b.String():
			return 1
		}
		return 0
	})
	return list
}

// Child is a schema inside another.
type Child struct {
	// Label says where it stands, such as "properties/pid".
	Label  string
	Schema *jsonschema.Schema
	// InPlace says that it is applied to the same value, not to one inside it.
	InPlace bool
}

// Below gives the schemas directly inside a schema, and those it refers to, in an
// order that is the same each time.
func Below(s *jsonschema.Schema) (list []Child) {
	add := func(label string, inPlace bool, sub *jsonschema.Schema) {
		if sub != nil {
			list = append(list, Child{label, sub, inPlace})
		}
	}
	each := func(label string, inPlace bool, subs []*jsonschema.Schema) {
		for i, sub := range subs {
			add(label+"/"+strconv.Itoa(i), inPlace, sub)
		}
	}
	byName := func(label string, inPlace bool, m map[string]*jsonschema.Schema) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			add(label+"/"+name, inPlace, m[name])
		}
	}
	add("$ref", true, s.Ref)
	add("$recursiveRef", true, s.RecursiveRef)
	if s.DynamicRef != nil {
		add("$dynamicRef", true, s.DynamicRef.Ref)
	}
	add("not", true, s.Not)
	add("if", true, s.If)
	add("then", true, s.Then)
	add("else", true, s.Else)
	each("allOf", true, s.AllOf)
	each("anyOf", true, s.AnyOf)
	each("oneOf", true, s.OneOf)
	byName("dependentSchemas", true, s.DependentSchemas)
	for _, name := range slices.Sorted(maps.Keys(s.Dependencies)) {
		if sub, ok := s.Dependencies[name].(*jsonschema.Schema); ok {
			add("dependencies/"+name, true, sub)
		}
	}
	byName("properties", false, s.Properties)
	for _, re := range sortedPatterns(s) {
		add("patternProperties/"+re.String(), false, s.PatternProperties[re])
	}
	if sub, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
		add("additionalProperties", false, sub)
	}
	add("propertyNames", false, s.PropertyNames)
	add("unevaluatedProperties", false, s.UnevaluatedProperties)
	add("contains", false, s.Contains)
	add("items", false, s.Items2020)
	add("unevaluatedItems", false, s.UnevaluatedItems)
	add("contentSchema", false, s.ContentSchema)
	each("prefixItems", false, s.PrefixItems)
	// What only drafts before 2020-12 have.
	if sub, ok := s.Items.(*jsonschema.Schema); ok {
		add("items", false, sub)
	}
	if subs, ok := s.Items.([]*jsonschema.Schema); ok {
		each("items", false, subs)
	}
	if sub, ok := s.AdditionalItems.(*jsonschema.Schema); ok {
		add("additionalItems", false, sub)
	}
	return list
}
