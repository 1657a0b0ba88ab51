package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"promethean/client"
	"promethean/event"
)

// replayOptions are the flags of replay.
type replayOptions struct {
	reshape
	from   place
	to     string
	limit  int
	resume string
	retry  time.Duration

	normalise bool
}

func (a *app) replayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay TOPIC",
		Short: "Read a topic again, or copy it to another",
		Long: `Replay writes the events of a topic from a place on, up to where the topic ends
when it begins. With --to it publishes them to another topic instead.

` + jqHelp + `

A copy keeps ts, key, sid, headers and tags, and is caused by the original; the
hub chooses its partition. Its id follows from the topic, the id of the original
and the topic that it goes to, so that a replay that was cut off can be run again
and stores nothing twice. --resume keeps in a file how far it came, so that the
next run begins there; the file belongs to that one replay.

` + placeHelp,
		Example: `  promethean replay orders.placed --from earliest --filter '.payload.total > 1000'
  promethean replay orders.placed --to orders.v2 --map '.payload + {v: 2}' --resume orders.state
  promethean replay orders.placed --to orders.big --filter '.payload.total > 1000' --key-from .payload.customer`,
		Args:              takes("TOPIC"),
		ValidArgsFunction: a.completeNames(1),
	}
	cmd.Flags().Var(&o.from, "from", "where to begin (default earliest)")
	cmd.Flags().StringVar(&o.to, "to", "", "topic to publish to (default: none, they are written)")
	cmd.Flags().IntVar(&o.limit, "limit", 0, "read so many events at most (default all)")
	cmd.Flags().StringVar(&o.resume, "resume", "", "file that keeps how far it came")
	o.flags(cmd)
	normaliseFlag(cmd, &o.normalise)
	retryFlag(cmd, &o.retry)
	fixed(cmd, "from", client.Earliest)
	a.completeFlag(cmd, "to", func(ctx context.Context, c *client.Client, _ []string) []string { return topicNames(ctx, c) })
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if o.resume != "" && o.to == "" {
			return misuse(cmd, "--resume needs --to")
		}
		if o.limit < 0 {
			return misuse(cmd, "--limit must not be negative")
		}
		return nil
	}
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
		if o.from.From == "" {
			o.from.From = client.Earliest
		}
		r := &reading{c: c, topic: args[0], from: o.from.Place, normalise: o.normalise}
		if o.to == "" {
			return a.replayOut(ctx, r, &o)
		}
		return a.replayTo(ctx, r, &o)
	})
	return cmd
}

// errEnough ends a replay that has read as much as it may.
var errEnough = errors.New("enough")

