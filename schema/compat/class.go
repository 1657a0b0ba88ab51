package compat

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"promethean/schema/internal/sample"
)

// classes numbers schemas so that those with the same number say the same. It
// begins with what each says itself, and tells schemas apart by those inside them
// until nothing changes: so recursive ones are compared too.
func classes(all []*jsonschema.Schema) map[*jsonschema.Schema]int {
	class := make(map[*jsonschema.Schema]int, len(all))
	below := make([][]sample.Child, len(all))
	number := make(map[string]int)
	for i, s := range all {
		below[i] = sample.Below(s)
		sign := signature(s)
		if _, ok := number[sign]; !ok {
			number[sign] = len(number)
		}
		class[s] = number[sign]
	}
	// The bound is on time; if it is reached, nothing is held to be equal.
	for work := 0; work < 2_000_000; work += len(all) {
		finer := make(map[string]int, len(number))
		next := make(map[*jsonschema.Schema]int, len(all))
		for i, s := range all {
			b := strconv.AppendInt(nil, int64(class[s]), 10)
			for _, sub := range below[i] {
				b = append(b, ' ')
				b = strconv.AppendQuote(b, sub.Label)
				b = strconv.AppendInt(b, int64(class[sub.Schema]), 10)
			}
			if _, ok := finer[string(b)]; !ok {
				finer[string(b)] = len(finer)
			}
			next[s] = finer[string(b)]
		}
		stable := len(finer) == len(number)
		class, number = next, finer
		if stable {
			return class
		}
	}
	for i, s := range all {
		class[s] = i
	}
	return class
}

// signature writes what a schema says without those inside it.
func signature(s *jsonschema.Schema) string {
	var b strings.Builder
	put := func(name string, v any) { fmt.Fprintf(&b, "%s=%v;", name, v) }
	if s.Bool != nil {
		put("bool", *s.Bool)
		return b.String()
	}
	if s.Types != nil {
		put("types", s.Types.ToStrings())
	}
	if s.Const != nil {
		put("const", canonical(*s.Const))
	}
	if s.Enum != nil {
		list := make([]string, len(s.Enum.Values))
		for i, v := range s.Enum.Values {
			list[i] = canonical(v)
		}
		slices.Sort(list)
		put("enum", list)
	}
	if s.Format != nil {
		put("format", s.Format.Name)
	}
	if s.Pattern != nil {
		put("pattern", strconv.Quote(s.Pattern.String()))
	}
	for i, n := range []*int{s.MaxProperties, s.MinProperties, s.MinItems, s.MaxItems, s.MinContains, s.MaxContains, s.MinLength, s.MaxLength} {
		if n != nil {
			put("count"+strconv.Itoa(i), *n)
		}
	}
	for i, n := range []*big.Rat{s.Maximum, s.Minimum, s.ExclusiveMaximum, s.ExclusiveMinimum, s.MultipleOf} {
		if n != nil {
			put("number"+strconv.Itoa(i), n.RatString())
		}
	}
	names := slices.Sorted(slices.Values(s.Required))
	put("required", quoted(slices.Compact(names)))
	for _, name := range slices.Sorted(maps.Keys(s.DependentRequired)) {
		put("dependentRequired "+strconv.Quote(name), quoted(s.DependentRequired[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Dependencies)) {
		if list, ok := s.Dependencies[name].([]string); ok {
			put("dependencies "+strconv.Quote(name), quoted(list))
		}
	}
	if more, ok := s.AdditionalProperties.(bool); ok {
		put("additionalProperties", more)
	}
	put("unique", s.UniqueItems)
	if s.DynamicRef != nil {
		put("dynamic", strconv.Quote(s.DynamicRef.Anchor))
	}
	put("anchors", strconv.Quote(s.DynamicAnchor)+strconv.FormatBool(s.RecursiveAnchor)+strconv.Quote(s.ID))
	put("draft", s.DraftVersion)
	return b.String()
}

func quoted(list []string) string { return fmt.Sprintf("%q", list) }

// canonical writes a value so that equal values are equal texts.
func canonical(v any) string {
	switch v := v.(type) {
	case json.Number:
		if n, ok := new(big.Rat).SetString(v.String()); ok {
			return n.RatString()
		}
		return v.String()
	case string:
		return strconv.Quote(v)
	case []any:
		list := make([]string, len(v))
		for i, e := range v {
			list[i] = canonical(e)
		}
		return "[" + strings.Join(list, ",") + "]"
	case map[string]any:
		var list []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			list = append(list, strconv.Quote(name)+":"+canonical(v[name]))
		}
		return "{" + strings.Join(list, ",") + "}"
	default:
		return fmt.Sprint(v)
	}
}
