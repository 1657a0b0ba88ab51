package jq

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/itchyny/gojq"
)

// maxNesting is how deep a program may be nested; a chain of pipes or commas
// counts by its length.
const maxNesting = 2000

// maxPlainIndex is the largest constant index that is not counted.
const maxPlainIndex = 1024

// scope is the functions that a program has defined where one stands.
type scope struct {
	key   string // name/arity
	outer *scope
}

func (s *scope) has(key string) bool {
	for ; s != nil; s = s.outer {
		if s.key == key {
			return true
		}
	}
	return false
}

func keyOf(name string, arity int) string { return name + "/" + strconv.Itoa(arity) }

// rewriter makes a program into one that keeps to the limits. It changes the
// tree where it stands. The first error stays.
type rewriter struct {
	own   bool            // the program is of this package: it may use hidden names
	uses  map[string]bool // functions of the prelude that are used
	depth int
	err   error
}

// guard rewrites a program and puts the functions of the prelude before it that
// it uses.
func guard(q *gojq.Query) (*gojq.Query, error) {
	w := rewriter{uses: make(map[string]bool)}
	out := w.query(q, nil)
	if w.err != nil {
		return nil, w.err
	}
	if defs := needed(w.uses); len(defs) > 0 {
		// In brackets, so that the program's own functions come after these.
		return &gojq.Query{FuncDefs: defs, Term: &gojq.Term{Type: gojq.TermTypeQuery, Query: out}}, nil
	}
	return out, nil
}

func (w *rewriter) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// Short forms for making trees.

func term(t *gojq.Term) *gojq.Query { return &gojq.Query{Term: t} }

func call(name string, args ...*gojq.Query) *gojq.Query {
	return term(&gojq.Term{Type: gojq.TermTypeFunc, Func: &gojq.Func{Name: name, Args: args}})
}

func number(n int) *gojq.Query {
	return term(&gojq.Term{Type: gojq.TermTypeNumber, Number: strconv.Itoa(n)})
}

func pipe(list ...*gojq.Query) *gojq.Query {
	q := list[len(list)-1]
	for i := len(list) - 2; i >= 0; i-- {
		q = &gojq.Query{Left: list[i], Op: gojq.OpPipe, Right: q}
	}
	return q
}

func brackets(q *gojq.Query) *gojq.Query {
	return term(&gojq.Term{Type: gojq.TermTypeQuery, Query: q})
}

func identity() *gojq.Query { return term(&gojq.Term{Type: gojq.TermTypeIdentity}) }

// bind is "from as $name | body".
func bind(name string, from, body *gojq.Query) *gojq.Query {
	return brackets(&gojq.Query{Left: brackets(from), Op: gojq.OpPipe, Right: body, Patterns: []*gojq.Pattern{{Name: name}}})
}

func (w *rewriter) query(q *gojq.Query, s *scope) *gojq.Query {
	if q == nil || w.err != nil {
		return q
	}
	if w.depth++; w.depth > maxNesting {
		w.fail("the program is nested too deeply")
		return q
	}
	defer func() { w.depth-- }()
	if len(q.Imports) > 0 {
		w.fail("import and include are not available: an upcaster stands for itself")
		return q
	}
	if q.Meta != nil {
		w.fail("module is not available: an upcaster stands for itself")
		return q
	}
	for _, f := range q.FuncDefs {
		s = w.function(f, s)
	}
	if q.Term != nil {
		// Definitions stay with what they are for.
		if body := w.term(q.Term, s); len(q.FuncDefs) > 0 && body.Term == nil {
			q.Term = &gojq.Term{Type: gojq.TermTypeQuery, Query: body}
		} else {
			q.Term = body.Term
			if body.Term == nil {
				return body
			}
		}
		return q
	}
	if q.Right == nil || q.Left == nil {
		w.fail(`the program is empty: write "." for one that changes nothing`)
		return q
	}
	for _, p := range q.Patterns {
		w.pattern(p, s)
	}
	q.Left, q.Right = w.query(q.Left, s), w.query(q.Right, s)
	body := w.operator(&gojq.Query{Left: q.Left, Right: q.Right, Op: q.Op, Patterns: q.Patterns})
	if len(q.FuncDefs) > 0 {
		body = &gojq.Query{FuncDefs: q.FuncDefs, Term: &gojq.Term{Type: gojq.TermTypeQuery, Query: body}}
	}
	return body
}

