package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
	"promethean/event"
)

// subOptions are the flags of sub.
type subOptions struct {
	tailOptions
	group    string
	settings client.GroupSettings
	timeout  time.Duration
	batch    int
	command  string
	parted   bool
	member   string
}

func (a *app) subCommand() *cobra.Command {
	var o subOptions
	cmd := &cobra.Command{
		Use:   "sub TOPIC",
		Short: "Consume events",
		Long: `Sub consumes the events of a topic as a member of a group, until it is
interrupted. An event is acked once its line is written. With --exec a command of
the shell gets each event on standard input instead, as a JSON line; exit code 0
acks it, any other gives it back, with what the command wrote to standard error
last as the reason. PROMETHEAN_EVENT_ID, _SEQ, _TOPIC, _KEY and _ATTEMPT are set.
Leases are renewed while it runs.

With --partitioned every partition of the topic, and so every key, is at one member
of the group at a time, and events are handled one after the other. It says on
standard error which partitions it has, and comes back to a hub that goes away for
as long as it runs: with --member to the partitions that it had, if that does not
take long.

The group is made on first use: --from says where it begins, and the settings are
kept with it. One that is there goes on where it was. Without --group it is a
tail: nothing is leased or remembered.

` + placeHelp,
		Example: `  promethean sub process.state --group monitor --from earliest
  promethean sub orders.placed --group billing --exec './bill'
  promethean sub orders.placed --group big --filter 'payload.total > 1000'
  promethean sub heartbeat.received --group analyzer --partitioned --member one`,
		Args:              takes("TOPIC"),
		ValidArgsFunction: a.completeNames(1),
	}
	f := cmd.Flags()
	f.StringVarP(&o.group, "group", "g", "", "group to consume as (default: none, a tail)")
	f.Var(&o.from, "from", "where a new group begins (default latest)")
	f.StringVar(&o.settings.Filter, "filter", "", "CEL expression; events that it refuses are settled")
	f.StringVar(&o.settings.Ordering, "ordering", "", "what waits for what: key, topic or none (default key)")
	f.StringVar(&o.settings.DeadLetter, "dead-letter", "", "what happens to the key of an event that failed for good: event, key or block (default event)")
	f.IntVar(&o.settings.MaxAttempts, "max-attempts", 0, "deliveries until an event is a dead letter (default 5)")
	f.DurationVar(&o.timeout, "ack-timeout", 0, "how long a lease lasts (default 30s)")
	f.IntVar(&o.batch, "batch", 0, "how many events to take at a time (default 100, with --exec 1)")
	f.IntVar(&o.count, "count", 0, "end after so many events")
	f.StringVar(&o.command, "exec", "", "command of the shell that handles each event")
	f.BoolVar(&o.parted, "partitioned", false, "be a member of a partitioned group")
	f.StringVar(&o.member, "member", "", "name of the member, which no other one has (with --partitioned; default: made up)")
	normaliseFlag(cmd, &o.normalise)
	retryFlag(cmd, &o.retry)
	a.completeGroupFlag(cmd, "group")
	fixed(cmd, "from", client.Earliest, client.Latest)
	fixed(cmd, "ordering", "key", "topic", "none")
	fixed(cmd, "dead-letter", "event", "key", "block")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if o.count < 0 || o.batch < 0 || o.timeout < 0 {
			return misuse(cmd, "--count, --batch and --ack-timeout must not be negative")
		}
		if o.member != "" && !o.parted {
			return misuse(cmd, "--member needs --partitioned")
		}
		if o.parted && cmd.Flags().Changed("retry") {
			return misuse(cmd, "--retry is not for --partitioned, which waits for as long as it runs")
		}
		if o.group != "" {
			return nil
		}
		for _, name := range []string{"filter", "ordering", "dead-letter", "max-attempts", "ack-timeout", "batch", "exec", "partitioned"} {
			if cmd.Flags().Changed(name) {
				return misuse(cmd, "--%s needs --group: it belongs to a group", name)
			}
		}
		return nil
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		if o.group == "" {
			return a.tail(ctx, c, args[0], o.tailOptions)
		}
		if err := oneTopic(args[0]); err != nil {
			return err
		}
		if o.parted {
			return a.consumeParted(ctx, c, args[0], o)
		}
		o.settings.AckTimeoutMs = o.timeout.Milliseconds()
		return a.consume(ctx, c, args[0], o)
	})
	return cmd
}

