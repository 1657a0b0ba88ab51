// Package prometheantest gives a test a hub of its own: in memory, with HTTP,
// WebSockets and Server-Sent Events, and with the process projector at work.
//
//	func TestSilence(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			h := prometheantest.Start(t)
//			h.Publish("heartbeat.received", process.Heartbeat{PID: 1, Name: "stt", Host: "local"})
//			h.ExpectEvents("process.state", map[string]any{"processId": "local:stt:1", "status": "alive"})
//			h.ExpectEvents("process.state", map[string]any{"status": "stale"}) // 15 s later
//			h.ExpectNone("process.state", time.Hour)
//		})
//	}
//
// # Time
//
// Inside a bubble of [testing/synctest] the hub listens in memory, and all its
// timers are virtual: leases, back-off and silence take no time, an hour of
// nothing is over at once, and the same test gives the same result on a slow
// machine. Outside it listens on a free port of the loopback interface. Start
// finds out by itself. In a bubble, give it the T of the bubble.
//
// # Guarantees
//
// The hub is the real one: engine, groups and gateway are those of a program,
// with the same promises of order and durability; the disk is in memory. It
// stops with the test, and then none of its goroutines is left. Hubs share
// nothing, so tests with hubs can run in parallel.
//
// An expectation that fails ends the test, and says what was expected, what was
// there, and what lies in the dead letters. A test that has failed gets a list
// of what the hub did; see [Recorder].
//
// Methods that end the test on failure must be called by the test's goroutine,
// as t.Fatal must. All others may be called by any.
package prometheantest