// operator rewrites an operator whose sides are rewritten.
func (w *rewriter) operator(q *gojq.Query) *gojq.Query {
	arith := map[gojq.Operator]string{
		gojq.OpSub: "_p_sub", gojq.OpMul: "_p_mul", gojq.OpDiv: "_p_div",
		gojq.OpUpdateSub: "_p_sub", gojq.OpUpdateMul: "_p_mul", gojq.OpUpdateDiv: "_p_div",
	}
	const x = "$__x"
	switch q.Op {
	case gojq.OpAdd:
		return brackets(pipe(brackets(q), call("_p_made")))
	case gojq.OpSub, gojq.OpMul, gojq.OpDiv:
		return call(arith[q.Op], q.Left, q.Right)
	case gojq.OpAssign:
		if constantPath(q.Left) {
			return brackets(pipe(brackets(q), call("_p_made")))
		}
		return bind(x, q.Right, w.modify(q.Left, call(x)))
	case gojq.OpModify:
		return w.modify(q.Left, q.Right)
	case gojq.OpUpdateAdd:
		return bind(x, q.Right, w.modify(q.Left, &gojq.Query{Left: identity(), Op: gojq.OpAdd, Right: call(x)}))
	case gojq.OpUpdateMod:
		return bind(x, q.Right, w.modify(q.Left, &gojq.Query{Left: identity(), Op: gojq.OpMod, Right: call(x)}))
	case gojq.OpUpdateAlt:
		return bind(x, q.Right, w.modify(q.Left, &gojq.Query{Left: identity(), Op: gojq.OpAlt, Right: call(x)}))
	case gojq.OpUpdateSub, gojq.OpUpdateMul, gojq.OpUpdateDiv:
		return bind(x, q.Right, w.modify(q.Left, call(arith[q.Op], identity(), call(x))))
	}
	return q
}

// modify is "path |= f", where each value that is put in counts, and the result
// is measured.
func (w *rewriter) modify(path, f *gojq.Query) *gojq.Query {
	update := &gojq.Query{Left: brackets(path), Op: gojq.OpModify, Right: brackets(pipe(brackets(f), call("_p_kept")))}
	return brackets(pipe(brackets(update), call("_p_made")))
}

// constantPath says whether a path is known beforehand, so that an assignment
// puts one value in one place.
func constantPath(q *gojq.Query) bool {
	t := q.Term
	if t == nil || len(q.FuncDefs) > 0 || t.Type != gojq.TermTypeIndex || !constantIndex(t.Index) {
		return false
	}
	for _, s := range t.SuffixList {
		if s.Index == nil || !constantIndex(s.Index) {
			return false
		}
	}
	return true
}

func constantIndex(x *gojq.Index) bool {
	if x.Name != "" || x.Str != nil && x.Str.Queries == nil {
		return true
	}
	return !x.IsSlice && x.Str == nil && plainKey(x.Start)
}

// plainKey says whether an index is a constant that needs no look.
func plainKey(q *gojq.Query) bool {
	if q == nil || q.Term == nil || len(q.FuncDefs) > 0 || len(q.Term.SuffixList) > 0 {
		return false
	}
	switch q.Term.Type {
	case gojq.TermTypeNumber:
		n, err := strconv.Atoi(q.Term.Number)
		return err == nil && n <= maxPlainIndex
	case gojq.TermTypeString:
		return q.Term.Str.Queries == nil
	}
	return false
}

// function rewrites a definition and gives the scope behind it.
func (w *rewriter) function(f *gojq.FuncDef, s *scope) *scope {
	w.name(f.Name)
	s = &scope{keyOf(f.Name, len(f.Args)), s}
	inner := s
	for _, a := range f.Args {
		w.name(a)
		// "def f($x)" defines both $x and x.
		inner = &scope{keyOf(strings.TrimPrefix(a, "$"), 0), inner}
	}
	f.Body = w.query(f.Body, inner)
	return s
}

