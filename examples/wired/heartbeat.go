package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"promethean"
	"promethean/event"
	"promethean/examples/process"
	"promethean/schema"
	"promethean/store"
)

const topic = process.HeartbeatTopic

// heartbeat is the payload of version 2. That of version 1 is
// [process.Heartbeat], which calls its memory mem_mb.
type heartbeat struct {
	PID    int64   `json:"pid"`
	Name   string  `json:"name"`
	Host   string  `json:"host"`
	CPUPct float64 `json:"cpu_pct"`
	MemMiB float64 `json:"mem_mib"`
	SID    string  `json:"sid,omitempty"`
}

// rename makes a heartbeat of version 1 into one of version 2. It takes whatever
// version 1 allows, such as a pid that no int64 can hold, so it leaves the other
// fields as they are.
func rename(_ context.Context, e event.Event) (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(e.Payload, &fields); err != nil {
		return nil, err
	}
	fields["mem_mib"] = fields["mem_mb"]
	delete(fields, "mem_mb")
	return json.Marshal(fields)
}

// schemas registers both versions, and the way from one to the other.
func (x *example) schemas(ctx context.Context) (err error) {
	if x.reg, err = schema.Open(ctx, x.hub, schema.Options{Logger: x.logger}); err != nil {
		return err
	}
	x.closing(func(context.Context) error { return x.reg.Close() })
	// The schemas follow from the Go types.
	first, err := schema.Of[process.Heartbeat]()
	if err != nil {
		return err
	}
	second, err := schema.Of[heartbeat]()
	if err != nil {
		return err
	}
	if _, _, err := x.reg.Register(ctx, schema.Definition{Topic: topic, Version: 1, Schema: first}); err != nil {
		return err
	}
	if err := x.reg.AddUpcaster(ctx, topic, 1, rename); err != nil {
		return err
	}
	if _, _, err := x.reg.Register(ctx, schema.Definition{Topic: topic, Version: 2, Schema: second}); err != nil {
		return err
	}
	x.bus = schema.Validate(schema.DualWrite(x.hub, x.reg), x.reg)
	return nil
}

// dualWrite has events of the topic written to that of version 2 too.
func (x *example) dualWrite(ctx context.Context) error {
	was := x.hub.Settings(topic)
	settings, err := schema.SettingsOf(was)
	if err != nil {
		return err
	}
	settings.DualWrite = schema.Window{On: true}
	now := was
	if err := settings.Put(&now); err != nil {
		return err
	}
	if err := x.reg.Apply(ctx, topic, was, now, func() error { return x.hub.SetTopic(ctx, topic, now) }); err != nil {
		return err
	}
	if to := x.reg.DualWriteTo(topic); to != schema.VersionTopic(topic, 2) {
		return fmt.Errorf("dual write of %s goes to %q", topic, to)
	}
	x.say("1. %s has versions 1 and 2, and is written to %s too", topic, schema.VersionTopic(topic, 2))
	return nil
}

// publish publishes a heartbeat as an old or a new writer does.
func (x *example) publish(ctx context.Context, version int, b process.Heartbeat) (promethean.Receipt, error) {
	payload, err := json.Marshal(b)
	if err != nil {
		return promethean.Receipt{}, err
	}
	e := event.New(topic, payload)
	e.Key = b.ProcessID()
	if version == 1 {
		e.Headers = e.Headers.Set(schema.VersionHeader, "1")
	} else if e.Payload, err = rename(ctx, e); err != nil {
		return promethean.Receipt{}, err
	}
	got, err := x.bus.Publish(ctx, e)
	if err != nil {
		return promethean.Receipt{}, fmt.Errorf("heartbeat of %s in version %d: %w", e.Key, version, err)
	}
	return got[0], nil
}

// wantV2 says what is wrong with an event as one of version 2.
func wantV2(e *event.Event) error {
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

// twice wants the topic of version 2 to hold the events of the topic in their
// order, upcast. It gives what each process said last.
func (x *example) twice(ctx context.Context) (map[string]heartbeat, error) {
	next := schema.VersionTopic(topic, 2)
	last := make(map[string]heartbeat)
	var copies []event.Event
	for e, err := range x.hub.Read(ctx, store.Query{Topic: next}) {
		if err == nil {
			err = wantV2(&e)
		}
		if err != nil {
			return nil, err
		}
		copies = append(copies, e)
	}
	n, old := 0, 0
	for e, err := range x.hub.Read(ctx, store.Query{Topic: topic}) {
		if err != nil {
			return nil, err
		}
		if v, _ := e.Headers.Get(schema.VersionHeader); v == "1" {
			old++
		}
		now, err := x.reg.Normalise(ctx, e)
		if err != nil {
			return nil, err
		}
		if n >= len(copies) || copies[n].ID != e.ID || string(copies[n].Payload) != string(now.Payload) {
			return nil, fmt.Errorf("event %d of %s is not that of %s", n+1, next, topic)
		}
		if last[e.Key], err = promethean.Payload[heartbeat](&now); err != nil {
			return nil, err
		}
		n++
	}
	if n != len(copies) {
		return nil, fmt.Errorf("%d events in %s, but %d in %s", n, topic, len(copies), next)
	}
	if old == 0 {
		return nil, errors.New("nothing of version 1 is stored: what is stored was changed")
	}
	x.say("6. %s has the %d events of %s in their order, all of version 2; in %s %d are of version 1 still", next, n, topic, topic, old)
	return last, nil
}
