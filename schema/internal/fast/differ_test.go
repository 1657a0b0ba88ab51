package fast

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"promethean/event"
)

// The generators draw from small sets, so that documents are often valid and
// often just not.
var (
	genNames   = []string{"a", "b", "c", "é", "x-y", ""}
	genTexts   = []string{"", "a", "b", "ab", "äö", "😀", "a\nb", "\"", "2026-11-15T18:00:00Z", "2023-02-29", "018f3c1e-7b1a-7c3e-9f00-0123456789ab"}
	genNumbers = []string{"0", "1", "-1", "2", "3", "10", "1.0", "1.5", "0.1", "0.10", "1e1", "1e-1", "-0", "9007199254740993", "9007199254740992", "12345678901234567890", "1E2", "0.30", "100e-2"}
	genTypes   = []string{"null", "boolean", "integer", "number", "string", "array", "object"}
	positive   = []string{"1", "2", "0.1", "1.5", "3", "0.01", "1e1"}
)

func quoted(t *rapid.T, s string) string {
	text, _ := json.Marshal(s)
	if s != "" && rapid.IntRange(0, 4).Draw(t, "escape") == 0 && s[0] < 0x80 {
		return `"\u00` + string("0123456789abcdef"[s[0]>>4]) + string("0123456789abcdef"[s[0]&15]) + strings.TrimPrefix(string(text), text2(s))
	}
	return string(text)
}

// text2 is how a JSON text begins up to and with the first character of s.
func text2(s string) string {
	first, _ := json.Marshal(s[:1])
	return string(first[:len(first)-1])
}

func drawScalar(t *rapid.T) string {
	switch rapid.IntRange(0, 6).Draw(t, "scalar") {
	case 0:
		return "null"
	case 1:
		return "true"
	case 2:
		return "false"
	case 3, 4:
		return quoted(t, rapid.SampledFrom(genTexts).Draw(t, "text"))
	}
	return rapid.SampledFrom(genNumbers).Draw(t, "number")
}

func drawDoc(t *rapid.T, depth int) string {
	kind := 0
	if depth > 0 {
		kind = rapid.IntRange(0, 3).Draw(t, "kind")
	}
	pad := rapid.SampledFrom([]string{"", "", " "}).Draw(t, "pad")
	switch kind {
	case 0, 1:
		return drawScalar(t)
	case 2:
		list := make([]string, rapid.IntRange(0, 4).Draw(t, "len"))
		for i := range list {
			list[i] = drawDoc(t, depth-1)
		}
		return "[" + pad + strings.Join(list, ","+pad) + pad + "]"
	}
	names := rapid.SliceOfNDistinct(rapid.SampledFrom(genNames), 0, 4, rapid.ID).Draw(t, "names")
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = quoted(t, name) + pad + ":" + pad + drawDoc(t, depth-1)
	}
	return "{" + strings.Join(list, pad+",") + pad + "}"
}

func drawSchema(t *rapid.T, depth int) string {
	if n := rapid.IntRange(0, 11).Draw(t, "bool"); n == 0 {
		return "false"
	} else if n == 1 {
		return "true"
	}
	var parts []string
	add := func(key, value string) { parts = append(parts, `"`+key+`":`+value) }
	sub := func() string {
		if depth == 0 {
			return rapid.SampledFrom([]string{"true", "false", `{"type":"integer"}`, `{"type":"string"}`, `{"minimum":2}`, `{"$ref":"#/$defs/d"}`}).Draw(t, "leaf")
		}
		return drawSchema(t, depth-1)
	}
	subs := func(from int) string {
		list := make([]string, rapid.IntRange(from, 3).Draw(t, "subs"))
		for i := range list {
			list[i] = sub()
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	count := func() string { return rapid.SampledFrom([]string{"0", "1", "2", "3"}).Draw(t, "count") }
	number := func() string { return rapid.SampledFrom(genNumbers).Draw(t, "bound") }
	names := func(from int) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(genNames), from, 3, rapid.ID).Draw(t, "names")
	}
	list := func(names []string) string { text, _ := json.Marshal(names); return string(text) }
	table := func(names []string, value func() string) string {
		var b []string
		for _, n := range names {
			text, _ := json.Marshal(n)
			b = append(b, string(text)+":"+value())
		}
		return "{" + strings.Join(b, ",") + "}"
	}
	keywords := rapid.SliceOfNDistinct(rapid.IntRange(0, 34), 1, 5, rapid.ID).Draw(t, "keywords")
	for _, k := range keywords {
		switch k {
		case 0, 30, 31:
			if k != 0 && strings.Contains(strings.Join(parts, ""), `"type"`) {
				continue
			}
			parts = dropKey(parts, "type")
			add("type", list(rapid.SliceOfNDistinct(rapid.SampledFrom(genTypes), 1, 3, rapid.ID).Draw(t, "types")))
		case 1:
			add("properties", table(names(0), sub))
		case 2:
			add("required", list(names(0)))
		case 3:
			add("additionalProperties", sub())
		case 4:
			add("patternProperties", table(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"^a", "b$", "^x-", "."}), 0, 2, rapid.ID).Draw(t, "patterns"), sub))
		case 5:
			add("propertyNames", sub())
		case 6:
			add("minProperties", count())
		case 7:
			add("maxProperties", count())
		case 8:
			add("dependentRequired", table(names(0), func() string { return list(names(0)) }))
		case 9:
			add("dependentSchemas", table(names(0), sub))
		case 10:
			add("items", sub())
		case 11:
			add("prefixItems", subs(1))
		case 12:
			add("minItems", count())
		case 13:
			add("maxItems", count())
		case 14:
			add("contains", sub())
		case 15:
			add("minContains", count())
		case 16:
			add("maxContains", count())
		case 17:
			add("uniqueItems", "true")
		case 18:
			var v []string
			for range rapid.IntRange(1, 10).Draw(t, "enum") {
				v = append(v, drawDoc(t, 1))
			}
			add("enum", "["+strings.Join(v, ",")+"]")
		case 19:
			add("const", drawDoc(t, 1))
		case 20:
			add("minimum", number())
		case 21:
			add("maximum", number())
		case 22:
			add("exclusiveMinimum", number())
		case 23:
			add("exclusiveMaximum", number())
		case 24:
			add("multipleOf", rapid.SampledFrom(positive).Draw(t, "multiple"))
		case 25:
			add("minLength", count())
		case 26:
			add("maxLength", count())
		case 27:
			add("pattern", rapid.SampledFrom([]string{`"^a"`, `"b$"`, `"^[a-z]*$"`, `"\\n"`}).Draw(t, "pattern"))
		case 28:
			add("format", rapid.SampledFrom([]string{`"date-time"`, `"date"`, `"uuid"`, `"email"`, `"unknown"`, `"json-pointer"`, `"regex"`}).Draw(t, "format"))
		case 29:
			add("allOf", subs(1))
		case 32:
			add(rapid.SampledFrom([]string{"anyOf", "oneOf"}).Draw(t, "of"), subs(1))
		case 33:
			add("not", sub())
		case 34:
			add("if", sub())
			add("then", sub())
			add("else", sub())
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func dropKey(parts []string, key string) []string {
	var kept []string
	for _, p := range parts {
		if !strings.HasPrefix(p, `"`+key+`":`) {
			kept = append(kept, p)
		}
	}
	return kept
}

