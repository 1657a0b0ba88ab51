package compat

import (
	"fmt"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
	says "github.com/santhosh-tekuri/jsonschema/v6/kind"

	"promethean/schema/internal/sample"
)

// finding is a problem before it is known whether a document shows it. It has a
// text for each direction: the same rule reads differently to the one whose old
// documents break and to the one whose new documents break old readers.
type finding struct {
	path, rule        string
	backward, forward string
	// reason says why it may hold nevertheless; if it is given, only a document
	// makes it a problem of its rule, and without one it is undecided.
	reason string

	at   []*jsonschema.Schema // where the validator sees it
	deep bool                 // or anywhere below
	name string               // of the property
}

// pointer to a schema, with more behind it.
func pointer(s *jsonschema.Schema, more ...string) string {
	p := sample.Pointer(s)
	for _, m := range more {
		p += "/" + m
	}
	return p
}

func found(r *jsonschema.Schema, rule, backward, forward string) finding {
	return finding{path: pointer(r), rule: rule, backward: backward, forward: forward, at: []*jsonschema.Schema{r}}
}

func forbidden(r *jsonschema.Schema) finding {
	return found(r, RuleForbidden,
		"no value is allowed here any more, and documents written before may have one: allow what was allowed, or bring an upcaster that takes it away",
		"readers of the old schema allow no value here, and new documents may have one: leave it out")
}

func wrongType(r *jsonschema.Schema, written kind) finding {
	return found(r, RuleType,
		fmt.Sprintf("only %s is taken now, and documents written before may have %s: keep the old types beside the new, or bring an upcaster that converts", kindsOf(r), written&^kindsOf(r)),
		fmt.Sprintf("readers of the old schema take %s only, and new documents may have %s: do not add types", kindsOf(r), written&^kindsOf(r)))
}

func notConst(r *jsonschema.Schema) finding {
	return found(r, RuleConst,
		fmt.Sprintf("only %s is taken now, and documents written before may have something else: allow what was allowed, or bring an upcaster", show(*r.Const)),
		fmt.Sprintf("readers of the old schema take %s only, and new documents may have something else: keep the const", show(*r.Const)))
}

func notListed(r *jsonschema.Schema) finding {
	return found(r, RuleEnum,
		"only listed values are taken now, and documents written before may have others: list all that were possible, drop the enum, or bring an upcaster",
		"readers of the old schema take listed values only, and new documents may have others: write only values that the old schema lists")
}

func tooLow(r *jsonschema.Schema) finding {
	limit, value := "minimum", r.Minimum
	if r.ExclusiveMinimum != nil {
		limit, value = "exclusiveMinimum", r.ExclusiveMinimum
	}
	return found(r, RuleMinimum,
		fmt.Sprintf("%s is %s now, and documents written before may have lower numbers: keep the old limit, or bring an upcaster", limit, value.RatString()),
		fmt.Sprintf("readers of the old schema have %s %s, and new documents may have lower numbers: do not lower the limit", limit, value.RatString()))
}

func tooHigh(r *jsonschema.Schema) finding {
	limit, value := "maximum", r.Maximum
	if r.ExclusiveMaximum != nil {
		limit, value = "exclusiveMaximum", r.ExclusiveMaximum
	}
	return found(r, RuleMaximum,
		fmt.Sprintf("%s is %s now, and documents written before may have higher numbers: keep the old limit, or bring an upcaster", limit, value.RatString()),
		fmt.Sprintf("readers of the old schema have %s %s, and new documents may have higher numbers: do not raise the limit", limit, value.RatString()))
}

func noMultiple(r *jsonschema.Schema) finding {
	return found(r, RuleMultipleOf,
		fmt.Sprintf("only multiples of %s are taken now, and documents written before may have other numbers: take a divisor of the old one, or bring an upcaster", r.MultipleOf.RatString()),
		fmt.Sprintf("readers of the old schema take multiples of %s only, and new documents may have other numbers: take a multiple of the old one", r.MultipleOf.RatString()))
}

