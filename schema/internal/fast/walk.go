package fast

import (
	"bytes"
	"unicode/utf8"
	"unsafe"
)

// maxDepth is how deep a walk goes. Events are not nested deeper, but a schema
// can be, for each level of a document.
const maxDepth = 1000

// looks is how often a walk may look at values, for each byte of the document.
// A schema that refers to itself twice in one place doubles the work with every
// level.
const looks = 64

// Valid says whether a document is valid. On false ask the full validator.
func (p *Plan) Valid(doc []byte) bool {
	w := walker{doc: doc, work: looks * (len(doc) + 16)}
	end, ok := w.value(p.root, space(doc, 0))
	return ok && !w.unknown && space(doc, end) == len(doc)
}

// walker walks over one document. Its methods take the offset of a value and
// give the offset behind it, and whether the value is valid; the offset means
// nothing if it is not.
type walker struct {
	doc   []byte
	depth int
	work  int
	// unknown says that something could not be decided. Nothing that is said
	// afterwards counts: under a "not" a false would become true.
	unknown bool
}

// giveUp leaves the decision to the full validator.
func (w *walker) giveUp() (int, bool) {
	w.unknown = true
	return 0, false
}

func (w *walker) value(n *node, i int) (end int, ok bool) {
	if n.never {
		return 0, false
	}
	if w.depth++; w.depth > maxDepth {
		return w.giveUp()
	}
	if w.work--; w.work < 0 || w.unknown {
		return w.giveUp()
	}
	end = -1
	if n.own {
		if end, ok = w.own(n, i); !ok {
			return 0, false
		}
	}
	if len(n.same) > 0 {
		if end, ok = w.others(n, i, end); !ok {
			return 0, false
		}
	}
	if end < 0 {
		if end = skip(w.doc, i); end < 0 {
			return w.giveUp()
		}
	}
	w.depth--
	return end, true
}

// others holds the value against the other schemas of a node. After a schema
// that did not fit, the depth is put right again.
func (w *walker) others(n *node, i, end int) (int, bool) {
	var ok bool
	for _, m := range n.all {
		if end, ok = w.value(m, i); !ok {
			return 0, false
		}
	}
	depth := w.depth
	if len(n.some) > 0 {
		found := false
		for _, m := range n.some {
			e, ok := w.value(m, i)
			w.depth = depth
			if ok {
				end, found = e, true
				break
			}
		}
		if !found {
			return 0, false
		}
	}
	if len(n.one) > 0 {
		found := 0
		for _, m := range n.one {
			e, ok := w.value(m, i)
			w.depth = depth
			if ok {
				end = e
				found++
			}
		}
		if found != 1 {
			return 0, false
		}
	}
	if n.not != nil {
		_, ok := w.value(n.not, i)
		if w.depth = depth; ok {
			return 0, false
		}
	}
	if n.cond != nil {
		_, ok := w.value(n.cond, i)
		w.depth = depth
		then := n.no
		if ok {
			then = n.yes
		}
		if then != nil {
			if end, ok = w.value(then, i); !ok {
				return 0, false
			}
		}
	}
	return end, true
}

// own holds the value against what the node itself asks for.
func (w *walker) own(n *node, i int) (end int, ok bool) {
	if i >= len(w.doc) {
		return w.giveUp()
	}
	switch w.doc[i] {
	case '{':
		if n.types != 0 && n.types&isObject == 0 {
			return 0, false
		}
		if n.values != nil {
			return w.container(n.values.object)
		}
		if n.object == nil {
			return w.skipped(skip(w.doc, i))
		}
		return w.object(n.object, i)
	case '[':
		if n.types != 0 && n.types&isArray == 0 {
			return 0, false
		}
		if n.values != nil {
			return w.container(n.values.array)
		}
		if n.array == nil {
			return w.skipped(skip(w.doc, i))
		}
		return w.array(n.array, i)
	case '"':
		if n.types != 0 && n.types&isString == 0 {
			return 0, false
		}
		return w.text(n, i)
	case 't':
		return w.literal(n, i, isBool, n.values != nil && n.values.yes)
	case 'f':
		return w.literal(n, i, isBool, n.values != nil && n.values.no)
	case 'n':
		return w.literal(n, i, isNull, n.values != nil && n.values.null)
	}
	return w.number(n, i)
}

