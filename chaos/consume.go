package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"promethean/client"
	"promethean/event"
)

const (
	// leaseFor is how long a lease lasts in all groups: what a dead consumer held
	// is to come back soon. The moment of hand-out is counted back from its end.
	leaseFor = 6 * time.Second
	// silence is after how long without an event a consumer asks another hub.
	silence = 6 * time.Second
	// endless keeps events out of the dead letters.
	endless = 1_000_000
	ackWait = 5 * time.Second
)

// push consumes over a WebSocket, from one hub after the other: whenever nothing
// comes for a while, it goes to the next. As a member it is one of a partitioned
// group, the first one with an id of its own choosing.
func (w *worker) push(ctx context.Context) error {
	r := w.chance(0)
	var dice sync.Mutex
	toss := func(n int) int {
		dice.Lock()
		defer dice.Unlock()
		return r.IntN(n)
	}
	for hub := w.First; ctx.Err() == nil; hub++ {
		if err := w.pushFrom(ctx, hub%len(w.Hubs), toss); err != nil {
			return err
		}
	}
	return nil
}

// pushFrom consumes from one hub until it is silent.
func (w *worker) pushFrom(ctx context.Context, hub int, toss func(int) int) error {
	c, err := w.dial(hub)
	if err != nil {
		return err
	}
	defer leave(c)
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	handle := func(hctx context.Context, e event.Event, d *client.Delivery) error {
		now := time.Now()
		last.Store(now.UnixNano())
		w.j.add(entry{
			T: now.UnixNano(), Do: doGot, Hub: hub, Topic: e.Topic, Group: w.Group, ID: e.ID, Key: e.Key, Seq: e.Seq,
			Try: d.Attempt, Out: d.Deadline.Add(-leaseFor).UnixNano(),
		})
		pause(hctx, time.Duration(toss(4000))*time.Microsecond)
		if toss(100) == 0 {
			w.j.add(entry{Do: doNack, Hub: hub, Topic: e.Topic, Group: w.Group, ID: e.ID})
			return errors.New("failed on purpose")
		}
		actx, cancel := context.WithTimeout(hctx, ackWait)
		defer cancel()
		w.j.add(entry{Do: doAck, Hub: hub, Topic: e.Topic, Group: w.Group, ID: e.ID, Key: e.Key, Seq: e.Seq})
		err := d.Ack(actx)
		w.acked(hub, e, err)
		return err
	}
	sctx, cancel := context.WithTimeout(ctx, silence)
	opts := []client.SubscribeOption{client.FromEarliest(), client.AckTimeout(leaseFor), client.MaxAttempts(endless), client.MaxInFlight(50)}
	if w.Kind == "member" {
		opts = append(opts, client.Partitioned(), client.OnAssign(func(_ uint64, parts []int) {
			for _, n := range parts {
				w.j.add(entry{Do: doTake, Hub: hub, Topic: w.Topic, Group: w.Group, Part: &n})
			}
		}))
		if w.First == 0 {
			opts = append(opts, client.Member(w.Name))
		}
	}
	sub, err := c.Subscribe(sctx, w.Topic, w.Group, handle, opts...)
	cancel()
	if err != nil {
		w.j.add(entry{Do: doNote, Hub: hub, Topic: w.Topic, Group: w.Group, Code: client.CodeOf(err), Err: err.Error()})
		pause(ctx, 100*time.Millisecond)
		return nil
	}
	tick := time.NewTicker(silence / 10)
	defer tick.Stop()
	for time.Since(time.Unix(0, last.Load())) < silence {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		case <-sub.Done():
			w.j.add(entry{Do: doNote, Hub: hub, Topic: w.Topic, Group: w.Group, Err: "the subscription ended"})
			return nil
		}
	}
	return nil
}

// acked tells what became of an ack.
func (w *worker) acked(hub int, e event.Event, err error) {
	x := entry{Do: doAcked, Hub: hub, Topic: e.Topic, Group: w.Group, ID: e.ID, Key: e.Key, Seq: e.Seq}
	if err != nil {
		x.Do, x.Code, x.Err = doUnacked, client.CodeOf(err), err.Error()
	}
	w.j.add(x)
}

// pull consumes over HTTP, from one hub after the other: after an error, or some
// empty answers, it asks the next.
func (w *worker) pull(ctx context.Context) error {
	hubs, err := w.dialAll()
	if err != nil {
		return err
	}
	defer leave(hubs...)
	r := w.chance(0)
	for hub, empty := w.First, 0; ctx.Err() == nil; {
		hub %= len(hubs)
		pctx, cancel := context.WithTimeout(ctx, 2*ackWait)
		got, err := hubs[hub].Pull(pctx, client.PullRequest{
			Topic: w.Topic, Group: w.Group, Max: 1 + r.IntN(30), Wait: time.Second, From: client.Place{From: client.Earliest},
			Settings: client.GroupSettings{AckTimeoutMs: leaseFor.Milliseconds(), MaxAttempts: endless},
		})
		cancel()
		now := time.Now()
		if err != nil {
			if ctx.Err() == nil {
				w.j.add(entry{Do: doNote, Hub: hub, Topic: w.Topic, Group: w.Group, Code: client.CodeOf(err), Err: err.Error()})
			}
			hub, empty = hub+1, 0
			pause(ctx, 100*time.Millisecond)
			continue
		}
		if len(got) == 0 {
			if empty++; empty == 3 {
				hub, empty = hub+1, 0
			}
			continue
		}
		empty = 0
		var done, back []client.Pulled
		for _, p := range got {
			w.j.add(entry{
				T: now.UnixNano(), Do: doGot, Hub: hub, Topic: w.Topic, Group: w.Group, ID: p.Event.ID, Key: p.Event.Key, Seq: p.Event.Seq,
				Try: p.Attempt, Out: time.UnixMilli(p.DeadlineMs).Add(-leaseFor).UnixNano(),
			})
			if r.IntN(100) == 0 {
				back = append(back, p)
			} else {
				done = append(done, p)
			}
		}
		if w.settle(hubs[hub], hub, client.DoNack, back) != nil || w.settle(hubs[hub], hub, client.DoAck, done) != nil {
			hub++ // somebody else may take the ack
			_ = w.settle(hubs[hub%len(hubs)], hub%len(hubs), client.DoAck, done)
		}
	}
	return nil
}

// settle acks or nacks, and tells what came of it.
func (w *worker) settle(c *client.Client, hub int, do string, list []client.Pulled) error {
	if len(list) == 0 {
		return nil
	}
	s := client.Settlement{Topic: w.Topic, Group: w.Group, Do: do}
	as := map[string]string{client.DoAck: doAck, client.DoNack: doNack}[do]
	for _, p := range list {
		s.IDs = append(s.IDs, p.Event.ID)
		s.Leases = append(s.Leases, p.Lease)
		w.j.add(entry{Do: as, Hub: hub, Topic: w.Topic, Group: w.Group, ID: p.Event.ID, Key: p.Event.Key, Seq: p.Event.Seq})
	}
	ctx, cancel := context.WithTimeout(context.Background(), ackWait)
	defer cancel()
	got, err := c.Settle(ctx, s)
	if do == client.DoNack {
		return err
	}
	for i, p := range list {
		why := err
		if err == nil && !got[i].OK {
			why = &client.Error{Code: got[i].Err, Message: got[i].Err}
		}
		w.acked(hub, p.Event, why)
	}
	return err
}
