package jsscan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"promethean/lint"
)

// said writes down what a scan has found, one line each.
func said(r Result) []string {
	var list []string
	for _, u := range r.Uses {
		line := fmt.Sprintf("%s %s %d:%d", u.Kind, u.Topic, u.At.Line, u.At.Column)
		if u.Version != 0 {
			line += fmt.Sprintf(" v%d", u.Version)
		}
		if u.Payload != nil {
			line += " " + shown(u.Payload)
		}
		list = append(list, line)
	}
	for _, h := range r.Headers {
		list = append(list, fmt.Sprintf("header %s %d:%d", h.Name, h.At.Line, h.At.Column))
	}
	for _, f := range r.Findings {
		list = append(list, fmt.Sprintf("%s %d:%d %s", f.Rule, f.Line, f.Column, f.Message))
	}
	return list
}

func shown(s *lint.Shape) string {
	if s == nil {
		return "?"
	}
	if s.Type != "object" {
		return s.Type
	}
	var b strings.Builder
	for i, f := range s.Fields {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s:%s@%d:%d", f.Name, shown(f.Shape), f.At.Line, f.At.Column)
		if f.Optional != "" {
			b.WriteByte('?')
		}
	}
	if s.Open {
		b.WriteString("…")
	}
	return "{" + b.String() + "}"
}

const imported = "import { Client } from 'promethean-client';\n"

