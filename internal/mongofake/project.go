package mongofake

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// projection makes a document from another.
type projection func(bson.Raw) (bson.Raw, error)

// fields are paths as a tree; nil is the whole of what stands there.
type fields map[string]fields

func (f fields) add(path []string) {
	for i, part := range path {
		below, known := f[part]
		switch {
		case known && below == nil:
			return
		case i == len(path)-1:
			f[part] = nil
			return
		case below == nil:
			below = fields{}
			f[part] = below
		}
		f = below
	}
}

// setting are fields whose values are made.
type setting []struct {
	path []string
	make expression
}

// add adds a field.
func (s *setting) add(path []string, x expression) {
	*s = append(*s, struct {
		path []string
		make expression
	}{path, x})
}

// compileSetting reads the fields of the stage $set.
func compileSetting(set bson.Raw) (s setting, err error) {
	elements, err := set.Elements()
	if err != nil {
		return nil, failf(codeFailedToParse, "$set cannot be read: %v", err)
	}
	for _, e := range elements {
		x, err := compileExpression(e.Value())
		if err != nil {
			return nil, err
		}
		s.add(strings.Split(e.Key(), "."), x)
	}
	return s, nil
}

// apply sets the fields of d to what follows from a document. One for which
// nothing follows stays as it is.
func (s setting) apply(doc bson.Raw, d bson.D, now time.Time) (bson.D, error) {
	about := scoped(doc, now)
	for _, f := range s {
		v, err := f.make(about)
		if err != nil {
			return nil, err
		}
		if v.IsZero() {
			continue
		}
		if d, err = into(d, f.path, func(any, bool) (any, error) { return v, nil }); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// compileProjection reads which fields are kept, left out, or made by an
// expression.
func compileProjection(doc bson.Raw) (projection, error) {
	elements, err := doc.Elements()
	if err != nil {
		return nil, failf(codeFailedToParse, "the projection cannot be read: %v", err)
	}
	if len(elements) == 0 {
		return func(d bson.Raw) (bson.Raw, error) { return d, nil }, nil
	}
	kept, left := fields{}, fields{}
	var made setting
	id := true
	for _, e := range elements {
		key, v := e.Key(), e.Value()
		path := strings.Split(key, ".")
		plain := class(v.Type) == 8 || class(v.Type) == 2
		switch {
		case plain && key == "_id":
			id = truthy(v)
		case plain && truthy(v):
			kept.add(path)
		case plain:
			left.add(path)
		default:
			x, err := compileComputed(path, v)
			if err != nil {
				return nil, err
			}
			made.add(path, x)
		}
	}
	keeps := len(kept)+len(made) > 0 || id && len(left) == 0
	if keeps && len(left) > 0 {
		return nil, failf(31254, "Cannot do exclusion in inclusion projection, or the other way round")
	}
	if !keeps {
		if !id {
			left.add([]string{"_id"})
		}
		return func(doc bson.Raw) (bson.Raw, error) { return encode(pick(doc, left, false)), nil }, nil
	}
	if id {
		kept.add([]string{"_id"})
	}
	return func(doc bson.Raw) (bson.Raw, error) {
		d, err := made.apply(doc, pick(doc, kept, true), time.Now())
		return encode(d), err
	}, nil
}

// compileComputed reads an expression, or $elemMatch.
func compileComputed(path []string, v bson.RawValue) (expression, error) {
	spec, _ := v.DocumentOK()
	match, err := spec.LookupErr("$elemMatch")
	if err != nil {
		return compileExpression(v)
	}
	filter, ok := match.DocumentOK()
	if !ok || len(path) != 1 {
		return nil, failf(codeBadValue, "the fake knows $elemMatch with a filter, of a field at the top")
	}
	is, err := compileFilter(filter)
	if err != nil {
		return nil, err
	}
	return func(s scope) (bson.RawValue, error) { return elementOf(s.doc.Lookup(path[0]), is), nil }, nil
}

// pick gives a document with some fields, or without them. In an array it does
// so with each element.
func pick(doc bson.Raw, which fields, keep bool) bson.D {
	d := bson.D{}
	elements, _ := doc.Elements()
	for _, e := range elements {
		below, named := which[e.Key()]
		if !named || below == nil {
			if named == keep {
				d = append(d, bson.E{Key: e.Key(), Value: e.Value()})
			}
			continue
		}
		if v, some := pickBelow(e.Value(), below, keep); some {
			d = append(d, bson.E{Key: e.Key(), Value: v})
		}
	}
	return d
}

func pickBelow(v bson.RawValue, which fields, keep bool) (any, bool) {
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		return pick(v.Document(), which, keep), true
	case bson.TypeArray:
		list := bson.A{}
		values, _ := v.Array().Values()
		for _, x := range values {
			if y, some := pickBelow(x, which, keep); some {
				list = append(list, y)
			}
		}
		return list, true
	}
	return v, !keep
}

// decode reads a document that was validated before.
func decode(doc bson.Raw) bson.D {
	var d bson.D
	if err := bson.Unmarshal(doc, &d); err != nil {
		panic("mongofake: a stored document cannot be read: " + err.Error())
	}
	return d
}

// sorter reads an order of documents; nil leaves them as they are.
func sorter(order bson.Raw) (func(a, b bson.Raw) int, error) {
	elements, err := order.Elements()
	if err != nil && len(order) > 0 {
		return nil, failf(codeFailedToParse, "the sort cannot be read: %v", err)
	}
	type key struct {
		path []string
		sign int
	}
	var keys []key
	for _, e := range elements {
		v := e.Value()
		if class(v.Type) != 2 || float(v) != 1 && float(v) != -1 {
			return nil, failf(codeBadValue, "the fake sorts by 1 or -1, not by %s", v)
		}
		if e.Key() == "$natural" {
			return nil, failf(codeBadValue, "the fake does not know $natural")
		}
		keys = append(keys, key{path: strings.Split(e.Key(), "."), sign: int(float(v))})
	}
	if len(keys) == 0 {
		return nil, nil
	}
	return func(a, b bson.Raw) int {
		for _, k := range keys {
			if c := compare(extreme(a, k.path, k.sign), extreme(b, k.path, k.sign)); c != 0 {
				return c * k.sign
			}
		}
		return 0
	}, nil
}

// extreme gives the value that a document is sorted by: of an array the least
// element, or the greatest when sorting downwards. What is missing is null.
func extreme(doc bson.Raw, path []string, sign int) bson.RawValue {
	f := lookup(doc, path)
	values := make([]bson.RawValue, 0, len(f.values))
	for _, v := range f.values {
		if array, ok := v.ArrayOK(); ok {
			list, _ := array.Values()
			values = append(values, list...)
			continue
		}
		values = append(values, v)
	}
	if len(values) == 0 {
		return bson.RawValue{Type: bson.TypeNull}
	}
	return slices.MinFunc(values, func(a, b bson.RawValue) int { return cmp.Compare(compare(a, b)*sign, 0) })
}
