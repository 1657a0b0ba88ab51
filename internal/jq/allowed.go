package jq

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"github.com/itchyny/gojq"
)

const (
	reasonEnv   = "an upcaster sees the payload and nothing else"
	reasonClock = "an upcaster must give the same for ever"
	reasonPrint = "an upcaster gives its value and prints nothing"
	reasonHalt  = "an upcaster gives a value, or says error(…)"
)

// refused are functions that are not there for a reason.
var refused = map[string]string{
	"env": reasonEnv, "input": reasonEnv, "inputs": reasonEnv, "input_filename": reasonEnv, "input_line_number": reasonEnv,
	"get_search_list": reasonEnv, "modulemeta": reasonEnv, "builtins": reasonEnv,
	"now": reasonClock, "localtime": reasonClock, "strflocaltime": reasonClock,
	"debug": reasonPrint, "stderr": reasonPrint,
	"halt": reasonHalt, "halt_error": reasonHalt,
	"format": "write @json, @text and so on",
}

// allowed are functions of gojq that take no more than a walk over their input,
// and make nothing larger than it.
var allowed = makeSet(`
empty/0 error/0 error/1 not/0 select/1 path/1 values/0 nulls/0 booleans/0 numbers/0 strings/0 arrays/0 objects/0 iterables/0 scalars/0
recurse/0 recurse/1 recurse/2 while/2 until/2 repeat/1 range/1 range/2 range/3 first/0 first/1 last/0 last/1 limit/2 skip/2 nth/2
isempty/1 all/0 all/1 all/2 any/0 any/1 any/2 IN/1 IN/2 in/1 has/1
length/0 utf8bytelength/0 keys/0 type/0 reverse/0 min/0 max/0 add/0 flatten/0 flatten/1 bsearch/1 toboolean/0
startswith/1 endswith/1 ltrimstr/1 rtrimstr/1 trimstr/1 ltrim/0 rtrim/0 trim/0 ascii_downcase/0 ascii_upcase/0
abs/0 sin/0 cos/0 tan/0 asin/0 acos/0 atan/0 sinh/0 cosh/0 tanh/0 asinh/0 acosh/0 atanh/0 floor/0 round/0 nearbyint/0 rint/0 ceil/0 trunc/0
significand/0 fabs/0 sqrt/0 cbrt/0 exp/0 exp10/0 exp2/0 expm1/0 frexp/0 modf/0 log/0 log10/0 log1p/0 log2/0 logb/0 gamma/0 tgamma/0 lgamma/0
erf/0 erfc/0 j0/0 j1/0 y0/0 y1/0 atan2/2 copysign/2 drem/2 fdim/2 fmax/2 fmin/2 fmod/2 hypot/2 nextafter/2 nexttoward/2 remainder/2
ldexp/2 scalb/2 scalbln/2 pow/2 fma/3 infinite/0 isfinite/0 isinfinite/0 nan/0 isnan/0 isnormal/0 finites/0 normals/0
gmtime/0 mktime/0`)

func makeSet(text string) map[string]bool {
	set := make(map[string]bool)
	for _, key := range strings.Fields(text) {
		set[key] = true
	}
	return set
}

// formats are those with an @. function replaces one; otherwise growth is how
// many bytes a byte of the input may become.
var formats = map[string]struct {
	function string
	growth   int
}{
	"@text": {function: "_p_tostring"}, "@json": {function: "_p_tojson"},
	"@html": {growth: 6}, "@uri": {growth: 4}, "@urid": {growth: 2}, "@csv": {growth: 3}, "@tsv": {growth: 2}, "@sh": {growth: 4},
	"@base64": {growth: 2}, "@base64d": {growth: 1},
}

