package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"promethean"
	"promethean/client"
	"promethean/event"
	"promethean/internal/app/config"
	"promethean/store"
)

// benchOptions are the flags of bench.
type benchOptions struct {
	store       string
	topic       string
	duration    time.Duration
	connections int
	size        int
	batch       int
	keys        int
	rate        int
	noTail      bool
}

func (a *app) benchCommand() *cobra.Command {
	o := benchOptions{duration: 10 * time.Second, connections: 8, size: 300, batch: 1, keys: 100, topic: "bench.load"}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure rate and latency of a hub",
		Long: `Bench publishes events to a hub, from several connections, each with one batch
under way, and tails the topic at the same time. It tells how many events were
acknowledged and received in a second, and how long that took: "publish" is from
the call to the answer, which comes once the batch is durable; "deliver" is from
the call until the tail has the event. Without --rate the hub is given as much as
it takes, and the latency is that of a hub at its limit.

With --store it measures a hub inside of this process, without a network:
"temp" in a directory that is removed afterwards, or memory://, or file://DIR.

On a hub it leaves the events behind, in --topic.`,
		Example: `  promethean bench --duration 5s
  promethean bench --connections 32 --batch 100
  promethean bench --rate 1000
  promethean bench --store temp`,
		Args: takesNothing,
	}
	f := cmd.Flags()
	f.StringVar(&o.store, "store", "", "measure a hub in this process: temp, memory:// or file://DIR (default: the hub at --addr)")
	f.StringVar(&o.topic, "topic", o.topic, "topic to publish to")
	f.DurationVar(&o.duration, "duration", o.duration, "how long, up to 1h")
	f.IntVar(&o.connections, "connections", o.connections, "publishers, up to 1000")
	f.IntVar(&o.size, "size", o.size, "bytes of a payload, 64 to 1048576")
	f.IntVar(&o.batch, "batch", o.batch, "events of one call, up to 10000 and 8 MiB")
	f.IntVar(&o.keys, "keys", o.keys, "number of keys, 0 for events without")
	f.IntVar(&o.rate, "rate", 0, "events a second at most (default: as many as the hub takes)")
	f.BoolVar(&o.noTail, "no-tail", false, "only publish")
	fixed(cmd, "store", "temp", "memory://", "file://")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return o.check(cmd) }
	cmd.RunE = a.begin(func(ctx context.Context, _ []string) error {
		if err := event.CheckTopic(o.topic); err != nil {
			return err
		}
		target, err := a.benchTarget(&o)
		if err != nil {
			return err
		}
		err = a.bench(ctx, target, &o)
		return errors.Join(a.remote.explain(err), target.close())
	})
	return cmd
}

// check bounds what is asked for: a figure that nothing can reach tells
// nothing.
func (o *benchOptions) check(cmd *cobra.Command) error {
	for _, b := range []struct {
		name           string
		n, least, most int
	}{
		{"connections", o.connections, 1, 1000},
		{"size", o.size, 64, 1 << 20},
		{"batch", o.batch, 1, client.MaxBatch},
		{"keys", o.keys, 0, 1_000_000},
		{"rate", o.rate, 0, 10_000_000},
	} {
		if b.n < b.least || b.n > b.most {
			return misuse(cmd, "--%s must be from %d to %d", b.name, b.least, b.most)
		}
	}
	if o.duration < 100*time.Millisecond || o.duration > time.Hour {
		return misuse(cmd, "--duration must be from 100ms to 1h")
	}
	// Around a payload stand about 200 bytes.
	if o.batch*(o.size+200) > client.MaxBatchBytes {
		return misuse(cmd, "--batch %d of --size %d is more than the 8 MiB that a batch may have", o.batch, o.size)
	}
	if o.store != "" && o.store != "temp" && o.store != "memory://" && !strings.HasPrefix(o.store, "file://") {
		return misuse(cmd, "--store must be temp, memory:// or file://DIR")
	}
	return nil
}

// benchTarget is a hub that is measured.
type benchTarget struct {
	name    string
	publish func(ctx context.Context, events []event.Event) error
	tail    func(ctx context.Context, topic string) iter.Seq2[event.Event, error]
	close   func() error
}

