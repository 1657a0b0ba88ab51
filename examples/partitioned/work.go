package main

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"promethean"
	"promethean/event"
	"promethean/examples/process"
	"promethean/partition"
	"promethean/store"
)

// hosts and each are how many processes there are, of how many hosts.
const (
	hosts = 4
	each  = 6
)

// rounds make the work heavy: about a millisecond.
const rounds = 4000

// expensive stands for work that is worth sharing: it depends on the state
// alone.
func expensive(s *process.State) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	sum, err := pbkdf2.Key(sha256.New, string(text), []byte(s.ProcessID), rounds, 8)
	return fmt.Sprintf("%x", sum), err
}

// work publishes heartbeats, while one member joins and another leaves.
func (x *example) work(ctx context.Context) error {
	total := hosts * each * x.beats
	ctx, cancel := context.WithCancel(ctx) // if one of both fails, the other need not go on
	defer cancel()
	published := make(chan error, 1)
	go func() {
		err := x.beat(ctx)
		if err != nil {
			cancel()
		}
		published <- err
	}()
	err := x.move(ctx, total)
	if err != nil {
		cancel()
	}
	if err := errors.Join(err, <-published); err != nil {
		return err
	}
	x.say("5. %d heartbeats of %d processes are published, those of a host in one partition", total, hosts*each)
	return nil
}

// move has a member join once a third is done, and the first one leave then.
func (x *example) move(ctx context.Context, total int) error {
	if err := x.ledger.wait(ctx, func() bool { return x.ledger.total >= total/3 }); err != nil {
		return err
	}
	if err := x.join(ctx, fmt.Sprint("worker-", x.members+1)); err != nil {
		return err
	}
	if err := x.ledger.wait(ctx, func() bool { return x.ledger.even(x.subs) }); err != nil {
		return err
	}
	x.say("4. one more has joined: %s", x.ledger.shares())
	const first = "worker-1"
	if err := x.subs[first].Stop(ctx); err != nil {
		return err
	}
	delete(x.subs, first)
	if err := x.ledger.wait(ctx, func() bool { return x.ledger.even(x.subs) }); err != nil {
		return err
	}
	x.say("   the first has left: %s", x.ledger.shares())
	return nil
}

// beat publishes the heartbeats of all processes, round after round. Order
// follows the process, which is the key, and the partition its host.
func (x *example) beat(ctx context.Context) error {
	bus := partition.Publish(x.bus, partitions, host)
	stored := make(map[string]event.Partition)
	for n := range x.beats {
		for pid := range hosts * each {
			b := process.Heartbeat{
				PID: int64(pid), Name: "stt", Host: fmt.Sprint("host", pid%hosts),
				CPUPct: float64(n*7+pid) / 4, MemMB: float64(100 + n),
			}
			got, err := promethean.PublishAs(ctx, bus, process.HeartbeatTopic, b, promethean.Key(b.ProcessID()))
			if err != nil {
				return fmt.Errorf("heartbeat of %s: %w", b.ProcessID(), err)
			}
			if at, known := stored[b.Host]; known && at != got.Partition {
				return fmt.Errorf("heartbeats of %s are in partitions %v and %v", b.Host, at, got.Partition)
			}
			stored[b.Host] = got.Partition
		}
	}
	return nil
}

// host is that of a heartbeat; "" if it does not say.
func host(e *event.Event) string {
	b, err := process.ParseHeartbeat(e.Payload)
	if err != nil {
		return ""
	}
	return b.Host
}

// drain goes on until all heartbeats are states, all states are analysed, and
// the view has them.
func (x *example) drain(ctx context.Context) error {
	if err := x.idle(ctx, process.HeartbeatTopic, process.Group); err != nil {
		return err
	}
	if err := x.projector.Stop(ctx); err != nil { // no more states come
		return err
	}
	if err := x.idle(ctx, process.StateTopic, group); err != nil {
		return err
	}
	bounds, err := x.hub.Log().Bounds(ctx, process.StateTopic)
	if err != nil {
		return err
	}
	return x.view.Wait(ctx, bounds.Last)
}

// idle waits until a group has nothing to do.
func (x *example) idle(ctx context.Context, topic, name string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		lag, err := x.hub.Lag(ctx, topic, name)
		if err != nil {
			return err
		}
		if lag.Events == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// judge compares what was done with the log.
func (x *example) judge(ctx context.Context) error {
	last := make(map[string]event.Event) // by process
	var left []uint64
	for e, err := range x.hub.Read(ctx, store.Query{Topic: process.StateTopic}) {
		if err != nil {
			return err
		}
		if at, _ := e.Partition.Get(); at != event.PartitionFor(e.Key, e.ID, partitions) {
			return fmt.Errorf("state %d of %s is in partition %d", e.Seq, e.Key, at)
		}
		if e.Seq > x.began && !x.ledger.done(e.Seq) {
			left = append(left, e.Seq)
		}
		last[e.Key] = e
	}
	if len(left) > 0 {
		return fmt.Errorf("states that nobody analysed: %v", left)
	}
	if err := x.ledger.verdict(last); err != nil {
		return err
	}
	x.say("6. %s", x.ledger.summary())
	return x.compare(ctx, last)
}

// compare wants the view to hold the last state of every process.
func (x *example) compare(ctx context.Context, last map[string]event.Event) error {
	want := len(last)
	for doc, err := range x.view.Source().List(ctx, store.DocQuery{Limit: want + 1}) {
		if err != nil {
			return err
		}
		var got struct {
			process.State
			TS int64 `json:"_ts"`
		}
		if err := json.Unmarshal(doc.Body, &got); err != nil {
			return fmt.Errorf("document %s: %w", doc.Key, err)
		}
		e, known := last[doc.Key]
		if !known {
			return fmt.Errorf("the view has %q, of which there is no state", doc.Key)
		}
		state, err := promethean.Payload[process.State](&e)
		if err != nil {
			return err
		}
		if got.State != state || got.TS != e.TS {
			return fmt.Errorf("the view has %s of %q, whose last state is %s", doc.Body, doc.Key, e.Payload)
		}
		delete(last, doc.Key)
	}
	if len(last) > 0 {
		return fmt.Errorf("%d processes of %d are not in the view", len(last), want)
	}
	x.say("7. the view holds the last state of all %d processes", want)
	return nil
}
