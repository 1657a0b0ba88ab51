package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"promethean/event"
	"promethean/store"
)

var concurrentCases = []Case{
	{Name: "concurrent/nothing appears behind a reader", run: nothingBehindReader},
	{Name: "concurrent/batches stay whole", run: batchesStayWhole},
}

// crowd is appenders and readers at work on the same topics, and what they saw.
type crowd struct {
	t      *trial
	topics []string
	done   chan struct{} // closed when all appenders are through

	mu      sync.Mutex
	stored  map[string]map[event.ID]uint64 // topic, id → acknowledged seq
	windows []window
}

// mostWindows is how many glances are kept for the comparison in the end.
const mostWindows = 2000

// window is one run of consecutive events that some read gave.
type window struct {
	topic string
	seqs  []uint64 // ascending
}

// nothingBehindReader is the promise that every cursor rests on: a reader that
// has seen seq n never misses a smaller one. Appenders of all kinds work on a
// few topics while readers follow them, look at the end, and ask for bounds.
// All that was seen must agree with the log as it stands in the end.
func nothingBehindReader(t *trial) {
	const appenders, batches = 8, 60
	c := &crowd{t: t, topics: []string{topicA, topicB, topicC}, done: make(chan struct{}), stored: make(map[string]map[event.ID]uint64)}
	for _, topic := range c.topics {
		c.stored[topic] = make(map[event.ID]uint64)
	}
	var writers, readers sync.WaitGroup
	for _, topic := range c.topics {
		readers.Go(func() { c.follow(topic) })
		readers.Go(func() { c.glance(topic) })
	}
	for a := range appenders {
		writers.Go(func() { c.publish(a, batches) })
	}
	writers.Wait()
	close(c.done)
	readers.Wait()
	if t.Failed() {
		return
	}
	t.reopens(func(string) {
		for _, topic := range c.topics {
			c.judge(topic)
		}
	})
}

// publish appends singles, batches, async ones and retries. Its events carry
// its number and a count in SID, so that their order can be told.
func (c *crowd) publish(a, batches int) {
	t, n := c.t, 0
	next := func(topic string) event.Event {
		e := note(topic, n)
		e.SID = fmt.Sprintf("%d:%06d", a, n)
		n++
		return e
	}
	for i := range batches {
		topic := c.topics[(a+i)%len(c.topics)]
		b := store.Batch{Events: []event.Event{next(topic)}, Async: i%7 == 6}
		for range i % 4 {
			if i%3 == 0 && t.spans() {
				topic = c.topics[n%len(c.topics)]
			}
			b.Events = append(b.Events, next(topic))
		}
		got, err := t.e.Append(t.ctx, b)
		if err == nil {
			err = answersFit(b, got)
		}
		if err != nil {
			t.Errorf("append: %v", err)
			return
		}
		if i%5 == 4 {
			again, err := t.e.Append(t.ctx, store.Batch{Events: b.Events})
			if err != nil {
				t.Errorf("append again: %v", err)
				return
			}
			for j := range again {
				if !again[j].Duplicate || again[j].Seq != got[j].Seq {
					t.Errorf("append again: seq %d, duplicate %v; want %d, true", again[j].Seq, again[j].Duplicate, got[j].Seq)
				}
			}
		}
		c.mu.Lock()
		for j, e := range b.Events {
			c.stored[e.Topic][e.ID] = got[j].Seq
		}
		c.mu.Unlock()
	}
}

func (c *crowd) saw(topic string, events []event.Event) {
	w := window{topic: topic}
	for i := range events {
		w.seqs = append(w.seqs, events[i].Seq)
	}
	if len(w.seqs) > 1 && w.seqs[0] > w.seqs[1] {
		slices.Reverse(w.seqs)
	}
	c.mu.Lock()
	c.windows = append(c.windows, w)
	c.mu.Unlock()
}

// follow is a consumer: it is woken, reads on from where it was, and never
// looks back.
func (c *crowd) follow(topic string) {
	t := c.t
	w := t.e.Watch(topic)
	defer w.Stop()
	var seen []event.Event
	defer func() { c.saw(topic, seen) }()
	for last, ended := uint64(0), false; !ended; {
		select {
		case <-w.C:
		case <-c.done:
			ended = true // one more look
		}
		more, err := readAll(t.ctx, t.e, store.Query{Topic: topic, After: last})
		if err != nil {
			t.Errorf("read: %v", err)
			return
		}
		for _, e := range more {
			if e.Seq <= last {
				t.Errorf("topic %s: seq %d comes after %d", topic, e.Seq, last)
				return
			}
			last = e.Seq
		}
		seen = append(seen, more...)
	}
}

