package mongofake

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// change is an update that was read: a whole document, operators, or the stages
// of a pipeline.
type change struct {
	replace bson.Raw
	ops     []operation
	stages  []setting
}

// replaces says whether the update is a whole document.
func (c *change) replaces() bool { return c.ops == nil && c.stages == nil }

type operation struct {
	name string
	path []string
	arg  bson.RawValue
}

// compileUpdate reads an update, and refuses what it does not know.
func compileUpdate(v bson.RawValue) (change, error) {
	if v.Type == bson.TypeArray {
		return compilePipeline(v)
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return change{}, failf(codeFailedToParse, "an update is a document or a pipeline, not a %s", v.Type)
	}
	elements, err := doc.Elements()
	if err != nil {
		return change{}, failf(codeFailedToParse, "the update cannot be read: %v", err)
	}
	if len(elements) == 0 || !strings.HasPrefix(elements[0].Key(), "$") {
		for _, e := range elements {
			if strings.HasPrefix(e.Key(), "$") {
				return change{}, failf(52, "The dollar ($) prefixed field '%s' is not allowed in a replacement", e.Key())
			}
		}
		return change{replace: doc}, nil
	}
	var c change
	for _, e := range elements {
		if err := c.add(e.Key(), e.Value()); err != nil {
			return change{}, err
		}
	}
	return c, c.conflicts()
}

// compilePipeline reads an update of the stage $set, once or more often.
func compilePipeline(v bson.RawValue) (c change, err error) {
	list, err := documents(v)
	if err != nil {
		return c, failf(codeFailedToParse, "a pipeline is an array of stages: %v", err)
	}
	c.stages = []setting{}
	for _, doc := range list {
		set, ok := doc.Lookup("$set").DocumentOK()
		if elements, _ := doc.Elements(); !ok || len(elements) != 1 {
			return c, failf(codeFailedToParse, "the fake knows $set in an update by a pipeline, and got %s", doc)
		}
		stage, err := compileSetting(set)
		if err != nil {
			return c, err
		}
		c.stages = append(c.stages, stage)
	}
	return c, nil
}

func (c *change) add(name string, v bson.RawValue) error {
	switch name {
	case "$set", "$unset", "$inc", "$min", "$max", "$setOnInsert", "$currentDate", "$push", "$pull":
	default:
		return failf(codeFailedToParse, "Unknown modifier: %s (the fake does not know it)", name)
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return failf(codeFailedToParse, "Modifiers operate on fields but we found type %s instead", v.Type)
	}
	elements, err := doc.Elements()
	if err != nil {
		return failf(codeFailedToParse, "the update cannot be read: %v", err)
	}
	for _, e := range elements {
		path := strings.Split(e.Key(), ".")
		for _, part := range path {
			if part == "" || strings.HasPrefix(part, "$") {
				return failf(codeFailedToParse, "the fake does not know the path '%s' in %s", e.Key(), name)
			}
		}
		c.ops = append(c.ops, operation{name: name, path: path, arg: e.Value()})
	}
	return nil
}

// conflicts refuses two operators on one place, or on a place and one below it.
func (c *change) conflicts() error {
	for i, a := range c.ops {
		for _, b := range c.ops[:i] {
			n := min(len(a.path), len(b.path))
			if slices.Equal(a.path[:n], b.path[:n]) {
				return failf(codeConflictingOperators, "Updating the path '%s' would create a conflict at '%s'",
					strings.Join(a.path, "."), strings.Join(a.path[:n], "."))
			}
		}
	}
	return nil
}

// apply makes the document that follows from another. Its _id stays.
func (c *change) apply(doc bson.Raw, inserting bool, now time.Time) (bson.Raw, error) {
	if c.replaces() {
		return c.replaced(doc)
	}
	var d bson.D
	if err := bson.Unmarshal(doc, &d); err != nil {
		return nil, failf(codeFailedToParse, "the document cannot be read: %v", err)
	}
	for _, stage := range c.stages {
		next, err := stage.apply(encode(d), d, now)
		if err != nil {
			return nil, err
		}
		d = next
	}
	for _, op := range c.ops {
		if op.name == "$setOnInsert" && !inserting {
			continue
		}
		next, err := op.apply(d, now)
		if err != nil {
			return nil, err
		}
		d = next
	}
	after := encode(d)
	before, had := doc.Lookup("_id"), len(doc) > 5
	if now := after.Lookup("_id"); had && !before.IsZero() && (now.IsZero() || compare(before, now) != 0) {
		return nil, failf(codeImmutableField, "Performing an update on the path '_id' would modify the immutable field '_id'")
	}
	return after, nil
}

