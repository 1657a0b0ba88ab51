package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
	"promethean/event"
)

func (a *app) outboxCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Look at outboxes and at rows that could not be published",
		Long: `An outbox is a table of events that services fill in their own transactions. The
configuration names those that the hub drains, under outboxes.`,
		Example: "  promethean outbox status\n  promethean outbox errors shop\n  promethean outbox retry shop",
		Args:    a.groupArgs,
		RunE:    a.noCommand,
	}
	cmd.AddCommand(a.outboxStatusCommand(), a.outboxErrorsCommand(), a.outboxRetryCommand(), a.outboxDiscardCommand())
	return cmd
}

func (a *app) outboxStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status [OUTBOX]",
		Short: "Show how outboxes are doing",
		Long: `Status shows the outboxes that a hub drains: how many rows wait, how old the oldest
is, how many were refused and are tried again, and how many wait for a person.`,
		Example:           "  promethean outbox status",
		Args:              takes("[OUTBOX]"),
		ValidArgsFunction: a.completeFirst(outboxNames),
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			boxes, err := c.Outboxes(ctx)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				boxes = slices.DeleteFunc(boxes, func(o client.OutboxInfo) bool { return o.Name != args[0] })
				if len(boxes) == 0 {
					return fmt.Errorf("the hub has no outbox %q", args[0])
				}
			}
			return list(a, boxes, []string{"OUTBOX", "STATE", "PENDING", "LAG", "REFUSED", "FAILED", "SENT", "ERROR"}, func(o *client.OutboxInfo) []string {
				return []string{
					o.Name, o.State, number(o.Pending + o.Claimed), ago(time.Duration(o.LagMs) * time.Millisecond),
					number(o.Refused), number(o.Failed), number(o.SentTotal), o.Error,
				}
			})
		}),
	}
}

func (a *app) outboxErrorsCommand() *cobra.Command {
	limit := 100
	cmd := &cobra.Command{
		Use:               "errors OUTBOX",
		Short:             "List rows that could not be published",
		Long:              `Errors lists the rows of an outbox that were refused, those that wait for a person first.`,
		Example:           "  promethean outbox errors shop --limit 10",
		Args:              takes("OUTBOX"),
		ValidArgsFunction: a.completeFirst(outboxNames),
		PreRunE:           positive("limit", &limit),
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			rows, err := c.OutboxErrors(ctx, args[0], limit)
			if err != nil {
				return err
			}
			return list(a, rows, []string{"ID", "TOPIC", "KEY", "STATE", "ATTEMPTS", "ERROR"}, func(r *client.OutboxRow) []string {
				return []string{r.ID.String(), r.Topic, r.Key, r.State, number(r.Attempts), r.Error}
			})
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", limit, "so many at most")
	return cmd
}

// rowIDs reads the ids of rows.
func rowIDs(args []string) (ids []event.ID, err error) {
	for _, s := range args {
		id, err := event.ParseID(s)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", s, err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// takesRows wants the name of an outbox, then ids of rows.
func takesRows(needed bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return misuse(cmd, "OUTBOX is missing")
		}
		if needed && len(args) == 1 {
			return misuse(cmd, "ID is missing")
		}
		return nil
	}
}

func (a *app) outboxRetryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "retry OUTBOX [ID]...",
		Short: "Try rows again that could not be published",
		Long: `Retry makes rows due at once that were refused, and has their attempts begin again:
those named, or all.`,
		Example:           "  promethean outbox retry shop",
		Args:              takesRows(false),
		ValidArgsFunction: a.completeFirst(outboxNames),
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			ids, err := rowIDs(args[1:])
			if err != nil {
				return err
			}
			n, err := c.RetryOutbox(ctx, args[0], ids...)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s to be tried again\n", plural(n, "row"))
			return err
		}),
	}
}

func (a *app) outboxDiscardCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "discard OUTBOX ID...",
		Short: "Remove rows that could not be published",
		Long: `Discard removes rows that were refused: their events will never be published, and
those behind them go on.`,
		Example:           "  promethean outbox discard shop 0190a6d2-7b4c-7e8f-9a0b-1c2d3e4f5a6b",
		Args:              takesRows(true),
		ValidArgsFunction: a.completeFirst(outboxNames),
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			ids, err := rowIDs(args[1:])
			if err != nil {
				return err
			}
			n, err := c.DiscardOutbox(ctx, args[0], ids...)
			if err != nil {
				return err
			}
			if n < len(ids) {
				err = errors.New("the rest were sent, are being sent, or are not there")
			}
			_, told := fmt.Fprintf(a.stdout, "%s removed\n", plural(n, "row"))
			return errors.Join(told, err)
		}),
	}
}

func outboxNames(ctx context.Context, c *client.Client) (names []string, err error) {
	boxes, err := c.Outboxes(ctx)
	for i := range boxes {
		names = append(names, boxes[i].Name)
	}
	return names, err
}