// glance asks for the end of a topic over and over, in ways that must agree.
// It does not wait to be woken: a moment at which something is wrong may be
// short.
func (c *crowd) glance(topic string) {
	t := c.t
	highest := uint64(0)
	for n, ended := 0, false; !ended; n++ {
		select {
		case <-c.done:
			ended = true // one more look, at a log that is at rest
		default:
			runtime.Gosched()
		}
		b, err := t.e.Bounds(t.ctx, topic)
		if err != nil {
			t.Errorf("bounds: %v", err)
			return
		}
		if b.Last < highest {
			t.Errorf("topic %s: the last seq went from %d back to %d", topic, highest, b.Last)
			return
		}
		tail, err := readAll(t.ctx, t.e, store.Query{Topic: topic, Reverse: true, Limit: 20})
		if err != nil {
			t.Errorf("read: %v", err)
			return
		}
		if b.Last > 0 && (len(tail) == 0 || tail[0].Seq < b.Last) {
			t.Errorf("topic %s: bounds say %d, and a later read ends with %d events below it", topic, b.Last, len(tail))
			return
		}
		highest = b.Last
		if len(tail) > 0 {
			highest = tail[0].Seq
			if seq, err := t.e.LocateID(t.ctx, topic, tail[0].ID); err != nil || seq != tail[0].Seq {
				t.Errorf("topic %s: seq %d was read, and its id is located at %d, %v", topic, tail[0].Seq, seq, err)
				return
			}
		}
		upTo, err := readAll(t.ctx, t.e, store.Query{Topic: topic, After: max(b.Last, 30) - 30, Until: b.Last})
		if err != nil {
			t.Errorf("read: %v", err)
			return
		}
		if n < mostWindows { // enough is enough
			c.saw(topic, tail)
			c.saw(topic, upTo)
		}
	}
}

// judge compares everything that was seen with the log as it is now.
func (c *crowd) judge(topic string) {
	t := c.t
	log := t.read(store.Query{Topic: topic})
	place := make(map[uint64]int)
	count := make(map[string]string) // appender → its last SID
	acknowledged := c.stored[topic]
	for i, e := range log {
		place[e.Seq] = i
		if seq, ok := acknowledged[e.ID]; !ok || seq != e.Seq {
			t.Fatalf("topic %s: seq %d holds an event that was acknowledged as %d", topic, e.Seq, seq)
		}
		if who := e.SID[:len(e.SID)-6]; count[who] >= e.SID {
			t.Fatalf("topic %s: seq %d, %s, comes after %s of the same appender", topic, e.Seq, e.SID, count[who])
		} else {
			count[who] = e.SID
		}
	}
	if len(log) != len(acknowledged) {
		t.Fatalf("topic %s: %d events were acknowledged, %d are there", topic, len(acknowledged), len(log))
	}
	for _, w := range c.windows {
		if w.topic != topic || len(w.seqs) == 0 {
			continue
		}
		from, ok := place[w.seqs[0]]
		if !ok {
			t.Fatalf("topic %s: seq %d was read and is gone", topic, w.seqs[0])
		}
		for i, seq := range w.seqs {
			if from+i >= len(log) || log[from+i].Seq != seq {
				t.Fatalf("topic %s: a reader went from seq %d to %d, and now there is one between them", topic, w.seqs[max(i, 1)-1], seq)
			}
		}
	}
}

// batchesStayWhole looks for halves: a reader must see all events that one
// batch put into a topic, or none; so must everyone after appenders were
// cancelled in the middle of their calls.
func batchesStayWhole(t *trial) {
	const appenders, batches, size = 6, 30, 9
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	var writers, readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for ended := false; !ended; {
				select {
				case <-done:
					ended = true
				default:
					runtime.Gosched()
				}
				// From the end, where a half would stand.
				tail, err := readAll(t.ctx, t.e, store.Query{Topic: topicA, Reverse: true, Limit: 3 * size})
				if err == nil {
					slices.Reverse(tail)
					err = wholeBatches(tail, size)
				}
				if err != nil {
					t.Errorf("while appending: %v", err)
					return
				}
			}
		})
	}
	for a := range appenders {
		writers.Go(func() {
			for n := range batches {
				events := notes(topicA, size)
				for i := range events {
					events[i].SID = fmt.Sprintf("%d:%d", a, n)
				}
				if a == 0 && n == batches/2 {
					cancel() // catches the others wherever they are
				}
				_, err := t.e.Append(ctx, store.Batch{Events: events})
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("append: %v", err)
				}
				if err != nil {
					return
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	t.reopens(func(when string) {
		if err := wholeBatches(t.read(store.Query{Topic: topicA}), size); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	})
}

// wholeBatches checks that events, which end where a log ends, are made of
// runs of size events with the same SID.
func wholeBatches(events []event.Event, size int) error {
	if len(events)%size != 0 {
		return fmt.Errorf("%d events of batches of %d", len(events), size)
	}
	for run := range slices.Chunk(events, size) {
		for i := range run {
			if run[i].SID != run[0].SID {
				return fmt.Errorf("a batch is torn: seq %d is of %s, seq %d of %s", run[0].Seq, run[0].SID, run[i].Seq, run[i].SID)
			}
		}
	}
	return nil
}
