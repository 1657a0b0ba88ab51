package mongofake

import (
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// stage makes documents from documents.
type stage func([]bson.Raw) ([]bson.Raw, error)

func aggregate(c *call) (bson.D, error) {
	stages, err := c.documents("pipeline")
	if err != nil {
		return nil, err
	}
	size, err := c.cursorSize()
	if err != nil {
		return nil, err
	}
	if c.streaming {
		return c.beginStream(stages, size)
	}
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	var filter bson.Raw
	if len(stages) > 0 {
		if doc, ok := stages[0].Lookup("$match").DocumentOK(); ok {
			filter, stages = doc, stages[1:]
		}
	}
	docs, err := c.read(ns, filter)
	if err == nil {
		docs, err = through(stages, docs)
	}
	if err != nil {
		return nil, err
	}
	return c.begin(&cursor{ns: ns, docs: docs, txn: c.txn}, size, false)
}

// through takes documents through the stages of a pipeline.
func through(stages, docs []bson.Raw) ([]bson.Raw, error) {
	for _, doc := range stages {
		run, err := compileStage(doc)
		if err != nil {
			return nil, err
		}
		if docs, err = run(docs); err != nil {
			return nil, err
		}
	}
	return docs, nil
}

// cursorSize reads how many documents the first batch may have.
func (c *call) cursorSize() (int, error) {
	options, err := c.document("cursor")
	if err != nil {
		return 0, err
	}
	if options == nil {
		return 0, failf(codeFailedToParse, "The 'cursor' option is required")
	}
	if err := only(options, c.name+".cursor", "batchSize"); err != nil {
		return 0, err
	}
	v := options.Lookup("batchSize")
	if v.IsZero() {
		return firstBatch, nil
	}
	if class(v.Type) != 2 || float(v) < 0 {
		return 0, failf(codeBadValue, "BSON field '%s.cursor.batchSize' must not be %s", c.name, v)
	}
	return int(float(v)), nil
}

func compileStage(doc bson.Raw) (stage, error) {
	elements, err := doc.Elements()
	if err != nil || len(elements) != 1 {
		return nil, failf(40323, "A pipeline stage specification object must contain exactly one field.")
	}
	name, v := elements[0].Key(), elements[0].Value()
	switch name {
	case "$match", "$project", "$set", "$sort", "$group":
		arg, ok := v.DocumentOK()
		if !ok {
			return nil, failf(codeTypeMismatch, "%s needs an object", name)
		}
		switch name {
		case "$match":
			return matching(arg)
		case "$project":
			return projecting(arg)
		case "$set":
			s, err := compileSetting(arg)
			return each(func(doc bson.Raw) (bson.Raw, error) {
				d, err := s.apply(doc, decode(doc), time.Now())
				return encode(d), err
			}), err
		case "$sort":
			return sorting(arg)
		}
		return grouping(arg)
	case "$unwind":
		return unwinding(v)
	case "$skip", "$limit":
		n, ok := whole(v)
		if !ok || n < 0 || n == 0 && name == "$limit" {
			return nil, failf(15958, "%s must be a whole number that is not negative", name)
		}
		return func(docs []bson.Raw) ([]bson.Raw, error) {
			at := int(min(n, int64(len(docs))))
			if name == "$skip" {
				return docs[at:], nil
			}
			return docs[:at], nil
		}, nil
	case "$count":
		field, ok := v.StringValueOK()
		if !ok || field == "" || strings.ContainsAny(field, "$.") {
			return nil, failf(40156, "the count field must be a non-empty string without $ and .")
		}
		return func(docs []bson.Raw) ([]bson.Raw, error) {
			if len(docs) == 0 {
				return nil, nil
			}
			return []bson.Raw{encode(bson.D{{Key: field, Value: int32(len(docs))}})}, nil
		}, nil
	}
	return nil, failf(40324, "Unrecognized pipeline stage name: '%s' (the fake does not know it)", name)
}

func matching(arg bson.Raw) (stage, error) {
	is, err := compileFilter(arg)
	if err != nil {
		return nil, err
	}
	return func(docs []bson.Raw) ([]bson.Raw, error) {
		var kept []bson.Raw
		for _, doc := range docs {
			if is(doc) {
				kept = append(kept, doc)
			}
		}
		return kept, nil
	}, nil
}

func projecting(arg bson.Raw) (stage, error) {
	show, err := compileProjection(arg)
	return each(show), err
}

// each is a stage that makes one document of each.
func each(show projection) stage {
	return func(docs []bson.Raw) ([]bson.Raw, error) {
		made := make([]bson.Raw, len(docs))
		for i, doc := range docs {
			var err error
			if made[i], err = show(doc); err != nil {
				return nil, err
			}
		}
		return made, nil
	}
}

func sorting(arg bson.Raw) (stage, error) {
	less, err := sorter(arg)
	if err != nil {
		return nil, err
	}
	return func(docs []bson.Raw) ([]bson.Raw, error) {
		if less != nil {
			slices.SortStableFunc(docs, less)
		}
		return docs, nil
	}, nil
}

type accumulator struct {
	field, op string
	from      expression
}

// grouping knows $sum, $min and $max.
func grouping(arg bson.Raw) (stage, error) {
	elements, _ := arg.Elements()
	var by expression
	var list []accumulator
	for _, e := range elements {
		var err error
		if e.Key() == "_id" {
			if by, err = compileExpression(e.Value()); err != nil {
				return nil, err
			}
			continue
		}
		spec, _ := e.Value().DocumentOK()
		ops, _ := spec.Elements()
		if len(ops) != 1 || !slices.Contains([]string{"$sum", "$min", "$max"}, ops[0].Key()) {
			return nil, failf(15952, "the fake knows $sum, $min and $max in $group, and got '%s': %s", e.Key(), e.Value())
		}
		a := accumulator{field: e.Key(), op: ops[0].Key()}
		if a.from, err = compileExpression(ops[0].Value()); err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	if by == nil {
		return nil, failf(15955, "a group specification must include an _id")
	}
	return func(docs []bson.Raw) ([]bson.Raw, error) { return group(docs, by, list) }, nil
}

func group(docs []bson.Raw, by expression, list []accumulator) ([]bson.Raw, error) {
	groups := make(map[string]bson.D)
	var order []string
	for _, doc := range docs {
		id, err := by(scoped(doc, time.Now()))
		if err != nil {
			return nil, err
		}
		if id.IsZero() {
			id = null
		}
		key := identity(id)
		d, known := groups[key]
		if !known {
			order = append(order, key)
			d = bson.D{{Key: "_id", Value: id}}
			for _, a := range list {
				var begin any
				if a.op == "$sum" {
					begin = int32(0)
				}
				d = append(d, bson.E{Key: a.field, Value: begin})
			}
			groups[key] = d
		}
		for i, a := range list {
			if err := a.take(doc, &d[i+1].Value); err != nil {
				return nil, err
			}
		}
	}
	made := make([]bson.Raw, 0, len(order))
	for _, key := range order {
		made = append(made, encode(groups[key]))
	}
	return made, nil
}

// take adds what a document has to a group.
func (a accumulator) take(doc bson.Raw, into *any) error {
	v, err := a.from(scoped(doc, time.Now()))
	if err != nil || absent(v) {
		return err
	}
	if a.op == "$sum" {
		if class(v.Type) != 2 {
			return nil // it counts numbers only
		}
		sum, err := operation{arg: v}.increment(*into, true)
		*into = sum
		return err
	}
	if *into == nil || (compare(v, value(*into)) < 0) == (a.op == "$min") {
		*into = v
	}
	return nil
}
