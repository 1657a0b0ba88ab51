package jq

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/itchyny/gojq"
)

// Most upcasters rename, delete and fill in. What a program does of that at its
// beginning is done directly: no machine has to be started, and the payload,
// which nobody else knows yet, need not be copied for each change.

// step is one such change.
type step struct {
	del  [][]string // what to delete, or:
	path []string   // where to put something; it names at least one field
	from []string   // the value at this path; or a constant
	alt  bool       // or a constant if the value is null, false or not there
	make func() any
}

// maxPath is the longest path of a step.
const maxPath = 16

// steps takes from a program what can be done by steps. The rest is nil if that
// is all. The program is not changed.
func steps(q *gojq.Query) (list []step, rest *gojq.Query) {
	parts := pipeline(nil, q)
	for len(parts) > 0 {
		s, ok := stepOf(parts[0])
		if !ok {
			break
		}
		list = append(list, s)
		parts = parts[1:]
	}
	if len(parts) == 0 {
		return list, nil
	}
	if len(list) == 0 {
		return nil, q
	}
	return list, pipe(parts...)
}

// pipeline appends the parts of "a | b | c".
func pipeline(parts []*gojq.Query, q *gojq.Query) []*gojq.Query {
	if len(parts) > maxNesting || !plainQuery(q) {
		return append(parts, q)
	}
	if q.Term == nil && q.Op == gojq.OpPipe && len(q.Patterns) == 0 && q.Left != nil && q.Right != nil && plainQuery(q.Left) {
		// A chain leans to the right, so that its left side is short.
		return pipeline(pipeline(parts, q.Left), q.Right)
	}
	if t := q.Term; t != nil && t.Type == gojq.TermTypeQuery && len(t.SuffixList) == 0 {
		return pipeline(parts, t.Query)
	}
	return append(parts, q)
}

func plainQuery(q *gojq.Query) bool {
	return q != nil && len(q.FuncDefs) == 0 && len(q.Imports) == 0 && q.Meta == nil
}

// stepOf reads one part of a program.
func stepOf(q *gojq.Query) (s step, ok bool) {
	if !plainQuery(q) {
		return s, false
	}
	if t := q.Term; t != nil {
		if t.Type != gojq.TermTypeFunc || t.Func.Name != "del" || len(t.Func.Args) != 1 || len(t.SuffixList) > 0 {
			return s, false
		}
		s.del, ok = deletions(nil, t.Func.Args[0])
		return s, ok
	}
	if q.Op != gojq.OpAssign && q.Op != gojq.OpUpdateAlt {
		return s, false
	}
	if s.path = fieldPath(q.Left); s.path == nil {
		return s, false
	}
	if q.Op == gojq.OpUpdateAlt {
		s.from, s.alt, s.make = s.path, true, constant(q.Right)
		return s, s.make != nil
	}
	right := q.Right
	for right.Term != nil && right.Term.Type == gojq.TermTypeQuery && len(right.Term.SuffixList) == 0 && plainQuery(right.Term.Query) {
		right = right.Term.Query
	}
	if plainQuery(right) && right.Term == nil && right.Op == gojq.OpAlt {
		s.from, s.alt, s.make = fieldPath(right.Left), true, constant(right.Right)
		return s, s.from != nil && s.make != nil
	}
	if s.make = constant(right); s.make == nil {
		s.from = fieldPath(right)
	}
	return s, s.make != nil || s.from != nil
}

// deletions appends the paths of "a, b, c".
func deletions(list [][]string, q *gojq.Query) ([][]string, bool) {
	if plainQuery(q) && q.Term == nil && q.Op == gojq.OpComma {
		list, ok := deletions(list, q.Left)
		if !ok {
			return nil, false
		}
		return deletions(list, q.Right)
	}
	path := fieldPath(q)
	return append(list, path), path != nil
}

// fieldPath reads ".a.b", or gives nil.
func fieldPath(q *gojq.Query) []string {
	if !plainQuery(q) || q.Term == nil || q.Term.Type != gojq.TermTypeIndex || len(q.Term.SuffixList) >= maxPath {
		return nil
	}
	name, ok := fieldName(q.Term.Index)
	path := []string{name}
	for _, s := range q.Term.SuffixList {
		if !ok || s.Index == nil {
			return nil
		}
		name, ok = fieldName(s.Index)
		path = append(path, name)
	}
	if !ok {
		return nil
	}
	return path
}

