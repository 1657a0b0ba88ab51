package event

// Reader reads one JSON text from the front, in one pass, for somebody who
// knows what may stand where. It refuses what CheckJSON refuses, with depth
// counted from each value that is read as a whole. After the first error it
// gives nothing more, so that errors need to be looked at once, at the end.
//
// What it gives shares the memory of the text, but for strings with escapes.
// The zero value is ready for Reset.
type Reader struct {
	s     *scanner
	at    int
	err   *RuleError
	depth int
	kinds uint64 // bit d is set where the container at depth d is an object
}

// maxReader is how deep a reader goes by Object and Array. Whole values may be
// nested deeper.
const maxReader = 63

// Reset begins with a text. Free has to be called after it.
func (r *Reader) Reset(data []byte) {
	*r = Reader{s: newScanner(data)}
	r.at = r.s.space(0)
}

// Free lets go of the text.
func (r *Reader) Free() {
	if r.s != nil {
		r.s.free()
		r.s = nil
	}
}

// Err is what is wrong with the text, as far as it was read: a *RuleError.
func (r *Reader) Err() error {
	if r.err != nil {
		return r.err
	}
	return nil
}

// Kind tells what value stands here by its first byte: one of { [ " t f n, or
// 0 for a number. It is ' ' where no value can begin.
func (r *Reader) Kind() byte {
	if r.err != nil || r.at >= len(r.s.data) {
		return ' '
	}
	switch c := r.s.data[r.at]; c {
	case '{', '[', '"', 't', 'f', 'n':
		return c
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return '0'
	}
	return ' '
}

// Object enters the object that stands here and says whether it has a member.
// For each member call Name and read the value; More says whether there is
// another one.
func (r *Reader) Object() bool { return r.enter('{', '}', 1) }

// Array enters the array that stands here and says whether it has an element.
// Read the element; More says whether there is another one.
func (r *Reader) Array() bool { return r.enter('[', ']', 0) }

func (r *Reader) enter(open, end byte, object uint64) bool {
	if r.err != nil {
		return false
	}
	if r.at >= len(r.s.data) || r.s.data[r.at] != open {
		return r.fail(r.s.unexpected(r.at, "a value of another kind must stand here"))
	}
	if r.depth == maxReader {
		return r.fail(r.s.tooDeep(r.at))
	}
	r.depth++
	r.kinds = r.kinds&^(1<<r.depth) | object<<r.depth
	if object != 0 {
		r.s.openObject()
	}
	r.at = r.s.space(r.at + 1)
	if r.at < len(r.s.data) && r.s.data[r.at] == end {
		r.leave()
		return false
	}
	return true
}

func (r *Reader) leave() {
	if r.kinds&(1<<r.depth) != 0 {
		r.s.closeObject()
	}
	r.depth--
	r.at = r.s.space(r.at + 1)
}

// More goes to the next member or element, or leaves the container if there is
// none.
func (r *Reader) More() bool {
	if r.err != nil {
		return false
	}
	end, rule := byte(']'), "a comma or the end of the array must stand here"
	if r.kinds&(1<<r.depth) != 0 {
		end, rule = '}', "a comma or the end of the object must stand here"
	}
	if r.at < len(r.s.data) {
		switch r.s.data[r.at] {
		case ',':
			r.at = r.s.space(r.at + 1)
			return true
		case end:
			r.leave()
			return false
		}
	}
	return r.fail(r.s.unexpected(r.at, rule))
}

// Name reads the name of a member, unescaped.
func (r *Reader) Name() []byte {
	if r.err != nil {
		return nil
	}
	at, err := r.s.member(r.at)
	if err != nil {
		r.fail(err)
		return nil
	}
	k := r.s.names[len(r.s.names)-1]
	r.at = at
	return r.plain(k.start, k.end)
}

// Text reads the string that stands here, unescaped.
func (r *Reader) Text() []byte {
	if r.err != nil {
		return nil
	}
	if r.at >= len(r.s.data) || r.s.data[r.at] != '"' {
		r.fail(r.s.unexpected(r.at, "a string must stand here"))
		return nil
	}
	start := r.at + 1
	end, escaped, err := r.s.text(r.at)
	if err != nil {
		r.fail(err)
		return nil
	}
	r.at = r.s.space(end)
	if !escaped {
		return r.s.data[start : end-1 : end-1]
	}
	return r.plain(start, end-1)
}

// plain gives the checked raw string data[start:end] unescaped.
func (r *Reader) plain(start, end int) []byte {
	raw := r.s.data[start:end:end]
	for _, c := range raw {
		if c == '\\' {
			return unescape(make([]byte, 0, len(raw)), raw)
		}
	}
	return raw
}

// Value reads the whole value that stands here, as it is written.
func (r *Reader) Value() []byte {
	if r.err != nil {
		return nil
	}
	start := r.at
	end, err := r.s.value(start)
	if err != nil {
		r.fail(err)
		return nil
	}
	r.at = r.s.space(end)
	return r.s.data[start:end:end]
}

// End says whether all went well and nothing follows.
func (r *Reader) End() error {
	if r.err == nil && r.at < len(r.s.data) {
		r.fail(r.s.unexpected(r.at, "must be one value, nothing may follow it"))
	}
	return r.Err()
}

func (r *Reader) fail(err *RuleError) bool {
	r.err = err
	return false
}

// ID reads the string that stands here as an ID other than the zero one. The
// error, a *RuleError, is about the ID: that of a bad text is Err's.
func (r *Reader) ID() (ID, error) {
	text := r.Text()
	if r.err != nil {
		return ID{}, nil
	}
	id, err := parseEventID(alias(text))
	if err != nil {
		return ID{}, err
	}
	return id, nil
}
