package mongofake

import (
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func create(c *call) (bson.D, error) {
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	if c.s.colls[ns] != nil || c.s.views[ns] != nil {
		return nil, failf(codeNamespaceExists, "Collection %s already exists.", ns)
	}
	if c.has("viewOn") {
		return c.createView(ns)
	}
	c.s.made(ns).images = truthy(c.body.Lookup("changeStreamPreAndPostImages", "enabled"))
	return bson.D{}, nil
}

func collMod(c *call) (bson.D, error) {
	coll, err := c.existing()
	if err != nil {
		return nil, err
	}
	if v := c.body.Lookup("changeStreamPreAndPostImages", "enabled"); !v.IsZero() {
		coll.images = truthy(v)
	}
	return bson.D{}, nil
}

// existing gives the collection that the command names.
func (c *call) existing() (*collection, error) {
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	coll := c.s.colls[ns]
	if coll == nil {
		return nil, failf(codeNamespaceNotFound, "ns does not exist: %s", ns)
	}
	return coll, nil
}

// free aborts the transactions that have written to a collection, which is about
// to go. A real server would have the command wait for them.
func (s *Server) free(coll *collection) {
	for t := range s.txns {
		if slices.ContainsFunc(t.touched, func(w touched) bool { return w.c == coll }) {
			s.abort(t)
		}
	}
}

func (s *Server) dropCollection(coll *collection) {
	s.free(coll)
	delete(s.colls, coll.ns)
	s.log(entry{at: s.tick(), ns: coll.ns, op: "drop"})
}

func drop(c *call) (bson.D, error) {
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	if coll := c.s.colls[ns]; coll != nil { // since 7.0 it is no error if there is none
		c.s.dropCollection(coll)
	}
	delete(c.s.views, ns)
	return bson.D{{Key: "ns", Value: ns.String()}}, nil
}

func dropDatabase(c *call) (bson.D, error) {
	maps.DeleteFunc(c.s.views, func(ns namespace, _ *view) bool { return ns.db == c.db })
	var list []*collection
	for ns, coll := range c.s.colls {
		if ns.db == c.db {
			list = append(list, coll)
		}
	}
	slices.SortFunc(list, func(a, b *collection) int { return strings.Compare(a.ns.coll, b.ns.coll) })
	for _, coll := range list {
		c.s.dropCollection(coll)
	}
	if len(list) > 0 {
		c.s.log(entry{at: c.s.tick(), ns: namespace{db: c.db}, op: "dropDatabase"})
	}
	return bson.D{{Key: "dropped", Value: c.db}}, nil
}

func renameCollection(c *call) (bson.D, error) {
	names := [2]namespace{}
	for i, field := range []string{"renameCollection", "to"} {
		text, _ := c.body.Lookup(field).StringValueOK()
		db, coll, ok := strings.Cut(text, ".")
		if !ok || db == "" || coll == "" {
			return nil, failf(codeInvalidNamespace, "Invalid namespace specified '%s'", text)
		}
		names[i] = namespace{db: db, coll: coll}
	}
	from, to := names[0], names[1]
	coll := c.s.colls[from]
	if coll == nil {
		return nil, failf(codeNamespaceNotFound, "Source collection %s does not exist", from)
	}
	if from == to {
		return nil, failf(codeIllegalOperation, "Can't rename a collection to itself")
	}
	if c.s.colls[to] != nil && !truthy(c.body.Lookup("dropTarget")) {
		return nil, failf(codeNamespaceExists, "target namespace exists")
	}
	c.s.free(coll)
	if target := c.s.colls[to]; target != nil {
		c.s.free(target)
	}
	delete(c.s.colls, from)
	coll.ns = to
	c.s.colls[to] = coll
	c.s.log(entry{at: c.s.tick(), ns: from, to: to, op: "rename"})
	return bson.D{}, nil
}

func createIndexes(c *call) (bson.D, error) {
	ns, err := c.namespace()
	if err != nil {
		return nil, err
	}
	list, err := c.documents("indexes")
	if err != nil {
		return nil, err
	}
	created := c.s.colls[ns] == nil
	coll := c.s.made(ns)
	before := len(coll.indexes)
	for _, spec := range list {
		if err := coll.index(spec); err != nil {
			return nil, err
		}
	}
	return bson.D{
		{Key: "numIndexesBefore", Value: int32(before)}, {Key: "numIndexesAfter", Value: int32(len(coll.indexes))},
		{Key: "createdCollectionAutomatically", Value: created},
	}, nil
}

// index adds an index, unless there is the same one already.
func (c *collection) index(spec bson.Raw) error {
	if err := only(spec, "createIndexes.indexes", "key", "name", "unique", "sparse", "partialFilterExpression", "v", "background"); err != nil {
		return err
	}
	x := &index{unique: truthy(spec.Lookup("unique")), sparse: truthy(spec.Lookup("sparse")), held: make(map[string]*record)}
	var ok bool
	if x.keys, ok = spec.Lookup("key").DocumentOK(); !ok {
		return failf(codeTypeMismatch, "an index needs a key")
	}
	if x.name, ok = spec.Lookup("name").StringValueOK(); !ok || x.name == "" {
		return failf(codeFailedToParse, "an index needs a name")
	}
	keys, _ := x.keys.Elements()
	for _, e := range keys {
		if class(e.Value().Type) != 2 {
			return failf(67, "the fake does not know indexes of the kind %s", e.Value())
		}
		x.paths = append(x.paths, strings.Split(e.Key(), "."))
	}
	if x.partial, ok = spec.Lookup("partialFilterExpression").DocumentOK(); ok {
		var err error
		if x.only, err = compileFilter(x.partial); err != nil {
			return err
		}
	}
	for _, old := range c.indexes {
		same := slices.Equal(old.keys, x.keys) && old.unique == x.unique && old.sparse == x.sparse && slices.Equal(old.partial, x.partial)
		if same && old.name == x.name || slices.Equal(old.keys, x.keys) && old.name == "_id_" {
			return nil
		}
		if same || old.name == x.name {
			return failf(codeIndexOptionsConflict, "Index already exists with a different name or different options: %s", old.name)
		}
	}
	if x.unique {
		for _, r := range c.order {
			doc := r.latest()
			keys, err := x.keysOf(doc)
			if err != nil {
				return err
			}
			for _, key := range keys {
				if x.held[key] != nil {
					return duplicate(c.ns, x, doc)
				}
			}
			x.claim(r, doc)
		}
	}
	c.indexes = append(c.indexes, x)
	return nil
}

func dropIndexes(c *call) (bson.D, error) {
	coll, err := c.existing()
	if err != nil {
		return nil, err
	}
	name, ok := c.body.Lookup("index").StringValueOK()
	if !ok {
		return nil, failf(codeTypeMismatch, "the fake drops indexes by name")
	}
	before := len(coll.indexes)
	coll.indexes = slices.DeleteFunc(coll.indexes, func(x *index) bool {
		return x.name != "_id_" && (name == "*" || x.name == name)
	})
	if before == len(coll.indexes) && name != "*" {
		return nil, failf(27, "index not found with name [%s]", name)
	}
	return bson.D{{Key: "nIndexesWas", Value: int32(before)}}, nil
}

func listIndexes(c *call) (bson.D, error) {
	coll, err := c.existing()
	if err != nil {
		return nil, err
	}
	size, err := c.cursorSize()
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	for _, x := range coll.indexes {
		d := bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: x.keys}, {Key: "name", Value: x.name}}
		if x.unique {
			d = append(d, bson.E{Key: "unique", Value: true})
		}
		if x.sparse {
			d = append(d, bson.E{Key: "sparse", Value: true})
		}
		if x.partial != nil {
			d = append(d, bson.E{Key: "partialFilterExpression", Value: x.partial})
		}
		docs = append(docs, encode(d))
	}
	return c.begin(&cursor{ns: coll.ns, docs: docs}, size, false)
}

