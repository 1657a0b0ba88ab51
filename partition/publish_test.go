package partition_test

import (
	"errors"
	"testing"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/partition"
	"promethean/store"
)

// Events get the partition that another key than their own says.
func TestPublish(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		if err := w.hub.SetTopic(t.Context(), topic, store.Settings{Partitions: 8}); err != nil {
			t.Fatal(err)
		}
		bus := partition.Publish(w.hub, 8, func(e *event.Event) string { return e.SID })
		list := make([]event.Event, 4)
		for i := range list {
			list[i] = event.New(topic, []byte("{}"))
		}
		list[0].Key, list[0].SID = "a", "session"
		list[1].Key, list[1].SID = "b", "session"
		list[2].Key = "c"
		list[3].Key, list[3].SID, list[3].Partition = "d", "session", event.PartitionOf(1)
		got, err := promethean.PublishIf(t.Context(), bus, []store.Expect{{Topic: topic}}, list...)
		if err != nil {
			t.Fatal(err)
		}
		none := event.ID{}
		for i, want := range []int{
			event.PartitionFor("session", none, 8), event.PartitionFor("session", none, 8), event.PartitionFor("c", none, 8), 1,
		} {
			if n, _ := got[i].Partition.Get(); n != want {
				t.Errorf("event %d is in partition %d, not %d", i, n, want)
			}
		}
		if _, given := list[0].Partition.Get(); given {
			t.Error("the caller's event is changed")
		}
		one, err := partition.Publish(w.hub, 8, nil).Publish(t.Context(), event.New(topic, []byte("1")))
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := one[0].Partition.Get(); n != event.PartitionFor("", one[0].ID, 8) {
			t.Errorf("an event without a key is in partition %d", n)
		}
		for _, n := range []int{0, -1, 1_000_000} {
			if _, err := partition.Publish(w.hub, n, nil).Publish(t.Context(), list...); !errors.Is(err, group.ErrInvalid) {
				t.Errorf("%d partitions: %v", n, err)
			}
		}
		if _, err := partition.Publish(w.hub, 4000, nil).Publish(t.Context(), event.New("other", []byte("1"))); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("more than the topic has: %v", err)
		}
	})
}
