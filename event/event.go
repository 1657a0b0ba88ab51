package event

import (
	"encoding/json"
	"slices"
	"time"
	"unsafe"
)

// Event is one record of a topic. Fields with their zero value are absent.
//
// An Event is a plain value: copying it shares the slices and strings, which
// nobody changes once the event is published. Clone makes a copy that shares
// nothing.
type Event struct {
	ID        ID              // identity, unique within a topic
	Seq       uint64          // position in the topic, 1 for the first; given at commit
	TS        int64           // epoch milliseconds, as the publisher says
	Topic     string          // see CheckTopic
	Key       string          // order, compaction and partition follow it; "" means none
	Partition Partition       // the zero value means not set
	SID       string          // session of the publisher
	Headers   Headers         // see CheckHeader
	Payload   json.RawMessage // one JSON value; null is one
	CausedBy  []string        // ids of the events that led to this one
	Tags      []string
}

// New returns an event with a fresh ID and the time now.
func New(topic string, payload json.RawMessage) Event {
	now := time.Now().UnixMilli()
	return Event{ID: newIDAt(now), TS: now, Topic: topic, Payload: payload}
}

// Time returns TS as a time.
func (e *Event) Time() time.Time { return time.UnixMilli(e.TS) }

// Size is about what the event takes in a store or on a wire, in bytes.
func (e *Event) Size() int {
	return 64 + e.bytes() + 8*len(e.Headers) + 4*len(e.CausedBy) + 4*len(e.Tags)
}

// bytes is the length of all strings together.
func (e *Event) bytes() int {
	n := len(e.Topic) + len(e.Key) + len(e.SID) + len(e.Payload)
	for _, h := range e.Headers {
		n += len(h.Name) + len(h.Value)
	}
	for _, s := range e.CausedBy {
		n += len(s)
	}
	for _, s := range e.Tags {
		n += len(s)
	}
	return n
}

// Clone returns a copy that shares no memory with e. An event that was decoded
// from a large block of a log keeps the whole block alive; its clone does not.
func (e *Event) Clone() Event {
	// One buffer of the exact size holds all bytes, so append never moves it
	// and every string can point into it.
	buf := make([]byte, 0, e.bytes())
	str := func(s string) string {
		at := len(buf)
		buf = append(buf, s...)
		return alias(buf[at:])
	}
	list := func(from []string) []string {
		to := slices.Clone(from)
		for i, s := range to {
			to[i] = str(s)
		}
		return to
	}
	c := *e
	c.Topic, c.Key, c.SID = str(e.Topic), str(e.Key), str(e.SID)
	c.Headers = slices.Clone(e.Headers)
	for i, h := range c.Headers {
		c.Headers[i] = Header{Name: str(h.Name), Value: str(h.Value)}
	}
	c.CausedBy, c.Tags = list(e.CausedBy), list(e.Tags)
	if e.Payload != nil {
		at := len(buf)
		buf = append(buf, e.Payload...)
		c.Payload = json.RawMessage(buf[at:len(buf):len(buf)])
	}
	return c
}

// alias returns b as a string that shares its memory. The caller sees to it
// that b is not changed while the string lives.
func alias(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}
