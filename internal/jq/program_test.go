package jq

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/itchyny/gojq"

	"promethean/internal/jq/value"
)

func run1(t testing.TB, program, in string) (string, error) {
	t.Helper()
	p, err := Compile(program)
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	out, err := p.Run(t.Context(), []byte(in))
	return string(out), err
}

// plainly runs a program by gojq without any guard.
func plainly(t testing.TB, program, in string) (string, error) {
	t.Helper()
	q, err := gojq.Parse(program)
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	v, err := value.Decode([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	it := q.RunWithContext(ctx, v)
	var list [][]byte
	for {
		v, ok := it.Next()
		if !ok {
			break
		}
		if err, failed := v.(error); failed {
			return "", err
		}
		text, err := gojq.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, text)
	}
	if len(list) != 1 {
		return "", errors.New("not one value")
	}
	return string(list[0]), nil
}

const sample = `{"a":1,"b":{"c":[1,2.50,"x","äb",null,true],"d":"2026-11-15T18:00:00Z"},"list":[{"k":"x","n":3},{"k":"y","n":1},{"k":"x","n":2}],` +
	`"big":12345678901234567890,"dec":1.0,"text":"one two  three","neg":-7,"s":"a,b;c","m":{"x":1,"y":{"z":2}},"nested":"{\"q\":[1,1e2]}"}`

// What a program gives is what jq gives. Programs that fail fail in both.
func TestSameAsPlain(t *testing.T) {
	for _, program := range []string{
		`.`, `.a`, `.b.c[1]`, `.b.c[-1]`, `.b.c[1:3]`, `.b["c"][2]`, `."a"`, `."\("a")"`, `.missing.deep`, `.a.b`, `.[0]`, `.b.c[]`, `[.b.c[]]`, `[.b.c[]?]`, `[.a[]?]`, `.a[]`,
		`.x = 1`, `.x = .a`, `.b.x.y = [.a, .a]`, `.b.c[7] = 1`, `.b.c[-1] = 1`, `.b.c[1:3] = ["q"]`, `.list[].n = 0`, `.list[0].n |= . + 1`, `.list[].n += 10`, `.list[].n -= 1`, `.list[].n *= 3`, `.list[].n /= 2`, `.list[].n %= 2`,
		`.zz //= 5`, `.a //= 5`, `(.a, .neg) = 9`, `.list |= map(.k)`, `.b.c |= map(select(. != null))`, `.list[] |= (if .n > 1 then . else empty end)`, `.m |= with_entries(.value |= tostring)`,
		`del(.a)`, `del(.a, .b.c[0])`, `del(.list[] | select(.n > 1))`, `delpaths([["a"],["b","c"]])`, `delpaths([["b","c",0],["b","c",1]])`, `to_entries`, `with_entries(select(.key != "a"))`, `[.list[] | {(.k): .n}] | add`,
		`{a, b: .b.d, "c": 1, (.text): 2, "x\(.a)y": 3}`, `{"x\(.a)"}`, `. as {a: $q, b: {c: [$r, $s]}} | [$q, $r, $s]`, `. as {"a": $q} | $q`, `. as {("a","neg"): $q} | $q`, `[. as {("a","neg"): $q} | $q]`, `.list as [{n: $f}] | $f`,
		`. as [$a] ?// {a: $a} | $a`, `.a as $x | .list | map(.n + $x)`, `def f: .a + 1; f`, `def f(g): g + g; f(.a)`, `def f($x): $x + x; f(.a)`, `def map(f): 7; map(.)`, `def fac: if . <= 1 then 1 else . * (. - 1 | fac) end; 25 | fac`,
		`def add: 5; [1] | add`, `def f: def g: 3; g; f`, `if .a == 1 then "one" elif .a == 2 then "two" else "many" end`, `if .a then 1 end`, `.a and .b`, `.a or error`, `.a | not`, `try error("x") catch .`, `try error({a: 1}) catch .a`, `error("boom")`, `error`, `error(null)`, `.a.b?`, `[.a.b?]`, `[.[] | tostring?]`,
		`reduce .list[] as $x (0; . + $x.n)`, `[foreach .list[] as $x (0; . + $x.n; [., $x.k])]`, `[foreach .list[] as {n: $n} (0; . + $n)]`, `[label $out | .list[] | if .n == 1 then ., break $out else . end]`, `first(.list[])`, `[limit(2; .list[])]`, `nth(1; .list[])`, `.list | nth(1)`, `[range(5)]`, `[range(2; 9; 3)]`, `last(.list[])`, `isempty(.list[])`, `[.list[] | select(.k == "x")] | length`, `.list | any(.n > 2)`, `.list | all(.n > 0)`, `[.a, 2] | IN(1)`, `"x" | IN("x", "y")`,
		`.list | sort_by(.n)`, `.list | group_by(.k)`, `.list | unique_by(.k)`, `.list | min_by(.n)`, `.list | max_by(.n)`, `[3,1,2] | sort`, `[3,1,3] | unique`, `[3,1] | min, max`, `[[3,1] | min, max]`, `.list | map(.n) | add`, `add(.list[].n)`, `[[1,[2]],3] | flatten`, `[[1,[2]],3] | flatten(1)`, `[[1,2],[3]] | transpose`, `[1,2] | reverse`, `.list | INDEX(.k)`, `[1,[2]] | tojson`, `[[1,2],[3,4]] | [combinations]`, `[[0,1] | combinations(2)]`,
		`keys`, `has("a")`, `.list | has(5)`, `.text | length`, `.text | split(" ")`, `.text / " "`, `.text | split(" +"; null)`, `[.text | splits(" +")]`, `.text | ascii_upcase`, `.text | explode | implode`, `.b.c[3] | explode`, `.text | ltrimstr("one")`, `.text | rtrimstr("three")`, `"  x " | trim`, `.text | test("two")`, `.text | test("TWO"; "i")`, `.text | [match("o"; "g")]`, `"äöa" | [match("(?<x>a)|(ö)"; "g")]`, `.d`, `.text | capture("(?<f>\\w+) (?<s>\\w+)")`, `.text | [scan("\\w+")]`, `.text | [scan("(o)(.)")]`, `.text | sub("one"; "1")`, `.text | gsub(" +"; "-")`, `.text | gsub("(?<w>[a-z]+)"; "<\(.w)>")`, `"" | gsub("x"; "y")`, `"abc" | gsub(""; "-")`, `"ab" | gsub("$"; "!")`,
		`.text | index("t")`, `.text | rindex("e")`, `.text | indices("e")`, `[1,2,1] | indices(1)`, `[1,2,1,2] | .[[1,2]]`, `.text | contains("two")`, `{a:[1,2]} | contains({a:[1]})`, `"a" | inside("abc")`, `[1] | inside([1,2])`, `.list | map(.k) | join(",")`, `[1,null,"a",true] | join("-")`, `{a:"x",b:"y"} | join("+")`, `.text | startswith("one")`, `"x" * 3`, `3 * "x"`, `"x" * 0`, `"x" * -1`, `{a:{b:1}} * {a:{c:2}}`, `[1,2,3,1] - [1]`, `.m * .m`,
		`.a + 1`, `.dec`, `.dec + 1`, `.big`, `.big + 1`, `.big - 1`, `.big * 2`, `.big / 2`, `.big / 7`, `.big % 7`, `-.big`, `.neg * 0.5`, `.neg / 2`, `.neg % 4`, `1 / 3`, `6 / 3`, `1 / 0`, `1 % 0`, `9223372036854775807 + 1`, `-9223372036854775808 - 1`, `-9223372036854775808 * -1`, `-9223372036854775808 / -1`, `4611686018427387904 * 4`, `1e400 * 2`, `nan < 1`, `[nan] | tojson`, `infinite | tojson`, `1.5 - 1`, `3 - 1.0`, `null - 1`, `"a" - 1`, `"a" * {}`, `[] / 1`, `null + 1`, `1 + null`, `"a" + "b"`, `"a" + 1`, `[1] + [2]`, `{a:1} + {b:2}`, `-(.a)`, `-.text`, `+.a`,
		`@text`, `@json`, `.b | @json "v: \(.)"`, `[1,"a\"b",null] | @csv`, `[1,"a\tb"] | @tsv`, `"<&'\">" | @html`, `"ä b" | @uri`, `"%C3%A4" | @urid`, `"it's" | @sh`, `"hello" | @base64`, `"aGVsbG8=" | @base64d`, `@base64 "x\(.text)y"`, `"\(.a) and \(.b.c[1]) and \(.list[0])"`, `"a\("b" + "\("c")")"`,
		`.nested | fromjson`, `"[1" | fromjson`, `"12" | tonumber`, `"x" | tonumber`, `"12345678901234567890" | tonumber`, `1 | tostring`, `.b | tostring`, `.b.d | fromdate`, `1447200000 | todate`, `1447200000 | gmtime`, `1447200000 | strftime("%A, %B %d, %Y")`, `"2015-03-05" | strptime("%Y-%m-%d") | mktime`,
		`[paths] | length`, `[paths(type == "number")]`, `path(.b.c[0])`, `[path(..)] | length`, `getpath(["b","c",1])`, `getpath(["zz","y"])`, `getpath(["a","b"])`, `setpath(["q","r"]; 5)`, `setpath(["list",0,"n"]; 5)`, `pick(.b.d)`, `pick(.list[1].n)`, `walk(if type == "number" then 0 else . end)`, `[..] | length`, `[recurse(.b? // empty)] | length`, `[.. | numbers]`, `[.b.c[] | strings]`, `[.b.c[] | scalars]`, `map_values(type)`, `[.[] | type]`, `.m | to_entries | from_entries`, `[{name:"a",Value:1},{Key:"b"}] | from_entries`, `.list | map(select(.n >= 2) | .k |= ascii_upcase)`, `path(getpath(["b","c"]) | .[0])`, `[.b.c | .[1:] | .[0]]`, `path(.list[] | select(.n == 1))`, `path(first(.list[] | select(.k == "x")))`, `(.list[] | select(.k == "y") | .n) = 9`, `.b.c[(0,1)] = 7`, `.["a","neg"] |= . + 1`, `to_entries[0]`, `[.list[].n] | @json`, `{} | .a.b.c |= 3`, `[.[]?.k?]`, `.list[1:] | length`, `.text[4:7]`, `.text[0]`, `.a as $x | [$x, $x + 1] | {($x | tostring): .}`, `[until(. > 100; 200)]`, `[1 | while(. < 50; . * 3)]`, `[limit(4; repeat(1))]`,
	} {
		q, err := gojq.Parse(program)
		if err != nil {
			t.Errorf("%s: %v", program, err)
			continue
		}
		if _, err := gojq.Compile(q); err != nil {
			if _, err := Compile(program); err == nil {
				t.Errorf("%s: compiles here only", program)
			}
			continue
		}
		want, wantErr := plainly(t, program, sample)
		got, err := run1(t, program, sample)
		if (err == nil) != (wantErr == nil) || got != want {
			t.Errorf("%s:\n got %s, %v\nwant %s, %v", program, got, err, want, wantErr)
		}
	}
}

// Steps give what the machine gives, also where they find something else than an
// object, or one object in two places.
func TestStepsSameAsPlain(t *testing.T) {
	inputs := []string{sample, `null`, `1`, `[]`, `"x"`, `{}`, `{"a":null,"b":null}`, `{"a":false,"b":{"a":{"b":1}}}`, `{"a":{"b":{"c":1}},"b":[1]}`, `{"b":"s","a":{"b":"s"}}`}
	for _, program := range []string{
		`.x = .a`, `.a = .b`, `.a.b = .b`, `.b = .b.a`, `.b.c = .b`, `.b.c.d = .b | .b.c.e = .b.c`, `.x = .b | .x.q = 1`, `.x = .b | .y = .x | .x.q = 1 | del(.y.c) | .y.z = .x`, `.a.b.c = 1`, `."a"."b" = "x"`,
		`del(.a)`, `del(.a.b)`, `del(.a, .b)`, `del(.a, .a.b)`, `del(.b.a.b, .b.a)`, `del(.a.b.c, .x.y)`, `del(.missing)`, `del(.a) | del(.a)`, `.x = 1 | del(.x)`,
		`.a //= 5`, `.a.b //= {}`, `.z = (.z // [])`, `.z = (.a.b.c.d // "d")`, `.a = (.a // false)`, `.b = (.b // null) | .b //= 1.50`, `.x = {} | .y = .x | .x.a = 1`, `.x = [] | .y = .x`, `.x //= {} | .x.a = 1 | .y = .x | .y.b = 2`,
		`(.x = .a | del(.a)) | .y = 1`, `.x = .a | del(.a) | .list | length`, `.x = .a | (.y = .b | .z = 2)`, `.x = ((.a))`, `.x = .5`, `.x = 1e3`, `.x = 12345678901234567890`, `.x = true | .y = null`, `.x = .a | if .x then .y = 1 else . end`, `.x = .b | [.x, .b] | length`,
		`.a = 1 | .b`, `.a = .b | .a == .b`, `.x = .b | .x.c |= 1`, `.a |= 3`, `.x = .[0]`, `.[0] = .x`, `.a[0] = 1`, `.x = .a?`, `.a = .b // 1`,
	} {
		for _, in := range inputs {
			want, wantErr := plainly(t, program, in)
			got, err := run1(t, program, in)
			if (err == nil) != (wantErr == nil) || got != want {
				t.Errorf("%s of %.30s:\n got %s, %v\nwant %s, %v", program, in, got, err, want, wantErr)
			}
		}
	}
}

// Numbers that a program does not compute with stay as they are written.
func TestNumbersStay(t *testing.T) {
	in := `{"a":12345678901234567890,"b":1.0,"c":1e2,"d":-0,"e":0.1000,"f":[1.10,{"g":100000000000000000000000001}],"h":3}`
	for program, want := range map[string]string{
		`.`:                          in,
		`.z = .a | del(.h)`:          `{"a":12345678901234567890,"b":1.0,"c":1e2,"d":-0,"e":0.1000,"f":[1.10,{"g":100000000000000000000000001}],"z":12345678901234567890}`,
		`.f |= map(.)`:               in,
		`walk(.)`:                    in,
		`with_entries(.)`:            in,
		`tojson | fromjson`:          in,
		`{x: .b, y: [.c]}`:           `{"x":1.0,"y":[1e2]}`,
		`.a + 1`:                     `12345678901234567891`,
		`.b + 0`:                     `1`,
		`.f[1].g * 2`:                `200000000000000000000000002`,
		`[.f[0], .b] | sort`:         `[1.0,1.10]`,
		`"\(.b) \(.a)"`:              `"1.0 12345678901234567890"`,
		`[.a, .a - 1] | max`:         `12345678901234567890`,
		`.a == 12345678901234567891`: `false`,
		`.h | [., 1.0, 1e3, 0.10]`:   `[3,1,1000,0.1]`, // of the program, not of the payload
		`.f | .[0] as $x | {$x}`:     `{"x":1.10}`,
		`[.b, .h] | min`:             `1.0`,
		`-.b`:                        `-1.0`,
		`.a |= .`:                    in,
	} {
		got, err := run1(t, program, in)
		if err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", program, got, err, want)
		}
	}
}

