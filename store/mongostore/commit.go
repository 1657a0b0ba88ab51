package mongostore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"promethean/event"
	"promethean/store"
)

// The layout of commits is in the package doc. Commits are encoded and decoded
// by hand: they are most of what the store does.

const (
	binGeneric = 0x00
	binUUID    = 0x04
	// seqAt is where the seq stands in an encoded event: behind the length,
	// the type and the name "seq" of the first field.
	seqAt = 4 + 1 + len("seq\x00")
)

// commitID is the _id of the commit whose first event has the given seq.
func commitID(topic string, first uint64) bson.D {
	return bson.D{{Key: "t", Value: topic}, {Key: "s", Value: int64(first)}}
}

// encodeEvent gives an event as it stands in a commit, with room for its seq.
func encodeEvent(e *event.Event) []byte {
	size := 160 + len(e.Key) + len(e.SID) + len(e.Payload)
	for _, h := range e.Headers {
		size += 32 + len(h.Name) + len(h.Value)
	}
	at, b := bsoncore.AppendDocumentStart(make([]byte, 0, size))
	b = bsoncore.AppendInt64Element(b, "seq", 0)
	b = bsoncore.AppendBinaryElement(b, "id", binUUID, e.ID[:])
	b = bsoncore.AppendInt64Element(b, "ts", e.TS)
	if e.Key != "" {
		b = bsoncore.AppendStringElement(b, "key", e.Key)
	}
	if n, ok := e.Partition.Get(); ok {
		b = bsoncore.AppendInt32Element(b, "partition", int32(n))
	}
	if e.SID != "" {
		b = bsoncore.AppendStringElement(b, "sid", e.SID)
	}
	if len(e.Headers) > 0 {
		var list int32
		list, b = bsoncore.AppendArrayElementStart(b, "headers")
		for i, h := range e.Headers {
			var pair int32
			pair, b = bsoncore.AppendDocumentElementStart(b, strconv.Itoa(i))
			b = bsoncore.AppendStringElement(b, "k", h.Name)
			b = bsoncore.AppendStringElement(b, "v", h.Value)
			b = end(b, pair)
		}
		b = end(b, list)
	}
	// A string, not binary: it is JSON, and people read it.
	b = bsoncore.AppendHeader(b, bsoncore.TypeString, "payload")
	b = binary.LittleEndian.AppendUint32(b, uint32(len(e.Payload)+1))
	b = append(append(b, e.Payload...), 0)
	b = appendTexts(b, "caused_by", e.CausedBy)
	b = appendTexts(b, "tags", e.Tags)
	return end(b, at)
}

func appendTexts(b []byte, name string, list []string) []byte {
	if len(list) == 0 {
		return b
	}
	at, b := bsoncore.AppendArrayElementStart(b, name)
	for i, text := range list {
		b = bsoncore.AppendStringElement(b, strconv.Itoa(i), text)
	}
	return end(b, at)
}

// end closes the document or array that began at. It cannot fail: the bytes
// are ours.
func end(b []byte, at int32) []byte {
	b = append(b, 0)
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b))-uint32(at))
	return b
}

// tail is the end of a topic as its newest commit tells it.
type tail struct {
	first uint64 // the commit's first seq
	last  uint64
	top   int64 // the highest ts of all events up to here
	cum   int64 // bytes of all events up to here, trimmed ones too
}

// draft is a commit that is about to be written.
type draft struct {
	doc   bson.Raw
	nonce [12]byte
	next  tail // the tail once it is written
}

// encodeCommit puts encoded events behind the tail.
func encodeCommit(topic string, t tail, at time.Time, nonce [12]byte, items []*item) draft {
	size, hi := 0, int64(0)
	for _, it := range items {
		size += len(it.doc)
		hi = max(hi, it.ts)
	}
	d := draft{nonce: nonce, next: tail{first: t.last + 1, last: t.last + uint64(len(items)), top: max(t.top, hi), cum: t.cum + int64(size)}}
	start, b := bsoncore.AppendDocumentStart(make([]byte, 0, size+8*len(items)+300+2*len(topic)))
	id, b := bsoncore.AppendDocumentElementStart(b, "_id")
	b = bsoncore.AppendStringElement(b, "t", topic)
	b = bsoncore.AppendInt64Element(b, "s", int64(d.next.first))
	b = end(b, id)
	b = bsoncore.AppendStringElement(b, "t", topic)
	b = bsoncore.AppendInt64Element(b, "last", int64(d.next.last))
	b = bsoncore.AppendTimeElement(b, "at", at)
	b = bsoncore.AppendInt64Element(b, "hi", hi)
	b = bsoncore.AppendInt64Element(b, "top", d.next.top)
	b = bsoncore.AppendInt64Element(b, "cum", d.next.cum)
	b = bsoncore.AppendBinaryElement(b, "c", binGeneric, nonce[:])
	list, b := bsoncore.AppendArrayElementStart(b, "events")
	for i, it := range items {
		b = bsoncore.AppendHeader(b, bsoncore.TypeEmbeddedDocument, strconv.Itoa(i))
		begin := len(b)
		b = append(b, it.doc...)
		binary.LittleEndian.PutUint64(b[begin+seqAt:], d.next.first+uint64(i))
	}
	b = end(b, list)
	d.doc = bson.Raw(end(b, start))
	return d
}

// commit is a stored commit, or the part of it that was asked for.
type commit struct {
	topic string
	tail
	at     int64 // epoch milliseconds
	less   int64 // bytes of events that compaction has removed
	nonce  []byte
	events []storedEvent
}

// storedEvent is an event that is decoded when it is needed.
type storedEvent struct {
	seq uint64
	doc bsoncore.Document
}

