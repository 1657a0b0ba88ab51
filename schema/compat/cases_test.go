package compat

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestProblems looks at what is told: where, by which rule, and in which words.
func TestProblems(t *testing.T) {
	for _, test := range []struct {
		name, old, next string
		mode            Mode
		path, rule      string
		detail          string // a part of it
		example         string // "" for any, "none"
	}{
		{"required", obj + `{"pid":{"type":"integer"}}}`, obj + `{"pid":{"type":"integer"}},"required":["pid"]}`, Backward,
			"/properties/pid", RuleRequired, "`pid` is required now, and documents written before may lack it: make it optional, or bring an upcaster", `{}`},
		{"required, forward", obj + `{"pid":{"type":"integer"}},"required":["pid"]}`, obj + `{"pid":{"type":"integer"}}}`, Forward,
			"/properties/pid", RuleRequired, "readers of the old schema require `pid`, and new documents may lack it", `{}`},
		{"required with a default", obj + `{"a":{}}}`, obj + `{"a":{"default":1}},"required":["a"]}`, Backward, "/properties/a", RuleRequired, "default does not help", `{}`},
		{"required, not described", `{"type":"object"}`, `{"type":"object","required":["x"]}`, Backward, "", RuleRequired, "`x`", `{}`},
		{"a name with a slash", obj + `{"a/b~c":{"type":"number"}}}`, obj + `{"a/b~c":{"type":"integer"}}}`, Backward, "/properties/a~1b~0c", RuleType, "only integer", ""},
		{"a name that is not ASCII", obj + `{"größe %":{"type":"number"}}}`, obj + `{"größe %":{"type":"integer"}}}`, Backward, "/properties/größe %", RuleType, "only integer", ""},
		{"type", `{"type":["string","null"]}`, `{"type":"string"}`, Backward, "", RuleType, "may have null", `null`},
		{"forbidden", obj + `{"a":{"type":"string"}}}`, obj + `{"a":false}}`, Backward, "/properties/a", RuleForbidden, "no value is allowed", `{"a":""}`},
		{"const", `{"type":"string"}`, `{"const":"a"}`, Backward, "", RuleConst, `only "a" is taken now`, ""},
		{"enum", `{"enum":["a","b","c"]}`, `{"enum":["a"]}`, Backward, "", RuleEnum, `"b", "c" could be written before`, ""},
		{"enum under limits", `{"enum":["a","abcd"]}`, `{"type":"string","maxLength":2}`, Backward, "", RuleMaxLength, `"abcd" could be written before`, `"abcd"`},
		{"exclusive limit", `{"type":"number"}`, `{"type":"number","exclusiveMaximum":1.5}`, Backward, "", RuleMaximum, "exclusiveMaximum is 3/2 now", ""},
		{"multiple", `{"type":"integer"}`, `{"type":"integer","multipleOf":2}`, Backward, "", RuleMultipleOf, "only multiples of 2", ""},
		{"pattern", `{"type":"string"}`, `{"type":"string","pattern":"^a"}`, Backward, "", RulePattern, "must match ^a", `""`},
		{"pattern against pattern, with a witness", `{"type":"string","pattern":"^[a-z]+$"}`, `{"type":"string","pattern":"^[a-m]+$"}`, Backward, "", RulePattern, "must match ^[a-m]+$ now", ""},
		{"pattern against pattern, without", `{"type":"string","pattern":"^[a-m]+$"}`, `{"type":"string","pattern":"^[a-z]+$"}`, Backward, "", RuleUndecided, "cannot be seen from the schemas", "none"},
		{"format", `{"type":"string"}`, `{"type":"string","format":"uuid"}`, Backward, "", RuleFormat, "formats are checked here", ""},
		{"unique", `{"type":"array"}`, `{"type":"array","uniqueItems":true}`, Backward, "", RuleUniqueItems, "must differ now", ""},
		{"items closed", `{"type":"array","prefixItems":[true,true],"items":false}`, `{"type":"array","prefixItems":[true],"items":false}`, Backward, "", RuleItemsClosed, "place 1", ""},
		{"contains", `{"type":"array"}`, `{"type":"array","contains":{"const":1}}`, Backward, "", RuleContains, "must contain", `[]`},
		{"contains too often", `{"type":"array","contains":{"const":1}}`, `{"type":"array","contains":{"const":1},"maxContains":1}`, Backward, "", RuleMaxContains, "only so many", `[1,1]`},
		{"added to open", obj + `{}}`, obj + `{"a":{"type":"string"}}}`, Backward, "/properties/a", RuleAddedToOpen, "set lenient", ""},
		{"added to open, behind a reference", obj + `{}}`, obj + `{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string"}}}`, Backward, "/properties/a", RuleAddedToOpen, "set lenient", ""},
		{"removed from closed", obj + `{"a":{}},"additionalProperties":false}`, `{"type":"object","additionalProperties":false}`, Backward, "", RuleRemovedFromClosed, "`a` is not described any more", ""},
		{"added to closed, forward", `{"type":"object","additionalProperties":false}`, obj + `{"a":{}},"additionalProperties":false}`, Forward, "", RuleRemovedFromClosed, "do not know `a`", ""},
		{"closed", `{"type":"object"}`, `{"type":"object","additionalProperties":false}`, Backward, "", RuleClosed, "takes no other properties now", ""},
		{"closed by unevaluatedProperties", `{"type":"object"}`, `{"type":"object","unevaluatedProperties":false}`, Backward, "", RuleClosed, "takes no other properties now", ""},
		{"names", `{"type":"object"}`, `{"type":"object","propertyNames":{"maxLength":3}}`, Backward, "", RulePropertyNames, "not every name", ""},
		{"a name", obj + `{"abcd":{}},"additionalProperties":false}`, obj + `{"abcd":{}},"additionalProperties":false,"propertyNames":{"maxLength":3}}`, Backward, "", RulePropertyNames, "`abcd` is not taken any more", ""},
		{"few properties", `{"type":"object"}`, `{"type":"object","minProperties":2}`, Backward, "", RuleMinProperties, "minProperties is 2", `{}`},
		{"many properties", `{"type":"object"}`, `{"type":"object","maxProperties":1}`, Backward, "", RuleMaxProperties, "maxProperties is 1", ""},
		{"beside", `{"type":"object"}`, `{"type":"object","dependentRequired":{"a":["b"]}}`, Backward, "", RuleDependentRequired, "`b` is required beside `a`", ""},
		{"any of", `{"type":["string","integer","null"]}`, `{"anyOf":[{"type":"string"},{"type":"integer"}]}`, Backward, "/anyOf", RuleAnyOf, "none of the alternatives", `null`},
		{"the one branch in question", `{"anyOf":[{"type":"string"},{"type":"integer"}]}`, `{"anyOf":[{"type":"string","maxLength":3},{"type":"integer"}]}`, Backward, "/anyOf/0", RuleMaxLength, "maxLength is 3", ""},
		{"one of", `{"type":"integer"}`, `{"oneOf":[{"type":"integer"},{"type":"number"}]}`, Backward, "/oneOf", RuleOneOf, "more than one", ""},
		{"not", `{"type":"integer"}`, `{"type":"integer","not":{"const":7}}`, Backward, "/not", RuleNot, "excluded now", `7`},
		{"then", obj + `{}}`, obj + `{},"if":{"required":["a"]},"then":{"required":["b"]}}`, Backward, "/then", RuleRequired, "`b` is required", ""},
		{"behind a reference", obj + `{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"number"}}}`, obj + `{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer"}}}`, Backward, "/$defs/n", RuleType, "only integer", ""},
		{"deep inside", obj + `{"a":{"type":"array","items":` + obj + `{"b":{"type":"number"}}}}}}`, obj + `{"a":{"type":"array","items":` + obj + `{"b":{"type":"integer"}}}}}}`, Backward, "/properties/a/items/properties/b", RuleType, "only integer", ""},
		{"$dynamicRef that depends on the way", `{"$id":"https://x.example/a","$dynamicAnchor":"n","type":"object","properties":{"b":{"$id":"b","$dynamicAnchor":"n","type":"object","properties":{"c":{"$dynamicRef":"#n"}}}}}`, `{"type":["object","null"]}`, Backward, "/properties/b/properties/c", RuleUndecided, "$dynamicRef", "none"},
		{"too many patterns", `{"type":"object","patternProperties":{"a1":{"type":"string"},"a2":{"type":"string"},"a3":{"type":"string"},"a4":{"type":"string"},"a5":{"type":"string"},"a6":{"type":"string"}}}`,
			`{"type":"object","patternProperties":{"a1":{"type":"string"},"a2":{"type":"string"},"a3":{"type":"string"},"a4":{"type":"string"},"a5":{"type":"string"},"a6":{"type":["string","null"]}}}`, Backward, "", RuleUndecided, "more than 5 patterns", "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			old, next := compile(t, test.old), compile(t, test.next)
			problems := Check(old, next, test.mode, false)
			checkShape(t, problems)
			for _, p := range problems {
				if p.Path != test.path || p.Rule != test.rule {
					continue
				}
				if !strings.Contains(p.Detail, test.detail) {
					t.Errorf("detail %q has no %q", p.Detail, test.detail)
				}
				switch {
				case test.example == "none" && p.Example != nil:
					t.Errorf("there is an example: %s", p.Example)
				case test.example == "none":
				case p.Example == nil:
					t.Error("there is no example")
				case test.example != "" && string(p.Example) != test.example:
					t.Errorf("the example is %s, want %s", p.Example, test.example)
				}
				if p.Example != nil {
					prove(t, old, next, test.mode, p)
				}
				return
			}
			t.Errorf("problems are %+v, want %s at %q", problems, test.rule, test.path)
		})
	}
}

