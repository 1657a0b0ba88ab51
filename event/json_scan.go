package event

import (
	"encoding/binary"
	"sync"
	"unicode/utf8"
)

// CheckJSON tells whether data is exactly one JSON value that this package
// accepts: RFC 8259 in valid UTF-8, no name twice in one object (compared
// after unescaping), no escape of half a surrogate pair, nesting of at most
// MaxDepth, nothing but white space around it. The error is a *RuleError with
// the byte offset and ErrBadJSON. CheckJSON does not allocate, unless the value
// is wrong, or holds an object with more than 32 names or a name with escapes.
func CheckJSON(data []byte) error {
	return checkValue("", data)
}

func checkValue(field string, data []byte) error {
	_, err := scanWhole(data)
	if err != nil {
		err.Field = field
		return err
	}
	return nil
}

// CompactJSON checks src as CheckJSON does and appends it to dst without the
// white space between tokens. Every other byte is kept: no number is read, no
// string is escaped anew, no name is moved. On error it returns dst as it was.
func CompactJSON(dst, src []byte) ([]byte, error) {
	out, err := compact(dst, src)
	if err != nil {
		return dst, err
	}
	return out, nil
}

func compact(dst, src []byte) ([]byte, *RuleError) {
	spaces, err := scanWhole(src)
	if err != nil {
		return dst, err
	}
	if spaces == 0 {
		return append(dst, src...), nil
	}
	return appendCompact(dst, src), nil
}

// hasSpace tells whether data holds a byte that may be white space between
// tokens. Most stored payloads hold none, and then need no closer look.
func hasSpace(data []byte) bool {
	for len(data) >= 8 {
		x := binary.LittleEndian.Uint64(data)
		if (x-0x21*ones)&^x&highs != 0 {
			return true
		}
		data = data[8:]
	}
	for _, c := range data {
		if c <= ' ' {
			return true
		}
	}
	return false
}

// appendCompact appends valid JSON without the white space between tokens.
// dst may be the start of src's own memory: it never overtakes. What is not
// valid comes out as some other nonsense.
func appendCompact(dst, src []byte) []byte {
	for i := 0; i < len(src); {
		start := i
		for i < len(src) && src[i] > ' ' {
			if src[i] == '"' {
				i = skipText(src, i)
			} else {
				i++
			}
		}
		dst = append(dst, src[start:i]...)
		for i < len(src) && src[i] <= ' ' {
			i++
		}
	}
	return dst
}

// scanWhole checks one value with white space around it and returns how many
// bytes of white space stand between and around its tokens.
func scanWhole(data []byte) (spaces int, err *RuleError) {
	s := newScanner(data)
	end, err := s.value(s.space(0))
	if err == nil {
		if end = s.space(end); end < len(data) {
			err = s.unexpected(end, "must be one value, nothing may follow it")
		}
	}
	spaces = s.spaces
	s.free()
	return spaces, err
}

// scanner checks JSON in one pass. It keeps the names of all open objects on
// one stack; a mark on the stack opens the names of each object.
type scanner struct {
	data   []byte
	spaces int // white space skipped so far
	names  []memberName
	mark   int // where the innermost object's mark stands
	// objects has bit d set where the container at depth d is an object.
	objects [MaxDepth/64 + 1]uint64

	large []nameTable // of open objects with more than manyNames names, innermost last
}

var scanners = sync.Pool{New: func() any { return &scanner{names: make([]memberName, 0, 2*manyNames)} }}

func newScanner(data []byte) *scanner {
	s := scanners.Get().(*scanner)
	s.data = data
	return s
}

// free gives the scanner back. One that grew on a large text is left to the
// collector, so that a rare giant does not stay in memory.
func (s *scanner) free() {
	const keep = 4096
	if cap(s.names) > keep || cap(s.large) > keep {
		return
	}
	if cap(s.large) > 0 {
		clear(s.large[:cap(s.large)])
	}
	s.data, s.spaces, s.names, s.mark, s.large = nil, 0, s.names[:0], 0, s.large[:0]
	scanners.Put(s)
}

