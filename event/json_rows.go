package event

// Rows reads many events from one text, in one pass: either JSON objects with a
// line feed between them, which is NDJSON, or one JSON array of them. Which of
// the two it is follows from the first character. Each row is read as DecodeJSON
// reads an event, but nothing is copied.
type Rows struct {
	d     decoder
	next  int  // where reading goes on
	array bool // within brackets
	begun bool
	ended bool
}

// NewRows begins with a text. The events share its memory, and payloads are
// compacted within it: it must not be used for anything else from here on.
// Call Close when done.
func NewRows(data []byte) *Rows { return &Rows{d: decoder{scanner: newScanner(data)}} }

// Close gives back what reading needed. The events stay.
func (r *Rows) Close() {
	if r.d.scanner != nil {
		r.d.free()
		r.d.scanner = nil
	}
}

// Next reads the next row into e and overwrites all fields, or says that there
// is none. After an error there is none, and e is the zero Event. Offsets in
// errors are those of the whole text.
func (r *Rows) Next(e *Event) (bool, error) {
	*e = Event{}
	if r.ended {
		return false, nil
	}
	ok, err := r.read(e)
	if err != nil {
		*e = Event{}
		r.ended = true
		return false, err
	}
	r.ended = !ok
	return ok, nil
}

func (r *Rows) read(e *Event) (bool, *RuleError) {
	s := r.d.scanner
	i := s.space(r.next)
	first := !r.begun
	if first {
		r.begun = true
		if i < len(s.data) && s.data[i] == '[' {
			r.array = true
			i = s.space(i + 1)
		}
	}
	if r.array {
		switch {
		case i < len(s.data) && s.data[i] == ']':
			if i = s.space(i + 1); i < len(s.data) {
				return false, s.unexpected(i, "must be one array, nothing may follow it")
			}
			return false, nil
		case first:
		case i < len(s.data) && s.data[i] == ',':
			i = s.space(i + 1)
		default:
			return false, s.unexpected(i, "a comma or the end of the array must stand here")
		}
	} else {
		if i >= len(s.data) {
			return false, nil
		}
		if !first && !feeds(s.data[r.next:i]) {
			return false, s.unexpected(i, "a line feed must stand between rows")
		}
	}
	r.d.e = e
	end, err := r.d.event(i)
	r.next = end
	return err == nil, err
}

// feeds says whether there is a line feed in white space.
func feeds(space []byte) bool {
	for _, c := range space {
		if c == '\n' {
			return true
		}
	}
	return false
}
