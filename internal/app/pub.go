package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
	"promethean/event"
)

// pubOptions are the flags of pub.
type pubOptions struct {
	key, id, sid string
	keyFrom      program
	headers      []string
	tags         []string
	causes       []string
	ts           instant
	partition    int
	expect       uint64
	expected     bool // whether expect was given
	whole        bool
	quiet        bool
	retry        time.Duration
}

func (a *app) pubCommand() *cobra.Command {
	var o pubOptions
	cmd := &cobra.Command{
		Use:   "pub TOPIC [JSON|-]",
		Short: "Publish events",
		Long: `Pub publishes an event with this payload. Without one, or with -, it reads
standard input: each line is a payload, and they are published in this order, in
batches, as they come. With --events each line is a whole event, as export writes
it, of which topic and seq are not taken.

For each event that is durable it writes where it is. Every event is sent with an
id, made here unless it is given, so that trying again is safe: an id that the
topic has is not stored twice, and the answer says "duplicate".

--key-from is a jq program that sees the payload, or with --events the event.`,
		Example: `  promethean pub process.state '{"status":"up"}' --key dev:stt:1
  promethean pub orders.placed '{"n":1}' --header x-source=shop --tag new
  promethean pub orders.placed '{"n":2}' --expect-seq 1
  jq -c '.[]' orders.json | promethean pub orders.placed - --key-from .customer`,
		Args:              takes("TOPIC", "[JSON|-]"),
		ValidArgsFunction: a.completeNames(1),
	}
	f := cmd.Flags()
	f.StringVar(&o.key, "key", "", "what the event is about; order follows it")
	f.Var(&o.keyFrom, "key-from", "jq program that finds the key")
	f.StringVar(&o.id, "id", "", "id of the event, a UUID (default: a new one)")
	f.StringArrayVar(&o.headers, "header", nil, "header as name=value; may come again")
	f.StringArrayVar(&o.tags, "tag", nil, "tag; may come again")
	f.StringArrayVar(&o.causes, "caused-by", nil, "id of an event that led to it; may come again")
	f.Var(&o.ts, "ts", "when it happened: RFC 3339 or epoch ms (default now)")
	f.StringVar(&o.sid, "sid", "", "session of the publisher")
	f.IntVar(&o.partition, "partition", -1, "partition (default: the hub chooses by key)")
	f.Uint64Var(&o.expect, "expect-seq", 0, "publish only if this is the topic's last seq, 0 for an empty one")
	f.BoolVar(&o.whole, "events", false, "lines are whole events")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not write where each event is")
	retryFlag(cmd, &o.retry)
	cmd.MarkFlagsMutuallyExclusive("key", "key-from")
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		o.expected = cmd.Flags().Changed("expect-seq")
		if len(args) == 2 && args[1] != "-" {
			if o.whole {
				return misuse(cmd, "--events needs events on standard input")
			}
			return nil
		}
		if _, terminal := terminalWidth(a.stdin); terminal && len(args) < 2 {
			return misuse(cmd, "missing: JSON, or - to read it from the terminal")
		}
		for _, name := range []string{"id", "expect-seq"} {
			if cmd.Flags().Changed(name) {
				return misuse(cmd, "--%s is for one event, not for standard input", name)
			}
		}
		return nil
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		template, err := o.template(args[0])
		if err != nil {
			return err
		}
		if len(args) == 2 && args[1] != "-" {
			return a.pubOne(ctx, c, &o, template, []byte(args[1]))
		}
		return a.pubLines(ctx, c, &o, template)
	})
	return cmd
}

// template is an event with what flags say about it.
func (o *pubOptions) template(topic string) (e event.Event, err error) {
	e = event.Event{Topic: topic, Key: o.key, SID: o.sid, Tags: o.tags, CausedBy: o.causes}
	if err := event.CheckTopic(topic); err != nil {
		return e, err
	}
	if o.id != "" {
		if e.ID, err = event.ParseID(o.id); err != nil {
			return e, fmt.Errorf("--id: %w", err)
		}
	}
	if !o.ts.IsZero() {
		e.TS = o.ts.UnixMilli()
	}
	if o.partition >= 0 {
		e.Partition = event.PartitionOf(o.partition)
	}
	for _, h := range o.headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return e, fmt.Errorf("--header: %q is not name=value", h)
		}
		if err := event.CheckHeader(name, value); err != nil {
			return e, fmt.Errorf("--header: %w", err)
		}
		e.Headers = e.Headers.Set(name, value)
	}
	return e, nil
}

