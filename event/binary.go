package event

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrBadRecord is what every error about an encoded record unwraps to.
var ErrBadRecord = errors.New("bad record")

// RecordError tells where an encoded record is broken.
type RecordError struct {
	Offset int    // byte offset into the record
	What   string // what was found there
}

// Error names the offset and what was found.
func (e *RecordError) Error() string {
	return fmt.Sprintf("bad record at byte %d: %s", e.Offset, e.What)
}

// Unwrap returns ErrBadRecord.
func (e *RecordError) Unwrap() error { return ErrBadRecord }

// The layout of a record, see the package doc.
const (
	recordVersion = 1
	headSize      = 48

	offFlags     = 1
	offZero      = 2
	offMetaLen   = 4
	offSeq       = 8
	offTS        = 16
	offID        = 24
	offPartition = 40
	offPayload   = 44
)

const (
	hasTopic = 1 << iota
	hasKey
	hasPartition
	hasSID
	hasHeaders
	hasCausedBy
	hasTags

	knownFlags = 1<<iota - 1
)

// AppendBinary appends the record of e to dst. Without the topic the record is
// shorter and DecodeBinary must be told it.
//
// AppendBinary does not judge: the event should have passed Check. It panics
// on an event of 4 GiB or more, which the layout cannot hold.
func AppendBinary(dst []byte, e *Event, withTopic bool) []byte {
	start := len(dst)
	dst = slices.Grow(dst, sizeBound(e))
	dst = dst[:start+headSize]
	var flags byte
	if withTopic && e.Topic != "" {
		flags |= hasTopic
		dst = appendText(dst, e.Topic)
	}
	if e.Key != "" {
		flags |= hasKey
		dst = appendText(dst, e.Key)
	}
	if e.Partition != 0 {
		flags |= hasPartition
	}
	if e.SID != "" {
		flags |= hasSID
		dst = appendText(dst, e.SID)
	}
	if len(e.Headers) > 0 {
		flags |= hasHeaders
		dst = binary.AppendUvarint(dst, uint64(len(e.Headers)))
		for _, h := range e.Headers.sorted() {
			dst = appendText(dst, h.Name)
			dst = appendText(dst, h.Value)
		}
	}
	if len(e.CausedBy) > 0 {
		flags |= hasCausedBy
		dst = appendList(dst, e.CausedBy)
	}
	if len(e.Tags) > 0 {
		flags |= hasTags
		dst = appendList(dst, e.Tags)
	}
	meta := len(dst) - start - headSize
	if uint64(meta) > math.MaxUint32 || uint64(len(e.Payload)) > math.MaxUint32 {
		panic("event: AppendBinary of an event that exceeds 4 GiB")
	}
	head := dst[start : start+headSize]
	head[0], head[offFlags], head[offZero], head[offZero+1] = recordVersion, flags, 0, 0
	binary.LittleEndian.PutUint32(head[offMetaLen:], uint32(meta))
	binary.LittleEndian.PutUint64(head[offSeq:], e.Seq)
	binary.LittleEndian.PutUint64(head[offTS:], uint64(e.TS))
	copy(head[offID:offPartition], e.ID[:])
	binary.LittleEndian.PutUint32(head[offPartition:], uint32(e.Partition))
	binary.LittleEndian.PutUint32(head[offPayload:], uint32(len(e.Payload)))
	return append(dst, e.Payload...)
}

// sizeBound returns a size that the record of e does not exceed for events
// that passed Check, with two bytes for each length.
func sizeBound(e *Event) int {
	n := headSize + 2*6 + len(e.Topic) + len(e.Key) + len(e.SID) + len(e.Payload)
	for i := range e.Headers {
		n += 5 + len(e.Headers[i].Name) + len(e.Headers[i].Value)
	}
	for _, s := range e.CausedBy {
		n += 2 + len(s)
	}
	for _, s := range e.Tags {
		n += 2 + len(s)
	}
	return n
}

func appendText(dst []byte, s string) []byte {
	if len(s) < 0x80 {
		dst = append(dst, byte(len(s)))
	} else {
		dst = binary.AppendUvarint(dst, uint64(len(s)))
	}
	return append(dst, s...)
}

func appendList(dst []byte, list []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for _, s := range list {
		dst = appendText(dst, s)
	}
	return dst
}

// DecodeBinary reads the record src into e and overwrites all of its fields;
// topic is used where the record has none. The strings and the payload of e
// share the memory of src, which must not change as long as e or a copy of it
// is in use. Slices are made anew, so an event may be kept while e is used
// again. On error e is the zero Event.
//
// A record has exactly one form: what DecodeBinary accepts, AppendBinary
// writes byte for byte. The rules of Check are not applied.
func DecodeBinary(src []byte, e *Event, topic string) error {
	if err := parse(src, e, topic); err != nil {
		*e = Event{}
		return err
	}
	return nil
}

