package compat

import (
	"bytes"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// FuzzCheck: whatever two schemas are given, there is an answer in bounded time,
// and examples are true.
func FuzzCheck(f *testing.F) {
	for i, r := range rows {
		if i%4 == 0 {
			f.Add(r.old, r.next, false)
		}
	}
	f.Add(`{"properties":{"a":{"$ref":"#"}},"required":["a"]}`, `{"anyOf":[{"$ref":"#/$defs/x"},{"not":{}}],"$defs":{"x":{"items":{"$ref":"#"}}}}`, true)
	f.Fuzz(func(t *testing.T, one, two string, lenient bool) {
		if len(one) > 2000 || len(two) > 2000 {
			return
		}
		old, err := tryCompile(one)
		if err != nil {
			return
		}
		next, err := tryCompile(two)
		if err != nil {
			return
		}
		begin := time.Now()
		problems := Check(old, next, Full, lenient)
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
		checkShape(t, problems)
		for _, p := range problems {
			if p.Example == nil {
				continue
			}
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader(p.Example))
			if err != nil {
				t.Fatalf("%s: %v", p.Example, err)
			}
			if accepts(old, v) == accepts(next, v) {
				t.Errorf("%s at %q: %s is judged alike", p.Rule, p.Path, p.Example)
			}
		}
		if same := Check(old, old, Full, false); len(same) != 0 {
			t.Errorf("a schema does not fit itself: %+v", same)
		}
	})
}
