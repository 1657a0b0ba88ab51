package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
)

func (a *app) changefeedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "changefeed",
		Short: "Look at change feeds and have them begin anew",
		Long: `A change feed publishes the changes of a MongoDB collection or a PostgreSQL table
as events of a topic. The configuration names them, under changefeeds.`,
		Example: "  promethean changefeed status\n  promethean changefeed resync processes",
		Args:    a.groupArgs,
		RunE:    a.noCommand,
	}
	cmd.AddCommand(a.changefeedStatusCommand(), a.changefeedResyncCommand())
	return cmd
}

func (a *app) changefeedStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status [FEED]",
		Short: "Show how change feeds are doing",
		Long: `Status shows the change feeds of a hub: what they are at, how many events they have
published since the hub was started, how far they are behind, and what went wrong.`,
		Example:           "  promethean changefeed status\n  promethean changefeed status processes -o json",
		Args:              takes("[FEED]"),
		ValidArgsFunction: a.completeFirst(feedNames),
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			feeds, err := c.Changefeeds(ctx)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				feeds = slices.DeleteFunc(feeds, func(f client.ChangefeedInfo) bool { return f.Name != args[0] })
				if len(feeds) == 0 {
					return fmt.Errorf("the hub has no change feed %q", args[0])
				}
			}
			return a.listFeeds(feeds)
		}),
	}
}

func (a *app) listFeeds(feeds []client.ChangefeedInfo) error {
	return list(a, feeds, []string{"FEED", "TOPIC", "STATE", "HUB", "PUBLISHED", "LAG", "BEHIND", "POSITION", "ERROR"}, func(f *client.ChangefeedInfo) []string {
		behind := ""
		if f.LagBytes != nil {
			behind = bytesText(*f.LagBytes)
		}
		return []string{f.Name, f.Topic, f.State, f.Hub, number(f.Published), ago(time.Duration(f.LagMs) * time.Millisecond), behind, f.Position, cmp.Or(f.Error, f.Warning)}
	})
}

func (a *app) changefeedResyncCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "resync FEED",
		Short: "Have a change feed begin anew",
		Long: `Resync has a change feed forget its place and begin anew: with all that is there, if
it takes snapshots, and then with the changes since. It is the way out of the state
failed after the source has lost the history since the saved place.`,
		Example:           "  promethean changefeed resync processes",
		Args:              takes("FEED"),
		ValidArgsFunction: a.completeFirst(feedNames),
		RunE: a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			f, err := c.ResyncChangefeed(ctx, args[0])
			if err != nil {
				return err
			}
			return a.listFeeds([]client.ChangefeedInfo{f})
		}),
	}
}

func feedNames(ctx context.Context, c *client.Client) (names []string, err error) {
	feeds, err := c.Changefeeds(ctx)
	for i := range feeds {
		names = append(names, feeds[i].Name)
	}
	return names, err
}

// bytesText is a number of bytes for people.
func bytesText(n int64) string {
	for _, u := range []struct {
		of   int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.of {
			return strconv.FormatFloat(float64(n)/float64(u.of), 'f', 1, 64) + " " + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " B"
}
