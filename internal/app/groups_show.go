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
)

// groupShown is all that is known of a group.
type groupShown struct {
	client.GroupPartitions
	Cursor      uint64 `json:"cursor"`
	Tail        uint64 `json:"tail"`
	Lag         uint64 `json:"lag"`
	InFlight    int    `json:"inflight"`
	Pending     int    `json:"pending"`
	MemberCount int    `json:"member_count"`
	Paused      bool   `json:"paused,omitempty"`
}

func (a *app) groupsShowCommand() *cobra.Command {
	var topic string
	cmd := &cobra.Command{
		Use:   "show GROUP",
		Short: "Show how a group stands, and who has which partition",
		Long: `Show tells of the groups of a name, on one topic or on all, how far they are and,
where they are partitioned, who their members are, which partitions they have, how
far each is, and how long the last rebalance took. On a pipe it is one JSON line for
each group.

A member that is away keeps its partitions for a while. One that is damped came and
went too often, and gets none for a while.`,
		Example: `  promethean groups show analyzer
  promethean groups show analyzer --topic heartbeat.received -o json`,
		Args:              takes("GROUP"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&topic, "topic", "", "only the group on this topic")
	a.completeFlag(cmd, "topic", func(ctx context.Context, c *client.Client, _ []string) []string { return topicNames(ctx, c) })
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		groups, err := showGroups(ctx, c, topic, args[0])
		if err != nil {
			return noGroup(err)
		}
		if _, yes := a.table(); !yes {
			return list(a, groups, nil, nil)
		}
		for i := range groups {
			if i > 0 {
				fmt.Fprintln(a.stdout)
			}
			if err := a.groupTables(&groups[i], time.Now()); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

// showGroups asks for all that is known of the groups of a name.
func showGroups(ctx context.Context, c *client.Client, topic, name string) ([]groupShown, error) {
	parts, err := c.GroupPartitions(ctx, topic, name)
	if err != nil && client.CodeOf(err) != "unsupported" {
		return nil, err
	}
	infos, err := c.Groups(ctx, topic)
	if err != nil {
		return nil, err
	}
	var out []groupShown
	for _, i := range infos {
		if i.Group != name {
			continue
		}
		g := groupShown{Cursor: i.Cursor, Tail: i.Tail, Lag: i.Lag, InFlight: i.InFlight, Pending: i.Pending, MemberCount: i.Members, Paused: i.Paused}
		g.Topic, g.Group, g.Members, g.Partitions = i.Topic, i.Group, []client.PartitionMember{}, []client.PartitionInfo{}
		if at := slices.IndexFunc(parts, func(p client.GroupPartitions) bool { return p.Topic == i.Topic }); at >= 0 {
			g.GroupPartitions = parts[at]
		}
		if g.Partitioned {
			g.MemberCount = len(g.Members)
		}
		out = append(out, g)
	}
	if len(out) == 0 {
		return nil, &client.Error{Code: "not_found", Message: "there is no group " + name}
	}
	return out, nil
}

// groupTables writes a group for people.
func (a *app) groupTables(g *groupShown, now time.Time) error {
	head := []field{{"topic", g.Topic}, {"group", g.Group}}
	if g.Paused {
		head = append(head, field{"note", "paused"})
	}
	head = append(head, field{"lag", number(g.Lag)}, field{"cursor", number(g.Cursor)}, field{"tail", number(g.Tail)}, field{"in flight", number(g.InFlight)})
	if !g.Partitioned {
		return a.result(append(head, field{"members", number(g.MemberCount)})...)
	}
	head = append(head, field{"partitions", number(len(g.Partitions))}, field{"generation", number(g.Generation)}, field{"last rebalance", rebalanced(g.LastRebalance, now)})
	if err := a.result(head...); err != nil {
		return err
	}
	hubs := slices.ContainsFunc(g.Members, func(m client.PartitionMember) bool { return m.Hub != "" })
	columns := []string{"MEMBER", "PARTITIONS", "HEARD", "NOTE"}
	if hubs {
		columns = append(columns, "HUB")
	}
	if len(g.Members) > 0 {
		fmt.Fprintln(a.stdout)
	}
	err := list(a, g.Members, columns[:len(columns)*min(len(g.Members), 1)], func(m *client.PartitionMember) []string {
		cells := []string{m.ID, ranges(m.Partitions), since(m.LastHeartbeat, now), memberNote(m, now)}
		if hubs {
			cells = append(cells, m.Hub)
		}
		return cells
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	return list(a, g.Partitions, []string{"PARTITION", "OWNER", "EPOCH", "CURSOR", "LAG", "NOTE"}, func(p *client.PartitionInfo) []string {
		lag, note := number(p.Lag), ""
		if p.About {
			lag = "about " + lag
		}
		if p.From != "" {
			note = "moves from " + p.From
		}
		return []string{strconv.Itoa(p.Partition), cmp.Or(p.Owner, "nobody"), number(p.Epoch), number(p.Cursor), lag, note}
	})
}

// rebalanced says what the last rebalance was.
func rebalanced(r *client.Rebalance, now time.Time) string {
	if r == nil {
		return "none"
	}
	text := fmt.Sprintf("%s ago, %s moved", since(r.At, now), number(r.Moved))
	if r.TookMs == nil {
		return fmt.Sprintf("%s, %s not running yet", text, number(r.Pending))
	}
	return fmt.Sprintf("%s in %s", text, ago(time.Duration(*r.TookMs)*time.Millisecond))
}

func memberNote(m *client.PartitionMember, now time.Time) string {
	var notes []string
	if m.AwaySince != 0 {
		notes = append(notes, "away for "+since(m.AwaySince, now))
	}
	if m.Leaving {
		notes = append(notes, "leaving")
	}
	if m.DampedUntil != 0 {
		notes = append(notes, "damped for "+ago(max(time.UnixMilli(m.DampedUntil).Sub(now), 0)))
	}
	return strings.Join(notes, ", ")
}

// since is how long ago a moment was, by clocks that may differ a little.
func since(ms int64, now time.Time) string { return ago(max(now.Sub(time.UnixMilli(ms)), 0)) }

// ranges writes ascending numbers, neighbours together: 0-3,7.
func ranges(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		end := i
		for end+1 < len(list) && list[end+1] == list[end]+1 {
			end++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(list[i]))
		if end > i {
			b.WriteString("-" + strconv.Itoa(list[end]))
		}
		i = end + 1
	}
	return cmp.Or(b.String(), "none")
}
