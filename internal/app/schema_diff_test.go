package app

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"promethean/schema"
)

func diffOf(t *testing.T, from, to string) *difference {
	t.Helper()
	d, err := compare("t", side{"from", json.RawMessage(from)}, side{"to", json.RawMessage(to)}, false)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDiffNamesWhatChanged(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     []string
	}{
		{`{}`, `{}`, nil},
		{`{"type":"object"}`, `{ "type" : "object" }`, nil},
		{`true`, `false`, []string{"changed  true false"}},
		{`true`, `{}`, []string{"changed  true {}"}},
		{`{"required":["a","b"]}`, `{"required":["b","a"]}`, nil},
		{`{"required":["a","b"]}`, `{"required":["b","c"]}`, []string{`removed /required "a" `, `added /required  "c"`}},
		{`{"minimum":1}`, `{"minimum":12345678901234567890}`, []string{"changed /minimum 1 12345678901234567890"}},
		{`{"properties":{"a/b~c":{}}}`, `{"properties":{}}`, []string{"removed /properties/a~1b~0c {} "}},
		{`{"prefixItems":[{"type":"string"}]}`, `{"prefixItems":[{"type":"number"},{}]}`, []string{`changed /prefixItems/0/type "string" "number"`, "added /prefixItems/1  {}"}},
		{`{"anyOf":[{},{}]}`, `{"anyOf":[{}]}`, []string{"removed /anyOf/1 {} "}},
		{`{"enum":[1,"1",null]}`, `{"enum":[null,1]}`, []string{`removed /enum "1" `}},
		{`{"items":true}`, `{"items":[]}`, nil}, // not a schema: see below
	} {
		if strings.Contains(c.to, `"items":[]`) {
			if _, err := compare("t", side{"from", json.RawMessage(c.from)}, side{"to", json.RawMessage(c.to)}, false); err == nil || !strings.HasPrefix(err.Error(), "to: ") {
				t.Errorf("%s: %v", c.to, err)
			}
			continue
		}
		var got []string
		for _, x := range diffOf(t, c.from, c.to).Changes {
			got = append(got, x.Change+" "+x.Path+" "+string(x.From)+" "+string(x.To))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s to %s: %q, want %q", c.from, c.to, got, c.want)
		}
	}
}

// Whatever two schemas are, they can be compared and shown; the same one has no
// differences and fits itself; and back is the mirror of forth.
func FuzzDiff(f *testing.F) {
	for _, s := range []string{
		`true`, `{}`, `{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}`, `{"enum":[1,"a",null,[1],{"a":2}]}`,
		`{"anyOf":[{"type":"string"},{"$ref":"#/$defs/x"}],"$defs":{"x":{"minimum":1e400}}}`, `{"required":["a","b"]}`, `{"prefixItems":[{},true]}`,
	} {
		f.Add(s, `{"required":["b"]}`)
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, from, to string) {
		for _, s := range []string{from, to} {
			if _, err := schema.Parse(json.RawMessage(s)); err != nil {
				t.Skip()
			}
		}
		d, back := diffOf(t, from, to), diffOf(t, to, from)
		if len(d.Changes) != len(back.Changes) {
			t.Errorf("%d changes there and %d back", len(d.Changes), len(back.Changes))
		}
		if same := diffOf(t, from, from); len(same.Changes) > 0 {
			t.Errorf("differs from itself in %+v", same.Changes)
		}
		for _, o := range []format{formatTable, formatJSON} {
			var out bytes.Buffer
			a := &app{stdout: &out, screen: &out, format: o}
			if err := a.showDiff(d); err != nil {
				t.Error(err)
			}
			if o == formatJSON && !json.Valid(out.Bytes()) {
				t.Errorf("no JSON: %s", &out)
			}
		}
	})
}
