package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean"
	"promethean/changefeed"
	"promethean/deadletter"
	"promethean/event"
	"promethean/examples/process"
	"promethean/group"
	"promethean/schema"
)

const (
	processes = 6  // of the host dev
	beats     = 10 // of each, by an old and by a new writer
	stranger  = "lab"
)

// document is what the collection has of a process.
type document struct {
	ID     string  `bson:"_id,omitempty" json:"_id"`
	PID    int64   `bson:"pid" json:"pid"`
	Name   string  `bson:"name" json:"name"`
	Host   string  `bson:"host" json:"host"`
	CPUPct float64 `bson:"cpu_pct" json:"cpu_pct"`
	MemMiB float64 `bson:"mem_mib" json:"mem_mib"`
	// SeenTS is the time of the last heartbeat in epoch milliseconds.
	SeenTS int64 `bson:"last_seen_ts" json:"last_seen_ts"`
}

// put stores a document. Doing it again changes nothing.
func (x *example) put(ctx context.Context, d document) error {
	id := d.ID
	d.ID = "" // it never changes
	if _, err := x.processes.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: d}}, options.UpdateOne().SetUpsert(true)); err != nil {
		return fmt.Errorf("store process %s: %w", id, err)
	}
	return nil
}

// early stores a document before the feed begins: it is mirrored all the same.
func (x *example) early(ctx context.Context) error {
	return x.put(ctx, document{ID: earlyID, PID: 1, Name: "init", Host: "dev", SeenTS: time.Now().UnixMilli()})
}

const earlyID = "dev:init:1"

// withID is the payload of the mirror: the document with its key as id, unless
// it has a field of that name itself.
func withID(c *changefeed.Change) (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(c.Doc, &fields); err != nil {
		return nil, err
	}
	if _, has := fields["id"]; has {
		return c.Doc, nil
	}
	id, err := json.Marshal(c.Key)
	if err != nil {
		return nil, err
	}
	_, rest, _ := bytes.Cut(c.Doc, []byte("{")) // it has an _id at least
	return append(append([]byte(`{"id":`), id...), append([]byte(","), rest...)...), nil
}

// watch hears what the mirror says, and of dead letters.
func (x *example) watch(ctx context.Context) error {
	for name, h := range map[string]promethean.Handler{
		mirror: func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
			x.board.note(func() error {
				if x.board.mirror[e.Key] = e.Payload; x.board.told != nil {
					x.board.told(change{e.Key, e.Payload})
				}
				return nil
			})
			return nil
		},
		group.LetterTopic(topic): promethean.Handle(func(_ context.Context, l group.Letter, _ event.Event, _ *promethean.Delivery) error {
			x.board.note(func() error {
				x.board.letters[l.Original.ID] = l
				return nil
			})
			return nil
		}),
	} {
		sub, err := x.hub.Subscribe(ctx, name, "wired-watch", h, promethean.FromEarliest())
		if err != nil {
			return err
		}
		x.closing(sub.Stop)
	}
	return nil
}

// consume has the group store what heartbeats say. It knows version 2 only.
func (x *example) consume(ctx context.Context) error {
	x.board.meet("dev")
	sub, err := schema.SubscribeNormalised(ctx, x.bus, x.reg, topic, consumers, promethean.Handle(x.handle),
		promethean.FromEarliest(), promethean.MaxAttempts(maxAttempts))
	if err != nil {
		return err
	}
	x.closing(sub.Stop)
	x.say("3. the group %s is handed version 2 only, and stores processes", consumers)
	return nil
}

// handle takes one heartbeat.
func (x *example) handle(ctx context.Context, b heartbeat, e event.Event, _ *promethean.Delivery) error {
	if err := wantV2(&e); err != nil {
		x.board.note(func() error { return err })
	}
	if !x.board.knows(b.Host) {
		return promethean.Retry(10*time.Millisecond, fmt.Errorf("host %q is not known", b.Host))
	}
	if err := x.put(ctx, document{ID: e.Key, PID: b.PID, Name: b.Name, Host: b.Host, CPUPct: b.CPUPct, MemMiB: b.MemMiB, SeenTS: e.TS}); err != nil {
		return err
	}
	x.board.note(func() error {
		x.board.handled[e.ID]++
		return nil
	})
	return nil
}

// beat publishes as an old and as a new writer at once.
func (x *example) beat(ctx context.Context) error {
	wrong := event.New(topic, []byte(`{"pid":1,"name":"stt","host":"dev","cpu_pct":1,"mem_mb":1}`))
	if _, err := x.bus.Publish(ctx, wrong); !errors.Is(err, schema.ErrInvalid) {
		return fmt.Errorf("an old payload without a stamp was taken for a new one: %w", err)
	}
	var all sync.WaitGroup
	var ids [2][]event.ID
	var failed [2]error
	for i, version := range []int{1, 2} {
		all.Go(func() {
			for n := range beats {
				for pid := range processes {
					got, err := x.publish(ctx, version, process.Heartbeat{PID: int64(pid), Name: "stt", Host: "dev", CPUPct: float64(n), MemMB: float64(100*version + n)})
					if err != nil {
						failed[i] = err
						return
					}
					ids[i] = append(ids[i], got.ID)
				}
			}
		})
	}
	all.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		return err
	}
	if err := x.board.wait(ctx, x.stuck, func() (bool, error) { return x.board.has(slices.Concat(ids[:]...)...) }); err != nil {
		return err
	}
	x.say("4. an old and a new writer published %d heartbeats each, and all are handled", beats*processes)
	return nil
}