// rewritten are functions that need a look at what they are given.
var rewritten = map[string]func(args []*gojq.Query) *gojq.Query{
	"tojson/0":   instead("_p_tojson"),
	"tostring/0": instead("_p_tostring"),
	"fromjson/0": instead("_p_fromjson"),
	"tonumber/0": after("_p_numeral", "tonumber"),
	// A character becomes an element, and the element a number.
	"explode/0":   charged(32, "explode"),
	"implode/0":   charged(4, "implode"),
	"sort/0":      after("_p_sorting", "sort"),
	"unique/0":    after("_p_sorting", "unique"),
	"transpose/0": after("_p_transposing", "transpose"),
	"split/1":     charged(48, "split"),
	"strftime/1":  withFormat("strftime"),
	"strptime/1":  withFormat("strptime"),
	"contains/1":  product("contains"),
	"inside/1":    product("inside"),
	"indices/1":   product("indices"),
	"index/1":     product("index"),
	"rindex/1":    product("rindex"),
	"join/1":      looked("_p_joining", "join"),
	"getpath/1":   func(args []*gojq.Query) *gojq.Query { return call("getpath", call("_p_path", args...)) },
	"setpath/2": func(args []*gojq.Query) *gojq.Query {
		return pipe(call("setpath", call("_p_path", args[0]), args[1]), call("_p_made"))
	},
	"delpaths/1": func(args []*gojq.Query) *gojq.Query { return call("delpaths", args...) },
	"del/1": func(args []*gojq.Query) *gojq.Query {
		return call("delpaths", term(&gojq.Term{Type: gojq.TermTypeArray, Array: &gojq.Array{Query: call("path", args...)}}))
	},
}

func instead(name string) func([]*gojq.Query) *gojq.Query {
	return func([]*gojq.Query) *gojq.Query { return call(name) }
}

func after(look, name string) func([]*gojq.Query) *gojq.Query {
	return func([]*gojq.Query) *gojq.Query { return pipe(call(look), call(name)) }
}

func charged(growth int, name string) func([]*gojq.Query) *gojq.Query {
	return func(args []*gojq.Query) *gojq.Query {
		return pipe(call("_p_charge", number(growth)), call(name, args...), call("_p_made"))
	}
}

// looked lets a function see the input and the argument before they are used.
func looked(look, name string) func([]*gojq.Query) *gojq.Query {
	return func(args []*gojq.Query) *gojq.Query {
		const x = "$__x"
		return bind(x, args[0], pipe(call(look, call(x)), call(name, call(x)), call("_p_made")))
	}
}

func product(name string) func([]*gojq.Query) *gojq.Query { return looked("_p_product", name) }

func withFormat(name string) func([]*gojq.Query) *gojq.Query { return looked("_p_dating", name) }

//go:embed prelude.jq
var preludeText string

// prelude are functions that are written in jq, in an order in which each uses
// only those before it.
var prelude = sync.OnceValue(func() (p struct {
	defs []*gojq.FuncDef
	uses map[string]map[string]bool
}) {
	q, err := gojq.Parse(preludeText + " .")
	if err != nil {
		panic(fmt.Errorf("%w: %w", errNoProgram, err))
	}
	p.uses = make(map[string]map[string]bool)
	for _, f := range q.FuncDefs {
		w := rewriter{own: true, uses: make(map[string]bool)}
		w.function(f, nil)
		if w.err != nil {
			panic(fmt.Errorf("%w: %s: %w", errNoProgram, f.Name, w.err))
		}
		p.uses[keyOf(f.Name, len(f.Args))] = w.uses
	}
	p.defs = q.FuncDefs
	return p
})

// preludeKeys are the functions of the prelude; they are found by their text,
// so that the prelude may use its own functions while it is being read.
var preludeKeys = sync.OnceValue(func() map[string]bool {
	q, err := gojq.Parse(preludeText + " .")
	if err != nil {
		panic(fmt.Errorf("%w: %w", errNoProgram, err))
	}
	keys := make(map[string]bool)
	for _, f := range q.FuncDefs {
		keys[keyOf(f.Name, len(f.Args))] = true
	}
	return keys
})

func inPrelude(key string) bool { return preludeKeys()[key] }

// needed gives the functions of the prelude that are used, and what they use.
func needed(uses map[string]bool) []*gojq.FuncDef {
	if len(uses) == 0 {
		return nil
	}
	p := prelude()
	var defs []*gojq.FuncDef
	for i := len(p.defs) - 1; i >= 0; i-- {
		key := keyOf(p.defs[i].Name, len(p.defs[i].Args))
		if !uses[key] {
			continue
		}
		for k := range p.uses[key] {
			uses[k] = true
		}
		defs = append(defs, p.defs[i])
	}
	for i, j := 0, len(defs)-1; i < j; i, j = i+1, j-1 {
		defs[i], defs[j] = defs[j], defs[i]
	}
	return defs
}
