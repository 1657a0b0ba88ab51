package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
	"promethean/schema"
)

func (a *app) schemaCutoverCommand() *cobra.Command {
	var to string
	var retry time.Duration
	cmd := &cobra.Command{
		Use:   "cutover TOPIC --to TOPIC.vN|view:NAME",
		Short: "Copy the history of a topic in the latest version",
		Long: `Cutover has the hub copy every event of a topic to TOPIC.vN, where N is the latest
version of its schema: in order, upcast, with its id. At the end the hub looks
whether each of them is there. The topic itself stays as it is.

Run it before dual write is turned on ('promethean topics set TOPIC --dual-write on'):
then the hub copies what came meanwhile, and TOPIC.vN has the order of the topic.

With --to view:NAME the history goes into a view of the topic, which is built
anew: views are made of events in their latest version.

It may be cut off at any time and run again: it goes on where it was, and copies
nothing twice. If the hub goes away it waits and goes on. The counts are those of
the last stretch; "verified" is how many events are there in all.`,
		Example:           "  promethean schema cutover heartbeat.received --to heartbeat.received.v2",
		Args:              takes("TOPIC"),
		ValidArgsFunction: a.completeWithSchema,
	}
	cmd.Flags().StringVar(&to, "to", "", "the topic to copy to, which is the name of the topic, .v and the latest version; or view: and the name of a view")
	retryFlag(cmd, &retry)
	a.completeFlag(cmd, "to", func(ctx context.Context, c *client.Client, args []string) []string {
		if len(args) == 0 {
			return nil
		}
		v, err := c.Schema(ctx, args[0], 0)
		if err != nil {
			return nil
		}
		return []string{schema.VersionTopic(args[0], v.Version)}
	})
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if to == "" {
			return misuse(cmd, "missing: --to, such as %s.v2", args[0])
		}
		return nil
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		if name, ok := strings.CutPrefix(to, "view:"); ok {
			return a.cutoverToView(ctx, c, args[0], name)
		}
		if err := versionTarget(args[0], to); err != nil {
			return err
		}
		bar := a.progress("copying")
		defer bar.clear()
		x := &cutting{a: a, c: c, topic: args[0], to: to, bar: bar, wait: patience{within: retry, tell: a.away(bar)}}
		if err := x.run(ctx); err != nil {
			return x.failed(err)
		}
		bar.clear()
		now := &x.now
		err := a.result(field{"topic", now.Topic}, field{"to", now.To}, field{"seq", now.Seq}, field{"copied", now.Copied},
			field{"duplicates", now.Duplicates}, field{"verified", now.Verified}, field{"behind", now.Behind})
		if err == nil && now.Behind > 0 {
			a.warnBehind(now)
		}
		return err
	})
	return cmd
}

// cutoverToView has a view of the topic built anew, from events in their latest
// version.
func (a *app) cutoverToView(ctx context.Context, c *client.Client, topic, name string) error {
	v, err := c.View(ctx, name)
	if err != nil {
		return err
	}
	if v.Topic != topic {
		return fmt.Errorf("--to: view %s is made of topic %s, not of %s", name, v.Topic, topic)
	}
	return a.rebuild(ctx, c, name, "earliest", false)
}

// versionTarget refuses what is no topic.vN.
func versionTarget(topic, to string) error {
	if tail, ok := strings.CutPrefix(to, topic+".v"); ok {
		if n, number := parseVersion(tail); number && schema.VersionTopic(topic, n) == to {
			return nil
		}
	}
	return advised{
		fmt.Errorf("--to: %q is not %s with a version behind it: a cutover goes to such a topic, or to a view", to, topic+".v"),
		fmt.Sprintf("name it %s.vN, where N is the latest version ('promethean schema list %s' tells it), or view:NAME", topic, topic),
	}
}

// cutting is a cutover under way.
type cutting struct {
	a         *app
	c         *client.Client
	topic, to string
	bar       *progress
	wait      patience

	first *uint64 // where this command found it
	now   client.Cutover
}

// run lets the hub work, again where it went away, until all is done.
func (x *cutting) run(ctx context.Context) error {
	for !x.now.Done {
		moved := false
		var broken error // the hub was there and could not: trying again is no help
		err := x.wait.do(ctx, func() error {
			_, err := x.c.Cutover(ctx, x.topic, x.to, func(now client.Cutover) {
				x.wait.met = true
				moved = moved || now.Seq > x.now.Seq
				x.tell(now)
			})
			if client.CodeOf(err) == "internal" {
				broken = err
				return nil
			}
			if err != nil && moved && client.Temporary(err) && ctx.Err() == nil {
				x.wait.tell(err)
				return nil // there was progress: it is tried anew, with all patience
			}
			return err
		})
		if err = errors.Join(broken, err); err != nil {
			return err
		}
	}
	return nil
}

// tell shows how far it is.
func (x *cutting) tell(now client.Cutover) {
	x.now = now
	if x.first == nil {
		first := now.Seq
		x.first = &first
	}
	if now.Verified > 0 || now.Seq >= now.Tail {
		x.bar.say("verified %s", number(now.Verified))
		return
	}
	x.bar.show(int64(now.Seq-min(now.Seq, *x.first)), int64(now.Tail-min(now.Tail, *x.first)))
}

// failed adds to an error where things stand.
func (x *cutting) failed(err error) error {
	err = x.a.remote.explain(err)
	var refused *client.Error
	if errors.As(err, &refused) {
		switch {
		case refused.Code == "schema_invalid" && refused.Seq > 0:
			return advised{err, fmt.Sprintf("what comes before seq %d is copied; mend the upcaster by a further version, or see what the event is: 'promethean replay %s --from %d --limit 1'", refused.Seq, x.topic, refused.Seq-1)}
		case !refused.Temporary():
			return err
		}
	}
	if x.first == nil {
		return err // it never began
	}
	return advised{err, joined(advice(err), "run it again: it goes on where it was, and copies nothing twice")}
}

// warnBehind says what it means that events were there before the history.
func (a *app) warnBehind(c *client.Cutover) {
	text := fmt.Sprintf("%s in %s before the history came, written by dual write or by somebody else. "+
		"The history stands after them: whoever reads %s meets those events before older ones of the same key. "+
		"A cutover before dual write is turned on avoids that.", stood(c.Behind), c.To, c.To)
	fmt.Fprintf(a.stderr, "promethean: warning: the order of %s is not that of %s\n%s", c.To, c.Topic, wrapped(printable(text), "  ", 100))
}

func stood(n uint64) string {
	if n == 1 {
		return "1 event stood"
	}
	return number(n) + " events stood"
}
