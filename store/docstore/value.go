package docstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/event"
	"promethean/store"
	"promethean/store/internal/document"
)

// An encoded value is a length, a byte that tells the kind, and what makes two
// values of that kind equal. No encoded value is a prefix of another, and the
// length 0 stands for a field that is missing, or is an object or an array.
const (
	kindNull       = 'z'
	kindFalse      = 'f'
	kindTrue       = 't'
	kindNumber     = 'n' // sign, digits, "e", exponent; hashed if long
	kindText       = 's' // unescaped; hashed if long
	kindNumberHash = 'N'
	kindTextHash   = 'S'

	maxPlain = 64 // bytes of a value that are kept as they are
)

func space(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// appendValues appends the encoded values of the fields, one after the other,
// of a body that document.CheckBody has accepted.
func appendValues(dst, body []byte, fields []string, raw [][]byte) []byte {
	if len(fields) == 0 {
		return dst
	}
	raw = findFields(body, fields, raw)
	for _, v := range raw {
		dst = appendValue(dst, v)
	}
	return dst
}

// findFields finds the fields in a valid object; those that it lacks are nil.
func findFields(body []byte, fields []string, raw [][]byte) [][]byte {
	raw = raw[:0]
	for range fields {
		raw = append(raw, nil)
	}
	left := len(fields)
	i := skipSpace(body, 0) + 1 // over the brace
	for left > 0 {
		i = skipSpace(body, i)
		if i >= len(body) || body[i] != '"' {
			break // the end of the object
		}
		start := i
		i = skipText(body, i)
		name := body[start+1 : i-1]
		i = skipSpace(body, skipSpace(body, i)+1) // over the colon
		start = i
		i = skipValue(body, i)
		if k := indexOf(fields, name); k >= 0 && raw[k] == nil {
			raw[k] = body[start:i]
			left--
		}
		if i = skipSpace(body, i); i < len(body) && body[i] == ',' {
			i++
		}
	}
	return raw
}

// indexOf finds a name as it stands in JSON among the fields.
func indexOf(fields []string, name []byte) int {
	if bytes.IndexByte(name, '\\') >= 0 {
		quoted := make([]byte, 0, len(name)+2)
		quoted = append(append(append(quoted, '"'), name...), '"')
		name, _ = jsontext.AppendUnquote(nil, quoted)
	}
	for k, f := range fields {
		if f == string(name) {
			return k
		}
	}
	return -1
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && space(b[i]) {
		i++
	}
	return i
}

// skipText gives the place after the text that begins at i.
func skipText(b []byte, i int) int {
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

// skipValue gives the place after the value that begins at i.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return i
	}
	switch b[i] {
	case '"':
		return skipText(b, i)
	case '{', '[':
		depth := 0
		for i < len(b) {
			switch b[i] {
			case '"':
				i = skipText(b, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
		return i
	}
	for i < len(b) && b[i] != ',' && b[i] != '}' && b[i] != ']' && !space(b[i]) {
		i++
	}
	return i
}

// appendValue appends a valid JSON value as it is encoded in rows; what is no
// scalar, or missing, as a zero.
func appendValue(dst, v []byte) []byte {
	if len(v) == 0 {
		return append(dst, 0)
	}
	switch v[0] {
	case 'n':
		return append(dst, 1, kindNull)
	case 'f':
		return append(dst, 1, kindFalse)
	case 't':
		return append(dst, 1, kindTrue)
	case '"':
		text := v[1 : len(v)-1]
		if bytes.IndexByte(text, '\\') >= 0 {
			text, _ = jsontext.AppendUnquote(nil, v)
		}
		return appendPlain(dst, kindText, kindTextHash, text)
	case '{', '[':
		return append(dst, 0)
	}
	var room [maxPlain]byte
	return appendPlain(dst, kindNumber, kindNumberHash, document.AppendNumber(room[:0], v))
}

func appendPlain(dst []byte, kind, hashed byte, text []byte) []byte {
	if len(text) <= maxPlain {
		return append(append(dst, byte(len(text)+1), kind), text...)
	}
	sum := sha256.Sum256(text)
	return append(append(dst, byte(len(sum)+1), hashed), sum[:]...)
}

// encodeFilter encodes a value to look for.
func encodeFilter(v json.RawMessage) ([]byte, error) {
	if err := event.CheckJSON(v); err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrInvalid, err)
	}
	enc := appendValue(nil, bytes.TrimSpace(v))
	if enc[0] == 0 {
		return nil, fmt.Errorf("%w: objects and arrays cannot be looked for", store.ErrInvalid)
	}
	return enc, nil
}
