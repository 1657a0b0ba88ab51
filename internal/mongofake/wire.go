package mongofake

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Operation codes of the wire protocol. OP_QUERY and OP_REPLY are left for the
// first hello of a connection.
const (
	opReply = 1
	opQuery = 2004
	opMsg   = 2013
)

// Flag bits of OP_MSG. The lower 16 are required: who does not know one must
// refuse the message.
const (
	flagChecksum   = 1 << 0
	flagMoreToCome = 1 << 1
	flagsRequired  = 1<<16 - 1
)

const (
	headerBytes = 16
	maxMessage  = 48_000_000
)

// message is a request as it came.
type message struct {
	id     int32
	op     int32
	silent bool // the client wants no answer
	body   bson.Raw
	seqs   map[string][]bson.Raw // document sequences, by the field they stand for
}

// readMessage reads one request.
func readMessage(r *bufio.Reader) (message, error) {
	var head [headerBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return message{}, err
	}
	size := int32(binary.LittleEndian.Uint32(head[:]))
	if size < headerBytes || size > maxMessage {
		return message{}, fmt.Errorf("a message of %d bytes", size)
	}
	rest := make([]byte, size-headerBytes)
	if _, err := io.ReadFull(r, rest); err != nil {
		return message{}, err
	}
	m := message{id: int32(binary.LittleEndian.Uint32(head[4:])), op: int32(binary.LittleEndian.Uint32(head[12:]))}
	switch m.op {
	case opMsg:
		return m, m.parse(head[:], rest)
	case opQuery:
		return m, m.parseQuery(rest)
	}
	return message{}, fmt.Errorf("the operation code %d is not known", m.op)
}

// parse reads the flags and sections of an OP_MSG.
func (m *message) parse(head, b []byte) error {
	if len(b) < 4 {
		return errors.New("OP_MSG without flags")
	}
	flags := binary.LittleEndian.Uint32(b)
	if unknown := flags & flagsRequired &^ (flagChecksum | flagMoreToCome); unknown != 0 {
		return fmt.Errorf("OP_MSG with unknown flags %b", unknown)
	}
	m.silent = flags&flagMoreToCome != 0
	if flags&flagChecksum != 0 {
		if len(b) < 8 {
			return errors.New("OP_MSG without its checksum")
		}
		end := len(b) - 4
		sum := crc32.Update(crc32.Checksum(head, castagnoli()), castagnoli(), b[:end])
		if sum != binary.LittleEndian.Uint32(b[end:]) {
			return errors.New("OP_MSG with a wrong checksum")
		}
		b = b[:end]
	}
	for b = b[4:]; len(b) > 0; {
		kind := b[0]
		var err error
		switch kind {
		case 0:
			if m.body != nil {
				return errors.New("OP_MSG with two bodies")
			}
			m.body, b, err = cutDocument(b[1:])
		case 1:
			b, err = m.parseSequence(b[1:])
		default:
			return fmt.Errorf("OP_MSG with a section of kind %d", kind)
		}
		if err != nil {
			return err
		}
	}
	if m.body == nil {
		return errors.New("OP_MSG without a body")
	}
	return nil
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// parseSequence reads a section that holds the documents of one field.
func (m *message) parseSequence(b []byte) (rest []byte, err error) {
	if len(b) < 4 {
		return nil, errors.New("a document sequence without a size")
	}
	size := int(binary.LittleEndian.Uint32(b))
	if size < 5 || size > len(b) {
		return nil, fmt.Errorf("a document sequence of %d bytes", size)
	}
	b, rest = b[4:size], b[size:]
	name, b, err := cutString(b)
	if err != nil {
		return nil, err
	}
	if _, twice := m.seqs[name]; twice {
		return nil, fmt.Errorf("two document sequences named %s", name)
	}
	docs := []bson.Raw{}
	for len(b) > 0 {
		var doc bson.Raw
		if doc, b, err = cutDocument(b); err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
	if m.seqs == nil {
		m.seqs = make(map[string][]bson.Raw)
	}
	m.seqs[name] = docs
	return rest, nil
}

// parseQuery reads an OP_QUERY: flags, a name, two numbers and the command.
func (m *message) parseQuery(b []byte) error {
	if len(b) < 4 {
		return errors.New("OP_QUERY without flags")
	}
	_, b, err := cutString(b[4:])
	if err != nil {
		return err
	}
	if len(b) < 8 {
		return errors.New("OP_QUERY without its numbers")
	}
	m.body, _, err = cutDocument(b[8:])
	return err
}

func cutString(b []byte) (text string, rest []byte, err error) {
	for i, c := range b {
		if c == 0 {
			return string(b[:i]), b[i+1:], nil
		}
	}
	return "", nil, errors.New("a name without an end")
}

func cutDocument(b []byte) (doc bson.Raw, rest []byte, err error) {
	if len(b) < 5 {
		return nil, nil, errors.New("a document without an end")
	}
	size := int(binary.LittleEndian.Uint32(b))
	if size < 5 || size > len(b) {
		return nil, nil, fmt.Errorf("a document of %d bytes in %d", size, len(b))
	}
	doc = b[:size:size]
	if err := doc.Validate(); err != nil {
		return nil, nil, fmt.Errorf("a document that cannot be read: %w", err)
	}
	return doc, b[size:], nil
}

// answer lays out the reply to a request.
func (m *message) answer(id int32, doc bson.Raw) []byte {
	fixed := 5 // flags and the kind of the only section
	op := int32(opMsg)
	if m.op == opQuery {
		fixed, op = 20, opReply // flags, cursor, where it starts, how many there are
	}
	b := make([]byte, 0, headerBytes+fixed+len(doc))
	b = binary.LittleEndian.AppendUint32(b, uint32(headerBytes+fixed+len(doc)))
	b = binary.LittleEndian.AppendUint32(b, uint32(id))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.id))
	b = binary.LittleEndian.AppendUint32(b, uint32(op))
	if m.op == opQuery {
		b = append(b, 8, 0, 0, 0) // await capable, as all servers since long
		b = append(b, make([]byte, 12)...)
		b = append(b, 1, 0, 0, 0)
	} else {
		b = append(b, 0, 0, 0, 0, 0)
	}
	return append(b, doc...)
}
