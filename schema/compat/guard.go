package compat

import (
	"encoding/json"
	"math/big"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"promethean/schema/internal/sample"
)

// maxBits bounds numbers in schemas; beyond it comparing takes too long.
const maxBits = 4096

// reachable gives a schema and all that lead from it, each once.
func reachable(s *jsonschema.Schema) []*jsonschema.Schema {
	seen := map[*jsonschema.Schema]bool{s: true}
	list := []*jsonschema.Schema{s}
	for i := 0; i < len(list); i++ {
		for _, sub := range sample.Below(list[i]) {
			if !seen[sub.Schema] {
				seen[sub.Schema] = true
				list = append(list, sub.Schema)
			}
		}
	}
	return list
}

// beyond says why a schema is beyond what the checker understands, "" if it is
// not, and where.
func beyond(root *jsonschema.Schema, all []*jsonschema.Schema) (pointer, reason string) {
	resources := 0
	for _, s := range all {
		if s != root && s.ID != "" {
			resources++
		}
	}
	for _, s := range all {
		if s.Bool != nil {
			continue
		}
		why := ""
		switch {
		case s.DraftVersion != 2020:
			why = "a part of the schema is of another draft than 2020-12"
		case s.DynamicRef != nil && s.DynamicRef.Anchor != "" && s.DynamicRef.Ref.DynamicAnchor == s.DynamicRef.Anchor && resources > 0:
			why = "what $dynamicRef means depends on the way that leads there, because parts of the schema have an $id of their own"
		case s.RecursiveRef != nil:
			why = "$recursiveRef is of an older draft: use $ref"
		case len(s.Extensions) > 0 || s.ContentEncoding != nil || s.ContentMediaType != nil:
			why = "it uses keywords beyond JSON Schema's own"
		case huge(s):
			why = "a number in it is too large to be compared"
		}
		if why != "" {
			return sample.Pointer(s), why
		}
	}
	if s := roundabout(all); s == nil {
		if n, at := sample.Burden(root); n > sample.MaxBurden {
			return at, "more schemas are applied to one value than can be followed"
		}
	} else {
		return sample.Pointer(s), "a reference leads back to where it stands without going into a value, so what it means depends on the way there"
	}
	return "", ""
}

// huge says whether a schema has a number that is too large.
func huge(s *jsonschema.Schema) bool {
	for _, n := range []*big.Rat{s.Maximum, s.Minimum, s.ExclusiveMaximum, s.ExclusiveMinimum, s.MultipleOf} {
		if n != nil && (n.Num().BitLen() > maxBits || n.Denom().BitLen() > maxBits) {
			return true
		}
	}
	if s.Const != nil && hugeValue(*s.Const) {
		return true
	}
	if s.Enum != nil {
		for _, v := range s.Enum.Values {
			if hugeValue(v) {
				return true
			}
		}
	}
	return false
}

func hugeValue(v any) bool {
	switch v := v.(type) {
	case json.Number:
		n, ok := new(big.Rat).SetString(v.String())
		return !ok || n.Num().BitLen() > maxBits || n.Denom().BitLen() > maxBits
	case []any:
		for _, e := range v {
			if hugeValue(e) {
				return true
			}
		}
	case map[string]any:
		for _, e := range v {
			if hugeValue(e) {
				return true
			}
		}
	}
	return false
}

// roundabout finds a schema that applies itself to the same value again.
func roundabout(all []*jsonschema.Schema) *jsonschema.Schema {
	const (
		open = iota + 1
		done
	)
	state := make(map[*jsonschema.Schema]int, len(all))
	type frame struct {
		s    *jsonschema.Schema
		rest []sample.Child
	}
	for _, root := range all {
		if state[root] != 0 {
			continue
		}
		state[root] = open
		stack := []frame{{root, sample.Below(root)}}
		for len(stack) > 0 {
			f := &stack[len(stack)-1]
			if len(f.rest) == 0 {
				state[f.s] = done
				stack = stack[:len(stack)-1]
				continue
			}
			sub := f.rest[0]
			f.rest = f.rest[1:]
			if !sub.InPlace {
				continue
			}
			switch state[sub.Schema] {
			case open:
				return sub.Schema
			case 0:
				state[sub.Schema] = open
				stack = append(stack, frame{sub.Schema, sample.Below(sub.Schema)})
			}
		}
	}
	return nil
}

// accepts says whether a schema takes a value.
func accepts(s *jsonschema.Schema, v any) bool {
	ok, known := validate(s, v)
	return ok && known
}

// rejects says whether a schema refuses a value.
func rejects(s *jsonschema.Schema, v any) bool {
	ok, known := validate(s, v)
	return !ok && known
}

// validate asks the validator. One that fails by a panic has not decided: it does
// so with numbers that it cannot read.
func validate(s *jsonschema.Schema, v any) (ok, known bool) {
	defer func() {
		if r := recover(); r != nil {
			ok, known = false, false
		}
	}()
	return s.Validate(v) == nil, true
}
