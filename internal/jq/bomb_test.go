package jq

import (
	"errors"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"
)

// bombs are programs that would take for ever, or all memory there is.
var bombs = []string{
	// Loops and recursion.
	`def f: f; f`, `def f: 1 + f; f`, `def f: [f]; f`, `def f(x): f(x + 1); f(0)`, `def f: f, f; f`, `def f: . as $x | f | $x; f`, `def f: try f catch f; f`,
	`repeat(1)`, `[repeat(1)]`, `last(repeat(1))`, `until(false; . )`, `[while(true; .)]`, `[recurse(.)]`, `last(recurse(.))`, `reduce range(1e8) as $i (0; . + 1)`, `[range(1e9)]`, `last(range(1e12))`,
	`[limit(1e9; repeat(1))]`, `first(range(1e12) | select(. < 0))`, `[foreach range(1e9) as $i (0; . + $i)]`, `label $f | repeat(1) | select(. == 2) | break $f`, `any(repeat(1); . == 2)`,
	// They cannot be caught.
	`try ("x" * 1e9) catch "caught"`, `def f: try f catch .; f`, `try [range(1e9)] catch "caught"`, `("x" * 1e9)? // 1`, `[.[]?, try repeat(1) catch 2]`, `try (def f: f; f) catch 1`,
	// Strings.
	`"x" * 1e9`, `"x" * 1e7`, `1e9 * "x"`, `[range(1e5) | "x" * 1e5]`, `reduce range(40) as $i ("x"; . + .)`, `reduce range(40) as $i ("x"; "\(.)\(.)")`, `reduce range(40) as $i ("x"; . * 2)`, `"x" as $s | {$s} | .s *= 1e9`, `.s = "x" | .s += .s * 1e9`,
	`"a" * 100000 | [., ., ., ., ., ., ., .] | [., ., ., ., ., ., ., .] | [., ., ., .] | add`, `"a" * 100000 | [range(1000) as $i | .] | join("")`, `[range(10000)] | join("x" * 10000)`, `"a" * 1e6 | [.[range(1e6)]]`, `[range(1e7) | 97] | implode`, `"a" * 4e6 | explode`, `"a" * 4e6 | split("")`, `"a" * 4e6 / ""`,
	`"<" * 4e6 | @html`, `" " * 4e6 | @uri | @uri | @uri`, `reduce range(100) as $i ("a" * 1000; @base64)`, `reduce range(100) as $i ("\""; tojson)`, `reduce range(100) as $i ("\""; @json)`, `reduce range(60) as $i ("'"; @sh)`, `"\u0001" * 2e6 | tojson | tojson`, `reduce range(60) as $i (["\""]; [@csv])`,
	`"a" * 1e6 | [match("a"; "g")]`, `"a" * 1e6 | gsub("a"; "bb")`, `"a" * 1e6 | gsub(""; "b")`, `"a" * 1e6 | test("(a*)*(a*)*b")`, `"a" * 1e6 | test("(a{100}){100}")`, `"a" * 1e5 | test("((a{10}){10}){9}b")`, `"a" | test("a" * 10000)`, `"a" * 1e6 | [scan(".")]`, `"a" * 1e6 | split("a"; null)`, `[range(1e6) | . as $i | "a" | test("\($i)")]`, `"a" * 1e5 | ascii_downcase | indices("a" * 5e4)`, `"a" * 1e6 | index("a" * 5e5 + "b")`,
	`"a" * 7e6 | [range(1e6) as $i | length]`, `"a" * 7e6 | [range(1e6) as $i | ltrimstr("b")] | map(ascii_upcase)`, `"ä" * 3e6 | [range(1e6) as $i | .[$i:]] | map(length)`,
	// Values that hold the same over and over.
	`reduce range(60) as $i (1; [., .])`, `reduce range(60) as $i (1; {a: ., b: .})`, `reduce range(60) as $i ([1]; . + .)`, `reduce range(60) as $i ([1]; [map(.), map(.)])`, `reduce range(60) as $i ([1]; map(., .) | group_by(.))`, `reduce range(60) as $i ({a: 1}; {a: ., b: .} * {b: .})`, `reduce range(60) as $i (null; .a = $i | .b = . | .c = .b)`, `reduce range(60) as $i ([0]; .[0] = . | .[1] = .)`,
	`reduce range(60) as $i ([1, 1]; .[] |= [., .])`, `[range(100000)] | .[] |= [range(1000)]`, `[range(100000)] | . as $x | .[] = $x`, `[range(1000)] | . as $x | .[] += $x`, `[range(1000) | null] | . as $x | .[] //= $x`, `reduce range(1e7) as $i (null; [.])`, `reduce range(1e7) as $i (null; {a: .})`, `reduce range(1e6) as $i ([]; [[], .])`, `[range(2000)] as $p | setpath($p | map("a"); 1)`, `reduce range(60) as $i ([1]; to_entries + to_entries)`, `reduce range(60) as $i (1; [., .]) | tojson`, `reduce range(16) as $i (1; [., .]) | [range(1e6) as $i | . == .]`, `reduce range(16) as $i (1; [., .]) | [range(1e6) as $i | del(.[0])]`, `[range(300) | [range(300)]] | combinations`, `[range(300) | [range(300)]] | [combinations]`, `[range(8)] | [combinations(8)]`,
	// Indices and paths.
	`.[1e9] = 1`, `.[536870911] = 1`, `.[5e8] |= 1`, `[range(100)] | .[5e8] += 1`, `[][1e8] = 1`, `setpath([1e8]; 1)`, `null | .a[1e8] = 1`, `getpath([1e8]) = 1`, `[range(1e6) | null | .[1e6] = 1]`, `[range(1e6) | null | .[1000] = 1]`, `null | nth(1e8) = 1`, `1e8 as $i | null | .[$i] = 1`, `[[range(1e5)], [], []] + [range(1e4) | []] | transpose`, `pick(.[1e8])`, `[paths, range(1e9)]`, `path(repeat(.))`, `[path(range(1e9) as $i | .)]`, `reduce path(recurse(.)) as $p (0; .)`, `del(repeat(.a))`, `[range(1e5)] | [.[] as $x | .[] as $y | 1]`, `[range(1e5)] | .[] as $a | .[] as $b | .[] as $c | select(false)`, `[range(1e5)] | [range(1e6) as $i | first(.[])]`, `to_entries = repeat(1)`, `[range(200000) | 0] | .[[range(100000) | 0]]`, `. as [$a] ?// $a | repeat($a)`,
	// Sorting and comparing.
	`[range(3e5)] | [range(1e6) as $i | sort]`, `[range(1e5)] | map([., .]) | sort_by(.[0])  | [range(1e6) as $i | unique_by(.[1])]`, `[range(1e5) | 0] - [range(1e5) | 1]`, `[range(1e5) | 0] | contains([range(1e5) | 1])`, `[range(1e4) | [range(10)]] | [range(1e6) as $i | flatten]`, `[range(2e5)] | [range(1e6) as $i | add, min, max, reverse]`,
	// Numbers.
	`reduce range(100) as $i (9223372036854775807; . * .)`, `reduce range(1e6) as $i (9223372036854775807; . + .)`, `"9" * 1e6 | tonumber`, `"9" * 1e6 | fromjson + 1`, `[range(1e6) as $i | "9" * 4000 | tonumber]`, `reduce range(1e6) as $i ("9" * 4000 | tonumber; . + . * .)`,
	// Text that grows when it is read.
	`"[" * 4e6 | fromjson`, `"[" + "1," * 2e6 + "1]" | fromjson`, `"[" + ("{}," * 1e6) + "1]" | fromjson`, `0 | strftime("%1024d" * 1e4)`, `"1" * 1e5 | strptime("%d" * 1e4)`, `error("x" * 7e6)`, `error("x" * 1e9)`, `[range(1e9)] | error`,
}

