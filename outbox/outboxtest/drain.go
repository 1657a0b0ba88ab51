package outboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"promethean/event"
	"promethean/outbox"
	"promethean/store"
)

var drainCases = []Case{
	{"drain/a drainer publishes all, in order", func(x *trial) {
		log := &Log{}
		x.addKeyed(50, "a", "b", "c", "")
		d := x.drainer(x.Store, log, outbox.Options{Batch: 30})
		x.until(func() bool { return log.Len() == 200 })
		x.check(d.Close())
		log.Check(x, "orders.placed", 50, "a", "b", "c")
		x.wantStats(outbox.Stats{})
		if s := d.Status(); s.SentTotal != 200 || s.RefusedTotal != 0 || s.Outage != "" {
			x.Errorf("status %+v", s)
		}
	}},
	{"drain/a refused row waits visibly, others go on", func(x *trial) {
		log := &Log{}
		log.Refuse(func(e *event.Event) error {
			if e.Key == "a" && string(e.Payload) == "2" {
				return errors.New("schema invalid: payload: too small")
			}
			return nil
		})
		x.addKeyed(3, "a", "b")
		d := x.drainer(x.Store, log, outbox.Options{MinBackoff: time.Hour, MaxBackoff: time.Hour})
		x.until(func() bool { return log.Len() >= 4 && d.Status().RefusedTotal == 1 })
		x.add(row("orders.placed", "a", 4), row("orders.placed", "b", 4))
		x.until(func() bool { return log.Len() >= 5 }) // it has claimed once more
		x.check(d.Close())
		list, err := x.Store.Errors(x.ctx, 10)
		x.check(err)
		if len(list) != 1 || list[0].Key != "a" || list[0].Attempts != 1 {
			x.Fatalf("errors %+v", list)
		}
		x.wantStats(outbox.Stats{Pending: 3, Refused: 1})
		log.Refuse(nil)
		x.wantCount("retry", 1)(x.Store.Retry(x.ctx))
		d = x.drainer(x.Store, log, outbox.Options{})
		x.until(func() bool { return log.Len() == 8 })
		x.check(d.Close())
		log.Check(x, "orders.placed", 4, "a", "b")
	}},
	{"drain/an outage is no attempt", func(x *trial) {
		log := &Log{}
		log.Refuse(func(*event.Event) error { return store.ErrUnavailable })
		x.addKeyed(2, "a", "b")
		d := x.drainer(x.Store, log, outbox.Options{Every: 5 * time.Millisecond})
		x.until(func() bool { return d.Status().Outage != "" && log.Tries() > 2 })
		log.Refuse(nil)
		x.until(func() bool { return log.Len() == 4 })
		x.check(d.Close())
		log.Check(x, "orders.placed", 2, "a", "b")
		if s := d.Status(); s.RefusedTotal != 0 {
			x.Errorf("status %+v", s)
		}
	}},
	{"drain/several drainers, two of one name, while rows come", func(x *trial) {
		log := &Log{}
		var drainers []*outbox.Drainer
		for i := range 3 {
			drainers = append(drainers, x.drainer(x.Again(x), log, outbox.Options{Name: fmt.Sprint("d", i/2), Batch: 3 + i, Every: 2 * time.Millisecond}))
		}
		x.addKeyed(30, "a", "b", "c", "")
		x.until(func() bool { return log.Len() == 120 })
		for _, d := range drainers {
			x.check(d.Close())
		}
		log.Check(x, "orders.placed", 30, "a", "b", "c")
		x.wantStats(outbox.Stats{})
	}},
	{"drain/drainers that die anywhere repeat nothing and lose nothing", drainCrashes},
}

// drainer runs a drainer until the case ends or somebody closes it.
func (x *trial) drainer(s outbox.Store, p outbox.Publisher, o outbox.Options) *outbox.Drainer {
	x.Helper()
	d, err := outbox.New(s, p, o)
	x.check(err)
	var done sync.WaitGroup
	done.Go(func() { _ = d.Run(x.ctx) })
	x.Cleanup(func() {
		_ = d.Close()
		done.Wait()
	})
	return d
}

// until waits for a condition.
func (x *trial) until(ok func() bool) {
	x.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-x.ctx.Done():
			s, err := x.Store.Stats(context.Background())
			x.Fatalf("it never came to that: %+v, %v", s, err)
		}
	}
}

