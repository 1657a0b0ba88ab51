package goscan

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"

	"promethean/lint"
)

// Wrapper is a fact about a function: parameters of it go unchanged into calls of
// ours.
type Wrapper struct{ Roles []Role }

// AFact marks it as a fact.
func (*Wrapper) AFact() {}

// String tells people what is known.
func (w *Wrapper) String() string {
	var b strings.Builder
	b.WriteString("wrapper")
	for _, r := range w.Roles {
		kind := string(r.Kind)
		if kind == "" {
			kind = "header"
		}
		b.WriteString(" " + kind)
	}
	return b.String()
}

// facts keeps what is known about functions across packages.
type facts interface {
	get(*types.Func) *Wrapper
	set(*types.Func, *Wrapper)
}

// Result is what a package holds. Columns are counted in bytes.
type Result struct {
	Uses    []lint.Use
	Headers []lint.Header
	// pos leads positions back to where the type checker has them.
	pos map[lint.Position]token.Pos
}

// scan is the look at one package.
type scan struct {
	fset   *token.FileSet
	files  []*ast.File
	info   *types.Info
	facts  facts
	shapes shapes
	once   map[*types.Var]ast.Expr // variables that are set once, and to what
	out    Result
}

func newScan(fset *token.FileSet, files []*ast.File, pkg *types.Package, info *types.Info, f facts) *scan {
	s := &scan{fset: fset, info: info, facts: f, shapes: shapes{pkg}}
	s.out.pos = make(map[lint.Position]token.Pos)
	for _, file := range files {
		if !strings.HasSuffix(fset.File(file.Pos()).Name(), "_test.go") {
			s.files = append(s.files, file)
		}
	}
	return s
}

// run finds wrappers, then uses.
func (s *scan) run() Result {
	s.findOnce()
	// A wrapper may stand before the one that it calls. Each round finds at least
	// one more, or is the last.
	for s.findWrappers() {
		continue
	}
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			s.places(n, s.use)
			return true
		})
	}
	return s.out
}

// target is what stands in one place for a topic or the name of a header.
type target struct {
	kind    lint.Kind // "" is a header
	value   ast.Expr
	payload ast.Expr // nil if there is none
	handler ast.Expr // nil if there is none
	rest    bool     // value is a list that is passed on whole
	version int      // as in lint.Use
}

// places calls each for the topics and headers of a node.
func (s *scan) places(n ast.Node, each func(target)) {
	switch n := n.(type) {
	case *ast.CallExpr:
		f, ok := typeutil.Callee(s.info, n).(*types.Func)
		if !ok {
			return
		}
		for _, r := range s.roles(f) {
			s.arguments(n, f, r, each)
		}
	case *ast.CompositeLit:
		s.literal(n, each)
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			sel, ok := left.(*ast.SelectorExpr)
			if !ok || len(n.Lhs) != len(n.Rhs) || n.Tok != token.ASSIGN {
				continue
			}
			if kind, ok := s.field(s.info.TypeOf(sel.X), sel.Sel.Name); ok {
				each(target{kind: kind, value: n.Rhs[i]})
			}
		}
	}
}

// roles gives those of a function, ours or somebody's around it.
func (s *scan) roles(f *types.Func) []Role {
	f = f.Origin()
	if r := known(f); r != nil {
		return r
	}
	if w := s.facts.get(f); w != nil {
		return w.Roles
	}
	return nil
}

// arguments finds what a call gives for a role.
func (s *scan) arguments(call *ast.CallExpr, f *types.Func, r Role, each func(target)) {
	if r.Param >= len(call.Args) {
		return
	}
	t := target{kind: r.Kind, version: r.Version}
	if r.Kind == lint.Publish {
		s.stamp(call, &t)
	}
	if r.Payload >= 0 && r.Payload < len(call.Args) {
		t.payload = call.Args[r.Payload]
	}
	if r.Handler >= 0 && r.Handler < len(call.Args) {
		t.handler = call.Args[r.Handler]
	}
	sig, ok := f.Type().(*types.Signature)
	if ok && sig.Variadic() && r.Param == sig.Params().Len()-1 {
		for _, a := range call.Args[r.Param:] {
			t.value, t.rest = a, call.Ellipsis.IsValid()
			each(t)
		}
		return
	}
	t.value = call.Args[r.Param]
	each(t)
}

