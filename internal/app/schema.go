package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"promethean/client"
	"promethean/event"
	"promethean/schema"
	"promethean/schema/compat"
)

func (a *app) schemaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Look at schemas, register and change them",
		Long: `A topic may have a schema: what is published is validated against it. A schema
changes by versions, each of which is checked against those before it. docs/evolution.md
walks through a change from beginning to end.`,
		Example: `  promethean schema add heartbeat.received v1.json
  promethean schema diff heartbeat.received
  promethean schema cutover heartbeat.received --to heartbeat.received.v2`,
		Args: a.groupArgs,
		RunE: a.noCommand,
	}
	cmd.AddCommand(a.schemaAddCommand(), a.schemaListCommand(), a.schemaShowCommand(), a.schemaCheckCommand(), a.schemaDiffCommand(), a.schemaCutoverCommand())
	return cmd
}

// definitionFlags are the flags that say how a version is registered.
type definitionFlags struct {
	compat, upcast    string
	lenient, unproved bool
	version           int
}

func (f *definitionFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.compat, "compat", "", "what it must be to those before it: none, backward, forward, full, or one of them with _transitive (default x-compat of the file, or else backward)")
	cmd.Flags().BoolVar(&f.lenient, "lenient", false, "let optional properties come into open objects and leave closed ones (default x-lenient of the file)")
	cmd.Flags().IntVar(&f.version, "version", 0, "number of the version (default the next one)")
	cmd.Flags().StringVar(&f.upcast, "upcast", "", "file with a jq program that makes payloads of the version before into payloads of this one")
	cmd.Flags().BoolVar(&f.unproved, "unproved", false, "take an upcaster that cannot be tried (default x-unproved of the file)")
	modes := make([]string, len(compat.Modes))
	for i, m := range compat.Modes {
		modes[i] = string(m)
	}
	fixed(cmd, "compat", modes...)
	if err := cmd.MarkFlagFilename("upcast", "jq"); err != nil {
		panic(err) // the flag is defined right above
	}
}

// names of the flags that only a definition has.
var definitionNames = []string{"compat", "lenient", "upcast", "unproved"}

// apply changes a definition by the flags that were given.
func (f *definitionFlags) apply(cmd *cobra.Command, d *schema.Definition) error {
	given := cmd.Flags().Changed
	if given("compat") {
		d.Compat = compat.Mode(f.compat)
	}
	if given("lenient") {
		d.Lenient = f.lenient
	}
	if given("unproved") {
		d.Unproved = f.unproved
	}
	if given("version") {
		d.Version = f.version
	}
	if given("upcast") {
		text, err := os.ReadFile(f.upcast)
		if err != nil {
			return fmt.Errorf("--upcast: %w", err)
		}
		d.Upcast = string(text)
	}
	return nil
}

// check refuses values that no command takes.
func (f *definitionFlags) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("version") && f.version < 1 {
		return misuse(cmd, "--version: versions are counted from 1")
	}
	if f.compat != "" {
		if _, err := compat.ParseMode(f.compat); err != nil {
			return misuse(cmd, "--%v", err)
		}
	}
	return nil
}

// readFile reads a file, or standard input if it is called "-". What is larger
// than most is refused.
func (a *app) readFile(name string, most int64) ([]byte, error) {
	in, called := a.stdin, "standard input"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // it was only read
		in, called = f, name
	}
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", called, most)
	}
	return text, err
}

// definition reads one version from a file.
func (a *app) definition(cmd *cobra.Command, f *definitionFlags, topic, file string) (schema.Definition, error) {
	text, err := a.readFile(file, schema.MaxSchema)
	if err == nil {
		if bad := event.CheckJSON(text); bad != nil {
			err = fmt.Errorf("%s: %w", file, bad)
		}
	}
	if err != nil {
		return schema.Definition{}, err
	}
	d := schema.Define(topic, text)
	return d, f.apply(cmd, &d)
}

// asked is a definition as the client sends it.
func asked(d *schema.Definition) client.SchemaDefinition {
	return client.SchemaDefinition{
		Version: d.Version, Schema: d.Schema, Compat: string(d.Compat), Lenient: d.Lenient, Upcast: d.Upcast, Unproved: d.Unproved,
	}
}

// completeSchema completes a topic and then files.
func (a *app) completeSchema(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completeNames(1)(cmd, args, to)
}

