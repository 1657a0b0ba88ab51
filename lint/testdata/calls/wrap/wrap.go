// Package wrap has functions around those of a hub.
package wrap

import (
	"context"

	"promethean"
	"promethean/client"
	"promethean/event"
)

// Name is a text.
type Name string

// Hub is embedded by others.
type Hub struct{ *promethean.Hub }

// Event makes an event.
func Event(topic string) event.Event { return event.Event{Topic: topic} }

// Assign makes one in another way.
func Assign(topic Name) (e event.Event) {
	e.Topic = string(topic)
	return e
}

// Typed passes a typed payload on.
func Typed[T any](ctx context.Context, h *promethean.Hub, topic string, v T) error {
	go func() { _, _ = promethean.PublishAs(ctx, h, topic, v) }()
	return nil
}

// Many passes all of its topics on.
func Many(topics ...string) promethean.SubscribeOption { return promethean.Topics(topics...) }

// Handled passes its handler on.
func Handled(ctx context.Context, b promethean.Bus, h promethean.Handler, topic string) {
	_, _ = b.Subscribe(ctx, topic, "g", h)
}

// Head passes the name of a header on.
func Head(value, name string) client.PublishOption { return client.Header(name, value) }

// Changed passes something else on.
func Changed(topic string) event.Event {
	topic += ".x"
	return event.New(topic, nil)
}

// Address may have changed it.
func Address(topic string) event.Event {
	change(&topic)
	return event.New(topic, nil)
}

func change(*string) {}

// First calls one that comes later, and that one another.
func First(topic string) event.Event { return second(topic) }

func second(topic string) event.Event { return Event((topic)) }

// Old publishes as the first version has it.
func Old(ctx context.Context, h *promethean.Hub, topic string, v any) {
	_, _ = h.Emit(ctx, topic, v, promethean.Header("x-schema-version", "1"))
}