func TestRefused(t *testing.T) {
	for program, why := range map[string]string{
		`$ENV`: "$ENV is not available", `env`: "sees the payload", `env.HOME`: "sees the payload", `$ENV.HOME`: "$ENV", `{$ENV}`: "$ENV",
		`input`: "sees the payload", `[inputs]`: "sees the payload", `input_filename`: "sees the payload", `input_line_number`: "sees the payload",
		`now`: "the same for ever", `.t = (now | todate)`: "the same for ever", `0 | localtime`: "for ever", `0 | strflocaltime("%H")`: "for ever",
		`debug`: "prints nothing", `debug("x")`: "prints nothing", `stderr`: "prints nothing", `halt`: "error(", `halt_error`: "error(", `halt_error(1)`: "error(",
		`import "a" as a; .`: "stands for itself", `include "a"; .`: "stands for itself", `import "a" as $a; $a`: "stands for itself", `module {}; .`: "stands for itself",
		`builtins`: "sees the payload", `"a" | modulemeta`: "sees the payload", `$__loc__`: "reserved", `_match("a"; "g"; false)`: "reserved", `_p_made`: "reserved",
		`def _f: 1; _f`: "reserved", `. as $__x | 1`: "reserved", `. as [$__x] | 1`: "reserved", `. as {$__x} | 1`: "reserved", `{$__x}`: "reserved", `reduce . as $__x (0; 1)`: "reserved",
		`def f($__x): 1; f(1)`: "reserved", `foo`: "foo/0 is not available", `map`: "map/0 is not available", `a::b`: "modules", `@base32`: "@base32", `@foo "x"`: "@foo", `format("json")`: "@json",
		`def f: now; f`: "for ever", `[.[] | if . then now else 1 end]`: "for ever", `"\(now)"`: "for ever", `.[now]`: "for ever", `{(env): 1}`: "payload", `{a: input}`: "payload", `try now`: "for ever", `. as {(now): $x} | 1`: "for ever",
		`label $f | input`: "payload", `-now`: "for ever", `.a = now`: "for ever", `reduce now as $x (0; .)`: "for ever", `foreach 1 as $x (0; .; now)`: "for ever", `@json "\(now)"`: "for ever", `.a."\(now)"`: "for ever", `.[1:now]`: "for ever", `. as {"\(now)": $x} | 1`: "for ever", `{"\(now)": 1}`: "for ever", `1 as $x | now`: "for ever", `def now: 1; (def g: env; g)`: "payload",
		``: "empty", `# nothing`: "empty", `.a |`: "no jq", `.a | )`: "no jq", `"`: "no jq", `break $x`: "compiled", `$x`: "compiled",
		strings.Repeat("(", 3000) + "." + strings.Repeat(")", 3000): "nested too deeply",
		"." + strings.Repeat("|.", 3000):                            "nested too deeply",
		strings.Repeat(" ", MaxProgram) + ".":                       "the limit is 65536",
		strings.Repeat("9", 5000):                                   "digits",
		`"` + strings.Repeat(`\(1)`, 300) + `"`:                     "256 parts",
	} {
		if len(program) > 100 {
			if _, err := Compile(program); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%.40s…: %v, want %q", program, err, why)
			}
			continue
		}
		if _, err := Compile(program); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", program, err, why)
		}
	}
	// A name of one's own is one's own.
	if got, err := run1(t, `def now: 1; def input: 2; [now, input]`, `null`); err != nil || got != `[1,2]` {
		t.Error(got, err)
	}
	if _, err := Compile(`(def now: 1; now) | now`); err == nil {
		t.Error("a definition reaches out of its brackets")
	}
}

