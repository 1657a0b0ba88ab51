// Package sample makes documents that are valid under a schema.
//
// It serves two ends: an upcaster is tried on documents of the version before,
// and the compatibility checker looks for a document that shows a problem. Both
// want documents at the edges of what is allowed, not typical ones.
//
//	m := sample.New(tree, 1)
//	for range 200 {
//		doc, ok := m.Next()
//		if !ok { … } // none could be made
//	}
//
// # Guarantees
//
// Every document was validated before it is given. The same schema and seed give
// the same documents. The effort for one document is bounded, and so is its size.
// That no document was made does not prove that there is none.
package sample

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The bounds of one document.
const (
	maxTries  = 40   // attempts until Next gives up
	maxNodes  = 600  // values in a document
	maxDepth  = 24   // values inside each other
	fullDepth = 5    // below this only what is required is made
	maxFlat   = 200  // schemas that apply to one value
	maxText   = 5000 // characters of one string, however long it has to be
)

// Maker makes documents of one schema. It is not safe for concurrent use.
type Maker struct {
	schema *jsonschema.Schema
	rng    *rand.Rand
	pool   *pool
	nodes  int
	calm   bool // no adventures: used when they have failed
	pieces map[jsonschema.Regexp]*compiled
	deep   int  // how deep documents may be
	tired  bool // validating would take too long, so nothing is made
}

// New gives a maker of documents valid under s.
func New(s *jsonschema.Schema, seed uint64) *Maker {
	m := &Maker{schema: s, rng: rand.New(rand.NewPCG(seed, 0x70726f6d)), pool: newPool(), pieces: make(map[jsonschema.Regexp]*compiled)}
	m.pool.add(s)
	if Heavy(s) {
		m.tired = true
		return m
	}
	m.deep = depthFor(repeats(s))
	return m
}

// Hint lets the maker use names, limits and values of another schema too, so that
// it finds documents at which the two differ.
func (m *Maker) Hint(other *jsonschema.Schema) { m.pool.add(other) }

// Next gives a document, or false if none was found within bounded effort.
func (m *Maker) Next() (doc []byte, ok bool) {
	v, ok := m.Value()
	if !ok {
		return nil, false
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, false // what was validated can be written
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), true
}

// Value is Next with the document decoded, numbers as json.Number.
func (m *Maker) Value() (v any, ok bool) {
	if m.tired {
		return nil, false
	}
	for try := range maxTries {
		m.nodes, m.calm = 0, try > maxTries/2
		v, ok := m.value([]*jsonschema.Schema{m.schema}, 0)
		if ok && m.schema.Validate(v) == nil {
			return v, true
		}
	}
	return nil, false
}

// chance is true once in n times.
func (m *Maker) chance(n int) bool { return m.rng.IntN(n) == 0 }

func pick[T any](m *Maker, list []T) T { return list[m.rng.IntN(len(list))] }

// value makes a value that satisfies all of the schemas, as far as can be seen.
func (m *Maker) value(list []*jsonschema.Schema, depth int) (any, bool) {
	if m.nodes++; m.nodes > maxNodes || depth > m.deep {
		return nil, false
	}
	f := &facts{kinds: everything}
	for _, s := range list {
		if !m.flatten(f, s) {
			return nil, false
		}
	}
	if f.given != nil {
		return m.given(f)
	}
	for kinds := f.kinds; kinds != 0; {
		k := m.kind(f, kinds, depth)
		if v, ok := m.ofKind(k, f, depth); ok {
			return v, true
		}
		kinds &^= k
	}
	return nil, false
}

// given picks one of the values that are listed.
func (m *Maker) given(f *facts) (any, bool) {
	list := slices.Clone(f.given)
	m.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, v := range list {
		if valid(f, v) {
			return v, true
		}
	}
	return nil, false
}

func valid(f *facts, v any) bool {
	return !slices.ContainsFunc(f.all, func(s *jsonschema.Schema) bool { return s.Validate(v) != nil })
}

// kind chooses a kind of value, one that the schemas speak of rather than others.
func (m *Maker) kind(f *facts, kinds kind, depth int) kind {
	var list []kind
	for k := null; k <= object; k <<= 1 {
		if kinds&k == 0 {
			continue
		}
		list = append(list, k)
		if f.speaks&k != 0 {
			list = append(list, k, k, k, k)
		}
	}
	if depth > fullDepth {
		small := slices.DeleteFunc(slices.Clone(list), func(k kind) bool { return k == array || k == object })
		if len(small) > 0 && !m.chance(4) {
			list = small
		}
	}
	return pick(m, list)
}

func (m *Maker) ofKind(k kind, f *facts, depth int) (any, bool) {
	switch k {
	case null:
		return nil, true
	case boolean:
		return m.chance(2), true
	case integer:
		return m.number(f, true)
	case fraction:
		return m.number(f, false)
	case text:
		return m.text(f)
	case array:
		return m.array(f, depth)
	default:
		return m.object(f, depth)
	}
}

// kind is a set of kinds of values. Whole numbers and others are told apart.
type kind int

const (
	null kind = 1 << iota
	boolean
	integer
	fraction
	text
	array
	object

	everything = null | boolean | integer | fraction | text | array | object
)

var kindNames = map[string]kind{
	"null": null, "boolean": boolean, "integer": integer, "number": integer | fraction, "string": text, "array": array, "object": object,
}