// consumer takes events of a group and settles them, by long polls.
type consumer struct {
	c     *client.Client
	pull  client.PullRequest
	wait  patience
	lease time.Duration // how long a lease lasts
}

// pullWait is how long a poll waits for the first event.
const pullWait = 20 * time.Second

// take gives the next events, at most so many, and waits for the first.
func (g *consumer) take(ctx context.Context, most int) ([]client.Pulled, error) {
	g.pull.Max = most
	// The first poll does not wait, so that a refusal is seen at once.
	g.pull.Wait = 0
	if g.wait.met {
		g.pull.Wait = pullWait
	}
	for {
		var got []client.Pulled
		err := g.wait.do(ctx, func() (err error) {
			got, err = g.c.Pull(ctx, g.pull)
			return err
		})
		if err != nil || len(got) > 0 {
			return got, err
		}
		g.pull.Wait = pullWait
	}
}

// settle acks or gives back. It goes on for a moment after an interrupt: what
// was done shall be known.
func (g *consumer) settle(ctx context.Context, s client.Settlement) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(g.wait.within, 5*time.Second))
	defer cancel()
	s.Topic, s.Group = g.pull.Topic, g.pull.Group
	return g.wait.do(ctx, func() error {
		_, err := g.c.Settle(ctx, s)
		return err
	})
}

