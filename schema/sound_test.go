package schema

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestParseRefusesWhatMustNotBeUsed(t *testing.T) {
	many := make([]string, MaxSubschemas+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"p%d":{"type":"null"}`, i)
	}
	double := `{"$ref":"#/$defs/d0","$defs":{`
	for i := range 30 {
		double += fmt.Sprintf(`"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	double += `"d30":{"type":"object"}}}`
	for _, test := range []struct{ name, schema, want string }{
		{"pattern", `{"properties":{"a":{"pattern":"^(a+)+$"}}}`, "/properties/a/pattern: pattern \"^(a+)+$\": an engine that backtracks"},
		{"pattern of names", `{"items":{"patternProperties":{"^(x*)*$":{}}}}`, "/items/patternProperties: pattern \"^(x*)*$\""},
		{"look-around", `{"pattern":"(?=a)b"}`, "(?=a)b"},
		{"pattern behind a reference", `{"$ref":"#/$defs/x","$defs":{"x":{"pattern":"(a|a)*b"}}}`, "/$defs/x/pattern"},
		{"endless", `{"type":"object","required":["a"],"properties":{"a":{"$ref":"#"}}}`, "no document can satisfy it"},
		{"endless inside", `{"type":"object","required":["a"],"properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"array","minItems":1,"items":{"$ref":"#/$defs/n"}}}}`, "/$defs/n: no document"},
		{"too many", `{"properties":{` + strings.Join(many, ",") + `}}`, "more than 5000 schemas"},
		{"doubling", double, "more than 10000 schemas are applied to one value"},
		{"in place", `{"anyOf":[{"$ref":"#"},{"type":"string"}]}`, "leads back to itself on the same value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(test.schema))
			if !errors.Is(err, ErrInvalidSchema) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Parse = %v, want %q", err, test.want)
			}
		})
	}
	for _, good := range []string{
		`true`, `{"type":"string","pattern":"^[a-z0-9]+(\\.[a-z0-9]+)*$"}`,
		`{"type":"object","properties":{"next":{"$ref":"#"}}}`,
		`{"type":"object","required":["next"],"properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}}}`,
	} {
		if _, err := Parse([]byte(good)); err != nil {
			t.Errorf("Parse(%s) = %v", good, err)
		}
	}
}
