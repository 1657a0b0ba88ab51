package gateway

import (
	"errors"
	"slices"

	"promethean"
	"promethean/event"
	"promethean/gateway/auth"
	"promethean/gateway/internal/frame"
	"promethean/group"
	"promethean/store"
	"promethean/wire"
)

// gather is what frames that came together ask for, to be done in one step.
// Correlations and payloads lie in the memory that was read into: it has to be
// done before anything else is waited for.
type gather struct {
	events []event.Event
	corrs  [][]byte // one for each event

	topic, group string // of the acks
	ids          []group.Selected
	acks         []ackFrame
}

// ackFrame is one ACK among those that were gathered: those of ids from where
// the one before ends.
type ackFrame struct {
	corr []byte
	end  int
	many bool
}

// Bounds of what is gathered.
const (
	maxGather = 1024
	keepSpace = 64 // of what was gathered once; more is not kept for the next
)

// publish serves PUBLISH. A single event waits for others that came with it.
func (c *connection) publish(f *frame.Frame, size int) error {
	for i := range f.Events {
		e := &f.Events[i]
		err := event.CheckTopic(e.Topic)
		if err == nil {
			err = c.allow(auth.Publish, e.Topic)
		}
		if err != nil && f.Batch {
			return &store.EventError{Index: i, Err: err}
		}
		if err != nil {
			return err
		}
	}
	g := &c.gather
	if !f.Batch && !f.HasExpect {
		if e := &f.Events[0]; e.ID.IsZero() {
			e.ID = event.NewID() // it stays the same if the event is sent again below
		}
		g.events = append(g.events, f.Events[0])
		g.corrs = append(g.corrs, f.Corr)
		if len(g.events) == maxGather {
			c.finishGathered()
		}
		return nil
	}
	c.finishGathered()
	if size > maxBatchBytes && f.Batch {
		return wire.Errorf(wire.BatchTooLarge, "the batch has %d bytes, the limit is %d", size, maxBatchBytes)
	}
	var expect []store.Expect
	if f.HasExpect {
		expect = []store.Expect{{Topic: f.Topic, Seq: f.Expect}}
	}
	got, err := c.g.publish(c.ctx, expect, f.Events)
	if err != nil {
		if !f.Batch {
			err = alone(err)
		}
		c.ws.End(c.appendRefusal(c.ws.Begin(), f.Corr, err, wire.PublishFailed, f.Batch))
	} else {
		b := frame.AppendOK(c.ws.Begin(), f.Corr)
		if f.Batch {
			b = appendPlaces(b, got)
		} else {
			b = frame.AppendPlace(b, got[0].ID, got[0].Seq, got[0].Duplicate)
		}
		c.ws.End(append(b, '}'))
	}
	if cap(f.Events) > keepSpace {
		f.Events = nil
	}
	return nil
}