// parse walks the whole record. With an event it fills it, with nil it only
// judges: one walk, so that Valid and DecodeBinary cannot disagree.
func parse(src []byte, e *Event, topic string) error {
	if len(src) < headSize {
		return badRecord(len(src), "ends inside the head of %d bytes", headSize)
	}
	head := (*[headSize]byte)(src)
	flags := head[offFlags]
	meta := uint64(binary.LittleEndian.Uint32(head[offMetaLen:]))
	payload := uint64(binary.LittleEndian.Uint32(head[offPayload:]))
	part := Partition(binary.LittleEndian.Uint32(head[offPartition:]))
	if head[0] != recordVersion || flags&^knownFlags != 0 || head[offZero]|head[offZero+1] != 0 ||
		headSize+meta+payload != uint64(len(src)) || (part != 0) != (flags&hasPartition != 0) {
		return badHead(src)
	}
	// Offsets in m are offsets in the record.
	m := src[:headSize+meta]
	at := headSize
	var key, sid string
	if flags&hasTopic != 0 {
		if topic, at = text(m, at); topic == "" {
			return badText(m, at, "topic")
		}
	}
	if flags&hasKey != 0 {
		if key, at = text(m, at); key == "" {
			return badText(m, at, "key")
		}
	}
	if flags&hasSID != 0 {
		if sid, at = text(m, at); sid == "" {
			return badText(m, at, "sid")
		}
	}
	var headers Headers
	var causedBy, tags []string
	var err error
	if flags&hasHeaders != 0 {
		if headers, at, err = parseHeaders(m, at, e != nil); err != nil {
			return err
		}
	}
	if flags&hasCausedBy != 0 {
		if causedBy, at, err = parseList(m, at, "caused_by", e != nil); err != nil {
			return err
		}
	}
	if flags&hasTags != 0 {
		if tags, at, err = parseList(m, at, "tags", e != nil); err != nil {
			return err
		}
	}
	if at != len(m) {
		return badRecord(at, "%d bytes left over in meta", len(m)-at)
	}
	if e == nil {
		return nil
	}
	e.ID = ID(head[offID:offPartition])
	e.Seq = binary.LittleEndian.Uint64(head[offSeq:])
	e.TS = int64(binary.LittleEndian.Uint64(head[offTS:]))
	e.Partition = part
	e.Topic, e.Key, e.SID = topic, key, sid
	e.Headers, e.CausedBy, e.Tags = headers, causedBy, tags
	if e.Payload = nil; payload > 0 {
		e.Payload = src[len(m):len(src):len(src)]
	}
	return nil
}

// badHead says what is wrong with a head.
func badHead(src []byte) error {
	flags := src[offFlags]
	meta := binary.LittleEndian.Uint32(src[offMetaLen:])
	payload := binary.LittleEndian.Uint32(src[offPayload:])
	switch {
	case src[0] != recordVersion:
		return badRecord(0, "version %d, want %d", src[0], recordVersion)
	case flags&^knownFlags != 0:
		return badRecord(offFlags, "unknown flags %#02x", flags&^knownFlags)
	case src[offZero] != 0 || src[offZero+1] != 0:
		return badRecord(offZero, "reserved bytes %#02x %#02x, want zero", src[offZero], src[offZero+1])
	case headSize+uint64(meta)+uint64(payload) != uint64(len(src)):
		return badRecord(offMetaLen, "head %d + meta %d + payload %d bytes, but the record has %d", headSize, meta, payload, len(src))
	}
	return badRecord(offPartition, "partition field %d contradicts flags %#02x", binary.LittleEndian.Uint32(src[offPartition:]), flags)
}

func parseHeaders(m []byte, at int, keep bool) (h Headers, end int, err error) {
	n, next := count(m, at, 2)
	if n == 0 {
		return nil, 0, badRecord(at, "headers: bad count")
	}
	at = next
	if keep {
		h = make(Headers, n)
	}
	last := ""
	for i := range n {
		name, next := text(m, at)
		if next < 0 {
			return nil, 0, badText(m, next, "headers: name")
		}
		if i > 0 && name < last {
			return nil, 0, badRecord(at, "headers: %s stands after %s", quote(name), quote(last))
		}
		last = name
		value, end := text(m, next)
		if end < 0 {
			return nil, 0, badText(m, end, "headers: value")
		}
		if keep {
			h[i].Name, h[i].Value = name, value
		}
		at = end
	}
	return h, at, nil
}

func parseList(m []byte, at int, field string, keep bool) (list []string, end int, err error) {
	n, next := count(m, at, 1)
	if n == 0 {
		return nil, 0, badRecord(at, "%s: bad count", field)
	}
	at = next
	if keep {
		list = make([]string, n)
	}
	for i := range n {
		s, next := text(m, at)
		if next < 0 {
			return nil, 0, badText(m, next, field)
		}
		if keep {
			list[i] = s
		}
		at = next
	}
	return list, at, nil
}