func tooShort(r *jsonschema.Schema) finding {
	return found(r, RuleMinLength,
		fmt.Sprintf("minLength is %d now, and documents written before may have shorter strings: keep the old limit, or bring an upcaster", *r.MinLength),
		fmt.Sprintf("readers of the old schema have minLength %d, and new documents may have shorter strings: do not lower the limit", *r.MinLength))
}

func tooLong(r *jsonschema.Schema) finding {
	return found(r, RuleMaxLength,
		fmt.Sprintf("maxLength is %d now, and documents written before may have longer strings: keep the old limit, or bring an upcaster", *r.MaxLength),
		fmt.Sprintf("readers of the old schema have maxLength %d, and new documents may have longer strings: do not raise the limit", *r.MaxLength))
}

// limited says whether strings of a world are limited by more than length.
func limited(w *world) bool {
	return len(w.neg) > 0 || slices.ContainsFunc(w.pos, func(s *jsonschema.Schema) bool { return s.Pattern != nil || s.Format != nil })
}

func noMatch(w *world, r *jsonschema.Schema) finding {
	f := found(r, RulePattern,
		fmt.Sprintf("strings must match %s now, and those written before may not: keep the old pattern, or bring an upcaster", r.Pattern),
		fmt.Sprintf("readers of the old schema want strings to match %s, and new ones may not: keep the pattern", r.Pattern))
	if limited(w) {
		f.reason = fmt.Sprintf("whether every string that was possible matches %s cannot be seen from the schemas: keep the pattern as it is written", r.Pattern)
	}
	return f
}

func noFormat(w *world, r *jsonschema.Schema) finding {
	f := found(r, RuleFormat,
		fmt.Sprintf("strings must be of format %s now, and those written before may not be: formats are checked here, so leave it out, or bring an upcaster", r.Format.Name),
		fmt.Sprintf("readers of the old schema check the format %s, and new strings may not have it: keep the format", r.Format.Name))
	if limited(w) {
		f.reason = fmt.Sprintf("whether every string that was possible is of format %s cannot be seen from the schemas: keep the format as it is", r.Format.Name)
	}
	return f
}

func tooFewItems(r *jsonschema.Schema) finding {
	return found(r, RuleMinItems,
		fmt.Sprintf("minItems is %d now, and documents written before may have fewer: keep the old limit, or bring an upcaster", *r.MinItems),
		fmt.Sprintf("readers of the old schema have minItems %d, and new documents may have fewer: do not lower the limit", *r.MinItems))
}

func tooManyItems(r *jsonschema.Schema) finding {
	return found(r, RuleMaxItems,
		fmt.Sprintf("maxItems is %d now, and documents written before may have more: keep the old limit, or bring an upcaster", *r.MaxItems),
		fmt.Sprintf("readers of the old schema have maxItems %d, and new documents may have more: do not raise the limit", *r.MaxItems))
}

func notUnique(r *jsonschema.Schema) finding {
	return found(r, RuleUniqueItems,
		"items must differ now, and those written before may be equal: drop uniqueItems, or bring an upcaster",
		"readers of the old schema want items to differ, and new ones may be equal: keep uniqueItems")
}

func itemClosed(r *jsonschema.Schema, place int, unevaluated bool) finding {
	f := found(r, RuleItemsClosed,
		fmt.Sprintf("no item is allowed at place %d any more, counted from 0, and documents written before may have one: allow it, or bring an upcaster", place),
		fmt.Sprintf("readers of the old schema allow no item at place %d, counted from 0, and new documents may have one: do not add items", place))
	if unevaluated {
		f.at = append(f.at, r.UnevaluatedItems)
		f.reason = "unevaluatedItems depends on which branches hold, and that cannot be seen from the schemas"
	} else {
		f.at = append(f.at, at(r, place))
	}
	return f
}