func (c *change) replaced(doc bson.Raw) (bson.Raw, error) {
	id, err := doc.LookupErr("_id")
	if err != nil {
		return c.replace, nil
	}
	if given, err := c.replace.LookupErr("_id"); err == nil {
		if compare(given, id) != 0 {
			return nil, failf(codeImmutableField, "After applying the update, the (immutable) field '_id' was found to have been altered")
		}
		return c.replace, nil
	}
	d := bson.D{{Key: "_id", Value: id}}
	elements, _ := c.replace.Elements()
	for _, e := range elements {
		d = append(d, bson.E{Key: e.Key(), Value: e.Value()})
	}
	return encode(d), nil
}

func (op operation) apply(d bson.D, now time.Time) (bson.D, error) {
	var arg any
	if err := op.arg.Unmarshal(&arg); err != nil {
		return nil, failf(codeFailedToParse, "%s: %v", op.name, err)
	}
	switch op.name {
	case "$set", "$setOnInsert":
		return into(d, op.path, func(any, bool) (any, error) { return arg, nil })
	case "$unset":
		return without(d, op.path), nil
	case "$inc":
		return into(d, op.path, op.increment)
	case "$min", "$max":
		return into(d, op.path, func(old any, had bool) (any, error) {
			if !had {
				return arg, nil
			}
			if c := compare(op.arg, value(old)); c < 0 && op.name == "$min" || c > 0 && op.name == "$max" {
				return arg, nil
			}
			return old, nil
		})
	case "$currentDate":
		if doc, ok := op.arg.DocumentOK(); ok && doc.Lookup("$type").StringValue() != "date" || !ok && op.arg.Type != bson.TypeBoolean {
			return nil, failf(codeBadValue, "the fake knows $currentDate with true or {$type: \"date\"}")
		}
		return into(d, op.path, func(any, bool) (any, error) { return bson.NewDateTimeFromTime(now), nil })
	}
	if op.name == "$pull" {
		if _, err := encode(d).LookupErr(op.path...); err != nil {
			return d, nil
		}
		return into(d, op.path, op.pull)
	}
	return into(d, op.path, op.push)
}

// pull removes the elements of an array that a filter, or a test, or a value
// means.
func (op operation) pull(old any, _ bool) (any, error) {
	list, ok := old.(bson.A)
	if !ok {
		return nil, failf(codeBadValue, "Cannot apply $pull to a non-array value")
	}
	var gone func(v bson.RawValue) bool
	elements, _ := bson.Raw(op.arg.Value).Elements()
	switch {
	case op.arg.Type == bson.TypeEmbeddedDocument && (len(elements) == 0 || !strings.HasPrefix(elements[0].Key(), "$")):
		is, err := compileFilter(op.arg.Document())
		if err != nil {
			return nil, err
		}
		gone = func(v bson.RawValue) bool { doc, ok := v.DocumentOK(); return ok && is(doc) }
	default:
		is, err := compileTest(op.arg)
		if err != nil {
			return nil, err
		}
		gone = func(v bson.RawValue) bool { return is(found{values: []bson.RawValue{v}}) }
	}
	return slices.DeleteFunc(slices.Clone(list), func(x any) bool { return gone(value(x)) }), nil
}

// increment adds numbers: whole ones stay whole, and become long if need be.
func (op operation) increment(old any, had bool) (any, error) {
	if class(op.arg.Type) != 2 || op.arg.Type == bson.TypeDecimal128 {
		return nil, failf(codeTypeMismatch, "Cannot increment with non-numeric argument (the fake knows int, long and double)")
	}
	was := value(int32(0))
	if had {
		was = value(old)
	}
	if class(was.Type) != 2 || was.Type == bson.TypeDecimal128 {
		return nil, failf(codeTypeMismatch, "Cannot apply $inc to a value of non-numeric type %s", was.Type)
	}
	a, aWhole := whole(was)
	b, bWhole := whole(op.arg)
	if !aWhole || !bWhole {
		return float(was) + float(op.arg), nil
	}
	sum := a + b
	if (sum > a) != (b > 0) && b != 0 {
		return nil, failf(codeBadValue, "Failed to apply $inc operations to current value: it does not fit")
	}
	if was.Type == bson.TypeInt32 && op.arg.Type == bson.TypeInt32 && sum == int64(int32(sum)) {
		return int32(sum), nil
	}
	return sum, nil
}