// appendPlaces says where the events of a batch are.
func appendPlaces(b []byte, got []promethean.Receipt) []byte {
	for i := range got {
		b = append(b, [2]string{`,"ids":[`, ","}[min(i, 1)]...)
		b = frame.AppendID(b, got[i].ID)
	}
	for i := range got {
		b = append(b, [2]string{`],"seqs":[`, ","}[min(i, 1)]...)
		b = frame.AppendUint(b, got[i].Seq)
	}
	first := true
	for i := range got {
		if got[i].Duplicate {
			b = append(b, [2]string{",", `],"duplicates":[`}[truth(first)]...)
			b = frame.AppendUint(b, uint64(i))
			first = false
		}
	}
	return append(b, ']')
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// finishGathered does what was gathered: events first, so that who publishes
// what came of an event and then acks it loses nothing.
func (c *connection) finishGathered() {
	g := &c.gather
	if len(g.events) > 0 {
		c.publishGathered(g.events, g.corrs)
		clear(g.events)
		clear(g.corrs)
		if g.events, g.corrs = g.events[:0], g.corrs[:0]; cap(g.events) > keepSpace {
			g.events, g.corrs = nil, nil
		}
	}
	c.finishAcks()
}

// publishGathered publishes events of frames of their own. They go as one
// where that is possible; if that is refused because of one of them, each goes
// alone, in order.
func (c *connection) publishGathered(events []event.Event, corrs [][]byte) {
	if len(events) > 1 && !c.g.across {
		if n := slices.IndexFunc(events, func(e event.Event) bool { return e.Topic != events[0].Topic }); n > 0 {
			c.publishGathered(events[:n], corrs[:n])
			c.publishGathered(events[n:], corrs[n:])
			return
		}
	}
	got, err := c.g.publish(c.ctx, nil, events)
	if err != nil && len(events) > 1 && isOfOne(err) {
		for i := range events {
			c.publishGathered(events[i:i+1], corrs[i:i+1])
		}
		return
	}
	for i := range events {
		if err != nil {
			c.refuse(corrs[i], alone(err), wire.PublishFailed)
			continue
		}
		r := &got[i]
		b := frame.AppendOK(c.ws.Begin(), corrs[i])
		c.ws.End(append(frame.AppendPlace(b, r.ID, r.Seq, r.Duplicate), '}'))
	}
}

// isOfOne says whether an error of several events may be because of one of
// them, so that the others can succeed.
func isOfOne(err error) bool {
	var row *store.EventError
	code := codeOf(err)
	return errors.As(err, &row) || code == wire.RateLimited || code == wire.BatchTooLarge || code == wire.NotFound
}

// ack serves ACK, together with others for the same group.
func (c *connection) ack(f *frame.Frame) error {
	if err := c.mayConsume(f.Topic, f.Group); err != nil {
		return err
	}
	g := &c.gather
	if len(g.acks) > 0 && (g.topic != f.Topic || g.group != f.Group || len(g.ids)+len(f.IDs) > 2*wire.MaxBatch) {
		c.finishAcks()
	}
	g.topic, g.group = f.Topic, f.Group
	g.ids = append(g.ids, f.IDs...)
	g.acks = append(g.acks, ackFrame{f.Corr, len(g.ids), f.Many})
	if cap(f.IDs) > keepSpace {
		f.IDs = nil
	}
	return nil
}

// finishAcks settles what was acked, and answers when that is durable.
func (c *connection) finishAcks() {
	g := &c.gather
	if len(g.acks) == 0 {
		return
	}
	results, err := c.settle(&settlement{op: wire.OpAck, topic: g.topic, group: g.group, ids: g.ids})
	if err != nil {
		err = c.unknownGroup(g.topic, g.group, err)
	}
	from := 0
	for _, a := range g.acks {
		if err != nil {
			c.refuse(a.corr, err, wire.AckFailed)
		} else {
			c.answerResults(a.corr, results[from:a.end], a.many)
		}
		from = a.end
	}
	clear(g.acks)
	if g.ids, g.acks = g.ids[:0], g.acks[:0]; cap(g.ids) > keepSpace || cap(g.acks) > keepSpace {
		g.ids, g.acks = nil, nil
	}
}

// change serves NACK and MODACK.
func (c *connection) change(f *frame.Frame) error {
	if err := c.mayConsume(f.Topic, f.Group); err != nil {
		return err
	}
	results, err := c.settle(&settlement{op: f.Op, topic: f.Topic, group: f.Group, ids: f.IDs, nack: f.Nack, extend: f.Extend})
	if err != nil {
		c.refuse(f.Corr, c.unknownGroup(f.Topic, f.Group, err), wire.AckFailed)
		return nil
	}
	c.answerResults(f.Corr, results, f.Many)
	return nil
}

// mayConsume checks names and access of what is about a group.
func (c *connection) mayConsume(topic, group string) error {
	if err := checkName(topic, group); err != nil {
		return err
	}
	return c.allow(auth.Subscribe, topic)
}

// unknownGroup says of a group that does not exist what the client did wrong.
func (c *connection) unknownGroup(topic, name string, err error) error {
	if errors.Is(err, group.ErrNotFound) {
		return wire.Errorf(wire.NotSubscribed, "nobody has subscribed to topic %s as group %s", topic, clip(name))
	}
	return err
}

// answerResults says what became of ids: of each, or of the only one.
func (c *connection) answerResults(corr []byte, list []group.Result, many bool) {
	if !many && list[0].Err != nil {
		c.refuse(corr, list[0].Err, wire.AckFailed)
		return
	}
	b := frame.AppendOK(c.ws.Begin(), corr)
	if many {
		b = frame.AppendResults(b, list, codeOf)
	}
	c.ws.End(append(b, '}'))
}
