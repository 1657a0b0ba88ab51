package mongofake

import (
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// scope is what an expression is about.
type scope struct {
	doc  bson.Raw
	vars map[string]bson.RawValue // without the $$
}

// scoped is the scope of a document, with the variables that every one has.
func scoped(doc bson.Raw, now time.Time) scope {
	return scope{doc: doc, vars: map[string]bson.RawValue{
		"NOW": value(bson.NewDateTimeFromTime(now)), "ROOT": {Type: bson.TypeEmbeddedDocument, Value: doc},
	}}
}

// with is the scope with one variable more.
func (s scope) with(name string, v bson.RawValue) scope {
	vars := make(map[string]bson.RawValue, len(s.vars)+1)
	for k, x := range s.vars {
		vars[k] = x
	}
	vars[name] = v
	return scope{doc: s.doc, vars: vars}
}

// expression gives a value. The zero value says that there is none: a field that
// is missing, which is below everything.
type expression func(scope) (bson.RawValue, error)

var (
	nothing = bson.RawValue{}
	null    = bson.RawValue{Type: bson.TypeNull}
)

// absent says whether a value is missing or null.
func absent(v bson.RawValue) bool { return v.IsZero() || class(v.Type) == class(bson.TypeNull) }

// compareAny orders values of all types, as expressions do.
func compareAny(a, b bson.RawValue) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return -1
	case b.IsZero():
		return 1
	}
	return compare(a, b)
}

// holds says whether an expression's value counts as true.
func holds(v bson.RawValue) bool {
	switch class(v.Type) {
	case 8, 2:
		return truthy(v)
	}
	return !absent(v)
}

// compileExpression reads an expression, and refuses what it does not know.
func compileExpression(v bson.RawValue) (expression, error) {
	switch v.Type {
	case bson.TypeString:
		if text := v.StringValue(); strings.HasPrefix(text, "$") {
			return compilePath(text[1:])
		}
	case bson.TypeArray:
		values, err := v.Array().Values()
		if err != nil {
			return nil, failf(codeFailedToParse, "an expression cannot be read: %v", err)
		}
		list, err := compileAll(values)
		if err != nil {
			return nil, err
		}
		return func(s scope) (bson.RawValue, error) {
			made, err := evaluate(list, s)
			for i := range made {
				if made[i].IsZero() {
					made[i] = null
				}
			}
			return value(made), err
		}, nil
	case bson.TypeEmbeddedDocument:
		elements, err := v.Document().Elements()
		if err != nil {
			return nil, failf(codeFailedToParse, "an expression cannot be read: %v", err)
		}
		if len(elements) == 1 && strings.HasPrefix(elements[0].Key(), "$") {
			return compileCall(elements[0].Key(), elements[0].Value())
		}
		return compileObject(elements)
	}
	return func(scope) (bson.RawValue, error) { return v, nil }, nil
}

// compilePath reads "path", or "$variable.path".
func compilePath(text string) (expression, error) {
	name, inVariable := strings.CutPrefix(text, "$")
	path := strings.Split(name, ".")
	if slices.Contains(path, "") {
		return nil, failf(codeFailedToParse, "'$%s' is no path", text)
	}
	if !inVariable {
		return func(s scope) (bson.RawValue, error) {
			return reach(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: s.doc}, path), nil
		}, nil
	}
	return func(s scope) (bson.RawValue, error) {
		v, ok := s.vars[path[0]]
		if !ok {
			return nothing, failf(17276, "Use of undefined variable: $$%s (or the fake does not know it)", path[0])
		}
		return reach(v, path[1:]), nil
	}, nil
}

// reach follows a path. Through an array it gives what each element has.
func reach(v bson.RawValue, path []string) bson.RawValue {
	if len(path) == 0 {
		return v
	}
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		inner, err := v.Document().LookupErr(path[0])
		if err != nil {
			return nothing
		}
		return reach(inner, path[1:])
	case bson.TypeArray:
		list, _ := v.Array().Values()
		made := []bson.RawValue{}
		for _, x := range list {
			if inner := reach(x, path); !inner.IsZero() {
				made = append(made, inner)
			}
		}
		return value(made)
	}
	return nothing
}

