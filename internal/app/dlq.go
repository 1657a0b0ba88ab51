package app

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
	"promethean/event"
)

func (a *app) dlqCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Look at dead letters and replay them",
		Long: `A dead letter is an event that a group has failed to handle for good. TOPIC is
that of the original event.`,
		Example: "  promethean dlq list\n  promethean dlq show orders.placed\n  promethean dlq replay orders.placed --group billing",
		Args:    a.groupArgs,
		RunE:    a.noCommand,
	}
	cmd.AddCommand(a.dlqListCommand(), a.dlqShowCommand(), a.dlqReplayCommand())
	return cmd
}

func (a *app) dlqListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "Count dead letters by topic and group",
		Long:    `List counts the dead letters that were not replayed.`,
		Example: "  promethean dlq list",
		Args:    takesNothing,
		RunE: a.onHub(func(ctx context.Context, c *client.Client, _ []string) error {
			counts, err := c.LetterCounts(ctx)
			if err != nil {
				return err
			}
			return list(a, counts, []string{"TOPIC", "GROUP", "LETTERS"}, func(n *client.LetterCount) []string {
				return []string{n.Topic, n.Group, number(n.Count)}
			})
		}),
	}
}

// takesNothing refuses arguments.
func takesNothing(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return misuse(cmd, "%q: it takes no arguments", args[0])
	}
	return nil
}

func (a *app) dlqShowCommand() *cobra.Command {
	var group string
	var limit int
	cmd := &cobra.Command{
		Use:   "show TOPIC",
		Short: "Show the dead letters of a topic",
		Long: `Show writes the dead letters that were not replayed, oldest first: the event as it
was, why it failed and how often it was tried.`,
		Example: `  promethean dlq show orders.placed
  promethean dlq show orders.placed --group billing -o json | jq -r .id`,
		Args:              takes("TOPIC"),
		ValidArgsFunction: a.completeNames(1),
	}
	cmd.Flags().StringVarP(&group, "group", "g", "", "only those of this group")
	cmd.Flags().IntVar(&limit, "limit", 1000, "so many at most, up to 10000")
	a.completeGroupFlag(cmd, "group")
	cmd.PreRunE = positive("limit", &limit)
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		var b bytes.Buffer
		width, table := a.table()
		for l, err := range c.Letters(ctx, args[0], group, limit) {
			if err != nil {
				return err
			}
			if table {
				b.WriteString(letterText(&l, width))
			} else {
				line, err := encode(&l)
				if err != nil {
					return err
				}
				b.Write(append(line, '\n'))
			}
			if b.Len() >= flushAt {
				if _, err := b.WriteTo(a.stdout); err != nil {
					return err
				}
			}
		}
		_, err := b.WriteTo(a.stdout)
		return err
	})
	return cmd
}

// letterText shows a dead letter to people: an id does not fit into a table
// beside a reason.
func letterText(l *client.Letter, width int) string {
	about := fmt.Sprintf("seq %d, group %s, attempts %d, at %s", l.Original.Seq, l.Group, l.Attempts, time.UnixMilli(l.TS).UTC().Format(time.DateTime))
	if l.Original.Key != "" {
		about += ", key " + l.Original.Key
	}
	if l.Parked {
		about += ", its key waits for it"
	}
	payload := l.Original.Payload[:min(len(l.Original.Payload), 4*width)]
	return fmt.Sprintf("%s\n%s%s%s\n", l.ID, wrapped(printable(about), "  ", width), wrapped(printable(l.Err), "  ", width),
		clipped("  "+printable(string(payload)), width))
}

// positive refuses a number below 1.
func positive(flag string, n *int) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if *n < 1 {
			return misuse(cmd, "--%s must be at least 1", flag)
		}
		return nil
	}
}

func (a *app) dlqReplayCommand() *cobra.Command {
	var o client.LetterReplay
	var ids []string
	cmd := &cobra.Command{
		Use:   "replay TOPIC",
		Short: "Replay dead letters",
		Long: `Replay hands dead letters out again, oldest first, and their attempts start again.
--to topic publishes them again with new ids, for all groups; --to group hands the
originals to the group that failed, as is always done where a key waits.`,
		Example: `  promethean dlq replay orders.placed
  promethean dlq replay orders.placed --group billing --to group --limit 10
  promethean dlq replay orders.placed --ids f858aa90-30e2-5ec7-9a28-6d4639b74dcb`,
		Args:              takes("TOPIC"),
		ValidArgsFunction: a.completeNames(1),
	}
	cmd.Flags().StringSliceVar(&ids, "ids", nil, "ids of dead letters, as 'dlq show' tells them")
	cmd.Flags().StringVarP(&o.Group, "group", "g", "", "only those of this group")
	cmd.Flags().StringVar(&o.To, "to", "", "topic or group (default topic, but for keys that wait)")
	cmd.Flags().IntVar(&o.Limit, "limit", 1000, "so many at most, up to 10000")
	a.completeGroupFlag(cmd, "group")
	fixed(cmd, "to", "topic", "group")
	cmd.PreRunE = positive("limit", &o.Limit)
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		for _, s := range ids {
			id, err := event.ParseID(s)
			if err != nil {
				return advised{fmt.Errorf("--ids: %q: %w", s, err), "'promethean dlq show' tells the ids of dead letters"}
			}
			o.IDs = append(o.IDs, id)
		}
		got, err := c.ReplayLetters(ctx, args[0], o)
		if err != nil {
			return err
		}
		err = a.result(field{"topic", args[0]}, field{"replayed", got.Replayed}, field{"remaining", got.Remaining})
		if missing := len(o.IDs) - got.Replayed; err == nil && missing > 0 && got.Replayed < o.Limit {
			err = advised{fmt.Errorf("--ids: %d of %d are not replayed: there is no such dead letter, or it was replayed before", missing, len(o.IDs)), "'promethean dlq show' tells the ids of dead letters"}
		}
		return err
	})
	return cmd
}
