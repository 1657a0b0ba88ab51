package compat

import (
	"encoding/json"
	"math/big"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// kind is a set of kinds of values. Whole numbers and others are told apart,
// because integer is narrower than number.
type kind int

const (
	null kind = 1 << iota
	boolean
	integer
	fraction
	text
	array
	object

	number     = integer | fraction
	everything = null | boolean | number | text | array | object
)

var kindNames = []struct {
	name string
	kind kind
}{
	{"null", null}, {"boolean", boolean}, {"number", number}, {"integer", integer}, {"string", text}, {"array", array}, {"object", object},
}

// kindsOf gives the kinds that the type of a schema allows.
func kindsOf(s *jsonschema.Schema) (k kind) {
	if s.Types == nil || s.Types.IsEmpty() {
		return everything
	}
	for _, name := range s.Types.ToStrings() {
		for _, n := range kindNames {
			if n.name == name {
				k |= n.kind
			}
		}
	}
	return k
}

// String names the kinds as a schema does.
func (k kind) String() string {
	var list []string
	for _, n := range kindNames {
		if k&n.kind == n.kind && (n.kind != integer || k&fraction == 0) {
			list = append(list, n.name)
		}
	}
	if k&number == fraction {
		list = append(list, "number")
	}
	return strings.Join(list, ", ")
}

// kindOf gives the kind of a decoded value.
func kindOf(v any) kind {
	switch v := v.(type) {
	case nil:
		return null
	case bool:
		return boolean
	case string:
		return text
	case []any:
		return array
	case map[string]any:
		return object
	case json.Number:
		if n, ok := new(big.Rat).SetString(v.String()); ok && !n.IsInt() {
			return fraction
		}
		return integer
	}
	return 0
}

// keywords counts the keywords of a schema that assert something.
func keywords(s *jsonschema.Schema) (n int) {
	for _, there := range []bool{
		s.Bool != nil, s.Ref != nil, s.RecursiveRef != nil, s.DynamicRef != nil, s.Types != nil && !s.Types.IsEmpty(), s.Enum != nil, s.Const != nil, s.Not != nil,
		len(s.AllOf) > 0, len(s.AnyOf) > 0, len(s.OneOf) > 0, s.If != nil && (s.Then != nil || s.Else != nil), s.Format != nil,
		s.MaxProperties != nil, s.MinProperties != nil, len(s.Required) > 0, s.PropertyNames != nil, len(s.Properties) > 0, len(s.PatternProperties) > 0,
		s.AdditionalProperties != nil && s.AdditionalProperties != true, len(s.Dependencies) > 0, len(s.DependentRequired) > 0, len(s.DependentSchemas) > 0, s.UnevaluatedProperties != nil,
		s.MinItems != nil, s.MaxItems != nil, s.UniqueItems, s.Contains != nil, len(s.PrefixItems) > 0, s.Items2020 != nil, s.UnevaluatedItems != nil,
		s.MinLength != nil, s.MaxLength != nil, s.Pattern != nil,
		s.Maximum != nil, s.Minimum != nil, s.ExclusiveMaximum != nil, s.ExclusiveMinimum != nil, s.MultipleOf != nil,
	} {
		if there {
			n++
		}
	}
	return n
}

// isTrue says whether a schema takes everything.
func isTrue(s *jsonschema.Schema) bool {
	return s.Bool != nil && *s.Bool || s.Bool == nil && keywords(s) == 0
}

// isFalse says whether a schema is written so that it takes nothing.
func isFalse(s *jsonschema.Schema) bool { return s.Bool != nil && !*s.Bool }
