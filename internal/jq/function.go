package jq

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"strings"

	"github.com/itchyny/gojq"

	"promethean/internal/jq/value"
)

// functions gives gojq the functions that keep a run to its limits. Those that
// only look give back their input as it is, so that they may stand in a path.
func functions(r *run) []gojq.CompilerOption {
	none := func(f func(v any) any) func(any, []any) any {
		return func(v any, _ []any) any { return f(v) }
	}
	return []gojq.CompilerOption{
		gojq.WithFunction("_p_made", 0, 0, none(r.made)),
		gojq.WithFunction("_p_kept", 0, 0, none(r.kept)),
		gojq.WithFunction("_p_iter", 0, 0, none(r.iterated)),
		gojq.WithFunction("_p_index", 1, 1, func(_ any, args []any) any { return r.index(args[0]) }),
		gojq.WithFunction("_p_path", 1, 1, func(_ any, args []any) any { return r.path(args[0]) }),
		gojq.WithFunction("_p_charge", 1, 1, func(v any, args []any) any { return r.charged(v, args[0].(int)) }),
		gojq.WithFunction("_p_sorting", 0, 0, none(r.sorting)),
		gojq.WithFunction("_p_transposing", 0, 0, none(r.transposing)),
		gojq.WithFunction("_p_numeral", 0, 0, none(r.numeral)),
		gojq.WithFunction("_p_dating", 1, 1, func(v any, args []any) any { return r.dating(v, args[0]) }),
		gojq.WithFunction("_p_product", 1, 1, func(v any, args []any) any { return r.product(v, args[0]) }),
		gojq.WithFunction("_p_joining", 1, 1, func(v any, args []any) any { return r.joining(v, args[0]) }),
		gojq.WithFunction("_p_tojson", 0, 0, none(r.tojson)),
		gojq.WithFunction("_p_tostring", 0, 0, none(r.tostring)),
		gojq.WithFunction("_p_fromjson", 0, 0, none(r.fromjson)),
		gojq.WithFunction("_p_sub", 2, 2, func(_ any, args []any) any { return r.sub(args[0], args[1]) }),
		gojq.WithFunction("_p_mul", 2, 2, func(_ any, args []any) any { return r.mul(args[0], args[1]) }),
		gojq.WithFunction("_p_div", 2, 2, func(_ any, args []any) any { return r.div(args[0], args[1]) }),
		gojq.WithFunction("_p_match", 2, 2, func(v any, args []any) any { return r.match(v, args[0], args[1]) }),
		gojq.WithFunction("_p_test", 2, 2, func(v any, args []any) any { return r.test(v, args[0], args[1]) }),
	}
}

// made measures a value that an expression has built.
func (r *run) made(v any) any {
	switch x := v.(type) {
	case string:
		// Strings do not nest, and cost what they are long.
		if len(x) > r.limits.Value {
			return r.tooLarge()
		}
		if len(x) > 256 && !r.charge(len(x)) {
			return r.err
		}
	case []any, map[string]any:
		if _, err := r.size(v); err != nil {
			return err
		}
	case *big.Int:
		if x.BitLen() > maxDigits*4 {
			r.err = errDigits
			return r.err
		}
	case json.Number:
		return r.numeral(v)
	}
	return v
}

// kept counts a value that is put into another one, by all that it holds: one
// update may put it into many places before the result is measured.
func (r *run) kept(v any) any {
	switch v.(type) {
	case []any, map[string]any, string:
		n, err := r.size(v)
		if err != nil {
			return err
		}
		if !r.charge(n) {
			return r.err
		}
	}
	return v
}

// iterated counts what gojq makes to go over a container.
func (r *run) iterated(v any) any {
	n := 0
	switch v := v.(type) {
	case []any:
		n = len(v)
	case map[string]any:
		n = len(v)
	}
	if n > 256 && !(r.charge(32*n) && r.work(n/8)) {
		return r.err
	}
	return v
}

// maxIndex is the largest index into an array. An assignment makes the array so
// long.
const maxIndex = 1 << 20

// index looks at what is in square brackets.
func (r *run) index(x any) any {
	var n float64
	switch x := x.(type) {
	case int:
		n = float64(x)
	case float64:
		n = x
	case *big.Int:
		n, _ = new(big.Float).SetInt(x).Float64()
	case json.Number:
		n, _ = x.Float64()
	case []any:
		// It asks for places where this list stands in another one.
		if len(x) > 64 {
			r.err = fmt.Errorf("%w: it looks for a list of more than 64 elements", ErrLimit)
			return r.err
		}
		return x
	default:
		return x
	}
	switch {
	case n > maxIndex:
		r.err = fmt.Errorf("%w: it uses an index beyond %d", ErrLimit, maxIndex)
		return r.err
	case n > maxPlainIndex && !r.charge(int(n)*sizeValue):
		return r.err
	}
	return x
}

