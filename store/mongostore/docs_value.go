package mongostore

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"promethean/event"
	"promethean/store"
	"promethean/store/internal/document"
)

const (
	// deepest is how deep fields are shown; the server takes 100 levels.
	deepest = 64
	// maxShown is how large a document may be with its fields; the server's
	// limit is 16 MiB. A larger one is kept without them.
	maxShown = 15 << 20
	// maxPlain is how many bytes of a value are compared as they are.
	maxPlain = 64
)

// parsed is a body as it is stored.
type parsed struct {
	// shown are the fields of its top level, as elements of a document.
	shown []byte
	// values are what its scalars are compared by, by field.
	values []fieldValue
}

type fieldValue struct{ field, value string }

func (p *parsed) value(field string) (string, bool) {
	for _, v := range p.values {
		if v.field == field {
			return v.value, true
		}
	}
	return "", false
}

// valuePath is where the value of a field is stored. Characters that have a
// meaning in paths are escaped.
func valuePath(field string) string { return "_x." + escapeField(field) }

var fieldEscapes = strings.NewReplacer("%", "%25", ".", "%2e", "$", "%24", "\x00", "%00")

func escapeField(field string) string { return fieldEscapes.Replace(field) }

// showable says whether a field can be shown under its name: some names the
// server has no room for, or gives a meaning.
func showable(name string) bool {
	return name != "" && name[0] != '$' && !strings.ContainsAny(name, ".\x00")
}

// checkDoc tells whether an operation is one.
func checkDoc(x *store.Doc) error {
	if n := len(x.Key); n == 0 || n > event.MaxKey {
		return fmt.Errorf("%w: a key has 1 to %d bytes, this one has %d", store.ErrInvalid, event.MaxKey, n)
	}
	if !utf8.ValidString(x.Key) {
		return fmt.Errorf("%w: key %q is no UTF-8", store.ErrInvalid, shorten(x.Key))
	}
	if _, err := seqOf(x.Seq); err != nil {
		return err
	}
	if x.Body == nil {
		return nil
	}
	if err := document.CheckBody(x.Body); err != nil {
		return err
	}
	if n := len(x.Body); n > maxShown {
		return fmt.Errorf("%w: a body of %d bytes, at most %d on MongoDB", store.ErrInvalid, n, maxShown)
	}
	return nil
}

// parse reads a body that checkDoc has accepted.
func parse(body []byte) (p parsed, err error) {
	dec := jsontext.NewDecoder(bytes.NewReader(body))
	if _, err := dec.ReadToken(); err != nil { // the brace
		return p, err
	}
	for dec.PeekKind() != '}' {
		token, err := dec.ReadToken()
		if err != nil {
			return p, err
		}
		name := token.String()
		kind := dec.PeekKind()
		if kind == '{' || kind == '[' {
			if !showable(name) || name[0] == '_' {
				err = dec.SkipValue()
			} else {
				p.shown, err = appendShown(p.shown, name, dec, 2)
			}
			if err != nil {
				return p, err
			}
			continue
		}
		raw, err := dec.ReadValue()
		if err != nil {
			return p, err
		}
		p.values = append(p.values, fieldValue{name, valueOf(raw)})
		if showable(name) && name[0] != '_' {
			if p.shown, err = appendScalar(p.shown, name, raw); err != nil {
				return p, err
			}
		}
	}
	return p, nil
}

// appendShown appends the next value of dec under a name, as what people would
// have stored.
func appendShown(dst []byte, name string, dec *jsontext.Decoder, depth int) ([]byte, error) {
	kind := dec.PeekKind()
	if kind != '{' && kind != '[' {
		raw, err := dec.ReadValue()
		if err != nil {
			return dst, err
		}
		return appendScalar(dst, name, raw)
	}
	if depth > deepest {
		return bsoncore.AppendNullElement(dst, name), dec.SkipValue()
	}
	if _, err := dec.ReadToken(); err != nil {
		return dst, err
	}
	var at int32
	if kind == '{' {
		at, dst = bsoncore.AppendDocumentElementStart(dst, name)
	} else {
		at, dst = bsoncore.AppendArrayElementStart(dst, name)
	}
	for i := 0; dec.PeekKind() != '}' && dec.PeekKind() != ']'; i++ {
		inner := strconv.Itoa(i)
		if kind == '{' {
			token, err := dec.ReadToken()
			if err != nil {
				return dst, err
			}
			if inner = token.String(); !showable(inner) {
				if err := dec.SkipValue(); err != nil {
					return dst, err
				}
				continue
			}
		}
		var err error
		if dst, err = appendShown(dst, inner, dec, depth+1); err != nil {
			return dst, err
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return dst, err
	}
	return bsoncore.AppendDocumentEnd(dst, at) // an array ends as a document does
}

func appendScalar(dst []byte, name string, raw []byte) ([]byte, error) {
	switch raw[0] {
	case 'n':
		return bsoncore.AppendNullElement(dst, name), nil
	case 't', 'f':
		return bsoncore.AppendBooleanElement(dst, name, raw[0] == 't'), nil
	case '"':
		text, err := jsontext.AppendUnquote(nil, raw)
		return bsoncore.AppendStringElement(dst, name, string(text)), err
	}
	text := string(raw)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return bsoncore.AppendInt64Element(dst, name, n), nil
	}
	if len(text) <= maxPlain {
		normal := string(document.AppendNumber(nil, raw))
		// The shortest digits of the double are those that were written: it is
		// what everybody makes of them.
		f, err := strconv.ParseFloat(text, 64)
		if err == nil && string(document.AppendNumber(nil, strconv.AppendFloat(nil, f, 'e', -1, 64))) == normal {
			return bsoncore.AppendDoubleElement(dst, name, f), nil
		}
		if d, err := bson.ParseDecimal128(text); err == nil {
			high, low := d.GetBytes()
			return bsoncore.AppendDecimal128Element(dst, name, high, low), nil
		}
	}
	return bsoncore.AppendStringElement(dst, name, text), nil
}

