package docstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"promethean/event"
	"promethean/store/internal/document"
)

// FuzzValues holds the scanner of fields against the JSON of the standard
// library.
func FuzzValues(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, `{"a":{"b":[1,"}"]},"b":"\u0061\"","a":2}`, " {\"b\" :\n null , \"a\":-0.5e7 } ", `{"\u0061":true,"c":[[],{}]}`} {
		f.Add([]byte(s))
	}
	fields := []string{"a", "b", "ä"}
	f.Fuzz(func(t *testing.T, body []byte) {
		var object map[string]json.RawMessage
		valid := event.CheckJSON(body) == nil && json.Unmarshal(body, &object) == nil && object != nil
		if err := document.CheckBody(body); (err == nil) != valid {
			t.Fatalf("CheckBody: %v, valid is %v", err, valid)
		}
		if !valid {
			return
		}
		for i, raw := range findFields(body, fields, nil) {
			want, there := object[fields[i]]
			if there != (raw != nil) || !bytes.Equal(raw, bytes.TrimSpace(want)) {
				t.Fatalf("field %q: %q, want %q", fields[i], raw, want)
			}
		}
	})
}

// FuzzNumbers holds the encoding of numbers against rational numbers.
func FuzzNumbers(f *testing.F) {
	f.Add("1", "1.0")
	f.Add("-0.0120e3", "-12")
	f.Add("9007199254740993", "9007199254740992")
	f.Add("0", "-0e5")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, okX := rational(a)
		y, okY := rational(b)
		if !okX || !okY {
			return
		}
		p, q := appendValue(nil, []byte(a)), appendValue(nil, []byte(b))
		if equal := x.Cmp(y) == 0; equal != bytes.Equal(p, q) {
			t.Fatalf("%s and %s: equal is %v, encoded %q and %q", a, b, equal, p, q)
		}
	})
}

// rational reads a JSON number whose exponent is small enough.
func rational(s string) (*big.Rat, bool) {
	if event.CheckJSON([]byte(s)) != nil || s == "" || !strings.ContainsRune("-0123456789", rune(s[0])) || strings.TrimSpace(s) != s {
		return nil, false
	}
	if i := strings.IndexAny(s, "eE"); i >= 0 && len(s)-i > 5 {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}

func TestHugeExponents(t *testing.T) {
	nines, zeros := strings.Repeat("9", 200_000), strings.Repeat("0", 200_000)
	cases := [][]string{
		{"1e" + nines, "10e" + nines[1:] + "8", "0.1e1" + zeros}, // 10^n - 1, twice more
		{"1e-" + nines, "0.1e-" + nines[1:] + "8", "10e-1" + zeros},
		{"1e1" + zeros, "10e" + nines},
		{"7e1000000000000000000", "70e999999999999999999", "0.7e1000000000000000001", "7e+01000000000000000000"},
		{"7e-1000000000000000000", "70e-1000000000000000001", "0.7e-999999999999999999"},
		{"0", "0e" + nines, "-0.0e-" + nines},
	}
	seen := make(map[string]string)
	for _, class := range cases {
		first := appendValue(nil, []byte(class[0]))
		for _, v := range class[1:] {
			if got := appendValue(nil, []byte(v)); !bytes.Equal(got, first) {
				t.Errorf("%.20s… and %.20s… differ: %q, %q", class[0], v, first, got)
			}
		}
		if other, ok := seen[string(first)]; ok {
			t.Errorf("%.20s… and %.20s… are equal", class[0], other)
		}
		seen[string(first)] = class[0]
	}
}

func TestEncodedValuesAreApart(t *testing.T) {
	// No encoding is a prefix of another, so rows of one value never mix with
	// those of another.
	var all [][]byte
	for _, v := range []string{`1`, `11`, `"1"`, `"11"`, `""`, `true`, `null`, `"` + strings.Repeat("x", 64) + `"`, `"` + strings.Repeat("x", 65) + `"`, fmt.Sprintf("%0*d", 1, 5)} {
		all = append(all, appendValue(nil, []byte(v)))
	}
	for i, a := range all {
		for j, b := range all {
			if i != j && bytes.HasPrefix(b, a) {
				t.Errorf("%q begins with %q", b, a)
			}
		}
	}
}

func TestRanksAreInTheOrderOfListings(t *testing.T) {
	list := []struct {
		ts  int64
		key string
	}{{1<<63 - 1, "a"}, {5, "a"}, {5, "b"}, {0, "z"}, {-1, "a"}, {-1 << 63, ""}}
	for i := range list[1:] {
		a, b := appendRank(nil, list[i].ts, list[i].key), appendRank(nil, list[i+1].ts, list[i+1].key)
		if bytes.Compare(a, b) >= 0 {
			t.Errorf("%v does not come before %v", list[i], list[i+1])
		}
		if ts, key := splitRank(a); ts != list[i].ts || string(key) != list[i].key {
			t.Errorf("%v comes back as %d, %q", list[i], ts, key)
		}
	}
}
