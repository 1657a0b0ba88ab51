package compat

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/schema-compatibility.md")

const page = "../../docs/schema-compatibility.md"

// TestRows holds every row of the page: the verdicts were written by hand, and
// each one that says no has to name a rule.
func TestRows(t *testing.T) {
	for _, r := range rows {
		t.Run(r.group+"/"+r.change, func(t *testing.T) {
			old, next := compile(t, r.old), compile(t, r.next)
			for _, way := range []struct {
				mode   Mode
				letter string
				want   bool
			}{{Backward, "b", r.backward}, {Forward, "f", r.forward}, {Full, "", r.backward && r.forward}} {
				problems := Check(old, next, way.mode, false)
				if (len(problems) == 0) != way.want {
					t.Errorf("%s: %+v, want compatible %v", way.mode, problems, way.want)
				}
				checkShape(t, problems)
				if way.letter == "" {
					continue
				}
				lenient := Check(old, next, way.mode, true)
				if want := way.want || strings.Contains(r.lenient, way.letter); (len(lenient) == 0) != want {
					t.Errorf("%s, lenient: %+v, want compatible %v", way.mode, lenient, want)
				}
				for _, p := range problems {
					if p.Example == nil && p.Rule != RuleUndecided {
						t.Errorf("%s: %s at %q comes without an example", way.mode, p.Rule, p.Path)
					}
				}
			}
		})
	}
	if len(rows) < 100 {
		t.Errorf("%d rows", len(rows))
	}
}

// verdict writes what is said of a direction.
func verdictOf(t *testing.T, r row, mode Mode, ok bool, letter string) string {
	if ok {
		return "yes"
	}
	var rules []string
	for _, p := range Check(compile(t, r.old), compile(t, r.next), mode, false) {
		rules = append(rules, "`"+p.Rule+"`")
	}
	text := "no: " + strings.Join(slices.Compact(rules), ", ")
	if strings.Contains(r.lenient, letter) {
		text += "; lenient: yes"
	}
	return text
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

func TestPage(t *testing.T) {
	var b strings.Builder
	group := ""
	for _, r := range rows {
		if r.group != group {
			group = r.group
			fmt.Fprintf(&b, "\n### %s\n\n| change | old | new | backward | forward | full | Confluent, backward |\n|---|---|---|---|---|---|---|\n", group)
		}
		full := "no"
		if r.backward && r.forward {
			full = "yes"
		}
		field := r.field
		if r.note != "" {
			field += ". " + r.note
		}
		fmt.Fprintf(&b, "| %s | `%s` | `%s` | %s | %s | %s | %s |\n", r.change, cell(r.old), cell(r.next),
			verdictOf(t, r, Backward, r.backward, "b"), verdictOf(t, r, Forward, r.forward, "f"), full, field)
	}
	table := b.String() + "\n"
	b.Reset()
	b.WriteString("\n| rule | what it says |\n|---|---|\n")
	for _, r := range Rules {
		fmt.Fprintf(&b, "| `%s` | %s |\n", r.Name, r.Text)
	}
	ruleTable := b.String() + "\n"

	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := between(t, string(text), "changes", table)
	want = between(t, want, "rules", ruleTable)
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatalf("%s is not that of the code: run go test ./schema/compat -run TestPage -update", page)
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// between puts a text between two marks.
func between(t *testing.T, text, name, middle string) string {
	t.Helper()
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	before, rest, ok := strings.Cut(text, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks for %s", page, name)
	}
	return before + begin + middle + end + after
}

// TestDifferences: where Confluent says otherwise, the row says why.
func TestDifferences(t *testing.T) {
	for _, r := range rows {
		same := map[bool]string{true: "yes", false: "no"}[r.backward]
		if r.field != "–" && r.field != same && r.note == "" {
			t.Errorf("%s: we say %s and Confluent %s, and the row does not say why", r.change, same, r.field)
		}
	}
}
