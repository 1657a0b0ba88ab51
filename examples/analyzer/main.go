// Command analyzer is one of several processes that share heavy work by key:
// heartbeats are projected onto the states of processes, and every state is
// analysed by the worker that has the partition of its process. There are eight
// partitions. What is known of a process is a table, which moves with its
// partition: kill a worker, and another one goes on where it was, with every
// state counted once.
//
//	go run ./examples/analyzer -store nats://127.0.0.1:4222 -name one
//	go run ./examples/analyzer -store nats://127.0.0.1:4222 -name two
//
// It puts together what else there is: schemas that every publish is held
// against, the projector of examples/process, a view of the latest states, and
// the list of the hubs that are alive.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"promethean"
	"promethean/cluster"
	"promethean/compact"
	"promethean/event"
	"promethean/examples/process"
	"promethean/partition"
	"promethean/partition/state"
	"promethean/schema"
	"promethean/store"
	"promethean/store/docstore"
	"promethean/store/mongostore"
	"promethean/store/natsstore"
	"promethean/view"
)

const (
	group      = "analyzers"
	partitions = 8
)

func main() {
	var w worker
	url := flag.String("store", "", "where the engine is: nats://… or mongodb://…")
	flag.StringVar(&w.name, "name", fmt.Sprint("worker-", os.Getpid()), "what this process is called")
	flag.DurationVar(&w.every, "every", 100*time.Millisecond, "how often to publish a heartbeat; 0 to analyse only, until nothing is left")
	ownFor := flag.Duration("own-for", 3*time.Second, "how long this process counts as alive without a word")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := w.run(ctx, *url, *ownFor)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return // asked to end before it was under way
	}
	if err != nil {
		log.Fatal(err)
	}
}

// worker is one process.
type worker struct {
	name   string
	every  time.Duration
	logger *slog.Logger
	hub    *promethean.Hub
	bus    promethean.Bus // refuses what its schema does not allow
	table  *state.Table[string, Analysis]
	view   *view.View

	projector *process.Projector
	// closers end what was started, the last first.
	closers []func(context.Context) error
}

// open connects to the engine that a URL names.
func open(ctx context.Context, url string, logger *slog.Logger) (promethean.Log, error) {
	switch {
	case strings.HasPrefix(url, "nats://"):
		return natsstore.Open(ctx, url, natsstore.Options{Logger: logger})
	case strings.HasPrefix(url, "mongodb://"):
		return mongostore.Open(ctx, url, mongostore.Options{Logger: logger})
	}
	return nil, fmt.Errorf("store %q is neither nats:// nor mongodb://", url)
}

func (w *worker) run(ctx context.Context, url string, ownFor time.Duration) (err error) {
	w.logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("worker", w.name)
	engine, err := open(ctx, url, w.logger)
	if err != nil {
		return err
	}
	if w.hub, err = promethean.New(engine, promethean.Options{Owner: w.name, OwnFor: ownFor, Logger: w.logger}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, start := range []func(context.Context) error{w.schemas, w.project, w.show, w.analyse} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	if w.every == 0 {
		return w.drain(ctx)
	}
	return w.beat(ctx)
}

// closing has something ended when the worker does.
func (w *worker) closing(f func(context.Context) error) { w.closers = append(w.closers, f) }

func (w *worker) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var errs []error
	for i := len(w.closers) - 1; i >= 0; i-- {
		errs = append(errs, w.closers[i](ctx))
	}
	return errors.Join(append(errs, w.hub.Close())...)
}

// schemas registers those of both topics, if nobody did so far.
func (w *worker) schemas(ctx context.Context) error {
	reg, err := schema.Open(ctx, w.hub, schema.Options{Logger: w.logger})
	if err != nil {
		return err
	}
	w.closing(func(context.Context) error { return reg.Close() })
	for _, topic := range []string{process.HeartbeatTopic, process.StateTopic} {
		text, err := process.Schemas.ReadFile("schemas/" + topic + "/v1.json")
		if err != nil {
			return err
		}
		if _, _, err := reg.Register(ctx, schema.Define(topic, text)); err != nil {
			return err
		}
	}
	w.bus = schema.Validate(w.hub, reg)
	return nil
}

// checked is a hub for the projector that publishes through the schemas.
type checked struct {
	*promethean.Hub
	bus promethean.Bus
}