var errShape = errors.New("unexpected shape")

// parseCommit reads a commit. It keeps raw.
func parseCommit(raw bson.Raw) (*commit, error) {
	c := &commit{}
	if size, _, ok := bsoncore.ReadLength(raw); !ok || int(size) != len(raw) || raw[size-1] != 0 {
		return nil, damaged(nil, fmt.Errorf("%w: it is cut short", errShape))
	}
	elements, err := bsoncore.Document(raw).Elements()
	if err != nil {
		return nil, damaged(raw, err)
	}
	for _, el := range elements {
		v, ok := el.Value(), true
		switch el.Key() {
		case "_id":
			id, isDoc := v.DocumentOK()
			var first int64
			if ok = isDoc; ok {
				c.topic, ok = id.Lookup("t").StringValueOK()
				first, _ = id.Lookup("s").Int64OK()
				c.first = uint64(first)
				ok = ok && first > 0
			}
		case "last":
			var n int64
			n, ok = v.Int64OK()
			c.last = uint64(n)
		case "at":
			c.at, ok = v.DateTimeOK()
		case "top":
			c.top, ok = v.Int64OK()
		case "cum":
			c.cum, ok = v.Int64OK()
		case "less":
			c.less, ok = v.Int64OK()
		case "c":
			_, c.nonce, ok = v.BinaryOK()
		case "events":
			var list bsoncore.Array
			if list, ok = v.ArrayOK(); ok {
				err = c.parseEvents(list)
			}
		}
		if !ok {
			err = fmt.Errorf("%w of field %s", errShape, el.Key())
		}
		if err != nil {
			return nil, damaged(raw, err)
		}
	}
	return c, nil
}

func (c *commit) parseEvents(list bsoncore.Array) error {
	values, err := list.Values()
	if err != nil {
		return err
	}
	c.events = make([]storedEvent, 0, len(values))
	for i, v := range values {
		doc, ok := v.DocumentOK()
		if !ok {
			return fmt.Errorf("%w of event %d", errShape, i)
		}
		seq, ok := doc.Lookup("seq").Int64OK()
		if !ok {
			return fmt.Errorf("%w of the seq of event %d", errShape, i)
		}
		if seq != stubSeq {
			c.events = append(c.events, storedEvent{seq: uint64(seq), doc: doc})
		}
	}
	return nil
}

// id gives the event's id without decoding the rest.
func (e *storedEvent) id() (id event.ID) {
	if _, data, ok := e.doc.Lookup("id").BinaryOK(); ok && len(data) == len(id) {
		id = event.ID(data)
	}
	return id
}

// key gives the event's key without decoding the rest.
func (e *storedEvent) key() string {
	text, _ := e.doc.Lookup("key").StringValueOK()
	return text
}

func (e *storedEvent) partition() event.Partition {
	if n, ok := e.doc.Lookup("partition").Int32OK(); ok {
		return event.PartitionOf(int(n))
	}
	return 0
}

// decode gives the event. Its payload shares memory with the commit.
func (e *storedEvent) decode(topic string) (event.Event, error) {
	out := event.Event{Seq: e.seq, Topic: topic}
	elements, err := e.doc.Elements()
	if err != nil {
		return out, damaged(bson.Raw(e.doc), err)
	}
	for _, el := range elements {
		v, ok := el.Value(), true
		switch el.Key() {
		case "id":
			var data []byte
			if _, data, ok = v.BinaryOK(); ok {
				if ok = len(data) == len(out.ID); ok {
					out.ID = event.ID(data)
				}
			}
		case "ts":
			out.TS, ok = v.Int64OK()
		case "key":
			out.Key, ok = v.StringValueOK()
		case "partition":
			var n int32
			n, ok = v.Int32OK()
			out.Partition = event.PartitionOf(int(n))
		case "sid":
			out.SID, ok = v.StringValueOK()
		case "payload":
			if ok = v.Type == bsoncore.TypeString && len(v.Data) >= 5; ok {
				end := len(v.Data) - 1
				out.Payload = json.RawMessage(v.Data[4:end:end])
			}
		case "headers":
			out.Headers, ok = decodeHeaders(v)
		case "caused_by":
			out.CausedBy, ok = decodeTexts(v)
		case "tags":
			out.Tags, ok = decodeTexts(v)
		}
		if !ok {
			return out, damaged(bson.Raw(e.doc), fmt.Errorf("%w of field %s", errShape, el.Key()))
		}
	}
	return out, nil
}

func decodeHeaders(v bsoncore.Value) (event.Headers, bool) {
	list, ok := v.ArrayOK()
	if !ok {
		return nil, false
	}
	values, err := list.Values()
	if err != nil {
		return nil, false
	}
	out := make(event.Headers, len(values))
	for i, pair := range values {
		doc, ok := pair.DocumentOK()
		if !ok {
			return nil, false
		}
		name, okName := doc.Lookup("k").StringValueOK()
		value, okValue := doc.Lookup("v").StringValueOK()
		if !okName || !okValue {
			return nil, false
		}
		out[i] = event.Header{Name: name, Value: value}
	}
	return out, true
}

func decodeTexts(v bsoncore.Value) ([]string, bool) {
	list, ok := v.ArrayOK()
	if !ok {
		return nil, false
	}
	values, err := list.Values()
	if err != nil {
		return nil, false
	}
	out := make([]string, len(values))
	for i, text := range values {
		if out[i], ok = text.StringValueOK(); !ok {
			return nil, false
		}
	}
	return out, true
}

// damaged says which document cannot be read.
func damaged(raw bson.Raw, err error) error {
	id := raw.Lookup("_id")
	return fmt.Errorf("%w: document %s: %w", store.ErrCorrupt, id.String(), err)
}
