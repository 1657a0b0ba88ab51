package mongofake

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// stream is a change stream (change streams specification, and the manual's
// pages on change events). It watches a collection, a database or everything.
type stream struct {
	ns     namespace // without a collection, or without anything, it is wider
	full   string    // fullDocument
	stages []stage
	next   int64 // the number of the entry that comes next
	last   token // up to where it has given everything
	ended  bool
}

// watches says whether a change is one of the stream's.
func (st *stream) watches(e *entry) bool {
	in := func(ns namespace) bool {
		return st.ns.db == "" || ns.db == st.ns.db && (st.ns.coll == "" || ns.coll == st.ns.coll)
	}
	if e.op == "dropDatabase" {
		return st.ns.coll == "" && in(e.ns)
	}
	return in(e.ns) || e.op == "rename" && in(e.to)
}

// ends says whether the change ends the stream.
func (st *stream) ends(e *entry) bool {
	switch {
	case st.ns.coll != "":
		return e.op == "drop" || e.op == "rename"
	case st.ns.db != "":
		return e.op == "dropDatabase"
	}
	return false
}

func (c *call) beginStream(stages []bson.Raw, size int) (bson.D, error) {
	if c.s.o.Standalone {
		return nil, failf(codeNotReplicaSet, "The $changeStream stage is only supported on replica sets")
	}
	if c.txn != nil {
		return nil, failf(codeNotInTransaction, "$changeStream cannot be used in a transaction")
	}
	spec, ok := stages[0].Lookup("$changeStream").DocumentOK()
	if !ok {
		return nil, failf(50808, "$changeStream stage expects a document as argument")
	}
	st, err := c.watched(spec)
	if err != nil {
		return nil, err
	}
	for _, doc := range stages[1:] {
		run, err := compileStage(doc)
		if err != nil {
			return nil, err
		}
		if first, _ := doc.IndexErr(0); first.Key() != "$match" && first.Key() != "$project" {
			return nil, failf(codeIllegalOperation, "%s is not permitted in a $changeStream pipeline", first.Key())
		}
		st.stages = append(st.stages, run)
	}
	if err := c.s.position(st, spec); err != nil {
		return nil, err
	}
	x := &cursor{ns: st.ns, stream: st}
	if x.ns.coll == "" {
		x.ns.coll = "$cmd.aggregate"
	}
	if x.ns.db == "" {
		x.ns.db = "admin"
	}
	c.s.keep(x)
	b := newBatch(size)
	if size > 0 {
		if err := c.s.read(st, b); err != nil {
			delete(c.s.cursors, x.id)
			return nil, err
		}
	}
	return c.s.replyStream(x, "firstBatch", b), nil
}

// watched reads what is to be watched.
func (c *call) watched(spec bson.Raw) (*stream, error) {
	if err := only(spec, "$changeStream", "fullDocument", "resumeAfter", "startAfter", "startAtOperationTime",
		"allChangesForCluster", "showExpandedEvents", "fullDocumentBeforeChange"); err != nil {
		return nil, err
	}
	st := &stream{ns: namespace{db: c.db}, full: "default"}
	if name, ok := c.body.Lookup("aggregate").StringValueOK(); ok {
		st.ns.coll = name
	}
	if truthy(spec.Lookup("allChangesForCluster")) {
		if c.db != "admin" || st.ns.coll != "" {
			return nil, failf(codeInvalidOptions, "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no collection name")
		}
		st.ns = namespace{}
	}
	if v := spec.Lookup("fullDocument"); !v.IsZero() {
		st.full, _ = v.StringValueOK()
		switch st.full {
		case "default", "updateLookup", "whenAvailable", "required":
		default:
			return nil, failf(codeBadValue, "Enumeration value '%s' for field '$changeStream.fullDocument' is not a valid value.", st.full)
		}
	}
	if truthy(spec.Lookup("showExpandedEvents")) {
		return nil, failf(codeInvalidOptions, "the fake does not know showExpandedEvents")
	}
	if v := spec.Lookup("fullDocumentBeforeChange"); !v.IsZero() && v.StringValue() != "off" {
		return nil, failf(codeInvalidOptions, "the fake does not know fullDocumentBeforeChange")
	}
	return st, nil
}

