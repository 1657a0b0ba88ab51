// Package compat says whether documents of one schema are documents of another.
//
// [Check] compares the trees of two versions by what is known of a value that was
// written under the one, and reads it by the other. It is on the safe side: what
// it calls compatible never refuses a document, and what it cannot decide within
// its bounds is a problem that says so. Where it can, it shows a problem by a
// document that the validator has confirmed. docs/schema-compatibility.md lists
// the rules, and over a hundred changes with what they mean.
package compat

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Mode is how versions of a schema must fit together.
type Mode string

// The modes. The plain ones look at the latest version, the transitive ones at
// all of them.
const (
	None               Mode = "none"
	Backward           Mode = "backward" // old documents are valid under the new schema
	Forward            Mode = "forward"  // new documents are valid under the old schema
	Full               Mode = "full"     // both
	BackwardTransitive Mode = "backward_transitive"
	ForwardTransitive  Mode = "forward_transitive"
	FullTransitive     Mode = "full_transitive"
)

// Modes are all of them.
var Modes = []Mode{None, Backward, Forward, Full, BackwardTransitive, ForwardTransitive, FullTransitive}

// ParseMode reads a mode.
func ParseMode(s string) (Mode, error) {
	if m := Mode(s); slices.Contains(Modes, m) {
		return m, nil
	}
	return "", fmt.Errorf("compat: %q is none of %v", s, Modes)
}

// DemandsBackward says whether old documents must be valid under the new schema.
func (m Mode) DemandsBackward() bool {
	return m == Backward || m == Full || m == BackwardTransitive || m == FullTransitive
}

func (m Mode) forward() bool {
	return m == Forward || m == Full || m == ForwardTransitive || m == FullTransitive
}

// WithoutBackward is what a mode demands beside backward.
func (m Mode) WithoutBackward() Mode {
	switch m {
	case Full:
		return Forward
	case FullTransitive:
		return ForwardTransitive
	case Backward, BackwardTransitive:
		return None
	}
	return m
}

// Transitive says whether all versions count, not only the latest.
func (m Mode) Transitive() bool {
	return m == BackwardTransitive || m == ForwardTransitive || m == FullTransitive
}

// Problem is one reason why two schemas do not fit.
type Problem struct {
	// Path is a JSON pointer into the schema that is read with.
	Path string `json:"path"`
	// Rule names what is broken.
	Rule string `json:"rule"`
	// Detail tells a person what to do.
	Detail string `json:"detail"`
	// Example is a document that is valid under the one schema and not under
	// the other, where one was found.
	Example json.RawMessage `json:"example,omitempty"`
}

// Check compares two versions of a schema and lists every problem; none means
// that they fit: no document that was valid is refused. What cannot be decided is
// a problem too. The order is that of paths, then rules.
//
// Lenient lets two things pass that most teams do although they can break: an
// optional property added to an open object, and one that is taken from a closed
// one. It hides nothing about properties that both schemas describe.
func Check(old, next *jsonschema.Schema, mode Mode, lenient bool) []Problem {
	var list []Problem
	if mode.DemandsBackward() {
		list = append(list, compare(old, next, lenient, false)...)
	}
	if mode.forward() {
		list = append(list, compare(next, old, lenient, true)...)
	}
	slices.SortStableFunc(list, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Rule, b.Rule), strings.Compare(a.Detail, b.Detail))
	})
	return slices.CompactFunc(list, func(a, b Problem) bool { return a.Path == b.Path && a.Rule == b.Rule && a.Detail == b.Detail })
}

// compare lists why documents of the writer may not be documents of the reader.
func compare(writer, reader *jsonschema.Schema, lenient, forward bool) []Problem {
	all := append(reachable(writer), reachable(reader)...)
	rep := newReport(forward)
	c := newChecker(all, lenient)
	if c.id(writer) == c.id(reader) {
		return nil // they say the same
	}
	for _, s := range []*jsonschema.Schema{writer, reader} {
		if at, reason := beyond(s, reachable(s)); reason != "" {
			rep.add(finding{path: at, rule: RuleUndecided, reason: reason})
		}
	}
	if len(rep.list) == 0 {
		w := c.world(everything, []*jsonschema.Schema{writer}, nil)
		if c.descend(w, reader, rep) {
			return nil
		}
		if c.spent() {
			f := found(reader, RuleUndecided, "", "")
			f.reason = "the schemas are too intricate to be compared to the end"
			rep.list = append(rep.list, f)
		} else if len(rep.list) == 0 {
			f := found(reader, RuleUndecided, "", "")
			f.reason = "it could not be proved that every document fits"
			rep.add(f)
		}
	}
	if !slices.ContainsFunc(rep.list, func(f finding) bool { return f.rule != RuleUndecided }) {
		// A document decides what reasoning did not.
		if v, ok := witness(writer, reader); ok {
			rep.list, rep.seen = nil, make(map[string]bool)
			rep.refused(reader, []any{v})
		}
	}
	return rep.problems(examples(rep, writer, reader))
}
