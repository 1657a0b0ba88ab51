package ws

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// smallRead is the read buffer of a connection that sends little.
	smallRead = 1 << 10
	// largeRead is that of one that sends much, or a large message.
	largeRead = 64 << 10

	opContinue = 0
	opText     = 1
	opBinary   = 2
	opClose    = 8
	opPing     = 9
	opPong     = 10

	closeNormal      = 1000
	closeProtocol    = 1002
	closeUnsupported = 1003
	closeNoStatus    = 1005
	closeBadText     = 1007
	closeTooBig      = 1009
)

var largeReads = sync.Pool{New: func() any { return new([largeRead]byte) }}

// head is that of a frame.
type head struct {
	op    byte
	final bool
	mask  [4]byte
	size  int // of the head
	body  int
}

// need is how many bytes of a head have to be there to know the rest.
func need(b []byte) int {
	if len(b) < 2 {
		return 2
	}
	switch b[1] & 0x7f {
	case 126:
		return 2 + 2 + 4
	case 127:
		return 2 + 8 + 4
	}
	return 2 + 4
}

// parse reads the head at the front of b. ok is false if it is not whole.
func (c *Conn) parse(b []byte) (h head, ok bool, err *CloseError) {
	if len(b) < 2 {
		return h, false, nil
	}
	h.final, h.op = b[0]&0x80 != 0, b[0]&0x0f
	control := h.op >= opClose
	switch {
	case b[0]&0x70 != 0:
		return h, false, &CloseError{Code: closeProtocol, Reason: "reserved bits are set"}
	case h.op > opBinary && h.op < opClose || h.op > opPong:
		return h, false, &CloseError{Code: closeProtocol, Reason: "unknown opcode"}
	case b[1]&0x80 == 0:
		return h, false, &CloseError{Code: closeProtocol, Reason: "a client must mask its frames"}
	case control && (!h.final || b[1]&0x7f > 125):
		return h, false, &CloseError{Code: closeProtocol, Reason: "a control frame is fragmented or too long"}
	case h.op == opContinue && !c.parted, (h.op == opText || h.op == opBinary) && c.parted:
		return h, false, &CloseError{Code: closeProtocol, Reason: "fragments out of order"}
	case h.op == opBinary:
		return h, false, &CloseError{Code: closeUnsupported, Reason: "messages must be text"}
	}
	h.size = need(b)
	if len(b) < h.size {
		return h, false, nil
	}
	var body uint64
	switch n := b[1] & 0x7f; n {
	case 126:
		body = uint64(binary.BigEndian.Uint16(b[2:]))
	case 127:
		body = binary.BigEndian.Uint64(b[2:])
	default:
		body = uint64(n)
	}
	if !control && body > uint64(c.o.Limit-len(c.parts)) {
		return h, false, &CloseError{Code: closeTooBig, Reason: "the message is too big"}
	}
	h.body = int(body)
	copy(h.mask[:], b[h.size-4:])
	return h, true, nil
}

// Buffered says whether Next gives a message without having to read. It may
// say false though one is there, in fragments or behind a ping.
func (c *Conn) Buffered() bool {
	h, ok, err := c.parse(c.buf[c.r:c.w])
	return ok && err == nil && h.op == opText && h.final && c.w-c.r >= h.size+h.body
}

// Next gives the next text message. It is valid until a call of Next for which
// Buffered was false. Pings are answered on the way. An error is the end, but
// for ErrKicked: a *CloseError if one of the sides closed the connection, which
// is answered already.
func (c *Conn) Next() ([]byte, error) {
	for {
		h, ok, bad := c.parse(c.buf[c.r:c.w])
		if bad != nil {
			return nil, c.refuse(bad)
		}
		if !ok || c.w-c.r < h.size+h.body {
			wanted := need(c.buf[c.r:c.w])
			if ok {
				wanted = h.size + h.body
			}
			if err := c.fill(wanted); err != nil {
				return nil, err
			}
			continue
		}
		c.onTime()
		body := c.buf[c.r+h.size : c.r+h.size+h.body : c.r+h.size+h.body]
		c.r += h.size + h.body
		unmask(body, h.mask)
		msg, done, err := c.take(h, body)
		if err != nil || done {
			return msg, err
		}
	}
}

// take deals with one frame. done says that msg is a message.
func (c *Conn) take(h head, body []byte) (msg []byte, done bool, err error) {
	switch h.op {
	case opPing:
		c.pong(body)
		return nil, false, nil
	case opPong:
		return nil, false, nil
	case opClose:
		return nil, false, c.closed(body)
	}
	if !h.final {
		c.parted = true
		c.parts = append(c.parts, body...)
		return nil, false, nil
	}
	if c.parted {
		body = append(c.parts, body...)
		c.parts, c.parted = nil, false // the message is the caller's
	}
	if !utf8.Valid(body) {
		return nil, false, c.refuse(&CloseError{Code: closeBadText, Reason: "the text is not UTF-8"})
	}
	return body, true, nil
}

