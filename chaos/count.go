package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"time"

	"promethean"
	"promethean/client"
	"promethean/cluster"
	"promethean/event"
	"promethean/partition"
	"promethean/partition/state"
	"promethean/store/natsstore"
)

// countsName is the table's.
const countsName = "chaos.counts"

// sum is what is kept of a key. Trace depends on each event and on their order.
type sum struct {
	Count int    `json:"count"`
	Trace uint32 `json:"trace"`
}

// with is the sum after another event.
func (s sum) with(id event.ID) sum {
	h := fnv.New32a()
	_ = binary.Write(h, binary.BigEndian, s.Trace) // it cannot fail
	_, _ = h.Write(id[:])
	return sum{Count: s.Count + 1, Trace: h.Sum32()}
}

// counter is a member of a partitioned group, in a hub of its own, with a table.
type counter struct {
	*worker
	hub    *promethean.Hub
	coord  *partition.Coordinator
	table  *state.Table[string, sum]
	logger *slog.Logger
}

// count counts the events of each key until the context ends.
func (w *worker) count(ctx context.Context) (err error) {
	c := &counter{worker: w, logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	log, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if c.hub, err = promethean.New(log, promethean.Options{Logger: c.logger, DrainTimeout: ackWait}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.hub.Close()) }()
	place, err := cluster.Join(c.hub, cluster.Options{Logger: c.logger})
	if err != nil {
		return err
	}
	// What cannot be said at the end, others find out by themselves.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*ackWait)
	defer cancel()
	defer func() { _ = place.Close(last) }()
	if c.coord, err = partition.New(c.hub, partition.Options{Hubs: place, Self: place.Self().ID, Logger: c.logger}); err != nil {
		return err
	}
	defer func() { _ = c.coord.Close(last) }()
	if c.table, err = state.New[string, sum](c.hub, countsName, state.Options{Source: w.Topic, Group: w.Group, Logger: c.logger}); err != nil {
		return err
	}
	for ctx.Err() == nil {
		c.serve(ctx)
	}
	return nil
}

// open connects to the engine; a server that is away is waited for.
func (c *counter) open(ctx context.Context) (*natsstore.Store, error) {
	for {
		log, err := natsstore.Open(ctx, c.Store, natsstore.Options{Logger: c.logger})
		if err == nil || ctx.Err() != nil {
			return log, err
		}
		c.j.add(entry{Do: doNote, Topic: c.Topic, Group: c.Group, Err: err.Error()})
		pause(ctx, 200*time.Millisecond)
	}
}

// serve is one membership: until the context ends, or it is over by itself. The
// first worker has an id of its own choosing.
func (c *counter) serve(ctx context.Context) {
	over := make(chan error, 1)
	opts := []partition.Option{
		partition.OnAssigned(c.assigned), partition.OnRevoked(c.revoked), partition.OnFenced(func(err error) { over <- err }),
		partition.Using(promethean.FromEarliest(), promethean.AckTimeout(leaseFor), promethean.MaxAttempts(endless), promethean.MaxInFlight(20)),
	}
	if c.First == 0 {
		opts = append(opts, partition.MemberID(c.Name))
	}
	sub, err := partition.SubscribePartitioned(ctx, c.coord, c.Topic, c.Group, c.handle, opts...)
	if err != nil {
		c.j.add(entry{Do: doNote, Topic: c.Topic, Group: c.Group, Err: err.Error()})
		pause(ctx, 200*time.Millisecond)
		return
	}
	select {
	case err := <-over:
		c.j.add(entry{Do: doNote, Topic: c.Topic, Group: c.Group, Err: "the membership is over: " + err.Error()})
	case <-ctx.Done():
	}
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*ackWait)
	defer cancel()
	_ = sub.Stop(sctx) // what it held comes again
}

// assigned tells of a partition that is had from now on.
func (c *counter) assigned(ctx context.Context, n int) error {
	if err := c.table.Assigned(ctx, n); err != nil {
		c.j.add(entry{Do: doNote, Topic: c.Topic, Group: c.Group, Part: &n, Err: err.Error()})
		return err
	}
	c.j.add(entry{Do: doTake, Topic: c.Topic, Group: c.Group, Part: &n})
	return nil
}

func (c *counter) revoked(ctx context.Context, n int) error {
	c.j.add(entry{Do: doYield, Topic: c.Topic, Group: c.Group, Part: &n})
	return c.table.Revoked(ctx, n)
}

// handle counts one event.
func (c *counter) handle(ctx context.Context, e event.Event, d *promethean.Delivery) error {
	c.j.add(entry{
		Do: doGot, Topic: e.Topic, Group: c.Group, ID: e.ID, Key: e.Key, Seq: e.Seq, Try: d.Attempt,
		Out: d.Deadline.Add(-leaseFor).UnixNano(),
	})
	err := c.table.Update(ctx, e, d, func(s sum, _ bool) (sum, error) { return s.with(e.ID), nil })
	if err != nil {
		c.j.add(entry{Do: doNote, Topic: e.Topic, Group: c.Group, ID: e.ID, Key: e.Key, Seq: e.Seq, Err: err.Error()})
		return err
	}
	c.j.add(entry{Do: doAck, Topic: e.Topic, Group: c.Group, ID: e.ID, Key: e.Key, Seq: e.Seq})
	return nil
}

// table is one whose values are judged.
type table struct{ source, changelog string }

// judgeTable wants every counter to be what the source says.
func (r *run) judgeTable(ctx context.Context, h *history, t table) (counters int, err error) {
	got := make(map[string]sum)
	for e, err := range r.hubs[0].client.Read(ctx, t.changelog, client.Place{From: client.Earliest}, client.ReadOptions{}) {
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", t.changelog, err)
		}
		var s sum
		if err := json.Unmarshal(e.Payload, &s); err != nil {
			r.verdict.add("counters are exact", "%s: key %q, seq %d: %v", t.changelog, e.Key, e.Seq, err)
		}
		got[e.Key] = s
	}
	h.judgeSums(t, got, &r.verdict)
	return len(got), nil
}

// judgeSums compares counters with the log of their source.
func (h *history) judgeSums(t table, got map[string]sum, v *verdict) {
	want := make(map[string]sum)
	for _, e := range h.logs[t.source] {
		want[e.Key] = want[e.Key].with(e.ID)
	}
	for key, w := range want {
		if g := got[key]; g != w {
			v.add("counters are exact", "%s: key %q is %+v, and should be %+v", t.changelog, key, g, w)
		}
	}
	for key, g := range got {
		if _, ok := want[key]; !ok {
			v.add("counters are exact", "%s: key %q is %+v, and has no events", t.changelog, key, g)
		}
	}
}
