package compat

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestBounds: schemas made to be hard are answered in bounded time.
func TestBounds(t *testing.T) {
	branches := func(n int, form string) string {
		list := make([]string, n)
		for i := range list {
			list[i] = strings.ReplaceAll(form, "N", fmt.Sprint(i))
		}
		return strings.Join(list, ",")
	}
	// Each definition refers twice to the next: written out it would be huge.
	double := func(n int, last string) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
		for i := range n {
			fmt.Fprintf(&b, `"d%d":{"anyOf":[{"$ref":"#/$defs/d%d"},{"allOf":[{"$ref":"#/$defs/d%d"},{"minProperties":%d}]}]},`, i, i+1, i+1, i%3)
		}
		fmt.Fprintf(&b, `"d%d":%s}}`, n, last)
		return b.String()
	}
	for _, test := range []struct{ name, old, next string }{
		{"many alternatives", `{"anyOf":[` + branches(60, `{"required":["aN"]}`) + `]}`, `{"anyOf":[` + branches(60, `{"required":["bN"]}`) + `]}`},
		{"many alternatives inside many", `{"allOf":[` + branches(30, `{"anyOf":[{"required":["aN"]},{"required":["bN"]}]}`) + `]}`, `{"oneOf":[` + branches(30, `{"required":["cN"]}`) + `]}`},
		{"doubling references", double(40, `{"type":"object"}`), double(40, `{"type":"object","maxProperties":3}`)},
		{"doubling references, unevaluated", strings.Replace(double(40, `{"properties":{"a":{}}}`), `{`, `{"unevaluatedProperties":false,`, 1), strings.Replace(double(40, `{"properties":{"b":{}}}`), `{`, `{"unevaluatedProperties":false,`, 1)},
		{"many properties", `{"properties":{` + branches(1500, `"pN":{"type":"integer"}`) + `}}`, `{"properties":{` + branches(1500, `"pN":{"type":"string"}`) + `}}`},
		{"large enums", `{"enum":[` + branches(3000, `"vN"`) + `]}`, `{"anyOf":[` + branches(50, `{"const":"vN"}`) + `]}`},
		{"huge numbers", `{"minimum":1e100000,"multipleOf":1e-100000}`, `{"minimum":1e100001,"multipleOf":1e-99999}`},
		{"far places", `{"items":{"type":"integer"},"maxItems":1000000000}`, `{"minItems":1000000000,"contains":{"type":"string"},"minContains":1000000000}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			begin := time.Now()
			problems := Check(compile(t, test.old), compile(t, test.next), Full, false)
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("it took %v", took)
			} else {
				t.Logf("%d problems in %v", len(problems), took)
			}
			if len(problems) == 0 {
				t.Error("they do not fit, and no problem is told")
			}
		})
	}
}
