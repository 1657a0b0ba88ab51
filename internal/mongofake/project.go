package mongofake

import (
	"cmp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// projection makes a document from another.
type projection func(bson.Raw) (bson.Raw, error)

type projected struct {
	path []string
	from []string // the path that the value is taken from; nil: its own
	keep bool
}

// compileProjection reads which fields are kept, left out, or taken from
// elsewhere ("$a.b").
func compileProjection(doc bson.Raw) (projection, error) {
	elements, err := doc.Elements()
	if err != nil {
		return nil, failf(codeFailedToParse, "the projection cannot be read: %v", err)
	}
	if len(elements) == 0 {
		return func(d bson.Raw) (bson.Raw, error) { return d, nil }, nil
	}
	var fields []projected
	id := true
	keeps, drops := false, false
	for _, e := range elements {
		key, v := e.Key(), e.Value()
		f := projected{path: strings.Split(key, ".")}
		source, isText := v.StringValueOK()
		switch {
		case class(v.Type) == 8 || class(v.Type) == 2:
			f.keep = truthy(v)
		case isText && len(source) > 1 && source[0] == '$' && source[1] != '$':
			f.keep, f.from = true, strings.Split(source[1:], ".")
		default:
			return nil, failf(codeFailedToParse, "the fake does not know the projection of '%s'", key)
		}
		if key == "_id" && f.from == nil {
			id = f.keep
			continue
		}
		keeps, drops = keeps || f.keep, drops || !f.keep
		fields = append(fields, f)
	}
	if keeps && drops {
		return nil, failf(31254, "Cannot do exclusion in inclusion projection, or the other way round")
	}
	if !keeps && (drops || !id) {
		return leaving(fields, id), nil
	}
	return keeping(fields, id), nil
}

func leaving(fields []projected, id bool) projection {
	return func(doc bson.Raw) (bson.Raw, error) {
		d := decode(doc)
		for _, f := range fields {
			if err := crosses(doc, f.path); err != nil {
				return nil, err
			}
			d = without(d, f.path)
		}
		if !id {
			d = without(d, []string{"_id"})
		}
		return encode(d), nil
	}
}

func keeping(fields []projected, id bool) projection {
	return func(doc bson.Raw) (bson.Raw, error) {
		var d bson.D
		if v, err := doc.LookupErr("_id"); err == nil && id {
			d = append(d, bson.E{Key: "_id", Value: v})
		}
		for _, f := range fields {
			from := f.path
			if f.from != nil {
				from = f.from
			}
			if err := crosses(doc, from); err != nil {
				return nil, err
			}
			v, err := doc.LookupErr(from...)
			if err != nil {
				continue
			}
			if d, err = into(d, f.path, func(any, bool) (any, error) { return v, nil }); err != nil {
				return nil, err
			}
		}
		return encode(d), nil
	}
}

// crosses refuses a path that goes through an array: there, a projection means
// each of its elements, which the fake does not know.
func crosses(doc bson.Raw, path []string) error {
	for i := 1; i < len(path); i++ {
		if v, err := doc.LookupErr(path[:i]...); err == nil && v.Type == bson.TypeArray {
			return failf(codeFailedToParse, "the fake does not project '%s' through an array", strings.Join(path, "."))
		}
	}
	return nil
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
