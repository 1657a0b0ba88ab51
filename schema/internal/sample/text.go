package sample

import (
	"math"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// compiled is a parsed pattern.
type compiled struct{ tree *syntax.Regexp }

// letters are characters that programs stumble over, and plain ones.
var letters = []rune("abcxyzABC0189 _-./\\\"'<>&%${}é漢\u00df\u0130\u200b\u2028\U0001f600\t\n\u0001")

// text makes a string.
func (m *Maker) text(f *facts) (any, bool) {
	low, high := 0, math.MaxInt
	var patterns []jsonschema.Regexp
	var formats []string
	for _, a := range f.all {
		if a.MinLength != nil {
			low = max(low, *a.MinLength)
		}
		if a.MaxLength != nil {
			high = min(high, *a.MaxLength)
		}
		if a.Pattern != nil {
			patterns = append(patterns, a.Pattern)
		}
		if a.Format != nil {
			formats = append(formats, a.Format.Name)
		}
	}
	if low > high || low > maxText {
		return nil, false
	}
	for range 30 {
		var s string
		switch {
		case len(m.pool.texts) > 0 && m.chance(6):
			s = pick(m, m.pool.texts)
		case len(formats) > 0:
			s = m.format(pick(m, formats))
		case len(patterns) > 0:
			s = m.match(pick(m, patterns), low)
		case len(m.pool.formats) > 0 && m.chance(6):
			s = m.format(pick(m, m.pool.formats))
		case len(m.pool.regexps) > 0 && m.chance(6):
			s = m.match(pick(m, m.pool.regexps), low)
		default:
			s = m.letters(m.length(low, high))
		}
		if m.fits(f, s, low, high) {
			return s, true
		}
	}
	return nil, false
}

// fits says whether a string is one that all schemas take.
func (m *Maker) fits(f *facts, s string, low, high int) bool {
	if n := utf8.RuneCountInString(s); n < low || n > high || !utf8.ValidString(s) {
		return false
	}
	for _, a := range f.all {
		if a.Pattern != nil && !a.Pattern.MatchString(s) || a.Format != nil && a.Format.Validate(s) != nil {
			return false
		}
	}
	return true
}

// length chooses how long a string is.
func (m *Maker) length(low, high int) int {
	n := low
	switch m.rng.IntN(6) {
	case 0:
	case 1:
		if high <= maxText {
			n = high
		}
	case 2:
		if len(m.pool.lengths) > 0 {
			n = pick(m, m.pool.lengths) + m.rng.IntN(3) - 1
		}
	case 3:
		n = low + m.rng.IntN(3)
	case 4:
		if m.chance(6) {
			n = low + 200
		}
	default:
		n = low + m.rng.IntN(12)
	}
	return min(max(n, low), high, maxText)
}

func (m *Maker) letters(n int) string {
	var b strings.Builder
	for range n {
		if m.chance(5) {
			b.WriteRune(pick(m, letters))
		} else {
			b.WriteRune('a' + rune(m.rng.IntN(26)))
		}
	}
	return b.String()
}

// match makes a string that a pattern matches. Anchors inside and word
// boundaries are not heeded: what does not match is thrown away by the caller.
func (m *Maker) match(re jsonschema.Regexp, low int) string {
	c, ok := m.pieces[re]
	if !ok {
		c = &compiled{}
		if tree, err := syntax.Parse(re.String(), syntax.Perl); err == nil {
			c.tree = tree
		}
		m.pieces[re] = c
	}
	if c.tree == nil {
		return ""
	}
	var b strings.Builder
	m.walk(&b, c.tree, low)
	s := b.String()
	if m.chance(4) {
		// Where the pattern is not anchored, anything may stand around it.
		if around := m.letters(m.rng.IntN(4)) + s + m.letters(m.rng.IntN(4)); re.MatchString(around) {
			return around
		}
	}
	if n := utf8.RuneCountInString(s); n < low {
		if longer := s + m.letters(low-n); re.MatchString(longer) {
			return longer
		}
	}
	return s
}

// walk writes something that a part of a pattern matches.
func (m *Maker) walk(b *strings.Builder, re *syntax.Regexp, low int) {
	if b.Len() > maxText {
		return
	}
	repeat := func(from, to int) {
		n := from
		if to < 0 {
			to = from + 4
			if m.chance(3) {
				to = max(to, low)
			}
		}
		switch m.rng.IntN(3) {
		case 0:
			n = to
		case 1:
			n = from + m.rng.IntN(to-from+1)
		}
		for range n {
			m.walk(b, re.Sub[0], low)
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			b.WriteRune(r)
		}
	case syntax.OpCharClass:
		if len(re.Rune) > 0 {
			i := m.rng.IntN(len(re.Rune)/2) * 2
			b.WriteRune(m.between(re.Rune[i], re.Rune[i+1]))
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		r := pick(m, letters)
		if r == '\n' {
			r = 'n'
		}
		b.WriteRune(r)
	case syntax.OpCapture:
		m.walk(b, re.Sub[0], low)
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			m.walk(b, sub, low)
		}
	case syntax.OpAlternate:
		m.walk(b, pick(m, re.Sub), low)
	case syntax.OpStar:
		repeat(0, -1)
	case syntax.OpPlus:
		repeat(1, -1)
	case syntax.OpQuest:
		repeat(0, 1)
	case syntax.OpRepeat:
		repeat(re.Min, re.Max)
	}
}

// between gives a character of a range, one that can be read if there is one.
func (m *Maker) between(from, to rune) rune {
	if from < ' ' && to >= ' ' && !m.chance(8) {
		from = ' '
	}
	if to > '~' && from <= '~' && !m.chance(4) {
		to = '~'
	}
	r := from + rune(m.rng.IntN(int(to-from)+1))
	if !utf8.ValidRune(r) {
		return from
	}
	return r
}
