// Package document has the rules that documents keep to on every engine: names,
// indexes and bodies, and when two numbers are equal.
package document

import (
	"fmt"
	"slices"

	"promethean/event"
	"promethean/store"
)

// What a declaration keeps to.
const (
	MaxName    = 128
	MaxIndexes = 64 // of a collection
	MaxFields  = 32 // that the indexes of a collection name
	MaxField   = 1 << 10
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", store.ErrInvalid, fmt.Sprintf(format, args...))
}

func checkName(what, name string) error {
	if n := len(name); n == 0 || n > MaxName {
		return invalid("the name of a %s has 1 to %d bytes, this one has %d", what, MaxName, n)
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '_', c == '-', c == '~', c == ':':
		default:
			return invalid("the name %q of a %s has other characters than letters, digits and . _ - ~ :", name, what)
		}
	}
	return nil
}

// CheckReader tells whether a declaration is one.
func CheckReader(r *store.Reader) error {
	if err := checkName("reader", r.Name); err != nil {
		return err
	}
	names := make(map[string]bool)
	for _, c := range r.Collections {
		if err := checkName("collection", c.Name); err != nil {
			return err
		}
		if names[c.Name] {
			return invalid("reader %s declares collection %s twice", r.Name, c.Name)
		}
		names[c.Name] = true
		if err := checkIndexes(c.Indexes); err != nil {
			return fmt.Errorf("collection %s: %w", c.Name, err)
		}
	}
	return nil
}

func checkIndexes(list []store.Index) error {
	if len(list) > MaxIndexes {
		return invalid("%d indexes, at most %d", len(list), MaxIndexes)
	}
	for i, x := range list {
		if len(x.Fields) == 0 {
			return invalid("index %d has no fields", i)
		}
		for k, f := range x.Fields {
			if n := len(f); n == 0 || n > MaxField {
				return invalid("index %d: the name of a field has 1 to %d bytes, this one has %d", i, MaxField, n)
			}
			if slices.Contains(x.Fields[:k], f) {
				return invalid("index %d names the field %q twice", i, f)
			}
		}
		for k := range i {
			if slices.Equal(list[k].Fields, x.Fields) {
				return invalid("indexes %d and %d are over the same fields %q", k, i, x.Fields)
			}
		}
	}
	if n := len(Fields(list)); n > MaxFields {
		return invalid("the indexes name %d fields, at most %d", n, MaxFields)
	}
	return nil
}

// CheckBody tells whether a body is a JSON object.
func CheckBody(body []byte) error {
	i := 0
	for i < len(body) && space(body[i]) {
		i++
	}
	if i == len(body) || body[i] != '{' {
		return fmt.Errorf("%w: the body of a document must be a JSON object", store.ErrInvalid)
	}
	if err := event.CheckJSON(body); err != nil {
		return fmt.Errorf("%w: the body of a document: %w", store.ErrInvalid, err)
	}
	return nil
}

// Fields gives the fields that some index names.
func Fields(indexes []store.Index) (list []string) {
	for _, x := range indexes {
		for _, f := range x.Fields {
			if !slices.Contains(list, f) {
				list = append(list, f)
			}
		}
	}
	return list
}

func space(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
