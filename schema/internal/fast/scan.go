package fast

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

// marks sets the high bit of the first byte of x that is a quote or a
// backslash; bits behind the first may be wrong.
func marks(x uint64) uint64 {
	q := x ^ '"'*ones
	b := x ^ '\\'*ones
	return ((q-ones)&^q | (b-ones)&^b) & highs
}

// textEnd gives the offset behind the string whose opening quote stands at i,
// and whether it holds escapes. It is -1 if the string does not end.
func textEnd(doc []byte, i int) (end int, escaped bool) {
	for i++; i < len(doc); {
		if len(doc)-i >= 8 {
			m := marks(binary.LittleEndian.Uint64(doc[i:]))
			if m == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(m) >> 3
		}
		switch doc[i] {
		case '"':
			return i + 1, escaped
		case '\\':
			escaped = true
			i += 2
		default:
			i++
		}
	}
	return -1, escaped
}

func space(doc []byte, i int) int {
	for i < len(doc) && doc[i] <= ' ' {
		i++
	}
	return i
}

// skip gives the offset behind the value at i, or -1 if it does not end.
func skip(doc []byte, i int) int {
	if i >= len(doc) {
		return -1
	}
	switch doc[i] {
	case '"':
		end, _ := textEnd(doc, i)
		return end
	case '{', '[':
	default:
		return scalarEnd(doc, i)
	}
	depth := 0
	for i < len(doc) {
		switch doc[i] {
		case '"':
			if i, _ = textEnd(doc, i); i < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}

// scalarEnd gives the offset behind a number or a literal at i, or -1 if there
// is neither.
func scalarEnd(doc []byte, i int) int {
	start := i
	for i < len(doc) && inScalar[doc[i]] {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

// inScalar marks the bytes of numbers and literals.
var inScalar = func() (t [256]bool) {
	for _, c := range "0123456789+-.eEtrufalsn" {
		t[c] = true
	}
	return t
}()

// unescape appends the text of a raw string. What is no escape of JSON comes
// out as some other nonsense.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		c := raw[i]
		if i++; c != '\\' || i == len(raw) {
			dst = append(dst, c)
			continue
		}
		c = raw[i]
		i++
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
			i = min(i+4, len(raw))
			if utf16.IsSurrogate(r) {
				r = utf16.DecodeRune(r, hex4(raw, i+2))
				i = min(i+6, len(raw))
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
	return dst
}

// hex4 reads four hex digits at i; what else stands there counts as zero.
func hex4(raw []byte, i int) (r rune) {
	if i+4 > len(raw) {
		return 0
	}
	for _, c := range raw[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			c = 0
		}
		r = r<<4 | rune(c)
	}
	return r
}