// push appends one element, or those of $each.
func (op operation) push(old any, had bool) (any, error) {
	var list bson.A
	if had {
		var ok bool
		if list, ok = old.(bson.A); !ok {
			return nil, failf(codeBadValue, "The field '%s' must be an array", strings.Join(op.path, "."))
		}
	}
	more := []bson.RawValue{op.arg}
	if doc, ok := op.arg.DocumentOK(); ok {
		elements, _ := doc.Elements()
		if len(elements) > 0 && strings.HasPrefix(elements[0].Key(), "$") {
			array, isArray := elements[0].Value().ArrayOK()
			if len(elements) != 1 || elements[0].Key() != "$each" || !isArray {
				return nil, failf(codeBadValue, "the fake knows $push with a value or with $each alone")
			}
			more, _ = array.Values()
		}
	}
	list = slices.Clone(list)
	for _, v := range more {
		list = append(list, v)
	}
	return list, nil
}

// into sets what stands at a path, and makes the documents on the way.
func into(d bson.D, path []string, set func(old any, had bool) (any, error)) (bson.D, error) {
	at := slices.IndexFunc(d, func(e bson.E) bool { return e.Key == path[0] })
	var old any
	if at >= 0 {
		old = d[at].Value
	}
	v, err := intoValue(old, at >= 0, path, set)
	if err != nil {
		return nil, err
	}
	if at < 0 {
		return append(slices.Clip(d), bson.E{Key: path[0], Value: v}), nil
	}
	d = slices.Clone(d)
	d[at].Value = v
	return d, nil
}

func intoValue(old any, had bool, path []string, set func(any, bool) (any, error)) (any, error) {
	if len(path) == 1 {
		return set(old, had)
	}
	if !had {
		return into(nil, path[1:], set)
	}
	switch inner := old.(type) {
	case bson.D:
		return into(inner, path[1:], set)
	case bson.A:
		i, err := strconv.Atoi(path[1])
		if err != nil || i < 0 || i > len(inner)+1000 {
			break
		}
		inner = slices.Clone(inner)
		had := i < len(inner)
		for len(inner) <= i {
			inner = append(inner, nil)
		}
		if inner[i], err = intoValue(inner[i], had, path[1:], set); err != nil {
			return nil, err
		}
		return inner, nil
	}
	return nil, failf(codePathNotViable, "Cannot create field '%s' in element '%s'", path[1], path[0])
}

// without removes what stands at a path. In an array, null takes its place.
func without(d bson.D, path []string) bson.D {
	at := slices.IndexFunc(d, func(e bson.E) bool { return e.Key == path[0] })
	if at < 0 {
		return d
	}
	d = slices.Clone(d)
	if len(path) == 1 {
		return slices.Delete(d, at, at+1)
	}
	switch inner := d[at].Value.(type) {
	case bson.D:
		d[at].Value = without(inner, path[1:])
	case bson.A:
		i, err := strconv.Atoi(path[1])
		if err != nil || i < 0 || i >= len(inner) {
			break
		}
		inner = slices.Clone(inner)
		if len(path) == 2 {
			inner[i] = nil
		} else if sub, ok := inner[i].(bson.D); ok {
			inner[i] = without(sub, path[2:])
		}
		d[at].Value = inner
	}
	return d
}

// seed is the document that an upsert begins with: what the filter says that a
// field is.
func seed(filter bson.Raw, d bson.D) (bson.D, error) {
	elements, _ := filter.Elements()
	for _, e := range elements {
		key, v := e.Key(), e.Value()
		if key == "$and" {
			list, _ := documents(v)
			for _, sub := range list {
				var err error
				if d, err = seed(sub, d); err != nil {
					return nil, err
				}
			}
			continue
		}
		if strings.HasPrefix(key, "$") {
			continue
		}
		if doc, ok := v.DocumentOK(); ok {
			if ops, _ := doc.Elements(); len(ops) > 0 && strings.HasPrefix(ops[0].Key(), "$") {
				eq, err := doc.LookupErr("$eq")
				if err != nil {
					continue
				}
				v = eq
			}
		}
		var x any
		if err := v.Unmarshal(&x); err != nil {
			return nil, failf(codeFailedToParse, "the filter cannot be read: %v", err)
		}
		next, err := into(d, strings.Split(key, "."), func(any, bool) (any, error) { return x, nil })
		if err != nil {
			return nil, err
		}
		d = next
	}
	return d, nil
}

// withID gives a document an _id in the first place; a new one if it has none.
func withID(doc bson.Raw) bson.Raw {
	if first, err := doc.IndexErr(0); err == nil && first.Key() == "_id" {
		return doc
	}
	id, err := doc.LookupErr("_id")
	if err != nil {
		id = value(bson.NewObjectID())
	}
	d := bson.D{{Key: "_id", Value: id}}
	elements, _ := doc.Elements()
	for _, e := range elements {
		if e.Key() != "_id" {
			d = append(d, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	return encode(d)
}
