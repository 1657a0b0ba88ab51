package jq

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

const (
	// maxPattern is the longest regular expression in bytes.
	maxPattern = 4096
	// maxPatternSize is the size of the largest one with its repetitions written
	// out.
	maxPatternSize = 2000
	// maxPatterns is how many a machine keeps.
	maxPatterns = 64
)

type pattern struct {
	re    *regexp.Regexp
	names []string
	size  int
	all   bool // the flag g
}

// pattern compiles a regular expression, or finds the one that was compiled. A
// step over each character costs the size of it at worst.
func (r *run) pattern(re, flags any) (*pattern, error) {
	text, ok := re.(string)
	if !ok {
		return nil, fmt.Errorf("a regular expression is a string, not %s", preview(re))
	}
	f := ""
	if flags != nil {
		if f, ok = flags.(string); !ok {
			return nil, fmt.Errorf("flags are a string, not %s", preview(flags))
		}
	}
	if p := r.patterns[[2]string{text, f}]; p != nil {
		return p, nil
	}
	if len(text) > maxPattern {
		r.err = fmt.Errorf("%w: a regular expression has more than %d bytes", ErrLimit, maxPattern)
		return nil, r.err
	}
	if !r.work(2000 + 10*len(text)) {
		return nil, r.err
	}
	p := &pattern{}
	full := text
	for _, c := range f {
		switch c {
		case 'g':
			p.all = true
		case 'i':
			full = "(?i)" + full
		case 'm':
			full = "(?s)" + full
		default:
			return nil, fmt.Errorf("unsupported regular expression flag: %q", f)
		}
	}
	tree, err := syntax.Parse(full, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("invalid regular expression %q: %w", text, err)
	}
	if p.size = expanded(tree); p.size > maxPatternSize {
		r.err = fmt.Errorf("%w: a regular expression is too large with its repetitions", ErrLimit)
		return nil, r.err
	}
	if p.re, err = regexp.Compile(full); err != nil {
		return nil, fmt.Errorf("invalid regular expression %q: %w", text, err)
	}
	p.names = p.re.SubexpNames()
	if len(r.patterns) >= maxPatterns {
		clear(r.patterns) // they come from payloads
	}
	r.patterns[[2]string{strings.Clone(text), f}] = p
	return p, nil
}

// expanded estimates how many instructions a pattern becomes.
func expanded(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/2
	for _, s := range re.Sub {
		n += expanded(s)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxPatternSize+1)
}

// subject gives the text to be searched and takes the work for it.
func (r *run) subject(v any, p *pattern) (string, error) {
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("a regular expression cannot be applied to: %s", preview(v))
	}
	if n := len(s) + 1; n > r.steps/p.size*4 || !r.work(n*p.size/4) {
		r.work(r.steps)
		r.look()
		return "", r.err
	}
	return s, nil
}

func (r *run) test(v, re, flags any) any {
	p, err := r.pattern(re, flags)
	if err != nil {
		return err
	}
	s, err := r.subject(v, p)
	if err != nil {
		return err
	}
	return p.re.MatchString(s)
}

func (r *run) match(v, re, flags any) any {
	p, err := r.pattern(re, flags)
	if err != nil {
		return err
	}
	s, err := r.subject(v, p)
	if err != nil {
		return err
	}
	each := 512 * len(p.names) // what a match costs in memory
	limit := 1
	if p.all {
		limit = r.bytes/each + 1
	}
	found := p.re.FindAllStringSubmatchIndex(s, limit)
	if !r.charge(each * len(found)) {
		return r.err
	}
	list := make([]any, len(found))
	c := counter{s: s}
	for i, at := range found {
		captures := make([]any, 0, len(p.names)-1)
		whole := c.object(at[0], at[1])
		for j := 1; j < len(p.names); j++ {
			m := map[string]any{"offset": -1, "length": 0, "string": nil}
			if at[2*j] >= 0 {
				// Groups may overlap, so each is counted from the match on.
				inner := counter{s: s, at: at[0], runes: whole["offset"].(int)}
				m = inner.object(at[2*j], at[2*j+1])
			}
			m["name"] = nil
			if p.names[j] != "" {
				m["name"] = p.names[j]
			}
			captures = append(captures, m)
		}
		whole["captures"] = captures
		list[i] = whole
	}
	return r.made(list)
}

// counter turns offsets in bytes into offsets in characters, going forward, so
// that many matches in a long text do not count it anew each.
type counter struct {
	s         string
	at, runes int
}

func (c *counter) object(from, to int) map[string]any {
	if from < c.at { // a group before what was counted; not with Go's matches
		*c = counter{s: c.s}
	}
	c.runes += utf8.RuneCountInString(c.s[c.at:from])
	c.at = from
	return map[string]any{"offset": c.runes, "length": utf8.RuneCountInString(c.s[from:to]), "string": c.s[from:to]}
}
