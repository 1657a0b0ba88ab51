package mongofeed

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"promethean/changefeed"
	"promethean/event"
)

// Spaces of the ids, so that those of changes and of snapshots are never equal.
var (
	streamSpace   = event.NameID(event.ID{}, "promethean/changefeed/mongofeed")
	snapshotSpace = event.NameID(event.ID{}, "promethean/changefeed/mongofeed/snapshot")
)

// streamEvent is an event of a change stream, as far as it matters here.
type streamEvent struct {
	token string // the text of the resume token
	op    string
	time  bson.Timestamp
	wall  time.Time
	id    bson.RawValue // of the document
	doc   bson.Raw      // nil if there is none
	to    string        // of a rename
}

// parseEvent reads an event in one pass.
func parseEvent(raw bson.Raw) (e streamEvent, err error) {
	_, rest, ok := bsoncore.ReadLength(raw)
	for ok && len(rest) > 1 {
		var el bsoncore.Element
		if el, rest, ok = bsoncore.ReadElement(rest); !ok {
			break
		}
		v := el.Value()
		switch string(el.KeyBytes()) {
		case "_id":
			e.token = tokenText(v)
		case "operationType":
			e.op, _ = v.StringValueOK()
		case "clusterTime":
			e.time.T, e.time.I, _ = v.TimestampOK()
		case "wallTime":
			if ms, ok := v.DateTimeOK(); ok {
				e.wall = time.UnixMilli(ms)
			}
		case "documentKey":
			if key, ok := v.DocumentOK(); ok {
				id := key.Lookup("_id")
				e.id = bson.RawValue{Type: bson.Type(id.Type), Value: id.Data}
			}
		case "fullDocument":
			if doc, ok := v.DocumentOK(); ok {
				e.doc = bson.Raw(doc)
			}
		case "to":
			if to, ok := v.DocumentOK(); ok {
				db, _ := to.Lookup("db").StringValueOK()
				coll, _ := to.Lookup("coll").StringValueOK()
				e.to = db + "." + coll
			}
		}
	}
	switch {
	case !ok:
		return e, errors.New("an event of the change stream cannot be read")
	case e.token == "":
		return e, errors.New("an event of the change stream has no resume token")
	}
	return e, nil
}

// tokenText gives the part of a resume token that tells tokens apart. Servers
// since 4.0.7 have a text there.
func tokenText(v bsoncore.Value) string {
	doc, ok := v.DocumentOK()
	if !ok {
		return ""
	}
	data := doc.Lookup("_data")
	if text, ok := data.StringValueOK(); ok {
		return text
	}
	return string(data.Data)
}

// said tells an end of the stream to people.
func (e streamEvent) said() string {
	if e.op == "rename" {
		return "a rename to " + e.to
	}
	return e.op
}

// change makes a change of the event. The scratch is used again.
func (e streamEvent) change(scratch *[]byte) (changefeed.Change, error) {
	c := changefeed.Change{ID: event.NameID(streamSpace, e.token), At: e.wall, Headers: headers(e.op, e.time)}
	if c.At.IsZero() { // servers before 6.0
		c.At = time.Unix(int64(e.time.T), 0)
	}
	switch e.op {
	case "insert":
		c.Op = changefeed.OpInsert
	case "update":
		c.Op = changefeed.OpUpdate
	case "replace":
		c.Op = changefeed.OpReplace
	case "delete":
		c.Op = changefeed.OpDelete
	default:
		return c, fmt.Errorf("%w: the change stream has an event of the kind %q, which is not known here", changefeed.ErrRefused, e.op)
	}
	if e.id.IsZero() {
		return c, fmt.Errorf("an event of the kind %s has no document key", e.op)
	}
	c.Key = keyOf(e.id)
	switch {
	case c.Op == changefeed.OpDelete:
		return c, nil
	case e.doc == nil && c.Op == changefeed.OpUpdate:
		return c, nil
	case e.doc == nil:
		return c, fmt.Errorf("an event of the kind %s has no document", e.op)
	}
	text, err := appendDocument((*scratch)[:0], e.doc)
	if err != nil {
		return c, fmt.Errorf("document %s: %w", c.Key, err)
	}
	*scratch = text
	c.Doc = bytes.Clone(text)
	return c, nil
}

// clock writes a cluster time.
func clock(t bson.Timestamp) string {
	b := strconv.AppendUint(make([]byte, 0, 24), uint64(t.T), 10)
	return string(strconv.AppendUint(append(b, '.'), uint64(t.I), 10))
}

func headers(op string, at bson.Timestamp) event.Headers {
	return event.Headers{{Name: "x-change-cluster-time", Value: clock(at)}, {Name: "x-mongo-op", Value: op}}
}

// keyOf writes an _id as the key of events. Numbers that MongoDB holds for one
// and the same _id give the same key.
func keyOf(id bson.RawValue) string {
	switch id.Type {
	case bson.TypeObjectID:
		return id.ObjectID().Hex()
	case bson.TypeString:
		if s := id.StringValue(); s != "" {
			return s
		}
	case bson.TypeInt32:
		return strconv.FormatInt(int64(id.Int32()), 10)
	case bson.TypeInt64:
		return strconv.FormatInt(id.Int64(), 10)
	case bson.TypeDouble:
		f := id.Double()
		if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return strconv.FormatInt(int64(f), 10)
		}
		return strconv.FormatFloat(f, 'g', -1, 64)
	case bson.TypeDecimal128:
		return id.Decimal128().String()
	}
	return id.String()
}
