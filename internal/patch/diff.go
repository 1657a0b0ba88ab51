package patch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Change is one difference: the value at a path (RFC 6901) before and after.
type Change struct {
	// Op is add, remove or replace.
	Op   string          `json:"op"`
	Path string          `json:"path"`
	From json.RawMessage `json:"from,omitempty"` // not of an add
	To   json.RawMessage `json:"to,omitempty"`   // not of a remove
}

// Diff says what differs between two JSON values: members of objects in the
// order of their names, elements of arrays by their place. Equal values have no
// changes.
func Diff(from, to []byte) ([]Change, error) {
	a, err := parseTree(from)
	if err != nil {
		return nil, err
	}
	b, err := parseTree(to)
	if err != nil {
		return nil, err
	}
	return diff(nil, "", a, b), nil
}

// tree is a JSON value with all that is in it.
type tree struct {
	raw     json.RawMessage
	kind    jsontext.Kind
	members map[string]*tree // of an object
	list    []*tree          // of an array
}

func parseTree(text []byte) (*tree, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	t, err := readTree(d, text)
	if err != nil {
		return nil, fmt.Errorf("no JSON: %w", err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("no JSON: there is something behind the value")
	}
	return t, nil
}

func readTree(d *jsontext.Decoder, text []byte) (*tree, error) {
	t := &tree{kind: d.PeekKind()}
	if t.kind != '{' && t.kind != '[' {
		raw, err := d.ReadValue()
		t.raw = json.RawMessage(raw.Clone())
		return t, err
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	begin := d.InputOffset() - 1
	if t.kind == '{' {
		t.members = make(map[string]*tree)
	}
	for k := d.PeekKind(); k != '}' && k != ']'; k = d.PeekKind() {
		name := ""
		if t.kind == '{' {
			token, err := d.ReadToken()
			if err != nil {
				return nil, err
			}
			name = token.String()
		}
		below, err := readTree(d, text)
		if err != nil {
			return nil, err
		}
		if t.kind == '{' {
			t.members[name] = below
		} else {
			t.list = append(t.list, below)
		}
	}
	_, err := d.ReadToken()
	t.raw = text[begin:d.InputOffset()]
	return t, err
}

func diff(list []Change, path string, a, b *tree) []Change {
	switch {
	case a.kind == '{' && b.kind == '{':
		return diffObjects(list, path, a.members, b.members)
	case a.kind == '[' && b.kind == '[':
		return diffArrays(list, path, a.list, b.list)
	case equal(a, b):
		return list
	}
	return append(list, Change{"replace", path, a.raw, b.raw})
}

func diffObjects(list []Change, path string, a, b map[string]*tree) []Change {
	names := make([]string, 0, len(a)+len(b))
	for name := range a {
		names = append(names, name)
	}
	for name := range b {
		if a[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		at := path + "/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
		switch x, y := a[name], b[name]; {
		case x == nil:
			list = append(list, Change{Op: "add", Path: at, To: y.raw})
		case y == nil:
			list = append(list, Change{Op: "remove", Path: at, From: x.raw})
		default:
			list = diff(list, at, x, y)
		}
	}
	return list
}

func diffArrays(list []Change, path string, a, b []*tree) []Change {
	for i := range max(len(a), len(b)) {
		at := path + "/" + strconv.Itoa(i)
		switch {
		case i >= len(a):
			list = append(list, Change{Op: "add", Path: at, To: b[i].raw})
		case i >= len(b):
			list = append(list, Change{Op: "remove", Path: at, From: a[i].raw})
		default:
			list = diff(list, at, a[i], b[i])
		}
	}
	return list
}

// equal compares values that are not both objects or both arrays.
func equal(a, b *tree) bool {
	switch {
	case a.kind != b.kind:
		return false
	case a.kind == '0':
		return sameNumber(string(a.raw), string(b.raw))
	case a.kind == '"' && !bytes.Equal(a.raw, b.raw):
		// They may be written in different ways. What is no text is what it is.
		x, errX := jsontext.AppendUnquote(nil, a.raw)
		y, errY := jsontext.AppendUnquote(nil, b.raw)
		return errX == nil && errY == nil && bytes.Equal(x, y)
	}
	return bytes.Equal(a.raw, b.raw)
}

// sameNumber compares numbers by value, whatever their size.
func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	x, okX := decimalOf(a)
	y, okY := decimalOf(b)
	return okX && okY && x == y
}

// decimal is a number as 0.digits × 10^exponent, so that equal numbers are equal
// values.
type decimal struct {
	negative bool
	digits   string // without zeros at either end
	exponent int64
}

// decimalOf reads a number. One whose exponent is beyond all sense is equal to
// nothing but its own text.
func decimalOf(s string) (d decimal, ok bool) {
	s, d.negative = strings.CutPrefix(s, "-")
	mantissa, exponent := s, ""
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		mantissa, exponent = s[:i], s[i+1:]
	}
	if exponent != "" {
		n, err := strconv.ParseInt(exponent, 10, 64)
		if err != nil || n > 1<<60 || n < -1<<60 {
			return d, false
		}
		d.exponent = n
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := whole + fraction
	d.exponent += int64(len(whole))
	cut := strings.TrimLeft(digits, "0")
	d.exponent -= int64(len(digits) - len(cut))
	d.digits = strings.TrimRight(cut, "0")
	if d.digits == "" {
		return decimal{}, true // zero has neither sign nor size
	}
	return d, true
}
