package sample

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compile(t testing.TB, text string) *jsonschema.Schema {
	t.Helper()
	s, err := tryCompile(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

func tryCompile(text string) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	c.UseLoader(nothing{})
	if err := c.AddResource("test:schema", doc); err != nil {
		return nil, err
	}
	return c.Compile("test:schema")
}

type nothing struct{}

func (nothing) Load(url string) (any, error) { return nil, fmt.Errorf("no %s", url) }

const heartbeat = `{"type":"object","required":["pid","name","cpu"],"properties":{"pid":{"type":"integer","minimum":1},"name":{"type":"string","minLength":1},
	"cpu":{"type":"number","minimum":0,"maximum":100},"mem":{"type":"number"},"host":{"type":"string","format":"hostname"}}}`

func TestMakerMakesValidDocuments(t *testing.T) {
	formats := []string{"json-pointer", "relative-json-pointer", "uuid", "duration", "period", "ipv4", "ipv6", "hostname", "email", "date", "time", "date-time", "uri", "iri", "uri-reference", "iri-reference", "uri-template", "semver", "regex"}
	list := []string{
		`true`, `{}`, heartbeat,
		`{"type":"integer","minimum":3,"maximum":3}`,
		`{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1}`,
		`{"type":"integer","multipleOf":7,"minimum":100,"maximum":120}`,
		`{"type":"number","multipleOf":0.01}`,
		`{"type":"string","minLength":50,"maxLength":50}`,
		`{"type":"string","pattern":"^[a-z]{2,4}-\\d+$"}`,
		`{"type":"string","pattern":"foo|bar$","minLength":10}`,
		`{"type":"string","pattern":"^v(0|[1-9]\\d*)(\\.(0|[1-9]\\d*)){2}$"}`,
		`{"enum":["a",1,null,{"x":[1]}]}`, `{"const":12345678901234567890}`,
		`{"type":["null","string"],"maxLength":0}`,
		`{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":5,"uniqueItems":true}`,
		`{"type":"array","prefixItems":[{"type":"string"},{"const":1}],"items":false}`,
		`{"type":"array","contains":{"type":"string","minLength":3},"minContains":2,"minItems":2}`,
		`{"type":"object","additionalProperties":{"type":"boolean"},"minProperties":3}`,
		`{"type":"object","patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":false,"minProperties":1}`,
		`{"type":"object","properties":{"a":true},"unevaluatedProperties":false}`,
		`{"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"minProperties":1}`,
		`{"type":"object","properties":{"kind":{"enum":["a","b"]}},"required":["kind"],"if":{"properties":{"kind":{"const":"a"}}},"then":{"required":["x"]},"else":{"required":["y"]}}`,
		`{"type":"object","dependentRequired":{"card":["billing"]},"properties":{"card":{"type":"string"},"billing":{"type":"string"}}}`,
		`{"type":"object","dependentSchemas":{"a":{"required":["b"],"properties":{"b":{"type":"integer"}}}},"properties":{"a":true}}`,
		`{"anyOf":[{"type":"string","maxLength":3},{"type":"integer","minimum":10}]}`,
		`{"oneOf":[{"type":"integer","multipleOf":3},{"type":"integer","multipleOf":5}]}`,
		`{"allOf":[{"required":["a"]},{"required":["b"]},{"properties":{"a":{"minimum":1},"b":{"maximum":2}}}],"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"number"}}}`,
		`{"type":"integer","not":{"minimum":0,"maximum":10}}`,
		`{"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","required":["value"],"properties":{"value":{"type":"integer"},"children":{"type":"array","items":{"$ref":"#/$defs/tree"}}}}}}`,
		`{"$ref":"#/$defs/list","$defs":{"list":{"anyOf":[{"type":"null"},{"type":"object","required":["next"],"properties":{"next":{"$ref":"#/$defs/list"}}}]}}}`,
	}
	for _, f := range formats {
		list = append(list, fmt.Sprintf(`{"type":"string","format":%q}`, f))
	}
	for _, text := range list {
		t.Run(text, func(t *testing.T) {
			s := compile(t, text)
			m, again := New(s, 7), New(s, 7)
			begin := time.Now()
			different := make(map[string]bool)
			for i := range 200 {
				doc, ok := m.Next()
				if !ok {
					t.Fatalf("document %d could not be made", i)
				}
				v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
				if err != nil {
					t.Fatalf("%s: %v", doc, err)
				}
				if err := s.Validate(v); err != nil {
					t.Fatalf("%s: %v", doc, err)
				}
				if other, _ := again.Next(); !bytes.Equal(doc, other) {
					t.Fatalf("the same seed gave %s and %s", doc, other)
				}
				if len(doc) > 200_000 {
					t.Errorf("a document has %d bytes", len(doc))
				}
				different[string(doc)] = true
			}
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("400 documents took %v", took)
			}
			small := strings.Contains(text, `"const":1234`) || strings.Contains(text, `"maximum":3}`) || strings.Contains(text, `"maxLength":0`) ||
				strings.Contains(text, `"maximum":120`) || strings.Contains(text, `"enum":["a",1`)
			if !small && len(different) < 8 {
				t.Errorf("200 documents are %d different ones", len(different))
			}
		})
	}
}

