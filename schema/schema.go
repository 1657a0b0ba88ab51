package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"promethean/event"
	"promethean/internal/jq/value"
	"promethean/schema/internal/fast"
	"promethean/schema/internal/sample"
)

// MaxSchema is the largest schema in bytes.
const MaxSchema = 256 << 10

// Dialect is the only value that $schema may have, where it is given.
const Dialect = "https://json-schema.org/draft/2020-12/schema"

// ErrInvalidSchema says that something is no schema that can be used.
var ErrInvalidSchema = errors.New("invalid schema")

// Schema is a schema that was found sound. It does not change, and may be used
// concurrently.
type Schema struct {
	raw  json.RawMessage
	tree *jsonschema.Schema
	plan *fast.Plan // nil: the tree alone can say
	// depth is how deep a document may be for the tree to say; see sample.Depth.
	depth func() (most int, bounded bool)
}

// place is the address of a schema for the compiler. References that leave it
// are refused.
const place = "promethean:schema"

// Parse checks and compiles a schema. References may point into the schema
// itself only. The error is [ErrInvalidSchema] and says what is wrong.
func Parse(raw json.RawMessage) (*Schema, error) {
	s, err := compile(raw)
	if err != nil {
		return nil, err
	}
	if err := checkTree(s.tree); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidSchema, err)
	}
	return s, nil
}

// compile is Parse of a schema that was found sound when it was registered: what
// was taken once is not refused later, whatever has been learned since.
func compile(raw json.RawMessage) (*Schema, error) {
	if len(raw) > MaxSchema {
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrInvalidSchema, len(raw), MaxSchema)
	}
	if err := event.CheckJSON(raw); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidSchema, err)
	}
	if err := value.CheckNumbers(raw); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidSchema, err)
	}
	doc, err := value.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidSchema, err)
	}
	switch doc := doc.(type) {
	case bool:
	case map[string]any:
		if d, ok := doc["$schema"]; ok && d != Dialect && d != Dialect+"#" {
			return nil, fmt.Errorf("%w: $schema: %v is not understood, only %s", ErrInvalidSchema, d, Dialect)
		}
	default:
		return nil, fmt.Errorf("%w: it must be an object, or true or false", ErrInvalidSchema)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	c.UseLoader(noLoader{})
	if err := c.AddResource(place, doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidSchema, err)
	}
	tree, err := c.Compile(place)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrInvalidSchema, compileError(err))
	}
	return &Schema{
		raw: bytes.Clone(raw), tree: tree, plan: fast.Compile(tree),
		depth: sync.OnceValues(func() (int, bool) { return sample.Depth(tree) }),
	}, nil
}

// noLoader refuses to follow references to elsewhere.
type noLoader struct{}

// Load implements [jsonschema.URLLoader].
func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("a reference leaves the schema, to %s: put what it needs under $defs", url)
}

// compileError says what the compiler found, without its own addresses.
func compileError(err error) string {
	var v *jsonschema.SchemaValidationError
	var bad *jsonschema.ValidationError
	if errors.As(err, &v) && errors.As(v.Err, &bad) {
		list := leaves(nil, bad)
		texts := make([]string, len(list))
		for i, l := range list {
			texts[i] = l.Path + ": " + l.Message
		}
		return strings.Join(texts, "; ")
	}
	return strings.ReplaceAll(err.Error(), place, "")
}

// Raw is the text that was parsed.
func (s *Schema) Raw() json.RawMessage { return s.raw }

// Tree is the compiled form, for those who look into it: package compat, and
// linters. Do not change it.
func (s *Schema) Tree() *jsonschema.Schema { return s.tree }

// Valid says whether a document is known to be valid. It is quick; where it says
// no, Check says why, or that the document is valid all the same.
func (s *Schema) Valid(doc []byte) bool { return s.plan != nil && s.plan.Valid(doc) }

// FieldError is one thing that is wrong with a document.
type FieldError struct {
	// Path is a JSON pointer to the value; "" is the whole document.
	Path    string `json:"path"`
	Message string `json:"message"`
}

// Check gives everything that is wrong with a document; nothing if it is valid.
func (s *Schema) Check(doc []byte) []FieldError {
	// A number with a huge exponent would take the validator down.
	if err := value.CheckNumbers(doc); err != nil {
		return []FieldError{{Message: err.Error()}}
	}
	if most, bounded := s.depth(); bounded && nesting(doc) > most {
		return []FieldError{{Message: fmt.Sprintf("it is not known to be valid, and nested deeper than %d: the schema refers to itself and speaks of one value in several places, so that looking further would take too long", most)}}
	}
	v, err := value.Decode(doc)
	if err == nil {
		err = s.tree.Validate(v)
	}
	if err == nil {
		return nil
	}
	var bad *jsonschema.ValidationError
	if !errors.As(err, &bad) {
		return []FieldError{{Message: err.Error()}}
	}
	return leaves(nil, bad)
}

var english = message.NewPrinter(language.English)

// leaves lists what is wrong at the ends of a tree of errors.
func leaves(list []FieldError, e *jsonschema.ValidationError) []FieldError {
	if len(e.Causes) == 0 {
		return append(list, FieldError{Path: pointer(e.InstanceLocation), Message: e.ErrorKind.LocalizedString(english)})
	}
	for _, c := range e.Causes {
		list = leaves(list, c)
	}
	return list
}

// pointer writes a JSON pointer.
func pointer(tokens []string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteByte('/')
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(t, "~", "~0"), "/", "~1"))
	}
	return b.String()
}

// nesting is how deep objects and arrays are nested in JSON.
func nesting(doc []byte) (most int) {
	depth, quoted := 0, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			most = max(most, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return most
}
