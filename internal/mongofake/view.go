package mongofake

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// view is what a pipeline makes of a collection, whenever somebody reads it.
type view struct {
	on       string // the collection
	pipeline []bson.Raw
}

func (c *call) createView(ns namespace) (bson.D, error) {
	v := &view{}
	var ok bool
	if v.on, ok = c.body.Lookup("viewOn").StringValueOK(); !ok || v.on == "" {
		return nil, failf(codeTypeMismatch, "'viewOn' must be the name of a collection")
	}
	var err error
	if v.pipeline, err = c.documents("pipeline"); err != nil {
		return nil, err
	}
	if _, err := through(v.pipeline, nil); err != nil {
		return nil, err
	}
	c.s.views[ns] = v
	return bson.D{}, nil
}

// checkView refuses to write to a view.
func (c *call) checkView() error {
	switch c.name {
	case "insert", "update", "delete", "findAndModify", "findandmodify", "createIndexes":
		if ns, err := c.namespace(); err == nil && c.s.views[ns] != nil {
			return failf(166, "Namespace %s is a view, not a collection", ns)
		}
	}
	return nil
}

// listed is how listCollections tells of a view.
func (v *view) listed(ns namespace) bson.Raw {
	return encode(bson.D{
		{Key: "name", Value: ns.coll}, {Key: "type", Value: "view"},
		{Key: "options", Value: bson.D{{Key: "viewOn", Value: v.on}, {Key: "pipeline", Value: v.pipeline}}},
		{Key: "info", Value: bson.D{{Key: "readOnly", Value: true}}},
	})
}

// read gives the documents of a collection or a view that a filter means.
func (c *call) read(ns namespace, filter bson.Raw) ([]bson.Raw, error) {
	v := c.s.views[ns]
	if v == nil {
		return c.s.colls[ns].find(c.txn, filter, nil, 0)
	}
	docs, err := c.read(namespace{db: ns.db, coll: v.on}, nil)
	if err == nil {
		docs, err = through(v.pipeline, docs)
	}
	if err != nil {
		return nil, err
	}
	is, err := compileFilter(filter)
	return slices.DeleteFunc(docs, func(doc bson.Raw) bool { return err == nil && !is(doc) }), err
}

// gatherView finds what a cursor over a view is to give.
func (c *call) gatherView(x *cursor, filter, order bson.Raw, skip int) error {
	less, err := sorter(order)
	if err != nil {
		return err
	}
	docs, err := c.read(x.ns, filter)
	if err != nil {
		return err
	}
	if less != nil {
		slices.SortStableFunc(docs, less)
	}
	docs = docs[min(skip, len(docs)):]
	if x.limit >= 0 {
		docs = docs[:min(x.limit, len(docs))]
	}
	for _, doc := range docs {
		if doc, err = x.show(doc); err != nil {
			return err
		}
		x.docs = append(x.docs, doc)
	}
	return nil
}
