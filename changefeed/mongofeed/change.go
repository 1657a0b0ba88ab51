package mongofeed

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
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
		var key []byte
		var v bsoncore.Value
		if key, v, rest, ok = readElement(rest); !ok {
			break
		}
		switch string(key) {
		case "_id":
			e.token = tokenText(v)
		case "operationType":
			e.op = opName(v)
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

// opName reads the kind of an event.
func opName(v bsoncore.Value) string {
	if v.Type == bsoncore.TypeString && len(v.Data) > 5 {
		for _, op := range [...]changefeed.Op{changefeed.OpInsert, changefeed.OpUpdate, changefeed.OpReplace, changefeed.OpDelete} {
			if string(v.Data[4:len(v.Data)-1]) == string(op) {
				return string(op) // with no memory of its own
			}
		}
	}
	name, _ := v.StringValueOK()
	return name
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

// maker makes the changes of many events. What they are made of lies together:
// an event costs little then, and a topic holds whole batches anyway.
type maker struct {
	docs    arena
	texts   []byte // keys and cluster times, one behind the other
	ends    []int  // where each of them ends
	changes []changefeed.Change
}

// grow makes room for more changes.
func (m *maker) grow(n int) {
	m.changes = slices.Grow(m.changes, n)
	m.ends = slices.Grow(m.ends, 2*n)
	m.texts = slices.Grow(m.texts, 48*n)
}

// add makes a change, but for its key and headers.
func (m *maker) add(id event.ID, op changefeed.Op, at time.Time, key bson.RawValue, time bson.Timestamp, doc bson.Raw) error {
	c := changefeed.Change{ID: id, Op: op, At: at}
	if doc != nil {
		text, err := appendDocument(m.docs.room(2*len(doc)), doc)
		if err != nil {
			return fmt.Errorf("document %s: %w", keyOf(key), err)
		}
		c.Doc = m.docs.used(text)
	}
	m.texts = appendKey(m.texts, key)
	m.ends = append(m.ends, len(m.texts))
	m.texts = appendClock(m.texts, time)
	m.ends = append(m.ends, len(m.texts))
	m.changes = append(m.changes, c)
	return nil
}

// done gives the changes, and begins anew.
func (m *maker) done() []changefeed.Change {
	if len(m.changes) == 0 {
		return nil
	}
	texts := string(m.texts)
	headers := make(event.Headers, 2*len(m.changes))
	for i := range m.changes {
		begin := 0
		if i > 0 {
			begin = m.ends[2*i-1]
		}
		middle, end := m.ends[2*i], m.ends[2*i+1]
		h := headers[2*i : 2*i+2 : 2*i+2]
		h[0] = event.Header{Name: "x-change-cluster-time", Value: texts[middle:end]}
		h[1] = event.Header{Name: "x-mongo-op", Value: string(m.changes[i].Op)}
		m.changes[i].Key, m.changes[i].Headers = texts[begin:middle], h
	}
	changes := m.changes
	m.changes, m.texts, m.ends = nil, m.texts[:0], m.ends[:0]
	return changes
}

// event makes the change of an event.
func (m *maker) event(e streamEvent) error {
	op := changefeed.Op(e.op)
	switch op {
	case changefeed.OpInsert, changefeed.OpReplace, changefeed.OpUpdate, changefeed.OpDelete:
	default:
		return fmt.Errorf("%w: the change stream has an event of the kind %q, which is not known here", changefeed.ErrRefused, e.op)
	}
	switch {
	case e.id.IsZero():
		return fmt.Errorf("an event of the kind %s has no document key", e.op)
	case op == changefeed.OpDelete:
		e.doc = nil
	case e.doc == nil && op != changefeed.OpUpdate:
		return fmt.Errorf("an event of the kind %s has no document", e.op)
	}
	at := e.wall
	if at.IsZero() { // servers before 6.0
		at = time.Unix(int64(e.time.T), 0)
	}
	return m.add(event.NameID(streamSpace, e.token), op, at, e.id, e.time, e.doc)
}

// appendClock writes a cluster time.
func appendClock(b []byte, t bson.Timestamp) []byte {
	b = strconv.AppendUint(b, uint64(t.T), 10)
	return strconv.AppendUint(append(b, '.'), uint64(t.I), 10)
}

func clock(t bson.Timestamp) string { return string(appendClock(nil, t)) }

func keyOf(id bson.RawValue) string { return string(appendKey(nil, id)) }

// appendKey writes an _id as the key of events. Numbers that MongoDB holds for
// one and the same _id give the same key.
func appendKey(b []byte, id bson.RawValue) []byte {
	switch id.Type {
	case bson.TypeObjectID:
		return hex.AppendEncode(b, id.Value)
	case bson.TypeString:
		if s := id.StringValue(); s != "" {
			return append(b, s...)
		}
	case bson.TypeInt32:
		return strconv.AppendInt(b, int64(id.Int32()), 10)
	case bson.TypeInt64:
		return strconv.AppendInt(b, id.Int64(), 10)
	case bson.TypeDouble:
		f := id.Double()
		if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return strconv.AppendInt(b, int64(f), 10)
		}
		return strconv.AppendFloat(b, f, 'g', -1, 64)
	case bson.TypeDecimal128:
		return append(b, id.Decimal128().String()...)
	}
	return append(b, id.String()...)
}
