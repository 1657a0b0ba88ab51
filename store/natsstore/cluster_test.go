package natsstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"promethean/event"
	"promethean/internal/natstest"
	"promethean/store"
	"promethean/store/natsstore"
	"promethean/store/storetest"
)

// TestClusterConformance runs the whole suite, four cases at a time: most of
// what they do is to wait for the cluster, so that they need no cores for it.
func TestClusterConformance(t *testing.T) {
	t.Parallel()
	h := harness("cluster", natstest.StartCluster(t, 3).URL())
	h.Skip = map[string]string{leakCase: "runs in TestNoGoroutineLeft, with the server in another process"}
	h.Many = 3000 // with -race it is slow
	const lanes = 4
	cases := storetest.Cases()
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for i := lane; i < len(cases); i += lanes {
				t.Run(cases[i].Name, func(t *testing.T) { cases[i].Run(t, h) })
			}
		})
	}
	all.Wait()
}

// twins has two stores append the same one or two events at the same time. Both
// must give them the same seqs.
func (l *ledger) twins(ctx context.Context, t testing.TB, stores []*natsstore.Store, who string, n int) {
	var b store.Batch
	for i := range 1 + n%2 {
		e := newEvent(who, n)
		e.SID = fmt.Sprintf("%08d", 2*n+i)
		b.Events = append(b.Events, e)
	}
	var both sync.WaitGroup
	var fresh, failed atomic.Int32 // how many answers say so; how many calls failed
	for _, s := range stores {
		both.Go(func() {
			got, err := s.Append(ctx, b)
			for errors.Is(err, store.ErrUnavailable) {
				failed.Add(1)
				got, err = s.Append(ctx, b)
			}
			if err != nil {
				t.Error(err)
				return
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			for i, a := range got {
				if seq, ok := l.acked[b.Events[i].ID]; ok && seq != a.Seq {
					t.Errorf("one event is acknowledged as seq %d and as %d", seq, a.Seq)
				}
				l.acked[b.Events[i].ID] = a.Seq
				if !a.Duplicate {
					fresh.Add(1)
				}
			}
		})
	}
	both.Wait()
	// Of a call that failed nobody knows whether it stored anything.
	if n := int(fresh.Load()); n > len(b.Events) || n < len(b.Events) && failed.Load() == 0 && !t.Failed() {
		t.Errorf("%d of %d events are said to be new by those who sent them at once", n, len(b.Events))
	}
}

// TestLeaderKilled stops the server that leads the topic's stream under load,
// twice, and each time starts it again.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t, 3)
	o := natsstore.Options{AttemptTimeout: time.Second}
	stores := []*natsstore.Store{open(t, c.URL(), o), open(t, c.URL(), o)}
	ctx := deadline(t)
	l := ledger{acked: make(map[event.ID]uint64)}
	var all sync.WaitGroup
	stop := make(chan struct{})
	for who := range 6 {
		all.Go(func() {
			for part := 0; ; part++ {
				select {
				case <-stop:
					return
				default:
					l.publish(ctx, t, stores[who%2], 1_000_000*who+part, 20)
				}
			}
		})
	}
	for who := range 2 { // the same events through both stores at once
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					l.twins(ctx, t, stores, fmt.Sprint("twin ", who), n)
				}
			}
		})
	}
	stream := "promethean-orders_placed"
	reach := func(more int) {
		t.Helper()
		l.mu.Lock()
		want := len(l.acked) + more
		l.mu.Unlock()
		for {
			l.mu.Lock()
			n := len(l.acked)
			l.mu.Unlock()
			if n >= want {
				return
			}
			select {
			case <-ctx.Done():
				t.Fatalf("%d events are acknowledged, and no more", n)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	func() {
		defer all.Wait()
		defer close(stop)
		for range 2 {
			reach(200)
			leader := c.Leader("$G", stream)
			if leader == nil {
				t.Error("the stream has no leader")
				return
			}
			leader.Stop()
			reach(200)
			leader.Start(t)
			c.Await(t, 3)
		}
		reach(100)
	}()
	l.judge(t, stores[0])
	l.acked = nil
	if b, err := stores[1].Bounds(ctx, topic); err != nil || b.Last == 0 {
		t.Fatalf("%+v, %v", b, err)
	}
}