// closed answers that the peer closes the connection.
func (c *Conn) closed(body []byte) error {
	e := &CloseError{Code: closeNoStatus, Peer: true}
	switch {
	case len(body) == 1:
		return c.refuse(&CloseError{Code: closeProtocol, Reason: "a close code has two bytes"})
	case len(body) >= 2:
		e.Code, e.Reason = binary.BigEndian.Uint16(body), string(body[2:])
		if !validClose(e.Code) {
			return c.refuse(&CloseError{Code: closeProtocol, Reason: "there is no such close code"})
		}
		if !utf8.Valid(body[2:]) {
			return c.refuse(&CloseError{Code: closeBadText, Reason: "the reason is not UTF-8"})
		}
	}
	c.Shut(e.Code, "", false, nil)
	return e
}

func validClose(code uint16) bool {
	switch {
	case code >= 3000 && code <= 4999:
		return true
	case code < 1000 || code > 1014:
		return false
	}
	return code != 1004 && code != closeNoStatus && code != 1006
}

// refuse closes the connection for what the peer sent.
func (c *Conn) refuse(e *CloseError) error {
	var last []byte
	if c.o.Refused != nil {
		last = c.o.Refused(e)
	}
	c.Shut(e.Code, e.Reason, false, last)
	return e
}

// fill reads until something has come, with room for so many bytes.
func (c *Conn) fill(wanted int) error {
	c.makeRoom(wanted)
	if (c.w > c.r || c.parted) && c.due.IsZero() {
		c.due = time.Now().Add(c.o.MessageWait)
		c.rearm()
	}
	c.fat.Store(c.large && c.r == c.w)
	n, err := c.nc.Read(c.buf[c.w:])
	c.fat.Store(false)
	c.bulk = n > 0 && n == len(c.buf)-c.w
	c.w += n
	switch {
	case n > 0:
		c.heard.Store(c.k.now.Load())
		if c.o.Heard != nil {
			c.o.Heard()
		}
		return nil
	case err == nil:
		return nil
	case c.isShut():
		return errShut
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	// A kick that comes after this has its own deadline; one that came before
	// is seen.
	late := !c.due.IsZero() && !time.Now().Before(c.due)
	c.rearm()
	switch {
	case c.kicked.Swap(false):
		return ErrKicked
	case late:
		return c.refuse(&CloseError{Code: closeProtocol, Reason: "the message did not come in time"})
	}
	return nil // the keeper wants the large buffer back
}

// rearm sets the deadline of reads to what the reader wants, unless the
// connection is shut, which has its own.
func (c *Conn) rearm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.shut {
		_ = c.nc.SetReadDeadline(c.due) // the read tells
	}
}

// onTime is called when a message that was waited for has come.
func (c *Conn) onTime() {
	if !c.due.IsZero() && !c.parted {
		c.due = time.Time{}
		c.rearm()
	}
}

// makeRoom sees to it that more can be read, and in the end so many bytes from
// r on. A buffer grows as it is filled: who only says that much will come gets
// no memory for it.
func (c *Conn) makeRoom(wanted int) {
	if c.r == c.w {
		c.r, c.w = 0, 0
		size := smallRead
		if c.bulk {
			size = largeRead
		}
		if len(c.buf) != size {
			c.resize(size)
		}
	}
	have, size := c.w-c.r, len(c.buf)
	switch {
	case have == size, wanted > size && size < largeRead:
		c.resize(max(min(2*size, wanted), largeRead))
	case wanted > size-c.r:
		copy(c.buf, c.buf[c.r:c.w])
		c.r, c.w = 0, have
	}
}

// resize goes on with a buffer of another size.
func (c *Conn) resize(size int) {
	var next []byte
	large := size == largeRead
	if large {
		next = largeReads.Get().(*[largeRead]byte)[:]
	} else {
		next = make([]byte, size)
	}
	n := copy(next, c.buf[c.r:c.w])
	c.letGo()
	c.buf, c.large, c.r, c.w = next, large, 0, n
}

// letGo gives the buffer back.
func (c *Conn) letGo() {
	if c.large {
		largeReads.Put((*[largeRead]byte)(c.buf))
	}
	c.buf, c.large, c.r, c.w = nil, false, 0, 0
}

func (c *Conn) isShut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shut
}

// unmask takes the client's mask from a frame.
func unmask(b []byte, mask [4]byte) {
	m := uint64(binary.LittleEndian.Uint32(mask[:]))
	m |= m << 32
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)^m)
		b = b[8:]
	}
	for i := range b {
		b[i] ^= mask[i&3]
	}
}