func (a *app) benchTarget(o *benchOptions) (*benchTarget, error) {
	if o.store == "" {
		c, err := a.remote.connect()
		if err != nil {
			return nil, err
		}
		return &benchTarget{
			name: a.remote.where(),
			publish: func(ctx context.Context, events []event.Event) error {
				_, err := c.PostBatch(ctx, events)
				return err
			},
			tail: func(ctx context.Context, topic string) iter.Seq2[event.Event, error] {
				return c.Tail(ctx, topic, client.TailOptions{GiveUp: -1})
			},
			close: func() error { return nil },
		}, nil
	}
	where, clean := o.store, func() error { return nil }
	if o.store == "temp" {
		dir, err := os.MkdirTemp("", "promethean-bench-*")
		if err != nil {
			return nil, err
		}
		where, clean = "file://"+dir, func() error { return os.RemoveAll(dir) }
	}
	hub, err := openHub(context.Background(), &config.Config{Store: where}, promethean.Options{})
	if err != nil {
		return nil, errors.Join(err, clean())
	}
	return &benchTarget{
		name: o.store,
		publish: func(ctx context.Context, events []event.Event) error {
			_, err := hub.Publish(ctx, events...)
			return err
		},
		tail:  func(ctx context.Context, topic string) iter.Seq2[event.Event, error] { return hubTail(ctx, hub, topic) },
		close: func() error { return errors.Join(hub.Close(), clean()) },
	}, nil
}

// hubTail gives what is published to a topic of a hub in this process.
func hubTail(ctx context.Context, hub *promethean.Hub, topic string) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		w := hub.Log().Watch(topic)
		defer w.Stop()
		bounds, err := hub.Log().Bounds(ctx, topic)
		if err != nil {
			yield(event.Event{}, err)
			return
		}
		for last := bounds.Last; ; {
			for e, err := range hub.Read(ctx, store.Query{Topic: topic, After: last}) {
				if !yield(e, err) || err != nil {
					return
				}
				last = e.Seq
			}
			select {
			case <-w.C:
			case <-ctx.Done():
				yield(event.Event{}, ctx.Err())
				return
			}
		}
	}
}

// benchRun is a measurement under way.
type benchRun struct {
	o       *benchOptions
	target  *benchTarget
	session string // marks events of this run
	begun   time.Time

	acked, received atomic.Int64

	mu               sync.Mutex
	publish, deliver histogram
}

// settleWait is how long the tail may take, after the last publish, to get what
// is on its way.
const settleWait = 5 * time.Second

func (a *app) bench(ctx context.Context, target *benchTarget, o *benchOptions) error {
	b := &benchRun{o: o, target: target, session: event.NewID().String()}
	tailed := make(chan error, 1)
	tailCtx, stopTail := context.WithCancel(ctx)
	ready := make(chan struct{})
	var tail sync.WaitGroup
	if o.noTail {
		close(ready)
	} else {
		tail.Go(func() { tailed <- b.tail(tailCtx, ready) })
	}
	// The hub may be closed next: nobody reads it then.
	defer func() { stopTail(); tail.Wait() }()
	// The tail counts once it has the first event: before that events would
	// seem to have waited for it.
	if err := b.warm(ctx, ready, tailed); err != nil {
		return err
	}
	bar := a.progress("measuring")
	err := b.load(ctx, bar)
	took := time.Since(b.begun)
	bar.clear()
	if err == nil && !o.noTail {
		err = b.drain(ctx, tailed)
	}
	if err != nil {
		return err
	}
	return a.result(b.figures(took)...)
}

// event makes the n-th event of the run. The time in its payload is when it was
// handed over.
func (b *benchRun) event(n int, now time.Time) event.Event {
	var payload bytes.Buffer
	fmt.Fprintf(&payload, `{"at":%d,"n":%d,"fill":"`, now.UnixNano(), n)
	payload.WriteString(strings.Repeat("x", max(0, b.o.size-payload.Len()-2)))
	payload.WriteString(`"}`)
	e := event.New(b.o.topic, payload.Bytes())
	e.SID = b.session
	if b.o.keys > 0 {
		e.Key = "key-" + strconv.Itoa(n%b.o.keys)
	}
	return e
}

