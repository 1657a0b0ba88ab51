package goscan

import (
	"go/ast"
	"go/constant"
	"go/types"
	"reflect"
	"strings"

	"promethean/lint"
)

// maxShape bounds how far types are followed that contain themselves.
const maxShape = 8

// shapes makes shapes of types as encoding/json would write them.
type shapes struct {
	pkg *types.Package // names of its types need no package
}

func (s shapes) name(t types.Type) string { return types.TypeString(t, types.RelativeTo(s.pkg)) }

// of gives the shape of a type, nil if nothing can be said.
func (s shapes) of(t types.Type) *lint.Shape {
	shape := s.at(t, 0)
	if shape != nil {
		shape.Name = s.name(t)
	}
	return shape
}

func (s shapes) at(t types.Type, depth int) *lint.Shape {
	if depth > maxShape {
		return nil
	}
	if p, ok := types.Unalias(t).Underlying().(*types.Pointer); ok && !marshals(t) {
		return s.at(p.Elem(), depth+1)
	}
	switch typeName(t) {
	case "time.Time":
		return &lint.Shape{Type: "string"}
	case "encoding/json.RawMessage", "encoding/json.Number":
		return nil
	}
	switch {
	case has(t, "MarshalJSON") || has(t, "MarshalJSONTo"):
		return nil
	case has(t, "MarshalText"):
		return &lint.Shape{Type: "string"}
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		return basic(u)
	case *types.Slice:
		if b, ok := u.Elem().Underlying().(*types.Basic); ok && b.Kind() == types.Byte {
			return &lint.Shape{Type: "string"} // base64
		}
		return &lint.Shape{Type: "array", Items: s.at(u.Elem(), depth+1)}
	case *types.Array:
		return &lint.Shape{Type: "array", Items: s.at(u.Elem(), depth+1)}
	case *types.Map:
		return &lint.Shape{Type: "object", Open: true}
	case *types.Struct:
		return &lint.Shape{Type: "object", Fields: s.fields(u, depth)}
	}
	return nil // interfaces, type parameters
}

func basic(b *types.Basic) *lint.Shape {
	switch info := b.Info(); {
	case info&types.IsString != 0:
		return &lint.Shape{Type: "string"}
	case info&types.IsBoolean != 0:
		return &lint.Shape{Type: "boolean"}
	case info&(types.IsInteger|types.IsFloat) != 0:
		return &lint.Shape{Type: "number"}
	}
	return nil
}

// marshals says whether a pointer has a form of its own. The methods of what it
// points to are its methods too.
func marshals(t types.Type) bool {
	return has(t, "MarshalJSON") || has(t, "MarshalJSONTo") || has(t, "MarshalText")
}

// has says whether a type, or a pointer to it, has a method of its own.
func has(t types.Type, name string) bool {
	if _, ok := types.Unalias(t).(*types.TypeParam); ok || types.IsInterface(t) {
		return false
	}
	o, _, _ := types.LookupFieldOrMethod(t, true, nil, name)
	_, ok := o.(*types.Func)
	return ok
}

// typeName is the full name of a named type, "" for others.
func typeName(t types.Type) string {
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil {
		return ""
	}
	return n.Obj().Pkg().Path() + "." + n.Obj().Name()
}

// member is a field of a struct on its way into an object.
type member struct {
	lint.Field
	depth  int
	tagged bool
}

// fields lists the members of the object that a struct becomes. Of several with
// one name the shallowest counts, then the one with a tag; else none.
func (s shapes) fields(u *types.Struct, depth int) []lint.Field {
	var all []member
	s.collect(u, depth, 0, "", make(map[*types.Struct]bool), &all)
	best := make(map[string]member)
	clash := make(map[string]bool)
	var order []string
	for _, m := range all {
		old, ok := best[m.Name]
		switch {
		case !ok:
			order = append(order, m.Name)
			best[m.Name] = m
		case m.depth < old.depth || m.depth == old.depth && m.tagged && !old.tagged:
			best[m.Name], clash[m.Name] = m, false
		case m.depth == old.depth && m.tagged == old.tagged:
			clash[m.Name] = true
		}
	}
	var list []lint.Field
	for _, name := range order {
		if !clash[name] {
			list = append(list, best[name].Field)
		}
	}
	return list
}

func (s shapes) collect(u *types.Struct, depth, level int, optional string, seen map[*types.Struct]bool, all *[]member) {
	if seen[u] || level > maxShape {
		return
	}
	seen[u] = true
	for i := range u.NumFields() {
		f := u.Field(i)
		tag, tagged := reflect.StructTag(u.Tag(i)).Lookup("json")
		if tag == "-" {
			continue
		}
		name, rest, _ := strings.Cut(tag, ",")
		options := strings.Split(rest, ",")
		if f.Embedded() && name == "" {
			inner, pointer := f.Type(), false
			if p, ok := inner.Underlying().(*types.Pointer); ok {
				inner, pointer = p.Elem(), true
			}
			if below, ok := inner.Underlying().(*types.Struct); ok && (!marshals(inner) || !f.Exported()) {
				why := optional
				if pointer {
					why = "a pointer that may be nil"
				}
				s.collect(below, depth, level+1, why, seen, all)
				continue
			}
		}
		if !f.Exported() {
			continue
		}
		m := member{Field: lint.Field{Name: f.Name(), Optional: optional, Shape: s.at(f.Type(), depth+1)}, depth: level, tagged: tagged && name != ""}
		if name != "" {
			m.Name = name
		}
		for _, o := range options {
			switch o {
			case "omitempty":
				if !neverEmpty(f.Type()) {
					m.Optional = o
				}
			case "omitzero":
				m.Optional = o
			case "string":
				if m.Shape != nil && m.Shape.Type != "object" && m.Shape.Type != "array" {
					m.Shape = &lint.Shape{Type: "string"}
				}
			}
		}
		*all = append(*all, m)
	}
}

// neverEmpty says whether omitempty has no effect on a type: structs, and arrays
// that hold something.
func neverEmpty(t types.Type) bool {
	switch u := t.Underlying().(type) {
	case *types.Struct:
		return true
	case *types.Array:
		return u.Len() > 0
	}
	return false
}

// literal gives the shape of a value that is written down as a map, whose names
// can be read.
func (s shapes) literal(info *types.Info, e ast.Expr) *lint.Shape {
	c, ok := ast.Unparen(e).(*ast.CompositeLit)
	if !ok {
		return s.ofValue(info, e)
	}
	m, ok := info.TypeOf(c).Underlying().(*types.Map)
	if !ok || marshals(info.TypeOf(c)) {
		return s.ofValue(info, e)
	}
	if b, ok := m.Key().Underlying().(*types.Basic); !ok || b.Info()&types.IsString == 0 {
		return s.ofValue(info, e)
	}
	shape := &lint.Shape{Type: "object", Name: s.name(info.TypeOf(c))}
	for _, x := range c.Elts {
		kv, ok := x.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		v := info.Types[kv.Key].Value
		if v == nil || v.Kind() != constant.String {
			shape.Open = true
			continue
		}
		shape.Fields = append(shape.Fields, lint.Field{Name: constant.StringVal(v), Shape: s.literal(info, kv.Value)})
	}
	return shape
}

// ofValue gives the shape of an expression by its type.
func (s shapes) ofValue(info *types.Info, e ast.Expr) *lint.Shape {
	tv, ok := info.Types[e]
	if !ok || tv.Type == nil || tv.IsNil() {
		return nil
	}
	return s.of(tv.Type)
}
