package spell_test

import (
	"testing"

	"promethean/internal/spell"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "ab", 1},
		{"retention", "retenton", 1}, {"kitten", "sitting", 3}, {"ab", "ba", 2},
	} {
		if got := spell.Distance(c.a, c.b); got != c.want {
			t.Errorf("%q %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