// made makes an event of a text.
func (o *pubOptions) made(ctx context.Context, template event.Event, text []byte) (e event.Event, err error) {
	e = template
	if o.whole {
		if err := event.DecodeJSON(text, &e); err != nil {
			return e, err
		}
		e.Topic, e.Seq = template.Topic, 0
		e.SID = cmp.Or(template.SID, e.SID)
		e.Key = cmp.Or(template.Key, e.Key)
		e.Tags = append(e.Tags[:len(e.Tags):len(e.Tags)], template.Tags...)
		e.CausedBy = append(e.CausedBy[:len(e.CausedBy):len(e.CausedBy)], template.CausedBy...)
		for _, h := range template.Headers {
			e.Headers = e.Headers.Set(h.Name, h.Value)
		}
		if template.TS != 0 {
			e.TS = template.TS
		}
		if _, given := template.Partition.Get(); given {
			e.Partition = template.Partition
		}
	} else if e.Payload, err = event.CompactJSON(nil, text); err != nil {
		return e, err
	}
	if o.keyFrom.set() {
		input, err := jqInput(text)
		if err != nil {
			return e, err
		}
		if e.Key, err = keyOf(ctx, &o.keyFrom, input); err != nil {
			return e, err
		}
	}
	if e.ID.IsZero() {
		e.ID = event.NewID()
	}
	if e.TS == 0 {
		e.TS = time.Now().UnixMilli()
	}
	return e, nil
}

func (a *app) pubOne(ctx context.Context, c *client.Client, o *pubOptions, template event.Event, payload []byte) error {
	e, err := o.made(ctx, template, payload)
	if err != nil {
		return advised{err, `the payload is one JSON value; a text has quotes of its own: '"like this"'`}
	}
	var got []client.Stored
	if o.expected {
		var one client.Stored
		one, err = c.PostIf(ctx, &e, o.expect)
		got = []client.Stored{one}
	} else {
		got, err = c.PostBatch(ctx, []event.Event{e})
	}
	if err != nil || o.quiet {
		return err
	}
	return list(a, got, receiptColumns, receiptCells)
}

var receiptColumns = []string{"SEQ", "ID", "TOPIC", "NOTE"}

func receiptCells(s *client.Stored) []string {
	note := ""
	if s.Duplicate {
		note = "duplicate"
	}
	return []string{fmt.Sprintf("%-8d", s.Seq), s.ID.String(), s.Topic, note}
}

// pubLines publishes what stands on standard input.
func (a *app) pubLines(ctx context.Context, c *client.Client, o *pubOptions, template event.Event) error {
	l := &uploader{c: c, source: "line", wait: patience{within: o.retry, tell: a.away(nil)}}
	columns := receiptColumns
	l.done = func(_ *batch, got []client.Stored) error {
		if o.quiet {
			return nil
		}
		cells := columns
		columns = nil // the head comes once
		return list(a, got, cells, receiptCells)
	}
	return l.run(ctx, func(ctx context.Context, put func(uint64, *event.Event) error) error {
		return eachLine(ctx, a.stdin, func(line numbered) error {
			e, err := o.made(ctx, template, line.text)
			if err != nil {
				return advised{fmt.Errorf("line %d: %w", line.n, err), "what comes before that line is published; mend it and publish the rest"}
			}
			return put(uint64(line.n), &e)
		})
	})
}

// eachLine hands on the lines of a text until ctx ends. Reading cannot be
// interrupted, so it goes on in vain then, until the command has ended.
func eachLine(ctx context.Context, r io.Reader, do func(numbered) error) error {
	done := make(chan error, 1)
	go func() {
		for line, err := range readLines(r) {
			if err == nil && ctx.Err() == nil {
				err = do(line)
			}
			if err != nil || ctx.Err() != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
