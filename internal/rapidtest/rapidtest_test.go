package rapidtest_test

import (
	"flag"
	"testing"

	"pgregory.net/rapid"

	"promethean/internal/rapidtest"
)

func TestChecks(t *testing.T) {
	drawn := func(t *testing.T) (n int) {
		rapid.Check(t, func(*rapid.T) { n++ })
		return n
	}
	f := flag.Lookup("rapid.checks")
	if f.Value.String() != f.DefValue {
		t.Skip("-rapid.checks is given")
	}
	whole := drawn(t)
	t.Run("fewer", func(t *testing.T) {
		rapidtest.Checks(t, 7)
		if n := drawn(t); n != 7 {
			t.Errorf("drew %d, want 7", n)
		}
		rapidtest.Checks(t, 9) // as if the flag were given
		if n := drawn(t); n != 7 {
			t.Errorf("drew %d, want 7", n)
		}
	})
	if n := drawn(t); n != whole {
		t.Errorf("drew %d afterwards, want %d", n, whole)
	}
}