// stamp looks for the version among the options of a call.
func (s *scan) stamp(call *ast.CallExpr, t *target) {
	for _, a := range call.Args {
		option, ok := ast.Unparen(a).(*ast.CallExpr)
		if !ok || len(option.Args) != 2 {
			continue
		}
		f, ok := typeutil.Callee(s.info, option).(*types.Func)
		if !ok {
			continue
		}
		for _, r := range s.roles(f) {
			if name, ok := s.text(option.Args[min(r.Param, 1)]); ok && r.Kind == "" && name == lint.VersionHeader {
				t.version = lint.ParseVersion(s.text(option.Args[1-min(r.Param, 1)]))
			}
		}
	}
}

// literal finds what a struct of ours is filled with.
func (s *scan) literal(c *ast.CompositeLit, each func(target)) {
	t := s.info.TypeOf(c)
	if t == nil {
		return
	}
	under, ok := t.Underlying().(*types.Struct)
	if !ok {
		return
	}
	for i, x := range c.Elts {
		if kv, ok := x.(*ast.KeyValueExpr); ok {
			if name, ok := kv.Key.(*ast.Ident); ok {
				if kind, ok := s.field(t, name.Name); ok {
					each(target{kind: kind, value: kv.Value})
				}
			}
		} else if i < under.NumFields() {
			if kind, ok := s.field(t, under.Field(i).Name()); ok {
				each(target{kind: kind, value: x})
			}
		}
	}
}

// field says whether a member of a struct is a topic or the name of a header.
func (s *scan) field(t types.Type, name string) (lint.Kind, bool) {
	if t == nil {
		return "", false
	}
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	kind, ok := fields[typeName(t)][name]
	return kind, ok
}

// use notes a place whose text is known.
func (s *scan) use(t target) {
	if t.rest {
		return
	}
	text, ok := s.text(t.value)
	if !ok {
		return
	}
	at := s.at(t.value)
	if t.kind == "" {
		s.out.Headers = append(s.out.Headers, lint.Header{Name: text, At: at})
		return
	}
	if text == "" && t.kind != lint.Publish {
		return // "" asks for all topics in some places, and is none in others
	}
	u := lint.Use{Kind: t.kind, Topic: text, At: at, Version: t.version}
	switch {
	case t.payload != nil:
		u.Payload, u.PayloadAt = s.shapes.literal(s.info, t.payload), s.at(t.payload)
	case t.handler != nil:
		u.Payload, u.PayloadAt = s.decoded(t.handler), s.at(t.handler)
	}
	s.out.Uses = append(s.out.Uses, u)
}

// decoded gives what a typed handler decodes payloads into.
func (s *scan) decoded(h ast.Expr) *lint.Shape {
	call, ok := ast.Unparen(h).(*ast.CallExpr)
	if !ok {
		return nil
	}
	f, ok := typeutil.Callee(s.info, call).(*types.Func)
	if !ok || f.Pkg() == nil || f.Origin().FullName() != handle {
		return nil
	}
	args := s.info.Instances[name(call.Fun)].TypeArgs
	if args.Len() != 1 {
		return nil
	}
	return s.shapes.of(args.At(0))
}

// name finds the identifier of what is called.
func name(e ast.Expr) *ast.Ident {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return e
	case *ast.SelectorExpr:
		return e.Sel
	case *ast.IndexExpr:
		return name(e.X)
	}
	return nil
}

func (s *scan) at(n ast.Node) lint.Position {
	p := s.fset.Position(n.Pos())
	at := lint.Position{File: p.Filename, Line: p.Line, Column: p.Column}
	s.out.pos[at] = n.Pos()
	return at
}

// text gives the value of an expression that is a constant text, or a variable
// that is set once, to one.
func (s *scan) text(e ast.Expr) (string, bool) {
	for range 10 {
		e = s.unconverted(e)
		if v := s.info.Types[e].Value; v != nil {
			if v.Kind() != constant.String {
				return "", false
			}
			return constant.StringVal(v), true
		}
		v := s.variable(e)
		if v == nil || s.once[v] == nil {
			return "", false
		}
		e = s.once[v]
	}
	return "", false
}

