// Heartbeat sends heartbeats of itself and shows the states of all processes
// that ever did so on a data directory:
//
//	go run ./examples/process/cmd/heartbeat data/process
//
// Kill it and start it again: the one that was killed is a process that went
// silent while nobody watched, and is stale within 20 s.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime/metrics"
	"syscall"
	"time"

	"promethean"
	"promethean/event"
	"promethean/examples/process"
	"promethean/store"
)

// every is how often a heartbeat is sent: three of them may be lost before a
// process is stale.
const every = 5 * time.Second

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: heartbeat DIR")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hub, err := promethean.Open(os.Args[1], promethean.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(run(ctx, hub, os.Stdout), hub.Close()); err != nil {
		log.Fatal(err)
	}
}

// run sends and shows until ctx ends.
func run(ctx context.Context, hub *promethean.Hub, out io.Writer) (err error) {
	if err := hub.SetTopic(ctx, process.HeartbeatTopic, store.Settings{Retention: process.HeartbeatRetention}); err != nil {
		return err
	}
	projector, err := process.Start(ctx, hub, process.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, projector.Stop(context.WithoutCancel(ctx))) }()
	// A group of its own for each run would be left behind by it: this one
	// goes on where the last run was.
	show, err := hub.Subscribe(ctx, process.StateTopic, "heartbeat-show", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
		var s process.State
		if err := json.Unmarshal(e.Payload, &s); err != nil {
			return promethean.Dead(err)
		}
		_, err := fmt.Fprintf(out, "%s  %-5s  %s  %.1f %%  %.1f MB\n", time.UnixMilli(s.LastSeenTS).Format(time.TimeOnly), s.Status, s.ProcessID, s.CPUPct, s.MemMB)
		return err
	}, promethean.FromEarliest())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, show.Stop(context.WithoutCancel(ctx))) }()
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	self := process.Heartbeat{PID: int64(os.Getpid()), Name: "heartbeat", Host: host}
	tick := time.NewTicker(every)
	defer tick.Stop()
	used := cpuSeconds()
	for {
		self.MemMB = float64(sample("/memory/classes/total:bytes").Uint64()) / (1 << 20)
		now := cpuSeconds()
		self.CPUPct, used = (now-used)/every.Seconds()*100, now
		if _, err := hub.Emit(ctx, process.HeartbeatTopic, self, promethean.Key(self.ProcessID())); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// cpuSeconds is the time that the program has computed for, as the runtime
// knows it: as of the last garbage collection.
func cpuSeconds() float64 { return sample("/cpu/classes/user:cpu-seconds").Float64() }

func sample(name string) metrics.Value {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	return s[0].Value
}
