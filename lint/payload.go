package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// mostDepth bounds how far a payload is followed: types and schemas may contain
// themselves.
const mostDepth = 12

// comparison is a payload beside a schema.
type comparison struct {
	topic   string
	version int
	at      Position
	name    string // of the whole payload
	reads   bool   // the payload is decoded, not written
	list    []Finding
}

// view is what a schema says about one value, as far as it can be said of every
// valid one.
type view struct {
	all []*jsonschema.Schema // each of them holds
	// some may hold: the branches of anyOf and the like. What they know is known.
	some []*jsonschema.Schema
	seen map[*jsonschema.Schema]bool
}

func viewOf(list ...*jsonschema.Schema) *view {
	v := &view{seen: make(map[*jsonschema.Schema]bool)}
	for _, s := range list {
		v.add(s, true)
	}
	return v
}

func (v *view) add(s *jsonschema.Schema, holds bool) {
	if s == nil || v.seen[s] {
		return
	}
	v.seen[s] = true
	if holds {
		v.all = append(v.all, s)
	} else {
		v.some = append(v.some, s)
	}
	v.add(s.Ref, holds)
	if s.DynamicRef != nil {
		v.add(s.DynamicRef.Ref, false) // it may lead elsewhere
	}
	for _, b := range s.AllOf {
		v.add(b, holds)
	}
	for _, list := range [][]*jsonschema.Schema{s.AnyOf, s.OneOf, {s.If, s.Then, s.Else}} {
		for _, b := range list {
			v.add(b, false)
		}
	}
	for _, b := range s.DependentSchemas {
		v.add(b, false)
	}
}

// property gives the schemas of a property, and whether it is known at all.
func (v *view) property(name string) (holds, may []*jsonschema.Schema, known bool) {
	for i, list := range [][]*jsonschema.Schema{v.all, v.some} {
		for _, s := range list {
			var found []*jsonschema.Schema
			if p := s.Properties[name]; p != nil {
				found = append(found, p)
			}
			for re, p := range s.PatternProperties {
				if re.MatchString(name) {
					found = append(found, p)
				}
			}
			if extra, ok := s.AdditionalProperties.(*jsonschema.Schema); ok && len(found) == 0 && !isFalse(extra) {
				found = append(found, extra)
			}
			if i == 0 {
				holds = append(holds, found...)
			} else {
				may = append(may, found...)
			}
		}
	}
	return holds, may, len(holds)+len(may) > 0
}

// closed says whether unknown properties are refused.
func (v *view) closed() bool {
	return slices.ContainsFunc(v.all, func(s *jsonschema.Schema) bool {
		switch a := s.AdditionalProperties.(type) {
		case bool:
			if !a {
				return true
			}
		case *jsonschema.Schema:
			if isFalse(a) {
				return true
			}
		}
		return s.UnevaluatedProperties != nil && isFalse(s.UnevaluatedProperties)
	})
}

func isFalse(s *jsonschema.Schema) bool { return s != nil && s.Bool != nil && !*s.Bool }

// speaks says whether the schema names properties, so that others are likely a
// mistake.
func (v *view) speaks() bool {
	return slices.ContainsFunc(append(slices.Clone(v.all), v.some...), func(s *jsonschema.Schema) bool {
		return len(s.Properties) > 0
	}) || v.closed()
}

// types are the JSON types that the schema takes; nil means all.
func (v *view) types() (list []string) {
	for _, s := range v.all {
		if s.Types == nil || s.Types.IsEmpty() {
			continue
		}
		have := s.Types.ToStrings()
		if list == nil {
			list = have
			continue
		}
		list = slices.DeleteFunc(slices.Clone(list), func(t string) bool { return !takes(have, t) })
	}
	return list
}

// takes says whether a value of a type may be among types. A number may be a
// whole one.
func takes(types []string, t string) bool {
	return slices.Contains(types, t) || t == "number" && slices.Contains(types, "integer") || t == "integer" && slices.Contains(types, "number")
}

func (c *comparison) add(rule string, severity Severity, at Position, message, fix string) {
	f := newFinding(rule, at, message, fix)
	f.Severity = severity
	c.list = append(c.list, f)
}

