package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"promethean/client"
	"promethean/event"
	"promethean/schema"
	"promethean/schema/compat"
)

func (a *app) schemaDiffCommand() *cobra.Command {
	var lenient bool
	cmd := &cobra.Command{
		Use:   "diff TOPIC [FROM] [TO]",
		Short: "Compare two versions of a schema",
		Long: `Diff shows what was added to a schema, taken from it and changed in it, by JSON
pointer, and whether the two fit: backward, where readers of the new one get what
was written under the old one, and forward, where readers of the old one get what
is written under the new one. Upcasters do not count here.

FROM and TO are numbers of versions, "latest", or files with a schema, - for standard
input. Without any it compares the two latest versions; a version alone is compared
with the latest, and the latest with a file alone.`,
		Example: `  promethean schema diff heartbeat.received
  promethean schema diff heartbeat.received 1 3
  promethean schema diff heartbeat.received v4.json`,
		Args: takes("TOPIC", "[FROM]", "[TO]"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 || len(args) == 2 {
				return a.versionNames(cmd.Context(), args[0]), cobra.ShellCompDirectiveDefault
			}
			return a.completeWithSchema(cmd, args, to)
		},
	}
	cmd.Flags().BoolVar(&lenient, "lenient", false, "let optional properties come into open objects and leave closed ones")
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		from, to, err := a.sides(ctx, c, args[0], args[1:])
		if err != nil {
			return err
		}
		d, err := compare(args[0], from, to, lenient)
		if err != nil {
			return err
		}
		return a.showDiff(d)
	})
	return cmd
}

// side is one of two schemas that are compared.
type side struct {
	name string
	text json.RawMessage
}

// sides finds what is to be compared.
func (a *app) sides(ctx context.Context, c *client.Client, topic string, names []string) (from, to side, err error) {
	switch len(names) {
	case 0:
		versions, err := c.SchemaVersions(ctx, topic)
		if err != nil {
			return from, to, noSchema(err)
		}
		if len(versions) < 2 {
			return from, to, advised{fmt.Errorf("the schema of topic %s has one version only", topic), "name a file to compare it with"}
		}
		names = []string{strconv.Itoa(versions[len(versions)-2].Version), strconv.Itoa(versions[len(versions)-1].Version)}
	case 1:
		if _, version := parseVersion(names[0]); version {
			names = []string{names[0], "latest"}
		} else {
			names = []string{"latest", names[0]}
		}
	}
	if from, err = a.side(ctx, c, topic, names[0]); err == nil {
		to, err = a.side(ctx, c, topic, names[1])
	}
	return from, to, err
}

// side finds one schema.
func (a *app) side(ctx context.Context, c *client.Client, topic, name string) (side, error) {
	if n, ok := parseVersion(name); ok {
		v, err := c.Schema(ctx, topic, n)
		return side{"version " + strconv.Itoa(v.Version), v.Schema}, noSchema(err)
	}
	text, err := a.readFile(name, schema.MaxSchema)
	if err == nil {
		if bad := event.CheckJSON(text); bad != nil {
			err = fmt.Errorf("%s: %w", name, bad)
		}
	}
	return side{name, text}, err
}

// change is one difference between two schemas.
type change struct {
	// Path is a JSON pointer.
	Path string `json:"path"`
	// Change is added, removed or changed.
	Change string          `json:"change"`
	From   json.RawMessage `json:"from,omitempty"`
	To     json.RawMessage `json:"to,omitempty"`
}

// fit is whether one schema takes documents of the other.
type fit struct {
	Compatible bool                   `json:"compatible"`
	Problems   []client.SchemaProblem `json:"problems"`
}

// difference is what two schemas differ in.
type difference struct {
	Topic    string   `json:"topic"`
	From     string   `json:"from"`
	To       string   `json:"to"`
	Changes  []change `json:"changes"`
	Backward fit      `json:"backward"`
	Forward  fit      `json:"forward"`
}

