package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
	"promethean/event"
)

func (a *app) topicsCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "topics [TOPIC]",
		Short: "List topics, or show one",
		Long: `Topics lists the topics of a hub with their counts and settings. Those that
only the hub writes to, under dlq. and system., are listed with --all.`,
		Example: `  promethean topics
  promethean topics process.state -o json
  promethean topics set process.state --retention 72h`,
		Args:              takes("[TOPIC]"),
		ValidArgsFunction: a.completeNames(1),
	}
	cmd.Flags().BoolVar(&all, "all", false, "list the hub's own topics too")
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		if len(args) == 1 {
			t, err := c.TopicInfo(ctx, args[0])
			if client.CodeOf(err) == "not_found" {
				err = advised{err, "'promethean topics' lists those that there are"}
			}
			if err != nil {
				return err
			}
			return a.listTopics([]client.TopicInfo{t})
		}
		topics, err := c.TopicInfos(ctx)
		if err != nil {
			return err
		}
		if !all {
			topics = slices.DeleteFunc(topics, func(t client.TopicInfo) bool { return event.ReservedTopic(t.Topic) })
		}
		return a.listTopics(topics)
	})
	cmd.AddCommand(a.topicsSetCommand())
	return cmd
}

func (a *app) listTopics(topics []client.TopicInfo) error {
	columns := []string{"TOPIC", "EVENTS", "FIRST", "LAST", "BYTES", "PARTITIONS", "RETENTION", "DURABILITY"}
	// Few topics are in the middle of a change.
	dual := slices.ContainsFunc(topics, func(t client.TopicInfo) bool { return t.Settings.DualWriteTo != "" })
	if dual {
		columns = append(columns, "DUAL WRITE TO")
	}
	return list(a, topics, columns, func(t *client.TopicInfo) []string {
		cells := []string{
			t.Topic, number(t.Events), number(t.First), number(t.Last), number(t.Bytes),
			strconv.Itoa(t.Settings.Partitions), cmp.Or(t.Settings.Retention, "for ever"), t.Settings.Durability,
		}
		if dual {
			cells = append(cells, t.Settings.DualWriteTo)
		}
		return cells
	})
}

func (a *app) groupsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "groups [TOPIC]",
		Short: "List groups",
		Long:  `Groups lists the groups of a topic, or of all, with how far they are.`,
		Example: `  promethean groups
  promethean groups process.state
  promethean groups show monitor
  promethean groups delete process.state monitor`,
		Args:              takes("[TOPIC]"),
		ValidArgsFunction: a.completeNames(1),
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			groups, err := c.Groups(ctx, strings.Join(args, ""))
			if err != nil {
				return err
			}
			return list(a, groups, []string{"TOPIC", "GROUP", "LAG", "CURSOR", "TAIL", "IN FLIGHT", "MEMBERS", "ORDERING", "NOTE"}, func(g *client.GroupInfo) []string {
				note := ""
				if g.Paused {
					note = "paused"
				}
				return []string{
					g.Topic, g.Group, number(g.Lag), number(g.Cursor), number(g.Tail), number(g.InFlight), number(g.Members), g.Settings.Ordering, note,
				}
			})
		}),
	}
	cmd.AddCommand(a.groupsShowCommand(), &cobra.Command{
		Use:   "delete TOPIC GROUP",
		Short: "Remove a group that nobody reads",
		Long: `Delete removes a group and where it was. If somebody subscribes as that group
again, it is a new one. Events and dead letters stay.`,
		Example:           "  promethean groups delete process.state monitor",
		Args:              takes("TOPIC", "GROUP"),
		ValidArgsFunction: a.completeNames(2),
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			if err := c.DeleteGroup(ctx, args[0], args[1]); err != nil {
				return noGroup(err)
			}
			return a.result(field{"topic", args[0]}, field{"group", args[1]}, field{"deleted", true})
		}),
	})
	return cmd
}

// noGroup adds what to do where there is no such group.
func noGroup(err error) error {
	if client.CodeOf(err) == "not_found" {
		return advised{err, "'promethean groups' lists those that there are"}
	}
	return err
}

