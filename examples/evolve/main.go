// Evolve changes the schema of a topic while events flow: a field is renamed,
// old and new writers publish at the same time, and a reader that knows only the
// new version misses nothing. It says what it does, and fails if anything is not
// as docs/evolution.md says.
//
//	go run ./examples/evolve
package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path"
	"sync"

	"promethean"
	"promethean/event"
	"promethean/schema"
	"promethean/store"
)

const (
	topic = "heartbeat.received"
	next  = topic + ".v2"
	each  = 50 // events of one writer in one step
)

// The directory is not called schemas: a linter takes a tree for one system, and
// the example process beside this one has the topic in version 1 for good.
//
//go:embed versions
var files embed.FS

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hub.Close()) }()
	reg, err := schema.Open(ctx, hub, schema.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, reg.Close()) }()
	// What is published is validated and stamped, and written twice where dual
	// write is on.
	x := &example{hub: hub, reg: reg, bus: schema.Validate(schema.DualWrite(hub, reg), reg), out: out}
	for _, step := range []func(context.Context) error{
		x.oldTimes, x.register, x.writeBoth, x.normalise, x.cutOver, x.dualWrite, x.bake, x.finish,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// example is the topic on its way.
type example struct {
	hub *promethean.Hub
	reg *schema.Registry
	bus promethean.Bus
	out io.Writer

	published int // events in the topic
	copied    int // of them, those that have to be in the topic of version 2
}

func (x *example) say(format string, args ...any) {
	_, _ = fmt.Fprintf(x.out, format+"\n", args...) // nobody listens: the result counts
}

// define reads a version from its file.
func define(version int) (schema.Definition, error) {
	text, err := files.ReadFile(path.Join("versions", topic, fmt.Sprintf("v%d.json", version)))
	d := schema.Define(topic, text)
	d.Version = version
	return d, err
}

// beat is a heartbeat of version 1 or 2.
func beat(version, n int) event.Event {
	field := map[int]string{1: "mem_mb", 2: "mem_mib"}[version]
	e := event.New(topic, fmt.Appendf(nil, `{"pid":%d,"name":"stt","host":"dev","cpu_pct":1.5,%q:%d}`, n, field, 100+n))
	e.Key = fmt.Sprintf("dev:stt:%d", n%7)
	return e
}

// stamped says what version an event is of.
func stamped(e event.Event, version string) event.Event {
	e.Headers = e.Headers.Set(schema.VersionHeader, version)
	return e
}

// oldTimes is how it was: one version, one writer.
func (x *example) oldTimes(ctx context.Context) error {
	d, err := define(1)
	if err != nil {
		return err
	}
	if _, _, err := x.reg.Register(ctx, d); err != nil {
		return err
	}
	for n := range each {
		if _, err := x.bus.Publish(ctx, beat(1, n)); err != nil {
			return err
		}
	}
	x.published = each
	x.say("1. version 1 is registered, and %d events of it are there", each)
	return nil
}

// register adds version 2: not without a way up from version 1.
func (x *example) register(ctx context.Context) error {
	d, err := define(2)
	if err != nil {
		return err
	}
	var conflict *schema.ConflictError
	if _, _, err := x.reg.Register(ctx, d); !errors.As(err, &conflict) || len(conflict.Problems) == 0 {
		return fmt.Errorf("version 2 was taken without an upcaster: %w", err)
	}
	for _, p := range conflict.Problems {
		x.say("   refused without an upcaster: %s", p.Detail)
	}
	program, err := files.ReadFile(path.Join("versions", topic, "v2.upcast.jq"))
	if err != nil {
		return err
	}
	d.Upcast = string(program)
	if _, _, err := x.reg.Register(ctx, d); err != nil {
		return err
	}
	x.say("2. version 2 is registered, with an upcaster that was tried on made and stored documents")
	return nil
}

// writeBoth lets old and new writers publish at the same time.
func (x *example) writeBoth(ctx context.Context) error {
	if _, err := x.bus.Publish(ctx, beat(1, 0)); !errors.Is(err, schema.ErrInvalid) {
		return fmt.Errorf("an old payload without a stamp was taken for a new one: %w", err)
	}
	if err := x.write(ctx); err != nil {
		return err
	}
	x.say("3. an old writer, which stamps its events, and a new one published %d events each", each)
	return nil
}

// write publishes as an old and as a new writer at once.
func (x *example) write(ctx context.Context) error {
	var all sync.WaitGroup
	var failed [2]error
	for i, version := range []int{1, 2} {
		all.Go(func() {
			for n := range each {
				e := beat(version, n)
				if version == 1 {
					e = stamped(e, "1")
				}
				if _, err := x.bus.Publish(ctx, e); err != nil {
					failed[i] = err
					return
				}
			}
		})
	}
	all.Wait()
	x.published += 2 * each
	return errors.Join(failed[:]...)
}

// normalise lets a reader that knows only version 2 handle all of it.
func (x *example) normalise(ctx context.Context) error {
	seen, err := x.handle(ctx, "readers")
	if err != nil {
		return err
	}
	x.say("4. a normalised reader handled %d events, all of version 2", seen)
	old := 0
	for e, err := range x.hub.Read(ctx, store.Query{Topic: topic}) {
		if err != nil {
			return err
		}
		if v, _ := e.Headers.Get(schema.VersionHeader); v == "1" {
			old++
		}
	}
	if old != 2*each {
		return fmt.Errorf("%d stored events are of version 1, not %d: the log has changed", old, 2*each)
	}
	x.say("   in the log %d of them are still of version 1", old)
	return nil
}

// handle reads the topic as a new group, normalised, up to its end.
func (x *example) handle(ctx context.Context, group string) (n int, err error) {
	type outcome struct {
		e   event.Event
		err error
	}
	got := make(chan outcome)
	handler := func(ctx context.Context, e event.Event, _ *promethean.Delivery) error {
		select {
		case got <- outcome{e, wantV2(e)}:
		case <-ctx.Done():
		}
		return nil
	}
	sub, err := schema.SubscribeNormalised(ctx, x.bus, x.reg, topic, group, handler, promethean.FromEarliest())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, sub.Stop(ctx)) }()
	seen := make(map[event.ID]bool)
	for len(seen) < x.published {
		select {
		case o := <-got:
			if o.err != nil {
				return 0, o.err
			}
			seen[o.e.ID] = true
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return len(seen), nil
}

// wantV2 says what is wrong with an event as one of version 2.
func wantV2(e event.Event) error {
	var payload map[string]json.RawMessage
	if err := json.Unmarshal(e.Payload, &payload); err != nil {
		return err
	}
	_, was := payload["mem_mb"]
	_, is := payload["mem_mib"]
	if v, _ := e.Headers.Get(schema.VersionHeader); v != "2" || was || !is {
		return fmt.Errorf("seq %d of %s is not of version 2: it is stamped %q, %s", e.Seq, e.Topic, v, e.Payload)
	}
	return nil
}

// cutOver copies the history to the topic of version 2.
func (x *example) cutOver(ctx context.Context) error {
	c, err := x.reg.Cutover(ctx, topic, next, nil)
	if err != nil {
		return err
	}
	if c.Copied != x.published || c.Verified != x.published || c.Behind != 0 {
		return fmt.Errorf("the cutover copied %d and found %d of %d events", c.Copied, c.Verified, x.published)
	}
	x.say("5. the cutover copied %d events to %s and found all of them there", c.Copied, next)
	return nil
}

// dualWrite turns dual write on. What came since the cutover is copied first.
func (x *example) dualWrite(ctx context.Context) error {
	if err := x.write(ctx); err != nil { // meanwhile
		return err
	}
	if err := x.set(ctx, true); err != nil {
		return err
	}
	if to := x.reg.DualWriteTo(topic); to != next {
		return fmt.Errorf("dual write goes to %q", to)
	}
	x.copied = x.published
	x.say("6. dual write is on, and %d events that came since the cutover are copied", 2*each)
	return nil
}

// set turns dual write on or off.
func (x *example) set(ctx context.Context, on bool) error {
	was := store.Settings{}
	for t, err := range x.hub.Topics(ctx) {
		if err != nil {
			return err
		}
		if t.Name == topic {
			was = t.Settings
		}
	}
	settings, err := schema.SettingsOf(was)
	if err != nil {
		return err
	}
	settings.DualWrite = schema.Window{On: on}
	now := was
	if err := settings.Put(&now); err != nil {
		return err
	}
	return x.reg.Apply(ctx, topic, was, now, func() error { return x.hub.SetTopic(ctx, topic, now) })
}

// bake lets traffic flow, and compares both topics.
func (x *example) bake(ctx context.Context) error {
	if err := x.write(ctx); err != nil {
		return err
	}
	x.copied = x.published
	if err := x.compare(ctx); err != nil {
		return err
	}
	x.say("7. after more of both writers: %s has the same %d events in the same order, all of version 2", next, x.copied)
	return nil
}

// compare wants the topic of version 2 to hold the events of the topic, in its
// order.
func (x *example) compare(ctx context.Context) error {
	var ids [2][]event.ID
	for i, name := range []string{topic, next} {
		for e, err := range x.hub.Read(ctx, store.Query{Topic: name}) {
			if err == nil && name == next {
				err = wantV2(e)
			}
			if err != nil {
				return err
			}
			ids[i] = append(ids[i], e.ID)
		}
	}
	if len(ids[0]) != x.published || len(ids[1]) != x.copied {
		return fmt.Errorf("%d events in %s and %d in %s, not %d and %d", len(ids[0]), topic, len(ids[1]), next, x.published, x.copied)
	}
	for i, id := range ids[1] {
		if id != ids[0][i] {
			return fmt.Errorf("event %d of %s is another than that of %s", i+1, next, topic)
		}
	}
	return nil
}

// finish turns dual write off. The upcasters stay: history is read again.
func (x *example) finish(ctx context.Context) error {
	if err := x.set(ctx, false); err != nil {
		return err
	}
	if err := x.write(ctx); err != nil {
		return err
	}
	if err := x.compare(ctx); err != nil {
		return err
	}
	seen, err := x.handle(ctx, "late")
	if err != nil {
		return err
	}
	x.say("8. dual write is off, and a new reader replays all %d events, upcast", seen)
	return nil
}
