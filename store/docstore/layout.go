package docstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"promethean/store"
)

// Rows. Numbers in keys are big endian; c is the id of a collection, n that of
// an index of it, and ^ts the complement of the time, so that later ones come
// first.
//
//	m format          version of the layout, u32
//	m next            the next id of readers and collections, u32
//	r name            a reader, JSON
//	p id              a reader's place, u64
//	s c               how many documents there are, and the largest seq of a deletion that was forgotten
//	d c key           a document or a deletion: flags, ts, seq, version, body
//	i c n values ^ts key   a document in an index; n is 0 for the order of listings, which has no values
//	u c n values      the document that has them, for a unique index
//	x c seq key       a deletion
//	w id n            a commit of the reader that is not in the rows above yet: its place, operations
const version = 1

var (
	keyFormat = []byte("mformat")
	keyNext   = []byte("mnext")
)

const (
	rowReader   = 'r'
	rowPlace    = 'p'
	rowState    = 's'
	rowDoc      = 'd'
	rowIndex    = 'i'
	rowUnique   = 'u'
	rowDeletion = 'x'
	rowLog      = 'w'
)

// rowKey begins a key that belongs to a collection, or a place.
func rowKey(dst []byte, kind byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, kind), id)
}

func indexPrefix(dst []byte, kind byte, c uint32, n uint16) []byte {
	return binary.BigEndian.AppendUint16(rowKey(dst, kind, c), n)
}

// appendRank appends what orders the documents of an index with equal values.
func appendRank(dst []byte, ts int64, key string) []byte {
	// The sign bit is turned over so that times before 1970 come last.
	return append(binary.BigEndian.AppendUint64(dst, ^(uint64(ts)^1<<63)), key...)
}

func splitRank(rank []byte) (ts int64, key []byte) {
	return int64(^binary.BigEndian.Uint64(rank) ^ 1<<63), rank[8:]
}

// after gives the first key that does not begin with prefix.
func after(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

const (
	flagDead    = 1
	flagVersion = 2
)

// appendDoc appends the value of a document's row.
func appendDoc(dst []byte, e *entry) []byte {
	flags := byte(0)
	if e.dead {
		flags |= flagDead
	}
	if e.hasVersion {
		flags |= flagVersion
	}
	dst = append(dst, flags)
	dst = binary.AppendVarint(dst, e.ts)
	dst = binary.AppendUvarint(dst, e.seq)
	if e.hasVersion {
		dst = binary.AppendVarint(dst, e.version)
	}
	return append(dst, e.body...)
}

var errRow = errors.New("a row does not decode")

// decodeDoc reads the value of a document's row. The body is part of v.
func decodeDoc(v []byte, e *entry) error {
	if len(v) == 0 || v[0] > flagDead|flagVersion {
		return errRow
	}
	e.dead, e.hasVersion = v[0]&flagDead != 0, v[0]&flagVersion != 0
	v = v[1:]
	var w int
	if e.ts, w = binary.Varint(v); w <= 0 {
		return errRow
	}
	v = v[w:]
	if e.seq, w = binary.Uvarint(v); w <= 0 {
		return errRow
	}
	v = v[w:]
	if e.hasVersion {
		if e.version, w = binary.Varint(v); w <= 0 {
			return errRow
		}
		v = v[w:]
	}
	if e.dead != (len(v) == 0) {
		return errRow
	}
	e.body = v
	return nil
}

func logRow(id uint32, n uint64) []byte {
	return binary.BigEndian.AppendUint64(rowKey(nil, rowLog, id), n)
}

// appendOp appends an operation to the row of a commit.
func appendOp(dst []byte, slot int, e *entry) []byte {
	dst = binary.AppendUvarint(dst, uint64(slot))
	dst = binary.AppendUvarint(dst, uint64(len(e.key)))
	dst = append(dst, e.key...)
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = appendDoc(dst, e)
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// decodeOp reads an operation and gives what follows it.
func decodeOp(v []byte, e *entry) (slot int, rest []byte, err error) {
	n, w := binary.Uvarint(v)
	if w <= 0 || n > math.MaxInt32 {
		return 0, nil, errRow
	}
	v = v[w:]
	size, w := binary.Uvarint(v)
	if w <= 0 || size > uint64(len(v)-w) {
		return 0, nil, errRow
	}
	e.key, v = string(v[w:w+int(size)]), v[w+int(size):]
	if len(v) < 4 || uint64(binary.BigEndian.Uint32(v)) > uint64(len(v)-4) {
		return 0, nil, errRow
	}
	end := 4 + int(binary.BigEndian.Uint32(v))
	return int(n), v[end:], decodeDoc(v[4:end], e)
}

func encodeState(count int64, forgotten uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(count)), forgotten)
}

func decodeState(v []byte) (count int64, forgotten uint64, err error) {
	if len(v) != 16 || binary.BigEndian.Uint64(v) > math.MaxInt64 {
		return 0, 0, errRow
	}
	return int64(binary.BigEndian.Uint64(v)), binary.BigEndian.Uint64(v[8:]), nil
}

// readerRow is a reader as it is stored; its place has a row of its own.
type readerRow struct {
	ID          uint32          `json:"id"`
	Meta        []byte          `json:"meta"` // nil stays nil
	Collections []collectionRow `json:"collections"`
}

type collectionRow struct {
	Name    string        `json:"name"`
	ID      uint32        `json:"id"`
	Next    uint16        `json:"next"` // id of the next index
	Indexes []store.Index `json:"indexes"`
	// Tuples are the field lists that have rows; the first is the empty one.
	Tuples  []tuple `json:"tuples"`
	Uniques []tuple `json:"uniques"`
}

// tuple is a list of fields that has rows of its own.
type tuple struct {
	ID     uint16   `json:"id"`
	Fields []string `json:"fields"`
	at     []int    // where each field stands among those of the collection
}

func (r *readerRow) encode() ([]byte, error) { return json.Marshal(r) }

func decodeReader(name string, v []byte) (*readerRow, error) {
	var r readerRow
	if err := json.Unmarshal(v, &r); err != nil {
		return nil, fmt.Errorf("reader %s: %w: %w", name, errRow, err)
	}
	return &r, nil
}