// name refuses names that are not for programs.
func (w *rewriter) name(name string) {
	switch {
	case w.own:
	case strings.HasPrefix(name, "_"), strings.HasPrefix(name, "$__"):
		w.fail("%s is not available: names that begin with an underscore are reserved", name)
	case strings.Contains(name, "::"):
		w.fail("%s is not available: an upcaster stands for itself, without modules", name)
	case name == "$ENV":
		w.fail("$ENV is not available: %s", reasonEnv)
	}
}

func (w *rewriter) pattern(p *gojq.Pattern, s *scope) {
	if p == nil {
		return
	}
	if p.Name != "" {
		w.name(p.Name)
	}
	for _, e := range p.Array {
		w.pattern(e, s)
	}
	for _, o := range p.Object {
		if o.Key != "" {
			w.name(o.Key)
		}
		if o.KeyString != nil && o.KeyString.Queries != nil {
			o.KeyQuery, o.KeyString = w.text(o.KeyString, "", s), nil
		} else if o.KeyQuery != nil {
			o.KeyQuery = w.query(o.KeyQuery, s)
		}
		w.pattern(o.Val, s)
	}
}

// term rewrites a term with what follows it. It gives a query with a term, or
// with an operator where that is what became of it.
func (w *rewriter) term(t *gojq.Term, s *scope) *gojq.Query {
	suffixes := t.SuffixList
	t.SuffixList = nil
	q := w.plain(t, s)
	for _, x := range suffixes {
		switch {
		case x.Index != nil:
			w.index(x.Index, s)
		case x.Iter:
			q = pipe(q, call("_p_iter"))
		}
		if q.Term == nil || len(q.FuncDefs) > 0 {
			q = brackets(q)
		}
		q.Term.SuffixList = append(q.Term.SuffixList, x)
	}
	return q
}

// plain rewrites a term without what follows it.
func (w *rewriter) plain(t *gojq.Term, s *scope) *gojq.Query {
	switch t.Type {
	case gojq.TermTypeIndex:
		w.index(t.Index, s)
	case gojq.TermTypeRecurse:
		return w.call(&gojq.Func{Name: "recurse"}, s)
	case gojq.TermTypeFunc:
		return w.call(t.Func, s)
	case gojq.TermTypeObject:
		return w.object(t, s)
	case gojq.TermTypeArray:
		if t.Array.Query == nil {
			break
		}
		t.Array.Query = w.query(t.Array.Query, s)
		return brackets(pipe(term(t), call("_p_made")))
	case gojq.TermTypeUnary:
		inner := w.term(t.Unary.Term, s)
		if inner.Term == nil {
			inner = brackets(inner)
		}
		t.Unary.Term = inner.Term
	case gojq.TermTypeNumber:
		if len(t.Number) > maxDigits {
			w.fail("a number has more than %d digits", maxDigits)
		}
	case gojq.TermTypeFormat:
		if _, ok := formats[t.Format]; !ok {
			w.fail("%s is not available", t.Format)
			break
		}
		if t.Str == nil {
			return w.format(identity(), t.Format)
		}
		return w.text(t.Str, t.Format, s)
	case gojq.TermTypeString:
		return w.text(t.Str, "", s)
	case gojq.TermTypeIf:
		w.branches(t.If, s)
	case gojq.TermTypeTry:
		t.Try.Body, t.Try.Catch = w.query(t.Try.Body, s), w.query(t.Try.Catch, s)
	case gojq.TermTypeReduce:
		r := t.Reduce
		w.pattern(r.Pattern, s)
		r.Query, r.Start, r.Update = w.query(r.Query, s), w.query(r.Start, s), w.query(r.Update, s)
	case gojq.TermTypeForeach:
		f := t.Foreach
		w.pattern(f.Pattern, s)
		f.Query, f.Start, f.Update, f.Extract = w.query(f.Query, s), w.query(f.Start, s), w.query(f.Update, s), w.query(f.Extract, s)
	case gojq.TermTypeLabel:
		t.Label.Body = w.query(t.Label.Body, s)
	case gojq.TermTypeQuery:
		t.Query = w.query(t.Query, s)
	}
	return term(t)
}

