package pgfeed

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/event"
)

// encoder appends the JSON of a value that the server has written as text.
type encoder func(dst, text []byte) []byte

// plain are the encoders of the server's own types, by number. What is not
// there is text.
var plain = map[uint32]encoder{
	16:   appendBool,
	17:   appendBytes,
	20:   appendNumber, // bigint
	21:   appendNumber, // smallint
	23:   appendNumber, // integer
	26:   appendNumber, // oid
	114:  appendJSON,
	700:  appendNumber, // real
	701:  appendNumber, // double precision
	1114: appendTimestamp,
	1184: appendTimestamp, // with time zone
	1700: appendNumber,    // numeric
	3802: appendJSON,      // jsonb
}

func appendText(dst, text []byte) []byte {
	// It fails for what is no UTF-8, which a server without an encoding may
	// send: the bytes are replaced then.
	dst, _ = jsontext.AppendQuote(dst, text)
	return dst
}

func appendBool(dst, text []byte) []byte {
	switch string(text) {
	case "t":
		return append(dst, "true"...)
	case "f":
		return append(dst, "false"...)
	}
	return appendText(dst, text)
}

// appendNumber keeps all digits. NaN and Infinity are no numbers in JSON.
func appendNumber(dst, text []byte) []byte {
	digits := bytes.TrimPrefix(text, []byte{'-'})
	if len(digits) == 0 || digits[0] < '0' || digits[0] > '9' {
		return appendText(dst, text)
	}
	return append(dst, text...)
}

func appendBytes(dst, text []byte) []byte {
	digits, ok := bytes.CutPrefix(text, []byte(`\x`))
	raw := make([]byte, hex.DecodedLen(len(digits)))
	if _, err := hex.Decode(raw, digits); !ok || err != nil {
		return appendText(dst, text)
	}
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, raw)
	return append(dst, '"')
}

// appendJSON embeds a value as it is. The type json takes what events do not:
// names twice, half surrogate pairs, deep nesting. That is given as text.
func appendJSON(dst, text []byte) []byte {
	start := len(dst)
	// It stands in an object, and may stand in an array of arrays there.
	const open, end = "[[[[[[[", "]]]]]]]" // an object and maxDimensions
	dst = append(append(append(dst, open...), text...), end...)
	fits := event.CheckJSON(dst[start:]) == nil
	if dst = dst[:start]; !fits {
		return appendText(dst, text)
	}
	return append(dst, text...)
}

// appendTimestamp writes 2026-01-02 03:04:05.6+00 as RFC 3339 has it. Infinity
// and years that are not of four digits stay as they are.
func appendTimestamp(dst, text []byte) []byte {
	const day = len("2026-01-02")
	if len(text) <= day || text[day] != ' ' || text[4] != '-' || bytes.HasSuffix(text, []byte("BC")) {
		return appendText(dst, text)
	}
	dst = append(dst, '"')
	dst = append(append(append(dst, text[:day]...), 'T'), text[day+1:]...)
	if bytes.HasSuffix(dst, []byte("+00")) {
		dst = append(dst[:len(dst)-len("+00")], 'Z')
	}
	return append(dst, '"')
}

// arrayOf gives the encoder of arrays: {1,NULL,"a b"} and {{1,2},{3,4}}.
func arrayOf(element encoder, delimiter byte) encoder {
	return func(dst, text []byte) []byte {
		literal := text
		if len(literal) > 0 && literal[0] == '[' { // its bounds: [0:1]={…}
			if i := bytes.IndexByte(literal, '='); i > 0 {
				literal = literal[i+1:]
			}
		}
		a := arrayReader{rest: literal, element: element, delimiter: delimiter}
		start := len(dst)
		if dst = a.array(dst); a.bad || len(a.rest) > 0 {
			return appendText(dst[:start], text)
		}
		return dst
	}
}

type arrayReader struct {
	rest      []byte
	element   encoder
	delimiter byte
	depth     int
	bad       bool
}

// maxDimensions is the most that the server has.
const maxDimensions = 6

func (a *arrayReader) next() byte {
	if len(a.rest) == 0 {
		a.bad = true
		return 0
	}
	c := a.rest[0]
	a.rest = a.rest[1:]
	return c
}

func (a *arrayReader) array(dst []byte) []byte {
	if a.depth++; a.next() != '{' || a.depth > maxDimensions {
		a.bad = true
		return dst
	}
	defer func() { a.depth-- }()
	dst = append(dst, '[')
	if len(a.rest) > 0 && a.rest[0] == '}' {
		a.next()
		return append(dst, ']')
	}
	for !a.bad {
		if len(a.rest) > 0 && a.rest[0] == '{' {
			dst = a.array(dst)
		} else {
			dst = a.item(dst)
		}
		switch a.next() {
		case a.delimiter:
			dst = append(dst, ',')
		case '}':
			return append(dst, ']')
		default:
			a.bad = true
		}
	}
	return dst
}

// item reads one element: NULL, a bare word or a quoted one.
func (a *arrayReader) item(dst []byte) []byte {
	if len(a.rest) == 0 || a.rest[0] != '"' {
		end := bytes.IndexAny(a.rest, string([]byte{a.delimiter, '}'}))
		if end < 0 {
			a.bad = true
			return dst
		}
		word := a.rest[:end]
		a.rest = a.rest[end:]
		if strings.EqualFold(string(word), "NULL") {
			return append(dst, "null"...)
		}
		return a.element(dst, word)
	}
	a.next()
	var word []byte
	for !a.bad {
		switch c := a.next(); c {
		case '"':
			return a.element(dst, word)
		case '\\':
			word = append(word, a.next())
		default:
			word = append(word, c)
		}
	}
	return dst
}
