package app

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/cli.md")

// cliPage is the page that is held to the code. What stands between the marks is
// made from the tree of commands.
const (
	cliPage   = "../../docs/cli.md"
	pageBegin = "<!-- commands -->\n"
	pageEnd   = "<!-- end of commands -->\n"
)

// tree gives the commands as the program has them.
func tree() *cobra.Command {
	a := &app{screen: new(bytes.Buffer), stderr: new(bytes.Buffer)}
	a.stdout = output{a}
	root := a.root("v0")
	root.InitDefaultCompletionCmd()
	return root
}

// runnable gives the commands that do something, in order.
func runnable(c *cobra.Command) (list []*cobra.Command) {
	if c.HasParent() && c.IsAvailableCommand() && (!c.HasAvailableSubCommands() || c.Args != nil && c.ValidArgsFunction != nil) {
		list = append(list, c)
	}
	for _, below := range c.Commands() {
		if below.Name() != "completion" {
			list = append(list, runnable(below)...)
		}
	}
	return list
}

func TestCommandPage(t *testing.T) {
	text, err := os.ReadFile(cliPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), pageBegin)
	_, after, ok2 := strings.Cut(rest, pageEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks", cliPage)
	}
	want := before + pageBegin + commandPage(tree()) + pageEnd + after
	switch {
	case want == string(text):
	case *update:
		if err := os.WriteFile(cliPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not that of the code: run go test ./internal/app -run TestCommandPage -update", cliPage)
	}
}

// commandPage writes all commands as Markdown.
func commandPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("\n## Flags of every command\n\n")
	flagTable(&b, root.PersistentFlags())
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "## %s\n\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range root.Commands() {
			if c.GroupID != g.ID {
				continue
			}
			for _, c := range runnable(c) {
				commandText(&b, c)
			}
		}
	}
	return b.String()
}

func commandText(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "### %s\n\n", c.CommandPath())
	fmt.Fprintf(b, "```\n%s\n```\n\n%s\n\n", c.UseLine(), c.Long)
	fmt.Fprintf(b, "```sh\n%s\n```\n\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	flagTable(b, c.LocalNonPersistentFlags())
}

func flagTable(b *strings.Builder, flags *pflag.FlagSet) {
	begun := false
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		if !begun {
			begun = true
			b.WriteString("| flag | what it is |\n|---|---|\n")
		}
		name := "`--" + f.Name
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			name += " " + kind
		}
		if d := f.DefValue; d != "" && d != "0" && d != "false" && d != "[]" && d != "0s" && d != "-1" && !strings.Contains(usage, "(default") {
			usage += " (default " + d + ")"
		}
		fmt.Fprintf(b, "| %s` | %s |\n", name, strings.ReplaceAll(usage, "|", `\|`))
	})
	if begun {
		b.WriteString("\n")
	}
}

// Every command says what it does, for whom and how, and completes what it can.
func TestEveryCommandExplainsItself(t *testing.T) {
	for _, c := range runnable(tree()) {
		switch {
		case c.Short == "" || strings.HasSuffix(c.Short, "."):
			t.Errorf("%s: short is %q", c.CommandPath(), c.Short)
		case !strings.Contains(c.Long, "."):
			t.Errorf("%s: long is %q", c.CommandPath(), c.Long)
		case !strings.HasPrefix(c.Example, "  promethean ") && !strings.Contains(c.Example, "| promethean "):
			t.Errorf("%s: example is %q", c.CommandPath(), c.Example)
		}
		for line := range strings.Lines(c.Long + "\n" + c.Example) {
			if len([]rune(line)) > 120 {
				t.Errorf("%s: a line is too long: %s", c.CommandPath(), line)
			}
		}
		for line := range strings.Lines(c.Example) {
			// The examples are for this command, and flags in them exist.
			_, own, found := strings.Cut(line, "promethean ")
			if !found {
				continue
			}
			args := strings.Fields(own)
			at, rest, err := c.Root().Find(args)
			if err != nil || at != c && at.Parent() != c && c.Parent() != at {
				t.Errorf("%s: example %q is of %v, %v", c.CommandPath(), line, at.CommandPath(), err)
			}
			for _, arg := range rest {
				if name, ok := strings.CutPrefix(arg, "--"); ok && at.Flags().Lookup(name) == nil && at.InheritedFlags().Lookup(name) == nil {
					t.Errorf("%s: example %q has the flag %s, which does not exist", c.CommandPath(), line, arg)
				}
			}
		}
	}
}

// Commands of features that are not built must not be there.
func TestCommandsOfTheContract(t *testing.T) {
	have := make(map[string]bool)
	for _, c := range runnable(tree()) {
		have[strings.TrimPrefix(c.CommandPath(), "promethean ")] = true
	}
	for _, name := range []string{
		"serve", "pub", "sub", "tail", "topics", "groups", "groups show", "lag", "cursor get", "cursor set", "replay", "export", "import",
		"dlq list", "dlq show", "dlq replay", "history", "at", "schema add", "schema list", "schema show",
		"schema check", "schema diff", "schema cutover", "bench", "check", "log dump", "backup", "restore", "lint",
		"view list", "view get", "view rebuild", "migrate",
		"changefeed status", "changefeed resync", "outbox status", "outbox errors", "outbox retry", "outbox discard",
	} {
		if !have[name] {
			t.Errorf("there is no %s", name)
		}
	}
}
