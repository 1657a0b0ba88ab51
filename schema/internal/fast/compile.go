package fast

import (
	"math/big"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Compile makes a plan of a schema. It is nil if the schema uses a keyword that
// is not covered: $dynamicRef, unevaluatedItems, unevaluatedProperties beside
// schemas for the same object, content keywords that are asserted, formats of
// one's own, extensions, or another draft than 2020-12; or if it refers to
// itself without going down into the document, or asks for more than 256 names
// in one object.
func Compile(s *jsonschema.Schema) *Plan {
	c := compiler{nodes: make(map[*jsonschema.Schema]*node)}
	root := c.schema(s)
	if c.failed {
		return nil
	}
	for _, n := range c.nodes {
		n.same = slices.Concat(n.all, n.some, n.one)
		for _, m := range []*node{n.not, n.cond, n.yes, n.no} {
			if m != nil {
				n.same = append(n.same, m)
			}
		}
		if n.object != nil {
			for _, d := range n.object.dependents {
				if d.schema != nil {
					n.same = append(n.same, d.schema)
				}
			}
		}
	}
	state := make(map[*node]int, len(c.nodes))
	for _, n := range c.nodes {
		if cyclic(n, state) {
			return nil
		}
	}
	return &Plan{root: root}
}

// cyclic says whether a schema leads back to itself for the same value.
func cyclic(n *node, state map[*node]int) bool {
	const open, done = 1, 2
	switch state[n] {
	case open:
		return true
	case done:
		return false
	}
	state[n] = open
	for _, m := range n.same {
		if cyclic(m, state) {
			return true
		}
	}
	state[n] = done
	return false
}

type compiler struct {
	nodes  map[*jsonschema.Schema]*node
	failed bool
}

// schema gives the node of a schema; a schema that refers to itself finds the
// node that is being made.
func (c *compiler) schema(s *jsonschema.Schema) *node {
	if s == nil || c.failed {
		return nil
	}
	if n := c.nodes[s]; n != nil {
		return n
	}
	n := &node{}
	c.nodes[s] = n
	if s.Bool != nil {
		n.never = !*s.Bool
		return n
	}
	if !covered(s) {
		c.failed = true
		return n
	}
	if s.Types != nil {
		for _, t := range s.Types.ToStrings() {
			n.types |= kinds[t]
		}
	}
	if s.Enum != nil {
		n.values = c.values(s.Enum.Values)
	}
	if s.Const != nil {
		v := c.values([]any{*s.Const})
		if n.values == nil {
			n.values = v
		} else {
			n.all = append(n.all, &node{own: true, values: v})
		}
	}
	n.number = c.numberRule(s)
	n.text = textOf(s)
	n.array = c.arrayRule(s)
	n.object = c.objectRule(s)
	n.own = n.types != 0 || n.values != nil || n.number != nil || n.text != nil || n.array != nil || n.object != nil

	if s.Ref != nil {
		n.all = append(n.all, c.schema(s.Ref))
	}
	n.all = append(n.all, c.schemas(s.AllOf)...)
	n.some = c.schemas(s.AnyOf)
	n.one = c.schemas(s.OneOf)
	n.not = c.schema(s.Not)
	n.cond, n.yes, n.no = c.schema(s.If), c.schema(s.Then), c.schema(s.Else)
	return n
}

// covered says whether a schema can be planned as far as keywords go.
func covered(s *jsonschema.Schema) bool {
	if s.DraftVersion != 2020 || s.DynamicRef != nil || s.RecursiveRef != nil || s.Items != nil || s.AdditionalItems != nil || s.Dependencies != nil ||
		s.UnevaluatedItems != nil || s.ContentEncoding != nil || s.ContentMediaType != nil || s.ContentSchema != nil || len(s.Extensions) > 0 {
		return false
	}
	if s.Format != nil && !knownFormats[s.Format.Name] {
		return false
	}
	// Alone it means what additionalProperties does.
	return s.UnevaluatedProperties == nil || s.Ref == nil && s.AllOf == nil && s.AnyOf == nil && s.OneOf == nil && s.If == nil && s.DependentSchemas == nil
}

func (c *compiler) schemas(list []*jsonschema.Schema) []*node {
	nodes := make([]*node, 0, len(list))
	for _, s := range list {
		nodes = append(nodes, c.schema(s))
	}
	return nodes
}

// values makes an enum of the list, nil of nothing.
func (c *compiler) values(list []any) *values {
	if list == nil {
		return nil
	}
	v, ok := newValues(list)
	c.failed = c.failed || !ok
	return v
}

func (c *compiler) bound(r *big.Rat) *number {
	if r == nil {
		return nil
	}
	n, ok := exactly(r)
	c.failed = c.failed || !ok
	return &n
}

func (c *compiler) numberRule(s *jsonschema.Schema) *numberRule {
	if s.Minimum == nil && s.Maximum == nil && s.ExclusiveMinimum == nil && s.ExclusiveMaximum == nil && s.MultipleOf == nil {
		return nil
	}
	r := &numberRule{min: c.bound(s.Minimum), max: c.bound(s.Maximum), above: c.bound(s.ExclusiveMinimum), below: c.bound(s.ExclusiveMaximum)}
	if n := c.bound(s.MultipleOf); n != nil {
		d, ok := newDivisor(n)
		c.failed = c.failed || !ok
		r.multiple = &d
	}
	return r
}

func textOf(s *jsonschema.Schema) *textRule {
	if s.MinLength == nil && s.MaxLength == nil && s.Pattern == nil && s.Format == nil {
		return nil
	}
	r := &textRule{min: or(s.MinLength, 0), max: or(s.MaxLength, -1), pattern: s.Pattern, format: s.Format}
	if s.Format != nil {
		r.quick = quickFormat(s.Format.Name)
	}
	return r
}

func (c *compiler) arrayRule(s *jsonschema.Schema) *arrayRule {
	if s.MinItems == nil && s.MaxItems == nil && s.PrefixItems == nil && s.Items2020 == nil && s.Contains == nil && !s.UniqueItems {
		return nil
	}
	r := &arrayRule{min: or(s.MinItems, 0), max: or(s.MaxItems, -1), unique: s.UniqueItems}
	r.prefix = c.schemas(s.PrefixItems)
	r.items = c.schema(s.Items2020)
	if s.Contains != nil {
		r.contains = c.schema(s.Contains)
		r.minContains, r.maxContains = or(s.MinContains, 1), or(s.MaxContains, -1)
	}
	return r
}

func (c *compiler) objectRule(s *jsonschema.Schema) *objectRule {
	if s.MinProperties == nil && s.MaxProperties == nil && len(s.Required) == 0 && s.Properties == nil && s.PatternProperties == nil &&
		s.AdditionalProperties == nil && s.UnevaluatedProperties == nil && s.PropertyNames == nil && s.DependentRequired == nil && s.DependentSchemas == nil {
		return nil
	}
	o := &objectRule{min: or(s.MinProperties, 0), max: or(s.MaxProperties, -1)}
	for name, p := range s.Properties {
		i := o.watch(name)
		o.fields[i].value = c.schema(p)
	}
	for _, name := range s.Required {
		o.required.set(o.watch(name))
	}
	for name, list := range s.DependentRequired {
		d := dependent{name: o.watch(name)}
		for _, r := range list {
			d.required.set(o.watch(r))
		}
		o.dependents = append(o.dependents, d)
	}
	for name, p := range s.DependentSchemas {
		o.dependents = append(o.dependents, dependent{name: o.watch(name), schema: c.schema(p)})
	}
	for re, p := range s.PatternProperties {
		o.patterns = append(o.patterns, pattern{re, c.schema(p)})
	}
	slices.SortFunc(o.patterns, func(a, b pattern) int { return strings.Compare(a.name.String(), b.name.String()) })
	switch a := s.AdditionalProperties.(type) {
	case bool:
		o.closed = !a
	case *jsonschema.Schema:
		o.additional = c.schema(a)
	case nil:
		o.additional = c.schema(s.UnevaluatedProperties)
	}
	o.names = c.schema(s.PropertyNames)
	if !o.index() {
		c.failed = true
	}
	return o
}

func or(p *int, otherwise int) int {
	if p == nil {
		return otherwise
	}
	return *p
}