// TestEveryProblemIsTold: also where several properties change alike.
func TestEveryProblemIsTold(t *testing.T) {
	old := compile(t, obj+`{"a":{"type":"number"},"b":{"type":"number"},"c":{"type":"array","items":{"type":"number"}}}}`)
	next := compile(t, obj+`{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"array","items":{"type":"integer"}}},"required":["a"]}`)
	var got []string
	for _, p := range Check(old, next, Backward, false) {
		got = append(got, p.Path+" "+p.Rule)
	}
	want := []string{"/properties/a required", "/properties/a type", "/properties/b type", "/properties/c/items type"}
	// Of objects too, beside what depends on a property.
	before := compile(t, obj+`{"a":{"type":"number"}}}`)
	after := compile(t, obj+`{"a":{"type":"integer"}},"dependentRequired":{"a":["b"]},"minProperties":1}`)
	for _, p := range Check(before, after, Backward, false) {
		got = append(got, p.Path+" "+p.Rule)
	}
	want = append(want, " dependent_required", " min_properties", "/properties/a type")
	if !slices.Equal(got, want) {
		t.Errorf("problems %q, want %q", got, want)
	}
}

// prove checks that an example is one.
func prove(t *testing.T, old, next *jsonschema.Schema, mode Mode, p Problem) {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(p.Example))
	if err != nil {
		t.Fatal(err)
	}
	writer, reader := old, next
	if mode == Forward {
		writer, reader = next, old
	}
	if err := writer.Validate(v); err != nil {
		t.Errorf("the example %s could not be written: %v", p.Example, err)
	}
	if reader.Validate(v) == nil {
		t.Errorf("the example %s can be read", p.Example)
	}
}

