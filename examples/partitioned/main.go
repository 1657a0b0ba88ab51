// Command partitioned wires together what a service with heavy work by key is
// made of, in one process: heartbeats that are held against a schema and stored
// by host, the projector of examples/process that makes states of them, a
// changelog view of the latest states, and several members that share the
// analysis of states by partition. While they are at work one more joins and the
// first leaves. It says what it does, and fails if anything is not as promised:
// every process is at one member at a time, in order, and the view holds what
// was said last.
//
//	go run ./examples/partitioned
//	go run ./examples/partitioned -store data/partitioned -members 5
//
// With a directory it goes on where the last run ended. Members in processes of
// their own that are killed, and what they remember of a key, are what
// examples/analyzer is about.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"promethean"
	"promethean/event"
	"promethean/examples/process"
	"promethean/partition"
	"promethean/schema"
	"promethean/store"
	"promethean/view"
)

const (
	group      = "analyzers"
	partitions = 8
	// ttl is how long a member may be silent, refresh how often everything is
	// looked at.
	ttl     = 10 * time.Second
	refresh = 2500 * time.Millisecond
)

func main() {
	var set settings
	flag.StringVar(&set.dir, "store", "", "the directory of the hub; without it everything is in memory")
	flag.IntVar(&set.members, "members", 3, "how many members begin to share the work")
	flag.IntVar(&set.beats, "beats", 10, "how many heartbeats of each process are published")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, set)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// settings are those of a run.
type settings struct {
	dir            string // "": in memory
	members, beats int
}

func (s settings) check() error {
	if s.members < 1 || s.members >= partitions { // one more joins, and has a share too
		return fmt.Errorf("-members %d is not within 1 to %d", s.members, partitions-1)
	}
	if s.beats < 1 {
		return fmt.Errorf("-beats %d: there is at least 1", s.beats)
	}
	return nil
}

// run plays all of it once.
func run(ctx context.Context, out io.Writer, set settings) (err error) {
	if err := set.check(); err != nil {
		return err
	}
	x := &example{settings: set, out: out, ledger: newLedger(), subs: make(map[string]promethean.Subscription)}
	if set.dir == "" {
		x.hub, err = promethean.OpenMemory(promethean.Options{})
	} else {
		x.hub, err = promethean.Open(set.dir, promethean.Options{})
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	for _, step := range []func(context.Context) error{
		x.topics, x.schemas, x.project, x.show, x.share, x.work, x.drain, x.judge,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// example is the service at work.
type example struct {
	settings
	out io.Writer
	hub *promethean.Hub
	bus promethean.Bus // refuses what its schema does not allow

	projector   *process.Projector
	view        *view.View
	coordinator *partition.Coordinator
	subs        map[string]promethean.Subscription // by member
	ledger      *ledger
	began       uint64 // the last state that was there before
	// closers end what was started, the last first.
	closers []func(context.Context) error
}

func (x *example) say(format string, args ...any) {
	_, _ = fmt.Fprintf(x.out, format+"\n", args...) // nobody listens: the result counts
}

// closing has something ended when the example does.
func (x *example) closing(f func(context.Context) error) { x.closers = append(x.closers, f) }

func (x *example) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for i := len(x.closers) - 1; i >= 0; i-- {
		errs = append(errs, x.closers[i](ctx))
	}
	return errors.Join(append(errs, x.hub.Close())...)
}

// topics divides both of them, so that what is stored says its partition.
func (x *example) topics(ctx context.Context) error {
	for _, topic := range []string{process.HeartbeatTopic, process.StateTopic} {
		if err := x.hub.SetTopic(ctx, topic, store.Settings{Partitions: partitions}); err != nil {
			return err
		}
	}
	bounds, err := x.hub.Log().Bounds(ctx, process.StateTopic)
	x.began = bounds.Last
	return err
}

// schemas registers those of both topics, if no run before did so.
func (x *example) schemas(ctx context.Context) error {
	reg, err := schema.Open(ctx, x.hub, schema.Options{})
	if err != nil {
		return err
	}
	x.closing(func(context.Context) error { return reg.Close() })
	for _, topic := range []string{process.HeartbeatTopic, process.StateTopic} {
		text, err := process.Schemas.ReadFile("schemas/" + topic + "/v1.json")
		if err != nil {
			return err
		}
		if _, _, err := reg.Register(ctx, schema.Define(topic, text)); err != nil {
			return err
		}
	}
	x.bus = schema.Validate(x.hub, reg)
	_, err = x.bus.Publish(ctx, event.New(process.HeartbeatTopic, []byte(`{"pid":"1","name":"stt"}`)))
	var invalid *schema.InvalidError
	if !errors.As(err, &invalid) {
		return fmt.Errorf("a heartbeat of the wrong shape was not refused: %w", err)
	}
	x.say("1. schemas are registered; a heartbeat of the wrong shape is refused for %d reasons", len(invalid.Errors))
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

// project makes states of heartbeats.
func (x *example) project(ctx context.Context) (err error) {
	if x.projector, err = process.Start(ctx, checked{x.hub, x.bus}, process.Options{}); err != nil {
		return err
	}
	x.closing(x.projector.Stop)
	return nil
}

// show keeps the latest state of every process as a document.
func (x *example) show(ctx context.Context) (err error) {
	if x.view, err = process.Changelog(ctx, x.hub, view.Options{}); err != nil {
		return err
	}
	x.closing(func(context.Context) error { return x.view.Close() })
	x.say("2. heartbeats become states, and the view %s keeps the latest of each process", x.view.Name())
	return nil
}

// share has the members begin, each with a part of the partitions.
func (x *example) share(ctx context.Context) (err error) {
	if x.coordinator, err = partition.New(x.hub, partition.Options{TTL: ttl, Refresh: refresh}); err != nil {
		return err
	}
	x.closing(x.coordinator.Close)
	for n := range x.members {
		if err := x.join(ctx, fmt.Sprint("worker-", n+1)); err != nil {
			return err
		}
	}
	if err := x.ledger.wait(ctx, func() bool { return x.ledger.even(x.subs) }); err != nil {
		return err
	}
	x.say("3. %d members share %d partitions: %s", x.members, partitions, x.ledger.shares())
	return nil
}

// join makes one more member.
func (x *example) join(ctx context.Context, member string) error {
	sub, err := partition.SubscribePartitioned(ctx, x.coordinator, process.StateTopic, group, x.analyse(member),
		partition.Partitions(partitions), partition.MemberID(member),
		partition.OnAssigned(func(_ context.Context, n int) error { return x.ledger.assigned(n, member) }),
		partition.OnRevoked(func(_ context.Context, n int) error { return x.ledger.revoked(n, member) }),
		partition.OnFenced(func(err error) { x.ledger.fault(fmt.Errorf("%s: %w", member, err)) }),
		partition.Using(promethean.FromEarliest()))
	if err != nil {
		return err
	}
	x.subs[member] = sub
	return nil
}

// analyse is the handler of a member.
func (x *example) analyse(member string) promethean.Handler {
	return promethean.Handle(func(_ context.Context, s process.State, e event.Event, d *promethean.Delivery) error {
		if err := x.ledger.begin(member, &e, d); err != nil {
			return promethean.Dead(err)
		}
		digest, err := expensive(&s)
		return x.ledger.end(member, &e, digest, err)
	})
}
