package schema

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/invopop/jsonschema"
)

// Of makes a schema from a Go type, as encoding/json writes it: a field is
// required unless it may be left out, and properties that the type does not
// have are refused, so that later versions may add some. What is nil and not left
// out is written as null, which the schema refuses: give it omitempty. Struct tags called
// jsonschema say more, such as `jsonschema:"minimum=0,description=Bytes"`.
func Of[T any]() (json.RawMessage, error) {
	t := reflect.TypeFor[T]()
	r := jsonschema.Reflector{Anonymous: true, ExpandedStruct: t.Kind() == reflect.Struct}
	s := r.ReflectFromType(t)
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("schema of %v: %w", t, err)
	}
	if _, err := Parse(text); err != nil {
		return nil, fmt.Errorf("schema of %v: %w", t, err)
	}
	return text, nil
}
