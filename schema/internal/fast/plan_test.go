package fast

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"promethean/event"
)

type noLoader struct{}

func (noLoader) Load(url string) (any, error) { return nil, errors.New("no loading of " + url) }

// tree compiles a schema as the registry does.
func tree(text string) (*jsonschema.Schema, error) {
	if err := event.CheckJSON([]byte(text)); err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	c.UseLoader(noLoader{})
	if err := c.AddResource("x:y", doc); err != nil {
		return nil, err
	}
	return c.Compile("x:y")
}

func mustTree(t testing.TB, text string) *jsonschema.Schema {
	t.Helper()
	s, err := tree(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

// full asks the full validator.
func full(t testing.TB, s *jsonschema.Schema, doc []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// Each case is a schema, documents that are valid under it, and others that
// are not. The full validator has to agree, so that no case can be wrong.
var cases = []struct {
	schema  string
	valid   []string
	invalid []string
}{
	{`true`, []string{`1`, ` {"a":[1,{}]} `}, nil},
	{`false`, nil, []string{`1`, `{}`}},
	{`{}`, []string{`1`, `[]`, `null`}, nil},
	{`{"type":"integer"}`, []string{`1`, `-0`, `1.0`, `1e2`, `1.50e1`, `12345678901234567890123`, `0.0`, `100e-2`, `0e-7`, `1E+2`},
		[]string{`1.5`, `1e-1`, `"1"`, `true`, `null`, `[]`, `{}`, `15e-2`}},
	{`{"type":"number"}`, []string{`1`, `1.5`, `-1e-9`}, []string{`"1"`, `null`, `[1]`}},
	{`{"type":["string","null"]}`, []string{`""`, `null`}, []string{`0`, `false`, `{}`}},
	{`{"type":["integer","boolean"]}`, []string{`3`, `true`, `false`}, []string{`3.1`, `"x"`}},
	{`{"type":"object"}`, []string{`{}`, `{"a":1}`}, []string{`[]`, `"{}"`}},
	{`{"type":"array"}`, []string{`[]`, `[[1]]`}, []string{`{}`}},
	{`{"properties":{"a":{"type":"string"},"":{"type":"null"}}}`, []string{`{}`, `{"a":"x"}`, `{"b":1}`, `[]`, `{"":null}`, "{\n \"a\" : \"x\" ,\t\"b\" : { } }"},
		[]string{`{"a":1}`, `{"b":1,"a":null}`, `{"\u0061":1}`, `{"":1}`}},
	{`{"required":["a","é"]}`, []string{`{"a":1,"é":2}`, `{"\u00e9":1,"\u0061":1,"c":{}}`, `7`}, []string{`{}`, `{"a":1}`, `{"é":1}`}},
	{`{"properties":{"a":true},"additionalProperties":false}`, []string{`{}`, `{"a":1}`, `{"\u0061":1}`}, []string{`{"b":1}`, `{"a":1,"b":2}`, `{"A":1}`}},
	{`{"properties":{"a":true},"required":["b"],"additionalProperties":false}`, nil, []string{`{"a":1,"b":1}`, `{"b":1}`, `{}`}},
	{`{"properties":{"a":true},"additionalProperties":{"type":"integer"}}`, []string{`{"a":"x","b":1}`}, []string{`{"b":"x"}`}},
	{`{"properties":{"a":true},"unevaluatedProperties":false}`, []string{`{"a":1}`}, []string{`{"b":1}`}},
	{`{"properties":{"a":{"type":"integer"}},"patternProperties":{"^x-":{"type":"string"},"a":{"minimum":3}},"additionalProperties":false}`,
		[]string{`{"x-b":"1","a":3}`, `{"ba":7}`, `{"x\u002db":""}`}, []string{`{"x-b":1}`, `{"a":2}`, `{"c":1}`, `{"x-a":2}`, `{"a":3.5}`}},
	{`{"propertyNames":{"maxLength":2,"pattern":"^[a-z]*$"}}`, []string{`{"ab":1}`, `{"":1}`, `{"\u0061":1}`}, []string{`{"abc":1}`, `{"A":1}`}},
	{`{"minProperties":1,"maxProperties":2}`, []string{`{"a":1}`, `{"a":1,"b":2}`, `[]`}, []string{`{}`, `{"a":1,"b":2,"c":3}`}},
	{`{"dependentRequired":{"a":["b","c"]}}`, []string{`{}`, `{"b":1}`, `{"a":1,"b":1,"c":1}`}, []string{`{"a":1}`, `{"a":1,"c":1}`}},
	{`{"dependentSchemas":{"a":{"required":["b"],"maxProperties":2}}}`, []string{`{"a":1,"b":1}`, `{"c":1}`}, []string{`{"a":1}`, `{"a":1,"b":1,"c":1}`}},
	{`{"items":{"type":"integer"}}`, []string{`[]`, `[1,2]`, ` [ 1 , 2 ] `, `{}`}, []string{`[1,"2"]`, `[[]]`}},
	{`{"prefixItems":[{"type":"string"},{"type":"integer"}],"items":false}`, []string{`[]`, `["a"]`, `["a",1]`}, []string{`[1]`, `["a",1,2]`}},
	{`{"prefixItems":[true],"items":{"type":"null"}}`, []string{`[1,null]`}, []string{`[null,1]`}},
	{`{"minItems":1,"maxItems":2}`, []string{`[1]`, `[1,2]`, `"x"`}, []string{`[]`, `[1,2,3]`}},
	{`{"contains":{"type":"integer"}}`, []string{`[1]`, `["a",1]`, `{}`}, []string{`[]`, `["a"]`}},
	{`{"contains":{"type":"integer"},"minContains":2,"maxContains":3}`, []string{`[1,"a",2]`}, []string{`[1]`, `[1,2,3,4]`}},
	{`{"contains":false,"minContains":0}`, []string{`[]`, `[1]`}, nil},
	{`{"uniqueItems":true}`, []string{`[]`, `[1,2]`, `[1,"1",true,null,[],{}]`, `["a","b"]`, `[0,false]`}, []string{`[1,1]`, `[1,1.0]`, `["a","\u0061"]`, `[null,null]`, `[[1],[1]]`, `[100,1e2]`}},
	{`{"enum":["a",1,null,true]}`, []string{`"a"`, `"\u0061"`, `1`, `1.0`, `10e-1`, `null`, `true`}, []string{`"b"`, `2`, `false`, `{}`, `[]`, `"1"`, `""`}},
	{`{"enum":[false,""]}`, []string{`false`, `""`}, []string{`true`, `0`, `null`}},
	{`{"enum":["a","b","c","d","e","f","g","h","i","j"]}`, []string{`"j"`, `"\u0061"`}, []string{`"k"`, `1`}},
	{`{"const":12345678901234567890}`, []string{`12345678901234567890`, `1.2345678901234567890e19`}, []string{`12345678901234567891`, `12345678901234567000`}},
	{`{"const":1,"enum":[1,2]}`, []string{`1`}, []string{`2`, `3`}},
	{`{"const":{"a":1}}`, nil, []string{`1`, `[]`, `"a"`}},
	{`{"minimum":9007199254740993}`, []string{`9007199254740993`, `9007199254740993.0`, `9007199254740993.1`, `1e30`, `"x"`}, []string{`9007199254740992`, `9007199254740992.999`, `-1e30`, `0`}},
	{`{"maximum":0.1}`, []string{`0.1`, `0.10`, `1e-1`, `0`, `-5`, `0.099999999999999999999`}, []string{`0.10000000000000000001`, `1`, `1e-0`}},
	{`{"exclusiveMinimum":0,"exclusiveMaximum":100}`, []string{`1`, `0.0001`, `99.99`, `1e-300`, `9.9e1`}, []string{`0`, `-0.0`, `100`, `1e2`, `-1`}},
	{`{"minimum":-10.5,"maximum":-1}`, []string{`-10.5`, `-1.0`, `-2`}, []string{`-10.51`, `-0.99`, `0`, `-11`}},
	{`{"multipleOf":3}`, []string{`9`, `0`, `-6`, `3e5`, `9.0`, `999999999999999999999`}, []string{`10`, `1.5`, `1000000000000000000000`}},
	{`{"multipleOf":0.01}`, []string{`19.99`, `1`, `0.1`, `1e20`, `-0.07`}, []string{`0.001`, `19.995`, `1e-3`}},
	{`{"multipleOf":2.5}`, []string{`5`, `2.5`, `7.50`}, []string{`1`, `2`, `2.55`}},
	{`{"minLength":2,"maxLength":3}`, []string{`"ab"`, `"äöü"`, `"\ud83d\ude00\ud83d\ude00"`, `"😀😀😀"`, `"\n\n"`, `5`}, []string{`"a"`, `"ä"`, `"abcd"`, `"😀"`, `"\u0061"`}},
	{`{"pattern":"^a.c$"}`, []string{`"abc"`, `"a\u0062c"`, `"aéc"`, `1`}, []string{`"ab"`, `"xabc"`, `"a\nc"`}},
	{`{"format":"date-time"}`, []string{`"2026-11-15T18:00:00Z"`, `"2026-11-15t18:00:00.123z"`, `"2026-02-28T23:59:59+01:30"`, `"2016-12-31T23:59:60Z"`, `"2024-02-29T00:00:00Z"`, `1`},
		[]string{`"2026-11-15"`, `"2026-13-15T18:00:00Z"`, `"2023-02-29T00:00:00Z"`, `"2026-11-15T24:00:00Z"`, `"2026-11-15T18:00:00"`, `"2026-04-31T18:00:00Z"`, `"2026-11-15T18:00:00.Z"`, `"2026-11-15T18:00:00+25:00"`, `""`}},
	{`{"format":"date"}`, []string{`"2024-02-29"`, `"0000-01-01"`, `"2026-12-31"`}, []string{`"2023-02-29"`, `"2026-06-31"`, `"2026-6-01"`, `"2026-00-10"`, `"2026-01-00"`}},
	{`{"format":"uuid"}`, []string{`"018f3c1e-7b1a-7c3e-9f00-0123456789AB"`}, []string{`"018f3c1e7b1a7c3e9f000123456789ab"`, `"018f3c1e-7b1a-7c3e-9f00-0123456789ag"`, `"x"`}},
	{`{"format":"email"}`, []string{`"a@example.com"`}, []string{`"a"`}},
	{`{"format":"ipv4"}`, []string{`"10.0.0.1"`}, []string{`"10.0.0.256"`}},
	{`{"$ref":"#/$defs/a","$defs":{"a":{"type":"integer"}},"minimum":3}`, []string{`3`}, []string{`2`, `3.5`}},
	{`{"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/n"}},"required":["v"]}},"$ref":"#/$defs/n"}`,
		[]string{`{"v":1}`, `{"v":1,"next":{"v":2,"next":{"v":3}}}`}, []string{`{"v":1,"next":{"v":"2"}}`, `{"next":{"v":1}}`}},
	{`{"allOf":[{"minimum":1},{"maximum":5}]}`, []string{`3`, `"x"`}, []string{`0`, `6`}},
	{`{"anyOf":[{"type":"string"},{"minimum":5,"type":"number"}]}`, []string{`"x"`, `7`}, []string{`3`, `null`}},
	{`{"oneOf":[{"type":"integer"},{"minimum":5}]}`, []string{`3`, `5.5`, `"x"`}, []string{`7`, `2.5`}},
	{`{"not":{"type":"string"}}`, []string{`1`}, []string{`"x"`}},
	{`{"not":{"required":["a"]},"properties":{"b":{"not":{}}}}`, []string{`{}`, `{"c":1}`}, []string{`{"a":1}`, `{"b":1}`}},
	{`{"if":{"properties":{"k":{"const":"a"}},"required":["k"]},"then":{"required":["x"]},"else":{"required":["y"]}}`,
		[]string{`{"k":"a","x":1}`, `{"k":"b","y":1}`}, []string{`{"k":"a","y":1}`, `{"x":1}`}},
	{`{"oneOf":[{"properties":{"t":{"const":"a"},"v":{"type":"array","items":{"type":"object","required":["q"]}}}},{"properties":{"t":{"const":"b"}}}]}`,
		[]string{`{"t":"a","v":[{"q":1}]}`, `{"t":"b"}`}, []string{`{"t":"a","v":[{}]}`, `{"t":"c"}`}},
}

func TestCases(t *testing.T) {
	for _, c := range cases {
		s := mustTree(t, c.schema)
		p := Compile(s)
		if p == nil {
			t.Errorf("%s is not covered", c.schema)
			continue
		}
		for _, doc := range c.valid {
			if err := full(t, s, []byte(doc)); err != nil {
				t.Errorf("the case is wrong: %s: %s: %v", c.schema, doc, err)
			}
			if !p.Valid([]byte(doc)) {
				t.Errorf("%s: %s is valid", c.schema, doc)
			}
		}
		for _, doc := range c.invalid {
			if full(t, s, []byte(doc)) == nil {
				t.Errorf("the case is wrong: %s: %s is valid", c.schema, doc)
			}
			if p.Valid([]byte(doc)) {
				t.Errorf("%s: %s is not valid", c.schema, doc)
			}
		}
	}
}

// What cannot be decided is left open, also under a "not", where a plain no
// would become a yes.
func TestUndecided(t *testing.T) {
	for schema, doc := range map[string]string{
		`{"const":{"a":1}}`:                  `{"a":1}`,
		`{"not":{"const":{"a":1}}}`:          `{"a":1}`,
		`{"not":{"enum":[[1]]}}`:             `[1]`,
		`{"uniqueItems":true}`:               `[{"a":1,"b":2},{"b":2,"a":1}]`,
		`{"not":{"uniqueItems":true}}`:       `[{"a":1,"b":2},{"b":2,"a":1.5}]`,
		`{"not":{"type":"integer"}}`:         `1e100001`,
		`{"oneOf":[true,{"const":{"a":1}}]}`: `{"a":1}`,
		`{"if":{"const":[]},"else":false}`:   `[]`,
		`{"not":{"contains":{"const":[]}}}`:  `[[]]`,
		`{"not":{"multipleOf":7}}`:           `7777777777777777777777.0000000000000000000001`,
	} {
		p := Compile(mustTree(t, schema))
		if p == nil {
			t.Errorf("%s is not covered", schema)
		} else if p.Valid([]byte(doc)) {
			t.Errorf("%s: %s was decided", schema, doc)
		}
	}
}

func TestNotCovered(t *testing.T) {
	names := make([]string, 300)
	for i := range names {
		names[i] = fmt.Sprintf(`"n%d"`, i)
	}
	for _, schema := range []string{
		`{"$ref":"#"}`,
		`{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"anyOf":[{"$ref":"#"}]}}}`,
		`{"dependentSchemas":{"a":{"$ref":"#"}}}`,
		`{"$dynamicRef":"#x","$defs":{"x":{"$dynamicAnchor":"x"}}}`,
		`{"unevaluatedItems":false}`,
		`{"allOf":[{"properties":{"a":true}}],"unevaluatedProperties":false}`,
		`{"properties":{"deep":{"items":{"unevaluatedItems":false}}}}`,
		`{"required":[` + strings.Join(names, ",") + `]}`,
		`{"$schema":"http://json-schema.org/draft-07/schema#","type":"string"}`,
	} {
		if Compile(mustTree(t, schema)) != nil {
			t.Errorf("%s is covered", schema)
		}
	}
}

// A schema that doubles its work with every level gives up instead.
func TestWorkIsBounded(t *testing.T) {
	p := Compile(mustTree(t, `{"$defs":{"a":{"properties":{"x":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}]}},"not":{"required":["y"]}}},"$ref":"#/$defs/a"}`))
	if p == nil {
		t.Fatal("not covered")
	}
	doc := strings.Repeat(`{"x":`, 60) + `{"y":1}` + strings.Repeat(`}`, 60)
	if p.Valid([]byte(doc)) {
		t.Fatal("valid")
	}
	deep := Compile(mustTree(t, `{"items":{"$ref":"#"}}`))
	if deep == nil || deep.Valid([]byte(strings.Repeat("[", 5000)+strings.Repeat("]", 5000))) {
		t.Fatal("went too deep")
	}
	if doc := strings.Repeat("[", 400) + strings.Repeat("]", 400); !deep.Valid([]byte(doc)) {
		t.Fatal("400 levels are not much")
	}
}

func TestManyNames(t *testing.T) {
	props := make(map[string]any)
	var required []string
	doc := make(map[string]any)
	for i := range 256 {
		name := fmt.Sprintf("n%03d", i)
		props[name] = map[string]any{"const": i}
		required = append(required, name)
		doc[name] = i
	}
	schema, _ := json.Marshal(map[string]any{"properties": props, "required": required, "additionalProperties": false})
	p := Compile(mustTree(t, string(schema)))
	text, _ := json.Marshal(doc)
	if p == nil || !p.Valid(text) {
		t.Fatal("256 names")
	}
	for _, name := range required {
		one := doc[name]
		delete(doc, name)
		text, _ = json.Marshal(doc)
		if p.Valid(text) {
			t.Fatalf("%s is missing", name)
		}
		doc[name] = one
	}
}
