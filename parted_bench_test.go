package promethean_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// BenchmarkParted consumes the same topic as a group of four members and as one
// of eight partitions, two for each of four members.
func BenchmarkParted(b *testing.B) {
	const events = 300_000
	hub, err := promethean.Open(b.TempDir(), promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	ctx := context.Background()
	if err := hub.SetTopic(ctx, "bench.parted", store.Settings{Partitions: 8}); err != nil {
		b.Fatal(err)
	}
	batch := make([]event.Event, 1000)
	for n := 0; n < events; n += len(batch) {
		for i := range batch {
			batch[i] = event.New("bench.parted", []byte(`{"n":1,"text":"a payload of some size, as they are, with a few words in it"}`))
			batch[i].Key = fmt.Sprint("key-", (n+i)%10_000)
		}
		if _, err := hub.Publish(ctx, batch...); err != nil {
			b.Fatal(err)
		}
	}
	round := 0
	run := func(b *testing.B, subscribe func(group string, h promethean.Handler) []promethean.Subscription) {
		for b.Loop() {
			round++
			var left atomic.Int64
			left.Store(events)
			done := make(chan struct{})
			subs := subscribe(fmt.Sprint("g", round), func(context.Context, event.Event, *promethean.Delivery) error {
				if left.Add(-1) == 0 {
					close(done)
				}
				return nil
			})
			<-done
			var wg sync.WaitGroup
			for _, s := range subs {
				wg.Go(func() { _ = s.Stop(ctx) })
			}
			wg.Wait()
		}
		b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	}
	b.Run("whole", func(b *testing.B) {
		run(b, func(name string, h promethean.Handler) (out []promethean.Subscription) {
			for range 4 {
				s, err := hub.Subscribe(ctx, "bench.parted", name, h, promethean.FromEarliest())
				if err != nil {
					b.Fatal(err)
				}
				out = append(out, s)
			}
			return out
		})
	})
	b.Run("parted", func(b *testing.B) {
		run(b, func(name string, h promethean.Handler) (out []promethean.Subscription) {
			plan, err := hub.Engine().MakeParted(ctx, "bench.parted", name, group.Settings{Partitions: group.FollowTopic}, group.Start{From: group.Earliest})
			if err != nil {
				b.Fatal(err)
			}
			for n := range plan.Count {
				s, err := hub.Serve(ctx, "bench.parted", name, h, promethean.SubscribeOptions{}, func(o group.MemberOptions) (*group.Member, error) {
					return hub.Engine().JoinPart(ctx, "bench.parted", name, plan, n, group.PartOptions{MemberOptions: o})
				})
				if err != nil {
					b.Fatal(err)
				}
				out = append(out, s)
			}
			return out
		})
	})
}
