package patch

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// manyMembers is from how many members on an object has an index.
const manyMembers = 16

// Value is a JSON value that can be patched. The zero Value is null.
type Value struct{ root *node }

// node is an object, or the bytes of what is none: a merge patch never looks
// into an array.
type node struct {
	raw     jsontext.Value
	object  bool
	members []member       // in the order of the text; a name that was deleted has no value
	index   map[string]int // by name, where there are many
}

type member struct {
	name  string
	text  jsontext.Value // the name as it stood there
	value *node
}

// Parse reads a value. It keeps the text, which must not change.
func Parse(text []byte) (Value, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	n, err := parse(d)
	if err != nil {
		return Value{}, fmt.Errorf("no JSON: %w", err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return Value{}, errors.New("no JSON: there is something behind the value")
	}
	return Value{n}, nil
}

func parse(d *jsontext.Decoder) (*node, error) {
	if d.PeekKind() != '{' {
		raw, err := d.ReadValue()
		return &node{raw: raw.Clone()}, err
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	n := &node{object: true}
	for d.PeekKind() != '}' {
		text, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		text = text.Clone()
		name, err := jsontext.AppendUnquote(nil, text)
		if err != nil && !bytes.HasPrefix(text, []byte{'"'}) {
			return nil, err
		}
		value, err := parse(d)
		if err != nil {
			return nil, err
		}
		n.set(string(name), text, value)
	}
	_, err := d.ReadToken()
	return n, err
}

// find gives the place of a member, or -1.
func (n *node) find(name string) int {
	if n.index != nil {
		if i, ok := n.index[name]; ok {
			return i
		}
		return -1
	}
	for i := range n.members {
		if n.members[i].name == name {
			return i
		}
	}
	return -1
}

// set gives a member a value. Of a name that stands there twice the last counts.
func (n *node) set(name string, text jsontext.Value, value *node) {
	if i := n.find(name); i >= 0 {
		if n.members[i].value != nil {
			n.members[i].value = value
			return
		}
		// It was deleted: what comes anew stands at the end.
		n.members[i].name, n.members[i].text = "", nil
	}
	n.members = append(n.members, member{name, text, value})
	switch {
	case n.index != nil:
		n.index[name] = len(n.members) - 1
	case len(n.members) > manyMembers:
		n.index = make(map[string]int, 2*manyMembers)
		for i := range n.members {
			if n.members[i].text != nil {
				n.index[n.members[i].name] = i
			}
		}
	}
}

func (n *node) null() bool { return n == nil || !n.object && string(n.raw) == "null" }

// Merge applies a merge patch (RFC 7386). The patch is used up.
func (v *Value) Merge(patch Value) { v.root = merge(v.root, patch.root) }

func merge(target, patch *node) *node {
	if patch == nil || !patch.object {
		return patch
	}
	if target == nil || !target.object {
		target = &node{object: true}
	}
	for _, m := range patch.members {
		at := target.find(m.name)
		switch {
		case m.value.null():
			if at >= 0 {
				target.members[at].value = nil
			}
		case at >= 0 && target.members[at].value != nil:
			target.members[at].value = merge(target.members[at].value, m.value)
		default:
			target.set(m.name, m.text, merge(nil, m.value))
		}
	}
	return target
}

// Bytes writes the value.
func (v Value) Bytes() []byte { return v.root.append(nil) }

func (n *node) append(to []byte) []byte {
	switch {
	case n == nil:
		return append(to, "null"...)
	case !n.object:
		return append(to, n.raw...)
	}
	to = append(to, '{')
	first := true
	for i := range n.members {
		m := &n.members[i]
		if m.value == nil || m.text == nil {
			continue
		}
		if !first {
			to = append(to, ',')
		}
		first = false
		to = append(append(to, m.text...), ':')
		to = m.value.append(to)
	}
	return append(to, '}')
}

// Merge applies a merge patch to a JSON text.
func Merge(target, patch []byte) ([]byte, error) {
	v, err := Parse(target)
	if err != nil {
		return nil, err
	}
	p, err := Parse(patch)
	if err != nil {
		return nil, err
	}
	v.Merge(p)
	return v.Bytes(), nil
}