func compileObject(elements []bson.RawElement) (expression, error) {
	var list []expression
	for _, e := range elements {
		if strings.ContainsAny(e.Key(), "$.") {
			return nil, failf(codeFailedToParse, "the fake does not know the field '%s' in an expression", e.Key())
		}
		x, err := compileExpression(e.Value())
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return func(s scope) (bson.RawValue, error) {
		made, err := evaluate(list, s)
		if err != nil {
			return nothing, err
		}
		d := bson.D{}
		for i, v := range made {
			if !v.IsZero() {
				d = append(d, bson.E{Key: elements[i].Key(), Value: v})
			}
		}
		return value(d), nil
	}, nil
}

func compileAll(values []bson.RawValue) ([]expression, error) {
	list := make([]expression, len(values))
	for i, v := range values {
		var err error
		if list[i], err = compileExpression(v); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func evaluate(list []expression, s scope) ([]bson.RawValue, error) {
	made := make([]bson.RawValue, len(list))
	for i, x := range list {
		var err error
		if made[i], err = x(s); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// operators are those that take their arguments as a list, with how many they
// take; -1 is any number.
var operators = map[string]struct {
	arguments int
	apply     func(op string, args []bson.RawValue) (bson.RawValue, error)
}{
	"$and": {-1, logical}, "$or": {-1, logical}, "$not": {1, logical},
	"$eq": {2, compared}, "$ne": {2, compared}, "$gt": {2, compared}, "$gte": {2, compared}, "$lt": {2, compared}, "$lte": {2, compared},
	"$in": {2, contained}, "$cond": {3, chosen}, "$ifNull": {-1, firstPresent}, "$add": {-1, added}, "$arrayToObject": {1, objectOf},
}

// compileCall reads an operator with its arguments.
func compileCall(op string, v bson.RawValue) (expression, error) {
	switch op {
	case "$literal":
		return func(scope) (bson.RawValue, error) { return v, nil }, nil
	case "$filter":
		return compileChoice(v)
	}
	o, known := operators[op]
	if !known {
		return nil, failf(168, "Unrecognized expression '%s' (the fake does not know it)", op)
	}
	values := []bson.RawValue{v}
	if array, ok := v.ArrayOK(); ok {
		var err error
		if values, err = array.Values(); err != nil {
			return nil, failf(codeFailedToParse, "%s cannot be read: %v", op, err)
		}
	}
	if o.arguments >= 0 && len(values) != o.arguments {
		return nil, failf(16020, "Expression %s takes exactly %d arguments. %d were passed in.", op, o.arguments, len(values))
	}
	list, err := compileAll(values)
	if err != nil {
		return nil, err
	}
	return func(s scope) (bson.RawValue, error) {
		args, err := evaluate(list, s)
		if err != nil {
			return nothing, err
		}
		return o.apply(op, args)
	}, nil
}

func logical(op string, args []bson.RawValue) (bson.RawValue, error) {
	if op == "$not" {
		return value(!holds(args[0])), nil
	}
	for _, v := range args {
		if holds(v) == (op == "$or") {
			return value(op == "$or"), nil
		}
	}
	return value(op == "$and"), nil
}

func compared(op string, args []bson.RawValue) (bson.RawValue, error) {
	c := compareAny(args[0], args[1])
	switch op {
	case "$eq":
		return value(c == 0), nil
	case "$ne":
		return value(c != 0), nil
	case "$gt":
		return value(c > 0), nil
	case "$gte":
		return value(c >= 0), nil
	case "$lt":
		return value(c < 0), nil
	}
	return value(c <= 0), nil
}

func contained(_ string, args []bson.RawValue) (bson.RawValue, error) {
	array, ok := args[1].ArrayOK()
	if !ok {
		return nothing, failf(40081, "$in requires an array as a second argument, found: %s", args[1].Type)
	}
	list, _ := array.Values()
	return value(slices.ContainsFunc(list, func(v bson.RawValue) bool { return compareAny(args[0], v) == 0 })), nil
}

func chosen(_ string, args []bson.RawValue) (bson.RawValue, error) {
	if holds(args[0]) {
		return args[1], nil
	}
	return args[2], nil
}

// firstPresent is $ifNull: the last argument is what remains.
func firstPresent(op string, args []bson.RawValue) (bson.RawValue, error) {
	if len(args) < 2 {
		return nothing, failf(1257300, "%s needs at least two arguments, had: %d", op, len(args))
	}
	for _, v := range args[:len(args)-1] {
		if !absent(v) {
			return v, nil
		}
	}
	return args[len(args)-1], nil
}

// added is $add of numbers, and of a date and numbers of milliseconds.
func added(_ string, args []bson.RawValue) (bson.RawValue, error) {
	sum, date := value(int32(0)), false
	for _, v := range args {
		if absent(v) {
			return null, nil
		}
		if v.Type == bson.TypeDateTime {
			if date {
				return nothing, failf(16612, "only one date allowed in an $add expression")
			}
			date, v = true, value(v.DateTime())
		}
		if class(v.Type) != 2 {
			return nothing, failf(codeTypeMismatch, "$add only supports numeric or date types, not %s", v.Type)
		}
		next, err := operation{arg: v}.increment(sum, true)
		if err != nil {
			return nothing, err
		}
		sum = value(next)
	}
	if date {
		return value(bson.DateTime(float(sum))), nil
	}
	return sum, nil
}

// objectOf is $arrayToObject of {k, v} documents or of pairs.
func objectOf(op string, args []bson.RawValue) (bson.RawValue, error) {
	if absent(args[0]) {
		return null, nil
	}
	array, ok := args[0].ArrayOK()
	if !ok {
		return nothing, failf(40386, "%s requires an array input, found: %s", op, args[0].Type)
	}
	list, _ := array.Values()
	d := bson.D{}
	for _, x := range list {
		var k, v bson.RawValue
		switch x.Type {
		case bson.TypeEmbeddedDocument:
			k, v = x.Document().Lookup("k"), x.Document().Lookup("v")
		case bson.TypeArray:
			if pair, _ := x.Array().Values(); len(pair) == 2 {
				k, v = pair[0], pair[1]
			}
		}
		name, ok := k.StringValueOK()
		if !ok || v.IsZero() {
			return nothing, failf(40392, "%s needs keys and values, and got %s", op, x)
		}
		at := slices.IndexFunc(d, func(e bson.E) bool { return e.Key == name })
		if at < 0 {
			d = append(d, bson.E{Key: name})
			at = len(d) - 1
		}
		d[at].Value = v
	}
	return value(d), nil
}

// compileChoice reads $filter: the elements of an array for which a condition
// holds.
func compileChoice(v bson.RawValue) (expression, error) {
	spec, ok := v.DocumentOK()
	if !ok {
		return nil, failf(28646, "$filter only supports an object as its argument")
	}
	if err := only(spec, "$filter", "input", "as", "cond"); err != nil {
		return nil, err
	}
	name := "this"
	if as, ok := spec.Lookup("as").StringValueOK(); ok {
		name = as
	}
	input, err := compileExpression(spec.Lookup("input"))
	if err != nil {
		return nil, err
	}
	is, err := compileExpression(spec.Lookup("cond"))
	if err != nil {
		return nil, err
	}
	return func(s scope) (bson.RawValue, error) {
		from, err := input(s)
		if err != nil || absent(from) {
			return null, err
		}
		array, ok := from.ArrayOK()
		if !ok {
			return nothing, failf(28651, "input to $filter must be an array not %s", from.Type)
		}
		list, _ := array.Values()
		kept := []bson.RawValue{}
		for _, x := range list {
			v, err := is(s.with(name, x))
			if err != nil {
				return nothing, err
			}
			if holds(v) {
				kept = append(kept, x)
			}
		}
		return value(kept), nil
	}, nil
}

// unwinding is the stage $unwind: a document for each element of an array.
func unwinding(v bson.RawValue) (stage, error) {
	text, ok := v.StringValueOK()
	if !ok || !strings.HasPrefix(text, "$") || strings.HasPrefix(text, "$$") || strings.Contains(text, ".") {
		return nil, failf(28812, "the fake knows $unwind of a field at the top, and got %s", v)
	}
	field := text[1:]
	return func(docs []bson.Raw) ([]bson.Raw, error) {
		var made []bson.Raw
		for _, doc := range docs {
			found, err := doc.LookupErr(field)
			if err != nil || absent(found) {
				continue
			}
			list := []bson.RawValue{found}
			if array, ok := found.ArrayOK(); ok {
				list, _ = array.Values()
			}
			for _, x := range list {
				d, err := into(decode(doc), []string{field}, func(any, bool) (any, error) { return x, nil })
				if err != nil {
					return nil, err
				}
				made = append(made, encode(d))
			}
		}
		return made, nil
	}, nil
}

// elementOf gives the first element of an array that a filter means, as a
// projection does with $elemMatch; nothing if there is none.
func elementOf(array bson.RawValue, is predicate) bson.RawValue {
	list, ok := array.ArrayOK()
	if !ok {
		return nothing
	}
	values, _ := list.Values()
	for _, v := range values {
		if doc, ok := v.DocumentOK(); ok && is(doc) {
			return value([]bson.RawValue{v})
		}
	}
	return nothing
}
