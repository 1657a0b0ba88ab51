package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"promethean/event"
)

// ErrTooLarge says that a value does not fit into the limit that was set.
var ErrTooLarge = errors.New("the value is too large")

// ErrTooDeep says that a value is nested deeper than [event.MaxDepth].
var ErrTooDeep = errors.New("the value is nested too deeply")

// Append writes a value as JSON behind dst. A json.Number is written as it is,
// what is no number (NaN) as null, and infinity as the largest number there is,
// as jq does. Bytes that are no UTF-8 become the replacement character. It
// panics on a value of another type than those that jq has.
//
// There is no limit on size or depth: see [AppendMax] for values of which it is
// not known where they come from.
func Append(dst []byte, v any) []byte {
	dst, err := encode(dst, v, math.MaxInt, math.MaxInt)
	if err != nil {
		panic(err) // without limits there is none
	}
	return dst
}

// AppendMax is [Append] with at most limit bytes and [event.MaxDepth] levels. A
// value that holds the same part many times over can be small in memory and
// endless as text; AppendMax stops once the limit is passed. The errors are
// [ErrTooLarge] and [ErrTooDeep], with dst as it was.
func AppendMax(dst []byte, v any, limit int) ([]byte, error) {
	return encode(dst, v, len(dst)+limit, event.MaxDepth)
}

// encode writes up to max bytes, with those in dst, and depth levels.
func encode(dst []byte, v any, max, depth int) ([]byte, error) {
	e := encoders.Get().(*encoder)
	e.buf, e.max, e.depth, e.err = dst, max, depth, nil
	e.value(v)
	out, err := e.buf, e.err
	if err != nil {
		out = dst
	}
	e.buf = nil
	if cap(e.names) <= 4096 {
		clear(e.names[:cap(e.names)]) // the names belong to others
		e.names = e.names[:0]
		encoders.Put(e)
	}
	return out, err
}

var encoders = sync.Pool{New: func() any { return &encoder{names: make([]string, 0, 32)} }}

type encoder struct {
	buf   []byte
	max   int
	depth int // levels that may still be opened
	names []string
	err   error
}

func (e *encoder) value(v any) {
	if e.err != nil {
		return
	}
	switch v := v.(type) {
	case nil:
		e.buf = append(e.buf, "null"...)
	case bool:
		e.buf = strconv.AppendBool(e.buf, v)
	case string:
		e.text(v)
	case json.Number:
		e.buf = append(e.buf, v...)
	case int:
		e.buf = strconv.AppendInt(e.buf, int64(v), 10)
	case float64:
		e.float(v)
	case *big.Int:
		e.buf = v.Append(e.buf, 10)
	case []any:
		e.array(v)
	case map[string]any:
		e.object(v)
	default:
		panic(fmt.Sprintf("no JSON value: %T", v))
	}
	if len(e.buf) > e.max && e.err == nil {
		e.err = ErrTooLarge
	}
}

func (e *encoder) array(list []any) {
	if e.depth == 0 {
		e.err = ErrTooDeep
		return
	}
	e.depth--
	e.buf = append(e.buf, '[')
	for i, v := range list {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		if e.value(v); e.err != nil {
			return
		}
	}
	e.buf = append(e.buf, ']')
	e.depth++
}

func (e *encoder) object(m map[string]any) {
	if e.depth == 0 {
		e.err = ErrTooDeep
		return
	}
	e.depth--
	e.buf = append(e.buf, '{')
	base := len(e.names)
	for name := range m {
		e.names = append(e.names, name)
	}
	end := len(e.names)
	slices.Sort(e.names[base:])
	for i := base; i < end; i++ {
		if i > base {
			e.buf = append(e.buf, ',')
		}
		name := e.names[i] // the stack may move while a member is written
		e.text(name)
		e.buf = append(e.buf, ':')
		if e.value(m[name]); e.err != nil {
			return
		}
	}
	e.names = e.names[:base]
	e.buf = append(e.buf, '}')
	e.depth++
}

// float writes the shortest text that reads back as the same number, with an
// exponent where it is far from one.
func (e *encoder) float(f float64) {
	if math.IsNaN(f) {
		e.buf = append(e.buf, "null"...)
		return
	}
	f = min(max(f, -math.MaxFloat64), math.MaxFloat64)
	abs := math.Abs(f)
	if abs == 0 || abs >= 1e-6 && abs < 1e21 {
		e.buf = strconv.AppendFloat(e.buf, f, 'f', -1, 64)
		return
	}
	e.buf = strconv.AppendFloat(e.buf, f, 'e', -1, 64)
	// Exponents have two digits at least; jq writes one where it can.
	if n := len(e.buf); e.buf[n-4] == 'e' && e.buf[n-3] == '-' && e.buf[n-2] == '0' {
		e.buf = append(e.buf[:n-2], e.buf[n-1])
	}
}

// plain marks the bytes that stand for themselves in a JSON string.
var plain = func() (t [256]bool) {
	for c := ' '; c <= '~'; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

func (e *encoder) text(s string) {
	// A string alone may already be beyond the limit: do not copy it then.
	if len(s) > e.max-len(e.buf) {
		if e.err == nil {
			e.err = ErrTooLarge
		}
		return
	}
	e.buf = append(e.buf, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
		}
		e.buf = append(e.buf, s[start:i]...)
		e.buf = appendEscape(e.buf, c)
		i++
		start = i
	}
	e.buf = append(e.buf, s[start:]...)
	e.buf = append(e.buf, '"')
}

// appendEscape writes a byte that cannot stand for itself.
func appendEscape(dst []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	if c >= utf8.RuneSelf {
		return append(dst, `\ufffd`...) // no UTF-8
	}
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}