// value checks the value that starts at i and returns the offset after it.
func (s *scanner) value(i int) (int, *RuleError) {
	data := s.data
	depth := 0
	inObject := false // whether the container at depth is an object
	var err *RuleError
	for {
		if i >= len(data) {
			return i, s.unexpected(i, "a value must start here")
		}
		switch c := data[i]; c {
		case '"':
			if i, _, err = s.text(i); err != nil {
				return i, err
			}
		case '{':
			if depth++; depth > MaxDepth {
				return i, s.tooDeep(i)
			}
			s.objects[depth>>6] |= 1 << (depth & 63)
			inObject = true
			s.openObject()
			if i = s.space(i + 1); i < len(data) && data[i] == '}' {
				break // closed below
			}
			if i, err = s.member(i); err != nil {
				return i, err
			}
			continue
		case '[':
			if depth++; depth > MaxDepth {
				return i, s.tooDeep(i)
			}
			s.objects[depth>>6] &^= 1 << (depth & 63)
			inObject = false
			if i = s.space(i + 1); i < len(data) && data[i] == ']' {
				break // closed below
			}
			continue
		case 't':
			if i, err = s.literal(i, "true"); err != nil {
				return i, err
			}
		case 'f':
			if i, err = s.literal(i, "false"); err != nil {
				return i, err
			}
		case 'n':
			if i, err = s.literal(i, "null"); err != nil {
				return i, err
			}
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			if i, err = s.number(i); err != nil {
				return i, err
			}
		default:
			return i, s.unexpected(i, "a value must start here")
		}
		// A value ended at i, or an empty container stands before its end.
		for {
			if depth == 0 {
				return i, nil
			}
			if i < len(data) && data[i] <= ' ' {
				i = s.space(i)
			}
			if i >= len(data) {
				return i, s.unexpected(i, "must not end inside of a container")
			}
			c := data[i]
			if inObject {
				if c == ',' {
					if i, err = s.member(s.space(i + 1)); err != nil {
						return i, err
					}
					break
				}
				if c != '}' {
					return i, s.unexpected(i, "a comma or the end of the object must stand here")
				}
				s.closeObject()
			} else {
				if c == ',' {
					i = s.space(i + 1)
					break
				}
				if c != ']' {
					return i, s.unexpected(i, "a comma or the end of the array must stand here")
				}
			}
			depth--
			inObject = s.objects[depth>>6]&(1<<(depth&63)) != 0
			i++
		}
	}
}

// space returns the offset of the first byte at or after i that is no white
// space.
func (s *scanner) space(i int) int {
	if i >= len(s.data) || s.data[i] > ' ' {
		return i
	}
	from := i
	for i < len(s.data) && (s.data[i] == ' ' || s.data[i] == '\n' || s.data[i] == '\t' || s.data[i] == '\r') {
		i++
	}
	s.spaces += i - from
	return i
}

// member checks a name at i, that the innermost object does not have it yet,
// and the colon after it. It returns the offset of the value.
func (s *scanner) member(i int) (int, *RuleError) {
	if i >= len(s.data) || s.data[i] != '"' {
		return i, s.unexpected(i, "a name in quotes must stand here")
	}
	end, escaped, err := s.text(i)
	if err != nil {
		return end, err
	}
	if s.repeated(i+1, end-1, escaped) {
		return i, s.fail(i, "a name must stand once in an object", quote(string(s.data[i+1:end-1])))
	}
	i = s.space(end)
	if i >= len(s.data) || s.data[i] != ':' {
		return i, s.unexpected(i, "a colon must stand here")
	}
	return s.space(i + 1), nil
}

func (s *scanner) literal(i int, want string) (int, *RuleError) {
	if len(s.data)-i < len(want) || string(s.data[i:i+len(want)]) != want {
		return i, s.fail(i, "a value must start here", quote(string(s.data[i:min(i+len(want), len(s.data))])))
	}
	return i + len(want), nil
}

// number checks the number that starts at i and returns the offset after it.
func (s *scanner) number(i int) (int, *RuleError) {
	data := s.data
	if data[i] == '-' {
		i++
	}
	if i < len(data) && data[i] == '0' {
		i++
	} else {
		from := i
		if i = digits(data, i); i == from {
			return i, s.unexpected(i, "a digit must stand here")
		}
	}
	if i < len(data) && data[i] == '.' {
		from := i + 1
		if i = digits(data, from); i == from {
			return i, s.unexpected(i, "a digit must stand here")
		}
	}
	if i < len(data) && data[i]|0x20 == 'e' {
		if i++; i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		from := i
		if i = digits(data, from); i == from {
			return i, s.unexpected(i, "a digit must stand here")
		}
	}
	return i, nil
}

func digits(data []byte, i int) int {
	for i < len(data) && data[i]-'0' <= 9 {
		i++
	}
	return i
}

func (s *scanner) fail(i int, rule, found string) *RuleError {
	return &RuleError{Rule: rule, Found: found, Offset: i, Kind: ErrBadJSON}
}

// unexpected reports the character at i, or the end of the text.
func (s *scanner) unexpected(i int, rule string) *RuleError {
	if i >= len(s.data) {
		return s.fail(len(s.data), rule, "the end of the text")
	}
	_, n := utf8.DecodeRune(s.data[i:])
	return s.fail(i, rule, quote(string(s.data[i:i+n])))
}

func (s *scanner) tooDeep(i int) *RuleError {
	e := s.fail(i, "is nested too deeply", "")
	e.Limit, e.Got = MaxDepth, MaxDepth+1
	return e
}