// position finds where the stream begins.
func (s *Server) position(st *stream, spec bson.Raw) error {
	after, resumes := spec.Lookup("resumeAfter").DocumentOK()
	start, starts := spec.Lookup("startAfter").DocumentOK()
	t, i, timed := spec.Lookup("startAtOperationTime").TimestampOK()
	if resumes && starts || timed && (resumes || starts) {
		return failf(40674, "Only one type of resume option is allowed, but multiple were found.")
	}
	switch {
	case timed:
		st.last = token{at: bson.Timestamp{T: t, I: i}}
	case resumes || starts:
		if starts {
			after = start
		}
		k, err := parseToken(after)
		if err != nil {
			return failf(codeInvalidResumeToken, "the resume token cannot be used: %v", err)
		}
		if k.end && resumes {
			return failf(codeInvalidResumeToken, "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification")
		}
		st.last = k
	default: // from now on
		st.last = token{at: bson.Timestamp{T: s.time.T, I: s.time.I + 1}}
	}
	if !st.last.at.After(s.lost) {
		f := failf(codeHistoryLost, "Resume of change stream was not possible, as the resume point may no longer be in the oplog.")
		f.labels = []string{labelFinal}
		return f
	}
	if st.last.event {
		if e, ok := s.entryAt(st.last); !ok || !st.watches(&e) {
			f := failf(codeChangeStreamFatal, "cannot resume stream; the resume token was not found. %s", st.last.doc())
			f.labels = []string{labelFinal}
			return f
		}
	}
	st.next = s.behind(st.last)
	return nil
}

// read fills a batch with the changes at hand.
func (s *Server) read(st *stream, b *batch) error {
	if st.ended {
		return nil
	}
	if st.next < s.trimmed {
		return failf(codeCappedPositionLost, "CollectionScan died due to position in capped collection being deleted.")
	}
	for st.next < s.trimmed+int64(len(s.oplog)) {
		if b.most > 0 && b.count >= b.most {
			return nil // what comes next, be it an error, is for another batch
		}
		e := &s.oplog[st.next-s.trimmed]
		if st.watches(e) {
			took, err := s.give(st, e, e.token(), b)
			if err != nil || !took {
				return err
			}
			if st.ends(e) {
				end := e.token()
				end.end = true
				if _, err := s.give(st, e, end, b); err != nil {
					return err
				}
				st.ended = true
				return nil
			}
		}
		st.next++
	}
	// All is read: the time of the last change of anything is the place.
	if mark := (token{at: s.time}); mark.compare(st.last) > 0 {
		st.last = mark
	}
	return nil
}

// give puts the event of a change into the batch, unless it is full.
func (s *Server) give(st *stream, e *entry, k token, b *batch) (took bool, err error) {
	doc, err := s.event(st, e, k)
	if err != nil {
		return false, err
	}
	docs := []bson.Raw{doc}
	for _, run := range st.stages {
		if docs, err = run(docs); err != nil {
			return false, err
		}
	}
	if len(docs) == 0 {
		st.last = k
		return true, nil
	}
	doc = docs[0]
	if len(doc) > s.o.MaxDocument+eventRoom {
		f := failf(codeTooLarge, "Executor error during getMore :: caused by :: BSONObj size: %d is invalid. Size must be between 0 and %d", len(doc), s.o.MaxDocument+eventRoom)
		f.labels = []string{labelFinal}
		return false, f
	}
	if len(st.stages) > 0 && doc.Lookup("_id").IsZero() {
		f := failf(codeChangeStreamFatal, "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline.")
		f.labels = []string{labelFinal}
		return false, f
	}
	// The end of a stream goes with the change that caused it.
	if !k.end && b.full(doc) {
		return false, nil
	}
	b.add(doc)
	st.last = k
	return true, nil
}

// event is the document of a change, as the manual lists its fields.
func (s *Server) event(st *stream, e *entry, k token) (bson.Raw, error) {
	start, d := bsoncore.AppendDocumentStart(nil)
	at, d := bsoncore.AppendDocumentElementStart(d, "_id")
	d = bsoncore.AppendStringElement(d, "_data", k.data())
	d, _ = bsoncore.AppendDocumentEnd(d, at)
	op := e.op
	if k.end {
		op = "invalidate"
	}
	d = bsoncore.AppendStringElement(d, "operationType", op)
	d = bsoncore.AppendTimestampElement(d, "clusterTime", e.at.T, e.at.I)
	d = bsoncore.AppendDateTimeElement(d, "wallTime", e.wall.UnixMilli())
	if k.end {
		d, err := bsoncore.AppendDocumentEnd(d, start)
		return bson.Raw(d), err
	}
	full, shown, err := s.fullDocument(st, e)
	if err != nil {
		return nil, err
	}
	if shown && full == nil {
		d = bsoncore.AppendNullElement(d, "fullDocument")
	} else if shown {
		d = bsoncore.AppendDocumentElement(d, "fullDocument", bsoncore.Document(full))
	}
	d = appendNamespace(d, "ns", e.ns)
	if e.op == "rename" {
		d = appendNamespace(d, "to", e.to)
	}
	if !e.id.IsZero() {
		at, d = bsoncore.AppendDocumentElementStart(d, "documentKey")
		d = bsoncore.AppendValueElement(d, "_id", bsoncore.Value{Type: bsoncore.Type(e.id.Type), Data: e.id.Value})
		d, _ = bsoncore.AppendDocumentEnd(d, at)
	}
	if e.op == "update" {
		d = bsoncore.AppendDocumentElement(d, "updateDescription", bsoncore.Document(describe(e.before, e.after)))
	}
	if e.lsid != nil {
		d = bsoncore.AppendDocumentElement(d, "lsid", bsoncore.Document(e.lsid))
		d = bsoncore.AppendInt64Element(d, "txnNumber", e.number)
	}
	d, err = bsoncore.AppendDocumentEnd(d, start)
	return bson.Raw(d), err
}

