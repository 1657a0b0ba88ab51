package pgfeed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// The messages of the plugin pgoutput, protocol version 1, as the manual of
// PostgreSQL has them under "Logical Replication Message Formats".

// errShort is met where a message ends too early.
var errShort = errors.New("the message is cut short")

// reader takes a message apart. After an error all it gives is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.b) {
		r.err = errShort
		return nil
	}
	got := r.b[:n:n]
	r.b = r.b[n:]
	return got
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) int16() int {
	if b := r.take(2); b != nil {
		return int(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) text() string {
	n := bytes.IndexByte(r.b, 0)
	if s := r.take(n); s != nil {
		r.take(1)
		return string(s)
	}
	return ""
}

// epoch is what the server counts microseconds from.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (r *reader) time() time.Time {
	return epoch.Add(time.Duration(int64(r.uint64())) * time.Microsecond) //nolint:gosec // the server's own number, signed
}

// value is one column of a row.
type value struct {
	kind byte // isNull, isText or isUnchanged
	text []byte
}

const (
	isNull      = 'n'
	isText      = 't'
	isUnchanged = 'u' // large, and not sent since it is as it was
)

// row reads a tuple into dst.
func (r *reader) row(dst []value) []value {
	dst = dst[:0]
	for n := r.int16(); n > 0 && r.err == nil; n-- {
		v := value{kind: r.byte()}
		switch v.kind {
		case isNull, isUnchanged:
		case isText:
			v.text = r.take(int(r.uint32()))
		default:
			r.err = fmt.Errorf("a column of the unknown kind %q", v.kind)
		}
		dst = append(dst, v)
	}
	return dst
}

// begin opens a transaction.
type begin struct {
	commit lsn // where it was committed
	at     time.Time
	xid    uint32
}

func (r *reader) begin() begin {
	return begin{commit: lsn(r.uint64()), at: r.time(), xid: r.uint32()}
}

// commit closes it; what follows in the log begins at its end.
func (r *reader) commit() (at, end lsn) {
	r.byte()
	at, end = lsn(r.uint64()), lsn(r.uint64())
	r.time()
	return at, end
}

// relation describes a table as it was when the changes that follow were made.
type relation struct {
	id           uint32
	schema, name string
	identity     byte // d default, i index, f full, n nothing
	columns      []relationColumn
}

type relationColumn struct {
	key  bool
	name string
	kind uint32
}

func (r *reader) relation() relation {
	rel := relation{id: r.uint32(), schema: r.text(), name: r.text(), identity: r.byte()}
	for n := r.int16(); n > 0 && r.err == nil; n-- {
		c := relationColumn{key: r.byte()&1 != 0, name: r.text(), kind: r.uint32()}
		r.uint32() // the type's modifier
		rel.columns = append(rel.columns, c)
	}
	return rel
}

// change is an insert, update or delete. Old is what was there before: nothing,
// the columns of the key, or the whole row.
type change struct {
	table  uint32
	hasOld bool
	old    []value
	hasNew bool
	new    []value
}

// change reads the rest of a message into c, whose slices are used again.
func (r *reader) change(c *change) {
	c.table = r.uint32()
	c.hasOld, c.hasNew = false, false
	for r.err == nil && len(r.b) > 0 {
		switch part := r.byte(); part {
		case 'K', 'O':
			c.hasOld, c.old = true, r.row(c.old)
		case 'N':
			c.hasNew, c.new = true, r.row(c.new)
		default:
			r.err = fmt.Errorf("an unknown part %q of a change", part)
		}
	}
}

// truncate gives the tables that were emptied.
func (r *reader) truncate() (tables []uint32) {
	n := r.uint32()
	r.byte()
	for ; n > 0 && r.err == nil; n-- {
		tables = append(tables, r.uint32())
	}
	return tables
}
