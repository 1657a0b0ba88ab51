package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
)

func (a *app) viewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "view",
		Short: "Look at read models and build them anew",
		Long: `A view is a read model of a topic: documents that the hub keeps up to date. The
configuration names them, under views.`,
		Example: "  promethean view list\n  promethean view get processes dev:stt:1\n  promethean view rebuild processes",
		Args:    a.groupArgs,
		RunE:    a.noCommand,
	}
	cmd.AddCommand(a.viewListCommand(), a.viewGetCommand(), a.viewRebuildCommand())
	return cmd
}

func (a *app) viewListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List views and how far they are",
		Long:    `List shows the views of a hub: their topics, how many documents they have, how far they are behind.`,
		Example: "  promethean view list",
		Args:    takesNothing,
		RunE: a.onHub(func(ctx context.Context, c *client.Client, _ []string) error {
			views, err := c.Views(ctx)
			if err != nil {
				return err
			}
			return list(a, views, []string{"VIEW", "KIND", "TOPIC", "DOCUMENTS", "SEQ", "LAG", "DEAD", "INDEXES"}, func(v *client.ViewInfo) []string {
				return []string{v.Name, v.Kind, v.Topic, documents(v), number(v.Seq), number(v.Lag), number(v.Dead), indexes(v)}
			})
		}),
	}
}

// documents says how many each collection has; a view with one needs no names.
func documents(v *client.ViewInfo) string {
	if len(v.Collections) == 1 {
		return number(v.Collections[0].Count)
	}
	var parts []string
	for _, c := range v.Collections {
		parts = append(parts, c.Name+" "+number(c.Count))
	}
	return strings.Join(parts, ", ")
}

func indexes(v *client.ViewInfo) string {
	var parts []string
	for _, c := range v.Collections {
		for _, fields := range c.Indexes {
			parts = append(parts, strings.Join(fields, "+"))
		}
	}
	return strings.Join(parts, ", ")
}

func (a *app) viewGetCommand() *cobra.Command {
	var filters []string
	var offset, limit int
	cmd := &cobra.Command{
		Use:   "get VIEW [KEY]",
		Short: "Show a document of a view, or several",
		Long: `Get writes the document of a key. Without a key it writes documents, newest first,
one a line; --where keeps those in which an indexed field has a value.`,
		Example: `  promethean view get processes dev:stt:1
  promethean view get processes --where status=alive --where host=dev --limit 10`,
		Args:              takes("VIEW", "[KEY]"),
		ValidArgsFunction: a.completeFirst(viewNames),
	}
	cmd.Flags().StringArrayVar(&filters, "where", nil, "field=value that documents must have; several narrow it down")
	cmd.Flags().IntVar(&offset, "offset", 0, "leave out so many")
	cmd.Flags().IntVar(&limit, "limit", 100, "so many at most, up to 1000")
	where := make(map[string]string)
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		for _, f := range filters {
			name, value, ok := strings.Cut(f, "=")
			if !ok || name == "" || name == "offset" || name == "limit" {
				return misuse(cmd, "invalid argument %q for \"--where\" flag: must be field=value", f)
			}
			if _, twice := where[name]; twice {
				return misuse(cmd, "invalid argument %q for \"--where\" flag: %s comes twice, and no document has two values", f, name)
			}
			where[name] = value
		}
		if offset < 0 {
			return misuse(cmd, "invalid argument \"%d\" for \"--offset\" flag: must not be negative", offset)
		}
		if len(args) == 2 && (len(filters) > 0 || cmd.Flags().Changed("offset") || cmd.Flags().Changed("limit")) {
			return misuse(cmd, "a key names one document: --where, --offset and --limit are for lists")
		}
		return positive("limit", &limit)(cmd, args)
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		if len(args) == 2 {
			d, _, err := c.Snap(ctx, args[0], args[1], "")
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s\n", strings.TrimRight(string(d.Body), "\n"))
			return err
		}
		got, err := c.ListView(ctx, args[0], where, offset, limit)
		if err != nil {
			return err
		}
		for _, doc := range got.Items {
			if _, err := fmt.Fprintf(a.stdout, "%s\n", doc); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

// viewNames are those of collections.
func viewNames(ctx context.Context, c *client.Client) (names []string, err error) {
	views, err := c.Views(ctx)
	for _, v := range views {
		for _, x := range v.Collections {
			names = append(names, x.Name)
		}
	}
	slices.Sort(names)
	return names, err
}

// rebuildPoll is how often the hub is asked how far a rebuild is.
const rebuildPoll = 300 * time.Millisecond

func (a *app) viewRebuildCommand() *cobra.Command {
	var from string
	var background bool
	cmd := &cobra.Command{
		Use:   "rebuild VIEW",
		Short: "Build a view anew from its topic",
		Long: `Rebuild has the hub make the documents of a view anew, beside those that are
served, and swaps them when it has caught up: readers see the old ones or the new
ones. It shows how far it is until it is done; ending the command does not end
the rebuild. If the hub ends meanwhile, the view stays as it was.

With --from snapshot it begins with the snapshots of the topic, which is quicker
where a key has many events.`,
		Example:           "  promethean view rebuild processes\n  promethean view rebuild processes --from snapshot",
		Args:              takes("VIEW"),
		ValidArgsFunction: a.completeFirst(viewNames),
	}
	cmd.Flags().StringVar(&from, "from", "earliest", "where to begin: earliest or snapshot")
	cmd.Flags().BoolVar(&background, "background", false, "do not wait until it is done")
	fixed(cmd, "from", "earliest", "snapshot")
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		return a.rebuild(ctx, c, args[0], from, background)
	})
	return cmd
}

// rebuild has a view built anew, and tells how that ended.
func (a *app) rebuild(ctx context.Context, c *client.Client, name, from string, background bool) error {
	v, err := c.RebuildView(ctx, name, from)
	if err != nil {
		return err
	}
	if !background {
		if v, err = a.followRebuild(ctx, c, name, v); err != nil {
			return err
		}
	}
	return a.result(field{"view", v.Name}, field{"state", v.Rebuild.State}, field{"events", v.Rebuild.Events},
		field{"seq", v.Rebuild.Seq}, field{"documents", documents(&v)})
}

// followRebuild shows how far a rebuild is until it has ended.
func (a *app) followRebuild(ctx context.Context, c *client.Client, name string, v client.ViewInfo) (client.ViewInfo, error) {
	bar := a.progress("rebuilding")
	defer bar.clear()
	tick := time.NewTicker(rebuildPoll)
	defer tick.Stop()
	began := time.Time{}
	for {
		r := v.Rebuild
		switch {
		case r == nil || !began.IsZero() && !r.Began.Equal(began):
			return v, errors.New("the hub was started again meanwhile: the view is as it was before")
		case r.State == "failed":
			return v, fmt.Errorf("the rebuild has failed, and the view is as it was before: %s", r.Err)
		case r.State == "done":
			return v, nil
		}
		began = r.Began
		bar.show(int64(r.Seq), int64(r.Tail))
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-tick.C:
		}
		var err error
		if v, err = c.View(ctx, name); err != nil {
			return v, err
		}
	}
}
