package compat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	says "github.com/santhosh-tekuri/jsonschema/v6/kind"

	"promethean/schema/internal/sample"
)

// report collects what was found in one direction.
type report struct {
	forward bool
	list    []finding
	seen    map[string]bool
	entered map[string]bool
}

func newReport(forward bool) *report {
	return &report{forward: forward, seen: make(map[string]bool), entered: make(map[string]bool)}
}

// enter says whether a claim is explained for the first time.
func (rep *report) enter(key string) bool {
	if rep.entered[key] {
		return false
	}
	rep.entered[key] = true
	return true
}

// maxFindings bounds what is told to a person.
const maxFindings = 200

func (rep *report) add(f finding) {
	key := f.path + "\x00" + f.rule + "\x00" + f.name
	if rep.seen[key] || len(rep.list) >= maxFindings {
		return
	}
	rep.seen[key] = true
	rep.list = append(rep.list, f)
}

// refused reports values that were listed and are not taken.
func (rep *report) refused(r *jsonschema.Schema, values []any) {
	type place struct{ location, rule string }
	bad := make(map[place][]string)
	var order []place
	for _, v := range values {
		for _, e := range causes(r, v) {
			p := place{e.SchemaURL, ruleOf(e.ErrorKind)}
			if p.rule == "" {
				continue
			}
			if bad[p] == nil {
				order = append(order, p)
			}
			bad[p] = append(bad[p], show(v))
		}
	}
	for _, p := range order {
		names := slices.Compact(bad[p])
		if len(names) > 5 {
			names = append(names[:5:5], "…")
		}
		at := &jsonschema.Schema{Location: p.location}
		rep.add(finding{
			path: sample.Pointer(at), rule: p.rule, at: []*jsonschema.Schema{at},
			backward: fmt.Sprintf("%s could be written before and is not taken any more: keep taking it, or bring an upcaster", strings.Join(names, ", ")),
			forward:  fmt.Sprintf("%s can be written now and readers of the old schema do not take it: do not write it before all readers are new", strings.Join(names, ", ")),
		})
	}
	if len(order) == 0 && len(values) > 0 {
		f := found(r, RuleUndecided, "", "")
		f.reason = fmt.Sprintf("%s could be written, and whether it is taken could not be found out", show(values[0]))
		rep.add(f)
	}
}

// causes gives the errors at which a person begins to read: alternatives are not
// looked into.
func causes(s *jsonschema.Schema, v any) (list []*jsonschema.ValidationError) {
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		switch e.ErrorKind.(type) {
		case *says.Schema, *says.Group, *says.Reference, *says.AllOf:
			for _, sub := range e.Causes {
				walk(sub)
			}
		case nil:
		default:
			list = append(list, e)
		}
	}
	if e := refusal(s, v); e != nil {
		walk(e)
	}
	return list
}

// refusal is the validator's error, nil if there is none.
func refusal(s *jsonschema.Schema, v any) (e *jsonschema.ValidationError) {
	if !rejects(s, v) {
		return nil
	}
	if !errors.As(s.Validate(v), &e) {
		return nil
	}
	return e
}

// ruleOf gives the rule for an error of the validator, "" if it is none itself.
func ruleOf(k jsonschema.ErrorKind) string {
	switch k.(type) {
	case nil, *says.Schema, *says.Group, *says.Reference, *says.AllOf:
		return ""
	case *says.FalseSchema:
		return RuleForbidden
	case *says.Not:
		return RuleNot
	case *says.PropertyNames:
		return RulePropertyNames
	}
	path := k.KeywordPath()
	if len(path) == 0 {
		return ""
	}
	return keywordRules[path[0]]
}

// below says whether a schema stands inside another.
func below(location, outer string) bool { return strings.HasPrefix(location, outer+"/") }

// show writes a value for a person.
func show(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	s := strings.TrimSuffix(b.String(), "\n")
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}

// problems makes what was found into what is told.
func (rep *report) problems(examples map[int]json.RawMessage) (list []Problem) {
	for i, f := range rep.list {
		p := Problem{Path: f.path, Rule: f.rule, Detail: f.backward, Example: examples[i]}
		if rep.forward {
			p.Detail = f.forward
		}
		if f.reason != "" && p.Example == nil {
			p.Rule = RuleUndecided
			p.Detail = f.reason + "; " + undecidedAdvice
			if rep.forward {
				p.Detail = "for new documents and readers of the old schema: " + p.Detail
			}
		}
		list = append(list, p)
	}
	return list
}

const undecidedAdvice = "what cannot be decided counts as incompatible, so keep this part as it was, bring an upcaster, or register with compat none"