// valueOf brings a scalar to a text that is equal where values are. It has no
// zero byte.
func valueOf(raw []byte) string {
	switch raw[0] {
	case 'n', 't', 'f':
		return string(raw[:1])
	case '"':
		text, _ := jsontext.AppendUnquote(nil, raw) // it was checked
		if len(text) <= maxPlain && bytes.IndexByte(text, 0) < 0 {
			return "s" + string(text)
		}
		return "S" + sumOf(text)
	}
	digits := document.AppendNumber(nil, raw)
	if len(digits) <= maxPlain {
		return "d" + string(digits)
	}
	return "D" + sumOf(digits)
}

func sumOf(text []byte) string {
	sum := sha256.Sum256(text)
	return base64.RawStdEncoding.EncodeToString(sum[:])
}

// filterValue is what a value to look for is compared by.
func filterValue(v json.RawMessage) (string, error) {
	if err := event.CheckJSON(v); err != nil {
		return "", fmt.Errorf("%w: %w", store.ErrInvalid, err)
	}
	v = bytes.TrimSpace(v)
	if v[0] == '{' || v[0] == '[' {
		return "", fmt.Errorf("%w: objects and arrays cannot be looked for", store.ErrInvalid)
	}
	return valueOf(v), nil
}

var errTooLarge = fmt.Errorf("%w: the document is larger than the server takes", store.ErrInvalid)

// encodeDoc makes what is stored.
func encodeDoc(x *store.Doc, p *parsed) (bson.Raw, error) {
	at, dst := bsoncore.AppendDocumentStart(make([]byte, 0, 256+2*len(x.Body)+len(p.shown)))
	dst = bsoncore.AppendStringElement(dst, "_id", x.Key)
	dst = bsoncore.AppendStringElement(dst, "_key", x.Key)
	dst = bsoncore.AppendInt64Element(dst, "_ts", x.TS)
	dst = bsoncore.AppendInt64Element(dst, "_seq", int64(x.Seq))
	if x.Version != nil {
		dst = bsoncore.AppendInt64Element(dst, "_v", *x.Version)
	}
	if x.Body == nil {
		dst = bsoncore.AppendBooleanElement(dst, "_deleted", true)
		return bsoncore.AppendDocumentEnd(dst, at)
	}
	rest := bsoncore.AppendStringElement(nil, "_body", string(x.Body))
	begin, rest := bsoncore.AppendDocumentElementStart(rest, "_x")
	for _, v := range p.values {
		if v.field != "" {
			rest = bsoncore.AppendStringElement(rest, escapeField(v.field), v.value)
		}
	}
	rest, err := bsoncore.AppendDocumentEnd(rest, begin)
	if err != nil {
		return nil, err
	}
	if len(dst)+len(p.shown)+len(rest) <= maxShown {
		dst = append(dst, p.shown...)
	}
	if dst = append(dst, rest...); len(dst) > maxShown+512<<10 {
		return nil, errTooLarge
	}
	return bsoncore.AppendDocumentEnd(dst, at)
}

// served is the part of a document that reads bring.
var served = bson.D{
	{Key: "_id", Value: 0}, {Key: "_key", Value: 1}, {Key: "_ts", Value: 1}, {Key: "_seq", Value: 1},
	{Key: "_v", Value: 1}, {Key: "_deleted", Value: 1}, {Key: "_body", Value: 1},
}

// decodeStored reads a document that a query with the projection served gave.
func decodeStored(raw bson.Raw) (x store.Doc, err error) {
	elements, err := raw.Elements()
	if err != nil {
		return x, fmt.Errorf("%w: a document: %w", store.ErrCorrupt, err)
	}
	whole := 0
	for _, e := range elements {
		v, ok := e.Value(), true
		switch e.Key() {
		case "_key":
			x.Key, ok = v.StringValueOK()
			whole++
		case "_ts":
			x.TS, ok = v.AsInt64OK()
			whole++
		case "_seq":
			var seq int64
			seq, ok = v.AsInt64OK()
			x.Seq = uint64(seq)
			whole++
		case "_v":
			var version int64
			version, ok = v.AsInt64OK()
			x.Version = &version
		case "_body":
			var body string
			body, ok = v.StringValueOK()
			x.Body = json.RawMessage(body)
		}
		if !ok {
			return x, fmt.Errorf("%w: the field %s of document %q", store.ErrCorrupt, e.Key(), shorten(x.Key))
		}
	}
	if whole < 3 {
		return x, fmt.Errorf("%w: a document without _key, _ts or _seq", store.ErrCorrupt)
	}
	return x, nil
}

// unexpected is for what a check has ruled out.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", store.ErrInvalid, err)
}
