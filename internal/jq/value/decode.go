package value

import (
	"encoding/json"
	"fmt"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"promethean/event"
)

// Decode reads one JSON value. It takes what [event.CheckJSON] takes and
// refuses the rest. The value shares one copy of the text, so that keeping a
// part of it keeps all of it.
func Decode(text []byte) (any, error) { return DecodeString(string(text)) }

// DecodeString is [Decode] of a string, which is not copied.
func DecodeString(text string) (any, error) {
	d := decoders.Get().(*decoder)
	d.s, d.i = text, 0
	d.space()
	v, err := d.value(0)
	if d.space(); err == nil && d.i < len(d.s) {
		v, err = nil, d.fail("nothing may follow the value")
	}
	d.free()
	return v, err
}

var decoders = sync.Pool{New: func() any { return &decoder{fields: make([]field, 0, 32), items: make([]any, 0, 32)} }}

// free gives the decoder back, without what it holds on to. One that grew on a
// large text is left to the collector.
func (d *decoder) free() {
	if cap(d.fields)+cap(d.items) > 4096 {
		return
	}
	// After an error there may be something left; otherwise both are empty.
	clear(d.fields)
	clear(d.items)
	d.s, d.fields, d.items = "", d.fields[:0], d.items[:0]
	decoders.Put(d)
}

// decoder reads in one pass. Members and elements of open containers wait on
// two stacks, so that each container is made once and in its right size.
type decoder struct {
	s      string
	i      int
	fields []field
	items  []any
}

type field struct {
	name  string
	value any
}

func (d *decoder) fail(what string) error {
	return fmt.Errorf("bad JSON at offset %d: %s", d.i, what)
}

func (d *decoder) space() {
	for d.i < len(d.s) {
		switch d.s[d.i] {
		case ' ', '\n', '\t', '\r':
			d.i++
		default:
			return
		}
	}
}

func (d *decoder) value(depth int) (any, error) {
	if d.i >= len(d.s) {
		return nil, d.fail("a value must start here")
	}
	switch d.s[d.i] {
	case '{':
		return d.object(depth + 1)
	case '[':
		return d.array(depth + 1)
	case '"':
		s, err := d.text()
		if err != nil {
			return nil, err
		}
		return s, nil
	case 't':
		return true, d.literal("true")
	case 'f':
		return false, d.literal("false")
	case 'n':
		return nil, d.literal("null")
	}
	n, err := d.number()
	if err != nil {
		return nil, err
	}
	return n, nil
}

func (d *decoder) literal(want string) error {
	if len(d.s)-d.i < len(want) || d.s[d.i:d.i+len(want)] != want {
		return d.fail("a value must start here")
	}
	d.i += len(want)
	return nil
}

func (d *decoder) object(depth int) (any, error) {
	if depth > event.MaxDepth {
		return nil, d.fail("it is nested too deeply")
	}
	d.i++
	if d.space(); d.i < len(d.s) && d.s[d.i] == '}' {
		d.i++
		return map[string]any{}, nil
	}
	base := len(d.fields)
	for {
		if d.i >= len(d.s) || d.s[d.i] != '"' {
			return nil, d.fail("a name in quotes must stand here")
		}
		name, err := d.text()
		if err != nil {
			return nil, err
		}
		if d.space(); d.i >= len(d.s) || d.s[d.i] != ':' {
			return nil, d.fail("a colon must stand here")
		}
		d.i++
		d.space()
		v, err := d.value(depth)
		if err != nil {
			return nil, err
		}
		d.fields = append(d.fields, field{name, v})
		if d.space(); d.i < len(d.s) && d.s[d.i] == ',' {
			d.i++
			d.space()
			continue
		}
		if d.i < len(d.s) && d.s[d.i] == '}' {
			d.i++
			break
		}
		return nil, d.fail("a comma or the end of the object must stand here")
	}
	open := d.fields[base:]
	m := make(map[string]any, len(open))
	for _, f := range open {
		m[f.name] = f.value
	}
	if len(m) != len(open) {
		return nil, d.fail("a name must stand once in the object that ends here")
	}
	clear(open)
	d.fields = d.fields[:base]
	return m, nil
}

