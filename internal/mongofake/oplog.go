package mongofake

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// entry is one change in the log that change streams read.
type entry struct {
	at     bson.Timestamp
	index  int32 // within a transaction
	wall   time.Time
	ns     namespace
	op     string
	id     bson.RawValue
	before bson.Raw
	after  bson.Raw
	images bool
	to     namespace // of a rename
	lsid   bson.Raw  // of a transaction
	number int64
}

// tick gives the next cluster time.
func (s *Server) tick() bson.Timestamp {
	now := uint32(time.Now().Unix())
	if now > s.time.T {
		s.time = bson.Timestamp{T: now, I: 1}
	} else {
		s.time.I++
	}
	return s.time
}

// log adds a change and wakes who waits for it.
func (s *Server) log(e entry) {
	e.wall = time.Now()
	s.oplog = append(s.oplog, e)
	s.wake()
}

// token is a place in the log. Tokens are ordered as the changes are. A high
// water mark stands before the first change of its time; the end of a stream
// (invalidate) right behind the change that caused it.
type token struct {
	at    bson.Timestamp
	event bool // of a change; else a high water mark
	index int32
	end   bool
}

// Resume tokens are {_data: text}, and drivers must not look inside (change
// streams specification). These are ordered as texts too, as the server's are.
const tokenMark = 0x82

func (k token) data() string {
	b := make([]byte, 0, 15)
	b = append(b, tokenMark)
	b = binary.BigEndian.AppendUint32(b, k.at.T)
	b = binary.BigEndian.AppendUint32(b, k.at.I)
	if !k.event {
		return hex.EncodeToString(append(b, 0))
	}
	b = binary.BigEndian.AppendUint32(append(b, 0x80), uint32(k.index))
	if k.end {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return hex.EncodeToString(b)
}

func (k token) doc() bson.Raw { return encode(bson.D{{Key: "_data", Value: k.data()}}) }

func parseToken(doc bson.Raw) (token, error) {
	text, ok := doc.Lookup("_data").StringValueOK()
	if !ok {
		return token{}, errors.New("it has no _data")
	}
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 10 && len(b) != 15 || b[0] != tokenMark {
		return token{}, errors.New("its _data was not made by this server")
	}
	k := token{at: bson.Timestamp{T: binary.BigEndian.Uint32(b[1:]), I: binary.BigEndian.Uint32(b[5:])}}
	if len(b) == 15 {
		k.event, k.index, k.end = true, int32(binary.BigEndian.Uint32(b[10:])), b[14] == 1
	}
	return k, nil
}

func (k token) compare(o token) int {
	if c := k.at.Compare(o.at); c != 0 {
		return c
	}
	rank := func(k token) int64 {
		if !k.event {
			return -1
		}
		n := int64(k.index) * 2
		if k.end {
			n++
		}
		return n
	}
	return int(rank(k) - rank(o))
}

func (e *entry) token() token { return token{at: e.at, event: true, index: e.index} }

// behind gives the number of the first entry after a token.
func (s *Server) behind(k token) int64 {
	at, found := slices.BinarySearchFunc(s.oplog, k, func(e entry, k token) int { return e.token().compare(k) })
	if found {
		at++
	}
	return s.trimmed + int64(at)
}

// entryAt gives the change that a token is of.
func (s *Server) entryAt(k token) (entry, bool) {
	k.end = false
	at, found := slices.BinarySearchFunc(s.oplog, k, func(e entry, k token) int { return e.token().compare(k) })
	if !found {
		return entry{}, false
	}
	return s.oplog[at], true
}
