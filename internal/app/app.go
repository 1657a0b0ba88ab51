// Package app is the program: its commands, and the one place where engines
// and capabilities are put together.
//
// # Guarantees
//
// Exit code 0 means done, 1 failed, 2 used wrongly: a flag or a number of
// arguments that no command takes. Results go to standard output, as a table
// if that is a terminal and as JSON lines if not, unless -o says otherwise.
// Everything else goes to standard error: an error as "promethean: …" with
// what to do next, and a progress bar if that is a terminal. Nothing is
// coloured. An interrupt ends a command cleanly, a second one at once. Where the
// reader of standard output has gone a command ends without a word.
//
// A main package needs one line:
//
//	func main() { os.Exit(app.Main(version)) }
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"promethean/store"
	"promethean/store/logstore"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitMisuse = 2
)

// Main runs the command that the process was started with and gives the exit
// code.
func Main(version string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// From the first signal on the next one has its usual effect.
	context.AfterFunc(ctx, stop)
	// A reader that goes away is an error of a write, so that what a command
	// holds can be given back. (An ignored signal would be so for the programs
	// too that a command starts.)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return Run(ctx, version, os.Args[1:], os.Stdout, os.Stderr)
}

// Run runs one command and gives the exit code.
func Run(ctx context.Context, version string, args []string, stdout, stderr io.Writer) int {
	a := &app{stdin: os.Stdin, screen: stdout, stderr: stderr, version: version}
	a.stdout = output{a}
	root := a.root(version)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	if gone := (brokenPipe{}); errors.As(err, &gone) {
		return exitFailed
	}
	a.fail(cmd, err)
	var wrong misused
	if a.began && !errors.As(err, &wrong) {
		return exitFailed
	}
	return exitMisuse
}

// app is one run of the program.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	screen         io.Writer // what stdout writes to
	version        string
	format         format
	remote         remote
	// began says that flags and arguments were right and the command itself
	// was reached.
	began bool
}

// advised is an error with what to do about it.
type advised struct {
	error
	advice string
}

// Unwrap gives the error.
func (e advised) Unwrap() error { return e.error }

// detailed is an error with more to say than fits on a line. Its details are
// whole lines, and stand between the error and the advice.
type detailed struct {
	error
	details string
}

// Unwrap gives the error.
func (e detailed) Unwrap() error { return e.error }

// misused is an error about how a command is used that is found only once it
// has begun.
type misused struct{ error }

// Unwrap gives the error.
func (e misused) Unwrap() error { return e.error }

// fail says what went wrong, each thing on a line of its own, and what to do
// next.
func (a *app) fail(cmd *cobra.Command, err error) {
	what := strings.ReplaceAll(err.Error(), context.Canceled.Error(), "interrupted")
	for line := range strings.SplitSeq(what, "\n") {
		fmt.Fprintf(a.stderr, "promethean: %s\n", printable(line))
	}
	if all := (detailed{}); errors.As(err, &all) {
		fmt.Fprint(a.stderr, all.details)
	}
	next := advice(err)
	if !a.began {
		next = fmt.Sprintf("run '%s --help' to see how it is used", cmd.CommandPath())
	}
	if next != "" {
		fmt.Fprintf(a.stderr, "  %s\n", next)
	}
}

// advice is what to do about an error, "" where that goes without saying.
func advice(err error) string {
	var a advised
	switch {
	case errors.As(err, &a):
		return a.advice
	case errors.Is(err, context.Canceled):
		return ""
	case errors.Is(err, store.ErrLocked):
		return "a running hub has the directory open: stop it, then try again"
	case errors.Is(err, logstore.ErrNoStore):
		return "name the data directory of a hub, which holds LOCK, journal and state, or a backup of it"
	case errors.Is(err, store.ErrFormat):
		return "a newer version of promethean has written it: use that one"
	case errors.Is(err, store.ErrCorrupt):
		return "'promethean check DIR' lists all damage; what is lost must come from a backup"
	case errors.Is(err, fs.ErrPermission):
		return "run it as the user that the hub runs as"
	case errors.Is(err, syscall.ENOSPC):
		return "make room on the disk, then try again"
	}
	return ""
}

// root makes the tree of commands.
func (a *app) root(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "promethean",
		Short: "A durable event bus",
		Long: `Promethean is a durable event bus.

'promethean serve' runs the hub. The other commands speak to one, at --addr, or
work on a data directory. Results are a table on a terminal and JSON lines on a pipe.
Exit code 0 means done, 1 failed, 2 used wrongly.`,
		Example: `  promethean serve --store memory://
  promethean pub process.state '{"status":"up"}' --key dev:stt:1
  promethean tail process.state --from earliest`,
		Version:       version,
		SilenceErrors: true, // Run prints them
		SilenceUsage:  true,
		Args:          a.groupArgs,
		RunE:          a.noCommand,
	}
	root.SetVersionTemplate("promethean {{.Version}}\n")
	root.PersistentFlags().VarP(&a.format, "output", "o", "json or table (default: table on a terminal, json elsewhere)")
	err := root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "table"}, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag is defined right above
	}
	a.remoteFlags(root)
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"hub", "Run a hub:", []*cobra.Command{a.serveCommand(), a.demoCommand(), a.benchCommand()}},
		{"events", "Publish and read events:", []*cobra.Command{
			a.pubCommand(), a.subCommand(), a.tailCommand(), a.historyCommand(), a.atCommand(), a.replayCommand(), a.exportCommand(), a.importCommand(),
		}},
		{"steer", "Look at a hub and steer it:", []*cobra.Command{
			a.topicsCommand(), a.groupsCommand(), a.lagCommand(), a.cursorCommand(), a.dlqCommand(), a.schemaCommand(), a.viewCommand(), a.changefeedCommand(), a.outboxCommand(),
		}},
		{"sources", "Check sources:", []*cobra.Command{a.lintCommand()}},
		{"data", "Work on data that no hub has open:", []*cobra.Command{
			a.checkCommand(), a.logCommand(), a.backupCommand(), a.restoreCommand(), a.migrateCommand(),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
	return root
}

// groupArgs refuses arguments of a command that only has commands below it.
func (a *app) groupArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	near := ""
	cmd.SuggestionsMinimumDistance = 2
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		near = ", did you mean " + strings.Join(names, " or ") + "?"
	}
	return misuse(cmd, "there is no command %q%s", args[0], near)
}

// misuse is an error about how a command is used.
func misuse(cmd *cobra.Command, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if _, name, below := strings.Cut(cmd.CommandPath(), " "); below {
		text = name + ": " + text
	}
	return errors.New(text)
}

// noCommand answers who calls such a command by itself.
func (a *app) noCommand(cmd *cobra.Command, _ []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return misuse(cmd, "a command is missing: %s", strings.Join(names, ", "))
}

// takes says which arguments a command needs, by name. One in brackets may be
// left out.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names) && names[len(args)][0] != '[':
			var missing []string
			for _, name := range names[len(args):] {
				if name[0] != '[' {
					missing = append(missing, name)
				}
			}
			return misuse(cmd, "missing: %s", strings.Join(missing, " and "))
		case len(args) > len(names):
			return misuse(cmd, "%q is more than %s", args[len(names)], strings.Join(names, " and "))
		}
		return nil
	}
}

// begin wraps what a command does, to tell its failures from wrong use.
func (a *app) begin(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.began = true
		return run(cmd.Context(), args)
	}
}

// directories completes arguments that are directories.
func directories(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) < n {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
