package promethean

import (
	"time"

	"promethean/group"
)

// Metrics is told what happens in a hub. Its methods are called often and
// under locks: they must be quick and must not call back.
type Metrics interface {
	group.Observer
	// Published is one stored event, and how long its publish took.
	Published(topic string, took time.Duration)
	// Handled is one call of a handler.
	Handled(topic, group string, took time.Duration)
	// Synced is one sync of the embedded engine.
	Synced(took time.Duration)
	// Attach tells which hub it is. It is called once, before the rest.
	Attach(h *Hub)
}

// NoMetrics is told and forgets. Embed it to be told only some things.
type NoMetrics struct{ group.NoObserver }

// Published implements [Metrics].
func (NoMetrics) Published(string, time.Duration) {}

// Handled implements [Metrics].
func (NoMetrics) Handled(string, string, time.Duration) {}

// Synced implements [Metrics].
func (NoMetrics) Synced(time.Duration) {}

// Attach implements [Metrics].
func (NoMetrics) Attach(*Hub) {}
