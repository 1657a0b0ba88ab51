package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
	"promethean/event"
)

// reading reads a topic from a place to where its end is at the beginning, and
// goes on after a hub that went away.
type reading struct {
	c     *client.Client
	topic string
	from  client.Place
	wait  patience

	normalise bool

	first, until uint64 // the seqs between which it reads
}

// locate finds the bounds.
func (r *reading) locate(ctx context.Context) error {
	return r.wait.do(ctx, func() (err error) {
		if r.until, err = r.c.Locate(ctx, r.topic, client.Place{From: client.Latest}); err == nil {
			r.first, err = r.c.Locate(ctx, r.topic, r.from)
		}
		return err
	})
}

// each hands on the events.
func (r *reading) each(ctx context.Context, do func(*event.Event) error) error {
	last := r.first
	for last < r.until {
		start := last
		var failed error // of whoever gets the events: no matter of patience
		err := r.wait.do(ctx, func() error {
			for e, err := range r.c.Read(ctx, r.topic, client.Place{From: client.BySeq, Seq: last}, client.ReadOptions{Until: r.until, Normalise: r.normalise}) {
				if err != nil && last > start && client.Temporary(err) {
					return nil // there was progress: it is tried anew, with all patience
				}
				if err != nil {
					return err
				}
				if failed = do(&e); failed != nil {
					return nil
				}
				last = e.Seq
			}
			return nil
		})
		if err = errors.Join(failed, err); err != nil {
			return err
		}
		if last == start {
			break // retention took the rest meanwhile
		}
	}
	return nil
}

func (a *app) exportCommand() *cobra.Command {
	var out string
	var from, to instant
	var retry time.Duration
	var normalise bool
	cmd := &cobra.Command{
		Use:   "export TOPIC",
		Short: "Write all events of a topic",
		Long: `Export writes the events of a topic as JSON lines, in order, up to where the topic
ends when it begins. If the hub goes away it waits and goes on after the last
event. A file that --out names appears once it is whole.

'promethean import' reads what it writes.`,
		Example: `  promethean export process.state > events.ndjson
  promethean export process.state --out events.ndjson --from-ts 24h`,
		Args:              takes("TOPIC"),
		ValidArgsFunction: a.completeNames(1),
	}
	cmd.Flags().StringVar(&out, "out", "", "file to write, which must not exist (default standard output)")
	cmd.Flags().Var(&from, "from-ts", "no event before this time: RFC 3339, epoch ms, or a duration: so long ago")
	cmd.Flags().Var(&to, "to-ts", "no event after this time")
	normaliseFlag(cmd, &normalise)
	retryFlag(cmd, &retry)
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		bar := a.progress("exporting")
		defer bar.clear()
		r := &reading{c: c, topic: args[0], from: client.Place{From: client.Earliest}, normalise: normalise, wait: patience{within: retry, tell: a.away(bar)}}
		if !from.IsZero() {
			r.from = client.Place{From: client.ByTime, Time: from.Time}
		}
		x := &exporting{a: a, r: r, bar: bar, from: from.Time, to: to.Time}
		if out == "" {
			return x.write(ctx, a.events())
		}
		return x.file(ctx, out)
	})
	return cmd
}

// exporting is an export under way.
type exporting struct {
	a        *app
	r        *reading
	bar      *progress
	from, to time.Time
}

// write writes the events.
func (x *exporting) write(ctx context.Context, w *eventWriter) error {
	if err := x.r.locate(ctx); err != nil {
		return err
	}
	err := x.r.each(ctx, func(e *event.Event) error {
		x.bar.show(int64(e.Seq-x.r.first), int64(x.r.until-x.r.first))
		// Times may run backwards, so all that follows has to be looked at.
		if !x.from.IsZero() && e.TS < x.from.UnixMilli() || !x.to.IsZero() && e.TS > x.to.UnixMilli() {
			return nil
		}
		return w.put(e)
	})
	// What was written are whole lines, also where it is not all.
	return errors.Join(err, w.flush())
}

