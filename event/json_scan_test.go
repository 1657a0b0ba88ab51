package event

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// oracle judges a text with jsontext and its default options, and returns the
// tokens without white space between them.
func oracle(data []byte) (compact []byte, depth int, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(data))
	v, err := d.ReadValue()
	if err != nil {
		return nil, 0, err
	}
	compact = bytes.Clone(v)
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("after the value: %w", err)
	}
	now := 0
	inText := false
	out := compact[:0]
	for i := 0; i < len(compact); i++ {
		c := compact[i]
		switch {
		case inText && c == '\\':
			out = append(out, c, compact[i+1])
			i++
			continue
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			now++
			depth = max(depth, now)
		case c == '}' || c == ']':
			now--
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			continue
		}
		out = append(out, c)
	}
	return out, depth, nil
}

func checkAgainstOracle(t *testing.T, data []byte) {
	t.Helper()
	want, depth, wantErr := oracle(data)
	if wantErr == nil && depth > MaxDepth {
		wantErr = errors.New("too deep")
	}
	given := bytes.Clone(data)
	err := CheckJSON(data)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("CheckJSON(%q) = %v, oracle says %v", data, err, wantErr)
	}
	got, compactErr := CompactJSON([]byte("x"), data)
	if (compactErr == nil) != (err == nil) {
		t.Fatalf("CompactJSON(%q) = %v, but CheckJSON = %v", data, compactErr, err)
	}
	if !bytes.Equal(data, given) {
		t.Fatalf("the input was changed from %q to %q", given, data)
	}
	if err != nil {
		var rule *RuleError
		if !errors.As(err, &rule) || !errors.Is(err, ErrBadJSON) || rule.Offset < 0 || rule.Offset > len(data) {
			t.Fatalf("CheckJSON(%q): error %#v", data, err)
		}
		if string(got) != "x" {
			t.Fatalf("CompactJSON(%q) failed and returned %q", data, got)
		}
		return
	}
	if string(got) != "x"+string(want) {
		t.Fatalf("CompactJSON(%q) = %q, want %q", data, got[1:], want)
	}
	if again, err := CompactJSON(nil, want); err != nil || !bytes.Equal(again, want) {
		t.Fatalf("CompactJSON is not stable: %q, %v", again, err)
	}
}

