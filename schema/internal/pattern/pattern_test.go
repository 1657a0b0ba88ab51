package pattern

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"
	"time"
)

func TestCheckLetsThrough(t *testing.T) {
	for _, p := range []string{
		``, `a`, `^$`, `a*`, `a+b*c?`, `.*`, `^.*$`, `.*foo.*`, `a*a*$`, `\d+(\.\d+)?`,
		`^[a-z0-9]+(\.[a-z0-9]+)*$`,
		`^[a-z]+(-[a-z]+)*$`,
		`^(a|b)*$`, `^(ab|cd)*$`, `^(a|bc)+$`, `^([a-z]:)*$`, `^(?:\s*a)*$`,
		`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`,
		`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$`,
		`^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)*\.[a-zA-Z]{2,}$`,
		`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}$`,
		`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$`,
		`^#([0-9a-fA-F]{3}){1,2}$`,
		`^(\+|00)[1-9][0-9 ]{7,14}$`,
		`^https?://[^\s/$.?#].[^\s]*$`,
		`^/([^/]+/)*[^/]*$`,
		`^"([^"\\]|\\.)*"$`,
		`^(a?)*$`, `^(a?b)*$`, `^(|a)+x$`,
		`(?i)^(abc|xyz)*$`, `^(?P<year>\d+)(?:,(?P<more>\d+))*$`,
		`^[[:alpha:]|(]+$`, `^[]|(]*$`, `^\Q(a+)+\E$`, `^\(a+\)+$`, `^[^]]+$`,
		`^(x-[a-z]+;)*(y-[a-z]+;)*$`, `^.{0,1000}$`, `^(a{2,5}b)*$`, `^(foo|bar)+(baz)?$`, `\p{L}+(\s\p{L}+)*`,
		`^([0-9]{1,3}\.){3}[0-9]{1,3}$`,
	} {
		if err := Check(p); err != nil {
			t.Errorf("%v: it is harmless", err)
		}
	}
}

func TestCheckRefusesExponential(t *testing.T) {
	for _, p := range []string{
		`(a+)+$`, `(a|a)*$`, `(a|aa)+$`, `([a-z]+)*x`, `(.*)*`, `(?:a*)*`, `(?:a+)+b`, `^(a*)+$`, `^(a*)*b`,
		`(a|b|ab)*c`, `^(\w+\s?)+$`, `^([a-z]+[0-9]*)+$`, `(x+x+)+y`, `^(\d+)*$`, `(ab|ab)*c`,
		`^(([a-z])+.)+[A-Z]([a-z])+$`, `^(a*b?)*$`, `((a*)+b)*`, `(?i)(a|A)*$`, `([ab]|[bc])*d`, `(.|\n|x)*y`,
		`^([a-zA-Z0-9]+\.?)+@`, `^(?:[\w.]+)+$`, `(a|a?)+b`, `(a{1,2})*$`, `((a|b)*c?)*d`, `^(?P<x>(?:a|[a-c])+)$`,
		`(\Qa\E|a)*b`, `([[:alpha:]]|x)*1`, `(a(?i)|(?i:A)|a)*b`,
	} {
		if err := Check(p); !errors.Is(err, errExponential) {
			t.Errorf("Check(%q) = %v, want that it is exponential", p, err)
		}
	}
}

func TestCheckRefusesWhatCannotBeCompiled(t *testing.T) {
	for _, p := range []string{`(`, `[`, `a**`, `(?=a)b`, `(?!a)`, `(a)\1`, `(?<=x)y`, `a{2000}`, `\8`, `[b-a]`} {
		err := Check(p)
		if err == nil || !strings.Contains(err.Error(), "RE2") {
			t.Errorf("Check(%q) = %v, want what cannot be compiled", p, err)
		}
	}
}

func TestCheckRefusesWhatIsTooLarge(t *testing.T) {
	for _, p := range []string{
		strings.Repeat("[a-z]{1000}", 5),
		"(" + strings.Repeat("[a-z]?", 700) + ")*x",
		"^(.{0,900}.{0,900}:)*$",
	} {
		begin := time.Now()
		err := Check(p)
		if !errors.Is(err, errTooLarge) && !errors.Is(err, errExponential) {
			t.Errorf("Check(%.20q…) = %v, want that it is too large", p, err)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("Check(%.20q…) took %v", p, took)
		}
	}
	if err := Check(strings.Repeat("[a-z]{1000}", 5)); !errors.Is(err, errTooLarge) {
		t.Errorf("%v, want that it is too large", err)
	}
}

