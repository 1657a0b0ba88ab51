package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"promethean/client"
)

// workerConfig is what a process that publishes or consumes is told.
type workerConfig struct {
	Kind     string
	Name     string // of its journal, too
	Journals string
	Hubs     []string
	First    int // the hub that it begins with
	Topic    string
	Group    string
	Store    string // the engine, for those that bring a hub of their own
	Seed     uint64
	Every    time.Duration // of a lane that publishes, on average
}

// kindsOfWork are what a worker can be. Each works until its context ends, and
// finishes what it has begun.
var kindsOfWork = map[string]func(w *worker, ctx context.Context) error{
	"publish":  (*worker).publish,
	"push":     (*worker).push,
	"member":   (*worker).push,
	"pull":     (*worker).pull,
	"register": (*worker).register,
	"count":    (*worker).count,
}

// worker is a process that publishes or consumes.
type worker struct {
	workerConfig
	j   *journal
	ops atomic.Int64
}

// runWorker works until SIGTERM.
func runWorker(config string) error {
	w := &worker{}
	if err := json.Unmarshal([]byte(config), &w.workerConfig); err != nil {
		return fmt.Errorf("configuration of a worker: %w", err)
	}
	work, ok := kindsOfWork[w.Kind]
	if !ok {
		return fmt.Errorf("unknown kind of worker %q", w.Kind)
	}
	var err error
	if w.j, err = openJournal(w.Journals, w.Name); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	// Names of calls of a process that was started again differ from those
	// before.
	w.ops.Store(time.Now().UnixNano())
	return errors.Join(work(w, ctx), w.j.close())
}

// dial makes a client of a hub, counted round.
func (w *worker) dial(hub int) (*client.Client, error) {
	return client.New(w.Hubs[hub%len(w.Hubs)], client.Options{
		MinBackoff: 20 * time.Millisecond, MaxBackoff: 500 * time.Millisecond, DialTimeout: 3 * time.Second, Ping: 2 * time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

// dialAll makes a client of every hub.
func (w *worker) dialAll() ([]*client.Client, error) {
	var list []*client.Client
	for i := range w.Hubs {
		c, err := w.dial(i)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// leave ends clients, without waiting for hubs that do not answer.
func leave(list ...*client.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, c := range list {
		_ = c.Close(ctx) // what was not finished comes again
	}
}

// chance is a source of its own for part n of the worker.
func (w *worker) chance(n int) *rand.Rand { return rand.New(rand.NewPCG(w.Seed, uint64(n))) }
