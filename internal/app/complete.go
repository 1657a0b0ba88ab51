package app

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
)

// completionWait is how long a shell may wait for names. Whoever presses tab
// shall not be held up, so what goes wrong is nobody's concern either.
const completionWait = time.Second

// completeNames completes arguments that are, up to n, a topic and then one of
// its groups.
func (a *app) completeNames(n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := a.remote.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
		defer cancel()
		if len(args) == 0 {
			return topicNames(ctx, c), cobra.ShellCompDirectiveNoFileComp
		}
		return groupNames(ctx, c, args[0]), cobra.ShellCompDirectiveNoFileComp
	}
}

// topicNames are those of all topics, the hub's own last.
func topicNames(ctx context.Context, c *client.Client) (names []string) {
	list, err := c.TopicInfos(ctx)
	if err != nil {
		return nil
	}
	var own []string
	for _, t := range list {
		if strings.HasPrefix(t.Topic, "dlq.") || strings.HasPrefix(t.Topic, "system.") {
			own = append(own, t.Topic)
			continue
		}
		names = append(names, t.Topic)
	}
	return append(names, own...)
}

func groupNames(ctx context.Context, c *client.Client, topic string) (names []string) {
	list, err := c.Groups(ctx, topic)
	if err != nil {
		return nil
	}
	for _, g := range list {
		names = append(names, g.Group)
	}
	return names
}

// completeFlag completes the value of a flag by names of the hub.
func (a *app) completeFlag(cmd *cobra.Command, flag string, names func(ctx context.Context, c *client.Client, args []string) []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		c, err := a.remote.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
		defer cancel()
		return names(ctx, c, args), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag is defined by the caller
	}
}

// completeGroupFlag completes a flag by the groups of the topic that stands
// first.
func (a *app) completeGroupFlag(cmd *cobra.Command, flag string) {
	a.completeFlag(cmd, flag, func(ctx context.Context, c *client.Client, args []string) []string {
		if len(args) == 0 {
			return nil
		}
		return groupNames(ctx, c, args[0])
	})
}

// fixed completes the value of a flag that has few.
func fixed(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is defined by the caller
	}
}

// completeFirst completes the first argument with names that the hub gives.
func (a *app) completeFirst(names func(context.Context, *client.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := a.remote.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
		defer cancel()
		list, err := names(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}
