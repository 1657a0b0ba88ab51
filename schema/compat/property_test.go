package compat

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	"promethean/schema/internal/sample"
)

// pairOf draws two schemas, the second made from the first.
func pairOf(t *rapid.T) (old, next string, changes []string) {
	d := dice{t, new(uint64)}
	first := clone(d.document())
	second := clone(first).(node)
	for range 1 + d.n(3) {
		changes = append(changes, d.mutate(second))
		second = clone(second).(node)
	}
	return written(first), written(second), changes
}

// counterexample looks for a document that the writer takes and the reader does
// not.
func counterexample(writer, reader *jsonschema.Schema, seed uint64, tries int) []byte {
	m := sample.New(writer, seed)
	m.Hint(reader)
	for range tries {
		v, ok := m.Value()
		if !ok {
			return nil
		}
		if reader.Validate(v) != nil {
			doc, _ := encode(v)
			return doc
		}
	}
	return nil
}

// tally counts what came out, for the figure of completeness in the page.
type tally struct {
	pairs, fit, vacuous, shown, unshown int
	rules                               map[string]int
}

// TestProperty: what is called compatible never refuses a document, and every
// example proves its problem.
func TestProperty(t *testing.T) {
	outer := t
	sum := tally{rules: make(map[string]int)}
	rapid.Check(t, func(t *rapid.T) {
		one, two, changes := pairOf(t)
		old, err := tryCompile(one)
		if err != nil {
			t.Fatalf("%s: %v", one, err)
		}
		next, err := tryCompile(two)
		if err != nil {
			t.Skip() // a change may make nonsense, such as an empty anyOf
		}
		seed := rapid.Uint64().Draw(t, "seed")
		for _, way := range []struct {
			mode           Mode
			writer, reader *jsonschema.Schema
		}{{Backward, old, next}, {Forward, next, old}} {
			problems := Check(old, next, way.mode, false)
			sum.pairs++
			if len(problems) == 0 {
				sum.fit++
				if _, ok := sample.New(way.writer, seed).Value(); !ok {
					sum.vacuous++
				}
				if doc := counterexample(way.writer, way.reader, seed, 25); doc != nil {
					t.Fatalf("%s is called compatible by %s (%v)\nold  %s\nnext %s\nbut %s shows that it is not", changes, way.mode, len(problems), one, two, doc)
				}
				continue
			}
			shown := false
			for _, p := range problems {
				if p.Example == nil {
					continue
				}
				shown = true
				v, err := jsonschema.UnmarshalJSON(bytes.NewReader(p.Example))
				if err != nil {
					t.Fatalf("example %s: %v", p.Example, err)
				}
				if way.writer.Validate(v) != nil || way.reader.Validate(v) == nil {
					t.Fatalf("%s %s: example %s proves nothing\nold  %s\nnext %s", p.Path, p.Rule, p.Example, one, two)
				}
			}
			checkShape(t, problems)
			if shown {
				sum.shown++
			} else if counterexample(way.writer, way.reader, seed, 300) != nil {
				sum.shown++
			} else {
				sum.unshown++
				sum.rules[problems[0].Rule]++
				if os.Getenv("PROMETHEAN_COMPAT_UNSHOWN") != "" {
					outer.Logf("UNSHOWN %s %s %v\n  old  %s\n  next %s\n  %s %s %s", way.mode, changes, len(problems), one, two, problems[0].Path, problems[0].Rule, problems[0].Detail)
				}
			}
		}
	})
	t.Logf("%d comparisons: %d compatible (%d of them because nothing can be written), %d refused with a document that shows why, %d refused without; these by their first rule: %v", sum.pairs, sum.fit, sum.vacuous, sum.shown, sum.unshown, sum.rules)
}

// checkShape holds for every list of problems.
func checkShape(t interface {
	Helper()
	Fatalf(string, ...any)
}, problems []Problem) {
	t.Helper()
	for i, p := range problems {
		if !slices.ContainsFunc(Rules, func(r RuleText) bool { return r.Name == p.Rule }) {
			t.Fatalf("rule %q is not listed", p.Rule)
		}
		if p.Detail == "" || p.Path != "" && !strings.HasPrefix(p.Path, "/") {
			t.Fatalf("problem %d is %+v", i, p)
		}
		if i > 0 {
			if q := problems[i-1]; q.Path > p.Path || q.Path == p.Path && q.Rule > p.Rule || q.Path == p.Path && q.Rule == p.Rule && q.Detail == p.Detail {
				t.Fatalf("problems %d and %d are not in order, or the same: %+v, %+v", i-1, i, q, p)
			}
		}
	}
}