func appendNamespace(d []byte, name string, ns namespace) []byte {
	at, d := bsoncore.AppendDocumentElementStart(d, name)
	d = bsoncore.AppendStringElement(d, "db", ns.db)
	if ns.coll != "" {
		d = bsoncore.AppendStringElement(d, "coll", ns.coll)
	}
	d, _ = bsoncore.AppendDocumentEnd(d, at)
	return d
}

// fullDocument gives the document of an event, and whether the event shows any.
// A lookup finds the document as it is now, and null if it is gone.
func (s *Server) fullDocument(st *stream, e *entry) (doc bson.Raw, shown bool, err error) {
	switch e.op {
	case "insert", "replace":
		return e.after, true, nil
	case "update":
	default:
		return nil, false, nil
	}
	switch st.full {
	case "updateLookup":
		if c := s.colls[e.ns]; c != nil {
			if r := c.byID[identity(e.id)]; r != nil {
				return r.latest(), true, nil
			}
		}
		return nil, true, nil
	case "whenAvailable", "required":
		if e.images {
			return e.after, true, nil
		}
		if st.full == "required" {
			f := failf(codeNoMatchingDocument, "Change stream was configured to require a post-image for all update events, but the post-image was not found for event")
			f.labels = []string{labelFinal}
			return nil, false, f
		}
		return nil, true, nil
	}
	return nil, false, nil
}

// describe tells what an update did: nested documents by dotted names, arrays as
// a whole.
func describe(before, after bson.Raw) bson.Raw {
	updated, removed := bson.D{}, bson.A{}
	var diff func(prefix string, before, after bson.Raw)
	diff = func(prefix string, before, after bson.Raw) {
		now, _ := after.Elements()
		for _, e := range now {
			name, v := e.Key(), e.Value()
			old, err := before.LookupErr(name)
			if err == nil && old.Type == bson.TypeEmbeddedDocument && v.Type == bson.TypeEmbeddedDocument {
				diff(prefix+name+".", old.Document(), v.Document())
			} else if err != nil || !old.Equal(v) {
				updated = append(updated, bson.E{Key: prefix + name, Value: v})
			}
		}
		was, _ := before.Elements()
		for _, e := range was {
			if _, err := after.LookupErr(e.Key()); err != nil {
				removed = append(removed, prefix+e.Key())
			}
		}
	}
	diff("", before, after)
	return encode(bson.D{
		{Key: "updatedFields", Value: updated}, {Key: "removedFields", Value: removed}, {Key: "truncatedArrays", Value: bson.A{}},
	})
}

// replyStream answers with a batch and the place behind it. The cursor of a
// stream that has ended is closed.
func (s *Server) replyStream(x *cursor, name string, b *batch) bson.D {
	if x.stream.ended {
		delete(s.cursors, x.id)
		x.id = 0
	}
	return x.reply(name, b, x.stream.last.doc())
}

// moreOfStream waits for changes for as long as the client lets it.
func (c *call) moreOfStream(x *cursor, size int) (bson.D, error) {
	until, err := c.deadline()
	if err != nil {
		return nil, err
	}
	if until.IsZero() {
		until = time.Now().Add(awaitTime)
	}
	topology := c.s.topology
	for late := false; ; {
		b := newBatch(size)
		if err := c.s.read(x.stream, b); err != nil {
			delete(c.s.cursors, x.id)
			return nil, err
		}
		if b.count > 0 || late || x.stream.ended {
			return c.s.replyStream(x, "nextBatch", b), nil
		}
		if late, err = c.wait(until); err != nil {
			return nil, err
		}
		switch {
		case x.killed:
			return nil, failf(codeCursorNotFound, "cursor id %d was killed", x.id)
		case c.s.topology != topology: // a reader who said that a secondary will do goes on
			if mode, _ := c.body.Lookup("$readPreference", "mode").StringValueOK(); c.s.stepped != 0 && (mode == "" || mode == "primary") {
				return nil, failf(codeInterruptedByState, "operation was interrupted")
			}
		}
	}
}
