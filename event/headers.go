package event

import (
	"cmp"
	"slices"
)

// Header is one name and value beside the payload.
type Header struct{ Name, Value string }

// Headers holds the headers of an event, one per name. The order carries no
// meaning: encodings sort by name. Set keeps a sorted list sorted.
type Headers []Header

// Get returns the value under name and whether there is one.
func (h Headers) Get(name string) (string, bool) {
	for i := range h {
		if h[i].Name == name {
			return h[i].Value, true
		}
	}
	return "", false
}

// Set returns headers in which name has value. It never changes h, because
// events share their headers when they are copied.
func (h Headers) Set(name, value string) Headers {
	for i := range h {
		if h[i].Name == name {
			c := slices.Clone(h)
			c[i].Value = value
			return c
		}
	}
	at := len(h)
	for at > 0 && h[at-1].Name > name {
		at--
	}
	c := make(Headers, 0, len(h)+1)
	c = append(c, h[:at]...)
	c = append(c, Header{Name: name, Value: value})
	return append(c, h[at:]...)
}

// Without returns headers that lack name. It never changes h.
func (h Headers) Without(name string) Headers {
	if _, ok := h.Get(name); !ok {
		return h
	}
	c := make(Headers, 0, len(h)-1)
	for _, x := range h {
		if x.Name != name {
			c = append(c, x)
		}
	}
	return c
}

// sorted returns h in the order of encodings: h itself where it is sorted
// already, which is the usual case and costs no allocation.
func (h Headers) sorted() Headers {
	for i := 1; i < len(h); i++ {
		if h[i].Name < h[i-1].Name {
			c := slices.Clone(h)
			slices.SortStableFunc(c, func(a, b Header) int { return cmp.Compare(a.Name, b.Name) })
			return c
		}
	}
	return h
}

// headerByte marks what may follow "x-" in a header name.
var headerByte = func() (t [256]bool) {
	for c := byte('a'); c <= 'z'; c++ {
		t[c] = true
	}
	for c := byte('0'); c <= '9'; c++ {
		t[c] = true
	}
	t['-'] = true
	return t
}()

// validHeaderName tells whether name is ^x-[a-z0-9-]+$ or one of the three
// names without the prefix.
func validHeaderName(name string) bool {
	if len(name) > 2 && name[0] == 'x' && name[1] == '-' {
		for i := 2; i < len(name); i++ {
			if !headerByte[name[i]] {
				return false
			}
		}
		return true
	}
	return name == "content-type" || name == "traceparent" || name == "tracestate"
}
