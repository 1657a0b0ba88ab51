package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
)

func (a *app) historyCommand() *cobra.Command {
	var after uint64
	var limit int
	var diff bool
	var reduce reducer
	cmd := &cobra.Command{
		Use:   "history TOPIC KEY",
		Short: "Show the events of a key",
		Long: `History writes the retained events of a key, in log order. With --diff it writes
what each of them changed: a line for every value that differs, or, as JSON, each
event with the state after it and the changes. What came before an event that is
the first one left may not be known; then there are no changes.`,
		Example: `  promethean history process.state dev:stt:1
  promethean history process.state dev:stt:1 --diff`,
		Args:              takes("TOPIC", "KEY"),
		ValidArgsFunction: a.completeNames(1),
	}
	cmd.Flags().Uint64Var(&after, "after", 0, "only events after this seq")
	cmd.Flags().IntVar(&limit, "limit", 0, "so many at most (default all)")
	cmd.Flags().BoolVar(&diff, "diff", false, "write what each event changed")
	reduce.flag(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if reduce != "" && !diff {
			return misuse(cmd, "--reduce is for --diff")
		}
		return nil
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		if diff {
			return a.historyDiff(ctx, c, args[0], args[1], after, limit, string(reduce))
		}
		out := a.events()
		for e, err := range c.History(ctx, args[0], args[1], after) {
			if err == nil {
				err = out.put(&e)
			}
			if err != nil {
				return errors.Join(err, out.flush())
			}
			if out.count == limit {
				break
			}
		}
		return out.flush()
	})
	return cmd
}

// historyDiff writes what the events of a key changed.
func (a *app) historyDiff(ctx context.Context, c *client.Client, topic, key string, after uint64, limit int, reduce string) error {
	width, table := a.table()
	count := 0
	for s, err := range c.HistoryDiff(ctx, topic, key, after, reduce) {
		if err != nil {
			return err
		}
		if table {
			err = writeStep(a.stdout, &s, width, count == 0)
		} else {
			var line []byte
			if line, err = encode(&s); err == nil {
				_, err = a.stdout.Write(append(line, '\n'))
			}
		}
		if count++; err != nil || count == limit {
			return err
		}
	}
	return nil
}

// writeStep writes the lines of a table for a step: one for each change.
func writeStep(out io.Writer, s *client.Step, width int, first bool) error {
	var b strings.Builder
	line := func(at string, seq any, op, path, value string) {
		text := fmt.Sprintf("%-23s  %-8v %-8s %-20s %s", at, seq, op, path, value)
		b.WriteString(clipped(strings.TrimRight(printable(text), " "), width) + "\n")
	}
	if first {
		line("UTC", "SEQ", "CHANGE", "PATH", "VALUE")
	}
	at, seq := s.Event.Time().UTC().Format("2006-01-02 15:04:05.000"), any(s.Event.Seq)
	switch {
	case s.Changes == nil && s.State == nil:
		line(at, seq, "", "", "not known: events before are gone")
	case s.Changes == nil:
		line(at, seq, "state", "", short(s.State, width))
	case len(s.Changes) == 0:
		line(at, seq, "none", "", "")
	}
	for _, c := range s.Changes {
		value := short(c.To, width)
		switch c.Op {
		case "remove":
			value = short(c.From, width)
		case "replace":
			value = short(c.From, width) + " → " + short(c.To, width)
		}
		line(at, seq, c.Op, c.Path, value)
		at, seq = "", ""
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// short is no more of a value than may fit into a line.
func short(v json.RawMessage, width int) string { return string(v[:min(len(v), 4*width)]) }

// reducer is the value of --reduce.
type reducer string

func (r *reducer) flag(cmd *cobra.Command) {
	cmd.Flags().Var(r, "reduce", "how events become a state: replace or merge (default what the hub has for the topic)")
	fixed(cmd, "reduce", "replace", "merge")
}

// String implements pflag.Value.
func (r *reducer) String() string { return string(*r) }

// Set implements pflag.Value.
func (r *reducer) Set(s string) error {
	if s != "replace" && s != "merge" {
		return errors.New("must be replace or merge")
	}
	*r = reducer(s)
	return nil
}

// Type implements pflag.Value.
func (r *reducer) Type() string { return "reducer" }

// moment is the value of a flag that names a time of the past.
type moment struct{ instant }

// Set implements pflag.Value.
func (t *moment) Set(s string) error {
	if s == "now" {
		t.Time = time.Now()
		return nil
	}
	// -1h and 1h are both an hour ago.
	if t.instant.Set(strings.TrimPrefix(s, "-")) != nil {
		return errors.New("must be RFC 3339, epoch ms, now, or a duration: so long ago")
	}
	return nil
}

// rawText is a JSON value that is shown as it is.
type rawText json.RawMessage

// MarshalJSON implements [json.Marshaler].
func (t rawText) MarshalJSON() ([]byte, error) { return t, nil }

func (t rawText) String() string { return string(t) }

func (a *app) atCommand() *cobra.Command {
	var ts moment
	var asOf uint64
	var reduce reducer
	cmd := &cobra.Command{
		Use:   "at TOPIC KEY",
		Short: "Show what a key was at a moment of the past",
		Long: `At shows the state of a key: what its events with a time at or before --ts, or with
a seq up to --as-of, make of it in log order. Without either it is the state now.
A time is RFC 3339, epoch ms, "now", or a duration such as 1h or -1h: so long ago.

If events are gone that may have to do with the answer, there is none; then it
says from when on there is.`,
		Example: `  promethean at process.state dev:stt:1 --ts -1h
  promethean at process.state dev:stt:1 --ts 2026-11-15T12:00:00Z
  promethean at process.state dev:stt:1 --as-of 41 --reduce merge`,
		Args:              takes("TOPIC", "KEY"),
		ValidArgsFunction: a.completeNames(1),
	}
	cmd.Flags().Var(&ts, "ts", "the moment")
	cmd.Flags().Uint64Var(&asOf, "as-of", 0, "what was known when the log had come to this seq")
	reduce.flag(cmd)
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		when := client.When{Time: ts.Time, Reduce: string(reduce)}
		if cmd.Flags().Changed("as-of") {
			when.AsOf = &asOf
		}
		s, err := c.At(ctx, args[0], args[1], when)
		var gone *client.Error
		if errors.As(err, &gone) && gone.Code == "history_gone" {
			switch {
			case gone.Oldest != nil:
				err = advised{err, "there is an answer from --ts " + time.UnixMilli(*gone.Oldest).UTC().Format("2006-01-02T15:04:05.000Z") + " on"}
			case gone.OldestSeq > 0:
				err = advised{err, fmt.Sprintf("there is an answer from --as-of %d on", gone.OldestSeq)}
			}
		}
		if err != nil {
			return err
		}
		fields := []field{{"topic", s.Topic}, {"key", s.Key}, {"state", rawText(s.State)}, {"ts", s.TS}, {"seq", s.Seq}, {"events", s.Events}}
		if _, table := a.table(); table && s.Seq > 0 {
			fields = append(fields, field{"utc", time.UnixMilli(s.TS).UTC().Format("2006-01-02 15:04:05.000")})
		}
		return a.result(fields...)
	})
	return cmd
}
