package event

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// AppendJSON appends the JSON form of e to dst, see the package doc. The
// payload is checked and stands there without white space between its tokens,
// otherwise byte for byte. The error is a *RuleError for a payload that
// CheckJSON refuses or a text that is not valid UTF-8; dst is then returned as
// it was. The other rules of Check are not applied.
func (e *Event) AppendJSON(dst []byte) ([]byte, error) {
	return e.appendJSON(dst, false)
}

// AppendStoredJSON is AppendJSON for events that come from a log: their
// payload was checked before it was stored, so it is not checked again, which
// is most of the work. For a payload that CheckJSON would refuse the output is
// no JSON.
func (e *Event) AppendStoredJSON(dst []byte) ([]byte, error) {
	return e.appendJSON(dst, true)
}

// MarshalJSON returns what AppendJSON appends. Mind that json.Marshal escapes
// <, > and & in the result, also inside of the payload; for the exact bytes
// call AppendJSON, or an Encoder with SetEscapeHTML(false).
func (e Event) MarshalJSON() ([]byte, error) {
	return e.AppendJSON(nil)
}

func (e *Event) appendJSON(dst []byte, stored bool) ([]byte, error) {
	w := writer{buf: dst}
	w.buf = append(w.buf, '{')
	if !e.ID.IsZero() {
		w.field(`"id":"`)
		id := e.ID.encode()
		w.buf = append(w.buf, id[:]...)
		w.buf = append(w.buf, '"')
	}
	if e.Seq != 0 {
		w.field(`"seq":`)
		w.buf = strconv.AppendUint(w.buf, e.Seq, 10)
	}
	if e.TS != 0 {
		w.field(`"ts":`)
		w.buf = strconv.AppendInt(w.buf, e.TS, 10)
	}
	if e.Topic != "" {
		w.field(`"topic":`)
		w.text("topic", e.Topic, ErrInvalidTopic)
	}
	if e.Key != "" {
		w.field(`"key":`)
		w.text("key", e.Key, ErrInvalidArgument)
	}
	if n, ok := e.Partition.Get(); ok {
		w.field(`"partition":`)
		w.buf = strconv.AppendInt(w.buf, int64(n), 10)
	}
	if e.SID != "" {
		w.field(`"sid":`)
		w.text("sid", e.SID, ErrInvalidArgument)
	}
	if len(e.Headers) > 0 {
		w.field(`"headers":`)
		w.headers(e.Headers.sorted())
	}
	w.field(`"payload":`)
	switch {
	case !stored || len(e.Payload) == 0:
		w.payload(e.Payload)
	case hasSpace(e.Payload):
		w.buf = appendCompact(w.buf, e.Payload)
	default:
		w.buf = append(w.buf, e.Payload...)
	}
	if len(e.CausedBy) > 0 {
		w.field(`"caused_by":`)
		w.list("caused_by", e.CausedBy)
	}
	if len(e.Tags) > 0 {
		w.field(`"tags":`)
		w.list("tags", e.Tags)
	}
	if w.err != nil {
		return dst, w.err
	}
	return append(w.buf, '}'), nil
}

// writer appends the parts of an event and remembers the first error.
type writer struct {
	buf []byte
	err error
}

// field appends a comma, unless it is the first field, and the name.
func (w *writer) field(name string) {
	if w.buf[len(w.buf)-1] != '{' {
		w.buf = append(w.buf, ',')
	}
	w.buf = append(w.buf, name...)
}

func (w *writer) payload(p []byte) {
	buf, err := compact(w.buf, p)
	if err != nil && w.err == nil {
		err.Field = "payload"
		w.err = err
	}
	w.buf = buf
}

func (w *writer) headers(h Headers) {
	sep := byte('{')
	for i := range h {
		// Two equal names would make an object that no strict reader takes.
		if i > 0 && h[i].Name == h[i-1].Name && w.err == nil {
			w.err = &RuleError{Field: "headers", Rule: "a name must stand once", Found: quote(h[i].Name), Kind: ErrInvalidHeader}
		}
		w.buf = append(w.buf, sep)
		w.text("headers", h[i].Name, ErrInvalidHeader)
		w.buf = append(w.buf, ':')
		w.text("headers", h[i].Value, ErrInvalidHeader)
		sep = ','
	}
	w.buf = append(w.buf, '}')
}

func (w *writer) list(field string, list []string) {
	sep := byte('[')
	for _, s := range list {
		w.buf = append(w.buf, sep)
		w.text(field, s, ErrInvalidArgument)
		sep = ','
	}
	w.buf = append(w.buf, ']')
}

// text appends s as a JSON string with no more escapes than JSON asks for.
func (w *writer) text(field, s string, kind error) {
	w.buf = append(w.buf, '"')
	from, seen := 0, uint64(0)
	for i := 0; i < len(s); {
		if i+8 <= len(s) {
			x := le64(s[i:])
			m := stops(x)
			if m == 0 {
				seen |= x
				i += 8
				continue
			}
			i += bits.TrailingZeros64(m) >> 3
			seen |= x & before(m)
		}
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			seen |= uint64(c)
			i++
			continue
		}
		w.buf = appendEscape(append(w.buf, s[from:i]...), c)
		i++
		from = i
	}
	if seen&highs != 0 && w.err == nil && !utf8.ValidString(s) {
		w.err = &RuleError{Field: field, Rule: "must be valid UTF-8", Found: quote(s), Kind: kind}
	}
	w.buf = append(append(w.buf, s[from:]...), '"')
}

func le64(s string) uint64 {
	return binary.LittleEndian.Uint64([]byte(s[:8]))
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '\b':
		c = 'b'
	case '\f':
		c = 'f'
	case '\n':
		c = 'n'
	case '\r':
		c = 'r'
	case '\t':
		c = 't'
	case '"', '\\':
	default:
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0x0f])
	}
	return append(dst, '\\', c)
}
