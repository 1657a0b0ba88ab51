// Package outboxtest is the suite that every driver of package outbox passes, and
// an outbox in memory for tests.
//
// A driver's test tells how to open an empty outbox and runs the suite:
//
//	func TestConformance(t *testing.T) {
//		outboxtest.Run(t, func(t *testing.T) outboxtest.Harness { … })
//	}
//
// The suite never waits for time to pass: [Harness.Advance] has it pass.
package outboxtest