func (a *app) schemaAddCommand() *cobra.Command {
	var f definitionFlags
	cmd := &cobra.Command{
		Use:   "add TOPIC FILE|DIR|-",
		Short: "Register a version of a schema",
		Long: `Add registers the next version of a topic's schema, JSON Schema 2020-12, from a file
or standard input. A version that is there already, with the same schema and
upcaster, is left as it is. One that does not fit those before it is refused, with
every reason, and nothing is stored.

At the top of a schema "x-compat", "x-lenient" and "x-unproved" say what the flags
of these names do; a flag counts more.

A directory holds all versions: v1.json, v2.json and so on, each with its upcaster
v2.upcast.jq beside it. They are registered in order; what is there is left.`,
		Example: `  promethean schema add heartbeat.received v1.json
  promethean schema add heartbeat.received v2.json --upcast v2.upcast.jq
  promethean schema add heartbeat.received schemas/heartbeat.received`,
		Args:              takes("TOPIC", "FILE|DIR|-"),
		ValidArgsFunction: a.completeSchema,
	}
	f.add(cmd)
	isDir := false
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if st, err := os.Stat(args[1]); err == nil && st.IsDir() {
			isDir = true
			for _, name := range append([]string{"version"}, definitionNames...) {
				if cmd.Flags().Changed(name) {
					return misuse(cmd, "--%s is for one version, and %s is a directory: write x-compat, x-lenient and x-unproved into the files", name, args[1])
				}
			}
		}
		return f.check(cmd)
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		topic, from := args[0], args[1]
		if isDir {
			list, err := schema.ReadDir(topic, from)
			if err != nil {
				return err
			}
			for i := range list {
				if err := a.addSchema(ctx, c, &list[i], filepath.Join(from, fmt.Sprintf("v%d.json", list[i].Version))); err != nil {
					return err
				}
			}
			return nil
		}
		d, err := a.definition(cmd, &f, topic, from)
		if err != nil {
			return err
		}
		return a.addSchema(ctx, c, &d, from)
	})
	return cmd
}

// addSchema registers one version and tells what came of it.
func (a *app) addSchema(ctx context.Context, c *client.Client, d *schema.Definition, file string) error {
	v, fresh, err := c.RegisterSchema(ctx, d.Topic, asked(d))
	if err != nil {
		return schemaError(err, d, file)
	}
	return a.result(field{"topic", v.Topic}, field{"version", v.Version}, field{"compat", v.Compat}, field{"upcast", v.Upcast != "" || v.Function}, field{"fresh", fresh})
}

// schemaError says why a schema is not taken.
func schemaError(err error, d *schema.Definition, file string) error {
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Code != "schema_conflict" || len(refused.Problems) == 0 {
		return fmt.Errorf("%s: %w", file, err)
	}
	what := fmt.Errorf("%s does not fit the schema of topic %s: %s", file, d.Topic, plural(len(refused.Problems), "problem"))
	return advised{detailed{what, problemsText(refused.Problems, 100)}, conflictAdvice(d, file)}
}

// conflictAdvice is what to do about a schema that does not fit.
func conflictAdvice(d *schema.Definition, file string) string {
	beside := strings.TrimSuffix(file, ".json") + ".upcast.jq"
	if _, err := os.Stat(beside); err == nil && d.Upcast == "" {
		return "there is an upcaster beside it: give it with --upcast " + beside
	}
	if d.Upcast == "" {
		return "change the schema, or bring an upcaster with --upcast, or ask for less with --compat and --lenient"
	}
	return "mend the upcaster or the schema; 'promethean schema check' tells whether it fits and stores nothing"
}

// plural counts things.
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// problemsText shows problems to people.
func problemsText(list []client.SchemaProblem, width int) string {
	var b strings.Builder
	for _, p := range list {
		path := p.Path
		if path == "" {
			path = "the whole"
		}
		b.WriteString(wrapped(printable(path)+"  "+printable(p.Rule), "  ", width))
		b.WriteString(wrapped(printable(p.Detail), "      ", width))
		if len(p.Example) > 0 {
			b.WriteString(clipped("      example: "+printable(string(p.Example)), width) + "\n")
		}
	}
	return b.String()
}

