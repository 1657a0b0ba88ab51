package fast

import (
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// someNumbers are numbers that differ little, in all ways to write them.
func someNumbers() []string {
	list := append([]string{"0.0", "-0.0", "0e5", "1e18", "999999999999999999", "1000000000000000000", "-999999999999999999.5", "1e-18", "5", "15", "1.05", "1.5", "1.50", "-1.5", "1.51", "105e-2"}, genNumbers...)
	r := rand.New(rand.NewPCG(3, 4))
	for range 150 {
		var b strings.Builder
		if r.IntN(3) == 0 {
			b.WriteByte('-')
		}
		digits := strconv.Itoa(r.IntN([]int{3, 20, 200, 1 << 40}[r.IntN(4)]))
		b.WriteString(digits)
		if r.IntN(2) == 0 {
			b.WriteString("." + []string{"0", "5", "05", "50", "001", "10", digits}[r.IntN(7)])
		}
		if r.IntN(3) == 0 {
			b.WriteString("e" + strconv.Itoa(r.IntN(9)-4))
		}
		list = append(list, b.String())
	}
	return list
}

// Comparing and dividing give what exact arithmetic gives.
func TestNumbersExactly(t *testing.T) {
	list := someNumbers()
	for _, a := range list {
		n, ok := parseNumber([]byte(a))
		x, fine := new(big.Rat).SetString(a)
		if !ok || !fine {
			t.Fatal(a)
		}
		if n.integer() != x.IsInt() {
			t.Errorf("%s: integer is %v", a, n.integer())
		}
		if m, ok := exactly(x); !ok || m.compare(&n) != 0 {
			t.Errorf("%s is not equal to itself from a schema", a)
		}
		for _, b := range list {
			m, _ := parseNumber([]byte(b))
			y, _ := new(big.Rat).SetString(b)
			if got, want := n.compare(&m), x.Cmp(y); got != want {
				t.Fatalf("%s against %s: %d, want %d", a, b, got, want)
			}
			d, ok := newDivisor(&m)
			if !ok {
				continue
			}
			if yes, known := d.divides(&n); known && yes != new(big.Rat).Quo(x, y).IsInt() {
				t.Fatalf("%s divides %s: %v", b, a, yes)
			}
		}
	}
}
