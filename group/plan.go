package group

import (
	"errors"

	"promethean/event"
)

// A partitioned group has a cursor for each of its partitions, and each
// partition one member at a time, so that all events of a key are at one place.
// Who gets which is decided elsewhere: package partition does that. Here a
// partition is a runner of its own, with an epoch that ends whenever another
// member takes the partition.
//
// A Plan says how the group is divided. It holds up to some place in the topic
// if the topic has been given another number of partitions there: all of the
// old plan is settled before the first event of the new one is handed out, so
// that a key that moves keeps its order.

// FollowTopic is a number of partitions in [Settings]: the group follows its
// topic, with as many as it has, and for every event the one that is stored with
// it.
const FollowTopic = -1

// ErrPlan says that a group is divided in another way by now.
var ErrPlan = errors.New("the group is divided anew")

// Plan is how a partitioned group is divided.
type Plan struct {
	// ID names the division. It is another one once the number of partitions
	// has changed or the cursor was moved.
	ID string
	// Count is how many partitions there are, numbered from 0.
	Count int
}

// PartOptions configure a member of a partition.
type PartOptions struct {
	MemberOptions
	// KeyOf gives what partition and order follow, for a group with a number of
	// partitions of its own; nil or "" means the event's key, or its id. All
	// members must have the same.
	KeyOf func(*event.Event) string
	// Owned is called when the partition is the member's, with its epoch, and
	// with 0 when it is so no longer: what the member holds is over then. On an
	// engine that is not shared it is called once, before JoinPart returns. It
	// is called under a lock: it must neither block nor call back.
	Owned func(epoch uint64)
	// Ended is called once all events of the partition that the plan has are
	// settled, if the plan ends. It is called under a lock as well.
	Ended func()
}

// PartInfo is how one partition of a group stands.
type PartInfo struct {
	Number int
	// Cursor is the floor: what the partition has at or below it is settled.
	Cursor uint64
	// Lag is how many events of the partition are not settled; about so many
	// where Exact is false.
	Lag   uint64
	Exact bool
	// InFlight and Pending are known where the partition is owned.
	InFlight, Pending int
	Epoch             uint64
	// Here says that this process owns the partition.
	Here bool
}
