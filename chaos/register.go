package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"promethean/client"
	"promethean/event"
)

// rivals is how many parts of a register worker publish against each other.
const rivals = 4

// register publishes with a condition on the last seq of its topic, from several
// parts at once, through all hubs. What is not answered in time is left as it is.
func (w *worker) register(ctx context.Context) error {
	hubs, err := w.dialAll()
	if err != nil {
		return err
	}
	defer leave(hubs...)
	var all sync.WaitGroup
	for part := range rivals {
		all.Go(func() {
			r := w.chance(part)
			var last uint64 // as far as this part knows
			for n := 0; pause(ctx, time.Duration(50+r.IntN(400))*time.Millisecond); n++ {
				hub := r.IntN(len(hubs))
				if r.IntN(4) == 0 {
					if seq, ok := w.readLast(hubs[hub], hub); ok {
						last = seq
					}
					continue
				}
				last = w.swap(hubs[hub], hub, last, body{Who: fmt.Sprintf("%s-%d", w.Name, part), N: n})
			}
		})
	}
	all.Wait()
	return nil
}

// swap publishes if last is the last seq, and gives what is the last seq then.
func (w *worker) swap(c *client.Client, hub int, last uint64, b body) uint64 {
	payload, _ := json.Marshal(b) // plain fields
	id, op := event.NewID(), w.ops.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), publishWait)
	defer cancel()
	w.j.add(entry{Do: doPublish, Hub: hub, Topic: w.Topic, ID: id, Key: b.Who, N: b.N, Expect: &last, Op: op})
	got, err := c.Publish(ctx, w.Topic, json.RawMessage(payload), client.ID(id), client.Key(b.Who), client.ExpectSeq(last))
	switch {
	case err == nil:
		w.j.add(entry{Do: doStored, Hub: hub, Topic: w.Topic, ID: id, Seq: got.Seq, Dup: got.Duplicate, Expect: &last, Op: op})
		return got.Seq
	case client.CodeOf(err) != "" && !client.Temporary(err):
		w.j.add(entry{Do: doRefused, Hub: hub, Topic: w.Topic, ID: id, Expect: &last, Code: client.CodeOf(err), Err: err.Error(), Op: op})
	default:
		w.j.add(entry{Do: doUnknown, Hub: hub, Topic: w.Topic, ID: id, Expect: &last, Code: client.CodeOf(err), Err: err.Error(), Op: op})
	}
	if seq, ok := w.readLast(c, hub); ok {
		return seq
	}
	return last
}

// readLast asks a hub for the last seq.
func (w *worker) readLast(c *client.Client, hub int) (uint64, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), publishWait)
	defer cancel()
	op := w.ops.Add(1)
	began := time.Now().UnixNano()
	seq, err := c.Locate(ctx, w.Topic, client.Place{From: client.Latest})
	if err != nil {
		return 0, false
	}
	w.j.add(entry{Do: doLast, Hub: hub, Topic: w.Topic, Seq: seq, Op: op, Out: began})
	return seq, true
}