// replayOut writes events.
func (a *app) replayOut(ctx context.Context, r *reading, o *replayOptions) error {
	r.wait = patience{within: o.retry, tell: a.away(nil)}
	if err := r.locate(ctx); err != nil {
		return err
	}
	out, n := a.events(), 0
	err := r.each(ctx, func(e *event.Event) error {
		made, err := o.apply(ctx, e)
		if err != nil {
			return fmt.Errorf("seq %d: %w", e.Seq, err)
		}
		for i := range made {
			if err := out.put(&made[i]); err != nil {
				return err
			}
		}
		if n++; n == o.limit {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return errors.Join(err, out.flush())
}

// replaySpace is the namespace of the ids of copies.
var replaySpace = event.NameID(event.ID{}, "promethean replay")

// copyID is the id of the n-th copy of an event in another topic.
func copyID(source string, id event.ID, target string, n int) event.ID {
	name := source + "\n" + id.String() + "\n" + target
	if n > 0 {
		name += "\n" + strconv.Itoa(n)
	}
	return event.NameID(replaySpace, name)
}

// replayTo publishes events to another topic.
func (a *app) replayTo(ctx context.Context, r *reading, o *replayOptions) error {
	if err := event.CheckTopic(o.to); err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	if o.to == r.topic {
		return advised{fmt.Errorf("--to: %s is the topic that is read", o.to), "name another topic"}
	}
	state, err := o.load(r.topic)
	if err != nil {
		return err
	}
	bar := a.progress("replaying")
	defer bar.clear()
	wait := patience{within: o.retry, tell: a.away(bar)}
	r.wait = wait
	if err := r.locate(ctx); err != nil {
		return err
	}
	if state.Seq > 0 {
		r.first = state.Seq
	}
	read, copied, known := 0, 0, 0
	l := &uploader{c: r.c, source: "seq", wait: wait}
	l.done = func(b *batch, got []client.Stored) error {
		for i := range got {
			if got[i].Duplicate {
				known++
			}
		}
		copied += len(got)
		// All copies of the events before the last one of the batch are there;
		// of that one some may come with the next.
		if last := b.marks[len(b.marks)-1]; last-1 > state.Seq {
			state.Seq = last - 1
		}
		if r.until > r.first {
			bar.show(int64(state.Seq-min(state.Seq, r.first)), int64(r.until-r.first))
		}
		return o.save(state, false)
	}
	seen := r.first
	err = l.run(ctx, func(ctx context.Context, put func(uint64, *event.Event) error) error {
		err := r.each(ctx, func(e *event.Event) error {
			made, err := o.apply(ctx, e)
			if err != nil {
				return advised{fmt.Errorf("seq %d: %w", e.Seq, err), "what comes before it is copied; mend the program and run it again: nothing is stored twice"}
			}
			for i := range made {
				c := made[i]
				c.ID, c.Topic, c.Seq, c.Partition = copyID(r.topic, e.ID, o.to, i), o.to, 0, 0
				c.CausedBy = []string{e.ID.String()}
				if err := put(e.Seq, &c); err != nil {
					return err
				}
			}
			seen = e.Seq
			if read++; read == o.limit {
				return errEnough
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			err = nil
		}
		return err
	})
	if err != nil {
		return errors.Join(err, o.save(state, true))
	}
	state.Seq = max(state.Seq, seen)
	if err := o.save(state, true); err != nil {
		return err
	}
	bar.clear()
	return a.result(field{"topic", r.topic}, field{"to", o.to}, field{"read", read}, field{"copied", copied - known}, field{"duplicates", known}, field{"seq", state.Seq})
}

// replayState is what --resume keeps.
type replayState struct {
	Topic string `json:"topic"`
	To    string `json:"to"`
	// Seq is the one up to which everything was copied.
	Seq uint64 `json:"seq"`
	// Programs is a hash of what is done to events: another replay must not go
	// on here.
	Programs string `json:"programs"`

	saved time.Time
}

// saveEvery is how often the state is written while a replay goes on. What was
// copied since is copied again after a crash, and found to be known.
const saveEvery = time.Second

// load reads the state of an earlier run.
func (o *replayOptions) load(topic string) (*replayState, error) {
	begin := o.from.String()
	if o.from.From == client.ByTime {
		begin = "ts" // it may be given as an age, which is another time at each run
	}
	what := begin + "\x00" + o.filter.text + "\x00" + o.payload.text + "\x00" + o.key.text
	if o.normalise {
		what += "\x00normalise"
	}
	sum := sha256.Sum256([]byte(what))
	mine := &replayState{Topic: topic, To: o.to, Programs: hex.EncodeToString(sum[:8])}
	if o.resume == "" {
		return mine, nil
	}
	text, err := os.ReadFile(o.resume)
	if errors.Is(err, fs.ErrNotExist) {
		return mine, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--resume: %w", err)
	}
	var s replayState
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, advised{fmt.Errorf("--resume: %s is not the state of a replay: %w", o.resume, err), "name another file, or remove it to begin anew"}
	}
	if s.Topic != mine.Topic || s.To != mine.To || s.Programs != mine.Programs {
		return nil, advised{
			fmt.Errorf("--resume: %s belongs to another replay, of %s to %s, or one with other programs or another beginning", o.resume, s.Topic, s.To),
			"name another file, or remove it to begin anew",
		}
	}
	return &s, nil
}

// save writes the state, whole or not at all, and not too often unless it is
// the last time.
func (o *replayOptions) save(s *replayState, last bool) error {
	if o.resume == "" || !last && time.Since(s.saved) < saveEvery {
		return nil
	}
	s.saved = time.Now()
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(o.resume), filepath.Base(o.resume)+".*")
	if err != nil {
		return fmt.Errorf("--resume: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), o.resume)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("--resume: %w", err), os.Remove(f.Name()))
	}
	return nil
}
