package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/spf13/cobra"

	"promethean/lint"
	linttree "promethean/lint/tree"
)

// lintFormat is how findings are written.
type lintFormat lint.Format

// String implements pflag.Value.
func (f *lintFormat) String() string { return string(*f) }

// Set implements pflag.Value.
func (f *lintFormat) Set(s string) error {
	if !slices.Contains(lint.Formats, lint.Format(s)) {
		return errors.New("must be text, json or sarif")
	}
	*f = lintFormat(s)
	return nil
}

// Type implements pflag.Value.
func (f *lintFormat) Type() string { return "format" }

func (a *app) lintCommand() *cobra.Command {
	var o linttree.Options
	format := lintFormat(lint.Text)
	cmd := &cobra.Command{
		Use:   "lint [PATH…]",
		Short: "Check topics, headers and schemas in sources",
		Long: `Lint looks for calls to a hub in Go, TypeScript and JavaScript, and for topics in
promethean.yaml, and says what a hub would refuse: names of topics and headers,
topics without a schema, payloads that the latest schema does not take. It checks
the schemas too: whether they can be used, fit the version before, and are used.
docs/lint.md has all rules. PATH is a directory or a file; the default is here.

Schemas are those that promethean.yaml names, and those in directories
schemas/TOPIC. Go is type-checked with the go command, so it must build.

A comment "promethean:allow REASON" on the line, or on the one above, takes its
findings away. Exit code 0 means that nothing was found, 1 that something was,
2 wrong use.`,
		Example: `  promethean lint
  promethean lint services web --allow 'internal.**'
  promethean lint -o sarif > lint.sarif`,
		Args: cobra.ArbitraryArgs,
	}
	f := cmd.Flags()
	f.VarP(&format, "output", "o", "text, json or sarif")
	f.StringVar(&o.Config, "config", "", "configuration to read beside those that are found")
	f.StringArrayVar(&o.Schemas, "schemas", nil, "directory with a directory of schemas for each topic; may come again")
	f.StringArrayVar(&o.Allow, "allow", nil, "pattern of topics that may be without a schema; may come again")
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json", "sarif"}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is defined right above
	}
	cmd.RunE = a.begin(func(ctx context.Context, args []string) error {
		o.Paths = args
		list, err := linttree.Run(ctx, o)
		switch {
		case err != nil && ctx.Err() != nil:
			return err
		case errors.Is(err, fs.ErrNotExist):
			return misused{advised{err, "name directories and files that are there"}}
		case err != nil:
			return misused{err}
		}
		if err := lint.Write(a.stdout, lint.Format(format), list); err != nil {
			return err
		}
		if len(list) == 0 {
			return nil
		}
		return advised{counted(list), "mend them, or allow what is meant so by a comment: promethean:allow REASON"}
	})
	return cmd
}

// counted says how much was found.
func counted(list []lint.Finding) error {
	files := make(map[string]bool)
	for _, f := range list {
		files[f.File] = true
	}
	return fmt.Errorf("lint: %s in %s", plural(len(list), "finding"), plural(len(files), "file"))
}