// TestMakerIsDiverse asks for what a person would forget to try.
func TestMakerIsDiverse(t *testing.T) {
	m := New(compile(t, heartbeat), 3)
	type doc = map[string]json.RawMessage
	wants := map[string]func(doc) bool{
		"pid at its limit":       func(d doc) bool { return string(d["pid"]) == "1" },
		"pid beyond 2^53":        func(d doc) bool { return len(d["pid"]) > 15 },
		"cpu at its upper limit": func(d doc) bool { return string(d["cpu"]) == "100" },
		"cpu a fraction": func(d doc) bool {
			return bytes.Contains(d["cpu"], []byte(".")) && !bytes.HasSuffix(d["cpu"], []byte(".0"))
		},
		"a whole number with .0":        func(d doc) bool { return bytes.HasSuffix(d["cpu"], []byte(".0")) },
		"mem below zero":                func(d doc) bool { return bytes.HasPrefix(d["mem"], []byte("-")) },
		"mem missing":                   func(d doc) bool { return d["mem"] == nil },
		"mem there":                     func(d doc) bool { return d["mem"] != nil },
		"a long name":                   func(d doc) bool { return len(d["name"]) > 150 },
		"a name that is not ASCII":      func(d doc) bool { return bytes.ContainsFunc(d["name"], func(r rune) bool { return r > 127 }) },
		"nothing but what is required":  func(d doc) bool { return len(d) == 3 },
		"a property that nobody knows":  func(d doc) bool { return len(unknown(d)) > 0 },
		"several that nobody knows":     func(d doc) bool { return len(unknown(d)) > 1 },
		"an unknown property with null": func(d doc) bool { return anyUnknown(d, "null") },
		"an unknown object":             func(d doc) bool { return anyUnknown(d, "{") },
	}
	names := make(map[string]bool)
	for range 1500 {
		text, ok := m.Next()
		if !ok {
			t.Fatal("no document")
		}
		var d doc
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		for _, name := range unknown(d) {
			names[name] = true
		}
		for what, has := range wants {
			if has(d) {
				delete(wants, what)
			}
		}
	}
	for what := range wants {
		t.Errorf("no document had %s", what)
	}
	if len(names) < 50 {
		t.Errorf("unknown properties had %d names", len(names))
	}
}

func unknown(d map[string]json.RawMessage) (names []string) {
	for name := range d {
		if !strings.Contains(heartbeat, `"`+name+`":`) {
			names = append(names, name)
		}
	}
	return names
}

func anyUnknown(d map[string]json.RawMessage, begin string) bool {
	for _, name := range unknown(d) {
		if bytes.HasPrefix(d[name], []byte(begin)) {
			return true
		}
	}
	return false
}

// TestMakerUsesHints: a document that the other schema refuses is found only with
// that one's names.
func TestMakerUsesHints(t *testing.T) {
	old := compile(t, `{"type":"object"}`)
	next := compile(t, `{"type":"object","properties":{"quiteUnlikely":{"type":"integer","maximum":77}}}`)
	m := New(old, 1)
	m.Hint(next)
	for range 300 {
		if v, ok := m.Value(); ok && next.Validate(v) != nil {
			return
		}
	}
	t.Error("no document shows the difference")
}

func TestMakerGivesUp(t *testing.T) {
	for _, text := range []string{
		`false`, `{"type":"string","minLength":3,"maxLength":2}`, `{"allOf":[{"type":"string"},{"type":"integer"}]}`,
		`{"type":"object","required":["a"],"properties":{"a":{"$ref":"#"}}}`, `{"type":"array","minItems":100000}`, `{"type":"string","minLength":1000000}`,
		`{"$ref":"#"}`, `{"not":{}}`, `{"type":"array","minItems":2,"items":{"$ref":"#"}}`, `{"type":"integer","minimum":0.1,"maximum":0.9}`,
	} {
		begin := time.Now()
		if doc, ok := New(compile(t, text), 1).Next(); ok {
			t.Errorf("%s: made %s", text, doc)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s: took %v to give up", text, took)
		}
	}
}

