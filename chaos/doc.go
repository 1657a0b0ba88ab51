// Chaos runs three NATS servers, some hubs, publishers and consumers as
// processes on loopback, does harm to them by a plan, and says whether the
// promises held.
//
//	go run ./chaos -hub bin/promethean -for 5m -seed 42
//
// The plan follows from the seed alone: which fault, whom it hits and for how
// long. A fault begins when the one before is recovered from, so the moments
// differ from run to run, and what the processes make of it does too.
//
// With -steps there are no faults. Instead the members of two partitioned groups
// join, leave, die and stall, one of them at each step, some hundred moves a
// minute; which, follows from the seed and from what became of those before.
//
// # What is checked
//
// Every worker writes a journal, one line before a call and one after it, so
// that a killed process has told what it began. At the end the logs are read
// through every hub, and compared with the journals:
//
//   - A publish that was acknowledged is in the log, once, at the seq that was
//     told. A batch is there as a whole or not at all. Events of one key stand in
//     the order in which one publisher sent them.
//   - Every event of the log was handed to every group.
//   - An event is handed out only after an ack was sent for every earlier event
//     of its key, and never after its own ack was answered.
//   - No owner of a partition hands out anything after the next one has begun to,
//     whatever it believes. A counter for each key, kept in a state.Table by
//     members that come and go, is exact, and was counted in order.
//   - Conditional publishes behave as one register for each topic, whichever hub
//     they go through (by porcupine).
//   - After a fault is over, publishing and every group go on.
//   - No process ends by itself, panics, or logs an error: what faults bring about
//     is a warning at most.
//
// The moment of hand-out is the hub's own: the deadline of the lease that comes
// with a delivery, less the length of a lease. All processes share one clock.
//
// # Faults
//
// See [kinds]. Hubs reach the servers through proxies of this program, one for
// each pair, that can refuse, freeze or delay. A disk cannot be slowed down
// without rights: instead a server is stopped and continued many times a second,
// so that whatever it does, writing and syncing too, takes several times as
// long.
package main
