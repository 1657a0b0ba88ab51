// Package pattern judges regular expressions of schemas.
//
// Our own matching takes linear time. A schema is also read elsewhere, by
// engines that backtrack (JavaScript, PCRE), and there a pattern in which one
// text can go through a repeated part in two ways takes time that doubles with
// each character. [Check] refuses such patterns, and no others: a repetition
// inside a repetition is fine as long as every text has one way through it.
//
// # How it decides
//
// The pattern becomes its position automaton: one state for each place that
// consumes a character, and for each two places the number of ways that lead
// from the one to the other without consuming anything. The pattern is
// exponential exactly if some state can come back to itself in two ways with the
// same text. That is so if two ways lead along one edge of a cycle, or if in the
// product of the automaton with itself a pair (p, p) can reach a pair of
// different states and come back.
//
// What is bounded by the pattern and not by the text is let through, such as
// a{0,20}a{0,20}.
package pattern

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

// The limits beyond which a pattern is not judged, but refused. They are far
// from what people write: an e-mail address has some dozen positions.
const (
	maxPositions = 4000    // places that consume a character
	maxEdges     = 200_000 // pairs of places that may follow each other
	maxPairs     = 250_000 // states of the product that are looked at
)

var (
	errExponential = errors.New("an engine that backtracks, as in JavaScript, can take exponential time on it, because one text can go through a repeated part in several ways: write it so that each text has one way")
	errTooLarge    = errors.New("it is too large to say whether an engine that backtracks could take exponential time on it: make it smaller, or check lengths with minLength and maxLength")
)

// Check says why a pattern must not stand in a schema, nil if it may.
func Check(pattern string) error {
	if _, err := regexp.Compile(pattern); err != nil {
		var bad *syntax.Error
		if errors.As(err, &bad) {
			return fmt.Errorf("pattern %q: %s: %q: only what RE2 knows can be used, so no look-around and no back references", pattern, bad.Code, bad.Expr)
		}
		return fmt.Errorf("pattern %q: %w", pattern, err)
	}
	re, err := syntax.Parse(unfold(pattern), syntax.Perl)
	if err != nil {
		return fmt.Errorf("pattern %q: %w", pattern, errTooLarge) // it has grown beyond the parser's own limit
	}
	a := &automaton{}
	a.build(re.Simplify())
	switch {
	case a.tooLarge:
		return fmt.Errorf("pattern %q: %w", pattern, errTooLarge)
	case a.exponential():
		return fmt.Errorf("pattern %q: %w", pattern, errExponential)
	case a.tooLarge:
		return fmt.Errorf("pattern %q: %w", pattern, errTooLarge)
	}
	return nil
}

// unfold puts an empty group at the beginning of each alternative. The parser
// joins equal beginnings of alternatives and repeated repetitions, and so removes
// the ambiguity that is looked for; it leaves groups alone.
func unfold(pattern string) string {
	const mark = "()"
	out := []byte(mark)
	for i := 0; i < len(pattern); {
		n := 1
		open := false
		switch pattern[i] {
		case '\\':
			n = escapeLen(pattern[i:])
		case '[':
			n = classLen(pattern[i:])
		case '(':
			n, open = groupLen(pattern[i:])
		case '|':
			open = true
		}
		out = append(out, pattern[i:i+n]...)
		if open {
			out = append(out, mark...)
		}
		i += n
	}
	return string(out)
}

// escapeLen is the length of an escape at the beginning of s.
func escapeLen(s string) int {
	if len(s) > 1 && s[1] == 'Q' {
		for i := 2; i+1 < len(s); i++ {
			if s[i] == '\\' && s[i+1] == 'E' {
				return i + 2
			}
		}
		return len(s)
	}
	return min(2, len(s))
}

// classLen is the length of a bracket at the beginning of s.
func classLen(s string) int {
	i := 1
	if i < len(s) && s[i] == '^' {
		i++
	}
	for first := true; i < len(s); first = false {
		switch {
		case s[i] == ']' && !first:
			return i + 1
		case s[i] == '\\':
			i += min(2, len(s)-i)
		case s[i] == '[' && i+1 < len(s) && s[i+1] == ':':
			i += namedLen(s[i:])
		default:
			i++
		}
	}
	return len(s)
}

// namedLen is the length of a class such as [:alpha:], or 1 if it is none.
func namedLen(s string) int {
	for i := 2; i+1 < len(s); i++ {
		if s[i] == ':' && s[i+1] == ']' {
			return i + 2
		}
		if (s[i] < 'a' || s[i] > 'z') && s[i] != '^' {
			break
		}
	}
	return 1
}

// groupLen is the length of what opens a group, and whether one is open then:
// (?i) sets a flag and is closed already.
func groupLen(s string) (n int, open bool) {
	if len(s) < 2 || s[1] != '?' {
		return 1, true
	}
	for i := 2; i < len(s); i++ {
		switch s[i] {
		case ':', '>':
			return i + 1, true
		case ')':
			return i + 1, false
		}
	}
	return len(s), true
}