func TestEndless(t *testing.T) {
	for _, test := range []struct {
		schema, pointer string
		endless         bool
	}{
		{`true`, "", false},
		{`false`, "", false},
		{`{}`, "", false},
		{heartbeat, "", false},
		{`{"type":"object","required":["a"],"properties":{"a":{"$ref":"#"}}}`, "", true},
		{`{"required":["a"],"properties":{"a":{"$ref":"#"}}}`, "", false}, // a string will do
		{`{"type":"object","properties":{"a":{"$ref":"#"}}}`, "", false},
		{`{"type":"object","required":["a"],"properties":{"a":{"anyOf":[{"$ref":"#"},{"type":"null"}]}}}`, "", false},
		{`{"type":"object","required":["a"],"properties":{"a":{"anyOf":[{"$ref":"#"},false]}}}`, "", true},
		{`{"type":"object","required":["a"],"properties":{"a":false}}`, "", false}, // impossible, but not by going round
		{`{"type":"array","items":{"$ref":"#"}}`, "", false},
		{`{"type":"array","items":{"$ref":"#"},"minItems":1}`, "", true},
		{`{"type":"array","prefixItems":[{"$ref":"#"}],"minItems":1}`, "", true},
		{`{"type":"array","contains":{"$ref":"#"}}`, "", true},
		{`{"type":"array","contains":{"$ref":"#"},"minContains":0}`, "", false},
		{`{"type":"object","required":["x"],"properties":{"x":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"object","required":["y"],"properties":{"y":{"$ref":"#/$defs/n"}}}}}`, "/$defs/n", true},
		{`{"type":"object","required":["x"],"properties":{"x":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"array","minItems":1,"items":{"$ref":"#/$defs/b"}},"b":{"allOf":[{"$ref":"#/$defs/a"}]}}}`, "", true},
		{`{"type":"object","required":["n"],"additionalProperties":{"$ref":"#"}}`, "", true},
		{`{"type":"object","required":["n"],"patternProperties":{"^n":{"$ref":"#"}}}`, "", true},
		{`{"oneOf":[{"type":"object","required":["n"],"properties":{"n":{"$ref":"#"}}},{"type":"array","minItems":2,"items":{"$ref":"#"}}]}`, "", true},
		{`{"const":{"a":1},"required":["a"],"properties":{"a":{"$ref":"#"}}}`, "", false},
		{`{"$ref":"#"}`, "", true},
	} {
		pointer, endless := Endless(compile(t, test.schema))
		if endless != test.endless || test.pointer != "" && pointer != test.pointer {
			t.Errorf("Endless(%s) = %q, %v", test.schema, pointer, endless)
		}
	}
}

func FuzzMaker(f *testing.F) {
	f.Add(heartbeat, uint64(1))
	f.Add(`{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#"},{"type":"string","pattern":"a{3}"}]}}}`, uint64(2))
	f.Add(`{"type":"array","contains":{"multipleOf":0.3},"minContains":3,"unevaluatedItems":false}`, uint64(3))
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		if len(text) > 2000 {
			return
		}
		s, err := tryCompile(text)
		if err != nil {
			return
		}
		Endless(s)
		m := New(s, seed)
		for range 3 {
			doc, ok := m.Next()
			if !ok {
				return
			}
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(v); err != nil {
				t.Errorf("%s under %s: %v", doc, text, err)
			}
		}
	})
}

func TestBurden(t *testing.T) {
	double := `{"$ref":"#/$defs/d0","$defs":{`
	for i := range 30 {
		double += fmt.Sprintf(`"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	double += `"d30":{"type":"object"}}}`
	for _, test := range []struct {
		schema    string
		low, high int
	}{
		{`{}`, 1, 1},
		{heartbeat, 1, 1},
		{`{"allOf":[{},{"anyOf":[{},{}]}]}`, 5, 5},
		{`{"properties":{"a":{"oneOf":[{},{},{}]}}}`, 4, 4},
		{`{"properties":{"a":{"$ref":"#"}}}`, 2, 2},
		{`{"anyOf":[{"$ref":"#"},{}]}`, MaxBurden + 1, 1 << 31},
		{double, MaxBurden + 1, 1 << 31},
	} {
		n, _ := Burden(compile(t, test.schema))
		if n < test.low || n > test.high {
			t.Errorf("Burden(%.60s) = %d", test.schema, n)
		}
	}
	begin := time.Now()
	if doc, ok := New(compile(t, double), 1).Next(); ok {
		t.Errorf("a document was made, and validated for %v: %s", time.Since(begin), doc)
	}
	// Looked at twice on each level: deep documents would take for ever.
	m := New(compile(t, `{"type":"object","allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`), 1)
	for range 50 {
		if _, ok := m.Next(); !ok {
			t.Fatal("no document")
		}
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}
