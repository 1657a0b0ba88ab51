package fast

import (
	"bytes"
	"math"
	"math/big"
	"math/bits"
)

// maxExponent is the largest exponent of ten that is looked at. The full
// validator writes such numbers out.
const maxExponent = 100_000

// number is a JSON number in exact form: 0.d₁d₂d₃… × 10^exp, where the digits
// are those of head and then of tail, the first and the last one not zero. Zero
// has no digits. head and tail lie in the document.
type number struct {
	head, tail []byte
	exp        int
	negative   bool
	// small is the value, if plain says so: most numbers are short integers.
	small int64
	plain bool
}

// parseNumber reads a number that follows the grammar. It is false if the
// exponent is out of bounds.
func parseNumber(text []byte) (n number, ok bool) {
	i := 0
	if i < len(text) && text[i] == '-' {
		n.negative = true
		i++
	}
	start := i
	var small int64
	for i < len(text) && text[i]-'0' <= 9 {
		small = small*10 + int64(text[i]-'0') // nonsense if long, and not used then
		i++
	}
	n.head = text[start:i]
	if i == len(text) && i-start <= 18 {
		if n.small, n.plain = small, true; n.negative {
			n.small = -small
		}
	}
	n.head = bytes.TrimLeft(n.head, "0")
	n.exp = len(n.head)
	if i < len(text) && text[i] == '.' {
		i++
		start = i
		for i < len(text) && text[i]-'0' <= 9 {
			i++
		}
		n.tail = text[start:i]
		if len(n.head) == 0 {
			t := bytes.TrimLeft(n.tail, "0")
			n.exp = len(t) - len(n.tail)
			n.tail = t
		}
		n.tail = bytes.TrimRight(n.tail, "0")
	}
	if len(n.tail) == 0 {
		n.head = bytes.TrimRight(n.head, "0")
	}
	if i < len(text) && text[i]|0x20 == 'e' {
		e, ok := exponent(text[i+1:])
		if !ok {
			return n, false
		}
		n.exp += e
	}
	if n.zero() {
		n.exp, n.negative = 0, false
	}
	return n, true
}

func exponent(text []byte) (e int, ok bool) {
	negative := false
	if len(text) > 0 && (text[0] == '-' || text[0] == '+') {
		negative = text[0] == '-'
		text = text[1:]
	}
	for _, c := range text {
		if e = e*10 + int(c-'0'); e > maxExponent {
			return 0, false
		}
	}
	if negative {
		e = -e
	}
	return e, true
}

// exactly gives a rational number of a schema. It is false if there is no
// short decimal form.
func exactly(r *big.Rat) (n number, ok bool) {
	if r.Num().BitLen() > 4096 || r.Denom().BitLen() > 4096 {
		return n, false
	}
	places, exact := r.FloatPrec()
	if !exact {
		return n, false
	}
	return parseNumber([]byte(r.FloatString(places)))
}

func (n *number) len() int   { return len(n.head) + len(n.tail) }
func (n *number) zero() bool { return n.len() == 0 }

func (n *number) digit(i int) byte {
	if i < len(n.head) {
		return n.head[i]
	}
	return n.tail[i-len(n.head)]
}

// integer says whether there is nothing behind the point.
func (n *number) integer() bool { return n.plain || n.len() <= n.exp || n.zero() }

func (n *number) sign() int {
	switch {
	case n.zero():
		return 0
	case n.negative:
		return -1
	}
	return 1
}

// compare gives -1, 0 or 1.
func (n *number) compare(m *number) int {
	if n.plain && m.plain {
		switch {
		case n.small < m.small:
			return -1
		case n.small > m.small:
			return 1
		}
		return 0
	}
	s := n.sign()
	if t := m.sign(); s != t {
		if s < t {
			return -1
		}
		return 1
	}
	if s == 0 {
		return 0
	}
	if n.exp != m.exp {
		if n.exp < m.exp {
			return -s
		}
		return s
	}
	k := min(n.len(), m.len())
	for i := range k {
		if a, b := n.digit(i), m.digit(i); a != b {
			if a < b {
				return -s
			}
			return s
		}
	}
	switch {
	case n.len() < m.len():
		return -s
	case n.len() > m.len():
		return s
	}
	return 0
}

// divisor is the number of a multipleOf: mantissa × 10^exp.
type divisor struct {
	mantissa uint64 // below 10^18
	exp      int
}

func newDivisor(n *number) (d divisor, ok bool) {
	if n.zero() || n.negative || n.len() > 18 {
		return d, false
	}
	for i := range n.len() {
		d.mantissa = d.mantissa*10 + uint64(n.digit(i)-'0')
	}
	d.exp = n.exp - n.len()
	return d, true
}

// divides says whether n is a multiple of d; known is false if that would take
// more than 64 bits.
func (d *divisor) divides(n *number) (yes, known bool) {
	if n.zero() {
		return true, true
	}
	if n.plain && d.exp == 0 {
		return n.small%int64(d.mantissa) == 0, true
	}
	m := d.mantissa
	shift := n.exp - n.len() - d.exp // n's last digit against d's
	for ; shift < 0; shift++ {
		hi, lo := bits.Mul64(m, 10)
		if hi != 0 || lo > math.MaxUint64/16 {
			// The divisor, written with n's last digit, is larger than any 19
			// digits. It cannot divide a shorter number.
			return false, n.len() <= 18
		}
		m = lo
	}
	var rest uint64
	for i := range n.len() {
		rest = (rest*10 + uint64(n.digit(i)-'0')) % m
	}
	for ; shift > 0 && rest != 0; shift-- {
		rest = rest * 10 % m
	}
	return rest == 0, true
}
