package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"promethean/client"
	"promethean/event"
)

const (
	lanes       = 4 // that publish at the same time, in one worker
	keysOfLane  = 3
	publishWait = 4 * time.Second // then another hub is asked
	finishWait  = time.Minute     // for a publish that is under way at the end
)

// body is the payload of what is published.
type body struct {
	Who string `json:"who"`
	N   int    `json:"n"`
}

// publish publishes in lanes. Each has keys of its own and sends one event, or
// one batch, after the other; what is not answered in time is sent again, with
// the same ids, through the next hub.
func (w *worker) publish(ctx context.Context) error {
	hubs, err := w.dialAll()
	if err != nil {
		return err
	}
	defer leave(hubs...)
	// A worker that is started again has other keys.
	life := time.Now().UnixNano()
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			r := w.chance(lane)
			next := make(map[string]int)
			for hub := w.First; pause(ctx, w.Every/2+time.Duration(r.Int64N(int64(w.Every)))); {
				list := make([]event.Event, 1)
				if r.IntN(10) == 0 {
					list = make([]event.Event, 2+r.IntN(4))
				}
				for i := range list {
					key := fmt.Sprintf("%s-%d-%d-%d", w.Name, life%1_000_000, lane, r.IntN(keysOfLane))
					next[key]++
					payload, _ := json.Marshal(body{Who: w.Name, N: next[key]}) // plain fields
					list[i] = event.New(w.Topic, payload)
					list[i].ID, list[i].Key = event.NewID(), key
				}
				hub = w.deliver(ctx, hubs, hub, list, r)
			}
		})
	}
	all.Wait()
	return nil
}

// deliver publishes until somebody has acknowledged or refused it, and gives the
// hub to go on with.
func (w *worker) deliver(ctx context.Context, hubs []*client.Client, hub int, list []event.Event, r *rand.Rand) int {
	var ids []event.ID
	if len(list) > 1 {
		for _, e := range list {
			ids = append(ids, e.ID)
		}
	}
	posted := len(list) > 1 && r.IntN(2) == 0
	var over time.Time
	for ; ; hub++ {
		hub %= len(hubs)
		op := w.ops.Add(1)
		for _, e := range list {
			var b body
			_ = json.Unmarshal(e.Payload, &b) // just made
			w.j.add(entry{Do: doPublish, Hub: hub, Topic: w.Topic, ID: e.ID, Key: e.Key, N: b.N, Batch: ids, Op: op})
		}
		got, err := w.send(hubs[hub], list, posted)
		if err == nil {
			for _, a := range got {
				w.j.add(entry{Do: doStored, Hub: hub, Topic: w.Topic, ID: a.ID, Seq: a.Seq, Dup: a.Duplicate, Op: op})
			}
			return hub
		}
		do := doUnknown
		if code := client.CodeOf(err); code != "" && !client.Temporary(err) {
			do = doRefused
		}
		for _, e := range list {
			w.j.add(entry{Do: do, Hub: hub, Topic: w.Topic, ID: e.ID, Code: client.CodeOf(err), Err: err.Error(), Op: op})
		}
		if do == doRefused {
			return hub
		}
		if ctx.Err() != nil {
			if over.IsZero() {
				over = time.Now().Add(finishWait)
			}
			if time.Now().After(over) {
				return hub
			}
		}
		pause(context.Background(), 20*time.Millisecond)
	}
}

// send is one try. The worker's end does not cut it short.
func (w *worker) send(c *client.Client, list []event.Event, posted bool) ([]client.Stored, error) {
	ctx, cancel := context.WithTimeout(context.Background(), publishWait)
	defer cancel()
	if posted {
		return c.PostBatch(ctx, list)
	}
	var got []client.Receipt
	var err error
	if len(list) == 1 {
		var one client.Receipt
		one, err = c.Publish(ctx, list[0].Topic, list[0].Payload, client.ID(list[0].ID), client.Key(list[0].Key))
		got = []client.Receipt{one}
	} else {
		got, err = c.PublishEvents(ctx, list)
	}
	if err != nil {
		return nil, err
	}
	var stored []client.Stored
	for _, a := range got {
		stored = append(stored, client.Stored{ID: a.ID, Seq: a.Seq, Topic: a.Topic, Duplicate: a.Duplicate})
	}
	return stored, nil
}