// TestRulesAreUsed: each rule in the list occurs in a row or a case.
func TestRulesAreUsed(t *testing.T) {
	seen := make(map[string]bool)
	for _, r := range rows {
		for _, p := range Check(compile(t, r.old), compile(t, r.next), Full, false) {
			seen[p.Rule] = true
		}
	}
	only := []string{RuleMaxContains} // in TestProblems
	for _, r := range Rules {
		if !seen[r.Name] && !strings.Contains(strings.Join(only, " "), r.Name) {
			t.Errorf("no row shows the rule %s", r.Name)
		}
	}
}

// TestLenient: it lets two things pass, and nothing about properties that both
// sides describe.
func TestLenient(t *testing.T) {
	for _, test := range []struct {
		name, old, next string
		ok              bool
	}{
		{"optional into open", obj + `{}}`, obj + `{"a":{"type":"string"}}}`, true},
		{"removed from closed", obj + `{"a":{"type":"string"}},"additionalProperties":false}`, `{"type":"object","additionalProperties":false}`, true},
		{"both at once", obj + `{"a":{"type":"string"}},"unevaluatedProperties":false}`, obj + `{"b":{"type":"string"}},"unevaluatedProperties":false}`, true},
		{"inside arrays and references", obj + `{"l":{"type":"array","items":{"$ref":"#/$defs/x"}}},"$defs":{"x":{"type":"object"}}}`, obj + `{"l":{"type":"array","items":{"$ref":"#/$defs/x"}}},"$defs":{"x":` + obj + `{"a":{"type":"string"}}}}}`, true},
		{"in a branch", `{"anyOf":[` + obj + `{}},{"type":"null"}]}`, `{"anyOf":[` + obj + `{"a":{"type":"string"}}},{"type":"null"}]}`, true},
		{"required into open", obj + `{}}`, obj + `{"a":{"type":"string"}},"required":["a"]}`, false},
		{"both know it, and its type changes", obj + `{"a":{"type":"string"}}}`, obj + `{"a":{"type":"integer"}}}`, false},
		{"the writer knows it as anything", obj + `{"a":{}}}`, obj + `{"a":{"type":"integer"}}}`, false},
		{"a pattern knows it", `{"type":"object","patternProperties":{"^a":{"type":"string"}}}`, obj + `{"a":{"type":"integer"}}}`, false},
		{"others are of a type", `{"type":"object","additionalProperties":{"type":"string"}}`, obj + `{"a":{"type":"integer"}}}`, false},
		{"an open object is closed", `{"type":"object"}`, `{"type":"object","additionalProperties":false}`, false},
		{"a property beside it is narrowed", obj + `{"b":{"type":"number"}}}`, obj + `{"a":{"type":"string"},"b":{"type":"integer"}}}`, false},
		{"lenience is not used to exclude", `{"type":"object","required":["a"],"not":` + obj + `{"a":{"type":"string"}}}}`, `{"type":"object","not":{"type":"object"}}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if problems := Check(compile(t, test.old), compile(t, test.next), Backward, true); (len(problems) == 0) != test.ok {
				t.Errorf("problems %+v, want compatible %v", problems, test.ok)
			}
		})
	}
}
