package schema_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"promethean/schema"
)

// A document that would take the validator for ever is refused in no time; those
// that can be looked at are.
func TestDocumentsThatTakeForEver(t *testing.T) {
	tree := `{"type":"object","properties":{"op":{"type":"string"},"left":{"$ref":"#"},"right":{"$ref":"#"}}}`
	double := `{"allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`
	parse := func(text string) *schema.Schema {
		t.Helper()
		s, err := schema.Parse(json.RawMessage(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	nested := func(name, last string, n int) []byte {
		return []byte(strings.Repeat(`{"`+name+`":`, n) + last + strings.Repeat("}", n))
	}
	began := time.Now()
	s := parse(double)
	if bad := s.Check(nested("a", "1", 10)); bad != nil {
		t.Errorf("%v", bad)
	}
	if bad := s.Check(nested("a", "1", 500)); len(bad) != 1 || !strings.Contains(bad[0].Message, "nested deeper") {
		t.Errorf("%v", bad)
	}
	s = parse(tree)
	if bad := s.Check(nested("left", `{}`, 400)); bad != nil {
		t.Errorf("%v", bad)
	}
	if bad := s.Check(nested("left", `{"op":1}`, 400)); len(bad) != 1 || !strings.HasSuffix(bad[0].Path, "/left/op") {
		t.Errorf("%v", bad)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// Numbers that nobody can calculate with are refused, in schemas and documents.
func TestHugeNumbers(t *testing.T) {
	if _, err := schema.Parse(json.RawMessage(`{"minimum":1e1000001}`)); err == nil {
		t.Error("no error")
	}
	s, err := schema.Parse(json.RawMessage(`{"type":"object","properties":{"n":{"minimum":1}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{`{"n":1e99999999}`, `{"n":-1e1000001}`, `{"n":1e-99999999}`} {
		if s.Check([]byte(doc)) == nil {
			t.Errorf("%s is valid", doc)
		}
	}
	if bad := s.Check([]byte(`{"n":12345678901234567890123456789}`)); bad != nil {
		t.Errorf("%v", bad)
	}
}