// text reads a length and that many bytes at m[at:] and returns where they
// end. A text that does not fit gives "" and the complement of the offset, a
// negative number, so that callers need one test only.
func text(m []byte, at int) (string, int) {
	if at < len(m) {
		if n := int(m[at]); n < 0x80 { // almost every text is this short
			if end := at + 1 + n; end <= len(m) {
				return alias(m[at+1 : end]), end
			}
			return "", ^at
		}
		if n, next := uvarint(m, at); next > 0 && n <= uint64(len(m)-next) {
			end := next + int(n)
			return alias(m[next:end]), end
		}
	}
	return "", ^at
}

// count reads the number of entries of a list of which each takes at least
// size bytes. It returns 0 for a number that cannot be right, so that no
// damaged count makes us allocate.
func count(m []byte, at, size int) (n, next int) {
	v, next := uvarint(m, at)
	if next < 0 || v > uint64((len(m)-next)/size) {
		return 0, next
	}
	return int(v), next
}

// uvarint reads a varint in its shortest form; a negative next means that
// there is none. Longer forms are refused, because a record has one form only.
func uvarint(m []byte, at int) (v uint64, next int) {
	if at >= len(m) {
		return 0, -1
	}
	if m[at] < 0x80 {
		return uint64(m[at]), at + 1
	}
	v, n := binary.Uvarint(m[at:])
	if n <= 0 || n > 1 && m[at+n-1] == 0 {
		return 0, -1
	}
	return v, at + n
}

// badText reports the text that failed at ^at, or the empty one before at.
func badText(m []byte, at int, field string) error {
	if at < 0 {
		return badRecord(^at, "%s: bad length, or it passes the end of meta at byte %d", field, len(m))
	}
	return badRecord(at-1, "%s: flagged but empty", field)
}

func badRecord(offset int, format string, args ...any) error {
	return &RecordError{Offset: offset, What: fmt.Sprintf(format, args...)}
}

// Record is one encoded event. Its methods look at single fields without
// decoding the rest and without allocating; the strings and bytes that they
// return share its memory. They trust the record: for bytes of unknown origin
// call Valid first. On anything else they return zero values where the field
// cannot be found, but do not panic; only SetSeq needs at least a whole head.
type Record []byte

// Valid returns nil exactly if DecodeBinary accepts the record.
func (r Record) Valid() error { return parse(r, nil, "") }

// Seq returns the position in the topic.
func (r Record) Seq() uint64 {
	if len(r) < headSize {
		return 0
	}
	return binary.LittleEndian.Uint64(r[offSeq:])
}

// SetSeq overwrites the position in the topic, which a log knows only at
// commit, after the record was encoded.
func (r Record) SetSeq(seq uint64) {
	binary.LittleEndian.PutUint64(r[offSeq:headSize], seq)
}

// TS returns the publisher's time in epoch milliseconds.
func (r Record) TS() int64 {
	if len(r) < headSize {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(r[offTS:]))
}

// ID returns the identity of the event.
func (r Record) ID() ID {
	if len(r) < headSize {
		return ID{}
	}
	return ID(r[offID:offPartition])
}

// Partition returns the partition.
func (r Record) Partition() Partition {
	if len(r) < headSize {
		return 0
	}
	return Partition(binary.LittleEndian.Uint32(r[offPartition:]))
}

// Topic returns the topic, or "" where the record was encoded without it.
func (r Record) Topic() string {
	s, _ := r.field(hasTopic)
	return s
}

// Key returns the key, or "" where there is none.
func (r Record) Key() string {
	s, _ := r.field(hasKey)
	return s
}

// SID returns the session of the publisher, or "" where there is none.
func (r Record) SID() string {
	s, _ := r.field(hasSID)
	return s
}

// Payload returns the payload, or nil where there is none.
func (r Record) Payload() []byte {
	m := r.meta()
	if m == nil || len(m) == len(r) {
		return nil
	}
	return r[len(m):len(r):len(r)]
}

// Header returns the value of the header name and whether there is one.
func (r Record) Header(name string) (string, bool) {
	_, at := r.field(hasSID)
	if at < 0 || r[offFlags]&hasHeaders == 0 {
		return "", false
	}
	m := r.meta()
	n, at := count(m, at, 2)
	for range n {
		s, next := text(m, at)
		if next < 0 {
			break
		}
		value, end := text(m, next)
		if end < 0 {
			break
		}
		if s == name {
			return value, true
		}
		at = end
	}
	return "", false
}

// meta returns the record up to its payload, or nil.
func (r Record) meta() []byte {
	if len(r) < headSize {
		return nil
	}
	end := headSize + uint64(binary.LittleEndian.Uint32(r[offMetaLen:]))
	if end > uint64(len(r)) {
		return nil
	}
	return r[:end]
}

// field returns the text that flag stands for, and where it ends or would
// stand; a negative offset where the record is broken before that.
func (r Record) field(flag byte) (s string, at int) {
	m := r.meta()
	if m == nil {
		return "", -1
	}
	at = headSize
	for _, f := range [...]byte{hasTopic, hasKey, hasSID} {
		s = ""
		if m[offFlags]&f != 0 {
			if s, at = text(m, at); at < 0 {
				return "", at
			}
		}
		if f == flag {
			break
		}
	}
	return s, at
}