func fieldName(x *gojq.Index) (string, bool) {
	if x.Name != "" {
		return x.Name, true
	}
	if x.Str != nil && x.Str.Queries == nil {
		return x.Str.Str, true
	}
	return "", false
}

// constant reads a value that is written out, or gives nil. Containers are made
// anew each time, because steps change what they find.
func constant(q *gojq.Query) func() any {
	if !plainQuery(q) || q.Term == nil || len(q.Term.SuffixList) > 0 {
		return nil
	}
	var v any
	switch t := q.Term; t.Type {
	case gojq.TermTypeNull:
	case gojq.TermTypeTrue:
		v = true
	case gojq.TermTypeFalse:
		v = false
	case gojq.TermTypeNumber:
		if len(t.Number) > maxDigits {
			return nil
		}
		v = computed(json.Number(t.Number))
	case gojq.TermTypeString:
		if t.Str.Queries != nil {
			return nil
		}
		v = t.Str.Str
	case gojq.TermTypeArray:
		if t.Array.Query != nil {
			return nil
		}
		return func() any { return []any{} }
	case gojq.TermTypeObject:
		if len(t.Object.KeyVals) > 0 {
			return nil
		}
		return func() any { return map[string]any{} }
	default:
		return nil
	}
	return func() any { return v }
}

func noObject(v any) error { return fmt.Errorf("jq: expected an object but got: %s", preview(v)) }

// at gives the value at a path.
func at(v any, path []string) (any, error) {
	for _, name := range path {
		switch m := v.(type) {
		case nil:
			return nil, nil
		case map[string]any:
			v = m[name]
		default:
			return nil, noObject(v)
		}
	}
	return v, nil
}

// put gives the object in with a value at a path. It changes in itself, but
// copies objects further down: a step may have put them in two places.
func put(in any, path []string, v any) (any, error) {
	m, ok := in.(map[string]any)
	switch {
	case in == nil:
		m = make(map[string]any, 1)
	case !ok:
		return nil, noObject(in)
	}
	if len(path) > 1 {
		inner := m[path[0]]
		if x, ok := inner.(map[string]any); ok {
			inner = maps.Clone(x)
		}
		var err error
		if v, err = put(inner, path[1:], v); err != nil {
			return nil, err
		}
	}
	m[path[0]] = v
	return m, nil
}

// drop gives the object in without what is at a path, as put does.
func drop(in any, path []string) (any, error) {
	m, ok := in.(map[string]any)
	switch {
	case in == nil:
		return nil, nil
	case !ok:
		return nil, noObject(in)
	}
	if len(path) == 1 {
		delete(m, path[0])
		return m, nil
	}
	inner, ok := m[path[0]]
	if !ok {
		return m, nil
	}
	if x, ok := inner.(map[string]any); ok {
		inner = maps.Clone(x)
	}
	inner, err := drop(inner, path[1:])
	if err != nil {
		return nil, err
	}
	m[path[0]] = inner
	return m, nil
}

// do takes the step. large says whether what was put in may be large.
func (s *step) do(v any) (out any, large bool, err error) {
	if s.del != nil {
		for _, p := range s.del[1:] {
			// All paths must be there to be seen before the first one goes.
			if _, err := at(v, p); err != nil {
				return nil, false, err
			}
		}
		for _, p := range s.del {
			if v, err = drop(v, p); err != nil {
				return nil, false, err
			}
		}
		return v, false, nil
	}
	var x any
	if s.from != nil {
		x, err = at(v, s.from)
		if err != nil {
			return nil, false, err
		}
		if s.alt && (x == nil || x == false) {
			x = s.make()
		}
	} else {
		x = s.make()
	}
	switch x := x.(type) {
	case []any:
		large = len(x) > 0
	case map[string]any:
		large = len(x) > 0
	case string:
		large = len(x) > 1024
	}
	v, err = put(v, s.path, x)
	return v, large, err
}