func (w *walker) skipped(end int) (int, bool) {
	if end < 0 {
		return w.giveUp()
	}
	return end, true
}

// container decides about an object or array where there is an enum. It cannot
// be one of the values if none is such.
func (w *walker) container(listed bool) (int, bool) {
	if listed {
		return w.giveUp()
	}
	return 0, false
}

func (w *walker) literal(n *node, i int, k kind, listed bool) (int, bool) {
	if n.types != 0 && n.types&k == 0 || n.values != nil && !listed {
		return 0, false
	}
	return w.skipped(scalarEnd(w.doc, i))
}

func (w *walker) number(n *node, i int) (int, bool) {
	end := scalarEnd(w.doc, i)
	if end < 0 {
		return w.giveUp()
	}
	if n.types != 0 && n.types&(isNumber|isInteger) == 0 {
		return 0, false
	}
	integer := n.types != 0 && n.types&isNumber == 0
	if !integer && n.values == nil && n.number == nil {
		return end, true
	}
	x, ok := parseNumber(w.doc[i:end])
	if !ok {
		return w.giveUp()
	}
	if integer && !x.integer() {
		return 0, false
	}
	if n.values != nil {
		found := false
		for j := range n.values.numbers {
			if x.compare(&n.values.numbers[j]) == 0 {
				found = true
				break
			}
		}
		if !found {
			return 0, false
		}
	}
	if r := n.number; r != nil {
		if r.min != nil && x.compare(r.min) < 0 || r.max != nil && x.compare(r.max) > 0 ||
			r.above != nil && x.compare(r.above) <= 0 || r.below != nil && x.compare(r.below) >= 0 {
			return 0, false
		}
		if r.multiple != nil {
			yes, known := r.multiple.divides(&x)
			if !known {
				return w.giveUp()
			}
			if !yes {
				return 0, false
			}
		}
	}
	return end, true
}

// alias is the text of bytes, for a callee that does not keep it.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func (w *walker) text(n *node, i int) (int, bool) {
	end, escaped := textEnd(w.doc, i)
	if end < 0 {
		return w.giveUp()
	}
	r := n.text
	if r == nil && n.values == nil {
		return end, true
	}
	s := w.doc[i+1 : end-1]
	if escaped {
		s = unescape(make([]byte, 0, len(s)), s)
	}
	if v := n.values; v != nil {
		if v.many != nil {
			if !v.many[string(s)] {
				return 0, false
			}
		} else if !among(v.texts, s) {
			return 0, false
		}
	}
	if r == nil {
		return end, true
	}
	// A code point has one to four bytes: most strings need not be counted.
	if len(s) < 4*r.min || r.max >= 0 && len(s) > r.max {
		count := utf8.RuneCount(s)
		if count < r.min || r.max >= 0 && count > r.max {
			return 0, false
		}
	}
	if r.pattern != nil && !r.pattern.MatchString(alias(s)) {
		return 0, false
	}
	if r.format != nil && (r.quick == nil || !r.quick(s)) && r.format.Validate(string(s)) != nil {
		return 0, false
	}
	return end, true
}

func among(texts []string, s []byte) bool {
	for _, t := range texts {
		if t == string(s) {
			return true
		}
	}
	return false
}

func (w *walker) object(o *objectRule, start int) (int, bool) {
	doc := w.doc
	var seen mask
	count := 0
	i := space(doc, start+1)
	for more := i < len(doc) && doc[i] != '}'; more; {
		if i >= len(doc) || doc[i] != '"' {
			return w.giveUp()
		}
		nameAt := i
		end, escaped := textEnd(doc, i)
		if end < 0 {
			return w.giveUp()
		}
		name := doc[i+1 : end-1]
		if escaped {
			name = unescape(make([]byte, 0, len(name)), name)
		}
		if i = space(doc, end); i >= len(doc) || doc[i] != ':' {
			return w.giveUp()
		}
		i = space(doc, i+1)
		count++
		var ok bool
		if i, ok = w.member(o, &seen, name, i); !ok {
			return 0, false
		}
		if o.names != nil {
			if _, ok = w.value(o.names, nameAt); !ok {
				return 0, false
			}
		}
		i = space(doc, i)
		if more = i < len(doc) && doc[i] == ','; more {
			i = space(doc, i+1)
		}
	}
	if i >= len(doc) || doc[i] != '}' {
		return w.giveUp()
	}
	if count < o.min || o.max >= 0 && count > o.max || !seen.holds(&o.required) {
		return 0, false
	}
	for j := range o.dependents {
		d := &o.dependents[j]
		if !seen.has(d.name) {
			continue
		}
		if !seen.holds(&d.required) {
			return 0, false
		}
		if d.schema != nil {
			if _, ok := w.value(d.schema, start); !ok {
				return 0, false
			}
		}
	}
	return i + 1, true
}

