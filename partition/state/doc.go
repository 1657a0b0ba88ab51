// Package state keeps what a handler knows of every key: a counter, a session,
// the last position. It is for groups that have all events of a key at one
// place, see package partition. A [Table] holds the keys of the partitions that
// this process has in memory, and every change in a topic, its changelog, from
// which whoever gets the partition next restores them.
//
//	sums, err := state.New[string, int64](hub, "sales", state.Options{Source: "order.placed", Group: "sums"})
//	sub, err := partition.SubscribePartitioned(ctx, c, "order.placed", "sums",
//		func(ctx context.Context, e event.Event, d *promethean.Delivery) error {
//			return sums.Update(ctx, e, d, func(sum int64, _ bool) (int64, error) { return sum + total(e), nil })
//		},
//		partition.OnAssigned(sums.Assigned), partition.OnRevoked(sums.Revoked))
//
// # Exactly once
//
// Of every event that [Table.Update] was called with, in a group that is ordered
// by key, the effect is in the table once: after any number of redeliveries,
// crashes and rebalances, and with workers that go on though they have lost
// their partition.
//
// A record of the changelog has the table's key, the new value as its payload,
// and in the header x-source-seq the seq of the event that made it, the source
// seq of the key from then on. It is appended under the condition that the
// record that the value was computed from is still the last of its key
// ([store.Expect]). If it is not, the newest one is read; it tells by its source
// seq whether the event has been applied, and if not, what to apply it to. Events
// of a key are handed out in ascending seqs, each after the one before is
// settled, so an event is applied if its seq is not above the source seq.
//
// What is in memory is therefore never more than a guess that saves a read. A
// wrong one costs another try.
//
// Update returns once the record is durable, so that the event is acked after
// its effect is safe. If the process dies in between, the event comes again and
// is found to be applied.
//
// # Dead letters
//
// An event that was moved to the dead letters and comes back to the group
// (policy event, replayed to the group) may find that later events of its key
// have been applied. Whether it was itself cannot be told then: Update refuses
// it, as [promethean.Dead]. Replay it to the topic in place of the group, where
// it becomes a new event with a seq of its own. With the policy key nothing of
// the key is applied in the meantime, and replayed events count as they should.
// A handler that fails after Update has returned leaves an effect behind: an
// event that became a dead letter in that way counts again when it is replayed to
// the topic. Let Update be the last thing that a handler does.
//
// # Deletes
//
// A function that returns [Delete] deletes the key. The record of that is a
// tombstone with a source seq, and stays for ever by default, so that an event
// from before it is known as old whenever it comes. Deleted keys take no memory.
// With Options.Tombstones compaction removes them after that time, and with them
// what is known of the key: an event that is redelivered even later, after a
// cursor was moved back for instance, is applied as if the key were new.
//
// # Partitions
//
// By default keys are divided as the events of the source are: by the partition
// that is stored with each. With Options.Partitions the table has a number of its
// own, as the group must have. If the number changes, nothing needs to be
// rewritten: a partition is restored from the records of all keys that belong to
// it now, wherever they were stored. Publishers leave the partition of an event
// to the hub, or choose it by the same hash; others make events that are counted
// rightly, but slowly, and whose keys Get and Range do not find.
package state