// ways counts the ways of a text into a pattern, as an engine that backtracks
// tries them.
func ways(a *automaton, start map[int]int, text string) (sum float64) {
	now := make(map[int]float64)
	for i, r := range text {
		then := make(map[int]float64)
		step := func(q int, n float64) {
			if meet(a.class[q], []rune{r, r}) {
				then[q] += n
			}
		}
		if i == 0 {
			for q, n := range start {
				step(q, float64(n))
			}
		}
		for p, n := range now {
			for q, m := range a.follow[p] {
				step(q, n*float64(m))
			}
		}
		now = then
	}
	for _, n := range now {
		sum += n
	}
	return sum
}

// units are all words of up to four letters.
func units(letters string) (list []string) {
	begin := []string{""}
	for range 4 {
		var longer []string
		for _, w := range begin {
			for _, r := range letters {
				longer = append(longer, w+string(r))
			}
		}
		list = append(list, longer...)
		begin = longer
	}
	return list
}

// TestAgainstCounting compares the verdict with the number of ways that texts
// really have: if a text is made twice as long, a polynomial of a small degree
// grows by a small factor.
func TestAgainstCounting(t *testing.T) {
	atoms := []string{"a", "b", "[ab]", "ab", "(a|b)", "a?", "b*", "(ab?)", "(a|ba)"}
	words := units("ab;")
	words = append(words, "a,a;", "ab,ab;", "a,ab;", "ab,a;", "aa,aa;", "ba,a;")
	seen := map[bool]int{}
	for _, x := range atoms {
		for _, y := range atoms {
			for _, form := range []string{"(%s%s)*", "(%s|%s)*", "(%s+%s)+", "(%s(,%s)*;)*"} {
				p := fmt.Sprintf(form, x, y)
				if _, err := regexp.Compile(p); err != nil {
					continue
				}
				judged := errors.Is(Check(p), errExponential)
				a, start := automatonOf(t, p)
				growth := 0.0
				for _, word := range words {
					if n := ways(a, start, strings.Repeat(word, 30)); n > 0 {
						growth = max(growth, ways(a, start, strings.Repeat(word, 60))/n)
					}
				}
				seen[judged]++
				if counted := growth > 1000; counted != judged {
					t.Errorf("%q: exponential is %v, but a text of twice the length has %g times the ways", p, judged, growth)
				}
			}
		}
	}
	if seen[true] < 50 || seen[false] < 50 {
		t.Errorf("%v patterns of each kind: the test is too narrow", seen)
	}
}

func automatonOf(t *testing.T, p string) (a *automaton, start map[int]int) {
	t.Helper()
	re, err := syntax.Parse(unfold(p), syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}
	a = &automaton{}
	return a, a.build(re.Simplify()).first
}

func FuzzCheck(f *testing.F) {
	for _, p := range []string{`(a+)+$`, `[[:alpha:]|(]+`, `\Q(\E|`, `(?i:a|b)*`, `a{2,3}{`, `\`, `[`, `[^`, `[[:`, `(?`, `(?P<a>x)`, `x|`} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if len(p) > 200 {
			return
		}
		_, compiles := regexp.Compile(p)
		if err := Check(p); compiles != nil && err == nil {
			t.Errorf("%q cannot be compiled and is let through", p)
		}
		// The marks must not change what is matched.
		if compiles == nil {
			marked, err := regexp.Compile(unfold(p))
			if err != nil {
				return // the marks cost room, and the parser has a limit
			}
			plain := regexp.MustCompile(p)
			for _, text := range []string{"", "a", "ab", "(a)", "aaa", "x|y", p} {
				if plain.MatchString(text) != marked.MatchString(text) {
					t.Errorf("%q became %q, which judges %q otherwise", p, unfold(p), text)
				}
			}
		}
	})
}