// undecidable says whether a pair may hold a case that is left to the full
// validator: see the package comment.
func undecidable(schema string) bool {
	return strings.Contains(schema, `"uniqueItems"`) || strings.Contains(schema, `"const"`) || strings.Contains(schema, `"enum"`)
}

// differ compares the plan with the full validator.
func differ(t interface {
	Fatalf(string, ...any)
	Helper()
}, schema, doc string, exact bool) {
	t.Helper()
	s, err := tree(schema)
	if err != nil {
		return
	}
	p := Compile(s)
	if p == nil {
		return
	}
	got := p.Valid([]byte(doc)) // whatever it is
	if event.CheckJSON([]byte(doc)) != nil {
		return
	}
	if !got && !exact {
		return
	}
	v, err := unmarshal(doc)
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	if err := s.Validate(v); (err == nil) != got {
		t.Fatalf("schema %s\ndocument %s\nthe plan says %v, the full validator: %v", schema, doc, got, err)
	}
}

func unmarshal(doc string) (v any, err error) {
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

func drawBoth(t *rapid.T) {
	schema := drawSchema(t, 2)
	if strings.HasPrefix(schema, "{") && schema != "{}" {
		schema = `{"$defs":{"d":` + drawSchema(t, 1) + `},` + schema[1:]
	} else {
		schema = `{"$defs":{"d":true}}`
	}
	for range 8 {
		differ(t, schema, drawDoc(t, 3), !undecidable(schema))
	}
}

func TestDiffer(t *testing.T) { rapid.Check(t, drawBoth) }

func FuzzDiffer(f *testing.F) { f.Fuzz(rapid.MakeFuzz(drawBoth)) }

// FuzzBytes takes schema and document as they come.
func FuzzBytes(f *testing.F) {
	for _, c := range cases {
		for _, doc := range append(c.valid, c.invalid...) {
			f.Add(c.schema, doc)
		}
	}
	f.Add(payloadSchema, payload)
	f.Fuzz(func(t *testing.T, schema, doc string) {
		// The full validator writes numbers out, and takes long over such.
		if len(schema) > 4096 || len(doc) > 4096 || strings.ContainsAny(doc+schema, "eE") && longExponent(doc+schema) {
			return
		}
		differ(t, schema, doc, false)
	})
}

// longExponent says whether a text may hold an exponent of more than four digits.
func longExponent(s string) bool {
	digits := 0
	for i := range len(s) {
		if s[i] >= '0' && s[i] <= '9' {
			if digits++; digits > 4 {
				return true
			}
		} else {
			digits = 0
		}
	}
	return false
}

// Broken documents give an answer, and soon.
func TestBrokenBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	begin := time.Now()
	for _, c := range cases {
		p := Compile(mustTree(t, c.schema))
		for _, doc := range append(append([]string{payload}, c.valid...), c.invalid...) {
			for cut := range len(doc) {
				p.Valid([]byte(doc[:cut]))
				b := []byte(doc)
				b[cut] = byte(r.IntN(256))
				p.Valid(b)
			}
		}
	}
	if d := time.Since(begin); d > 20*time.Second {
		t.Fatal(d)
	}
}