// drainCrashes runs drainers whose store dies before or after a call, as if they
// had been killed there, while rows are added, some in transactions that are
// rolled back.
func drainCrashes(x *trial) {
	const rounds, each = 12, 10
	log := &Log{}
	keys := []string{"a", "b"}
	for round := range rounds {
		s := &mortal{Store: x.Again(x), left: rand.IntN(9)}
		d, err := outbox.New(s, log, outbox.Options{Name: "mortal", Batch: 1 + rand.IntN(12), Every: time.Millisecond, Keep: -1})
		x.check(err)
		ctx, kill := context.WithCancel(x.ctx)
		s.die = kill
		var running sync.WaitGroup
		running.Go(func() { _ = d.Run(ctx) })
		for i := range each {
			if x.NoTransactions == "" && i%3 == 1 {
				tx := x.begin()
				x.check(tx.Add(x.ctx, row("orders.placed", "a", -1), row("orders.placed", "", -1)))
				x.check(tx.Rollback(x.ctx))
			}
			var rows []outbox.Row
			for _, key := range keys {
				rows = append(rows, row("orders.placed", key, round*each+i+1))
			}
			x.add(rows...)
		}
		<-ctx.Done()
		running.Wait()
		x.Advance(x, time.Minute) // the lease of what it had is over
	}
	d := x.drainer(x.Store, log, outbox.Options{Batch: 20, Every: time.Millisecond})
	x.until(func() bool { return log.Len() == rounds*each*len(keys) })
	x.check(d.Close())
	log.Check(x, "orders.placed", rounds*each, keys...)
	x.wantStats(outbox.Stats{})
}

// mortal is a store whose process dies after some calls that change something:
// before the call reaches the database, or after.
type mortal struct {
	outbox.Store
	left int
	die  context.CancelFunc
	dead atomic.Bool
}

var errDead = errors.New("the process was killed")

func (m *mortal) step(call func() error) error {
	if m.dead.Load() {
		return errDead
	}
	if m.left--; m.left >= 0 {
		return call()
	}
	if rand.IntN(2) == 0 {
		_ = call()
	}
	m.dead.Store(true)
	m.die()
	return errDead
}

func (m *mortal) ClaimBatch(ctx context.Context, owner string, n int, lease time.Duration) (rows []outbox.Row, err error) {
	err = m.step(func() error {
		rows, err = m.Store.ClaimBatch(ctx, owner, n, lease)
		return err
	})
	return rows, err
}

func (m *mortal) MarkSent(ctx context.Context, ids ...event.ID) error {
	return m.step(func() error { return m.Store.MarkSent(ctx, ids...) })
}

func (m *mortal) Release(ctx context.Context, owner string, ids ...event.ID) error {
	return m.step(func() error { return m.Store.Release(ctx, owner, ids...) })
}

// Log is a log in memory that knows ids, as a hub does. It is an
// [outbox.Publisher].
type Log struct {
	mu     sync.Mutex
	events []event.Event
	ids    map[event.ID]bool
	tries  int
	refuse func(*event.Event) error
}

// PublishBatch stores events as a whole, but those whose id it knows.
func (l *Log) PublishBatch(ctx context.Context, events []event.Event) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries++
	for i := range events {
		if l.refuse == nil {
			break
		}
		if err := l.refuse(&events[i]); errors.Is(err, store.ErrUnavailable) {
			return err
		} else if err != nil {
			return &store.EventError{Index: i, Err: err}
		}
	}
	for _, e := range events {
		if !l.ids[e.ID] {
			if l.ids == nil {
				l.ids = make(map[event.ID]bool)
			}
			l.ids[e.ID] = true
			l.events = append(l.events, e)
		}
	}
	return nil
}

// Refuse has the log refuse the events for which the function gives an error;
// nil for none. One that is [store.ErrUnavailable] is about no event.
func (l *Log) Refuse(f func(*event.Event) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = f
}

// Len is how many events are stored.
func (l *Log) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events)
}

// Tries is how many batches came.
func (l *Log) Tries() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tries
}

// Events are those that are stored, in order.
func (l *Log) Events() []event.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]event.Event(nil), l.events...)
}

// Check tells whether the events of each key of a topic have the payloads 1, 2
// and so on up to n, in this order.
func (l *Log) Check(t testing.TB, topic string, n int, keys ...string) {
	t.Helper()
	next := make(map[string]int)
	for _, e := range l.Events() {
		if e.Key == "" {
			continue
		}
		next[e.Key]++
		var got int
		if err := json.Unmarshal(e.Payload, &got); err != nil || e.Topic != topic || got != next[e.Key] {
			t.Fatalf("event %d of key %s in topic %s is %s", next[e.Key], e.Key, e.Topic, e.Payload)
		}
	}
	for _, key := range keys {
		if next[key] != n {
			t.Fatalf("%d events of key %s, want %d", next[key], key, n)
		}
	}
}
