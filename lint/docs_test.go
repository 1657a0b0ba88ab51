package lint

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/lint.md")

// The table of rules in the page is that of the code.
func TestRulePage(t *testing.T) {
	const page, begin, end = "../docs/lint.md", "<!-- rules -->\n", "<!-- end of rules -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks", page)
	}
	var b strings.Builder
	b.WriteString("| rule | | what it means | example | fix |\n|---|---|---|---|---|\n")
	for _, r := range Rules {
		example := r.Example
		if strings.Contains(example, "(") && !strings.Contains(example, "`") {
			example = "`" + example + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.ID, r.Severity, r.Summary, example, r.Help)
	}
	want := before + begin + b.String() + end + after
	switch {
	case want == string(text):
	case *update:
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not that of the code: run go test ./lint -run TestRulePage -update", page)
	}
}
