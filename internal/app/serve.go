package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"promethean/internal/app/config"
)

// configFile is read where no other file is named, if it is there.
const configFile = "promethean.yaml"

func (a *app) serveCommand() *cobra.Command {
	var file string
	var print bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the hub",
		Long: `Serve runs the hub until it gets SIGTERM or SIGINT. Then it finishes what is
under way and ends with exit code 0; a second signal ends it at once. SIGHUP
reads the configuration again and applies what a running hub can change.

When it takes work it writes one line to standard output:

  promethean ready on http://127.0.0.1:7070 (store file://./data)

Settings come from promethean.yaml, or the file that --config names; from the
environment, where log.level is PROMETHEAN_LOG_LEVEL; and from flags, where it is
--log-level. Later ones count more. What the file says wrongly is reported with
its line, all at once, and the exit code is 2.`,
		Example: `  promethean serve --store memory://
  promethean serve --config /etc/promethean.yaml
  promethean serve --listen 127.0.0.1:0 --store file:///var/lib/promethean --print-config`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&file, "config", "", "file to read (default "+configFile+" if there is one)")
	cmd.Flags().BoolVar(&print, "print-config", false, "show the settings in force, without secrets, and end")
	given := settingFlags(cmd.Flags())
	if err := errors.Join(cmd.MarkFlagFilename("config", "yaml", "yml"),
		cmd.RegisterFlagCompletionFunc("store", cobra.FixedCompletions([]string{"memory://", "file://", "nats://", "mongodb://"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))); err != nil {
		panic(err) // the flags are defined right above
	}
	cmd.RunE = a.begin(func(ctx context.Context, _ []string) error {
		load, err := loader(file, given)
		if err != nil {
			return err
		}
		c, err := load()
		if err != nil {
			return err
		}
		if print {
			text, err := c.YAML()
			if err == nil {
				_, err = a.stdout.Write(text)
			}
			return err
		}
		signals := make(chan os.Signal, 4)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer signal.Stop(signals)
		return a.serve(ctx, c, load, signals, nil)
	})
	return cmd
}

// flagValue is a setting given as a flag. It is checked together with those of
// the file.
type flagValue struct {
	setting config.Setting
	given   map[string]string
}

// String implements pflag.Value.
func (f *flagValue) String() string { return f.given[f.setting.Key] }

// Set implements pflag.Value. Lists grow.
func (f *flagValue) Set(s string) error {
	if before, ok := f.given[f.setting.Key]; ok && f.setting.IsList() {
		s = before + "," + s
	}
	f.given[f.setting.Key] = s
	return nil
}

// Type implements pflag.Value.
func (f *flagValue) Type() string {
	switch {
	case f.setting.IsBool():
		return "bool"
	case f.setting.IsList():
		return "list"
	}
	return "value"
}

// settingFlags makes the flags of all settings, and gives the map that holds
// what they were set to, by key.
func settingFlags(flags *pflag.FlagSet) map[string]string {
	given := make(map[string]string)
	for _, s := range config.Settings() {
		usage := s.Usage
		if d := s.Default(); d != "" && !(s.IsBool() && d == "false") && d != "0" {
			usage += " (default " + d + ")"
		}
		f := flags.VarPF(&flagValue{s, given}, s.Flag(), "", usage)
		if s.IsBool() {
			f.NoOptDefVal = "true"
		}
	}
	return given
}

// loader gives the function that reads the settings, now and on SIGHUP.
func loader(file string, given map[string]string) (func() (*config.Config, error), error) {
	if file == "" {
		file = os.Getenv("PROMETHEAN_CONFIG")
	}
	if file == "" {
		switch _, err := os.Stat(configFile); {
		case err == nil:
			file = configFile
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
	}
	return func() (*config.Config, error) {
		c, err := config.Load(config.Source{File: file, Env: os.LookupEnv, Flags: given})
		var wrong config.Problems
		switch {
		case errors.As(err, &wrong):
			return nil, misused{advised{err, "docs/serve.md lists all settings; 'promethean serve --help' those that are flags"}}
		case errors.Is(err, fs.ErrNotExist):
			return nil, misused{err}
		}
		return c, err
	}, nil
}

// shown is an error on one line, for logs.
func shown(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
