package compat

import (
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"promethean/schema/internal/sample"
)

// leftBefore proves that what a reader leaves to its unevaluated keyword was left
// to that of the writer too, and satisfied it.
func (c *checker) leftBefore(w *world, r *jsonschema.Schema, unevaluated func(*jsonschema.Schema) *jsonschema.Schema) bool {
	for _, s := range w.pos {
		if rest := unevaluated(s); rest != nil && c.evaluatesAll(r, s) &&
			c.inside(func() bool {
				return c.fits(c.world(everything, []*jsonschema.Schema{rest}, nil), unevaluated(r))
			}) {
			return true
		}
	}
	return false
}

// evaluatesAll says whether r evaluates every property and item that s does. Own
// keywords do so by name and place. Schemas that are applied to the same value do
// so if they hold, so r must have the same ones in the same roles.
func (c *checker) evaluatesAll(r, s *jsonschema.Schema) bool {
	if s.AdditionalProperties != nil && r.AdditionalProperties == nil ||
		s.Items2020 != nil && r.Items2020 == nil ||
		len(s.PrefixItems) > len(r.PrefixItems) && r.Items2020 == nil {
		return false
	}
	if s.Contains != nil && (r.Contains == nil || c.id(s.Contains) != c.id(r.Contains)) {
		return false
	}
	for name := range s.Properties {
		if _, evaluated := own(r, known(name)); !evaluated {
			return false
		}
	}
	patterns := make(map[string]bool)
	for re := range r.PatternProperties {
		patterns[re.String()] = true
	}
	for re := range s.PatternProperties {
		if !patterns[re.String()] && r.AdditionalProperties == nil {
			return false
		}
	}
	type role struct {
		label string
		class int
	}
	has := make(map[role]bool)
	inPlace := func(s *jsonschema.Schema) (list []role) {
		for _, sub := range sample.Below(s) {
			if !sub.InPlace || sub.Label == "not" {
				continue
			}
			label, _, _ := strings.Cut(sub.Label, "/")
			switch label {
			case "dependentSchemas", "dependencies":
				label = sub.Label
			case "if", "then", "else":
				label += itoa(c.condition(s))
			}
			list = append(list, role{label, c.id(sub.Schema)})
		}
		return list
	}
	for _, x := range inPlace(r) {
		has[x] = true
	}
	for _, x := range inPlace(s) {
		if !has[x] {
			return false
		}
	}
	return true
}

// condition is the class of a schema's if, on which then and else depend.
func (c *checker) condition(s *jsonschema.Schema) int {
	if s.If == nil {
		return 0
	}
	return c.id(s.If) + 1
}
