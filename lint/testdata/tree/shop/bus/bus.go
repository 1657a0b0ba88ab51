// Package bus is a wrapper around a hub, as many programs have one.
package bus

import (
	"context"

	"promethean"
)

// Bus publishes for a shop.
type Bus struct{ hub *promethean.Hub }

// Topic is a topic of a shop.
type Topic string

// Send publishes v.
func (b *Bus) Send(ctx context.Context, topic Topic, v any, source string) error {
	return send(ctx, b.hub, string(topic), v, "x-source", source)
}

// send is a wrapper that a wrapper calls.
func send(ctx context.Context, hub *promethean.Hub, topic string, v any, name, value string) error {
	_, err := hub.Emit(ctx, topic, v, promethean.Header(name, value))
	return err
}