// kindsOf gives the kinds that a schema allows by its type.
func kindsOf(s *jsonschema.Schema) (k kind) {
	if s.Types == nil || s.Types.IsEmpty() {
		return everything
	}
	for _, name := range s.Types.ToStrings() {
		k |= kindNames[name]
	}
	return k
}

// facts is what holds for one value: the schemas that apply to it, with the
// branches that were chosen.
type facts struct {
	all    []*jsonschema.Schema
	kinds  kind
	speaks kind  // the kinds that keywords speak of
	given  []any // the values that are listed, nil if none are
	must   map[string]bool
	never  map[string]bool
}

// flatten adds a schema and all that apply with it, and chooses branches.
func (m *Maker) flatten(f *facts, s *jsonschema.Schema) bool {
	if s.Bool != nil {
		return *s.Bool
	}
	if slices.Contains(f.all, s) {
		return true
	}
	if len(f.all) > maxFlat {
		return false
	}
	f.all = append(f.all, s)
	f.kinds &= kindsOf(s)
	f.speaks |= speaks(s)
	switch {
	case s.Const != nil:
		f.given = []any{*s.Const}
	case s.Enum != nil && (f.given == nil || len(s.Enum.Values) < len(f.given)):
		f.given = s.Enum.Values
	}
	for _, name := range s.Required {
		f.require(name)
	}
	for _, sub := range same(s) {
		if !m.flatten(f, sub) {
			return false
		}
	}
	for _, list := range [][]*jsonschema.Schema{s.AnyOf, s.OneOf} {
		if len(list) > 0 && !m.branch(f, list) {
			return false
		}
	}
	return m.conditions(f, s) && f.kinds != 0
}

// branch chooses one of several schemas. Some cannot be met, so more are tried.
func (m *Maker) branch(f *facts, list []*jsonschema.Schema) bool {
	for _, i := range m.rng.Perm(len(list)) {
		trial := f.clone()
		if m.flatten(trial, list[i]) {
			*f = *trial
			return true
		}
	}
	return false
}

// conditions decides whether a condition is to hold, and adds what follows.
func (m *Maker) conditions(f *facts, s *jsonschema.Schema) bool {
	if s.If != nil {
		trial := f.clone()
		if m.chance(2) && m.flatten(trial, s.If) && (s.Then == nil || m.flatten(trial, s.Then)) {
			*f = *trial
		} else if s.Else != nil {
			trial := f.clone()
			if m.flatten(trial, s.Else) {
				*f = *trial
			}
		}
	}
	triggers := make(map[string][]*jsonschema.Schema)
	needs := make(map[string][]string)
	maps.Copy(needs, s.DependentRequired)
	for name, sub := range s.DependentSchemas {
		triggers[name] = append(triggers[name], sub)
	}
	for name, dep := range s.Dependencies {
		switch dep := dep.(type) {
		case []string:
			needs[name] = append(slices.Clone(needs[name]), dep...)
		case *jsonschema.Schema:
			triggers[name] = append(triggers[name], dep)
		}
	}
	names := slices.Sorted(maps.Keys(triggers))
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		if triggers[name] == nil {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if !f.must[name] && (f.never[name] || m.chance(2)) {
			f.forbid(name)
			continue
		}
		f.require(name)
		for _, other := range needs[name] {
			f.require(other)
		}
		for _, sub := range triggers[name] {
			if !m.flatten(f, sub) {
				return false
			}
		}
	}
	return true
}

func (f *facts) require(name string) {
	if f.must == nil {
		f.must = make(map[string]bool)
	}
	f.must[name] = true
}

func (f *facts) forbid(name string) {
	if f.never == nil {
		f.never = make(map[string]bool)
	}
	f.never[name] = true
}

func (f *facts) clone() *facts {
	c := *f
	c.all = slices.Clone(f.all)
	c.must, c.never = maps.Clone(f.must), maps.Clone(f.never)
	return &c
}

// same gives the schemas that always apply to the same value.
func same(s *jsonschema.Schema) []*jsonschema.Schema {
	list := slices.Clone(s.AllOf)
	if s.Ref != nil {
		list = append(list, s.Ref)
	}
	if s.RecursiveRef != nil {
		list = append(list, s.RecursiveRef)
	}
	if s.DynamicRef != nil {
		list = append(list, s.DynamicRef.Ref)
	}
	return list
}

// speaks gives the kinds of values that keywords of a schema are about.
func speaks(s *jsonschema.Schema) (k kind) {
	if s.Properties != nil || s.PatternProperties != nil || s.AdditionalProperties != nil || s.UnevaluatedProperties != nil || s.PropertyNames != nil ||
		s.MinProperties != nil || s.MaxProperties != nil || len(s.Required) > 0 || s.DependentRequired != nil || s.DependentSchemas != nil || s.Dependencies != nil {
		k |= object
	}
	if s.Items2020 != nil || s.PrefixItems != nil || s.UnevaluatedItems != nil || s.Contains != nil || s.MinItems != nil || s.MaxItems != nil || s.UniqueItems {
		k |= array
	}
	if s.MinLength != nil || s.MaxLength != nil || s.Pattern != nil || s.Format != nil {
		k |= text
	}
	if s.Minimum != nil || s.Maximum != nil || s.ExclusiveMinimum != nil || s.ExclusiveMaximum != nil || s.MultipleOf != nil {
		k |= integer | fraction
	}
	return k
}
