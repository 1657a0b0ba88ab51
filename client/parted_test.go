package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"promethean/client"
	"promethean/event"
	"promethean/gateway"
	"promethean/internal/netfault"
)

// divide gives a topic so many partitions.
func (s *served) divide(topic string, n int) {
	s.Helper()
	if _, err := s.connect(client.Options{}).SetTopic(limit(s.T), topic, map[string]any{"partitions": n}); err != nil {
		s.Fatal(err)
	}
}

// worker is a member of a partitioned group. It notes what it gets, and that it
// has the partition of it.
type worker struct {
	recorder
	t *testing.T

	mu         sync.Mutex
	generation uint64
	told       int
	has        []int
}

func (w *worker) assign(generation uint64, partitions []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if generation < w.generation || !slices.IsSorted(partitions) {
		w.t.Errorf("%v of generation %d after %d", partitions, generation, w.generation)
	}
	w.generation, w.has = generation, partitions
	w.told++
}

func (w *worker) partitions() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.has
}

func (w *worker) subscribe(c *client.Client, topic string, opts ...client.SubscribeOption) *client.Subscription {
	w.t.Helper()
	sub, err := c.Subscribe(limit(w.t), topic, "g", w.handle, append(opts, client.Partitioned(), client.OnAssign(w.assign), client.FromEarliest())...)
	if err != nil {
		w.t.Fatal(err)
	}
	return sub
}

func TestPartitioned(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.divide("a", 8)
	one, two := &worker{t: t}, &worker{t: t}
	first := one.subscribe(s.connect(client.Options{}), "a")
	eventually(t, "the first has all", func() bool { return len(one.partitions()) == 8 })
	two.subscribe(s.connect(client.Options{}), "a")
	eventually(t, "they share", func() bool { return len(one.partitions()) == 4 && len(two.partitions()) == 4 })
	if all := slices.Sorted(slices.Values(slices.Concat(one.partitions(), two.partitions()))); !slices.Equal(all, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Fatalf("%v", all)
	}
	for range 10 { // 50 keys
		s.publish("a", 50)
	}
	s.settled("a", "g", 500)
	if one.count()+two.count() != 500 {
		t.Errorf("%d and %d deliveries", one.count(), two.count())
	}
	for _, w := range []*worker{one, two} {
		last := map[string]uint64{}
		for _, e := range w.got {
			n, _ := e.Partition.Get()
			if _, ok := slices.BinarySearch(w.partitions(), n); !ok || e.Seq < last[e.Key] {
				t.Fatalf("seq %d of partition %d after %d of its key came to the owner of %v", e.Seq, n, last[e.Key], w.partitions())
			}
			last[e.Key] = e.Seq
		}
	}
	if err := first.Stop(limit(t)); err != nil {
		t.Error(err)
	}
	eventually(t, "the second has all", func() bool { return len(two.partitions()) == 8 })
	s.publish("a", 50)
	s.settled("a", "g", 550)
}

// A member of its own name comes back to its partitions, and nothing is lost.
func TestPartitionedMemberComesBack(t *testing.T) {
	s := faulty(t, gateway.Options{})
	s.divide("a", 4)
	one := &worker{t: t}
	one.subscribe(s.connect(client.Options{}), "a", client.Member("one"))
	eventually(t, "it has all", func() bool { return len(one.partitions()) == 4 })
	proxy := s.proxy
	s.proxy = nil
	two := &worker{t: t}
	two.subscribe(s.connect(client.Options{}), "a", client.Member("two"))
	eventually(t, "they share", func() bool { return len(one.partitions()) == 2 && len(two.partitions()) == 2 })
	one.mu.Lock()
	told, generation, has := one.told, one.generation, one.has
	one.mu.Unlock()
	s.publish("a", 100)
	proxy.Down(true)
	s.publish("a", 100)
	proxy.Down(false)
	s.settled("a", "g", 200)
	eventually(t, "it is told again", func() bool {
		one.mu.Lock()
		defer one.mu.Unlock()
		return one.told > told
	})
	if one.generation != generation || !slices.Equal(one.has, has) {
		t.Errorf("%v of generation %d, before %v of %d", one.has, one.generation, has, generation)
	}
}