// PublishIf implements [process.Hub].
func (c checked) PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]promethean.Receipt, error) {
	return promethean.PublishIf(ctx, c.bus, expect, events...)
}

// project makes states of heartbeats. The projectors of all workers share them.
func (w *worker) project(ctx context.Context) (err error) {
	if w.projector, err = process.Start(ctx, checked{w.hub, w.bus}, process.Options{Logger: w.logger}); err != nil {
		return err
	}
	w.closing(w.projector.Stop)
	return nil
}

// show keeps the latest state of every process, for this worker to look at.
func (w *worker) show(ctx context.Context) error {
	docs, err := docstore.OpenMemory(docstore.Options{})
	if err != nil {
		return err
	}
	w.closing(func(context.Context) error { return docs.Close() })
	if w.view, err = process.Changelog(ctx, w.hub, view.Options{Docs: docs, Logger: w.logger}); err != nil {
		return err
	}
	w.closing(func(context.Context) error { return w.view.Close() })
	return nil
}

// analyse takes a share of the partitions.
func (w *worker) analyse(ctx context.Context) error {
	hubs, err := cluster.Join(w.hub, cluster.Options{Logger: w.logger})
	if err != nil {
		return err
	}
	w.closing(hubs.Close)
	coordinator, err := partition.New(w.hub, partition.Options{Hubs: hubs, Self: hubs.Self().ID, Logger: w.logger})
	if err != nil {
		return err
	}
	w.closing(coordinator.Close)
	// It keeps the changelog of the table small.
	compactor, err := compact.Start(ctx, w.hub, compact.Options{Logger: w.logger})
	if err != nil {
		return err
	}
	w.closing(func(context.Context) error { return compactor.Close() })
	if w.table, err = newTable(w.hub, w.logger); err != nil {
		return err
	}
	_, err = partition.SubscribePartitioned(ctx, coordinator, process.StateTopic, group, promethean.Handle(w.handle),
		partition.Partitions(partitions),
		partition.OnAssigned(w.table.Assigned), partition.OnRevoked(w.table.Revoked),
		partition.OnChanged(func(_ uint64, list []int) { fmt.Println("partitions", list) }),
		partition.Meta(map[string]string{"worker": w.name}),
		partition.Using(promethean.FromEarliest()))
	return err
}

// handle analyses one state.
func (w *worker) handle(ctx context.Context, s process.State, e event.Event, d *promethean.Delivery) error {
	digest := expensive(&e)
	return w.table.Update(ctx, e, d, func(a Analysis, _ bool) (Analysis, error) {
		return a.with(&s, digest), nil
	})
}

// beat publishes heartbeats of processes that it makes up, until ctx ends.
func (w *worker) beat(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		b := process.Heartbeat{PID: rand.Int64N(10) + 1, Name: "stt", Host: fmt.Sprint("host", rand.IntN(4)), CPUPct: rand.Float64() * 100, MemMB: 100 + 900*rand.Float64()}
		if _, err := promethean.PublishAs(ctx, w.bus, process.HeartbeatTopic, b, promethean.Key(b.ProcessID())); err != nil && ctx.Err() == nil {
			w.logger.Warn("publish", "err", err)
		}
	}
}

// drain goes on until all heartbeats are states and all states are analysed.
func (w *worker) drain(ctx context.Context) error {
	if err := w.idle(ctx, process.HeartbeatTopic, process.Group); err != nil {
		return err
	}
	if err := w.projector.Stop(ctx); err != nil { // no more states come
		return err
	}
	if err := w.idle(ctx, process.StateTopic, group); err != nil {
		return err
	}
	for _, n := range w.table.Partitions() {
		for x, err := range w.table.Range(n) {
			if err != nil {
				return err
			}
			fmt.Printf("%s: %d states, %d silences, mean cpu %.1f %%, peak %.0f MB\n", x.Key, x.Value.States, x.Value.Silences, x.Value.CPU/float64(x.Value.States), x.Value.PeakMB)
		}
	}
	return nil
}

// idle waits until a group has nothing to do.
func (w *worker) idle(ctx context.Context, topic, name string) error {
	for {
		lag, err := w.hub.Lag(ctx, topic, name)
		if err != nil {
			return err
		}
		if lag.Events == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
