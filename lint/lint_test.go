package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"promethean/schema"
)

func TestAllows(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		allowed          []int // lines
		bad              []string
	}{
		{"the same line", "a.go", "x\ny //promethean:allow why\nz", []int{2}, nil},
		{"the next line", "a.go", "x\n\t//promethean:allow why\nz\nq", []int{2, 3}, nil},
		{"past other comments", "a.ts", "// promethean:allow why\n// more\nz\nq", []int{1, 2, 3}, nil},
		{"a block", "a.tsx", "  {/* promethean:allow why */}\nz\nq", []int{1, 2}, nil},
		{"YAML", "a.yaml", "a: {} # promethean:allow why\nb: {}", []int{1}, nil},
		{"a schema", "v1.json", "{\n\"$comment\": \"promethean:allow why\"\n}", []int{1, 2, 3}, nil},
		{"no reason", "a.go", "x //promethean:allow\ny //promethean:allow  \nz /* promethean:allow */", nil, []string{"allow-reason 1:3", "allow-reason 2:3", "allow-reason 3:3"}},
		{"no reason in a schema", "v1.json", `{"$comment": "promethean:allow"}`, nil, []string{"allow-reason 1:2"}},
		{"unused", "a.go", "é //promethean:allow why\n", nil, []string{"allow-unused 1:3"}},
		{"another word", "a.go", "x //promethean:allowed why\n", nil, nil},
		{"a text is no comment in Go", "a.go", "x(\"//promethean:allow why\")\n`\n//promethean:allow why\n`", nil, nil},
		{"a comment about such comments", "a.go", "//\tx //promethean:allow why\n", nil, nil},
		{"a comment of several lines", "a.ts", "/**\n * x // promethean:allow why\n */", nil, nil},
		{"CRLF", "a.ts", "x // promethean:allow\r\ny // promethean:allow why\r\n", []int{2}, []string{"allow-reason 1:3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := FindAllows(c.file, []byte(c.text))
			var list []Finding
			if len(c.allowed) > 0 {
				for i := range strings.Count(c.text, "\n") + 1 {
					list = append(list, Finding{Position: Position{File: c.file, Line: i + 1}})
				}
			}
			before := len(list)
			list = a.Filter(list)
			if len(list) != before-len(c.allowed) {
				t.Errorf("of %d findings %d are left", before, len(list))
			}
			for _, f := range list {
				if slices.Contains(c.allowed, f.Line) {
					t.Errorf("line %d is not allowed", f.Line)
				}
			}
			var bad []string
			for _, f := range append(a.Unreasoned(), a.Unused()...) {
				bad = append(bad, fmt.Sprintf("%s %d:%d", f.Rule, f.Line, f.Column))
			}
			if !slices.Equal(bad, c.bad) {
				t.Errorf("got %q, want %q", bad, c.bad)
			}
		})
	}
}

// Whatever stands in a file: comments are inside of it, one without a reason
// allows nothing, and one is reported once.
func FuzzAllows(f *testing.F) {
	f.Add("a.go", "x //promethean:allow why\n//promethean:allow\ny")
	f.Add("v1.json", "{\"$comment\": \"promethean:allow é\"}")
	f.Add("a.yaml", "# promethean:allow a\r\n#promethean:allow\n\n")
	f.Fuzz(func(t *testing.T, file, text string) {
		a := FindAllows(file, []byte(text))
		lines := strings.Split(text, "\n")
		for _, f := range append(a.Unreasoned(), a.Unused()...) {
			if f.Line < 1 || f.Line > len(lines) || f.Column < 1 || f.Column > len([]rune(lines[f.Line-1])) {
				t.Errorf("%v is outside of %q", f.Position, text)
			}
		}
		n, unreasoned := strings.Count(text, mark), len(a.Unreasoned())
		if unreasoned+len(a.Unused()) > n {
			t.Errorf("more than %d comments in %q", n, text)
		}
		var all []Finding
		for i := range lines {
			all = append(all, Finding{Position: Position{File: file, Line: i + 1}})
		}
		if left := a.Filter(all); unreasoned == len(a.list) && len(left) != len(all) {
			t.Errorf("something was allowed without a reason in %q", text)
		}
	})
}