func notContained(r *jsonschema.Schema) finding {
	f := found(r, RuleContains,
		"arrays must contain such an item now, and those written before may not: drop contains, or bring an upcaster",
		"readers of the old schema look for such an item, and new arrays may not contain one: keep contains")
	f.reason = "whether arrays always contain what is looked for cannot be seen from the schemas"
	return f
}

func containedTooOften(r *jsonschema.Schema) finding {
	f := found(r, RuleMaxContains,
		"arrays may contain only so many such items now, and those written before may have more: keep the old maxContains, or bring an upcaster",
		"readers of the old schema take only so many such items, and new arrays may contain more: keep maxContains")
	f.reason = "how many of the items are counted cannot be seen from the schemas"
	return f
}

func missing(r *jsonschema.Schema, name string) finding {
	f := found(r, RuleRequired,
		fmt.Sprintf("`%s` is required now, and documents written before may lack it: make it optional, or bring an upcaster", name),
		fmt.Sprintf("readers of the old schema require `%s`, and new documents may lack it: keep it required", name))
	f.name = name
	if sub := r.Properties[name]; sub != nil {
		f.path = pointer(sub)
		if sub.Default != nil {
			f.backward += "; its default does not help, because readers do not apply defaults"
			f.forward += "; its default does not help, because readers do not apply defaults"
		}
	}
	return f
}

func missingBeside(r *jsonschema.Schema, name, other string) finding {
	f := found(r, RuleDependentRequired,
		fmt.Sprintf("`%s` is required beside `%s` now, and documents written before may lack it: make it optional, or bring an upcaster", other, name),
		fmt.Sprintf("readers of the old schema require `%s` beside `%s`, and new documents may lack it: keep it required", other, name))
	f.name = other
	return f
}

func tooFewProperties(r *jsonschema.Schema) finding {
	return found(r, RuleMinProperties,
		fmt.Sprintf("minProperties is %d now, and documents written before may have fewer: keep the old limit, or bring an upcaster", *r.MinProperties),
		fmt.Sprintf("readers of the old schema have minProperties %d, and new documents may have fewer: do not lower the limit", *r.MinProperties))
}

func tooManyProperties(r *jsonschema.Schema) finding {
	return found(r, RuleMaxProperties,
		fmt.Sprintf("maxProperties is %d now, and documents written before may have more: keep the old limit, or bring an upcaster", *r.MaxProperties),
		fmt.Sprintf("readers of the old schema have maxProperties %d, and new documents may have more: do not raise the limit", *r.MaxProperties))
}

func added(r *jsonschema.Schema, name string, required bool) finding {
	f := found(r.Properties[name], RuleAddedToOpen,
		fmt.Sprintf("`%s` is described now, and the object was open before, so documents written before may have anything under that name: if nobody used it, set lenient; otherwise take another name, or bring an upcaster", name),
		fmt.Sprintf("readers of the old schema describe `%s`, and new documents may have anything under that name, because the object is open: keep its description, or set lenient if nobody will use the name", name))
	if required {
		f.backward = fmt.Sprintf("`%s` is described now, and the object was open before, so documents written before may have anything under that name: take another name, or bring an upcaster", name)
	}
	f.deep = true
	return f
}

func removed(r *jsonschema.Schema, name string) finding {
	f := closed(r)
	f.rule, f.name = RuleRemovedFromClosed, name
	f.backward = fmt.Sprintf("`%s` is not described any more and the object takes no other properties, so documents written before that have it are refused: keep it, open the object, set lenient if it is never there, or bring an upcaster", name)
	f.forward = fmt.Sprintf("readers of the old schema do not know `%s` and take no other properties, and new documents may have it: open the object first and add it later, or set lenient if it is not written before all readers are new", name)
	return f
}

