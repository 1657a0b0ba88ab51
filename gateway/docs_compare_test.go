package gateway_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Fields whose values are other ones each time: some are names that are used
// again later in the page, the others are times and sizes.
var (
	naming  = []string{"id", "ids", "lastId", "lease", "caused_by"}
	passing = []string{"ts", "lastTs", "ack_deadline_ms", "lagMs", "bytes"}
)

var digits = regexp.MustCompile(`\d+`)

// here puts the ids and leases of this run in the place of those of the page.
func (p *page) here(s string) string {
	for was, is := range p.known {
		s = strings.ReplaceAll(s, was, is)
	}
	return s
}

// compareText compares an answer with what is shown: as JSON, or line by line
// where lines are JSON or begin with "data: ".
func (p *page) compareText(got, want string) string {
	var g, w any
	if json.Unmarshal([]byte(want), &w) == nil {
		if err := json.Unmarshal([]byte(got), &g); err != nil {
			return fmt.Sprintf("got %s", got)
		}
		return p.compare("", "", g, w)
	}
	have, shown := strings.Split(got, "\n"), strings.Split(want, "\n")
	if len(have) != len(shown) {
		return fmt.Sprintf("%d lines, shown are %d:\n%s", len(have), len(shown), got)
	}
	for i := range have {
		a, isData := strings.CutPrefix(have[i], "data: ")
		b, alsoData := strings.CutPrefix(shown[i], "data: ")
		if isData != alsoData {
			return fmt.Sprintf("line %d is %s", i, have[i])
		}
		wrong := ""
		switch {
		case json.Unmarshal([]byte(b), &w) == nil:
			if err := json.Unmarshal([]byte(a), &g); err != nil {
				return fmt.Sprintf("line %d is %s", i, have[i])
			}
			wrong = p.compare("", "", g, w)
		case strings.HasPrefix(b, ":"): // of a delivery: its lease and deadline
			a, b = digits.ReplaceAllString(a, "0"), digits.ReplaceAllString(b, "0")
			fallthrough
		default:
			if a != b {
				wrong = fmt.Sprintf("is %q, shown is %q", a, b)
			}
		}
		if wrong != "" {
			return fmt.Sprintf("line %d: %s", i, wrong)
		}
	}
	return ""
}

// compare compares JSON values: names, kinds, lengths, and values that are not
// other ones each time.
func (p *page) compare(path, field string, got, want any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s is %v, shown is an object", path, got)
		}
		names := slices.Sorted(maps.Keys(w))
		if have := slices.Sorted(maps.Keys(g)); !slices.Equal(have, names) {
			return fmt.Sprintf("%s has the fields %q, shown are %q", path, have, names)
		}
		for _, name := range names {
			if wrong := p.compare(path+"."+name, name, g[name], w[name]); wrong != "" {
				return wrong
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%s is %v, shown are %d", path, got, len(w))
		}
		for i := range w {
			if wrong := p.compare(fmt.Sprintf("%s[%d]", path, i), field, g[i], w[i]); wrong != "" {
				return wrong
			}
		}
		return ""
	case string:
		g, ok := got.(string)
		switch {
		case !ok:
		case p.known[w] == "" && slices.Contains(naming, field):
			p.known[w] = g
			return ""
		case g == w || p.known[w] == g:
			return ""
		}
	case float64:
		if _, ok := got.(float64); ok && slices.Contains(passing, field) {
			return ""
		}
	}
	if got != want {
		return fmt.Sprintf("%s is %v, shown is %v", path, got, want)
	}
	return ""
}

// width is that of a line in the page.
const width = 110

// wrap breaks an object that is too long for a line, after commas.
func wrap(text string) string {
	if len(text) <= width || strings.Count(text, "\n") > 1 || !strings.HasPrefix(text, "{") {
		return text
	}
	var out strings.Builder
	line := 0
	for text != "" {
		n := strings.Index(text, `,"`)
		if m := strings.Index(text, ",{"); m >= 0 && (n < 0 || m < n) {
			n = m
		}
		part := text
		if n >= 0 {
			part = text[:n+1]
		}
		if text = text[len(part):]; line > 0 && line+len(part) > width {
			out.WriteString("\n ")
			line = 1
		}
		out.WriteString(part)
		line += len(part)
	}
	return out.String()
}