// path looks at a path.
func (r *run) path(p any) any {
	list, ok := p.([]any)
	if !ok {
		return p
	}
	if len(list) > 1000 {
		r.err = errDeep
		return r.err
	}
	for _, x := range list {
		if err, failed := r.index(x).(error); failed {
			return err
		}
	}
	return p
}

// charged takes memory for a function that makes its input grow.
func (r *run) charged(v any, growth int) any {
	n, err := r.size(v)
	if err != nil {
		return err
	}
	if !r.charge(n*growth) || !r.work(n/32) {
		return r.err
	}
	return v
}

// sorting counts the comparisons of sorting an array.
func (r *run) sorting(v any) any {
	list, ok := v.([]any)
	if !ok {
		return v
	}
	n, err := r.size(v)
	if err != nil {
		return err
	}
	if !r.charge(len(list)*64) || !r.work(n/64*bits.Len(uint(len(list)))) {
		return r.err
	}
	return v
}

// transposing counts the cells of the result: one long row makes all columns.
func (r *run) transposing(v any) any {
	rows, ok := v.([]any)
	if !ok {
		return v
	}
	longest := 0
	for _, row := range rows {
		if row, ok := row.([]any); ok {
			longest = max(longest, len(row))
		}
	}
	if !r.charge(longest * (sizeArray + sizeValue*(len(rows)+1))) {
		return r.err
	}
	return v
}

// numeral refuses to read very long numbers.
func (r *run) numeral(v any) any {
	n := 0
	switch v := v.(type) {
	case string:
		n = len(v)
	case json.Number:
		n = len(v)
	}
	if n > maxDigits {
		r.err = errDigits
		return r.err
	}
	return v
}

// dating bounds the texts of dates and their formats.
func (r *run) dating(v, format any) any {
	s, _ := v.(string)
	f, _ := format.(string)
	if len(s) > 1024 || len(f) > 256 {
		r.err = fmt.Errorf("%w: a date or its format is too long", ErrLimit)
		return r.err
	}
	return v
}

// product counts the comparisons of two values part by part.
func (r *run) product(v, x any) any {
	a, err := r.size(v)
	if err != nil {
		return err
	}
	b, err := r.size(x)
	if err != nil {
		return err
	}
	// Looking into strings takes them apart.
	if !r.charge(24 * (length(v) + length(x))) {
		return r.err
	}
	if s, ok := v.(string); ok {
		t, _ := x.(string)
		a, b = len(s)*8, len(t)*16
	}
	if a, b = a/sizeValue+1, b/sizeValue+1; a > r.steps || !r.work(a*min(b, r.steps)/8) {
		r.work(r.steps)
		return r.err
	}
	return v
}

func length(v any) int {
	if s, ok := v.(string); ok {
		return len(s)
	}
	return 0
}

// joining counts the separator as often as it will stand in the result.
func (r *run) joining(v, sep any) any {
	n := 0
	switch v := v.(type) {
	case []any:
		n = len(v)
	case map[string]any:
		n = len(v)
	}
	s := length(sep)
	if n > 0 && s > r.limits.Value/n {
		return r.tooLarge()
	}
	if !r.charge(n * (s + sizeName)) {
		return r.err
	}
	return v
}

func (r *run) tojson(v any) any {
	text, err := value.AppendMax(nil, v, r.limits.Value)
	switch {
	case errors.Is(err, value.ErrTooLarge):
		return r.tooLarge()
	case err != nil:
		r.err = errDeep
		return r.err
	}
	if len(text) > 256 && !(r.charge(len(text)) && r.work(len(text)/8)) {
		return r.err
	}
	return string(text)
}

func (r *run) tostring(v any) any {
	if s, ok := v.(string); ok {
		return s
	}
	return r.tojson(v)
}

func (r *run) fromjson(v any) any {
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("fromjson cannot be applied to: %s", preview(v))
	}
	// The densest text is a list of empty objects.
	if !r.charge(32*len(s)) || !r.work(len(s)/16) {
		return r.err
	}
	// A copy, so that the value does not hold on to a larger text.
	w, err := value.DecodeString(strings.Clone(s))
	if err != nil {
		return fmt.Errorf("fromjson cannot be applied to %s: %w", gojq.Preview(s), err)
	}
	return r.made(w)
}

// preview shows a value in an error as jq does.
func preview(v any) string {
	if v == nil {
		return "null"
	}
	return gojq.TypeOf(v) + " (" + gojq.Preview(v) + ")"
}
