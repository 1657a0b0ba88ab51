package document

import (
	"bytes"
	"fmt"
	"strconv"
)

// AppendNumber appends a JSON number so that numbers of equal value have equal
// bytes: "-"?, its digits without zeros at either end, "e" and the exponent.
func AppendNumber(dst, v []byte) []byte {
	neg := v[0] == '-'
	if neg {
		v = v[1:]
	}
	mantissa, exp := v, []byte(nil)
	if i := bytes.IndexAny(v, "eE"); i >= 0 {
		mantissa, exp = v[:i], v[i+1:]
	}
	whole, fraction := mantissa, []byte(nil)
	if i := bytes.IndexByte(mantissa, '.'); i >= 0 {
		whole, fraction = mantissa[:i], mantissa[i+1:]
	}
	fraction = bytes.TrimRight(fraction, "0")
	shift := -int64(len(fraction))
	if len(fraction) == 0 {
		trimmed := bytes.TrimRight(whole, "0")
		shift = int64(len(whole) - len(trimmed))
		whole = trimmed
	}
	whole = bytes.TrimLeft(whole, "0")
	if len(whole) == 0 {
		fraction = bytes.TrimLeft(fraction, "0")
	}
	if len(whole)+len(fraction) == 0 {
		return append(dst, '0') // and -0
	}
	if neg {
		dst = append(dst, '-')
	}
	dst = append(append(append(dst, whole...), fraction...), 'e')
	return appendSum(dst, exp, shift)
}

// pivot is the largest power of ten that sums stay below.
const pivot = 1_000_000_000_000_000_000

// appendSum appends exp+shift, where exp has any number of digits and a sign or
// not, and shift is far below pivot.
func appendSum(dst, exp []byte, shift int64) []byte {
	neg := len(exp) > 0 && exp[0] == '-'
	exp = bytes.TrimLeft(bytes.TrimLeft(exp, "+-"), "0")
	split := max(0, len(exp)-18)
	high, low := exp[:split], int64(0)
	for _, c := range exp[split:] {
		low = 10*low + int64(c-'0')
	}
	if len(high) == 0 {
		if neg {
			low = -low
		}
		return strconv.AppendInt(dst, low+shift, 10)
	}
	if neg {
		shift = -shift
		dst = append(dst, '-')
	}
	low += shift
	high = append([]byte{'0'}, high...)
	switch {
	case low < 0:
		low += pivot
		step(high, '0', '9', -1)
	case low >= pivot:
		low -= pivot
		step(high, '9', '0', 1)
	}
	digits := fmt.Appendf(high, "%018d", low)
	return append(dst, bytes.TrimLeft(digits, "0")...)
}

// step adds by to a decimal number, whose digits turn from one to the other
// where it carries.
func step(digits []byte, from, to byte, by int8) {
	for i := len(digits) - 1; i >= 0; i-- {
		if digits[i] != from {
			digits[i] = byte(int8(digits[i]) + by)
			return
		}
		digits[i] = to
	}
}
