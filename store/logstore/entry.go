package logstore

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"promethean/store"
)

// A frame's body is a list of entries:
//
//	0  1  kind
//	1  3  zero
//	4  4  length of the data
//	8  4  topic number
//	12    data
const entryHead = 12

type entryKind byte

const (
	// entryTopic gives a topic its number; the data is its name.
	entryTopic entryKind = iota + 1
	// entryEvent is an event; the data is its record, without the topic.
	entryEvent
	// entrySettle is a settlement.
	entrySettle
	// entryCursor replaces a group's state.
	entryCursor
	// entryDropCursor removes a group; the data is its name.
	entryDropCursor
	// entryTrim removes events below a seq: u64.
	entryTrim
	// entrySettings replaces a topic's settings, as JSON.
	entrySettings
	// entryBegin says which seq a topic's first event has: u64.
	entryBegin
)

func (k entryKind) String() string {
	names := [...]string{"?", "topic", "event", "settle", "cursor", "drop-cursor", "trim", "settings", "begin"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind-%d", byte(k))
}

// entry is one decoded entry. off is where the data lies in the image.
type entry struct {
	kind  entryKind
	topic uint32
	data  []byte
	off   int
}

func appendEntry(dst []byte, kind entryKind, topic uint32, data []byte) []byte {
	dst = append(dst, byte(kind), 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(data)))
	dst = binary.LittleEndian.AppendUint32(dst, topic)
	return append(dst, data...)
}

// eachEntry calls fn with the entries of a frame's body, which lies at off.
func eachEntry(body []byte, off int, fn func(entry) error) error {
	for at := 0; at < len(body); {
		if len(body)-at < entryHead {
			return fmt.Errorf("entry at %d is cut short", off+at)
		}
		b := body[at:]
		n := int(binary.LittleEndian.Uint32(b[4:]))
		if n > len(b)-entryHead {
			return fmt.Errorf("entry at %d has length %d, %d are left", off+at, n, len(b)-entryHead)
		}
		e := entry{kind: entryKind(b[0]), topic: binary.LittleEndian.Uint32(b[8:]), data: b[entryHead : entryHead+n : entryHead+n], off: off + at + entryHead}
		if err := fn(e); err != nil {
			return err
		}
		at += entryHead + n
	}
	return nil
}

// encoder and decoder write and read groups' states: uvarints and strings.
type encoder []byte

func (e *encoder) num(v uint64)  { *e = binary.AppendUvarint(*e, v) }
func (e *encoder) text(s string) { e.num(uint64(len(s))); *e = append(*e, s...) }
func (e *encoder) ranges(rs []store.Range) {
	n := 0
	for _, r := range rs {
		if r.First <= r.Last {
			n++
		}
	}
	e.num(uint64(n))
	for _, r := range rs {
		if r.First <= r.Last {
			e.num(r.First)
			e.num(r.Last - r.First)
		}
	}
}

type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) num() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads a count of things that take at least one byte each.
func (d *decoder) count() int {
	n := d.num()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) text() string {
	n := d.count()
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *decoder) ranges() []store.Range {
	rs := make([]store.Range, d.count())
	for i := range rs {
		first := d.num()
		rs[i] = store.Range{First: first, Last: first + d.num()}
	}
	return rs
}

func (d *decoder) end(what string) error {
	if d.bad || len(d.b) > 0 {
		return fmt.Errorf("%s does not decode", what)
	}
	return nil
}

func encodeSeq(seq uint64) []byte { return binary.LittleEndian.AppendUint64(nil, seq) }

func encodeSettlement(s *store.Settlement) []byte {
	var e encoder
	e.text(s.Group)
	e.num(s.Epoch)
	e.num(s.Handed)
	e.ranges(s.Done)
	e.num(uint64(len(s.Attempts)))
	for _, a := range s.Attempts {
		e.num(a.Seq)
		e.num(uint64(a.Count))
	}
	return e
}

func decodeSettlement(b []byte) (s store.Settlement, err error) {
	d := decoder{b: b}
	s.Group, s.Epoch, s.Handed, s.Done = d.text(), d.num(), d.num(), d.ranges()
	s.Attempts = make([]store.Attempt, d.count())
	for i := range s.Attempts {
		s.Attempts[i] = store.Attempt{Seq: d.num(), Count: uint32(d.num())}
	}
	return s, d.end("settlement")
}

func encodeCursor(c *store.Cursor) []byte {
	var e encoder
	e.text(c.Group)
	for _, v := range []uint64{c.Version, c.Epoch, c.Generation, c.Floor, c.Handed} {
		e.num(v)
	}
	e.ranges(c.Settled)
	e.num(uint64(len(c.Attempts)))
	for seq, n := range c.Attempts {
		e.num(seq)
		e.num(uint64(n))
	}
	e.text(string(c.Meta))
	return e
}

func decodeCursor(topic string, b []byte) (c store.Cursor, err error) {
	d := decoder{b: b}
	c.Topic, c.Group = topic, d.text()
	for _, v := range []*uint64{&c.Version, &c.Epoch, &c.Generation, &c.Floor, &c.Handed} {
		*v = d.num()
	}
	c.Settled = d.ranges()
	if n := d.count(); n > 0 {
		c.Attempts = make(map[uint64]uint32, n)
		for range n {
			seq := d.num()
			c.Attempts[seq] = uint32(d.num())
		}
	}
	if m := d.text(); m != "" {
		c.Meta = []byte(m)
	}
	return c, d.end("cursor")
}

func encodeSettings(s *store.Settings) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // plain fields: it cannot fail
	}
	return b
}

func decodeSettings(b []byte) (s store.Settings, err error) {
	err = json.Unmarshal(b, &s)
	return s, err
}