// stuck says why there is nothing more to wait for: the feed cannot go on.
func (x *example) stuck() error {
	if s := x.changes.Status(); s.State == changefeed.Failed || s.State == changefeed.Gone {
		return fmt.Errorf("change feed of %s: %s: %s", collection, s.State, s.Error)
	}
	return nil
}

// mend has a heartbeat fail until it is a dead letter, and replays it once its
// cause is mended.
func (x *example) mend(ctx context.Context) error {
	got, err := x.publish(ctx, 1, process.Heartbeat{PID: 1, Name: "stt", Host: stranger, CPUPct: 1, MemMB: 64})
	if err != nil {
		return err
	}
	var letter group.Letter
	if err := x.board.wait(ctx, x.stuck, func() (dead bool, _ error) {
		letter, dead = x.board.letters[got.ID]
		return dead, nil
	}); err != nil {
		return err
	}
	version, _ := letter.Original.Headers.Get(schema.VersionHeader)
	if letter.Group != consumers || letter.Attempts != maxAttempts || version != "1" {
		return fmt.Errorf("dead letter of %s after %d attempts, of version %q: %s", letter.Group, letter.Attempts, version, letter.Original.Payload)
	}
	x.say("5. a heartbeat is a dead letter after %d attempts, as it was stored: %s", letter.Attempts, letter.Err)
	x.board.meet(stranger)
	report, err := deadletter.Replay(ctx, x.hub, topic, deadletter.Options{Group: consumers, IDs: []event.ID{got.ID}, To: deadletter.ToGroup})
	if err != nil {
		return err
	}
	if report.Replayed != 1 || report.Remaining != 0 {
		return fmt.Errorf("%d dead letters are replayed and %d remain, not 1 and 0", report.Replayed, report.Remaining)
	}
	if err := x.board.wait(ctx, x.stuck, func() (bool, error) { return x.board.handled[got.ID] > 0, nil }); err != nil {
		return err
	}
	x.say("   the host is known now, and the heartbeat replayed")
	return nil
}

// removed is the process that goes away.
const removed = "dev:stt:0"

// remove removes a document, as somebody does who knows nothing of topics.
func (x *example) remove(ctx context.Context) error {
	got, err := x.processes.DeleteOne(ctx, bson.D{{Key: "_id", Value: removed}})
	if err != nil {
		return fmt.Errorf("remove process %s: %w", removed, err)
	}
	if got.DeletedCount != 1 {
		return fmt.Errorf("process %s is not there to be removed", removed)
	}
	return nil
}

// judge compares heartbeats, documents and mirror.
func (x *example) judge(ctx context.Context) error {
	said, err := x.twice(ctx)
	if err != nil {
		return err
	}
	want := make(map[string]document)
	for key, b := range said {
		want[key] = document{ID: key, PID: b.PID, Name: b.Name, Host: b.Host, CPUPct: b.CPUPct, MemMiB: b.MemMiB}
	}
	delete(want, removed)
	want[earlyID] = document{ID: earlyID, PID: 1, Name: "init", Host: "dev"}
	for key, d := range want {
		var is document
		if err := x.processes.FindOne(ctx, bson.D{{Key: "_id", Value: key}}).Decode(&is); err != nil {
			return fmt.Errorf("process %s: %w", key, err)
		}
		d.SeenTS = is.SeenTS
		if is != d {
			return fmt.Errorf("the collection has %+v of a process that is %+v", is, d)
		}
		want[key] = is
	}
	var why error
	err = x.board.wait(ctx, x.stuck, func() (bool, error) {
		why = mirrored(want, x.board.mirror)
		return why == nil, nil
	})
	if err != nil {
		return errors.Join(err, why)
	}
	x.say("7. %s has what the collection has of %d processes, and a tombstone of the one that was removed", mirror, len(want))
	return nil
}

// mirrored says what is wrong with a mirror: it has these documents, and a
// tombstone of the one that was removed. Others it may have.
func mirrored(want map[string]document, mirror map[string]json.RawMessage) error {
	for key, d := range want {
		var got struct {
			document
			Key string `json:"id"`
		}
		if err := json.Unmarshal(mirror[key], &got); err != nil {
			return fmt.Errorf("process %s is not in the mirror yet", key)
		}
		if got.document != d || got.Key != key {
			return fmt.Errorf("the mirror has %s of process %s, not %+v", mirror[key], key, d)
		}
	}
	if p := mirror[removed]; string(p) != "null" {
		return fmt.Errorf("the mirror has %s of process %s, which is removed", p, removed)
	}
	return nil
}