// unconverted takes parentheses and conversions between strings away.
func (s *scan) unconverted(e ast.Expr) ast.Expr {
	for {
		e = ast.Unparen(e)
		call, ok := e.(*ast.CallExpr)
		if !ok || len(call.Args) != 1 || !s.info.Types[call.Fun].IsType() || !isString(s.info.TypeOf(call.Fun)) || !isString(s.info.TypeOf(call.Args[0])) {
			return e
		}
		if s.info.Types[e].Value != nil {
			return e
		}
		e = call.Args[0]
	}
}

func isString(t types.Type) bool {
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsString != 0
}

func (s *scan) variable(e ast.Expr) *types.Var {
	id, ok := e.(*ast.Ident)
	if !ok {
		return nil
	}
	v, _ := s.info.Uses[id].(*types.Var)
	return v
}

// findOnce finds variables that are set once, where they are declared.
func (s *scan) findOnce() {
	s.once = make(map[*types.Var]ast.Expr)
	changed := make(map[*types.Var]bool)
	declare := func(id *ast.Ident, value ast.Expr) {
		if v, ok := s.info.Defs[id].(*types.Var); ok && isString(v.Type()) {
			// An exported variable of a package can be set by others.
			if v.Exported() && v.Parent() == v.Pkg().Scope() {
				return
			}
			s.once[v] = value
		}
	}
	change := func(e ast.Expr) {
		if v := s.variable(ast.Unparen(e)); v != nil {
			changed[v] = true
		}
	}
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for i, left := range n.Lhs {
					change(left) // one that is declared here is no use of it
					if id, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE && len(n.Lhs) == len(n.Rhs) {
						declare(id, n.Rhs[i])
					}
				}
			case *ast.ValueSpec:
				for i, id := range n.Names {
					if len(n.Values) == len(n.Names) {
						declare(id, n.Values[i])
					}
				}
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					change(n.X)
				}
			case *ast.RangeStmt:
				change(n.Key)
				change(n.Value)
			}
			return true
		})
	}
	for v := range changed {
		delete(s.once, v)
	}
	s.changed(changed)
}

// changed keeps parameters that are set from being taken for what was passed.
func (s *scan) changed(list map[*types.Var]bool) {
	for v := range list {
		s.once[v] = nil
	}
}

// findWrappers looks for functions that pass parameters on, and says whether
// there are more than before.
func (s *scan) findWrappers() (more bool) {
	for _, f := range s.files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			obj, ok := s.info.Defs[fn.Name].(*types.Func)
			if !ok || known(obj) != nil {
				continue
			}
			roles := s.rolesOf(obj, fn)
			if old := s.facts.get(obj); len(roles) > 0 && (old == nil || len(roles) > len(old.Roles)) {
				s.facts.set(obj, &Wrapper{Roles: roles})
				more = true
			}
		}
	}
	return more
}

// rolesOf finds the parameters of a function that go into calls.
func (s *scan) rolesOf(obj *types.Func, fn *ast.FuncDecl) (roles []Role) {
	sig, ok := obj.Type().(*types.Signature)
	if !ok {
		return nil
	}
	index := make(map[*types.Var]int)
	for i := range sig.Params().Len() {
		v := sig.Params().At(i)
		if _, set := s.once[v]; !set { // it is passed on as it came
			index[v] = i
		}
	}
	param := func(e ast.Expr) int {
		if e != nil {
			if v := s.variable(s.unconverted(e)); v != nil {
				if i, ok := index[v]; ok {
					return i
				}
			}
		}
		return -1
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		s.places(n, func(t target) {
			i := param(t.value)
			if i < 0 {
				return
			}
			// A list goes on as a list, one text as one text.
			if last := sig.Variadic() && i == sig.Params().Len()-1; last != t.rest {
				return
			}
			r := Role{Kind: t.kind, Param: i, Payload: param(t.payload), Handler: param(t.handler), Version: t.version}
			if !slices.Contains(roles, r) {
				roles = append(roles, r)
			}
		})
		return true
	})
	return roles
}
