package promethean

import (
	"context"

	"promethean/event"
)

// Tracer makes spans of what happens to events. See package tracing for one
// that speaks to OpenTelemetry. Each method gives a function that ends the
// span.
type Tracer interface {
	// Publish begins a span around a publish and puts its context into the
	// headers of the events, which are the hub's own copies.
	Publish(ctx context.Context, events []event.Event) (context.Context, func(error))
	// Deliver begins a span around the call of a handler, which belongs to the
	// trace that the event's headers name.
	Deliver(ctx context.Context, group string, e *event.Event, attempt int) (context.Context, func(error))
	// Settle begins a span from the end of a handler until what became of the
	// event is durable. Outcome is ack or nack. The function that ends it is
	// called under a lock and must be quick.
	Settle(ctx context.Context, group string, e *event.Event, outcome string) func(error)
}
