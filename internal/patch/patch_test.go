package patch_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"promethean/internal/patch"
)

// The examples of RFC 7386, appendix A.
func TestMerge(t *testing.T) {
	for _, c := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		// What is not touched keeps its bytes and its place.
		{`{"n":12345678901234567890.10,"\u0061":1}`, `{"a":1.0,"z":-0}`, `{"n":12345678901234567890.10,"\u0061":1.0,"z":-0}`},
		{`{"a":1,"a":2}`, `{}`, `{"a":2}`},
	} {
		got, err := patch.Merge([]byte(c[0]), []byte(c[1]))
		if err != nil || string(got) != c[2] {
			t.Errorf("%s with %s: %s, %v, want %s", c[0], c[1], got, err, c[2])
		}
	}
	for _, bad := range []string{``, `{`, `{"a"}`, `1 2`, `nul`} {
		if got, err := patch.Merge([]byte(`{}`), []byte(bad)); err == nil {
			t.Errorf("%q is a patch: %s", bad, got)
		}
	}
}

// plainMerge is the pseudo code of RFC 7386.
func plainMerge(target, p any) any {
	m, ok := p.(map[string]any)
	if !ok {
		return p
	}
	out, ok := target.(map[string]any)
	if !ok {
		out = map[string]any{}
	}
	for k, v := range m {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = plainMerge(out[k], v)
		}
	}
	return out
}

func random(r *rand.Rand, depth int) any {
	switch n := r.IntN(8); {
	case n < 4 && depth > 0:
		m := map[string]any{}
		for range r.IntN(30) { // beyond what is looked for without an index
			m[fmt.Sprintf("k%d", r.IntN(25))] = random(r, depth-1)
		}
		return m
	case n == 4 && depth > 0:
		list := []any{}
		for range r.IntN(4) {
			list = append(list, random(r, depth-1))
		}
		return list
	case n == 5:
		return nil
	case n == 6:
		return "text/~"
	}
	return float64(r.IntN(3))
}

func TestMergeIsThatOfTheRFC(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var want any
		var v patch.Value
		for range 6 {
			text, err := json.Marshal(random(r, 3))
			if err != nil {
				t.Fatal(err)
			}
			var p any
			if err := json.Unmarshal(text, &p); err != nil {
				t.Fatal(err)
			}
			want = plainMerge(want, p)
			x, err := patch.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			v.Merge(x)
			var got any
			if err := json.Unmarshal(v.Bytes(), &got); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%s, want %v: %v", v.Bytes(), want, err)
			}
		}
	}
}

func TestDiff(t *testing.T) {
	for _, c := range [][3]string{
		{`{"a":1}`, `{"a":1.0}`, `[]`},
		{`100`, `1e2`, `[]`},
		{`0.10e1`, `1`, `[]`},
		{`-0`, `0.000`, `[]`},
		{`0.001`, `1e-3`, `[]`},
		{`9007199254740993`, `9007199254740992`, `[{"op":"replace","path":"","from":9007199254740993,"to":9007199254740992}]`},
		{`1`, `-1`, `[{"op":"replace","path":"","from":1,"to":-1}]`},
		{`1e99999999999999999999`, `1e99999999999999999998`, `[{"op":"replace","path":"","from":1e99999999999999999999,"to":1e99999999999999999998}]`},
		{`null`, `{"a":1}`, `[{"op":"replace","path":"","from":null,"to":{"a":1}}]`},
		{`{"a":null}`, `{}`, `[{"op":"remove","path":"/a","from":null}]`},
		{`{"b":{"x/y":1,"~":2}}`, `{"b":{"x/y":2},"c":[]}`, `[{"op":"replace","path":"/b/x~1y","from":1,"to":2},{"op":"remove","path":"/b/~0","from":2},{"op":"add","path":"/c","to":[]}]`},
		{`[1,2,3]`, `[1,{"a":2}]`, `[{"op":"replace","path":"/1","from":2,"to":{"a":2}},{"op":"remove","path":"/2","from":3}]`},
		{`["a"]`, `{"0":"a"}`, `[{"op":"replace","path":"","from":["a"],"to":{"0":"a"}}]`},
		{` { "a" : [ 1 , "\u0061" ] } `, `{"a":[1,"a"]}`, `[]`},
		{`{"a":1.50,"b":{"c": [ 1 ]}}`, `{"a":1.5,"b":{"c":{}}}`, `[{"op":"replace","path":"/b/c","from":[1],"to":{}}]`},
		{`"1"`, `1`, `[{"op":"replace","path":"","from":"1","to":1}]`},
	} {
		list, err := patch.Diff([]byte(c[0]), []byte(c[1]))
		if err != nil {
			t.Fatal(err)
		}
		if list == nil {
			list = []patch.Change{}
		}
		got, err := json.Marshal(list)
		if err != nil || string(got) != c[2] {
			t.Errorf("%s to %s: %s, %v, want %s", c[0], c[1], got, err, c[2])
		}
	}
}

func TestDiffOfNoJSON(t *testing.T) {
	for _, bad := range []string{``, `{`, `[1,`, `1 2`, `{"a"}`, `]`} {
		for _, pair := range [][2]string{{bad, `1`}, {`1`, bad}} {
			if list, err := patch.Diff([]byte(pair[0]), []byte(pair[1])); err == nil {
				t.Errorf("%q: %v", pair, list)
			}
		}
	}
}

// Equal numbers are those that are equal as fractions.
func FuzzNumbers(f *testing.F) {
	f.Add("1", "1.0")
	f.Add("-12.5e-1", "-1.25")
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, s := range []string{a, b} {
			if i := strings.IndexAny(s, "eE"); i >= 0 && len(s)-i > 4 {
				t.Skip() // a fraction as large takes for ever
			}
		}
		if len(a) > 20 || len(b) > 20 || !json.Valid([]byte(a)) || !json.Valid([]byte(b)) || strings.ContainsAny(a+b, "\"[{tfn \t\r\n") {
			t.Skip()
		}
		x, okX := new(big.Rat).SetString(a)
		y, okY := new(big.Rat).SetString(b)
		if !okX || !okY {
			t.Skip() // an exponent that is too large for it
		}
		list, err := patch.Diff([]byte(a), []byte(b))
		if err != nil || (len(list) == 0) != (x.Cmp(y) == 0) {
			t.Errorf("%s and %s: %v, %v", a, b, list, err)
		}
	})
}
