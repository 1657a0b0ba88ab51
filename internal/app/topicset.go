package app

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
)

// topicSetting is a setting of a topic that a flag changes.
type topicSetting struct {
	flag, name, usage string
	// parse makes a value of the flag's; nil takes the text as it is.
	parse func(string) (any, error)
}

// topicSettings are those in the order of the help.
var topicSettings = []topicSetting{
	{flag: "retention", name: "retention", usage: "how long events are kept, such as 72h or 30d"},
	{flag: "max-bytes", name: "max_bytes", usage: "how large the topic may grow, such as 10GiB"},
	{flag: "durability", name: "durability", usage: "when a publish is answered: sync or async"},
	{flag: "partitions", name: "partitions", usage: "number of partitions", parse: parseNumber},
	{flag: "compaction", name: "compaction", usage: "keep the latest event of each key only: on or off", parse: parseSwitch},
	{flag: "history", name: "history", usage: "how long superseded events of a compaction topic stay, such as 24h"},
	{flag: "tombstones", name: "tombstones", usage: "how long the last event of a deleted key stays, such as 24h"},
	{flag: "snapshot", name: "snapshot", usage: "write snapshots: on, off, or how often, such as 30s", parse: parseSnapshot},
	{flag: "schemas", name: "schemas", usage: "directory on the hub's machine to load schemas from"},
	{flag: "strict-schema", name: "strict_schema", usage: "refuse events while there is no schema: on or off", parse: parseSwitch},
	{flag: "legacy-version", name: "legacy_version", usage: "version of stored events that have no stamp (default the latest)", parse: parseNumber},
	{flag: "dual-write", name: "dual_write", usage: "write events to TOPIC.vN too: on, off, or on until a time (RFC 3339, or a duration from now)", parse: parseWindow},
}

func parseNumber(s string) (any, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return nil, errors.New("must be a number")
	}
	return n, nil
}

func parseSwitch(s string) (any, error) {
	switch s {
	case "on", "true":
		return true, nil
	case "off", "false":
		return false, nil
	}
	return nil, errors.New("must be on or off")
}

func parseSnapshot(s string) (any, error) {
	if on, err := parseSwitch(s); err == nil {
		return on, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return map[string]string{"every": s}, nil
	}
	return nil, errors.New("must be on, off, or a duration such as 30s")
}

func parseWindow(s string) (any, error) {
	if on, err := parseSwitch(s); err == nil {
		return on, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return time.Now().Add(d).UTC().Truncate(time.Second), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t.UTC(), nil
	}
	return nil, errors.New("must be on, off, a time such as 2026-12-31T18:00:00Z, or a duration such as 24h")
}

func (a *app) topicsSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set TOPIC",
		Short: "Change settings of a topic",
		Long: `Set changes the settings that it names, leaves the others, and makes the topic if
need be. The value "default" takes a setting back.`,
		Example: `  promethean topics set heartbeat.received --retention 72h --partitions 8
  promethean topics set heartbeat.received --max-bytes default
  promethean topics set heartbeat.received --dual-write on
  promethean topics set process.state --compaction on --history 24h --snapshot 30s`,
		Args:              takes("TOPIC"),
		ValidArgsFunction: a.completeNames(1),
	}
	values := make([]string, len(topicSettings))
	flags := make([]string, len(topicSettings))
	for i, s := range topicSettings {
		cmd.Flags().StringVar(&values[i], s.flag, "", s.usage)
		flags[i] = "--" + s.flag
	}
	fixed(cmd, "durability", "sync", "async")
	fixed(cmd, "compaction", "on", "off")
	fixed(cmd, "snapshot", "on", "off")
	fixed(cmd, "strict-schema", "on", "off")
	fixed(cmd, "dual-write", "on", "off")
	change := make(map[string]any)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		for i, s := range topicSettings {
			if !cmd.Flags().Changed(s.flag) {
				continue
			}
			switch {
			case values[i] == "default":
				change[s.name] = nil
			case s.parse == nil:
				change[s.name] = values[i]
			default:
				v, err := s.parse(values[i])
				if err != nil {
					return fmt.Errorf("invalid argument %q for \"--%s\" flag: %w", values[i], s.flag, err)
				}
				change[s.name] = v
			}
		}
		if len(change) == 0 {
			return misuse(cmd, "name a setting: %s", strings.Join(flags, ", "))
		}
		return nil
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		t, err := c.SetTopic(ctx, args[0], change)
		if err != nil {
			return err
		}
		return a.listTopics([]client.TopicInfo{t})
	})
	return cmd
}
