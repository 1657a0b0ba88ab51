package partition_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/partition"
	"promethean/store"
)

// traced is a group of four members with eight partitions under a steady stream
// of events, on the embedded engine with its syncs.
type traced struct {
	mu   sync.Mutex
	last []time.Time     // of each partition, when it was at work last
	gap  []time.Duration // and its longest pause
	late []time.Duration // and how long an event waited at most that was there
	at   []int           // which member has it
	// there is when events were published, until they are handled.
	there map[uint64]time.Time
}

func newTraced() *traced {
	return &traced{
		last: make([]time.Time, 8), gap: make([]time.Duration, 8), late: make([]time.Duration, 8), at: make([]int, 8),
		there: make(map[uint64]time.Time),
	}
}

func (x *traced) handled(member, number int, seq uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	if !x.last[number].IsZero() {
		x.gap[number] = max(x.gap[number], now.Sub(x.last[number]))
	}
	if since, known := x.there[seq]; known { // else its publisher has yet to hear of it
		x.late[number] = max(x.late[number], now.Sub(since))
		delete(x.there, seq)
	}
	x.last[number], x.at[number] = now, member
}

// published notes that events are there.
func (x *traced) published(list []promethean.Receipt) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for _, p := range list {
		x.there[p.Seq] = now
	}
}

// owners says who was at each partition last, and begins to look for pauses
// anew.
func (x *traced) owners() []int {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.gap)
	clear(x.late)
	return slices.Clone(x.at)
}

const traceTopic = "bench.trace"

// BenchmarkRebalance has a member leave, or die, and come again: how long until
// all its partitions are at work elsewhere, and the longest pause of one that
// did not move. When all stay there is nothing to pause for: what is measured
// then is the machine, over as long as it takes to notice that one died. A disk
// that takes long delays events before they are there, which makes a pause too;
// how late an event is handled that is there does not count that.
func BenchmarkRebalance(b *testing.B) {
	const ttl = time.Second
	for _, way := range []string{"leaves", "dies", "stay"} {
		b.Run(way, func(b *testing.B) {
			hub, err := promethean.Open(b.TempDir(), promethean.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = hub.Close() }()
			ctx := b.Context()
			if err := hub.SetTopic(ctx, traceTopic, store.Settings{Partitions: 8}); err != nil {
				b.Fatal(err)
			}
			c, err := partition.New(hub, partition.Options{TTL: ttl})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = c.Close(context.Background()) }()
			x := newTraced()
			members := make(map[int]*partition.Membership)
			join := func(id int) {
				members[id] = traceMember(b, hub, c, x, id)
			}
			for id := range 4 {
				join(id)
			}
			stop := traceEvents(b, hub, x)
			defer stop()
			settled := func(without int) (owners []int) {
				for {
					owners = x.owners()
					time.Sleep(50 * time.Millisecond)
					counts := make(map[int]int)
					for _, o := range x.owners() {
						counts[o]++
					}
					if len(counts) == len(members) && slices.Max(slices.Collect(maps.Values(counts))) <= (8+len(members)-1)/len(members) && counts[without] == 0 {
						return owners
					}
				}
			}
			var moved, paused, late time.Duration
			next := 4
			for b.Loop() {
				before := settled(-1)
				if way == "stay" {
					time.Sleep(ttl)
					x.mu.Lock()
					paused, late = max(paused, slices.Max(x.gap)), max(late, slices.Max(x.late))
					x.mu.Unlock()
					continue
				}
				victim := before[0]
				began := time.Now()
				if way == "leaves" {
					if err := members[victim].Leave(ctx); err != nil {
						b.Fatal(err)
					}
				} // one that dies is not heard of any more
				traceHearts.Delete(victim)
				delete(members, victim)
				for {
					now, last := x.look()
					elsewhere := true
					for n := range now {
						elsewhere = elsewhere && (before[n] != victim || now[n] != victim && last[n].After(began))
					}
					if elsewhere {
						break
					}
					time.Sleep(time.Millisecond)
				}
				took := time.Since(began)
				if way == "dies" {
					took -= ttl
				}
				moved = max(moved, took)
				x.mu.Lock()
				for n := range before {
					if before[n] != victim {
						paused, late = max(paused, x.gap[n]), max(late, x.late[n])
					}
				}
				x.mu.Unlock()
				join(next)
				next++
			}
			if way != "stay" {
				b.ReportMetric(float64(moved.Microseconds())/1000, "ms/longest-move")
			}
			b.ReportMetric(float64(paused.Microseconds())/1000, "ms/longest-pause")
			b.ReportMetric(float64(late.Microseconds())/1000, "ms/longest-late")
			for id := range next {
				traceHearts.Delete(id)
			}
		})
	}
}

func (x *traced) look() ([]int, []time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.at), slices.Clone(x.last)
}

// traceHearts has the members that say that they live.
var traceHearts sync.Map

func traceMember(b *testing.B, hub *promethean.Hub, c *partition.Coordinator, x *traced, id int) *partition.Membership {
	b.Helper()
	ms, err := c.Join(b.Context(), traceTopic, "g", partition.Join{
		Member:   fmt.Sprint("m", id),
		Settings: group.Settings{Partitions: group.FollowTopic},
		Serve: func(n int, join func(group.MemberOptions) (*group.Member, error)) (func(), error) {
			s, err := hub.Serve(b.Context(), traceTopic, "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
				x.handled(id, n, e.Seq)
				return nil
			}, promethean.SubscribeOptions{}, join)
			if err != nil {
				return nil, err
			}
			return func() { _ = s.Stop(b.Context()) }, nil
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	traceHearts.Store(id, true)
	go func() {
		for {
			if _, lives := traceHearts.Load(id); !lives || ms.Heartbeat() != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return ms
}

// traceEvents publishes an event for each of many keys every two milliseconds.
func traceEvents(b *testing.B, hub *promethean.Hub, x *traced) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		batch := make([]event.Event, 32)
		for ctx.Err() == nil {
			for i := range batch {
				batch[i] = event.New(traceTopic, []byte(`{}`))
				batch[i].Key, batch[i].Partition = fmt.Sprint("k", i), event.PartitionOf(i%8)
			}
			list, err := hub.Publish(ctx, batch...)
			if err != nil && ctx.Err() == nil {
				b.Error(err)
				return
			}
			x.published(list)
			time.Sleep(2 * time.Millisecond)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
