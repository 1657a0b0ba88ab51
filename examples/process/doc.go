// Package process projects heartbeats onto the state of processes: every event
// of heartbeat.received says that a process lives, and process.state holds, by
// the key host:name:pid, what is known of it. A process is alive while its
// heartbeats come, and stale once it was silent for 15 s.
//
//	projector, err := process.Start(ctx, hub, process.Options{})
//	if err != nil { … }
//	defer projector.Stop(context.Background())
//
//	_, err = hub.Emit(ctx, process.HeartbeatTopic, process.Heartbeat{PID: 1, Name: "stt", Host: "dev"})
//
// It is an example of a projector that may be stopped, killed and doubled at any
// moment, and shows what that takes.
//
// # Guarantees
//
// The log is the state. Nothing is kept elsewhere: a projector that starts reads
// process.state, and so a process that went silent while no projector ran is
// found stale by the next one.
//
// Every state is there once. Its id follows from the heartbeat, or from the
// silence, that it is about: publishing it again, after a crash or because the
// heartbeat was delivered again, stores nothing.
//
// The states of a process follow the times of its heartbeats. Each is published
// on the condition that the one before it is the one that was looked at. A
// heartbeat that is older than the last one known changes nothing, and a silence
// is not stated when a heartbeat comes first. That holds with several
// projectors too: they share the heartbeats, and all of them look for silence.
//
// A silence is stated only where no heartbeat of that time waits to be handled:
// a projector that has been away, or is slow, does not call those stale whose
// heartbeats it has not come to yet.
//
// A heartbeat of the wrong shape is a dead letter at once, with a reason that
// names every field at fault.
//
// Time is the event's ts. One that lies in the future counts as now.
package process