// compare compares two schemas.
func compare(topic string, from, to side, lenient bool) (*difference, error) {
	d := &difference{Topic: topic, From: from.name, To: to.name, Changes: []change{}}
	var parsed [2]*schema.Schema
	var docs [2]any
	for i, s := range []side{from, to} {
		var err error
		if parsed[i], err = schema.Parse(s.text); err == nil {
			docs[i], err = jqInput(s.text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := d.walk("", docs[0], docs[1]); err != nil {
		return nil, err
	}
	judge := func(mode compat.Mode) fit {
		f := fit{Problems: []client.SchemaProblem{}}
		for _, p := range compat.Check(parsed[0].Tree(), parsed[1].Tree(), mode, lenient) {
			f.Problems = append(f.Problems, client.SchemaProblem{Path: p.Path, Rule: p.Rule, Detail: p.Detail, Example: p.Example})
		}
		f.Compatible = len(f.Problems) == 0
		return f
	}
	d.Backward, d.Forward = judge(compat.Backward), judge(compat.Forward)
	return d, nil
}

// walk notes what differs between two values.
func (d *difference) walk(path string, from, to any) error {
	switch x := from.(type) {
	case map[string]any:
		if y, same := to.(map[string]any); same {
			return d.walkObject(path, x, y)
		}
	case []any:
		if y, same := to.([]any); same {
			return d.walkList(path, x, y)
		}
	}
	if reflect.DeepEqual(from, to) {
		return nil
	}
	return d.note(path, "changed", &from, &to)
}

// walkObject compares by name.
func (d *difference) walkObject(path string, from, to map[string]any) error {
	names := maps.Clone(from)
	maps.Copy(names, to)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		below := path + "/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
		x, was := from[name]
		y, is := to[name]
		var err error
		switch {
		case was && is:
			err = d.walk(below, x, y)
		case was:
			err = d.note(below, "removed", &x, nil)
		default:
			err = d.note(below, "added", nil, &y)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// walkList compares lists of names, such as required, by what they hold: their
// order means nothing. In other lists place counts.
func (d *difference) walkList(path string, from, to []any) error {
	if plain(from) && plain(to) {
		for i := range from {
			if !holds(to, from[i]) {
				if err := d.note(path, "removed", &from[i], nil); err != nil {
					return err
				}
			}
		}
		for i := range to {
			if !holds(from, to[i]) {
				if err := d.note(path, "added", nil, &to[i]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for i := range max(len(from), len(to)) {
		below := path + "/" + strconv.Itoa(i)
		var err error
		switch {
		case i >= len(to):
			err = d.note(below, "removed", &from[i], nil)
		case i >= len(from):
			err = d.note(below, "added", nil, &to[i])
		default:
			err = d.walk(below, from[i], to[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// plain says whether a list holds no objects and lists.
func plain(list []any) bool {
	return !slices.ContainsFunc(list, func(v any) bool {
		switch v.(type) {
		case map[string]any, []any:
			return true
		}
		return false
	})
}

func holds(list []any, v any) bool {
	return slices.ContainsFunc(list, func(x any) bool { return x == v })
}

// note adds a change.
func (d *difference) note(path, what string, from, to *any) error {
	c := change{Path: path, Change: what}
	for _, x := range []struct {
		value *any
		text  *json.RawMessage
	}{{from, &c.From}, {to, &c.To}} {
		if x.value == nil {
			continue
		}
		text, err := encode(*x.value)
		if err != nil {
			return err
		}
		*x.text = text
	}
	d.Changes = append(d.Changes, c)
	return nil
}

// showDiff writes a difference.
func (a *app) showDiff(d *difference) error {
	width, table := a.table()
	if !table {
		return list(a, []*difference{d}, nil, nil)
	}
	var b bytes.Buffer
	b.WriteString(wrapped(printable(fmt.Sprintf("%s: from %s to %s", d.Topic, d.From, d.To)), "", width))
	if len(d.Changes) == 0 {
		fmt.Fprintln(&b, "  nothing is different")
	}
	for _, c := range d.Changes {
		path := c.Path
		if path == "" {
			path = "the whole"
		}
		line := map[string]string{"added": "  + ", "removed": "  - ", "changed": "  ~ "}[c.Change] + path + "  "
		switch c.Change {
		case "added":
			line += string(c.To)
		case "removed":
			line += string(c.From)
		default:
			line += string(c.From) + " is now " + string(c.To)
		}
		fmt.Fprintln(&b, clipped(printable(line), width))
	}
	for _, f := range []struct {
		name string
		fit
	}{
		{"backward (old documents under the new schema)", d.Backward},
		{"forward (new documents under the old schema)", d.Forward},
	} {
		verdict := "fits"
		if !f.Compatible {
			verdict = plural(len(f.Problems), "problem")
		}
		b.WriteString(wrapped(f.name+": "+verdict, "", width))
		b.WriteString(problemsText(f.Problems, width))
	}
	_, err := a.stdout.Write(b.Bytes())
	return err
}
