package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
)

// block is how much of a long answer is written at a time.
const block = 64 << 10

// stream is an answer of any length that is made piece by piece, in constant
// memory. Append to buf, then call room. Every block has its time: a client
// that does not take it loses the connection.
type stream struct {
	c    *call
	rc   *http.ResponseController
	buf  []byte
	sent bool // something was written
}

var blocks = sync.Pool{New: func() any {
	b := make([]byte, 0, block+block/4)
	return &b
}}

// stream begins an answer. Nothing is written before the first block is full.
func (c *call) stream(contentType string) *stream {
	c.w.Header().Set("Content-Type", contentType)
	return &stream{c: c, rc: http.NewResponseController(c.w), buf: (*blocks.Get().(*[]byte))[:0]}
}

// room writes what there is if it is a block.
func (s *stream) room() error {
	if len(s.buf) < block {
		return nil
	}
	return s.write()
}

func (s *stream) write() error {
	s.sent = true
	_, err := s.c.w.Write(s.buf)
	s.buf = s.buf[:0]
	return err
}

// flush writes all there is, to the client.
func (s *stream) flush() error {
	if err := s.write(); err != nil {
		return err
	}
	if err := s.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil // what cannot flush does not hold back
}

// finish ends the answer.
func (s *stream) finish() error {
	switch {
	case s.c.isHead():
		s.buf = s.buf[:0] // nothing was read for it, so its length is not that of the answer to GET
	case !s.sent:
		s.c.w.Header().Set("Content-Length", strconv.Itoa(len(s.buf)))
	}
	return s.flush()
}

// free gives the memory back. One that grew on a large event is left to the
// collector.
func (s *stream) free() {
	if cap(s.buf) <= 2*block {
		b := s.buf[:0]
		blocks.Put(&b)
	}
	s.buf = nil
}
