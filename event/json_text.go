package event

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// stops marks, in the high bit of each byte of x, the first quote, backslash
// or control character in memory order; marks after the first may be wrong.
func stops(x uint64) uint64 {
	// Flipping the bit 2 exchanges the quote, 0x22, with the space, 0x20, and
	// keeps control characters below it: both are then what is below 0x21.
	q := x ^ 0x02*ones
	b := x ^ '\\'*ones
	// A subtraction sets the high bit of a byte that is below the subtrahend
	// and had it clear. A borrow can only disturb later bytes.
	return ((q-0x21*ones)&^q | (b-ones)&^b) & highs
}

// before masks all bits below the first mark of stops.
func before(m uint64) uint64 { return (m - 1) &^ m }

// text checks the string whose opening quote stands at i and returns the
// offset after its closing quote and whether it holds escapes.
func (s *scanner) text(i int) (end int, escaped bool, err *RuleError) {
	data := s.data
	start := i + 1
	i = start
	var seen uint64 // all bytes of the string or-ed together
	for len(data)-i >= 8 {
		x := binary.LittleEndian.Uint64(data[i:])
		m := stops(x)
		if m == 0 {
			seen |= x
			i += 8
			continue
		}
		i += bits.TrailingZeros64(m) >> 3
		seen |= x & before(m)
		if data[i] == '"' && seen&highs == 0 {
			return i + 1, false, nil
		}
		break
	}
	return s.textRest(start, i, seen)
}

// textRest goes on with text at i, in a string that opened before start, where
// there are escapes, characters beyond ASCII, or the text is about to end.
func (s *scanner) textRest(start, i int, seen uint64) (end int, escaped bool, err *RuleError) {
	data := s.data
	for i < len(data) {
		if len(data)-i >= 8 {
			x := binary.LittleEndian.Uint64(data[i:])
			m := stops(x)
			if m == 0 {
				seen |= x
				i += 8
				continue
			}
			i += bits.TrailingZeros64(m) >> 3
			seen |= x & before(m)
		}
		switch c := data[i]; {
		case c == '"':
			if seen&highs != 0 && !utf8.Valid(data[start:i]) {
				return i, false, s.badUTF8(start)
			}
			return i + 1, escaped, nil
		case c == '\\':
			escaped = true
			if i, err = s.escape(i); err != nil {
				return i, false, err
			}
		case c < ' ':
			return i, false, s.unexpected(i, "a control character must be escaped in a string")
		default:
			seen |= uint64(c)
			i++
		}
	}
	return i, false, s.unexpected(i, "a string must end with a quote")
}

// escape checks the escape whose backslash stands at i and returns the offset
// after it.
func (s *scanner) escape(i int) (int, *RuleError) {
	data := s.data
	if i+1 >= len(data) {
		return i, s.unexpected(i+1, "a string must end with a quote")
	}
	switch data[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, nil
	case 'u':
		r := hex4(data, i+2)
		if r < 0 {
			break
		}
		if r < 0xd800 || r > 0xdfff {
			return i + 6, nil
		}
		// The first half of a pair needs the second half right behind it.
		if r < 0xdc00 && i+7 < len(data) && data[i+6] == '\\' && data[i+7] == 'u' {
			if low := hex4(data, i+8); low >= 0xdc00 && low <= 0xdfff {
				return i + 12, nil
			}
		}
		return i, s.fail(i, "an escape must not be half of a surrogate pair", quote(string(data[i:i+6])))
	}
	return i, s.fail(i, "an escape must be one of those that JSON has", quote(string(data[i:min(i+6, len(data))])))
}

// hex4 reads four hex digits at i, or returns -1.
func hex4(data []byte, i int) rune {
	if i+4 > len(data) {
		return -1
	}
	a, b, c, d := unhex[data[i]], unhex[data[i+1]], unhex[data[i+2]], unhex[data[i+3]]
	if (a|b|c|d)&0x80 != 0 {
		return -1
	}
	return rune(a)<<12 | rune(b)<<8 | rune(c)<<4 | rune(d)
}

// unescape appends the text of a checked raw string to dst, which may be the
// start of raw's own memory: the text never overtakes.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		c = raw[i+1]
		i += 2
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := hex4(raw, i)
			i += 4
			if r >= 0xd800 && r <= 0xdfff {
				r = utf16.DecodeRune(r, hex4(raw, i+2))
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
	return dst
}

// skipText returns the offset after the string that starts at i, or the end
// of src.
func skipText(src []byte, i int) int {
	i++
	for i < len(src) {
		if i+8 <= len(src) {
			m := stops(binary.LittleEndian.Uint64(src[i:]))
			if m == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(m) >> 3
		}
		switch src[i] {
		case '"':
			return i + 1
		case '\\':
			i += 2
		default:
			i++
		}
	}
	return len(src)
}

// badUTF8 reports the first byte at or after i that is not valid UTF-8.
func (s *scanner) badUTF8(i int) *RuleError {
	for {
		if r, n := utf8.DecodeRune(s.data[i:]); r != utf8.RuneError || n != 1 {
			i += n
			continue
		}
		return s.unexpected(i, "must be valid UTF-8")
	}
}
