package mongofeed

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// The driver writes extended JSON too, but takes eight times as long, which would
// bound the feed. Types that are rare are left to it.

var errDamaged = errors.New("the document cannot be read: it is damaged")

// appendDocument writes a document as relaxed extended JSON.
func appendDocument(b []byte, doc bson.Raw) ([]byte, error) {
	return appendElements(append(b, '{'), doc, '}')
}

// appendElements writes the elements of a document or an array.
func appendElements(b []byte, doc []byte, end byte) ([]byte, error) {
	_, rest, ok := bsoncore.ReadLength(doc)
	if !ok {
		return b, errDamaged
	}
	for first := true; len(rest) > 1; first = false {
		var key []byte
		var v bsoncore.Value
		if key, v, rest, ok = readElement(rest); !ok {
			return b, errDamaged
		}
		if !first {
			b = append(b, ',')
		}
		if end == '}' {
			b = append(appendText(b, key), ':')
		}
		var err error
		if b, err = appendValue(b, v); err != nil {
			return b, err
		}
	}
	return append(b, end), nil
}

// readElement reads the first element of those that a document has, with one look
// at its name.
func readElement(b []byte) (key []byte, v bsoncore.Value, rest []byte, ok bool) {
	end := bytes.IndexByte(b, 0)
	if end < 1 {
		return nil, v, nil, false
	}
	v, rest, ok = bsoncore.ReadValue(b[end+1:], bsoncore.Type(b[0]))
	return b[1:end], v, rest, ok
}

// appendText writes a string. What is no UTF-8 is replaced, as the driver does.
func appendText(b, text []byte) []byte {
	if plain(text) {
		b = append(append(b, '"'), text...)
		return append(b, '"')
	}
	b, _ = jsontext.AppendQuote(b, text) // the error says that something was replaced
	return b
}

// plain says that a string is ASCII and needs no escape, as most are.
func plain(text []byte) bool {
	for _, c := range text {
		if c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func appendValue(b []byte, v bsoncore.Value) ([]byte, error) {
	switch bson.Type(v.Type) {
	case bson.TypeString:
		if n := len(v.Data); n >= 5 {
			return appendText(b, v.Data[4:n-1]), nil
		}
	case bson.TypeInt32:
		if n, ok := v.Int32OK(); ok {
			return strconv.AppendInt(b, int64(n), 10), nil
		}
	case bson.TypeInt64:
		if n, ok := v.Int64OK(); ok {
			return strconv.AppendInt(b, n, 10), nil
		}
	case bson.TypeDouble:
		if f, ok := v.DoubleOK(); ok {
			return appendDouble(b, f), nil
		}
	case bson.TypeBoolean:
		if t, ok := v.BooleanOK(); ok {
			return strconv.AppendBool(b, t), nil
		}
	case bson.TypeNull:
		return append(b, "null"...), nil
	case bson.TypeEmbeddedDocument:
		return appendElements(append(b, '{'), v.Data, '}')
	case bson.TypeArray:
		return appendElements(append(b, '['), v.Data, ']')
	case bson.TypeObjectID:
		if len(v.Data) == 12 {
			b = hex.AppendEncode(append(b, `{"$oid":"`...), v.Data)
			return append(b, `"}`...), nil
		}
	case bson.TypeDateTime:
		if ms, ok := v.DateTimeOK(); ok {
			return appendDate(b, ms), nil
		}
	default:
		return appendRare(b, v)
	}
	return b, errDamaged
}

// appendDouble writes a float so that it is known for one: 1 is 1.0.
func appendDouble(b []byte, f float64) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(b, `{"$numberDouble":"Infinity"}`...)
	case math.IsInf(f, -1):
		return append(b, `{"$numberDouble":"-Infinity"}`...)
	case math.IsNaN(f):
		return append(b, `{"$numberDouble":"NaN"}`...)
	}
	start := len(b)
	b = strconv.AppendFloat(b, f, 'G', -1, 64)
	if !bytes.ContainsAny(b[start:], "E.") {
		b = append(b, ".0"...)
	}
	return b
}

// appendDate writes a date of the years 1970 to 9999 as text, and others as
// milliseconds, as the specification of relaxed extended JSON has it.
func appendDate(b []byte, ms int64) []byte {
	t := time.UnixMilli(ms).UTC()
	b = append(b, `{"$date":`...)
	if year := t.Year(); year < 1970 || year > 9999 {
		b = strconv.AppendInt(append(b, `{"$numberLong":"`...), ms, 10)
		return append(b, `"}}`...)
	}
	b = t.AppendFormat(append(b, '"'), time.RFC3339) // which is faster than others
	if rest := int(ms % 1000); rest != 0 {
		b = append(b[:len(b)-1], '.', byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
		for b[len(b)-1] == '0' {
			b = b[:len(b)-1]
		}
		b = append(b, 'Z')
	}
	return append(b, `"}`...)
}

// appendRare has the driver write a value.
func appendRare(b []byte, v bsoncore.Value) ([]byte, error) {
	const before, after = `{"v":`, `}`
	text, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}}}, false, false)
	if err != nil {
		return b, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return append(b, bytes.TrimSuffix(bytes.TrimPrefix(text, []byte(before)), []byte(after))...), nil
}