func TestPartitionedMemberIsFenced(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.divide("a", 4)
	old, young := &worker{t: t}, &worker{t: t}
	began, done := make(chan struct{}), make(chan struct{})
	old.fail = func(event.Event, *client.Delivery) error {
		close(began)
		<-done
		return nil
	}
	c := s.connect(client.Options{})
	sub := old.subscribe(c, "a", client.Member("me"), client.MaxInFlight(1))
	eventually(t, "it has all", func() bool { return len(old.partitions()) == 4 })
	s.publish("a", 1)
	<-began
	young.subscribe(s.connect(client.Options{}), "a", client.Member("me"))
	select {
	case <-sub.Done():
	case <-limit(t).Done():
		t.Fatal("it is not fenced")
	}
	wantCode(t, "fenced", sub.Err())
	close(done) // its ack does not count, and is not needed
	s.settled("a", "g", 1)
	if young.count() != 1 {
		t.Errorf("%d deliveries", young.count())
	}
	// The client itself goes on.
	if _, err := c.Publish(limit(t), "a", 1); err != nil {
		t.Error(err)
	}
}

// One that was silent for too long is a member again once it is heard of.
func TestPartitionedMemberIsSwept(t *testing.T) {
	s := serveFor(t, gateway.Options{Ping: 16 * time.Second}, 2*time.Second)
	s.divide("a", 4)
	proxy := netfault.New(t, s.addr)
	s.proxy = proxy
	one := &worker{t: t}
	one.subscribe(s.connect(client.Options{}), "a")
	eventually(t, "it has all", func() bool { return len(one.partitions()) == 4 })
	s.proxy = nil
	c := s.connect(client.Options{})
	proxy.Freeze(true)
	eventually(t, "it is swept", func() bool {
		got, err := c.GroupPartitions(limit(t), "a", "g")
		return err == nil && len(got) == 1 && len(got[0].Members) == 0
	})
	s.publish("a", 50)
	proxy.Freeze(false)
	s.settled("a", "g", 50)
}

func TestPartitionedRefused(t *testing.T) {
	s := serve(t, gateway.Options{})
	c := s.connect(client.Options{})
	ctx := limit(t)
	h := new(recorder).handle
	if _, err := c.Subscribe(ctx, "a", "g", h, client.OnAssign(func(uint64, []int) {})); !errors.Is(err, event.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
	_, err := c.Subscribe(ctx, "a.*", "g", h, client.Partitioned())
	wantCode(t, "invalid_argument", err)
	if _, err := c.Subscribe(ctx, "a", "g", h, client.Partitioned(), client.OnAssign(func(uint64, []int) { panic("oh") })); err != nil {
		t.Fatal(err)
	}
	other := s.connect(client.Options{})
	_, err = other.Subscribe(ctx, "a", "g", h)
	wantCode(t, "group_conflict", err)
	_, err = other.Pull(ctx, client.PullRequest{Topic: "a", Group: "g"})
	wantCode(t, "group_conflict", err)
	_, err = other.GroupPartitions(ctx, "", "nobody")
	wantCode(t, "not_found", err)
	info, err := other.MakeGroup(ctx, "b", "made", client.GroupSettings{Partitioned: true}, client.Place{})
	if err != nil || !info.Settings.Partitioned {
		t.Errorf("%+v %v", info, err)
	}
	all, err := other.GroupPartitions(ctx, "", "")
	if err != nil || len(all) != 2 {
		t.Errorf("%+v %v", all, err)
	}
}

func ExamplePartitioned() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	addr, stop := hubForExample()
	defer stop()
	c, err := client.New(addr, client.Options{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = c.Close(ctx) }()
	if _, err := c.SetTopic(ctx, "heartbeat.received", map[string]any{"partitions": 8}); err != nil {
		panic(err)
	}
	assigned := make(chan []int, 1)
	_, err = c.Subscribe(ctx, "heartbeat.received", "analyzer", func(context.Context, event.Event, *client.Delivery) error {
		return nil
	}, client.Partitioned(), client.Member("analyzer-1"), client.OnAssign(func(_ uint64, partitions []int) { assigned <- partitions }))
	if err != nil {
		panic(err)
	}
	fmt.Println(<-assigned)
	// Output:
	// [0 1 2 3 4 5 6 7]
}