// warm publishes single events until the tail has seen one.
func (b *benchRun) warm(ctx context.Context, ready <-chan struct{}, tailed <-chan error) error {
	for {
		if err := b.target.publish(ctx, []event.Event{b.event(0, time.Unix(0, -1))}); err != nil {
			return err
		}
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case <-ready:
			timer.Stop()
			return nil
		case err := <-tailed:
			timer.Stop()
			return err
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// load publishes from all connections for as long as was asked for.
func (b *benchRun) load(ctx context.Context, bar *progress) error {
	b.begun = time.Now()
	end := b.begun.Add(b.o.duration)
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := rate.NewLimiter(rate.Inf, 0)
	if b.o.rate > 0 {
		limit = rate.NewLimiter(rate.Limit(b.o.rate), max(b.o.batch, b.o.rate/100))
	}
	var all sync.WaitGroup
	for i := range b.o.connections {
		all.Go(func() {
			var h histogram
			err := b.publisher(ctx, i, end, limit, &h)
			if err != nil {
				cancel(err)
			}
			b.mu.Lock()
			b.publish.merge(&h)
			b.mu.Unlock()
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	before, at := int64(0), b.begun
	for {
		select {
		case <-done:
			if err := caller.Err(); err != nil {
				return err
			}
			return context.Cause(ctx) // why a publisher has failed, if one has
		case now := <-tick.C:
			n := b.acked.Load()
			bar.say("%s/s, %s to go", number(int64(float64(n-before)/now.Sub(at).Seconds())), ago(max(0, time.Until(end)).Round(time.Second)))
			before, at = n, now
		}
	}
}

// publisher publishes one batch after the other.
func (b *benchRun) publisher(ctx context.Context, id int, end time.Time, limit *rate.Limiter, h *histogram) error {
	events := make([]event.Event, b.o.batch)
	for n := id; ; {
		if err := limit.WaitN(ctx, b.o.batch); err != nil {
			return err
		}
		now := time.Now()
		if !now.Before(end) {
			return nil
		}
		for i := range events {
			events[i] = b.event(n, now)
			n += b.o.connections
		}
		if err := b.target.publish(ctx, events); err != nil {
			return err
		}
		h.add(time.Since(now), b.o.batch)
		b.acked.Add(int64(b.o.batch))
	}
}

// tail receives what is published.
func (b *benchRun) tail(ctx context.Context, ready chan<- struct{}) error {
	warm := true
	for e, err := range b.target.tail(ctx, b.o.topic) {
		if err != nil {
			return err
		}
		if e.SID != b.session {
			continue
		}
		if warm {
			warm = false
			close(ready)
		}
		digits, _, _ := bytes.Cut(e.Payload[len(`{"at":`):], []byte(","))
		at, err := strconv.ParseInt(string(digits), 10, 64)
		if err != nil {
			return fmt.Errorf("an event of this run came back changed: %w", err)
		}
		if at < 0 {
			continue // from before the measurement
		}
		b.mu.Lock()
		b.deliver.add(time.Since(time.Unix(0, at)), 1)
		b.mu.Unlock()
		b.received.Add(1)
	}
	return nil
}

// drain waits until the tail has all that was acknowledged.
func (b *benchRun) drain(ctx context.Context, tailed <-chan error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(settleWait); b.received.Load() < b.acked.Load(); {
		select {
		case <-tick.C:
			if time.Now().After(end) {
				return nil // the figures say how many are missing
			}
		case err := <-tailed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// figures are what came of it.
func (b *benchRun) figures(took time.Duration) []field {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.o
	out := []field{
		{"hub", b.target.name}, {"topic", o.topic}, {"connections", o.connections}, {"batch", o.batch}, {"size", o.size},
		{"seconds", rounded(took.Seconds())},
		{"published", b.acked.Load()}, {"published_per_s", int64(float64(b.acked.Load()) / took.Seconds())},
	}
	out = append(out, percentiles("publish", &b.publish)...)
	if o.noTail {
		return out
	}
	out = append(out, field{"delivered", b.received.Load()}, field{"delivered_per_s", int64(float64(b.received.Load()) / took.Seconds())})
	return append(out, percentiles("deliver", &b.deliver)...)
}

// percentiles are latencies in milliseconds.
func percentiles(what string, h *histogram) (out []field) {
	for _, p := range []struct {
		name string
		p    float64
	}{{"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99_9", 99.9}} {
		out = append(out, field{what + "_" + p.name + "_ms", milliseconds(h.percentile(p.p))})
	}
	return append(out, field{what + "_max_ms", milliseconds(h.most)})
}

func milliseconds(d time.Duration) float64 { return rounded(float64(d) / float64(time.Millisecond)) }

// rounded leaves three digits behind the point.
func rounded(f float64) float64 { return float64(int64(f*1000+0.5)) / 1000 }
