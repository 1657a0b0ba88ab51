package schema

import (
	"fmt"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"promethean/schema/internal/pattern"
	"promethean/schema/internal/sample"
)

// MaxSubschemas is how many schemas one schema may consist of.
const MaxSubschemas = 5000

// checkTree refuses a schema that compiles and must not be used: one that is too
// large to be worked with, that takes readers or ourselves too long, or that no
// document can satisfy because it never ends.
func checkTree(root *jsonschema.Schema) error {
	seen := map[*jsonschema.Schema]bool{root: true}
	list := []*jsonschema.Schema{root}
	for i := 0; i < len(list); i++ {
		if err := checkPatterns(list[i]); err != nil {
			return err
		}
		for _, sub := range sample.Below(list[i]) {
			if !seen[sub.Schema] {
				seen[sub.Schema] = true
				list = append(list, sub.Schema)
			}
		}
		if len(list) > MaxSubschemas {
			return fmt.Errorf("it consists of more than %d schemas: split the topic, or allow more with fewer words", MaxSubschemas)
		}
	}
	if at, endless := sample.Endless(root); endless {
		return fmt.Errorf("%s: no document can satisfy it, because it needs itself inside itself: make a property on the way optional, or allow null", where(at))
	}
	if n, at := sample.Burden(root); n > sample.MaxBurden {
		return fmt.Errorf("%s: a reference leads back to itself on the same value, or more than %d schemas are applied to one value: put references under properties or items, and fewer into allOf, anyOf and oneOf", where(at), sample.MaxBurden)
	}
	return nil
}

// checkPatterns refuses patterns that other readers of the schema cannot use.
func checkPatterns(s *jsonschema.Schema) error {
	if s.Pattern != nil {
		if err := pattern.Check(s.Pattern.String()); err != nil {
			return fmt.Errorf("%s/pattern: %w", sample.Pointer(s), err)
		}
	}
	var names []string
	for re := range s.PatternProperties {
		names = append(names, re.String())
	}
	slices.Sort(names)
	for _, name := range names {
		if err := pattern.Check(name); err != nil {
			return fmt.Errorf("%s/patternProperties: %w", sample.Pointer(s), err)
		}
	}
	return nil
}

// where names a place in a schema to a person.
func where(pointer string) string {
	if pointer == "" {
		return "the schema itself"
	}
	return pointer
}
