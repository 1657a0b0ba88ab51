// Package promethean is a durable event bus: ordered topics, consumer groups
// with leases, retries and order by key, dead letters that can be replayed.
//
// A [Hub] is opened on a directory, or in memory, and closed when it is no
// longer needed:
//
//	hub, err := promethean.Open("data", promethean.Options{})
//	if err != nil { … }
//	defer hub.Close()
//
//	sub, err := hub.Subscribe(ctx, "heartbeat.received", "ops",
//		func(ctx context.Context, e event.Event, d *promethean.Delivery) error {
//			return store(e.Payload)
//		}, promethean.FromEarliest())
//
//	_, err = hub.Emit(ctx, "heartbeat.received", Heartbeat{PID: 42}, promethean.Key("dev:42"))
//
// # Guarantees
//
// A publish is acknowledged after its bytes are on disk. Publishing the same
// id again stores nothing. Events of a topic have one order, their seq. Nothing
// is delivered before it is durable.
//
// Delivery is at least once. An event is handed to one member of a group at a
// time; what was acked is never handed out again; events of one key are handed
// out in order, the next one when the one before is settled. An event that
// fails comes back after a growing delay, and after MaxAttempts goes to the
// dead letters. Attempts survive restarts and crashes. docs/delivery.md says
// all of it.
//
// All methods may be called concurrently.
package promethean
