package jsscan

import (
	"reflect"

	"github.com/dop251/goja/ast"
	"github.com/dop251/goja/token"
)

var nodeType = reflect.TypeFor[ast.Node]()

// walk calls visit for a node and all below it.
func walk(n ast.Node, visit func(ast.Node)) {
	walkValue(reflect.ValueOf(n), visit)
}

func walkValue(v reflect.Value, visit func(ast.Node)) {
	switch v.Kind() {
	case reflect.Interface:
		if !v.IsNil() {
			walkValue(v.Elem(), visit)
		}
	case reflect.Pointer:
		if v.IsNil() || v.Elem().Kind() != reflect.Struct {
			return
		}
		if v.Type().Implements(nodeType) {
			visit(v.Interface().(ast.Node))
		}
		walkValue(v.Elem(), visit)
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.Interface || k == reflect.Pointer || k == reflect.Struct {
			for i := range v.Len() {
				walkValue(v.Index(i), visit)
			}
		}
	case reflect.Struct:
		t := v.Type()
		for i := range t.NumField() {
			// Lists of declarations repeat what the statements have, and a file is
			// no node.
			if f := t.Field(i); f.IsExported() && f.Name != "DeclarationList" && f.Name != "File" {
				walkValue(v.Field(i), visit)
			}
		}
	}
}

// constants gives the values of names that are declared once in a file, as const.
// One that is declared again anywhere could be meant instead.
func constants(p *ast.Program) map[string]ast.Expression {
	values := make(map[string]ast.Expression)
	count := make(map[string]int)
	name := func(n ast.Node) {
		if id, ok := n.(*ast.Identifier); ok && id != nil {
			count[id.Name.String()]++
		}
	}
	walk(p, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.LexicalDeclaration:
			if n.Token != token.CONST {
				return
			}
			for _, b := range n.List {
				if id, ok := b.Target.(*ast.Identifier); ok && b.Initializer != nil {
					values[id.Name.String()] = b.Initializer
				}
			}
		case *ast.Binding:
			name(n.Target)
		case *ast.ObjectPattern:
			for _, p := range n.Properties {
				switch p := p.(type) {
				case *ast.PropertyShort:
					count[p.Name.Name.String()]++
				case *ast.PropertyKeyed:
					name(p.Value)
				}
			}
			name(n.Rest)
		case *ast.ArrayPattern:
			for _, e := range n.Elements {
				name(e)
			}
			name(n.Rest)
		case *ast.CatchStatement:
			if n.Parameter != nil {
				name(n.Parameter)
			}
		case *ast.ParameterList:
			name(n.Rest)
		case *ast.FunctionLiteral:
			name(n.Name)
		case *ast.ClassLiteral:
			name(n.Name)
		}
	})
	for n := range values {
		if count[n] != 1 {
			delete(values, n)
		}
	}
	return values
}
