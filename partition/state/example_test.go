package state_test

import (
	"context"
	"fmt"

	"promethean"
	"promethean/event"
	"promethean/partition/state"
)

// A group sums up what every customer has ordered. Here one process has the only
// partition of the topic; package partition says which ones a process has where
// there are several.
func Example() {
	ctx := context.Background()
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = hub.Close() }()
	sums, err := state.New[string, int](hub, "sales", state.Options{Source: "order.placed"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := sums.Assigned(ctx, 0); err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan struct{})
	handle := promethean.Handle(func(ctx context.Context, total int, e event.Event, d *promethean.Delivery) error {
		defer func() { done <- struct{}{} }()
		return sums.Update(ctx, e, d, func(sum int, _ bool) (int, error) { return sum + total, nil })
	})
	if _, err := hub.Subscribe(ctx, "order.placed", "sums", handle); err != nil {
		fmt.Println(err)
		return
	}
	for _, total := range []int{20, 15, 7} {
		if _, err := hub.Emit(ctx, "order.placed", total, promethean.Key("ann")); err != nil {
			fmt.Println(err)
			return
		}
		<-done
	}
	sum, _, err := sums.Get("ann")
	fmt.Println(sum, err)

	// Whoever gets the partition next finds the same.
	next, err := state.New[string, int](hub, "sales", state.Options{Source: "order.placed"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(next.Assigned(ctx, 0))
	sum, _, err = next.Get("ann")
	fmt.Println(sum, err)
	// Output:
	// 42 <nil>
	// <nil>
	// 42 <nil>
}