// file writes to a file beside the one that is wanted, and gives it its name
// when it is whole.
func (x *exporting) file(ctx context.Context, name string) (err error) {
	if _, err := os.Lstat(name); err == nil {
		return advised{fmt.Errorf("export to %s: %w", name, fs.ErrExist), "name a file that does not exist yet"}
	}
	part := name + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part) // it is of no use, and the error is told
		}
	}()
	w := &eventWriter{out: f}
	err = x.write(ctx, w)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(part, name); err != nil {
		return err
	}
	x.bar.clear()
	return x.a.result(field{"topic", x.r.topic}, field{"file", name}, field{"events", w.count}, field{"bytes", w.bytes})
}

// importOptions are the flags of import.
type importOptions struct {
	repartition bool
	retry       time.Duration
}

func (a *app) importCommand() *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use:   "import TOPIC [FILE|-]",
		Short: "Publish the events of a file",
		Long: `Import publishes events that stand on lines of a file, or of standard input, in
this order, as export writes them. Topic and seq of a line are not taken, the rest
is: id, ts, key, headers and so on.

It may be run again after a failure: an event whose id the topic has is not stored
twice. A line without an id gets one that follows from the topic, the number of
the line and what stands there. If the hub goes away it waits and goes on.`,
		Example: `  promethean import process.state events.ndjson
  zcat events.ndjson.gz | promethean import process.state -`,
		Args: takes("TOPIC", "[FILE|-]"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.completeNames(1)(cmd, args, to)
		},
	}
	cmd.Flags().BoolVar(&o.repartition, "repartition", false, "let the hub choose partitions anew")
	retryFlag(cmd, &o.retry)
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if _, terminal := terminalWidth(a.stdin); terminal && len(args) < 2 {
			return misuse(cmd, "missing: FILE, or - to read the terminal")
		}
		return nil
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		if err := event.CheckTopic(args[0]); err != nil {
			return err
		}
		if len(args) < 2 || args[1] == "-" {
			return a.importFrom(ctx, c, args[0], a.stdin, 0, o)
		}
		f, err := os.Open(args[1])
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // it was only read
		size := int64(0)
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			size = st.Size()
		}
		return a.importFrom(ctx, c, args[0], f, size, o)
	})
	return cmd
}

// importSpace is the namespace of ids that lines without one are given.
var importSpace = event.NameID(event.ID{}, "promethean import")

// importFrom publishes the lines of in, which has so many bytes, 0 if nobody
// knows.
func (a *app) importFrom(ctx context.Context, c *client.Client, topic string, in io.Reader, size int64, o importOptions) error {
	bar := a.progress("importing")
	defer bar.clear()
	count, known, line := 0, 0, uint64(0)
	var read atomic.Int64
	l := &uploader{c: c, source: "line", wait: patience{within: o.retry, tell: a.away(bar)}}
	l.done = func(b *batch, got []client.Stored) error {
		count += len(got)
		for i := range got {
			if got[i].Duplicate {
				known++
			}
		}
		line = b.marks[len(b.marks)-1]
		if size > 0 {
			bar.show(read.Load(), size)
		} else {
			bar.say("%s events", number(count))
		}
		return nil
	}
	err := l.run(ctx, func(ctx context.Context, put func(uint64, *event.Event) error) error {
		return eachLine(ctx, in, func(line numbered) error {
			var e event.Event
			if err := event.DecodeJSON(line.text, &e); err != nil {
				return fmt.Errorf("line %d: %w", line.n, err)
			}
			e.Topic, e.Seq = topic, 0
			if e.ID.IsZero() {
				e.ID = event.NameID(importSpace, fmt.Sprintf("%s\n%d\n%s", topic, line.n, line.text))
			}
			if o.repartition {
				e.Partition = 0
			}
			read.Store(line.end)
			return put(uint64(line.n), &e)
		})
	})
	bar.clear()
	if err != nil {
		// Advice about the cause is given, and then where things stand.
		err = a.remote.explain(err)
		done := "nothing was imported"
		if count > 0 {
			done = fmt.Sprintf("lines 1 to %d are imported; run it again, and nothing is stored twice", line)
		}
		return advised{err, joined(advice(err), done)}
	}
	return a.result(field{"topic", topic}, field{"events", count}, field{"stored", count - known}, field{"duplicates", known})
}

// joined puts two pieces of advice together.
func joined(first, second string) string {
	if first == "" {
		return second
	}
	return first + "; " + second
}
