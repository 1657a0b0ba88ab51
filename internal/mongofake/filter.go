package mongofake

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// predicate says whether a document is meant.
type predicate func(bson.Raw) bool

// test says whether what stands at a path is meant.
type test func(found) bool

// found is what a path leads to. An array along the way leads to several
// values, and an array at the end stands for itself and for its elements.
type found struct {
	values  []bson.RawValue
	missing bool // it leads nowhere, at least along one way
}

func everything(bson.Raw) bool { return true }

// compileFilter reads a filter, and refuses what it does not know.
func compileFilter(filter bson.Raw) (predicate, error) {
	if len(filter) == 0 {
		return everything, nil
	}
	elements, err := filter.Elements()
	if err != nil {
		return nil, failf(codeBadValue, "the filter cannot be read: %v", err)
	}
	var all []predicate
	for _, e := range elements {
		p, err := compileElement(e)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return func(doc bson.Raw) bool {
		for _, p := range all {
			if !p(doc) {
				return false
			}
		}
		return true
	}, nil
}

func compileElement(e bson.RawElement) (predicate, error) {
	key, v := e.Key(), e.Value()
	switch key {
	case "$and", "$or", "$nor":
		return compileBranches(key, v)
	case "$comment":
		return everything, nil
	case "$expr":
		x, err := compileExpression(v)
		if err != nil {
			return nil, err
		}
		return func(doc bson.Raw) bool {
			got, err := x(scoped(doc, time.Now()))
			return err == nil && holds(got)
		}, nil
	}
	if strings.HasPrefix(key, "$") {
		return nil, failf(codeBadValue, "unknown top level operator: %s (the fake does not know it)", key)
	}
	t, err := compileTest(v)
	if err != nil {
		return nil, err
	}
	path := strings.Split(key, ".")
	return func(doc bson.Raw) bool { return t(lookup(doc, path)) }, nil
}

func compileBranches(key string, v bson.RawValue) (predicate, error) {
	list, err := documents(v)
	if err != nil || len(list) == 0 {
		return nil, failf(codeBadValue, "%s must be a nonempty array of documents", key)
	}
	var branches []predicate
	for _, doc := range list {
		p, err := compileFilter(doc)
		if err != nil {
			return nil, err
		}
		branches = append(branches, p)
	}
	return func(doc bson.Raw) bool {
		for _, p := range branches {
			if p(doc) != (key == "$and") {
				return key == "$or"
			}
		}
		return key != "$or"
	}, nil
}

// documents reads an array of documents.
func documents(v bson.RawValue) ([]bson.Raw, error) {
	array, ok := v.ArrayOK()
	if !ok {
		return nil, fmt.Errorf("it is a %s", v.Type)
	}
	values, err := array.Values()
	if err != nil {
		return nil, err
	}
	list := make([]bson.Raw, 0, len(values))
	for _, v := range values {
		doc, ok := v.DocumentOK()
		if !ok {
			return nil, fmt.Errorf("it holds a %s", v.Type)
		}
		list = append(list, doc)
	}
	return list, nil
}

// compileTest reads what stands behind a path: a value, or operators.
func compileTest(v bson.RawValue) (test, error) {
	doc, ok := v.DocumentOK()
	if !ok {
		return equals(v)
	}
	elements, err := doc.Elements()
	if err != nil {
		return nil, failf(codeBadValue, "the filter cannot be read: %v", err)
	}
	if len(elements) == 0 || !strings.HasPrefix(elements[0].Key(), "$") {
		return equals(v)
	}
	var all []test
	for _, e := range elements {
		t, err := compileOperator(e.Key(), e.Value())
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return func(f found) bool {
		for _, t := range all {
			if !t(f) {
				return false
			}
		}
		return true
	}, nil
}

func compileOperator(op string, v bson.RawValue) (test, error) {
	switch op {
	case "$eq":
		return equals(v)
	case "$ne":
		return negated(equals(v))
	case "$gt":
		return ordered(v, func(c int) bool { return c > 0 })
	case "$gte":
		return ordered(v, func(c int) bool { return c >= 0 })
	case "$lt":
		return ordered(v, func(c int) bool { return c < 0 })
	case "$lte":
		return ordered(v, func(c int) bool { return c <= 0 })
	case "$in":
		return among(op, v)
	case "$nin":
		return negated(among(op, v))
	case "$exists":
		want := truthy(v)
		return func(f found) bool { return (len(f.values) > 0) == want }, nil
	case "$not":
		if v.Type != bson.TypeEmbeddedDocument {
			return nil, failf(codeBadValue, "$not needs a document of operators")
		}
		return negated(compileTest(v))
	}
	return nil, failf(codeBadValue, "unknown operator: %s (the fake does not know it)", op)
}

func negated(t test, err error) (test, error) {
	return func(f found) bool { return !t(f) }, err
}

func equals(v bson.RawValue) (test, error) {
	if v.Type == bson.TypeRegex {
		return nil, failf(codeBadValue, "the fake does not know regular expressions")
	}
	null := class(v.Type) == class(bson.TypeNull)
	return func(f found) bool {
		return null && f.missing || f.any(func(x bson.RawValue) bool { return compare(x, v) == 0 })
	}, nil
}

// ordered compares within the class of the operand: a number is neither above
// nor below a text. Null is equal to what is missing.
func ordered(v bson.RawValue, holds func(int) bool) (test, error) {
	switch class(v.Type) {
	case class(bson.TypeRegex), class(bson.TypeMinKey), class(bson.TypeMaxKey):
		return nil, failf(codeBadValue, "the fake does not order by a %s", v.Type)
	}
	null := class(v.Type) == class(bson.TypeNull)
	return func(f found) bool {
		if null && holds(0) && f.missing {
			return true
		}
		return f.any(func(x bson.RawValue) bool { return class(x.Type) == class(v.Type) && holds(compare(x, v)) })
	}, nil
}

func among(op string, v bson.RawValue) (test, error) {
	array, ok := v.ArrayOK()
	if !ok {
		return nil, failf(codeBadValue, "%s needs an array", op)
	}
	values, err := array.Values()
	if err != nil {
		return nil, failf(codeBadValue, "%s: %v", op, err)
	}
	set := make(map[string]bool, len(values))
	null := false
	for _, x := range values {
		if x.Type == bson.TypeRegex {
			return nil, failf(codeBadValue, "the fake does not know regular expressions")
		}
		null = null || class(x.Type) == class(bson.TypeNull)
		set[identity(x)] = true
	}
	return func(f found) bool {
		return null && f.missing || f.any(func(x bson.RawValue) bool { return set[identity(x)] })
	}, nil
}

// any asks for the values, and for the elements of those that are arrays.
func (f found) any(is func(bson.RawValue) bool) bool {
	for _, v := range f.values {
		if is(v) {
			return true
		}
		if array, ok := v.ArrayOK(); ok {
			list, _ := array.Values()
			for _, x := range list {
				if is(x) {
					return true
				}
			}
		}
	}
	return false
}

// lookup follows a path.
func lookup(doc bson.Raw, path []string) found {
	var f found
	f.walk(doc, path)
	return f
}

func (f *found) walk(doc bson.Raw, path []string) {
	v, err := doc.LookupErr(path[0])
	if err != nil {
		f.missing = true
		return
	}
	f.step(v, path[1:])
}

func (f *found) step(v bson.RawValue, path []string) {
	if len(path) == 0 {
		f.values = append(f.values, v)
		return
	}
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		f.walk(v.Document(), path)
	case bson.TypeArray:
		list, _ := v.Array().Values()
		if i, err := strconv.Atoi(path[0]); err == nil && i >= 0 && i < len(list) {
			f.step(list[i], path[1:])
		}
		for _, x := range list {
			if x.Type == bson.TypeEmbeddedDocument {
				f.walk(x.Document(), path)
			}
		}
	default:
		f.missing = true
	}
}

// pinned gives the _id that a filter demands, if it demands one.
func pinned(filter bson.Raw) (bson.RawValue, bool) {
	v, err := filter.LookupErr("_id")
	if err != nil {
		return bson.RawValue{}, false
	}
	if doc, ok := v.DocumentOK(); ok {
		elements, _ := doc.Elements()
		if len(elements) == 0 || !strings.HasPrefix(elements[0].Key(), "$") {
			return v, true
		}
		if len(elements) != 1 || elements[0].Key() != "$eq" {
			return bson.RawValue{}, false
		}
		v = elements[0].Value()
	}
	return v, v.Type != bson.TypeArray && v.Type != bson.TypeRegex && class(v.Type) != class(bson.TypeNull)
}
