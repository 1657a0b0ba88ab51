package run

import (
	"bytes"
	"encoding/binary"
)

// source is one input of a merge: a run, read block by block.
type source struct {
	run  *Run
	next int // block
	buf  []byte
	rest []byte
	head uint64 // the first eight bytes of the current entry, to compare quickly
}

func (s *source) advance() (ok bool, err error) {
	if len(s.rest) == 0 {
		if s.next == s.run.blocks() {
			return false, nil
		}
		if s.buf, err = s.run.block(s.next, s.buf); err != nil {
			return false, err
		}
		s.rest = s.buf
		s.next++
	}
	s.head = binary.BigEndian.Uint64(s.rest)
	return true, nil
}

// Merge adds to w the entries of all runs that keep accepts, in order.
func Merge(w *Writer, runs []*Run, keep func(entry []byte) bool) error {
	var srcs []*source
	add := func(s *source) error {
		ok, err := s.advance()
		if ok {
			srcs = append(srcs, s)
		}
		return err
	}
	for _, r := range runs {
		if err := add(&source{run: r}); err != nil {
			return err
		}
	}
	width := w.spec.Width
	for len(srcs) > 0 {
		m, best := srcs[0], 0
		for i := 1; i < len(srcs); i++ {
			s := srcs[i]
			if s.head < m.head || s.head == m.head && bytes.Compare(s.rest[:width], m.rest[:width]) < 0 {
				m, best = s, i
			}
		}
		if e := m.rest[:width]; keep(e) {
			w.Add(e)
		}
		m.rest = m.rest[width:]
		ok, err := m.advance()
		if err != nil {
			return err
		}
		if !ok {
			srcs = append(srcs[:best], srcs[best+1:]...)
		}
	}
	return nil
}
