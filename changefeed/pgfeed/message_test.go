package pgfeed

import (
	"encoding/json"
	"strings"
	"testing"

	"promethean/event"
)

func TestLSN(t *testing.T) {
	for _, s := range []string{"0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"} {
		l, err := parseLSN(s)
		if err != nil || l.String() != s {
			t.Errorf("%s becomes %s, %v", s, l, err)
		}
	}
	for _, s := range []string{"", "/", "1", "1/", "/1", "x/1", "1/100000000", "1/1/1", "-1/1"} {
		if l, err := parseLSN(s); err == nil {
			t.Errorf("%q becomes %s", s, l)
		}
	}
}

func TestDefaultSlot(t *testing.T) {
	seen := map[string]string{}
	for _, x := range [][2]string{
		{"db", "things"}, {"db", "Things"}, {"db", "th-ings"}, {"db", "th.ings"}, {"Db", "things"},
		{"db", strings.Repeat("x", 63)}, {"db", strings.Repeat("x", 62) + "y"}, {strings.Repeat("d", 63), "t"}, {"ü", "ö"},
	} {
		slot := defaultSlot(x[0], x[1])
		if !slotName.MatchString(slot) {
			t.Errorf("the slot of %v is %q", x, slot)
		}
		if other, ok := seen[slot]; ok {
			t.Errorf("%v and %s have the slot %s", x, other, slot)
		}
		seen[slot] = x[0] + " " + x[1]
	}
	if got := defaultSlot("shop", "orders"); got != "promethean_shop_orders" {
		t.Errorf("a plain slot is %s", got)
	}
}

// FuzzMessage takes apart whatever comes: it must neither panic nor read beyond
// the end, and an update must have as many columns as it says.
func FuzzMessage(f *testing.F) {
	f.Add([]byte("B\x00\x00\x00\x00\x01\x02\x03\x04\x00\x02\x03\x04\x05\x06\x07\x08\x00\x00\x01\x02"))
	f.Add([]byte("C\x00\x00\x00\x00\x00\x01\x02\x03\x04\x00\x00\x00\x00\x01\x02\x03\x05\x00\x02\x03\x04\x05\x06\x07\x08"))
	f.Add([]byte("R\x00\x00\x40\x00public\x00things\x00d\x00\x01\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff"))
	f.Add([]byte("U\x00\x00\x40\x00K\x00\x01t\x00\x00\x00\x011N\x00\x02t\x00\x00\x00\x012nu"))
	f.Add([]byte("T\x00\x00\x00\x01\x00\x00\x00\x40\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := reader{b: b}
		switch r.byte() {
		case 'B':
			r.begin()
		case 'C':
			r.commit()
		case 'R':
			rel := r.relation()
			if r.err == nil && len(b) < len(rel.schema)+len(rel.name)+len(rel.columns) {
				t.Errorf("a relation of %d columns from %d bytes", len(rel.columns), len(b))
			}
		case 'U':
			var c change
			r.change(&c)
			for _, v := range append(c.old[:len(c.old):len(c.old)], c.new...) {
				if v.kind != isText && v.text != nil {
					t.Errorf("a column of kind %q has text", v.kind)
				}
			}
		case 'T':
			if n := len(r.truncate()); n > len(b)/4 {
				t.Errorf("%d tables from %d bytes", n, len(b))
			}
		}
		if r.err == nil && len(r.b) > len(b) {
			t.Error("the message has grown")
		}
	})
}

// FuzzValue wants JSON of any text that a server may send, by any encoder.
func FuzzValue(f *testing.F) {
	for _, s := range []string{"", "t", "-1.5e+10", "NaN", `\x00ff`, `{"a":1}`, "2026-02-03 04:05:06+00", `{a,"b\"",NULL,{c}}`, "[0:1]={1,2}", "{{{", `{"`, "{a}b"} {
		f.Add(s)
	}
	encoders := map[string]encoder{
		"text": appendText, "boolean": appendBool, "bytea": appendBytes, "timestamp": appendTimestamp, "text[]": arrayOf(appendText, ','),
		"text[][]": arrayOf(arrayOf(appendText, ','), ';'), "json": appendJSON, "json[]": arrayOf(appendJSON, ','), "bytea[]": arrayOf(appendBytes, ','),
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, encode := range encoders {
			if strings.HasPrefix(name, "json") && !json.Valid([]byte(text)) {
				continue // the server has looked at it
			}
			if name == "timestamp" && (strings.ContainsAny(text, `"\`) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })) {
				continue // it sends digits and signs
			}
			if got := encode([]byte("[1,"), []byte(text)); event.CheckJSON(append(got, ']')) != nil {
				t.Errorf("%s of %q is %q", name, text, got)
			}
		}
	})
}
