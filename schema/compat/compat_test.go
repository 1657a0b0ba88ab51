package compat

import (
	"fmt"
	"strings"
	"testing"

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

// tryCompile does what schema.Parse does, which this package must not import.
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
