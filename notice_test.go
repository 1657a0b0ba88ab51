package promethean_test

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/store/storetest"
)

// lent is an engine that another hub closes.
type lent struct{ *storetest.Shared }

func (lent) Close() error { return nil }

// shareMemory gives an engine in memory for several hubs.
func shareMemory(t *testing.T) *storetest.Shared {
	t.Helper()
	log, err := logstore.OpenMemory(logstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return storetest.Share(log)
}

// Hubs on one engine learn of each other's topics and of their settings.
func TestHubsTellEachOtherOfTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		shared := shareMemory(t)
		a, err := promethean.New(shared, promethean.Options{Owner: "a"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := promethean.New(lent{shared}, promethean.Options{Owner: "b"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(b.Close(), a.Close()); err != nil {
				t.Error(err)
			}
		}()
		last := func(h *promethean.Hub) error {
			e := event.New("orders", []byte(`1`))
			e.Partition = event.PartitionOf(7)
			_, err := h.Publish(ctx, e)
			return err
		}
		if err := last(b); err == nil {
			t.Error("partition 7 of 1 is taken")
		}
		if err := a.SetTopic(ctx, "orders", store.Settings{Partitions: 8}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := errors.Join(last(a), last(b)); err != nil {
			t.Error(err)
		}

		got := make(chan string, 10)
		_, err = b.Subscribe(ctx, "orders.**", "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
			got <- e.Topic
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Emit(ctx, "orders.placed", 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(got) != 1 || <-got != "orders.placed" {
			t.Error("a topic that another hub has made is not read")
		}

		// A hub that dies before it tells is found out later.
		if err := shared.SetTopic(ctx, "orders", store.Settings{Partitions: 4}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if err := last(b); err == nil {
			t.Error("partition 7 of 4 is taken")
		}
	})
}

// slowTopics lists topics as they were, and late: when it is let.
type slowTopics struct {
	lent
	slow *atomic.Bool
	read chan struct{} // told when a list was read
	let  chan struct{}
}

func (s slowTopics) Topics(ctx context.Context) iter.Seq2[store.Topic, error] {
	return func(yield func(store.Topic, error) bool) {
		var list []store.Topic
		for t, err := range s.lent.Topics(ctx) {
			if err != nil {
				yield(t, err)
				return
			}
			list = append(list, t)
		}
		if s.slow.Load() {
			s.read <- struct{}{}
			<-s.let
		}
		for _, t := range list {
			if !yield(t, nil) {
				return
			}
		}
	}
}

// A hub that sets a topic knows it from then on, also while it is told of what
// others have set: that may have been read before.
func TestOwnSettingsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		shared := shareMemory(t)
		slow := slowTopics{lent{shared}, new(atomic.Bool), make(chan struct{}), make(chan struct{})}
		hub, err := promethean.New(slow, promethean.Options{Owner: "a"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(hub.Close(), shared.Close()); err != nil {
				t.Error(err)
			}
		}()
		set := func(n int) {
			t.Helper()
			if err := hub.SetTopic(ctx, "orders", store.Settings{Partitions: n}); err != nil {
				t.Fatal(err)
			}
		}
		slow.slow.Store(true)
		set(2)
		<-slow.read // by the hub itself, for its own notice
		set(3)
		slow.let <- struct{}{}
		<-slow.read // what was read before is taken in, and it looks again
		if n := hub.Settings("orders").Partitions; n != 3 {
			t.Errorf("the topic was set to 3 partitions, and has %d", n)
		}
		slow.slow.Store(false)
		slow.let <- struct{}{}
		synctest.Wait()
		if n := hub.Settings("orders").Partitions; n != 3 {
			t.Errorf("the topic has %d partitions in the end", n)
		}
	})
}

// stuck is told of a sync and does not let it end while it is held.
type stuck struct {
	promethean.NoMetrics
	held chan struct{}
}

func (s stuck) Synced(time.Duration) { <-s.held }

// A topic with asynchronous durability is answered before the sync has ended,
// and what was answered cannot be read before.
func TestAsyncTopicDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s := stuck{held: make(chan struct{}, 1000)}
		for range 100 { // what opening and setting need
			s.held <- struct{}{}
		}
		hub, err := promethean.OpenMemory(promethean.Options{Metrics: s})
		if err != nil {
			t.Fatal(err)
		}
		if err := hub.SetTopic(ctx, "fast", store.Settings{Async: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := hub.Emit(ctx, "slow", 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for len(s.held) > 0 {
			<-s.held
		}
		if _, err := hub.Emit(ctx, "fast", 1); err != nil {
			t.Fatal(err) // would not return if it waited
		}
		n := 0
		for range hub.Read(ctx, store.Query{Topic: "fast"}) {
			n++
		}
		if n > 0 {
			t.Error("an event can be read before it is durable")
		}
		durable := make(chan error, 1)
		go func() {
			_, err := hub.Publish(ctx, event.New("fast", []byte(`2`)), event.New("slow", []byte(`2`)))
			durable <- err
		}()
		synctest.Wait()
		if len(durable) > 0 {
			t.Error("a batch with one durable topic did not wait")
		}
		close(s.held)
		if err := <-durable; err != nil {
			t.Error(err)
		}
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	})
}
