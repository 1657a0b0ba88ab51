package fast

import (
	"encoding/json"
	"math/bits"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Plan is a schema made ready for [Plan.Valid]. It does not change, and may be
// used concurrently.
type Plan struct {
	root *node
}

// kind is a set of JSON types.
type kind uint8

const (
	isNull kind = 1 << iota
	isBool
	isInteger // of numbers, those without a fraction
	isNumber
	isString
	isArray
	isObject
)

var kinds = map[string]kind{
	"null": isNull, "boolean": isBool, "integer": isInteger, "number": isNumber | isInteger,
	"string": isString, "array": isArray, "object": isObject,
}

// node is one schema. What is nil or empty asks for nothing.
type node struct {
	never bool // the schema false
	// own says that something below up to object is asked for, so that the value
	// has to be looked at for the node itself.
	own    bool
	types  kind // 0: any
	values *values
	number *numberRule
	text   *textRule
	array  *arrayRule
	object *objectRule

	// Other schemas for the same value.
	all           []*node // allOf and $ref
	some          []*node // anyOf
	one           []*node // oneOf
	not           *node
	cond, yes, no *node   // if, then, else
	same          []*node // all of the above, to find cycles
}

// values is an enum or a const.
type values struct {
	null, yes, no bool
	object, array bool // there is one; which one is left to the full validator
	texts         []string
	many          map[string]bool // instead of texts, if there are many
	numbers       []number
}

type numberRule struct {
	min, max, above, below *number
	multiple               *divisor
}

type textRule struct {
	min, max int // in code points; max is -1 where there is none
	pattern  jsonschema.Regexp
	format   *jsonschema.Format
	quick    func([]byte) bool
}

type arrayRule struct {
	min, max    int // max is -1 where there is none
	prefix      []*node
	items       *node
	contains    *node
	minContains int
	maxContains int // -1 where there is none
	unique      bool
}

// words is how many names a plan can watch for in one object, in words of 64.
const words = 4

// mask is a set of watched names.
type mask [words]uint64

func (m *mask) set(i int)      { m[i>>6&(words-1)] |= 1 << (i & 63) }
func (m *mask) has(i int) bool { return m[i>>6&(words-1)]&(1<<(i&63)) != 0 }
func (m *mask) holds(all *mask) bool {
	return all[0]&^m[0]|all[1]&^m[1]|all[2]&^m[2]|all[3]&^m[3] == 0
}

type objectRule struct {
	min, max   int // max is -1 where there is none
	fields     []field
	slots      []uint16 // finds a field by its name: an index plus one, or 0
	required   mask
	patterns   []pattern
	closed     bool  // additionalProperties is false
	additional *node // or a schema
	names      *node // propertyNames
	dependents []dependent
}

// field is a name that is watched for.
type field struct {
	name  string
	value *node // nil if it is no property
}

type pattern struct {
	name  jsonschema.Regexp
	value *node
}

// dependent is what holds only if a name is there.
type dependent struct {
	name     int
	required mask
	schema   *node // for the object itself
}

// hash is cheap, and tells names apart that differ at either end, in the middle
// or in length. The table is sparse, and holds the names of one schema only.
func hash(name []byte) uint32 {
	n := len(name)
	if n == 0 {
		return 0
	}
	return (uint32(name[0]) | uint32(name[n-1])<<8 | uint32(name[n/2])<<16 | uint32(n)<<24) * 0x9E3779B1 >> 8
}

// find gives the index of a field, or -1.
func (o *objectRule) find(name []byte) int {
	if len(o.slots) == 0 {
		return -1
	}
	last := uint32(len(o.slots) - 1)
	for h := hash(name) & last; ; h = (h + 1) & last {
		i := int(o.slots[h]) - 1
		if i < 0 || o.fields[i].name == string(name) {
			return i
		}
	}
}

// watch gives the index of a name, which becomes a field if it is none yet.
func (o *objectRule) watch(name string) int {
	for i := range o.fields {
		if o.fields[i].name == name {
			return i
		}
	}
	o.fields = append(o.fields, field{name: name})
	return len(o.fields) - 1
}

// index makes the table that find uses. It is false if there are too many names.
func (o *objectRule) index() bool {
	if len(o.fields) == 0 {
		return true
	}
	if len(o.fields) > words*64 {
		return false
	}
	o.slots = make([]uint16, 4<<bits.Len(uint(len(o.fields)-1)))
	last := uint32(len(o.slots) - 1)
	for i := range o.fields {
		h := hash([]byte(o.fields[i].name)) & last
		for o.slots[h] != 0 {
			h = (h + 1) & last
		}
		o.slots[h] = uint16(i + 1)
	}
	return true
}

// newValues makes an enum. It is false if it holds something that cannot be
// compared.
func newValues(list []any) (*values, bool) {
	v := &values{}
	for _, item := range list {
		switch item := item.(type) {
		case nil:
			v.null = true
		case bool:
			v.yes = v.yes || item
			v.no = v.no || !item
		case string:
			v.texts = append(v.texts, item)
		case json.Number:
			n, ok := parseNumber([]byte(item))
			if !ok {
				return nil, false
			}
			v.numbers = append(v.numbers, n)
		case map[string]any:
			v.object = true
		case []any:
			v.array = true
		default:
			return nil, false
		}
	}
	if len(v.texts) > 8 {
		v.many = make(map[string]bool, len(v.texts))
		for _, s := range v.texts {
			v.many[s] = true
		}
		v.texts = nil
	}
	return v, true
}