func (d *decoder) array(depth int) (any, error) {
	if depth > event.MaxDepth {
		return nil, d.fail("it is nested too deeply")
	}
	d.i++
	if d.space(); d.i < len(d.s) && d.s[d.i] == ']' {
		d.i++
		return []any{}, nil
	}
	base := len(d.items)
	for {
		v, err := d.value(depth)
		if err != nil {
			return nil, err
		}
		d.items = append(d.items, v)
		if d.space(); d.i < len(d.s) && d.s[d.i] == ',' {
			d.i++
			d.space()
			continue
		}
		if d.i < len(d.s) && d.s[d.i] == ']' {
			d.i++
			break
		}
		return nil, d.fail("a comma or the end of the array must stand here")
	}
	open := d.items[base:]
	list := make([]any, len(open))
	copy(list, open)
	clear(open)
	d.items = d.items[:base]
	return list, nil
}

// number reads a number by the grammar of JSON.
func (d *decoder) number() (json.Number, error) {
	start, s := d.i, d.s
	if s[d.i] == '-' {
		d.i++
	}
	if d.i < len(s) && s[d.i] == '0' {
		d.i++
	} else if !d.digits() {
		return "", d.fail("a value must start here")
	}
	if d.i < len(s) && s[d.i] == '.' {
		if d.i++; !d.digits() {
			return "", d.fail("a digit must stand here")
		}
	}
	if d.i < len(s) && s[d.i]|0x20 == 'e' {
		if d.i++; d.i < len(s) && (s[d.i] == '+' || s[d.i] == '-') {
			d.i++
		}
		if !d.digits() {
			return "", d.fail("a digit must stand here")
		}
	}
	return json.Number(s[start:d.i]), nil
}

func (d *decoder) digits() bool {
	from := d.i
	for d.i < len(d.s) && d.s[d.i]-'0' <= 9 {
		d.i++
	}
	return d.i > from
}

// text reads the string whose opening quote stands here.
func (d *decoder) text() (string, error) {
	s, start := d.s, d.i+1
	var seen byte
	for i := start; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			if seen >= utf8.RuneSelf && !utf8.ValidString(s[start:i]) {
				return "", d.fail("a string must be valid UTF-8")
			}
			d.i = i + 1
			return s[start:i], nil
		case c == '\\':
			return d.escaped(start, i)
		case c < ' ':
			d.i = i
			return "", d.fail("a control character must be escaped in a string")
		default:
			seen |= c
		}
	}
	d.i = len(s)
	return "", d.fail("a string must end with a quote")
}

// escaped goes on with text where the first escape stands at i.
func (d *decoder) escaped(start, i int) (string, error) {
	s := d.s
	buf := make([]byte, 0, 2*(i-start)+16)
	buf = append(buf, s[start:i]...)
	for i < len(s) {
		c := s[i]
		switch {
		case c == '"':
			if !utf8.Valid(buf) {
				return "", d.fail("a string must be valid UTF-8")
			}
			d.i = i + 1
			return string(buf), nil
		case c < ' ':
			d.i = i
			return "", d.fail("a control character must be escaped in a string")
		case c != '\\':
			buf = append(buf, c)
			i++
			continue
		}
		d.i = i
		if i+1 >= len(s) {
			break
		}
		switch c = s[i+1]; c {
		case '"', '\\', '/':
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := hex4(s, i+2)
			i += 6
			if utf16.IsSurrogate(r) {
				if i+1 >= len(s) || s[i] != '\\' || s[i+1] != 'u' {
					return "", d.fail("an escape must not be half of a surrogate pair")
				}
				if r = utf16.DecodeRune(r, hex4(s, i+2)); r == utf8.RuneError {
					return "", d.fail("an escape must not be half of a surrogate pair")
				}
				i += 6
			}
			if r < 0 {
				return "", d.fail("an escape must be one of those that JSON has")
			}
			buf = utf8.AppendRune(buf, r)
			continue
		default:
			return "", d.fail("an escape must be one of those that JSON has")
		}
		buf = append(buf, c)
		i += 2
	}
	d.i = len(s)
	return "", d.fail("a string must end with a quote")
}

// hex4 reads four hex digits at i, or gives -1.
func hex4(s string, i int) rune {
	if i+4 > len(s) {
		return -1
	}
	var r rune
	for _, c := range []byte(s[i : i+4]) {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return -1
		}
	}
	return r
}
