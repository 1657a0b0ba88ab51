package client

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"promethean/event"
	"promethean/wire"
)

// The functions of this file write frames of a client. A frame is left open:
// the corr and the brace at its end are added when it is sent.

// beginFrame begins a frame.
func beginFrame(dst []byte, op wire.Op) []byte {
	dst = append(dst, `{"op":"`...)
	dst = append(dst, op.String()...)
	return append(dst, '"')
}

// endFrame adds what a frame ends with.
func endFrame(dst []byte, corr uint64) []byte {
	dst = append(dst, `,"corr":`...)
	return append(strconv.AppendUint(dst, corr, 10), '}')
}

// appendPublish is the PUBLISH of one event. It fails if the payload is no
// JSON, or a text no UTF-8: the rest is for the hub to judge.
func appendPublish(dst []byte, p *publishing) ([]byte, error) {
	e := &p.Event
	if err := event.CheckJSON(e.Payload); err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	w := textWriter{buf: beginFrame(dst, wire.OpPublish)}
	w.field("topic", e.Topic)
	w.buf = append(append(w.buf, `,"payload":`...), e.Payload...)
	w.buf = append(w.buf, `,"opts":{"id":"`...)
	w.buf, _ = e.ID.AppendText(w.buf) // never fails
	w.buf = append(w.buf, '"')
	if e.Key != "" {
		w.field("key", e.Key)
	}
	if e.TS != 0 {
		w.number("ts", e.TS)
	}
	if e.SID != "" {
		w.field("sid", e.SID)
	}
	if n, ok := e.Partition.Get(); ok {
		w.number("partition", int64(n))
	}
	if len(e.Headers) > 0 {
		w.buf = append(w.buf, `,"headers":`...)
		for i, h := range e.Headers {
			w.buf = append(w.buf, "{,"[min(i, 1)])
			w.text(h.Name)
			w.buf = append(w.buf, ':')
			w.text(h.Value)
		}
		w.buf = append(w.buf, '}')
	}
	w.list("tags", e.Tags)
	w.list("caused_by", e.CausedBy)
	if p.hasExpect {
		w.buf = append(w.buf, `,"expect_seq":`...)
		w.buf = strconv.AppendUint(w.buf, p.expect, 10)
	}
	return append(w.buf, '}'), w.err
}

// appendBatch is the PUBLISH of several events.
func appendBatch(dst []byte, events []event.Event) ([]byte, error) {
	dst = append(beginFrame(dst, wire.OpPublish), `,"events":`...)
	for i := range events {
		e := events[i]
		e.Seq = 0 // that of another place, perhaps
		dst = append(dst, "[,"[min(i, 1)])
		var err error
		if dst, err = e.AppendJSON(dst); err != nil {
			return nil, fmt.Errorf("event %d: %w", i, err)
		}
	}
	return append(dst, ']'), nil
}

// appendGroup begins a frame about a topic and a group.
func appendGroup(dst []byte, op wire.Op, topic, group string) []byte {
	w := textWriter{buf: beginFrame(dst, op)}
	w.field("topic", topic)
	w.field("group", group)
	return w.buf
}

// appendSelected adds ids and, unless there are none, leases.
func appendSelected(dst []byte, ids []event.ID, leases []uint64) []byte {
	dst = append(dst, `,"ids":`...)
	for i, id := range ids {
		dst = append(dst, "[,"[min(i, 1)], '"')
		dst, _ = id.AppendText(dst) // never fails
		dst = append(dst, '"')
	}
	dst = append(dst, ']')
	for i, lease := range leases {
		if i == 0 {
			dst = append(dst, `,"leases":`...)
		}
		dst = append(dst, "[,"[min(i, 1)], '"')
		dst = append(strconv.AppendUint(dst, lease, 10), '"')
	}
	if len(leases) > 0 {
		dst = append(dst, ']')
	}
	return dst
}

// appendSubscribe is a SUBSCRIBE.
func appendSubscribe(dst []byte, topics []string, group string, o *SubscribeOptions) ([]byte, error) {
	w := textWriter{buf: beginFrame(dst, wire.OpSubscribe)}
	if len(topics) == 1 {
		w.field("topic", topics[0])
	} else {
		w.list("topics", topics)
	}
	w.field("group", group)
	w.buf = append(w.buf, `,"opts":{"maxInFlight":`...)
	w.buf = strconv.AppendInt(w.buf, int64(o.MaxInFlight), 10)
	w.number("batch", int64(min(o.MaxInFlight, perFrame)))
	for _, x := range []struct{ name, value string }{
		{"ordering", string(o.Ordering)}, {"deadLetter", string(o.DeadLetter)}, {"filter", o.Filter},
		{"member", o.Member}, {"from", o.start.from},
	} {
		if x.value != "" {
			w.field(x.name, x.value)
		}
	}
	for _, x := range []struct {
		name  string
		value int64
	}{{"maxAttempts", int64(o.MaxAttempts)}, {"ackTimeoutMs", o.AckTimeout.Milliseconds()}, {"batchSize", int64(o.BatchSize)}} {
		if x.value != 0 {
			w.number(x.name, x.value)
		}
	}
	if o.Partitioned {
		w.buf = append(w.buf, `,"partitioned":true`...)
	}
	if o.Normalise {
		w.buf = append(w.buf, `,"normalise":true`...)
	}
	switch o.start.from {
	case "ts":
		w.number("ts", o.start.ts)
	case "afterId":
		w.field("afterId", o.start.id.String())
	case "seq":
		w.buf = strconv.AppendUint(append(w.buf, `,"seq":`...), o.start.seq, 10)
	}
	return append(w.buf, '}'), w.err
}

// perFrame is how many events may come in one frame.
const perFrame = 256

// textWriter appends fields that are not the first of their object.
type textWriter struct {
	buf []byte
	err error // the first
}

func (w *textWriter) name(name string) {
	w.buf = append(append(append(w.buf, `,"`...), name...), `":`...)
}

func (w *textWriter) field(name, value string) {
	w.name(name)
	w.text(value)
}

func (w *textWriter) number(name string, n int64) {
	w.name(name)
	w.buf = strconv.AppendInt(w.buf, n, 10)
}

func (w *textWriter) list(name string, list []string) {
	if len(list) == 0 {
		return
	}
	w.name(name)
	for i, s := range list {
		w.buf = append(w.buf, "[,"[min(i, 1)])
		w.text(s)
	}
	w.buf = append(w.buf, ']')
}

// text appends a JSON string.
func (w *textWriter) text(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			if !utf8.ValidString(s) && w.err == nil {
				w.err = fmt.Errorf("%w: a text must be valid UTF-8, found %q", event.ErrInvalidArgument, s)
			}
			quoted, err := json.Marshal(s)
			if err != nil {
				panic(err) // a string always encodes
			}
			w.buf = append(w.buf, quoted...)
			return
		}
	}
	w.buf = append(append(append(w.buf, '"'), s...), '"')
}
