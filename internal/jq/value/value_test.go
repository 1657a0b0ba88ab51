package value

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"github.com/itchyny/gojq"

	"promethean/event"
)

// std is what encoding/json makes of a text.
func std(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

func check(t *testing.T, text []byte) {
	t.Helper()
	got, err := Decode(text)
	if ok := event.CheckJSON(text) == nil; ok != (err == nil) {
		t.Fatalf("%q: decode says %v, CheckJSON says ok=%v", text, err, ok)
	}
	if err != nil {
		return
	}
	want, err := std(text)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: %#v, want %#v", text, got, want)
	}
	out := Append(nil, got)
	jq, err := gojq.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, jq) {
		t.Fatalf("%q is written %s, by gojq %s", text, out, jq)
	}
	if err := event.CheckJSON(out); err != nil {
		t.Fatalf("%q is written %s: %v", text, out, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,2.50,-0,1e2,12345678901234567890],"b":{"c":null,"d":true,"e":false}}`,
		` [ ] `, `{}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `"\ud83d\ude00 \u00e9 \n\/"`, `"\ud83d"`, `"\udc00\ud800"`,
		"\"\xff\"", "\"\x01\"", `"é"`, `01`, `-`, `1.`, `1e`, `1e+`, `[1,]`, `{"a"}`, `nul`, `1 2`, ``, `"\u12"`, `"\x"`, `"a\`,
		"[\"\\n\xff\"]", `{"long name that is longer than eight":"and a long value behind it"}`, strings.Repeat("[", 1200),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) { check(t, text) })
}

func TestDepth(t *testing.T) {
	for _, n := range []int{event.MaxDepth, event.MaxDepth + 1} {
		check(t, []byte(strings.Repeat("[", n)+strings.Repeat("]", n)))
		check(t, []byte(strings.Repeat(`{"a":`, n)+"1"+strings.Repeat("}", n)))
	}
}

// Numbers that jq computes are written as jq writes them.
func TestAppendComputed(t *testing.T) {
	big1, _ := new(big.Int).SetString("-123456789012345678901234567890", 10)
	for _, v := range []any{
		0, -1, math.MaxInt, 0.1, 1e-7, 1e-10, 1e21, 1e20, -1.5e300, 3.0, math.NaN(), math.Inf(1), math.Inf(-1), big1, math.Copysign(0, -1),
		"\x00\x1f\x7f\u2028<>&\xff", map[string]any{"b": 1, "a": []any{nil, true}, "": map[string]any{}},
	} {
		want, err := gojq.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if got := Append([]byte("x"), v); string(got) != "x"+string(want) {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

// A value that refers to itself over and over is small in memory only.
func TestAppendMax(t *testing.T) {
	var bomb any = "x"
	for range 200 {
		bomb = []any{bomb, bomb}
	}
	if out, err := AppendMax([]byte("keep"), bomb, 1<<20); !errors.Is(err, ErrTooLarge) || string(out) != "keep" {
		t.Fatal(len(out), err)
	}
	var deep any
	for range event.MaxDepth + 1 {
		deep = map[string]any{"a": deep}
	}
	if _, err := AppendMax(nil, deep, 1<<20); !errors.Is(err, ErrTooDeep) {
		t.Fatal(err)
	}
	for limit, want := range map[int]error{12: nil, 11: ErrTooLarge, 3: ErrTooLarge} {
		if _, err := AppendMax([]byte("12"), []any{"abc", "def"}, limit+1); !errors.Is(err, want) {
			t.Fatal(limit, err)
		}
	}
	if out, err := AppendMax(nil, []any{json.Number("1.0")}, 5); err != nil || string(out) != "[1.0]" {
		t.Fatal(string(out), err)
	}
}

func TestCheckNumbers(t *testing.T) {
	long := strings.Repeat("7", MaxDigits)
	for text, ok := range map[string]bool{
		`1`: true, `-1.5e10`: true, `1e10000`: true, `1E-10000`: true, `{"a":[1e+10000],"b":"1e99999999"}`: true, `"\"1e999999"`: true, `"a\\"`: true, long: true, `-` + long: true,
		`1e10001`: false, `[1,2,{"a":-1E-10001}]`: false, `1e99999999999999999999999999`: false, long + "7": false, `["x\\",1e20000]`: false, `{"1e20000":1,"b":1.0e+20000}`: false,
	} {
		if err := CheckNumbers([]byte(text)); (err == nil) != ok {
			t.Errorf("%.40s: %v", text, err)
		}
	}
}