func (a *app) schemaListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [TOPIC]",
		Short: "List topics with a schema, or the versions of one",
		Long:  `List shows the topics that have a schema, or all versions of the schema of one.`,
		Example: `  promethean schema list
  promethean schema list heartbeat.received`,
		Args:              takes("[TOPIC]"),
		ValidArgsFunction: a.completeWithSchema,
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 0 {
				infos, err := c.Schemas(ctx)
				if err != nil {
					return err
				}
				return list(a, infos, []string{"TOPIC", "LATEST", "VERSIONS", "COMPAT"}, func(s *client.SchemaInfo) []string {
					return []string{s.Topic, strconv.Itoa(s.Latest), strings.Trim(fmt.Sprint(s.Versions), "[]"), s.Compat}
				})
			}
			versions, err := c.SchemaVersions(ctx, args[0])
			if err != nil {
				return noSchema(err)
			}
			return list(a, versions, []string{"VERSION", "COMPAT", "UPCASTER", "UTC", "BYTES"}, func(v *client.SchemaVersion) []string {
				return []string{
					strconv.Itoa(v.Version), v.Compat + noted(v.Lenient, ", lenient"), upcasterText(v),
					time.UnixMilli(v.TS).UTC().Format(time.DateTime), number(len(v.Schema)),
				}
			})
		}),
	}
}

// noted is a text where something is so.
func noted(yes bool, text string) string {
	if yes {
		return text
	}
	return ""
}

// upcasterText says what upcaster a version has.
func upcasterText(v *client.SchemaVersion) string {
	switch {
	case v.Function:
		return "Go function"
	case v.Upcast != "":
		return "jq" + noted(v.Unproved, ", unproved")
	}
	return ""
}

// noSchema adds what to do where there is no such version.
func noSchema(err error) error {
	if client.CodeOf(err) == "not_found" {
		return advised{err, "'promethean schema list' lists those that there are"}
	}
	return err
}

// parseVersion reads the number of a version; "latest" is 0.
func parseVersion(s string) (int, bool) {
	if s == "latest" {
		return 0, true
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 1 && n <= schema.MaxVersion
}

func (a *app) schemaShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show TOPIC [VERSION]",
		Short: "Show a schema",
		Long: `Show writes a version of a topic's schema, the latest unless one is named. On a
terminal a line before it says which one it is. -o json writes the whole record as
one line, with the upcaster.`,
		Example: `  promethean schema show heartbeat.received
  promethean schema show heartbeat.received 1 -o json`,
		Args: takes("TOPIC", "[VERSION]"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return a.versionNames(cmd.Context(), args[0]), cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeWithSchema(cmd, args, to)
		},
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			version := 0
			if len(args) == 2 {
				n, ok := parseVersion(args[1])
				if !ok {
					return advised{fmt.Errorf("%q is no version", args[1]), "versions are counted from 1; 'promethean schema list " + args[0] + "' lists them"}
				}
				version = n
			}
			v, err := c.Schema(ctx, args[0], version)
			if err != nil {
				return noSchema(err)
			}
			if a.format == formatJSON {
				return list(a, []client.SchemaVersion{v}, nil, nil)
			}
			return a.showSchema(&v)
		}),
	}
}

// showSchema writes a schema for people, and for files.
func (a *app) showSchema(v *client.SchemaVersion) error {
	var b bytes.Buffer
	if width, table := a.table(); table {
		head := fmt.Sprintf("%s version %d, %s%s, of %s", v.Topic, v.Version, v.Compat, noted(v.Lenient, ", lenient"), time.UnixMilli(v.TS).UTC().Format(time.DateTime))
		if up := upcasterText(v); up != "" {
			head += ", upcaster: " + up
		}
		b.WriteString(wrapped(printable(head), "", width))
		if v.Upcast != "" {
			b.WriteString(wrapped(printable(strings.Join(strings.Fields(v.Upcast), " ")), "", width))
		}
	}
	text, err := jsontext.AppendFormat(nil, v.Schema, jsontext.Multiline(true), jsontext.WithIndent("  "), jsontext.PreserveRawStrings(false))
	if err != nil {
		return err
	}
	b.Write(append(text, '\n'))
	_, err = a.stdout.Write(b.Bytes())
	return err
}

