package mongofake

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"math/big"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// class gives a type's place in the order of BSON values. Types of one class
// are compared by their values.
func class(t bson.Type) int {
	switch t {
	case bson.TypeMinKey:
		return 0
	case bson.TypeNull, bson.TypeUndefined:
		return 1
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return 2
	case bson.TypeString, bson.TypeSymbol:
		return 3
	case bson.TypeEmbeddedDocument:
		return 4
	case bson.TypeArray:
		return 5
	case bson.TypeBinary:
		return 6
	case bson.TypeObjectID:
		return 7
	case bson.TypeBoolean:
		return 8
	case bson.TypeDateTime:
		return 9
	case bson.TypeTimestamp:
		return 10
	case bson.TypeRegex:
		return 11
	case bson.TypeMaxKey:
		return 13
	}
	return 12
}

// compare orders two values as MongoDB sorts them.
func compare(a, b bson.RawValue) int {
	ca, cb := class(a.Type), class(b.Type)
	if ca != cb {
		return cmp.Compare(ca, cb)
	}
	switch ca {
	case 0, 1, 13:
		return 0
	case 2:
		return compareNumbers(a, b)
	case 3:
		return bytes.Compare(text(a), text(b))
	case 4:
		return compareDocuments(a.Document(), b.Document())
	case 5:
		return compareArrays(a, b)
	case 6:
		return compareBinary(a.Value, b.Value)
	case 9:
		return cmp.Compare(a.DateTime(), b.DateTime())
	case 10:
		return cmp.Compare(binary.LittleEndian.Uint64(a.Value), binary.LittleEndian.Uint64(b.Value))
	}
	return bytes.Compare(a.Value, b.Value) // object ids, booleans, patterns, code
}

// text gives the bytes of a string without its length and end.
func text(v bson.RawValue) []byte { return v.Value[4 : len(v.Value)-1] }

// compareBinary goes by length, then by kind, then by bytes.
func compareBinary(a, b []byte) int {
	if c := cmp.Compare(binary.LittleEndian.Uint32(a), binary.LittleEndian.Uint32(b)); c != 0 {
		return c
	}
	return bytes.Compare(a[4:], b[4:])
}

func compareDocuments(a, b bson.Raw) int {
	left, _ := a.Elements() // both were validated when they came
	right, _ := b.Elements()
	for i := range min(len(left), len(right)) {
		x, y := left[i].Value(), right[i].Value()
		if c := cmp.Compare(class(x.Type), class(y.Type)); c != 0 {
			return c
		}
		if c := cmp.Compare(left[i].Key(), right[i].Key()); c != 0 {
			return c
		}
		if c := compare(x, y); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(left), len(right))
}

func compareArrays(a, b bson.RawValue) int {
	left, _ := a.Array().Values()
	right, _ := b.Array().Values()
	for i := range min(len(left), len(right)) {
		if c := compare(left[i], right[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(left), len(right))
}

// exactIn is up to which whole number a float is exact.
const exactIn = 1 << 53

func compareNumbers(a, b bson.RawValue) int {
	x, xWhole := whole(a)
	y, yWhole := whole(b)
	if xWhole && yWhole {
		return cmp.Compare(x, y)
	}
	f, g := float(a), float(b)
	if math.IsNaN(f) || math.IsNaN(g) || math.IsInf(f, 0) || math.IsInf(g, 0) {
		return cmp.Compare(f, g) // NaN comes first
	}
	if a.Type != bson.TypeDecimal128 && b.Type != bson.TypeDecimal128 && math.Abs(f) < exactIn && math.Abs(g) < exactIn {
		return cmp.Compare(f, g)
	}
	return exact(a).Cmp(exact(b))
}

// whole gives an integer as it is.
func whole(v bson.RawValue) (int64, bool) {
	switch v.Type {
	case bson.TypeInt32:
		return int64(v.Int32()), true
	case bson.TypeInt64:
		return v.Int64(), true
	}
	return 0, false
}

// float gives any number, rounded.
func float(v bson.RawValue) float64 {
	switch v.Type {
	case bson.TypeDouble:
		return v.Double()
	case bson.TypeDecimal128:
		d := v.Decimal128()
		if d.IsNaN() {
			return math.NaN()
		}
		if sign := d.IsInf(); sign != 0 {
			return math.Inf(sign)
		}
		f, _ := exact(v).Float64()
		return f
	}
	n, _ := whole(v)
	return float64(n)
}

// exact gives any finite number as it is.
func exact(v bson.RawValue) *big.Rat {
	switch v.Type {
	case bson.TypeDouble:
		return new(big.Rat).SetFloat64(v.Double())
	case bson.TypeDecimal128:
		digits, exp, err := v.Decimal128().BigInt()
		if err != nil {
			return new(big.Rat) // not finite: the callers have looked
		}
		r := new(big.Rat).SetInt(digits)
		scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil))
		if exp < 0 {
			return r.Quo(r, scale)
		}
		return r.Mul(r, scale)
	}
	n, _ := whole(v)
	return new(big.Rat).SetInt64(n)
}

// identity gives a text that two values share if and only if they are equal.
func identity(v bson.RawValue) string {
	switch class(v.Type) {
	case 1:
		return "null"
	case 2:
		return "n" + number(v)
	case 3:
		return "s" + string(text(v))
	case 4:
		b := []byte("d")
		elements, _ := v.Document().Elements()
		for _, e := range elements {
			b = appendPart(b, e.Key())
			b = appendPart(b, identity(e.Value()))
		}
		return string(b)
	case 5:
		b := []byte("a")
		values, _ := v.Array().Values()
		for _, e := range values {
			b = appendPart(b, identity(e))
		}
		return string(b)
	}
	return string(append([]byte{'x', byte(v.Type)}, v.Value...))
}

func appendPart(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func number(v bson.RawValue) string {
	if n, ok := whole(v); ok {
		return strconv.FormatInt(n, 10)
	}
	f := float(v)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	r := exact(v)
	if r.IsInt() {
		return r.Num().String()
	}
	return r.RatString()
}

// value encodes a Go value.
func value(x any) bson.RawValue {
	t, b, err := bson.MarshalValue(x)
	if err != nil {
		panic("mongofake: a value of our own making cannot be encoded: " + err.Error())
	}
	return bson.RawValue{Type: t, Value: b}
}

// encode encodes a document of our own making, or one that was decoded before.
func encode(d bson.D) bson.Raw {
	if d == nil {
		d = bson.D{}
	}
	b, err := bson.Marshal(d)
	if err != nil {
		panic("mongofake: a document of our own making cannot be encoded: " + err.Error())
	}
	return b
}

// truthy reads a flag: a boolean, or a number that is not 0.
func truthy(v bson.RawValue) bool {
	switch class(v.Type) {
	case 8:
		return v.Boolean()
	case 2:
		return float(v) != 0
	}
	return false
}