// Each bomb ends with an error, soon, and with the memory that it may have.
func TestBombs(t *testing.T) {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}}
	read := func() uint64 {
		metrics.Read(heap)
		return heap[0].Value.Uint64() + heap[1].Value.Uint64()
	}
	var worstHeap uint64
	var worstTime time.Duration
	for _, program := range bombs {
		p, err := Compile(program)
		if err != nil {
			t.Errorf("%s: %v", program, err)
			continue
		}
		runtime.GC()
		before := read()
		stop, done := make(chan struct{}), make(chan uint64)
		go func() {
			var peak uint64
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				peak = max(peak, read())
				select {
				case <-stop:
					done <- peak
					return
				case <-tick.C:
				}
			}
		}()
		begin := time.Now()
		out, err := p.Run(t.Context(), []byte(`null`))
		took := time.Since(begin)
		close(stop)
		peak := <-done
		peak -= min(peak, before)
		if testing.Verbose() {
			t.Logf("%6.1f ms %5d MiB  %.60s  %v", float64(took)/1e6, peak>>20, program, err)
		}
		worstHeap, worstTime = max(worstHeap, peak), max(worstTime, took)
		switch {
		case err == nil:
			t.Errorf("%s gives %.40s", program, out)
		case !errors.Is(err, ErrLimit) && !strings.HasPrefix(err.Error(), "jq: ") && !strings.HasPrefix(err.Error(), "the program gives"):
			t.Errorf("%s: %v", program, err)
		case len(err.Error()) > 2000:
			t.Errorf("%s: an error of %d bytes", program, len(err.Error()))
		}
		// On a quiet machine it is a tenth of that.
		if limit := 3 * slow * time.Second; took > limit {
			t.Errorf("%s took %v", program, took)
		}
		if peak > 256<<20 {
			t.Errorf("%s used %d MiB", program, peak>>20)
		}
	}
	t.Logf("%d bombs, at worst %v and %d MiB", len(bombs), worstTime, worstHeap>>20)
}