func (a *app) consume(ctx context.Context, c *client.Client, topic string, o subOptions) error {
	g := &consumer{
		c: c, wait: patience{within: o.retry, tell: a.away(nil)},
		pull: client.PullRequest{Topic: topic, Group: o.group, From: o.from.Place, Settings: o.settings, Normalise: o.normalise},
	}
	if o.batch == 0 {
		o.batch = 100
		if o.command != "" {
			o.batch = 1
		}
	}
	handle := a.printer(g)
	if o.command != "" {
		handle = a.executor(g, o.command)
	}
	for done := 0; o.count == 0 || done < o.count; {
		most := o.batch
		if o.count > 0 {
			most = min(most, o.count-done)
		}
		list, err := g.take(ctx, most)
		if err != nil {
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return a.stopped(o.count, done)
			}
			return err
		}
		n, err := handle(ctx, list)
		done += n
		if n < len(list) {
			err = errors.Join(err, g.giveBack(ctx, list[n:]))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// giveBack lets others have events at once that were not begun.
func (g *consumer) giveBack(ctx context.Context, list []client.Pulled) error {
	now := time.Duration(0)
	s := client.Settlement{Do: client.DoNack, Reason: "not begun", Delay: &now}
	for i := range list {
		s.IDs, s.Leases = append(s.IDs, list[i].Event.ID), append(s.Leases, list[i].Lease)
	}
	return g.settle(ctx, s)
}

// printer writes events and acks them. It says how many it has dealt with.
func (a *app) printer(g *consumer) func(context.Context, []client.Pulled) (int, error) {
	out := a.events()
	return func(ctx context.Context, list []client.Pulled) (int, error) {
		ids := make([]event.ID, 0, len(list))
		for i := range list {
			if err := out.put(&list[i].Event); err != nil {
				return 0, err
			}
			ids = append(ids, list[i].Event.ID)
		}
		if err := out.flush(); err != nil {
			return 0, err
		}
		return len(list), g.settle(ctx, client.Settlement{Do: client.DoAck, IDs: ids})
	}
}

// executor runs a command for each event.
func (a *app) executor(g *consumer, command string) func(context.Context, []client.Pulled) (int, error) {
	return func(ctx context.Context, list []client.Pulled) (int, error) {
		for i := range list {
			if ctx.Err() != nil {
				return i, nil
			}
			stop := g.renew(ctx, list[i:])
			reason, err := a.execute(command, &list[i])
			stop()
			if err != nil {
				return i, err
			}
			s := client.Settlement{Do: client.DoAck, IDs: []event.ID{list[i].Event.ID}}
			if reason != "" {
				s.Do, s.Reason, s.Leases = client.DoNack, reason, []string{list[i].Lease}
			}
			if err := g.settle(ctx, s); err != nil {
				return i + 1, err
			}
		}
		return len(list), nil
	}
}

// renew extends leases, at half of their time, until stop is called.
func (g *consumer) renew(ctx context.Context, list []client.Pulled) (stop func()) {
	lease := g.lease
	if lease == 0 {
		// The first delivery tells how long one lasts, by the hub's clock and
		// ours; they may differ, so it is bounded.
		lease = time.Until(time.UnixMilli(list[0].DeadlineMs)).Round(time.Second)
		if asked := time.Duration(g.pull.Settings.AckTimeoutMs) * time.Millisecond; asked > 0 {
			lease = asked
		}
		lease = min(max(lease, time.Second), 24*time.Hour)
		g.lease = lease
	}
	s := client.Settlement{Topic: g.pull.Topic, Group: g.pull.Group, Do: client.DoExtend, Extend: lease}
	for i := range list {
		s.IDs, s.Leases = append(s.IDs, list[i].Event.ID), append(s.Leases, list[i].Lease)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(max(lease/2, 10*time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				// A renewal that fails is tried again at the next tick; if the
				// lease is lost, settling says so.
				_, _ = g.c.Settle(ctx, s)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// maxReason bounds what is told of a command that fails.
const maxReason = 500

// execute runs the command for an event. It gives the reason of a failure, ""
// for none.
func (a *app) execute(command string, d *client.Pulled) (reason string, err error) {
	text, err := d.Event.AppendStoredJSON(nil)
	if err != nil {
		return "", err
	}
	var said lastLine
	// An interrupt reaches the command from the terminal too; it is left to end
	// as it sees fit.
	cmd := exec.Command("sh", "-c", command)
	cmd.Stdin = bytes.NewReader(append(text, '\n'))
	cmd.Stdout = a.screen
	cmd.Stderr = &tee{a.stderr, &said}
	cmd.Env = append(os.Environ(),
		"PROMETHEAN_EVENT_ID="+d.Event.ID.String(), "PROMETHEAN_EVENT_SEQ="+strconv.FormatUint(d.Event.Seq, 10),
		"PROMETHEAN_EVENT_TOPIC="+d.Event.Topic, "PROMETHEAN_EVENT_KEY="+strings.ReplaceAll(d.Event.Key, "\x00", ""),
		"PROMETHEAN_EVENT_ATTEMPT="+strconv.Itoa(d.Attempt))
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		reason = exit.String()
		if s := said.String(); s != "" {
			reason += ": " + s
		}
		return reason, nil
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("--exec: %w", err)
	}
	// A command that does not read its input has done its work all the same.
	if cmd.ProcessState != nil && cmd.ProcessState.Success() {
		return "", nil
	}
	return "", err
}

// tee writes to two writers; the second one cannot fail.
type tee struct {
	out  io.Writer
	also *lastLine
}

// Write implements io.Writer.
func (t *tee) Write(p []byte) (int, error) {
	_, _ = t.also.Write(p)
	return t.out.Write(p)
}

// lastLine keeps the last line of what is written to it.
type lastLine struct{ line, rest []byte }

// Write implements io.Writer.
func (l *lastLine) Write(p []byte) (int, error) {
	for part := range bytes.Lines(p) {
		if room := maxReason - len(l.rest); room > 0 {
			l.rest = append(l.rest, bytes.TrimRight(part[:min(len(part), room)], "\r\n")...)
		}
		if bytes.HasSuffix(part, []byte("\n")) {
			if len(l.rest) > 0 {
				l.line = l.rest
			}
			l.rest = nil
		}
	}
	return len(p), nil
}

// String gives the line.
func (l *lastLine) String() string {
	line := l.line
	if len(l.rest) > 0 {
		line = l.rest
	}
	return strings.ToValidUTF8(string(line), "\uFFFD")
}