// newTopic makes a topic known by the texts of its versions.
func newTopic(t *testing.T, k *Known, topic string, versions ...string) []Finding {
	t.Helper()
	dir := t.TempDir()
	for i, text := range versions {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("v%d.json", i+1)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return k.ReadTopic(topic, dir)
}

func object(open bool, fields ...Field) *Shape {
	return &Shape{Type: "object", Open: open, Fields: fields}
}

func TestPayload(t *testing.T) {
	str, num := &Shape{Type: "string"}, &Shape{Type: "number"}
	for _, c := range []struct {
		name, schema string
		payload      *Shape
		kind         Kind
		want         []string
	}{
		{"fits", `{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`, object(false, Field{Name: "a", Shape: str}), Publish, nil},
		{"not known", `{"type":"object","required":["a"]}`, nil, Publish, nil},
		{"another type", `{"type":"object"}`, str, Publish, []string{"payload-type error"}},
		{"of two types", `{"type":["object","null"],"properties":{"a":{"type":["string","null"]}}}`, object(false, Field{Name: "a", Shape: str}), Publish, nil},
		{"a number may be whole", `{"properties":{"a":{"type":"integer"}}}`, object(false, Field{Name: "a", Shape: num}), Publish, nil},
		{"unknown in an open one", `{"properties":{"a":true}}`, object(false, Field{Name: "b"}), Publish, []string{"payload-unknown warning"}},
		{"unknown in a closed one", `{"properties":{"a":true},"additionalProperties":false}`, object(false, Field{Name: "b"}), Publish, []string{"payload-unknown error"}},
		{"unknown where all are evaluated", `{"allOf":[{"properties":{"a":true}}],"unevaluatedProperties":false}`, object(false, Field{Name: "a"}, Field{Name: "b"}), Publish, []string{"payload-unknown error"}},
		{"a schema that names nothing", `{"type":"object"}`, object(false, Field{Name: "b"}), Publish, nil},
		{"a pattern knows it", `{"properties":{"a":true},"patternProperties":{"^b":{"type":"string"}},"additionalProperties":false}`, object(false, Field{Name: "b1", Shape: num}), Publish, []string{"payload-type error"}},
		{"additional ones have a schema", `{"properties":{"a":true},"additionalProperties":{"type":"string"}}`, object(false, Field{Name: "b", Shape: num}), Publish, []string{"payload-type error"}},
		{"missing", `{"required":["a"]}`, object(false), Publish, []string{"payload-missing error"}},
		{"perhaps missing", `{"required":["a"]}`, object(true), Publish, nil},
		{"omitted", `{"required":["a"],"properties":{"a":true}}`, object(false, Field{Name: "a", Optional: "omitempty"}), Publish, []string{"payload-missing error"}},
		{"through references", `{"$ref":"#/$defs/o","$defs":{"o":{"required":["a"],"properties":{"a":{"type":"string"}}}}}`, object(false, Field{Name: "a", Shape: num}), Publish, []string{"payload-type error"}},
		{"one of several is not judged", `{"oneOf":[{"properties":{"a":{"type":"string"}},"required":["a"]},{"properties":{"b":true},"required":["b"]}]}`, object(false, Field{Name: "a", Shape: num}), Publish, nil},
		{"nested", `{"properties":{"l":{"type":"array","items":{"required":["a"],"properties":{"a":true}}}}}`, object(false, Field{Name: "l", Shape: &Shape{Type: "array", Items: object(false, Field{Name: "b"})}}), Publish, []string{"payload-unknown warning", "payload-missing error"}},
		{"recursive", `{"properties":{"next":{"$ref":"#"}},"additionalProperties":false}`, object(false, Field{Name: "next", Shape: object(false, Field{Name: "x"})}), Publish, []string{"payload-unknown error"}},
		{"a reader leaves out", `{"required":["a"],"properties":{"a":true,"b":true}}`, object(false, Field{Name: "B"}), Subscribe, nil},
		{"a reader of what is not there", `{"properties":{"a":true},"additionalProperties":false}`, object(false, Field{Name: "b"}), Subscribe, []string{"payload-unknown warning"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := NewKnown()
			if bad := newTopic(t, k, "a.b", c.schema); len(bad) > 0 {
				t.Fatal(bad)
			}
			var got []string
			for _, f := range k.Judge(Use{Kind: c.kind, Topic: "a.b", Payload: c.payload}) {
				got = append(got, f.Rule+" "+string(f.Severity))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	k := NewKnown()
	newTopic(t, k, "orders.placed", `{"required":["a"]}`, `{"required":["a","b"]}`)
	k.Note(Use{Kind: Register, Topic: "orders.code"})
	if err := k.Allow("internal.**"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		use  Use
		want string
	}{
		{Use{Kind: Publish, Topic: "orders.placed"}, ""},
		{Use{Kind: Publish, Topic: "orders.code"}, ""},
		{Use{Kind: Publish, Topic: "orders.place"}, "topic orders.place has no schema; orders.placed has one"},
		{Use{Kind: Subscribe, Topic: "orders.lost"}, "topic orders.lost has no schema"},
		{Use{Kind: Configure, Topic: "orders.lost"}, "topic orders.lost has no schema"},
		{Use{Kind: Mention, Topic: "orders.lost"}, ""},
		{Use{Kind: Publish, Topic: "orders.lost.v3"}, ""},
		{Use{Kind: Publish, Topic: "internal.a.b"}, ""},
		{Use{Kind: Subscribe, Topic: "dlq.orders.placed"}, ""},
		{Use{Kind: Publish, Topic: "system.x"}, "topic system.x: only the hub itself writes under dlq. and system."},
		{Use{Kind: Subscribe, Topic: "orders.*"}, ""},
		{Use{Kind: Publish, Topic: "orders.*"}, `topic: must be segments of a-z and 0-9 joined by single dots, found "orders.*"`},
		// A versioned topic has the schema of that version.
		{Use{Kind: Publish, Topic: "orders.placed.v1", Payload: object(false, Field{Name: "a"})}, ""},
		{Use{Kind: Publish, Topic: "orders.placed.v2", Payload: object(false, Field{Name: "a"})}, "the payload has no field b, which version 2 of topic orders.placed requires"},
		// So has an event that is stamped with it.
		{Use{Kind: Publish, Topic: "orders.placed", Version: 1, Payload: object(false, Field{Name: "a"})}, ""},
		{Use{Kind: Publish, Topic: "orders.placed", Version: 2, Payload: object(false, Field{Name: "a"})}, "the payload has no field b, which version 2 of topic orders.placed requires"},
		{Use{Kind: Publish, Topic: "orders.placed", Version: ParseVersion("x", true), Payload: object(false)}, ""},
	} {
		var got []string
		for _, f := range k.Judge(c.use) {
			got = append(got, f.Message)
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%s %s: got %q, want %q", c.use.Kind, c.use.Topic, got, c.want)
		}
	}
	k.Partial = true
	if list := k.Judge(Use{Kind: Publish, Topic: "orders.lost"}); len(list) > 0 {
		t.Errorf("where schemas are not known: %v", list)
	}
}

func TestDead(t *testing.T) {
	k := NewKnown()
	for _, topic := range []string{"a.used", "a.read", "a.versioned", "b.fits", "a.dead", "a.outside"} {
		newTopic(t, k, topic, "true")
	}
	for _, topic := range []string{"a.used", "dlq.a.read", "a.versioned.v1", "b.*", "a.deed"} {
		k.Note(Use{Kind: Mention, Topic: topic})
	}
	list := k.Dead(func(file string) bool { return file != k.topics["a.outside"].versions[0].file })
	if len(list) != 1 || list[0].Message != "no source and no configuration names topic a.dead; a.deed is used and has no schema" {
		t.Errorf("dead are %v", list)
	}
}

func TestSchemaPlaces(t *testing.T) {
	text := []byte("{\n  \"a\": {\n    \"b\": [1,\n      2]\n  }\n}")
	for pointer, want := range map[string]string{"": "1:1", "/a": "2:3", "/a/b": "3:5", "/a/b/1": "4:7", "/a/b/7": "3:5", "/x": "1:1"} {
		at := pointerAt("f", text, pointer)
		if got := fmt.Sprintf("%d:%d", at.Line, at.Column); got != want {
			t.Errorf("%q is at %s, want %s", pointer, got, want)
		}
	}
	k := NewKnown()
	list := newTopic(t, k, "a.b", "{\n  \"a\": 1,\n  \"a\": 2}", "{\n\"properties\": {\n \"x\": {\"type\": \"text\"}}}", "{\n\"x-compat\": \"some\"}")
	var at []string
	for _, f := range list {
		at = append(at, fmt.Sprintf("%s %s:%d", f.Rule, filepath.Base(f.File), f.Line))
	}
	if want := []string{"schema-invalid v1.json:3", "schema-invalid v2.json:3", "schema-invalid v3.json:2"}; !slices.Equal(at, want) {
		t.Errorf("got %q, want %q", at, want)
	}
}

func TestHeaders(t *testing.T) {
	for name, fix := range map[string]string{
		"x-source": "", "content-type": "", "traceparent": "",
		"Source": `write "x-source"`, "X-Schema_Version": `write "x-schema-version"`, "Content-Type": `write "content-type"`,
		"é": ruleOf(HeaderName).Help, "": ruleOf(HeaderName).Help,
	} {
		list := JudgeHeader(Header{Name: name})
		if fix == "" && len(list) > 0 || fix != "" && (len(list) != 1 || list[0].Fix != fix) {
			t.Errorf("%q: %+v", name, list)
		}
	}
}

// The parts of SARIF that readers insist on.
func TestSARIF(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, SARIF, []Finding{
		NewFinding(TopicName, Position{File: "a b/c.go", Line: 3, Column: 4}, "wrong"),
		NewFinding(SchemaDead, Position{File: "dir"}, "dead"),
	}); err != nil {
		t.Fatal(err)
	}
	// The keywords of the official schema that apply, as a schema of our own.
	s, err := schema.Parse(json.RawMessage(`{
		"type": "object", "required": ["version", "runs"],
		"properties": {
			"version": {"const": "2.1.0"},
			"$schema": {"type": "string", "format": "uri"},
			"runs": {"type": "array", "minItems": 1, "items": {
				"type": "object", "required": ["tool", "results"], "additionalProperties": false,
				"properties": {
					"columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
					"tool": {"type": "object", "required": ["driver"], "properties": {"driver": {
						"type": "object", "required": ["name", "rules"],
						"properties": {"name": {"type": "string", "minLength": 1}, "rules": {"type": "array", "uniqueItems": true, "items": {
							"type": "object", "required": ["id", "shortDescription", "help", "defaultConfiguration"], "additionalProperties": false,
							"properties": {
								"id": {"type": "string"}, "shortDescription": {"$ref": "#/$defs/text"}, "help": {"$ref": "#/$defs/text"},
								"defaultConfiguration": {"type": "object", "properties": {"level": {"$ref": "#/$defs/level"}}}
							}}}}
					}}},
					"results": {"type": "array", "items": {
						"type": "object", "required": ["ruleId", "ruleIndex", "level", "message", "locations"], "additionalProperties": false,
						"properties": {
							"ruleId": {"type": "string"}, "ruleIndex": {"type": "integer", "minimum": 0}, "level": {"$ref": "#/$defs/level"},
							"message": {"$ref": "#/$defs/text"},
							"locations": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {"physicalLocation": {
								"type": "object", "required": ["artifactLocation"], "properties": {
									"artifactLocation": {"type": "object", "properties": {"uri": {"type": "string", "format": "uri-reference"}}},
									"region": {"type": "object", "required": ["startLine"], "properties": {
										"startLine": {"type": "integer", "minimum": 1}, "startColumn": {"type": "integer", "minimum": 1}
									}}}}}}}
						}}}
				}}}
		},
		"$defs": {
			"text": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}},
			"level": {"enum": ["none", "note", "warning", "error"]}
		}
	}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range s.Check(b.Bytes()) {
		t.Errorf("%s: %s", e.Path, e.Message)
	}
	var got sarifReport
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	run := got.Runs[0]
	for _, r := range run.Results {
		if run.Tool.Driver.Rules[r.RuleIndex].ID != r.RuleID {
			t.Errorf("rule %d is not %s", r.RuleIndex, r.RuleID)
		}
	}
	if uri := run.Results[0].Locations[0].Physical.Artifact.URI; uri != "a%20b/c.go" {
		t.Errorf("the file is %s", uri)
	}
	if run.Results[1].Locations[0].Physical.Region != nil {
		t.Error("a directory has a region")
	}
	b.Reset()
	if err := Write(&b, SARIF, nil); err != nil || !strings.Contains(b.String(), `"results": []`) {
		t.Errorf("nothing found: %v\n%s", err, b.String())
	}
}

func TestTextIsForPeople(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, Text, []Finding{{Rule: "r", Severity: Warning, Position: Position{File: "f\x1b[1m"}, Message: "a\x1b", Fix: "b\n"}}); err != nil {
		t.Fatal(err)
	}
	if want := "f\uFFFD[1m: warning: a\uFFFD [r]\n    fix: b\uFFFD\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}
