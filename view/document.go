package view

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/event"
)

var errNoObject = errors.New("a document is a JSON object")

// appendDocument appends a document as it is stored and served: _key and _ts,
// then the fields of the object in their own order and bytes, without those
// that are ours. The object is valid JSON without white space between tokens.
func appendDocument(dst []byte, key string, ts int64, object []byte) ([]byte, error) {
	if len(object) < 2 || object[0] != '{' {
		return dst, noObject(object)
	}
	dst = append(dst, `{"_key":`...)
	dst, err := jsontext.AppendQuote(dst, key)
	if err != nil {
		return dst, fmt.Errorf("key %q: %w", key, err)
	}
	dst = append(dst, `,"_ts":`...)
	dst = strconv.AppendInt(dst, ts, 10)
	if !mayReserve(object) {
		if len(object) > 2 {
			dst = append(dst, ',')
		}
		return append(dst, object[1:]...), nil
	}
	for m := range members(object) {
		if reserved(m.name()) {
			continue
		}
		dst = append(dst, ',')
		dst = append(dst, m.raw...)
		dst = append(dst, ':')
		dst = append(dst, m.value...)
	}
	return append(dst, '}'), nil
}

func noObject(value []byte) error {
	if len(value) > 64 {
		value = append(value[:60:60], "…"...)
	}
	return fmt.Errorf("%w, not %s", errNoObject, value)
}

// mayReserve says whether an object may have a name that is ours. Most have
// neither an underscore at the beginning of a text nor an escape.
func mayReserve(object []byte) bool {
	return bytes.Contains(object, []byte(`"_`)) || bytes.IndexByte(object, '\\') >= 0
}

func reserved(name string) bool {
	return name == "_key" || name == "_ts" || name == "_seq" || name == "_v"
}

// compactObject gives an object without white space between tokens, checked
// unless it is known to be valid.
func compactObject(object []byte, valid bool) ([]byte, error) {
	if valid && !hasSpace(object) {
		return object, nil
	}
	out, err := event.CompactJSON(make([]byte, 0, len(object)), object)
	if err != nil {
		return nil, fmt.Errorf("the document is no JSON: %w", err)
	}
	return out, nil
}

// hasSpace says whether there is a byte that may be white space.
func hasSpace(b []byte) bool {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for len(b) >= 8 {
		x := binary.LittleEndian.Uint64(b)
		if (x-0x21*ones)&^x&highs != 0 {
			return true
		}
		b = b[8:]
	}
	for _, c := range b {
		if c <= ' ' {
			return true
		}
	}
	return false
}

// checkKey says what is wrong with the key of a document.
func checkKey(key string) error {
	switch {
	case len(key) > event.MaxKey:
		return fmt.Errorf("the key has %d bytes, the limit is %d", len(key), event.MaxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("the key %q is not UTF-8", key)
	}
	return nil
}

// member is one of an object.
type member struct {
	raw   []byte // the name with its quotes
	value []byte
}

func (m *member) name() string {
	if bytes.IndexByte(m.raw, '\\') < 0 {
		return string(m.raw[1 : len(m.raw)-1])
	}
	var s string
	if err := json.Unmarshal(m.raw, &s); err != nil {
		return string(m.raw) // it is valid: it does not happen
	}
	return s
}

// members yields the members of an object, which is valid and compact.
func members(object []byte) func(yield func(member) bool) {
	return func(yield func(member) bool) {
		for i := 1; i < len(object) && object[i] == '"'; i++ {
			name := endText(object, i)
			value := endValue(object, name+1)
			if !yield(member{raw: object[i:name], value: object[name+1 : value]}) {
				return
			}
			i = value // a comma, or the end
		}
	}
}

// endText gives where the text that begins at i ends.
func endText(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// endValue gives where the value that begins at i ends.
func endValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = endText(b, i); depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return len(b)
}