func TestOneValue(t *testing.T) {
	for program, why := range map[string]string{
		`empty`: "gives no value", `1, 2`: "more than one value", `.[]`: "more than one value", `error("boom")`: "jq: error: boom",
		`1, error("late")`: "jq: error: late", `.[0].a`: "jq: expected an object", `error(null)`: "null", `error({a: 1})`: `{"a":1}`,
	} {
		if _, err := run1(t, program, `[1,2]`); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", program, err, why)
		}
	}
	if _, err := run1(t, `.`, `{"a":}`); err == nil {
		t.Error("bad JSON")
	}
	if got, err := run1(t, `null`, `1`); err != nil || got != `null` {
		t.Error(got, err)
	}
}

func TestContext(t *testing.T) {
	p, err := Compile(`.`)
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("the hub closes")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := p.Run(ctx, []byte(`1`)); !errors.Is(err, why) {
		t.Fatal(err)
	}
	loop, err := CompileWith(`def f: f; f`, Options{Timeout: time.Hour, Steps: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if _, err := loop.Run(ctx, []byte(`1`)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	// The account of one run is not that of the next.
	if out, err := p.Run(t.Context(), []byte(`1`)); err != nil || string(out) != `1` {
		t.Fatal(string(out), err)
	}
}

func TestConcurrently(t *testing.T) {
	p, err := Compile(`.list |= (map(select(.n > 1)) | sort_by(.n)) | .k = (.text | gsub("o"; "0")) | .id = .id`)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			id, _ := json.Marshal(i)
			in := []byte(`{"id":` + string(id) + `,` + sample[1:])
			want, err := p.Run(t.Context(), in)
			if err != nil {
				t.Error(err)
				return
			}
			for range 200 {
				got, err := p.Run(t.Context(), in)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s, %v", got, err)
					return
				}
			}
			if !bytes.Contains(want, []byte(`"id":`+string(id)+`,`)) {
				t.Errorf("another's id: %s", want)
			}
		})
	}
	wg.Wait()
}
