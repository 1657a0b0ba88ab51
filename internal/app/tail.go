package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
)

// tailOptions are the flags of tail, and of sub without a group.
type tailOptions struct {
	from  place
	last  int
	count int
	retry time.Duration

	normalise bool
}

func (a *app) tailCommand() *cobra.Command {
	var o tailOptions
	cmd := &cobra.Command{
		Use:   "tail TOPIC",
		Short: "Watch a topic",
		Long: `Tail writes the events of a topic as they are published, until it is
interrupted. Nothing is leased or remembered. After a lost connection it goes on
after the last event, so that nothing is left out.

` + placeHelp,
		Example: `  promethean tail process.state
  promethean tail process.state --last 10
  promethean tail process.state --from 15m | jq .payload`,
		Args:              takes("TOPIC"),
		ValidArgsFunction: a.completeNames(1),
	}
	cmd.Flags().Var(&o.from, "from", "where to begin (default latest)")
	cmd.Flags().IntVarP(&o.last, "last", "n", 0, "begin so many events before the end")
	cmd.Flags().IntVar(&o.count, "count", 0, "end after so many events")
	normaliseFlag(cmd, &o.normalise)
	retryFlag(cmd, &o.retry)
	cmd.MarkFlagsMutuallyExclusive("from", "last")
	fixed(cmd, "from", client.Earliest, client.Latest)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if o.last < 0 || o.count < 0 {
			return misuse(cmd, "--last and --count must not be negative")
		}
		return nil
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error { return a.tail(ctx, c, args[0], o) })
	return cmd
}

// normaliseFlag adds the flag that asks for events of the latest version only.
func normaliseFlag(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "normalise", false, "bring events up to the latest version of the topic's schema")
}

// oneTopic refuses a pattern where the hub takes none.
func oneTopic(topic string) error {
	if strings.Contains(topic, "*") {
		return advised{fmt.Errorf("%q is a pattern: a stream is of one topic", topic), "'promethean topics' lists them: run one command for each"}
	}
	return nil
}

func (a *app) tail(ctx context.Context, c *client.Client, topic string, o tailOptions) error {
	if err := oneTopic(topic); err != nil {
		return err
	}
	if o.last > 0 {
		end, err := c.Locate(ctx, topic, client.Place{From: client.Latest})
		if err != nil {
			return err
		}
		o.from = place{client.Place{From: client.BySeq, Seq: end - min(end, uint64(o.last))}}
	}
	out := a.events()
	to := client.TailOptions{From: o.from.Place, GiveUp: o.retry, Lost: a.away(nil), Normalise: o.normalise}
	if o.retry <= 0 {
		to.GiveUp = -1
	}
	for e, err := range c.Tail(ctx, topic, to) {
		switch {
		case err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled):
			return a.stopped(o.count, out.count)
		case err != nil:
			return err
		}
		if err := out.put(&e); err != nil {
			return err
		}
		// Whoever watches wants to see it now.
		if err := out.flush(); err != nil {
			return err
		}
		if o.count > 0 && out.count == o.count {
			return nil
		}
	}
	return nil
}

// stopped is the end of a command that goes on until it is interrupted: that
// is no failure, unless it had been told how many events to wait for.
func (a *app) stopped(want, got int) error {
	if want == 0 {
		return nil
	}
	return fmt.Errorf("after %d of %d events: %w", got, want, context.Canceled)
}