// completeWithSchema completes a topic that has a schema.
func (a *app) completeWithSchema(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := a.remote.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	infos, err := c.Schemas(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, s := range infos {
		names = append(names, s.Topic)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// versionNames are those of a topic's schema, for completion.
func (a *app) versionNames(ctx context.Context, topic string) (names []string) {
	c, err := a.remote.connect()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completionWait)
	defer cancel()
	versions, err := c.SchemaVersions(ctx, topic)
	if err != nil {
		return nil
	}
	for _, v := range versions {
		names = append(names, strconv.Itoa(v.Version))
	}
	return append(names, "latest")
}

func (a *app) schemaCheckCommand() *cobra.Command {
	var f definitionFlags
	var payload string
	cmd := &cobra.Command{
		Use:   "check TOPIC FILE|-",
		Short: "Check a schema, or a payload, and store nothing",
		Long: `Check tells whether a schema could be registered as the next version of a topic's,
with every reason if not. It takes the flags of add. With --payload it tells
whether a payload is valid under the latest version, or the one that --version
names. Exit code 1 means that it is not.`,
		Example: `  promethean schema check heartbeat.received v2.json --upcast v2.upcast.jq
  promethean schema check heartbeat.received --payload beat.json --version 1`,
		Args:              takes("TOPIC", "[FILE|-]"),
		ValidArgsFunction: a.completeSchema,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&payload, "payload", "", "file with a payload to validate, - for standard input")
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case payload == "" && len(args) < 2:
			return misuse(cmd, "missing: FILE with a schema, or --payload")
		case payload != "" && len(args) > 1:
			return misuse(cmd, "%q is a schema: with --payload there is none", args[1])
		}
		for _, name := range definitionNames {
			if payload != "" && cmd.Flags().Changed(name) {
				return misuse(cmd, "--%s is for a schema, not for --payload", name)
			}
		}
		return f.check(cmd)
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		if payload != "" {
			return a.checkPayload(ctx, c, args[0], payload, f.version)
		}
		if st, err := os.Stat(args[1]); err == nil && st.IsDir() {
			return advised{fmt.Errorf("%s is a directory: check looks at one version", args[1]), "name the file of the next version, with its upcaster as --upcast"}
		}
		d, err := a.definition(cmd, &f, args[0], args[1])
		if err != nil {
			return err
		}
		problems, err := c.CheckSchema(ctx, args[0], asked(&d))
		if err != nil {
			return fmt.Errorf("%s: %w", args[1], err)
		}
		if err := verdict(a, []field{{"topic", args[0]}, {"compatible", len(problems) == 0}}, "problems", problems, problemsText); err != nil || len(problems) == 0 {
			return err
		}
		what := fmt.Errorf("%s does not fit the schema of topic %s: %s", args[1], args[0], plural(len(problems), "problem"))
		return advised{what, conflictAdvice(&d, args[1])}
	})
	return cmd
}

// verdict writes what was found out about something: as a JSON line, or a name
// and a value per line with what is wrong below.
func verdict[T any](a *app, head []field, name string, wrong []T, text func([]T, int) string) error {
	if wrong == nil {
		wrong = []T{}
	}
	width, table := a.table()
	if !table {
		return a.result(append(head, field{name, wrong})...)
	}
	if err := a.result(head...); err != nil {
		return err
	}
	_, err := io.WriteString(a.stdout, text(wrong, width))
	return err
}

// maxPayload bounds a payload that is checked; the hub has a limit of its own.
const maxPayload = 64 << 20

// checkPayload tells whether a payload is valid.
func (a *app) checkPayload(ctx context.Context, c *client.Client, topic, file string, version int) error {
	text, err := a.readFile(file, maxPayload)
	if err == nil {
		err = event.CheckJSON(text)
	}
	if err != nil {
		return fmt.Errorf("--payload: %w", err)
	}
	got, err := c.ValidatePayload(ctx, topic, json.RawMessage(text), version)
	if err != nil {
		return noSchema(err)
	}
	head := []field{{"topic", topic}, {"version", got.Version}, {"valid", got.Valid}}
	err = verdict(a, head, "errors", got.Errors, func(list []client.FieldError, width int) string {
		var b strings.Builder
		for _, e := range list {
			b.WriteString(wrapped(printable(noted(e.Path != "", e.Path+": ")+e.Message), "  ", width))
		}
		return b.String()
	})
	if err == nil && !got.Valid {
		err = fmt.Errorf("the payload is not valid under version %d of the schema of topic %s: %s", got.Version, topic, plural(len(got.Errors), "error"))
	}
	return err
}