func closed(r *jsonschema.Schema) finding {
	f := found(r, RuleClosed,
		"the object takes no other properties now, and documents written before may have some: leave it open, or bring an upcaster that takes them away",
		"readers of the old schema take no other properties, and new documents may have some: keep the object closed")
	if r.UnevaluatedProperties != nil {
		f.at = append(f.at, r.UnevaluatedProperties)
		if len(r.AnyOf)+len(r.OneOf)+len(r.DependentSchemas) > 0 || r.If != nil {
			f.reason = "unevaluatedProperties depends on which branches hold, and that cannot be seen from the schemas"
		}
	}
	return f
}

func badName(r *jsonschema.Schema, n naming) finding {
	f := found(r, RulePropertyNames,
		"not every name is taken now, and documents written before may have other properties: allow the old names, or bring an upcaster",
		"readers of the old schema do not take every name, and new documents may have other properties: keep propertyNames")
	if n.known {
		f.backward = fmt.Sprintf("the name `%s` is not taken any more, and documents written before may have such a property: allow it, or bring an upcaster", n.name)
		f.forward = fmt.Sprintf("readers of the old schema do not take the name `%s`, and new documents may have such a property: do not add it", n.name)
	} else {
		f.reason = "whether propertyNames takes every name that was possible cannot be seen from the schemas"
	}
	f.at = append(f.at, r.PropertyNames)
	return f
}

func tooManyPatterns(r *jsonschema.Schema) finding {
	f := found(r, RuleUndecided, "", "")
	f.reason = fmt.Sprintf("there are more than %d patterns for names of properties, too many to look at all together", maxPatterns)
	return f
}

func noBranch(r *jsonschema.Schema, keyword, rule string) finding {
	f := found(r, rule,
		"what was written before may match none of the alternatives now: keep the old ones, or bring an upcaster",
		"new documents may match none of the alternatives of the old schema: do not add alternatives")
	if rule == RuleOneOf {
		f.backward = "what was written before may match none of the alternatives now, or more than one: keep the old ones apart from the new by a const that is required, use anyOf, or bring an upcaster"
		f.forward = "new documents may match none of the alternatives of the old schema, or more than one: do not add alternatives"
	}
	f.path = pointer(r, keyword)
	f.reason = "whether every value matches " + keyword + " cannot be seen from the schemas"
	return f
}

func excluded(r *jsonschema.Schema) finding {
	f := found(r, RuleNot,
		"what `not` describes is excluded now, and documents written before may be such: leave it out, or bring an upcaster",
		"readers of the old schema exclude what `not` describes, and new documents may be such: keep the exclusion")
	f.path = pointer(r, "not")
	f.reason = "whether `not` excludes something that was possible cannot be seen from the schemas"
	return f
}

// shows says whether an error of the validator is what the finding is about.
func (f *finding) shows(e *jsonschema.ValidationError) bool {
	here := slices.ContainsFunc(f.at, func(s *jsonschema.Schema) bool {
		return e.SchemaURL == s.Location || f.deep && below(e.SchemaURL, s.Location)
	})
	if !here || e.ErrorKind == nil {
		return false
	}
	if f.deep {
		return true
	}
	switch k := e.ErrorKind.(type) {
	case *says.FalseSchema:
		return f.rule == RuleForbidden || f.rule == RuleItemsClosed || f.rule == RuleClosed || f.rule == RuleRemovedFromClosed && slices.Contains(e.InstanceLocation, f.name)
	case *says.AdditionalProperties:
		return f.rule == RuleClosed || f.rule == RuleRemovedFromClosed && slices.Contains(k.Properties, f.name)
	case *says.Required:
		return f.rule == RuleRequired && slices.Contains(k.Missing, f.name)
	case *says.DependentRequired:
		return f.rule == RuleDependentRequired && slices.Contains(k.Missing, f.name)
	case *says.Dependency:
		return f.rule == RuleDependentRequired && slices.Contains(k.Missing, f.name)
	}
	return ruleOf(e.ErrorKind) == f.rule
}
