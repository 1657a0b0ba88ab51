package jsscan

import (
	"regexp"
	"slices"

	"github.com/dop251/goja/ast"
	"github.com/dop251/goja/token"

	"promethean/lint"
)

// topicLike matches what may be a topic in a file that does not import our
// client: words joined by dots, right or wrong.
var topicLike = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_*-]+)+$`)

// readers are methods of the client that name a topic first and only read.
var readers = []string{
	"replay", "read", "latestByKey", "history", "export", "ack", "nack", "modack", "lag", "topic", "setTopic",
	"groups", "setGroup", "deleteGroup", "cursors", "moveCursor", "deadLetters", "replayDeadLetters",
}

// call looks at one call.
func (s *scan) call(c *ast.CallExpression) {
	name, method := callee(c.Callee)
	if len(c.ArgumentList) == 0 {
		return
	}
	args := c.ArgumentList
	switch {
	case name == "publish":
		if o, ok := s.value(args[0]).(*ast.ObjectLiteral); ok {
			s.event(o)
		} else {
			s.publish(args[0], arg(args, 1), arg(args, 2))
		}
	case name == "publishBatch":
		if list, ok := s.value(args[0]).(*ast.ArrayLiteral); ok {
			for _, e := range list.Value {
				if o, ok := s.value(e).(*ast.ObjectLiteral); ok {
					s.event(o)
				}
			}
		}
	case name == "subscribe" && (s.client || len(args) >= 3):
		if list, ok := s.value(args[0]).(*ast.ArrayLiteral); ok {
			for _, e := range list.Value {
				s.topic(lint.Subscribe, e, nil)
			}
			return
		}
		s.topic(lint.Subscribe, args[0], nil)
	case s.client && method && (name == "pull" || name == "tail"):
		s.topic(lint.Subscribe, args[0], nil)
	case s.client && method && slices.Contains(readers, name):
		// Names such as read are everybody's, so that this is no place to judge.
		if topic, ok := s.text(args[0]); ok && topicLike.MatchString(topic) {
			u := lint.Use{Kind: lint.Mention, Topic: topic, At: s.place(args[0])}
			if len(lint.NewKnown().Judge(u)) == 0 {
				s.out.Uses = append(s.out.Uses, u)
			}
		}
	}
}

func arg(args []ast.Expression, i int) ast.Expression {
	if i < len(args) {
		return args[i]
	}
	return nil
}

// callee gives the name of what is called, and whether it is a method.
func callee(e ast.Expression) (name string, method bool) {
	switch e := e.(type) {
	case *ast.Identifier:
		return e.Name.String(), false
	case *ast.DotExpression:
		return e.Identifier.Name.String(), true
	case *ast.Optional:
		return callee(e.Expression)
	case *ast.OptionalChain:
		return callee(e.Expression)
	}
	return "", false
}

// event looks at {topic, payload, headers}.
func (s *scan) event(o *ast.ObjectLiteral) {
	if topic := member(o, "topic"); topic != nil {
		s.publish(topic, member(o, "payload"), o)
	}
}

// publish looks at the parts of a publish. Headers are judged also where the topic
// is not known.
func (s *scan) publish(topic, payload, options ast.Expression) {
	n := len(s.out.Uses)
	if !s.topic(lint.Publish, topic, payload) {
		return
	}
	version := s.headers(options)
	if len(s.out.Uses) > n {
		s.out.Uses[n].Version = version
	}
}

// topic notes a use if the topic is known, and says whether it is a call of ours.
func (s *scan) topic(kind lint.Kind, e, payload ast.Expression) bool {
	topic, ok := s.text(e)
	if !ok {
		return s.client // only the topic is not known
	}
	if !s.client && !topicLike.MatchString(topic) {
		return false
	}
	u := lint.Use{Kind: kind, Topic: topic, At: s.place(e)}
	if payload != nil {
		u.Payload, u.PayloadAt = s.shape(payload, 0), s.place(payload)
	}
	s.out.Uses = append(s.out.Uses, u)
	return true
}

// headers looks at the names under headers, and gives the version that they stamp
// the event with.
func (s *scan) headers(options ast.Expression) (version int) {
	if options == nil {
		return 0
	}
	o, ok := s.value(options).(*ast.ObjectLiteral)
	if !ok {
		return 0
	}
	h := member(o, "headers")
	if h == nil {
		return 0
	}
	if o, ok = s.value(h).(*ast.ObjectLiteral); !ok {
		return -1 // perhaps those of another event
	}
	if hasSpread(o) {
		version = -1
	}
	for _, p := range o.Value {
		name, at, value := s.property(p)
		if name == "" {
			continue
		}
		s.out.Headers = append(s.out.Headers, lint.Header{Name: name, At: s.place(at)})
		if name == lint.VersionHeader {
			version = lint.ParseVersion(s.text(value))
		}
	}
	return version
}

// member finds a property of an object by name.
func member(o *ast.ObjectLiteral, name string) ast.Expression {
	for _, p := range o.Value {
		switch p := p.(type) {
		case *ast.PropertyShort:
			if p.Name.Name.String() == name {
				return &p.Name
			}
		case *ast.PropertyKeyed:
			if k, ok := key(p); ok && k == name && p.Kind == ast.PropertyKindValue {
				return p.Value
			}
		}
	}
	return nil
}

// key is the name of a property, if it stands there.
func key(p *ast.PropertyKeyed) (string, bool) {
	if k, ok := p.Key.(*ast.StringLiteral); ok {
		return k.Value.String(), true
	}
	if k, ok := p.Key.(*ast.Identifier); ok && !p.Computed {
		return k.Name.String(), true
	}
	return "", false
}

// property gives name, place and value of a property; "" if the name is not
// known.
func (s *scan) property(p ast.Property) (name string, at ast.Node, value ast.Expression) {
	switch p := p.(type) {
	case *ast.PropertyShort:
		return p.Name.Name.String(), &p.Name, &p.Name
	case *ast.PropertyKeyed:
		if k, ok := key(p); ok && p.Kind == ast.PropertyKindValue {
			return k, p.Key, p.Value
		}
		if k, ok := s.text(p.Key); ok && p.Computed && p.Kind == ast.PropertyKindValue {
			return k, p.Key, p.Value
		}
	}
	return "", nil, nil
}

// value follows names of constants.
func (s *scan) value(e ast.Expression) ast.Expression {
	for range 10 {
		switch x := e.(type) {
		case *ast.Identifier:
			v, ok := s.consts[x.Name.String()]
			if !ok {
				return e
			}
			e = v
		case *ast.DotExpression:
			o, ok := s.value(x.Left).(*ast.ObjectLiteral)
			if !ok {
				return e
			}
			v := member(o, x.Identifier.Name.String())
			if v == nil || hasSpread(o) {
				return e
			}
			e = v
		default:
			return e
		}
	}
	return e
}

func hasSpread(o *ast.ObjectLiteral) bool {
	return slices.ContainsFunc(o.Value, func(p ast.Property) bool {
		_, spread := p.(*ast.SpreadElement)
		return spread
	})
}

// text gives the value of an expression that is a text whatever happens.
func (s *scan) text(e ast.Expression) (string, bool) {
	return s.textAt(e, 0)
}

func (s *scan) textAt(e ast.Expression, depth int) (string, bool) {
	if e == nil || depth > 100 {
		return "", false
	}
	switch x := s.value(e).(type) {
	case *ast.StringLiteral:
		return x.Value.String(), true
	case *ast.BinaryExpression:
		if x.Operator != token.PLUS {
			return "", false
		}
		left, ok := s.textAt(x.Left, depth+1)
		right, ok2 := s.textAt(x.Right, depth+1)
		return left + right, ok && ok2
	}
	return "", false
}

// shape says what is known of a value.
func (s *scan) shape(e ast.Expression, depth int) *lint.Shape {
	if e == nil || depth > 20 {
		return nil
	}
	switch x := s.value(e).(type) {
	case *ast.StringLiteral:
		return &lint.Shape{Type: "string"}
	case *ast.NumberLiteral:
		return &lint.Shape{Type: "number"}
	case *ast.BooleanLiteral:
		return &lint.Shape{Type: "boolean"}
	case *ast.NullLiteral:
		return &lint.Shape{Type: "null"}
	case *ast.ArrayLiteral:
		return s.items(x, depth)
	case *ast.ObjectLiteral:
		return s.object(x, depth)
	}
	return nil
}

// items is the shape of a list whose members have one.
func (s *scan) items(x *ast.ArrayLiteral, depth int) *lint.Shape {
	list := &lint.Shape{Type: "array"}
	if len(x.Value) == 1 { // more would have to be compared one by one
		list.Items = s.shape(x.Value[0], depth+1)
	}
	return list
}

func (s *scan) object(x *ast.ObjectLiteral, depth int) *lint.Shape {
	o := &lint.Shape{Type: "object"}
	for _, p := range x.Value {
		name, at, value := s.property(p)
		if name == "" {
			o.Open = true // spread, computed, or a method
			continue
		}
		f := lint.Field{Name: name, At: s.place(at), Shape: s.shape(value, depth+1)}
		if u, ok := value.(*ast.UnaryExpression); ok && u.Operator == token.VOID {
			f.Optional = "undefined"
		} else if id, ok := value.(*ast.Identifier); ok && id.Name.String() == "undefined" {
			f.Optional = "undefined"
		}
		o.Fields = append(o.Fields, f)
	}
	if slices.ContainsFunc(o.Fields, func(f lint.Field) bool { return f.Name == "toJSON" }) {
		return nil
	}
	return o
}