func listCollections(c *call) (bson.D, error) {
	filter, err := c.document("filter")
	if err != nil {
		return nil, err
	}
	is, err := compileFilter(filter)
	if err != nil {
		return nil, err
	}
	size, err := c.cursorSize()
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	for ns, coll := range c.s.colls {
		if ns.db != c.db {
			continue
		}
		options := bson.D{}
		if coll.images {
			options = bson.D{{Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: true}}}}
		}
		d := bson.D{{Key: "name", Value: ns.coll}, {Key: "type", Value: "collection"}}
		if !truthy(c.body.Lookup("nameOnly")) {
			d = append(d, bson.E{Key: "options", Value: options},
				bson.E{Key: "info", Value: bson.D{{Key: "readOnly", Value: false}, {Key: "uuid", Value: coll.uuid}}},
				bson.E{Key: "idIndex", Value: bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: coll.indexes[0].keys}, {Key: "name", Value: "_id_"}}})
		}
		if doc := encode(d); is(doc) {
			docs = append(docs, doc)
		}
	}
	for ns, v := range c.s.views {
		if doc := v.listed(ns); ns.db == c.db && is(doc) {
			docs = append(docs, doc)
		}
	}
	slices.SortFunc(docs, func(a, b bson.Raw) int { return compare(a.Lookup("name"), b.Lookup("name")) })
	return c.begin(&cursor{ns: namespace{db: c.db, coll: "$cmd.listCollections"}, docs: docs}, size, false)
}