func (c *comparison) place(f *Field, outer Position) Position {
	if f.At.File != "" {
		return f.At
	}
	return outer
}

func (c *comparison) what() string { return fmt.Sprintf("version %d of topic %s", c.version, c.topic) }

// called is how a person finds the value at a path.
func (c *comparison) called(path string) string {
	name := c.name
	if name == "" {
		name = "the payload"
	}
	if path == "" {
		return name
	}
	return name + " at " + path
}

// compare looks at a value and all below it.
func (c *comparison) compare(s *Shape, tree *jsonschema.Schema, path string, depth int) {
	c.value(s, viewOf(tree), path, depth, c.at)
}

func (c *comparison) value(s *Shape, v *view, path string, depth int, at Position) {
	if s == nil || s.Type == "" || depth > mostDepth {
		return
	}
	if types := v.types(); types != nil && s.Type != "null" && !takes(types, s.Type) {
		c.add(PayloadType, Error, at, fmt.Sprintf("%s is %s, and %s has %s there", c.called(path), article(s.Type), c.what(), orList(types)),
			fmt.Sprintf("make it %s, or write a new version of the schema", orList(types)))
		return
	}
	switch s.Type {
	case "object":
		c.object(s, v, path, depth, at)
	case "array":
		c.items(s, v, path, depth, at)
	}
}

func (c *comparison) object(s *Shape, v *view, path string, depth int, outer Position) {
	have := make(map[string]*Field, len(s.Fields))
	for i := range s.Fields {
		f := &s.Fields[i]
		have[f.Name] = f
		at, below := c.place(f, outer), path+"/"+escape(f.Name)
		holds, may, known := v.property(f.Name)
		if !known && c.reads {
			known = v.fold(f.Name) // decoding does not mind the case of letters
		}
		switch {
		case known && len(may) == 0:
			c.value(f.Shape, viewOf(holds...), below, depth+1, at)
		case known || !v.speaks():
		case v.closed() && !c.reads:
			c.add(PayloadUnknown, Error, at, fmt.Sprintf("field %s of %s: %s has no such property and takes no others", f.Name, c.called(path), c.what()), ruleOf(PayloadUnknown).Help)
		default:
			c.add(PayloadUnknown, Warning, at, fmt.Sprintf("field %s of %s: %s has no such property", f.Name, c.called(path), c.what()), ruleOf(PayloadUnknown).Help)
		}
	}
	if c.reads {
		return // who reads may leave out what it does not need
	}
	var required []string
	for _, t := range v.all {
		required = append(required, t.Required...)
	}
	slices.Sort(required)
	for _, name := range slices.Compact(required) {
		switch f := have[name]; {
		case f == nil && !s.Open:
			c.add(PayloadMissing, Error, outer, fmt.Sprintf("%s has no field %s, which %s requires", c.called(path), name, c.what()), fmt.Sprintf("add %s", name))
		case f != nil && f.Optional != "":
			c.add(PayloadMissing, Error, c.place(f, outer), fmt.Sprintf("field %s of %s may be left out (%s), and %s requires it", name, c.called(path), f.Optional, c.what()),
				fmt.Sprintf("take %s away, or make %s optional in a new version of the schema", f.Optional, name))
		}
	}
}

// fold says whether a property is known but for the case of its letters.
func (v *view) fold(name string) bool {
	for _, s := range append(slices.Clone(v.all), v.some...) {
		for p := range s.Properties {
			if strings.EqualFold(p, name) {
				return true
			}
		}
	}
	return false
}

func (c *comparison) items(s *Shape, v *view, path string, depth int, at Position) {
	if s.Items == nil || len(v.some) > 0 {
		return
	}
	var list []*jsonschema.Schema
	for _, t := range v.all {
		if len(t.PrefixItems) > 0 {
			return // places in it differ
		}
		if t.Items2020 != nil {
			list = append(list, t.Items2020)
		}
	}
	if len(list) > 0 {
		c.value(s.Items, viewOf(list...), path+"/-", depth+1, at)
	}
}

func escape(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

func article(t string) string {
	switch t {
	case "null":
		return t
	case "object", "array", "integer":
		return "an " + t
	}
	return "a " + t
}

func orList(types []string) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = article(t)
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, " or ")
}