// jsonTexts are the seeds of the fuzz test and run in every test.
var jsonTexts = []string{
	``, ` `, `null`, ` true `, `false`, `nul`, `nulL`, `truefalse`, `null null`, `"`, `""`, `"a`, `"\`, `"\u`, `"\u00`, `"\u0041"`, `"\U0041"`, `"\x"`,
	`0`, `-0`, `-`, `01`, `1.`, `1.0`, `.5`, `1e`, `1e+`, `1e+5`, `1E-05`, `1e5.2`, `+1`, `--1`, `0x10`, `1 2`, `123456789012345678901234567890`, `NaN`, `Infinity`,
	`[]`, `[ ]`, `[`, `]`, `[1`, `[1,`, `[1,]`, `[,1]`, `[1 2]`, `[1}`, `[[],[[]],{}]`, `[1 , 2 ]`,
	`{}`, `{ }`, `{`, `}`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{,}`, `{a:1}`, `{"a" 1}`, `{"a":1 "b":2}`, `{"a":1]`, `{1:2}`, `{"a":{"a":{"a":1}}}`,
	`{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"\u0061":1,"a":2}`, `{"\u0061":1,"\u0061":2}`, `{"a":1,"A":2}`, `{"":1,"":2}`, `{"":1," ":2}`, `{"a":1,"b":{"a":1},"c":{"a":1}}`,
	`{"abcdefgh":1,"abcdefgi":2}`, `{"abcdefgh1":1,"abcdefgh2":2}`, `{"abcdefghXabcdefgh":1,"abcdefghYabcdefgh":1}`, `{"abcdefghXabcdefgh":1,"abcdefghXabcdefgh":1}`,
	`{"a":[{"b":1,"c":2},{"b":1,"c":2}],"b":1}`, `{"a":[{"b":1,"c":2},{"b":1,"b":2}],"b":1}`, `{"x":{"y":1},"x":1}`, "{\"a\":1,\"a\x00\":2}",
	`{"\ud83d\ude00":1,"😀":2}`, `{"\n":1,"\u000a":2}`, `{"\/":1,"/":2}`,
	"\"\x00\"", "\"\n\"", "\"\x1f\"", "\"\x7f\"", "\"a\tb\"", "\x00", "\ufeff1", "\u00a01", "1\u2028", "[1,\v2]", "\f1",
	"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"", "\"\xe2\x82", "\"é\"", "\"plain then é then 世界 and 😀\"", "\"aaaaaaaa\xff\"", "{\"\xff\":1}", "\xff",
	`"\ud800"`, `"\udc00"`, `"\ud800\ud800"`, `"\ud800\u0041"`, `"\ud83d\ude00"`, `"\ud83dx"`, `"\ud83d\n"`, `"\uDBFF\uDFFF"`, `"\ud83d\ude0"`, `"\ufffd"`, `"\u0000"`,
	"{\"a\" :\t1 ,\r\n\"b\": [ 1 , \"x y\" , { } , [ ] ] }\n", `{"n":12345678901234567890.123456789e-300,"s":"\u003c<\/script>"}`,
	`"12345678"`, `"1234567"`, `"123456789"`, `"1234567\"8"`, `"1234567\\"`, "\"1234567\x1f\"", benchPayload,
}

func TestCheckJSONAgainstOracle(t *testing.T) {
	for _, text := range jsonTexts {
		checkAgainstOracle(t, []byte(text))
	}
	// Every prefix, and every text with one byte replaced, of a text that has
	// all kinds of tokens.
	all := []byte(`{"a":[1,-2.5e+7,true,false,null],"\u00e9é":{"b":"x\n\ud83d\ude00 y"} , "c":""}`)
	for i := range all {
		checkAgainstOracle(t, all[:i])
		for c := range 256 {
			text := bytes.Clone(all)
			text[i] = byte(c)
			checkAgainstOracle(t, text)
		}
	}
}

func FuzzCheckJSON(f *testing.F) {
	for _, text := range jsonTexts {
		f.Add([]byte(text))
	}
	f.Fuzz(checkAgainstOracle)
}

func TestCheckJSONDepth(t *testing.T) {
	for _, c := range []struct{ open, close string }{{"[", "]"}, {`{"a":`, "}"}, {`[{"a":`, "}]"}} {
		per := len(c.close)
		for _, n := range []int{MaxDepth - per, MaxDepth, MaxDepth + per, 9000} {
			text := strings.Repeat(c.open, n/per) + "1" + strings.Repeat(c.close, n/per)
			checkAgainstOracle(t, []byte(text))
			err := CheckJSON([]byte(text))
			if (err == nil) != (n <= MaxDepth) {
				t.Errorf("depth %d of %s: %v", n, c.open, err)
			}
		}
	}
	err := CheckJSON([]byte(strings.Repeat("[", MaxDepth+1)))
	want := fmt.Sprintf("is nested too deeply (limit 1000, got 1001) at byte %d", MaxDepth)
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// object returns an object with n names that share their first and last bytes,
// so that they collide in the small comparison, with one more member at the end.
func object(n int, last string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		fmt.Fprintf(&b, `"same-start %06d same-end":{"a":%d,"b":0},`, i, i)
	}
	return b.String() + `"` + last + `":0}`
}

func TestCheckJSONManyNames(t *testing.T) {
	for _, n := range []int{manyNames - 2, manyNames - 1, manyNames, manyNames + 1, 2 * manyNames, 1000} {
		for _, c := range []struct {
			last string
			ok   bool
		}{
			{"other", true},
			{"same-start 000000 same-end", false},
			{fmt.Sprintf("same-start %06d same-end", n-1), false},
			{fmt.Sprintf("same-start %06d same-end", n), true},
			{fmt.Sprintf(`same-\u0073tart %06d same-end`, n/2), false},
			{fmt.Sprintf(`same-\u0074tart %06d same-end`, n/2), true},
		} {
			text := object(n, c.last)
			checkAgainstOracle(t, []byte(text))
			if err := CheckJSON([]byte(text)); (err == nil) != c.ok {
				t.Errorf("%d names and %q: %v", n, c.last, err)
			}
			// An escaped name among those that stood there before the table.
			escaped := strings.Replace(text, "same-start 000000", `same-\u0073tart 000000`, 1)
			checkAgainstOracle(t, []byte(escaped))
			// Large objects within a large object, and names of the outer one
			// after the inner one has closed.
			nested := strings.Replace(object(n, "z"), "0}", text+`,"y":0}`, 1)
			checkAgainstOracle(t, []byte(nested))
		}
	}
}

// One object with very many names must cost about as much as many objects with
// few names. Comparing each name with all others costs a thousand times more.
func TestCheckJSONHostileNames(t *testing.T) {
	const n = 100_000
	hostile := []byte(object(n, "z"))
	harmless := []byte("[" + strings.Repeat(object(10, "z")+",", n/10) + "0]")
	timed := func(data []byte) time.Duration {
		start := time.Now()
		if err := CheckJSON(data); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	timed(harmless)
	base, got := timed(harmless), timed(hostile)
	if got > 100*base {
		t.Errorf("%d names in one object take %v, in many objects %v", n, got, base)
	}
	if err := CheckJSON([]byte(object(n, "same-start 050000 same-end"))); !errors.Is(err, ErrBadJSON) {
		t.Fatalf("a repeated name passed: %v", err)
	}
}

func TestCheckJSONMessages(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, `a value must start here, found the end of the text at byte 0`},
		{`{"a":x}`, `a value must start here, found "x" at byte 5`},
		{`[1;2]`, `a comma or the end of the array must stand here, found ";" at byte 2`},
		{`{"a":1;`, `a comma or the end of the object must stand here, found ";" at byte 6`},
		{`{"a":1`, `must not end inside of a container, found the end of the text at byte 6`},
		{`{"a"1}`, `a colon must stand here, found "1" at byte 4`},
		{`{1}`, `a name in quotes must stand here, found "1" at byte 1`},
		{`{"a":1, "\u0061":2}`, `a name must stand once in an object, found "\\u0061" at byte 8`},
		{`nulx`, `a value must start here, found "nulx" at byte 0`},
		{`-x`, `a digit must stand here, found "x" at byte 1`},
		{`1.e`, `a digit must stand here, found "e" at byte 2`},
		{`"abc`, `a string must end with a quote, found the end of the text at byte 4`},
		{"\"a\nb\"", `a control character must be escaped in a string, found "\n" at byte 2`},
		{`"a\x41"`, `an escape must be one of those that JSON has, found "\\x41\"" at byte 2`},
		{`"a\ud800x"`, `an escape must not be half of a surrogate pair, found "\\ud800" at byte 2`},
		{"\"ab\xffcd\"", `must be valid UTF-8, found "\xff" at byte 3`},
		{`1 2`, `must be one value, nothing may follow it, found "2" at byte 2`},
		{`1é`, `must be one value, nothing may follow it, found "\u00e9" at byte 1`},
	} {
		err := CheckJSON([]byte(c.text))
		if err == nil || err.Error() != c.want {
			t.Errorf("CheckJSON(%q):\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

func TestCheckJSONDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop at random")
	}
	data := []byte(benchPayload)
	if n := testing.AllocsPerRun(1000, func() {
		if err := CheckJSON(data); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A scanner that failed half way, with objects open, must come back clean.
func TestScannerReuse(t *testing.T) {
	broken := []byte(object(100, `z":0,"deep":{"a":{"b`))
	for range 100 {
		if err := CheckJSON(broken[:len(broken)-4]); err == nil {
			t.Fatal("a broken text passed")
		}
		if err := CheckJSON([]byte(`{"a":{"b":1},"b":2}`)); err != nil {
			t.Fatal(err)
		}
	}
}
