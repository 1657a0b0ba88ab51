// Command fleet is one of several processes that publish to a topic and consume
// it as one group, on an engine that they share. It writes down what it did, so
// that one can see afterwards that nothing was lost, doubled or out of order:
// kill it, stop it, start as many as you like.
//
//	go run ./examples/fleet -store nats://127.0.0.1:4222 -journal fleet.txt
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
	"promethean/event"
	"promethean/store/mongostore"
	"promethean/store/natsstore"
)

const (
	topic = "fleet.work"
	group = "fleet"
	keys  = 10
)

func main() {
	var w worker
	url := flag.String("store", "", "where the engine is: nats://… or mongodb://…")
	flag.StringVar(&w.name, "name", fmt.Sprint("worker-", os.Getpid()), "what the journal calls this process")
	path := flag.String("journal", "fleet.txt", "the file that all processes append to")
	flag.DurationVar(&w.every, "every", 10*time.Millisecond, "how often to publish; 0 to consume only, until nothing is left")
	ownFor := flag.Duration("own-for", 3*time.Second, "how long the group is ours without renewing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := w.run(ctx, *url, *path, *ownFor)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return // asked to end before it was under way
	}
	if err != nil {
		log.Fatal(err)
	}
}

// worker is one process of the fleet.
type worker struct {
	name    string
	every   time.Duration
	hub     *promethean.Hub
	journal *os.File
	logger  *slog.Logger
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

func (w *worker) run(ctx context.Context, url, path string, ownFor time.Duration) (err error) {
	// Lines are short, and appending is one call: they do not mix.
	if w.journal, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		return err
	}
	w.logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("worker", w.name)
	engine, err := open(ctx, url, w.logger)
	if err != nil {
		return err
	}
	if w.hub, err = promethean.New(engine, promethean.Options{Owner: w.name, OwnFor: ownFor, Logger: w.logger}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.hub.Close()) }()
	if _, err := w.hub.Subscribe(ctx, topic, group, w.handle, promethean.FromEarliest(), promethean.ManualAck()); err != nil {
		return err
	}
	if w.every == 0 {
		return w.drain(ctx)
	}
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.publish(ctx)
		}
	}
}

// publish publishes one event and writes down where it is. What fails is not
// known to be there, and is not tried again.
func (w *worker) publish(ctx context.Context) {
	key := fmt.Sprint("k", rand.IntN(keys))
	r, err := w.hub.Emit(ctx, topic, map[string]any{"by": w.name}, promethean.Key(key))
	if err != nil {
		w.logger.Warn("publish", "err", err)
		return
	}
	w.note("published", r.ID, key, r.Seq)
}

// handle works on one event: it writes that down, acks, and writes down that
// the ack is durable.
func (w *worker) handle(ctx context.Context, e event.Event, _ *promethean.Delivery) error {
	w.note("handles", e.ID, e.Key, e.Seq)
	results, err := w.hub.Ack(ctx, topic, group, e.ID)
	if err == nil {
		err = results[0].Err
	}
	if err != nil {
		w.note("refused", e.ID, e.Key, e.Seq)
		return nil // somebody else has it, or will have
	}
	w.note("acked", e.ID, e.Key, e.Seq)
	return nil
}

func (w *worker) note(what string, id event.ID, key string, seq uint64) {
	if _, err := fmt.Fprintf(w.journal, "%s %s %s %s %d\n", what, w.name, id, key, seq); err != nil {
		log.Fatal(err)
	}
}

// drain consumes until nothing is left.
func (w *worker) drain(ctx context.Context) error {
	for {
		lag, err := w.hub.Lag(ctx, topic, group)
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