// member holds the value at i against the schemas that its name asks for.
func (w *walker) member(o *objectRule, seen *mask, name []byte, i int) (end int, ok bool) {
	end = -1
	evaluated := false
	if f := o.find(name); f >= 0 {
		seen.set(f)
		if p := o.fields[f].value; p != nil {
			evaluated = true
			if end, ok = w.value(p, i); !ok {
				return 0, false
			}
		}
	}
	for j := range o.patterns {
		if p := &o.patterns[j]; p.name.MatchString(alias(name)) {
			evaluated = true
			if end, ok = w.value(p.value, i); !ok {
				return 0, false
			}
		}
	}
	if !evaluated {
		if o.closed {
			return 0, false
		}
		if o.additional != nil {
			return w.value(o.additional, i)
		}
	}
	if end < 0 {
		return w.skipped(skip(w.doc, i))
	}
	return end, true
}

// maxUnique is how many items are compared with each other.
const maxUnique = 64

func (w *walker) array(r *arrayRule, start int) (int, bool) {
	doc := w.doc
	count, matches := 0, 0
	var items [maxUnique][2]int32
	i := space(doc, start+1)
	for more := i < len(doc) && doc[i] != ']'; more; {
		end, at := -1, i
		var ok bool
		switch {
		case count < len(r.prefix):
			if end, ok = w.value(r.prefix[count], i); !ok {
				return 0, false
			}
		case r.items != nil:
			if end, ok = w.value(r.items, i); !ok {
				return 0, false
			}
		}
		if r.contains != nil {
			depth := w.depth
			e, ok := w.value(r.contains, i)
			if w.depth = depth; ok {
				end = e
				matches++
			}
		}
		if end < 0 {
			if end = skip(doc, i); end < 0 {
				return w.giveUp()
			}
		}
		if r.unique && count < maxUnique {
			items[count] = [2]int32{int32(at), int32(end)}
		}
		count++
		i = space(doc, end)
		if more = i < len(doc) && doc[i] == ','; more {
			i = space(doc, i+1)
		}
	}
	if i >= len(doc) || doc[i] != ']' {
		return w.giveUp()
	}
	if count < r.min || r.max >= 0 && count > r.max {
		return 0, false
	}
	if r.contains != nil && (matches < r.minContains || r.maxContains >= 0 && matches > r.maxContains) {
		return 0, false
	}
	if r.unique && count > 1 {
		if count > maxUnique {
			return w.giveUp()
		}
		if !w.unique(items[:count]) {
			return 0, false
		}
	}
	return i + 1, true
}

// unique says whether no two items are equal.
func (w *walker) unique(items [][2]int32) bool {
	for j, a := range items {
		for _, b := range items[:j] {
			same, known := equal(w.doc[a[0]:a[1]], w.doc[b[0]:b[1]])
			if !known {
				w.unknown = true
			}
			if same || !known {
				return false
			}
		}
	}
	return true
}

// equal compares two values. Objects and arrays are left to the full validator,
// unless they are written alike.
func equal(a, b []byte) (same, known bool) {
	if bytes.Equal(a, b) {
		return true, true
	}
	if len(a) == 0 || len(b) == 0 {
		return false, false
	}
	switch {
	case a[0] == '"':
		if b[0] != '"' || bytes.IndexByte(a, '\\') < 0 && bytes.IndexByte(b, '\\') < 0 {
			return false, true
		}
		return bytes.Equal(unescape(nil, a), unescape(nil, b)), true
	case digit(a[0]):
		if !digit(b[0]) {
			return false, true
		}
		x, ok := parseNumber(a)
		y, fine := parseNumber(b)
		return ok && fine && x.compare(&y) == 0, ok && fine
	case a[0] == '{' || a[0] == '[':
		return false, a[0] != b[0]
	}
	return false, true // literals that are not written alike
}

func digit(c byte) bool { return c == '-' || c >= '0' && c <= '9' }