func (a *app) lagCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "lag [TOPIC [GROUP]]",
		Short: "Show how far groups are behind",
		Long: `Lag shows, for one group, those of a topic or all, how many events are not
settled and how old the oldest of them is.`,
		Example: `  promethean lag
  promethean lag process.state monitor`,
		Args:              takes("[TOPIC]", "[GROUP]"),
		ValidArgsFunction: a.completeNames(2),
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 2 {
				l, err := c.GroupLag(ctx, args[0], args[1])
				if err != nil {
					return noGroup(err)
				}
				return a.listLags([]client.LagInfo{l})
			}
			groups, err := c.Groups(ctx, strings.Join(args, ""))
			if err != nil {
				return err
			}
			lags := make([]client.LagInfo, 0, len(groups))
			for _, g := range groups {
				l, err := c.GroupLag(ctx, g.Topic, g.Group)
				if client.CodeOf(err) == "not_found" {
					continue // removed meanwhile
				}
				if err != nil {
					return err
				}
				lags = append(lags, l)
			}
			return a.listLags(lags)
		}),
	}
}

func (a *app) listLags(lags []client.LagInfo) error {
	return list(a, lags, []string{"TOPIC", "GROUP", "LAG", "OLDEST", "CURSOR", "TAIL"}, func(l *client.LagInfo) []string {
		return []string{l.Topic, l.Group, number(l.Lag), ago(time.Duration(l.LagMs) * time.Millisecond), number(l.Cursor), number(l.Tail)}
	})
}

func (a *app) cursorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cursor",
		Short:   "Show and move cursors of groups",
		Long:    `A cursor is the seq up to which a group has settled everything.`,
		Example: "  promethean cursor get process.state\n  promethean cursor set process.state monitor --from earliest",
		Args:    a.groupArgs,
		RunE:    a.noCommand,
	}
	cmd.AddCommand(a.cursorGetCommand(), a.cursorSetCommand())
	return cmd
}

func (a *app) cursorGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "get TOPIC [GROUP]",
		Short:             "Show where groups are",
		Long:              `Get shows the cursor of a group, or those of all groups of a topic.`,
		Example:           "  promethean cursor get process.state monitor",
		Args:              takes("TOPIC", "[GROUP]"),
		ValidArgsFunction: a.completeNames(2),
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			cursors, err := c.Cursors(ctx, args[0])
			if err != nil {
				return err
			}
			if len(args) == 2 {
				cursors = slices.DeleteFunc(cursors, func(at client.CursorInfo) bool { return at.Group != args[1] })
				if len(cursors) == 0 {
					return advised{fmt.Errorf("topic %s has no group %s", args[0], args[1]), "'promethean groups' lists those that there are"}
				}
			}
			return a.listCursors(cursors)
		}),
	}
}

func (a *app) listCursors(cursors []client.CursorInfo) error {
	return list(a, cursors, []string{"TOPIC", "GROUP", "SEQ", "PENDING", "UTC", "ID"}, func(at *client.CursorInfo) []string {
		when := ""
		if at.LastTS > 0 {
			when = time.UnixMilli(at.LastTS).UTC().Format(time.DateTime)
		}
		return []string{at.Topic, at.Group, number(at.Seq), number(at.Pending), when, at.LastID}
	})
}

func (a *app) cursorSetCommand() *cobra.Command {
	var to place
	cmd := &cobra.Command{
		Use:   "set TOPIC GROUP --from PLACE",
		Short: "Move a group to another place",
		Long: `Set moves a group: its leases end, and what it had settled after the new place is
forgotten and comes again. Attempts start again too.

` + placeHelp,
		Example: `  promethean cursor set process.state monitor --from earliest
  promethean cursor set process.state monitor --from 41
  promethean cursor set process.state monitor --from 2026-11-15T00:00:00Z`,
		Args:              takes("TOPIC", "GROUP"),
		ValidArgsFunction: a.completeNames(2),
	}
	cmd.Flags().Var(&to, "from", "the place")
	fixed(cmd, "from", client.Earliest, client.Latest)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if to.From == "" {
			return misuse(cmd, "missing: --from, the place")
		}
		return nil
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		at, err := c.MoveCursor(ctx, args[0], args[1], to.Place)
		if err != nil {
			return noGroup(err)
		}
		return a.listCursors([]client.CursorInfo{at})
	})
	return cmd
}
