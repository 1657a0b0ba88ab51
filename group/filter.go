package group

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"

	"promethean/event"
)

const (
	// maxFilter is how long a filter may be.
	maxFilter = 4 << 10
	// maxFilterCost bounds the work on one event: a filter comes from whoever
	// may subscribe, and must not keep the hub busy.
	maxFilterCost = 100_000
)

var filterEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("id", cel.StringType),
		cel.Variable("seq", cel.IntType),
		cel.Variable("ts", cel.IntType),
		cel.Variable("topic", cel.StringType),
		cel.Variable("key", cel.StringType),
		cel.Variable("partition", cel.IntType),
		cel.Variable("sid", cel.StringType),
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("payload", cel.DynType),
		cel.Variable("tags", cel.ListType(cel.StringType)),
		cel.Variable("caused_by", cel.ListType(cel.StringType)),
		cel.Variable("event", cel.MapType(cel.StringType, cel.DynType)),
	)
})

// CompileFilter compiles a CEL expression over the fields of an event, by the
// names they have in JSON, alone or as fields of "event". An event passes if it is true; one for which it has
// no value, because the payload lacks a field say, does not. An empty
// expression is nil, which takes everything.
func CompileFilter(expr string) (func(*event.Event) bool, error) {
	if expr == "" {
		return nil, nil
	}
	if len(expr) > maxFilter {
		return nil, fmt.Errorf("%w: filter of %d bytes, the limit is %d", ErrInvalid, len(expr), maxFilter)
	}
	env, err := filterEnv()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expr)
	if err := issues.Err(); err != nil {
		return nil, fmt.Errorf("%w: filter: %w", ErrInvalid, err)
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("%w: filter gives %s, not bool", ErrInvalid, t)
	}
	prog, err := env.Program(ast, cel.CostLimit(maxFilterCost))
	if err != nil {
		return nil, fmt.Errorf("%w: filter: %w", ErrInvalid, err)
	}
	whole := strings.Contains(expr, "payload")
	return func(e *event.Event) bool {
		out, _, err := prog.Eval(&fields{e: e, whole: whole})
		if err != nil {
			return false
		}
		pass, ok := out.Value().(bool)
		return ok && pass
	}, nil
}

// fields gives a filter what it asks for of an event, and no more: decoding a
// payload costs more than all the rest.
type fields struct {
	e       *event.Event
	payload any
	decoded bool
	whole   bool // the payload too, where all fields are asked for
}

// names are those of the fields of an event.
var names = []string{"id", "seq", "ts", "topic", "key", "partition", "sid", "headers", "payload", "tags", "caused_by"}

// Parent implements cel.Activation.
func (f *fields) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation.
func (f *fields) ResolveName(name string) (any, bool) {
	e := f.e
	switch name {
	case "id":
		return e.ID.String(), true
	case "seq":
		return int64(e.Seq), true
	case "ts":
		return e.TS, true
	case "topic":
		return e.Topic, true
	case "key":
		return e.Key, true
	case "partition":
		n, ok := e.Partition.Get()
		if !ok {
			n = 0
		}
		return int64(n), true
	case "sid":
		return e.SID, true
	case "headers":
		m := make(map[string]string, len(e.Headers))
		for _, h := range e.Headers {
			m[h.Name] = h.Value
		}
		return m, true
	case "tags":
		return e.Tags, true
	case "caused_by":
		return e.CausedBy, true
	case "event":
		m := make(map[string]any, len(names))
		for _, name := range names {
			if name != "payload" || f.whole {
				m[name], _ = f.ResolveName(name)
			}
		}
		return m, true
	case "payload":
		if !f.decoded {
			f.payload, f.decoded = decodePayload(e.Payload), true
		}
		return f.payload, true
	}
	return nil, false
}

// decodePayload decodes JSON with whole numbers as such.
func decodePayload(b []byte) any {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil // it was checked before it was stored
	}
	return numbers(v)
}

func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, err := v.Float64()
		if err != nil {
			return v.String()
		}
		return f
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	}
	return v
}