func TestScan(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		want             []string
	}{
		{"a string", "a.js", imported + "hub.publish('a.b', 1);", []string{"publish a.b 2:13 number"}},
		{"any string where the client is imported", "a.js", imported + "hub.publish('Nö/x', 1);", []string{"publish Nö/x 2:13 number"}},
		{"a type import is an import", "a.ts", "import type { Client } from \"promethean-client\";\nexport const f = (c: Client) => c.publish('x', null);", []string{"publish x 2:43 null"}},
		{"require is an import", "a.cjs", "const { Client } = require('promethean-client');\nnew Client('u').tail('x');", []string{"subscribe x 2:22"}},
		{"a template without holes", "a.ts", imported + "  await hub.publish(`a.b`, {});", []string{"publish a.b 2:21 {}"}},
		{"a template with a hole is not known", "a.ts", imported + "hub.publish(`a.${b}`, {});", nil},
		{"a sum", "a.ts", imported + "const base = 'a.'; hub.publish(base + 'b', {});", []string{"publish a.b 2:32 {}"}},
		{"a const", "a.ts", "const T = 'a.b' as const;\nfunction f(bus: Bus) {\n\tbus.publish(T, x);\n}", []string{"publish a.b 3:14"}},
		{"a const that is shadowed is not known", "a.ts", "const T = 'a.b';\nfunction f(T) { bus.publish(T, x); }", nil},
		{"a let is not known", "a.ts", "let T = 'a.b'; bus.publish(T, x);", nil},
		{"a const of an object", "a.ts", "const T = { placed: 'a.b', ...more };\nconst U = { placed: 'c.d' } as const;\nbus.publish(T.placed, x); bus.publish(U.placed, x);", []string{"publish c.d 3:39"}},
		{"an enum", "a.ts", "enum T { A = 'a.b' }\nbus.publish(T.A, x);", []string{"publish a.b 2:13"}},
		{"top-level await and loops", "a.mjs", imported + "for await (const e of hub.tail('a.b', { from: 'earliest' })) show(e);", []string{"subscribe a.b 2:32"}},
		{"optional calls", "a.ts", imported + "hub?.publish?.('a.b', 1);", []string{"publish a.b 2:16 number"}},
		{"functions without receiver", "a.ts", "publish('a.b', 1); tail('a.b')", []string{"publish a.b 1:9 number"}},
		{"JSX", "a.tsx", imported + "const é = () => <b title=\"é\" onClick={() => hub.publish('a.b', 1)}>\n  {/* x */}<i/></b>;", []string{"publish a.b 2:57 number"}},
		{"characters, not bytes or units", "a.ts", imported + "/* é😀 */ hub.publish('a.b', 1);", []string{"publish a.b 2:22 number"}},
		{"classes, decorators and generators", "a.ts", imported + "class A { #hub = 1; static x = 2;\n  @dec() async *go() { yield await this.#hub.publish('a.b', 1); } }", []string{"publish a.b 3:54 number"}},
		{"modules", "a.ts", imported + "import {\n  a,\n  b,\n} from './c';\nexport * from './d';\nexport default class { f() { a.publish('a.b', b) } }\nexport { a };\nconst x = await import('./e');\n", []string{"publish a.b 7:40"}},
		{"payload and headers", "a.ts", imported + "hub.publish('a.b', { n: 1, 's-t': `x`, list: [{ q: true }], u: undefined, v, ...w }, { key: 'k', headers: { 'X-Bad': '1', 'x-good': y } });", []string{
			"publish a.b 2:13 {n:number@2:22,s-t:string@2:28,list:array@2:40,u:?@2:61?,v:?@2:75…}", "header X-Bad 2:109", "header x-good 2:123",
		}},
		{"a stamp", "a.ts", "bus.publish('a.b', 1, { headers: { 'x-schema-version': '3' } }); bus.publish('c.d', 1, { headers: { ...h } }); bus.publish('e.f', 1, o);", []string{
			"publish a.b 1:13 v3 number", "publish c.d 1:78 v-1 number", "publish e.f 1:124 number", "header x-schema-version 1:36",
		}},
		{"a header of an unknown topic", "a.ts", imported + "hub.publish('a.b', 1); hub.publish(t, 1, { headers: { 'x-schema-version': '3' } });", []string{"publish a.b 2:13 number", "header x-schema-version 2:55"}},
		{"an event", "a.ts", "bus.publish({ topic: 'a.b', payload: { n: 1 }, headers: { Bad: 1 } });", []string{"publish a.b 1:22 {n:number@1:40}", "header Bad 1:59"}},
		{"a batch", "a.ts", "const e = { topic: 'c.d', payload: 1 };\nbus.publishBatch([{ topic: 'a.b', payload: 's' }, e]);", []string{"publish a.b 2:28 string", "publish c.d 1:20 number"}},
		{"subscriptions", "a.ts", imported + "hub.subscribe('a.b', 'g', f); hub.subscribe(['c.d', 'e.*'], 'g', f); hub.pull('f.g', 'h');", []string{"subscribe a.b 2:15", "subscribe c.d 2:46", "subscribe e.* 2:53", "subscribe f.g 2:79"}},
		{"readers", "a.ts", imported + "hub.lag('a.b', 'g'); fs.read('File_x.txt'); hub.history('c.d', 'k');", []string{"mention a.b 2:9", "mention c.d 2:57"}},
		{"other buses", "a.ts", "redis.publish('channel', 'x'); mqtt.publish('home/light', 'on'); rx.subscribe(f); emitter.subscribe('a.b', f); bus.subscribe('a.b', 'g', f); x.tail('a.b');", []string{"subscribe a.b 1:126"}},
		{"dotted names of others are taken", "a.ts", "nats.publish('Orders.Placed-Now', x);", []string{"publish Orders.Placed-Now 1:14"}},
		{"no calls, no parsing", "a.ts", "const = ;", nil},
		{"a syntax error", "a.ts", "publish('a.b')\n  const = 3;", []string{`source-invalid 2:9 cannot be parsed: Expected identifier but found "="`}},
		{"too deep", "a.js", "publish(" + strings.Repeat("[", 600), []string{"source-invalid 1:1 brackets are nested more than 500 deep, which is not looked at"}},
		{"too many operators", "a.js", "publish(" + strings.Repeat("! ", 600), []string{"source-invalid 1:1 more than 500 operators follow each other, which is not looked at"}},
		{"too long a statement", "a.js", "publish();" + strings.Repeat("if (a)\n", 10_000), []string{"source-invalid 1:1 more than 65536 bytes come without any of ; , }, which is not looked at"}},
		{"too large", "a.js", "publish('a.b')\n" + strings.Repeat("// padding padding\n", MaxSize/19), []string{fmt.Sprintf("source-invalid 1:1 the file has %d bytes, of which at most %d are looked at", 15+MaxSize/19*19, MaxSize)}},
		{"minified", "a.js", "publish('a.b');" + strings.Repeat("f();", 5000), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := said(Scan(c.file, []byte(c.text))); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestTakes(t *testing.T) {
	for name, want := range map[string]bool{
		"a.ts": true, "a.tsx": true, "a.js": true, "a.jsx": true, "a.mjs": true, "a.cts": true,
		"a.d.ts": false, "a.min.js": false, "a.test.ts": false, "a.spec.js": false, "a.go": false, "a": false,
	} {
		if Takes(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// Whatever stands in a file: no panic, and places are inside of it.
func FuzzScan(f *testing.F) {
	f.Add("a.ts", imported+"hub.publish('a.b', { n: 1, ...x }, { headers: { 'x-a': `b` } });")
	f.Add("a.tsx", "const a = <b c={() => publish('a.b', [1])}/>;")
	f.Add("a.js", "for await (const e of hub.tail('a.b')) publish({ topic: `a.b` });\nexport default async function* () {}")
	f.Add("a.ts", "enum publish { A = 'é😀' }; bus.subscribe([publish.A], 'g', f)")
	f.Fuzz(func(t *testing.T, name, text string) {
		r := Scan(name, []byte(text))
		lines := strings.Split(text, "\n")
		check := func(at lint.Position) {
			if at.Line < 1 || at.Line > len(lines) || at.Column < 1 || at.Column > len([]rune(lines[at.Line-1]))+1 {
				t.Errorf("%v is outside of %q", at, text)
			}
		}
		for _, u := range r.Uses {
			check(u.At)
		}
		for _, h := range r.Headers {
			check(h.At)
		}
		for _, x := range r.Findings {
			check(x.Position)
		}
	})
}
