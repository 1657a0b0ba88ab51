package state_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/partition/state"
)

// While a group works off the old number of partitions of its topic, the table
// has that number too, and the new one afterwards.
func TestFollowsItsGroup(t *testing.T) {
	hub := open(t)
	const keys = 30
	divide(t, hub, 4)
	plan, err := hub.Engine().MakeParted(t.Context(), source, "g", group.Settings{Partitions: group.FollowTopic}, group.Start{From: group.Earliest})
	ok(t, err)
	round := func() {
		for i := range keys {
			publish(t, hub, fmt.Sprint("k", i), 1)
		}
	}
	round()
	divide(t, hub, 7) // before anything is handed out
	round()
	tab := table[int](t, hub, state.Options{Source: source, Group: "g"})
	var n atomic.Int64
	handler := func(ctx context.Context, e event.Event, d *promethean.Delivery) error {
		defer n.Add(1)
		return tab.Update(ctx, e, d, add(1))
	}
	for stage, count := range []int{4, 7} {
		if plan, err = hub.Engine().Plan(t.Context(), source, "g"); err != nil || plan.Count != count {
			t.Fatalf("%+v, %v", plan, err)
		}
		var subs []promethean.Subscription
		for p := range count {
			ok(t, tab.Assigned(t.Context(), p))
			s, err := hub.Serve(t.Context(), source, "g", handler, promethean.SubscribeOptions{}, func(m group.MemberOptions) (*group.Member, error) {
				return hub.Engine().JoinPart(t.Context(), source, "g", plan, p, group.PartOptions{MemberOptions: m})
			})
			ok(t, err)
			subs = append(subs, s)
		}
		wait(t, func() bool { return n.Load() == int64(keys*(stage+1)) })
		for p := range count {
			for x, err := range tab.Range(p) {
				if err != nil || x.Value != stage+1 || event.PartitionFor(x.Key, event.ID{}, count) != p {
					t.Errorf("partition %d of %d: %+v, %v", p, count, x, err)
				}
			}
		}
		if tab.Len() != keys {
			t.Errorf("%d keys", tab.Len())
		}
		for p, s := range subs {
			ok(t, s.Stop(t.Context()))
			ok(t, tab.Revoked(t.Context(), p))
		}
	}
	if err := table[int](t, hub, state.Options{Source: source, Group: "none"}).Assigned(t.Context(), 0); err == nil {
		t.Error("there is no such group")
	}
}
