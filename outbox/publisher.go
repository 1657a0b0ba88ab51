package outbox

import (
	"context"

	"promethean/event"
)

// Publisher stores events in a log as a whole, in order, durably when it
// returns. An id that the topic has already is no error.
type Publisher interface {
	PublishBatch(ctx context.Context, events []event.Event) error
}

// PublisherFunc is a function as a [Publisher].
type PublisherFunc func(ctx context.Context, events []event.Event) error

// PublishBatch calls the function.
func (f PublisherFunc) PublishBatch(ctx context.Context, events []event.Event) error {
	return f(ctx, events)
}

// ToBus publishes by the method Publish of a hub, or of any bus of this module:
//
//	outbox.ToBus(hub.Publish)
//
// It takes the method and not the bus so that a service which publishes to a hub
// elsewhere is not made of one.
func ToBus[R any](publish func(context.Context, ...event.Event) ([]R, error)) Publisher {
	return PublisherFunc(func(ctx context.Context, events []event.Event) error {
		_, err := publish(ctx, events...)
		return err
	})
}

// ToClient publishes to a hub elsewhere by the method PublishEvents of a client:
//
//	outbox.ToClient(c.PublishEvents)
func ToClient[R any](publish func(context.Context, []event.Event) ([]R, error)) Publisher {
	return PublisherFunc(func(ctx context.Context, events []event.Event) error {
		_, err := publish(ctx, events)
		return err
	})
}
