package compat

import (
	"math"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The work of one comparison is bounded, by more for schemas that are larger.
const (
	maxSteps  = 60_000
	moreSteps = 100 // for each schema inside
)

// maxSplits bounds how often cases are told apart inside each other.
const maxSplits = 10

// checker proves that what one schema writes another one reads.
//
// The claim is that every value of a world satisfies a schema. It is proved by
// going through the keywords of the schema, and if that fails by telling cases
// apart: kinds of values, alternatives that the writer has. A claim about a value
// may rest on claims about values inside it, and so on down to itself: documents
// are finite, so what holds for a document if it holds for smaller ones holds for
// all. A claim must not rest on itself for the same value.
type checker struct {
	class map[*jsonschema.Schema]int
	fresh int // the next class for schemas that the checker makes up
	made  map[string]*jsonschema.Schema

	lenient bool
	steps   int
	bound   int // on steps
	level   int // how deep inside the document
	splits  int
	memo    map[string]*verdict
	trail   []*verdict // those of the memo that rest on open claims
	open    map[string]*claim
	stack   []*claim
	near    map[*jsonschema.Schema][]*jsonschema.Schema
}

// claim is one that is being proved.
type claim struct {
	depth, level int
	rests        int // the lowest claim on the stack that it rests on
	mark         int // the length of the trail when it was opened
}

// verdict is what came out for a claim.
type verdict struct {
	held  bool
	key   string
	rests int // the lowest open claim that it rests on
	level int // how deep inside the document it was proved
}

// grounded is where a verdict rests that rests on nothing open.
const grounded = math.MaxInt

func newChecker(all []*jsonschema.Schema, lenient bool) *checker {
	c := &checker{class: classes(all), lenient: lenient, bound: maxSteps + moreSteps*len(all), made: make(map[string]*jsonschema.Schema), memo: make(map[string]*verdict), open: make(map[string]*claim), near: make(map[*jsonschema.Schema][]*jsonschema.Schema)}
	for _, id := range c.class {
		c.fresh = max(c.fresh, id+1)
	}
	return c
}

// id is the class of a schema.
func (c *checker) id(s *jsonschema.Schema) int {
	n, ok := c.class[s]
	if !ok {
		n = c.fresh
		c.fresh++
		c.class[s] = n
	}
	return n
}

// make makes up a schema, the same one for the same name.
func (c *checker) make(name string, fill func(*jsonschema.Schema)) *jsonschema.Schema {
	s, ok := c.made[name]
	if !ok {
		s = &jsonschema.Schema{DraftVersion: 2020}
		fill(s)
		c.made[name] = s
	}
	return s
}

// never is the schema that takes nothing.
func (c *checker) never() *jsonschema.Schema {
	no := false
	return c.make("false", func(s *jsonschema.Schema) { s.Bool = &no })
}

// having is the schema of objects that have a property.
func (c *checker) having(name string) *jsonschema.Schema {
	return c.make("having "+name, func(s *jsonschema.Schema) { s.Required = []string{name} })
}

// lacking is the schema of objects that do not have it.
func (c *checker) lacking(name string) *jsonschema.Schema {
	return c.make("lacking "+name, func(s *jsonschema.Schema) { s.Properties = map[string]*jsonschema.Schema{name: c.never()} })
}

// matching is the schema of strings that match a pattern.
func (c *checker) matching(re jsonschema.Regexp) *jsonschema.Schema {
	return c.make("matching "+re.String(), func(s *jsonschema.Schema) { s.Pattern = re })
}

// spent says whether the bound on work is reached.
func (c *checker) spent() bool { return c.steps > c.bound }

// strictly proves without leniency: for claims that are used to exclude
// something, where granting more would hide problems.
func (c *checker) strictly(prove func() bool) bool {
	was := c.lenient
	c.lenient = false
	defer func() { c.lenient = was }()
	return prove()
}

// inside proves a claim about a value inside the present one.
func (c *checker) inside(prove func() bool) bool {
	c.level++
	defer func() { c.level-- }()
	return prove()
}

// fits proves that every value of a world satisfies a schema. False means that it
// could not be proved.
func (c *checker) fits(w *world, r *jsonschema.Schema) bool {
	if w.kinds == 0 || isTrue(r) || w.has[c.id(r)] {
		return true
	}
	key := w.key + "<" + itoa(c.id(r))
	if isFalse(r) {
		key = w.key + "<false"
	}
	if c.lenient {
		key += "~"
	}
	if known, ok := c.memo[key]; ok {
		switch {
		case !known.held || known.rests == grounded:
			return known.held
		case c.level >= known.level:
			// Further out, what it rests on could be a claim about this very value.
			c.rest(known.rests)
			return true
		}
	}
	if above, ok := c.open[key]; ok {
		if above.level == c.level {
			return false // it would rest on itself
		}
		c.rest(above.depth)
		return true
	}
	c.steps++
	if c.spent() {
		return false
	}
	now := &claim{depth: len(c.stack), level: c.level, rests: grounded, mark: len(c.trail)}
	c.open[key] = now
	c.stack = append(c.stack, now)
	held := c.prove(w, r)
	c.stack = c.stack[:now.depth]
	delete(c.open, key)
	c.close(now, key, held)
	return held
}

// rest notes that all claims above one rest on it.
func (c *checker) rest(depth int) {
	for _, above := range c.stack[depth+1:] {
		above.rests = min(above.rests, depth)
	}
}

// close keeps the verdict about a claim, and settles those that rest on it.
func (c *checker) close(now *claim, key string, held bool) {
	since := c.trail[now.mark:]
	v := &verdict{held: held, key: key, rests: now.rests, level: now.level}
	switch {
	case !held:
		// What was proved meanwhile may rest on it, and is not proved any more.
		for _, u := range since {
			if c.memo[u.key] == u {
				delete(c.memo, u.key)
			}
		}
		c.trail = c.trail[:now.mark]
		if !c.spent() { // work that ran out says nothing about the claim
			c.memo[key] = v
		}
	case now.rests == grounded:
		for _, u := range since {
			u.rests = grounded
		}
		c.trail = c.trail[:now.mark]
		c.memo[key] = v
	default:
		for _, u := range since {
			u.rests = min(u.rests, now.rests)
		}
		c.memo[key] = v
		c.trail = append(c.trail, v)
	}
}

// void proves that a world has no values.
func (c *checker) void(w *world) bool { return c.fits(w, c.never()) }

func (c *checker) prove(w *world, r *jsonschema.Schema) bool {
	if list, ok := c.values(w); ok {
		for _, v := range list {
			c.steps++
			if !accepts(r, v) {
				return false
			}
		}
		return true
	}
	if isFalse(r) {
		return c.contradicts(w) || c.cases(w, c.void)
	}
	if c.keywords(w, r, nil) || c.void(w) {
		return true
	}
	return c.cases(w, func(part *world) bool { return c.fits(part, r) })
}

// contradicts proves that a world has no values, without telling cases apart.
func (c *checker) contradicts(w *world) bool {
	left := w.kinds
	if r := rangeOf(w, integer); left&integer != 0 && r.empty() {
		left &^= integer
	}
	if r := rangeOf(w, number); left&fraction != 0 && r.empty() {
		left &^= fraction
	}
	if n := lengthOf(w); left&text != 0 && n.low > n.high {
		left &^= text
	}
	if left&array != 0 && c.noArray(w) {
		left &^= array
	}
	if left&object != 0 && c.noObject(w) {
		left &^= object
	}
	if left == 0 {
		return true
	}
	if left != w.kinds {
		return c.void(c.world(left, w.pos, w.neg))
	}
	for _, n := range w.neg {
		if c.strictly(func() bool { return c.fits(w, n) }) {
			return true
		}
	}
	return false
}

// cases tells cases of a world apart and proves each. It takes the first way of
// telling apart that there is; the rest follows when the cases are proved.
func (c *checker) cases(w *world, prove func(*world) bool) bool {
	parts := c.parts(w)
	if len(parts) == 0 || c.splits >= maxSplits {
		return false
	}
	c.splits++
	defer func() { c.splits-- }()
	for _, part := range parts {
		if !prove(part) {
			return false
		}
	}
	return true
}

// parts tells cases of a world apart: together they are all of it. None means
// that there is nothing to tell apart.
func (c *checker) parts(w *world) (list []*world) {
	for k := null; k <= object; k <<= 1 {
		if w.kinds&k != 0 && w.kinds != k {
			list = append(list, c.world(k, w.pos, w.neg))
		}
	}
	if len(list) > 0 {
		return list
	}
	for _, s := range w.pos {
		if list := c.alternatives(w, s); len(list) > 0 {
			return list
		}
	}
	for _, s := range w.pos {
		for name := range s.DependentSchemas {
			if w.kinds == object && !w.required[name] && !c.absent(w, name) {
				return []*world{c.and(w, c.having(name)), c.and(w, c.lacking(name))}
			}
		}
	}
	return c.choices(w)
}

// alternatives tells the branches of one schema apart.
func (c *checker) alternatives(w *world, s *jsonschema.Schema) (list []*world) {
	settled := func(branches []*jsonschema.Schema) bool {
		for _, b := range branches {
			if w.has[c.id(b)] || isTrue(b) {
				return true
			}
		}
		return len(branches) == 0
	}
	if !settled(s.AnyOf) {
		for _, b := range s.AnyOf {
			list = append(list, c.and(w, b))
		}
		return list
	}
	if len(s.OneOf) > 1 && !c.decided(w, s.OneOf) {
		for i, b := range s.OneOf {
			var others []*jsonschema.Schema
			for j, other := range s.OneOf {
				if j != i {
					others = append(others, other)
				}
			}
			list = append(list, c.but(c.and(w, b), others...))
		}
		return list
	}
	if s.If != nil && !w.has[c.id(s.If)] && !w.not[c.id(s.If)] && !isTrue(s.If) && !isFalse(s.If) {
		return []*world{c.and(w, s.If), c.but(w, s.If)}
	}
	return nil
}

// decided says whether it is known of each branch whether it holds.
func (c *checker) decided(w *world, branches []*jsonschema.Schema) bool {
	for _, b := range branches {
		if !w.has[c.id(b)] && !w.not[c.id(b)] && b.Bool == nil && !isTrue(b) {
			return false
		}
	}
	return true
}

// maxChoices bounds the values of a property that are told apart.
const maxChoices = 12

// choices tells the values of a property apart that must be there and has a few,
// such as the one that says what kind of thing an object is.
func (c *checker) choices(w *world) (list []*world) {
	if w.kinds != object {
		return nil
	}
	for _, name := range sorted(w.required) {
		values, ok := c.values(c.member(w, known(name)))
		if !ok || len(values) < 2 || len(values) > maxChoices {
			continue
		}
		for _, v := range values {
			list = append(list, c.and(w, c.make("choice "+strconv.Quote(name)+canonical(v), func(s *jsonschema.Schema) {
				value := &jsonschema.Schema{DraftVersion: 2020, Const: &v}
				s.Properties = map[string]*jsonschema.Schema{name: value}
			})))
		}
		return list
	}
	return nil
}
