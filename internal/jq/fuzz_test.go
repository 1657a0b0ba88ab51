package jq

import (
	"testing"
	"time"

	"promethean/event"
)

// Whatever the program and the payload are: it ends in time, does not panic,
// and gives JSON if it gives something.
func FuzzRun(f *testing.F) {
	for _, program := range bombs {
		f.Add(program, `null`)
	}
	for _, program := range []string{
		`.mem_mib = .mem_mb | del(.mem_mb)`, `.list |= map(select(.n > 1) | .k |= ascii_upcase)`, `with_entries(.value |= tostring)`,
		`.text | gsub("(?<w>[a-z]+)"; "<\(.w)>")`, `reduce .list[] as $x (0; . + $x.n)`, `[paths]`, `walk(if type == "number" then . + 1 else . end)`,
		`. as {a: $q, b: {c: [$r, $s]}} | {$q, $r, $s}`, `def f(g): g + g; f(.a)`, `@base64 "x\(.text)y"`, `.b.c[1:3] = ["q"]`, `try error({a: 1}) catch .a`, `[limit(3; repeat(.a))]`,
	} {
		f.Add(program, sample)
	}
	f.Fuzz(func(t *testing.T, program, in string) {
		if len(in) > 1<<16 {
			return
		}
		p, err := CompileWith(program, Options{Timeout: 20 * time.Millisecond, Steps: 200_000, Memory: 16 << 20, Value: 2 << 20})
		if err != nil {
			return
		}
		begin := time.Now()
		out, err := p.Run(t.Context(), []byte(in))
		// That is a hundred times what it may take: the machine may be busy.
		if took := time.Since(begin); took > 2*slow*time.Second {
			t.Fatalf("%s took %v: %v", program, took, err)
		}
		if err != nil {
			return
		}
		if err := event.CheckJSON(out); err != nil {
			t.Fatalf("%s gives %.100s: %v", program, out, err)
		}
		again, err := p.Run(t.Context(), []byte(in))
		if err == nil && string(again) != string(out) {
			t.Fatalf("%s gives %.100s, then %.100s", program, out, again)
		}
	})
}