func (w *rewriter) branches(e *gojq.If, s *scope) {
	e.Cond, e.Then, e.Else = w.query(e.Cond, s), w.query(e.Then, s), w.query(e.Else, s)
	for _, x := range e.Elif {
		x.Cond, x.Then = w.query(x.Cond, s), w.query(x.Then, s)
	}
}

// index rewrites what stands behind a dot or in square brackets.
func (w *rewriter) index(x *gojq.Index, s *scope) {
	if x.Str != nil && x.Str.Queries != nil {
		x.Start, x.Str = w.text(x.Str, "", s), nil
		return
	}
	x.Start, x.End = w.query(x.Start, s), w.query(x.End, s)
	if x.Name == "" && x.Str == nil && !x.IsSlice && !plainKey(x.Start) {
		x.Start = call("_p_index", x.Start)
	}
}

func (w *rewriter) object(t *gojq.Term, s *scope) *gojq.Query {
	if len(t.Object.KeyVals) == 0 {
		return term(t)
	}
	for _, kv := range t.Object.KeyVals {
		if kv.Key != "" && strings.HasPrefix(kv.Key, "$") {
			w.name(kv.Key)
		}
		if kv.KeyString != nil && kv.KeyString.Queries != nil {
			kv.KeyQuery, kv.KeyString = w.text(kv.KeyString, "", s), nil
			if kv.Val == nil {
				kv.Val = term(&gojq.Term{Type: gojq.TermTypeIndex, Index: &gojq.Index{Start: kv.KeyQuery}})
			}
			continue
		}
		kv.KeyQuery, kv.Val = w.query(kv.KeyQuery, s), w.query(kv.Val, s)
	}
	for _, kv := range t.Object.KeyVals {
		// A value with an operator at its top needs brackets here.
		if kv.Val != nil && kv.Val.Term == nil {
			kv.Val = brackets(kv.Val)
		}
	}
	return brackets(pipe(term(t), call("_p_made")))
}

// text rewrites a string with \(…) in it as the sum of its parts.
func (w *rewriter) text(str *gojq.String, format string, s *scope) *gojq.Query {
	if str.Queries == nil {
		return term(&gojq.Term{Type: gojq.TermTypeString, Str: str})
	}
	if len(str.Queries) > 256 {
		w.fail("a string has more than 256 parts")
		return term(&gojq.Term{Type: gojq.TermTypeString, Str: str})
	}
	if format == "" {
		format = "@text"
	}
	var sum *gojq.Query
	for _, part := range str.Queries {
		if part.Term == nil || part.Term.Str == nil {
			part = brackets(w.format(brackets(w.query(part, s)), format))
		}
		if sum == nil {
			sum = part
		} else {
			sum = brackets(pipe(brackets(&gojq.Query{Left: sum, Op: gojq.OpAdd, Right: part}), call("_p_made")))
		}
	}
	return sum
}

// format is "from | @format".
func (w *rewriter) format(from *gojq.Query, format string) *gojq.Query {
	f := formats[format]
	if f.function != "" {
		return pipe(from, call(f.function))
	}
	return pipe(from, call("_p_charge", number(f.growth)), term(&gojq.Term{Type: gojq.TermTypeFormat, Format: format}), call("_p_made"))
}

// call rewrites the call of a function.
func (w *rewriter) call(f *gojq.Func, s *scope) *gojq.Query {
	w.name(f.Name)
	for i, a := range f.Args {
		f.Args[i] = w.query(a, s)
	}
	key := keyOf(f.Name, len(f.Args))
	if strings.HasPrefix(f.Name, "$") || s.has(key) {
		return term(&gojq.Term{Type: gojq.TermTypeFunc, Func: f})
	}
	if why, ok := refused[f.Name]; ok {
		w.fail("%s is not available: %s", f.Name, why)
		return identity()
	}
	if rewrite, ok := rewritten[key]; ok {
		return brackets(rewrite(f.Args))
	}
	switch {
	case inPrelude(key):
		w.uses[key] = true
	case allowed[key]:
	case w.own && strings.HasPrefix(f.Name, "_"):
	default:
		w.fail("%s is not available in an upcaster", key)
	}
	return term(&gojq.Term{Type: gojq.TermTypeFunc, Func: f})
}

// errNoProgram is for a prelude that cannot be read, which a test would find.
var errNoProgram = errors.New("the prelude is no jq")
